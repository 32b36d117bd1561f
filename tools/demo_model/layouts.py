"""Where the rows of each mode lie in the packed sequence, as the library lays them out."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from tools.demo_model.presentation import references
from tools.tiny_models import untyped

LATENT_FRAMES, LATENT_SIDE, AUDIO_LATENTS = 37, 8, 207
REFERENCE_LATENTS = 12  # latent frames of a reference video
REFERENCE_SOUND = 80  # latents of a reference sound, two seconds
VIDEO_TIME, AUDIO_TIME, KEPT_TIME, HEARD_TIME = range(4)
"""Kinds of timestep of a row: generated video and text, generated audio, conditions of both."""

_KEYFRAMES = {"t2va": (), "first": ("first",), "last": ("last",), "both": ("first", "last")}
_PATCH, _AUDIO_TAG, _VIDEO_TAG = (1, 2, 2), 2, 0


@dataclass(frozen=True)
class Layout:
    """One packed sequence of S rows, on a device."""

    positions: Tensor
    """(S, 3)."""
    tags: Tensor
    """(S,), 0 video, 1 text, 2 audio."""
    times: Tensor
    """(S,), the kind of timestep of each row."""
    text: Tensor
    """Places of the text rows."""
    video: Tensor
    """Places of the video rows, conditions first."""
    audio: Tensor
    """Places of the audio rows, references first."""
    kept_video: int
    """How many video rows are conditions."""
    kept_audio: int
    """How many audio rows are references."""


@cache
def layout(mode: str, text_tags: tuple[int, ...], device: torch.device) -> Layout:
    """The layout of a mode of `presentation.MODES` for text rows of these tags."""
    steps = untyped("diffusers.modular_pipelines.minimax_h3.before_denoise")
    tags = torch.tensor(text_tags)
    size = (
        LATENT_FRAMES,
        LATENT_SIDE,
        LATENT_SIDE,
        AUDIO_LATENTS,
        _PATCH,
        2,
        _AUDIO_TAG,
        _VIDEO_TAG,
    )
    if mode in _KEYFRAMES:
        built = steps.MiniMaxH3PrepareLayoutStep.build_packed_sequence(
            tags, *size, _KEYFRAMES[mode]
        )
    else:
        frames = REFERENCE_LATENTS if mode == "video" else 1
        seen = [torch.zeros(1, 24, frames, LATENT_SIDE, LATENT_SIDE)]
        heard = [torch.zeros(2 * REFERENCE_SOUND, 32)] if mode == "sound" else []
        built = steps.MiniMaxH3Ref2VAPrepareLayoutStep.build_ref2va_packed_sequence(
            tags, references(mode), seen, heard, *size
        )
    positions, row_tags, video, audio, text, kept_video, kept_audio = built
    times = torch.full((len(row_tags),), VIDEO_TIME)
    times[video[:kept_video]] = KEPT_TIME
    times[audio] = AUDIO_TIME
    times[audio[:kept_audio]] = HEARD_TIME
    return Layout(
        positions=positions.float().to(device),
        tags=row_tags.to(device),
        times=times.to(device),
        text=text.to(device),
        video=video.to(device),
        audio=audio.to(device),
        kept_video=kept_video,
        kept_audio=kept_audio,
    )
