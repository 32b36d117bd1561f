"""Generates clips with the models in hand: a look at a training, not the score."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tools.demo_model import batched, units
from tools.demo_model.batches import (
    AUDIO_SHIFT,
    KEPT_AT,
    VIDEO_SHIFT,
    Source,
    noise_condition,
    shifted,
)
from tools.demo_model.embedding import embed_one
from tools.demo_model.layouts import AUDIO_LATENTS, LATENT_FRAMES, LATENT_SIDE, layout
from tools.demo_model.models import TEXT_LAYERS
from tools.demo_model.presentation import present

_GRID = LATENT_SIDE // 2


@dataclass(frozen=True)
class Models:
    """Everything that makes a clip of a prompt, on one device."""

    encoder: Any
    tokenizer: Any
    transformer: Any
    vae: Any
    audio_vae: Any


@torch.no_grad()
def generate(
    models: Models,
    source: Source,
    prompt: str,
    evaluations: int,
    *,
    mode: str = "t2va",
    conditions: tuple[Sequence[Tensor], Sequence[Tensor]] = ((), ()),
) -> tuple[Tensor, Tensor]:
    """A clip (3, F, H, W) in [0, 1] and its sound (2, samples).

    `conditions` are clean normalized rows of the mode, as `Source.conditions` gives them.
    """
    device = source.video_mean.device
    ids, tags = present(models.tokenizer, prompt, mode)
    text = embed_one(models.encoder, torch.tensor([ids], device=device), TEXT_LAYERS - 1).float()
    where = layout(mode, tuple(tags), device)
    kept = [noise_condition(each) for each in conditions[0]]
    heard = list(conditions[1])
    video = torch.randn(1, LATENT_FRAMES * _GRID**2, 96, device=device)
    audio = torch.randn(1, 2 * AUDIO_LATENTS, 32, device=device)
    u = torch.linspace(1, 0, evaluations + 1, device=device)
    sigmas = torch.stack(
        [shifted(u, torch.full_like(u, each)) for each in (VIDEO_SHIFT, AUDIO_SHIFT)]
    )
    for now, after in zip(sigmas.T[:-1], sigmas.T[1:], strict=True):
        times = torch.stack(
            (1 - now[0], 1 - now[1], (1 - now[0]).clamp(min=KEPT_AT), now[0] * 0 + 1)
        )
        velocity, sound = batched.forward(
            models.transformer,
            where,
            torch.cat([*kept, video], dim=1),
            torch.cat([*heard, audio], dim=1),
            text,
            times[None],
        )
        # Euler in the library's convention: velocities point to the data.
        video = video + (now[0] - after[0]) * velocity[:, where.kept_video :].float()
        audio = audio + (now[1] - after[1]) * sound[:, where.kept_audio :].float()
    return decode(models, source, video, audio)


def decode(models: Models, source: Source, video: Tensor, audio: Tensor) -> tuple[Tensor, Tensor]:
    """Target rows of one clip as pictures (3, F, H, W) in [0, 1] and sound (2, samples)."""
    shape = (1, LATENT_FRAMES, _GRID, _GRID, 24, 1, 2, 2)
    latents = video.reshape(shape).permute(0, 4, 1, 5, 2, 6, 3, 7)
    latents = latents.reshape(1, 24, LATENT_FRAMES, LATENT_SIDE, LATENT_SIDE)
    channels = (1, -1, 1, 1, 1)
    latents = latents * source.video_std.view(channels) + source.video_mean.view(channels)
    sounds = audio.reshape(2, AUDIO_LATENTS, 32) * source.audio_std + source.audio_mean
    pictures = units.from_model(models.vae.decode(latents).sample)[0]
    wave: Tensor = models.audio_vae.decode(sounds.transpose(1, 2)).sample
    return pictures, wave[:, 0].float()
