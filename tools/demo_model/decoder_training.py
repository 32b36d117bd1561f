"""Trains the decoders of both VAEs on, their encoders held still.

A decoder learns slowly what few clips show (a beep, the outline beside a patch's border), and the
latents that a denoiser was trained on stay valid while only decoders change. They are given what a
denoiser gives them: posterior means, a little off.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tools.demo_model import audio_training, units, video_training
from tools.demo_model.loop import Training
from tools.demo_model.pace import Pace, Recipe
from tools.demo_model.sharpness import excess_loss
from tools.demo_model.shipping import ship
from tools.tiny_models import untyped

AUDIO_RECIPE = Recipe(learning_rate=5e-4, betas=(0.8, 0.99), ema=0.99, clip_norm=20.0, half=False)
VIDEO_RECIPE = Recipe(learning_rate=3e-4, ema=0.997)
AUDIO_CROPS = ((2, 52), (4, 26))  # stereo clips of a step, and their length in latents
# Among as many tones a decoder leaves a beep's carrier out; among few it learns it at once.
KEPT = {"low": 0.15, "middle": 0.15, "high": 0.15, "beeps": 1.0, "wash": 0.3, "silence": 0.1}
_PICTURES = 16  # stretches of a step on a GPU
_FEW = 4  # on a CPU, where a step would take ten seconds
# Steps of half a grey level between patches of flat ground are the grid that is seen. Nothing but
# the slopes across borders tells of them, and with less weight than this they stay.
_BORDER, _STEEPNESS = 100.0, 3.0
# Twice as much makes outlines on the borders fainter than they are; without it 4,000 steps leave
# them a quarter too steep.
_EXCESS = 1.5
_OFF = 0.05  # of a channel's deviation: how far off the means a denoiser's latents may be
_DECODING = ("dec", "post_quant_conv")  # begin the names of a decoder's weights


def train_audio(folder: Path, pace: Pace, device: torch.device) -> None:
    """The audio_decoder stage: `folder`/audio_vae with a better decoder."""
    kind = untyped("diffusers").AutoencoderKLMiniMaxH3Audio
    vae = kind.from_pretrained(folder / "audio_vae").to(device)

    def loss_of(step: int) -> dict[str, Tensor]:
        wave = audio_training.draw_crops(step + 7_000_000, AUDIO_CROPS, KEPT, device)
        with torch.no_grad():
            latents = _off(vae.encode(wave).latent_dist.mode())
        return audio_training.losses(vae.decode(latents).sample, wave)

    training = _train("audio_decoder", vae, AUDIO_RECIPE, folder, pace, loss_of)
    ship(vae, folder / "audio_vae")
    training.log(**audio_training.measure(vae, device))


def train_video(folder: Path, pace: Pace, device: torch.device) -> None:
    """The video_decoder stage: `folder`/video_vae with a better decoder."""
    kind = untyped("diffusers").AutoencoderKLMiniMaxH3
    vae = kind.from_pretrained(folder / "video_vae").to(device)
    compiled = pace.compiles(device)
    decoder = torch.compile(vae.decoder, dynamic=False) if compiled else vae.decoder

    def loss_of(step: int) -> dict[str, Tensor]:
        pictures = _PICTURES if device.type == "cuda" else _FEW
        video = video_training.draw_stretch(step + 8_000_000, pictures, device)
        video = units.to_model(video)
        with torch.no_grad():
            latents = _off(units.encode(vae, video).float().chunk(2, dim=1)[0])
        made = units.decode(vae, latents, decoder).float()
        found = video_training.losses(made, video, _BORDER, _STEEPNESS)
        excess = excess_loss(made, video)
        return {**found, "loss": found["loss"] + _EXCESS * excess, "excess": excess}

    training = _train("video_decoder", vae, VIDEO_RECIPE, folder, pace, loss_of)
    ship(vae, folder / "video_vae")
    training.log(**video_training.measure(vae, folder, device))


def _train(
    name: str,
    vae: Any,
    recipe: Recipe,
    folder: Path,
    pace: Pace,
    loss_of: Callable[[int], dict[str, Tensor]],
) -> Training:
    for part, weight in vae.named_parameters():
        weight.requires_grad_(part.startswith(_DECODING))
    training = Training(name, vae, recipe, folder)
    training.resume()
    training.run(loss_of, pace)
    training.use_average()
    return training


def _off(latents: Tensor) -> Tensor:
    axes = [axis for axis in range(latents.ndim) if axis != 1]
    return latents + _OFF * latents.std(axes, keepdim=True) * torch.randn_like(latents)
