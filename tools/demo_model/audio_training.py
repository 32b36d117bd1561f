"""Trains the audio VAE on rendered sounds."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import l1_loss, mse_loss

from tools.demo_model import drawing
from tools.demo_model.attributes import SAMPLE_RATE, SOUNDS
from tools.demo_model.hearing import read_sound
from tools.demo_model.loop import Training
from tools.demo_model.models import audio_vae
from tools.demo_model.pace import Pace, Recipe
from tools.demo_model.shipping import ship
from tools.demo_model.world import render_audio

# Gradients here are 5 to 25: clipped at 1, steps with beeps would count no more than easy ones.
RECIPE = Recipe(learning_rate=1e-3, betas=(0.8, 0.99), ema=0.998, clip_norm=20.0, half=False)
_LATENT = 800  # samples
# Shares of the drawn clips that are kept: beeps and noise are the sounds that are hard to learn.
_KEPT = {"low": 0.5, "middle": 0.5, "high": 0.5, "beeps": 1.0, "wash": 1.0, "silence": 0.5}
_CROPS = ((10, 104), (5, 207))  # stereo clips of a step, and their length in latents
_WINDOWS = (2048, 1024, 512, 256, 128)
_KL = 2e-3
_MEASURED = 24


def train(folder: Path, pace: Pace, device: torch.device) -> None:
    """The audio VAE stage; its averaged weights in `folder`/audio_vae."""
    torch.manual_seed(3)
    vae = audio_vae().to(device)
    training = Training("audio_vae", vae, RECIPE, folder)
    training.resume()

    def encode(wave: Tensor) -> tuple[Tensor, Tensor]:
        posterior = vae.encode(wave).latent_dist
        return posterior.mean, posterior.logs

    def decode(latents: Tensor) -> Tensor:
        made: Tensor = vae.decode(latents).sample
        return made

    if pace.compiles(device):
        # Most of the time goes into activations at the full rate, which one kernel can do.
        encode = torch.compile(encode, dynamic=False)
        decode = torch.compile(decode, dynamic=False)

    def loss_of(step: int) -> dict[str, Tensor]:
        wave = draw_crops(step + 3_000_000, _CROPS, _KEPT, device)
        mean, logs = encode(wave)
        latents = mean + logs.exp() * torch.randn_like(mean)
        made = decode(latents)
        found = losses(made, wave)
        kl = (0.5 * (mean**2 + (2 * logs).exp() - 1) - logs).mean()
        return {**found, "loss": found["loss"] + _KL * kl, "kl": kl}

    training.run(loss_of, pace)
    training.use_average()
    ship(vae, folder / "audio_vae")
    training.log(**measure(vae, device))


def losses(made: Tensor, wave: Tensor) -> dict[str, Tensor]:
    """What is wrong with decoded waves, (B, 1, samples) both: the wave's own and its spectrum's."""
    spectrum = spectral_loss(made[:, 0], wave[:, 0])
    loss = 2 * l1_loss(made, wave) + 10 * mse_loss(made, wave) + 1.5 * spectrum
    return {"loss": loss, "spectrum": spectrum}


def draw_crops(
    seed: int,
    crops: Sequence[tuple[int, int]],
    kept: Mapping[str, float],
    device: torch.device,
) -> Tensor:
    """(2 clips, 1, samples) of fresh training clips, all cut at the same latent.

    `crops` are pairs of clips and length in latents, which take turns by seed; `kept` are the
    shares of the drawn clips of each sound that are not dropped.
    """
    source = random.Random(seed)
    batch, latents = crops[seed % len(crops)]
    clips: list[drawing.Clip] = []
    for clip in drawing.draw_clips(seed, 16 * batch):
        if source.random() < kept[clip.scene.sound]:
            clips.append(clip)
    wave = render_audio(clips[:batch], device).flatten(0, 1)[:, None]
    start = source.randrange(wave.shape[-1] // _LATENT - latents + 1) * _LATENT
    return wave[..., start : start + latents * _LATENT]


def spectral_loss(made: Tensor, wanted: Tensor) -> Tensor:
    """Mean over five windows of the L1 of magnitudes and of their logarithms, (B, samples) both.

    A wave's own difference turns noise into silence; magnitudes can be met.
    """
    total = torch.zeros((), device=made.device)
    for size in _WINDOWS:
        window = torch.hann_window(size, device=made.device)
        ours, theirs = (
            torch.stft(
                each, size, size // 4, window=window, return_complex=True, normalized=True
            ).abs()
            for each in (made, wanted)
        )
        logs = l1_loss(torch.log(ours + 1e-3), torch.log(theirs + 1e-3))
        total = total + l1_loss(ours, theirs) + 0.3 * logs
    return total / len(_WINDOWS)


@torch.no_grad()
def measure(vae: Any, device: torch.device) -> dict[str, Any]:
    """How many held-out sounds are still read right after a round trip, and tones' SNR in dB."""
    source = random.Random(4)
    vae.eval()
    right: dict[str, list[bool]] = {name: [] for name in SOUNDS}
    ratios = []
    for _ in range(_MEASURED):
        scene = drawing.draw_held_out_scene(source)
        wave = render_audio([drawing.place(scene, source)], device)[0][:, None]
        made = vae.decode(vae.encode(wave).latent_dist.mode()).sample
        heard = read_sound(made[:, 0].double().cpu().numpy(), SAMPLE_RATE)
        right[scene.sound].append(heard == scene.sound)
        if scene.sound in ("low", "middle", "high"):
            ratios.append(float(10 * torch.log10(wave.pow(2).mean() / mse_loss(made, wave))))
    return {
        "tones_db": round(sum(ratios) / max(1, len(ratios)), 1),
        **{name: round(sum(each) / len(each), 2) for name, each in right.items() if each},
    }
