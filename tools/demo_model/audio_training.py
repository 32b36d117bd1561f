"""Trains the audio VAE on rendered sounds."""

import random
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

RECIPE = Recipe(learning_rate=1e-3, betas=(0.8, 0.99), ema=0.998, half=False)
_BATCH = 16  # stereo clips: twice as many sounds
_LATENT = 800  # samples
_CROPS = (52, 104, 207)  # latents
_WINDOWS = (2048, 1024, 512, 256, 128)
_KL = 2e-3
_MEASURED = 24


def train(folder: Path, pace: Pace, device: torch.device) -> None:
    """The audio VAE stage; its averaged weights in `folder`/audio_vae."""
    torch.manual_seed(3)
    vae = audio_vae().to(device)
    training = Training("audio_vae", vae, RECIPE, folder)
    training.resume()

    def loss_of(step: int) -> dict[str, Tensor]:
        wave = draw_crops(step, _BATCH, device)
        posterior = vae.encode(wave).latent_dist
        mean, logs = posterior.mean, posterior.logs
        latents = mean + logs.exp() * torch.randn_like(mean)
        made = vae.decode(latents).sample
        spectrum = spectral_loss(made[:, 0], wave[:, 0])
        kl = (0.5 * (mean**2 + (2 * logs).exp() - 1) - logs).mean()
        loss = 2 * l1_loss(made, wave) + 10 * mse_loss(made, wave) + 1.5 * spectrum + _KL * kl
        return {"loss": loss, "spectrum": spectrum, "kl": kl}

    training.run(loss_of, pace)
    training.use_average()
    ship(vae, folder / "audio_vae")
    training.log(**measure(vae, device))


def draw_crops(step: int, batch: int, device: torch.device) -> Tensor:
    """(2 batch, 1, samples) of fresh training clips, all cut at the same latent.

    Beeps and noise come twice as often: they are the sounds that are hard to learn.
    """
    source = random.Random(step + 3_000_000)
    clips: list[drawing.Clip] = []
    for clip in drawing.draw_clips(step + 3_000_000, 4 * batch):
        hard = clip.scene.sound in ("beeps", "wash")
        if hard or source.random() < 0.5:
            clips.append(clip)
    wave = render_audio(clips[:batch], device).flatten(0, 1)[:, None]
    latents = _CROPS[step % len(_CROPS)]
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
