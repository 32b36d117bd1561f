"""The denoising loop of MiniMax-H3, ours so that it reports, stops and is resumable.

diffusers' own loop has no callback and no interrupt. This one makes the same calls in the same
order (see `diffusers.modular_pipelines.minimax_h3`, whose static functions build the packed
sequence), so the results are equal bit for bit. No noise is drawn inside the loop: everything that
a half-done run is lies in `Rows` and the index of the evaluation.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from diffusers.modular_pipelines.minimax_h3.before_denoise import (
    MiniMaxH3PrepareLayoutStep,
    MiniMaxH3SetTimestepsStep,
    patchify_video_latents,
)
from diffusers.modular_pipelines.minimax_h3.modular_pipeline import (
    MINIMAX_H3_AUDIO_CHANNELS,
    MINIMAX_H3_AUDIO_TAG,
    MINIMAX_H3_VIDEO_TAG,
    audio_latent_num_frames,
    video_latent_num_frames,
)

from services.common.work import EngineError, NonFinite, Watch

Denoiser = Callable[..., tuple[torch.Tensor, torch.Tensor]]

# The video VAE's geometry (its `clip_length`, latents a clip, pixels a latent); the sampler does
# not load the VAE, and diffusers falls back to the same numbers without it.
_FRAMES_PER_CHUNK = 17
_LATENTS_PER_CHUNK = 5
_PIXELS_PER_LATENT = 16
# Conditioning rows: visual ones are held at t = 0.999, soundtracks are clean (diffusers).
_VISUAL_CONDITION_TIME = 0.999
_AUDIO_CONDITION_TIME = 1.0


@dataclass(frozen=True)
class Shape:
    """The latents of one clip: video (1, channels, frames, height, width), audio (2, c, frames)."""

    video_channels: int
    video_frames: int
    height: int
    width: int
    audio_channels: int
    audio_frames: int

    @classmethod
    def of(cls, height: int, width: int, frames: int, transformer_config: Any) -> "Shape":
        """The latents of a canvas in pixels and a number of frames on the 17n+5 grid."""
        multiple = _PIXELS_PER_LATENT * transformer_config.patch_size[2]
        if height < multiple or width < multiple or height % multiple or width % multiple:
            raise EngineError(
                "BAD_ORDER", f"height and width are multiples of {multiple}, not {height}x{width}"
            )
        if frames < _FRAMES_PER_CHUNK or frames % _FRAMES_PER_CHUNK != _LATENTS_PER_CHUNK:
            raise EngineError("BAD_ORDER", f"frames are 17n + 5 with n >= 1, not {frames}")
        return cls(
            video_channels=transformer_config.in_channels,
            video_frames=video_latent_num_frames(frames, _FRAMES_PER_CHUNK, _LATENTS_PER_CHUNK),
            height=height // _PIXELS_PER_LATENT,
            width=width // _PIXELS_PER_LATENT,
            audio_channels=transformer_config.audio_in_channels,
            audio_frames=audio_latent_num_frames(frames),
        )


@dataclass
class Rows:
    """The rows that the loop writes, fp32: video (rows, patch) and audio (rows, channels)."""

    video: torch.Tensor
    audio: torch.Tensor


@dataclass(frozen=True)
class Layout:
    """Where every row of the packed sequence `[text | audio | video]` lies, as the model reads it.

    `position_ids` (rows, 3) fp64, `token_tags` (rows,), and the rows of each modality.
    """

    position_ids: torch.Tensor
    token_tags: torch.Tensor
    video_indices: torch.Tensor
    audio_indices: torch.Tensor
    text_indices: torch.Tensor

    @classmethod
    def of(
        cls, text_token_tags: torch.Tensor, shape: Shape, patch_size: tuple[int, int, int]
    ) -> "Layout":
        """The layout of a clip without conditioning rows."""
        *tensors, _, _ = MiniMaxH3PrepareLayoutStep.build_packed_sequence(
            text_token_tags,
            shape.video_frames,
            shape.height,
            shape.width,
            shape.audio_frames,
            patch_size,
            MINIMAX_H3_AUDIO_CHANNELS,
            MINIMAX_H3_AUDIO_TAG,
            MINIMAX_H3_VIDEO_TAG,
        )
        return cls(*tensors)

    def to(self, device: torch.device) -> dict[str, torch.Tensor]:
        """The tensors on a device, by the transformer's own parameter names."""
        return {name: tensor.to(device) for name, tensor in vars(self).items()}


def draw_noise(shape: Shape, seed: int, patch_size: tuple[int, int, int]) -> Rows:
    """The noise of a seed, on the CPU whatever the device: video latents first, then audio rows."""
    generator = torch.Generator("cpu").manual_seed(seed)
    video = torch.randn(
        (1, shape.video_channels, shape.video_frames, shape.height, shape.width),
        generator=generator,
        dtype=torch.float32,
    )
    audio = torch.randn(
        (shape.audio_frames * MINIMAX_H3_AUDIO_CHANNELS, shape.audio_channels),
        generator=generator,
        dtype=torch.float32,
    )
    return Rows(patchify_video_latents(video, patch_size), audio)


def denoise(
    transformer: Denoiser,
    schedulers: tuple[Any, Any],
    rows: Rows,
    layout: Layout,
    prompt_embeds: torch.Tensor,
    *,
    evaluations: int,
    watch: Watch,
) -> Rows:
    """Denoise `rows` (which must be on `prompt_embeds`'s device) in `evaluations` forwards.

    `schedulers` are the video's and the audio's; they are copied, so no state survives a run.
    Raises `Cancelled` between two evaluations and `NonFinite` after a bad one.
    """
    video_scheduler, audio_scheduler = copy.deepcopy(schedulers)
    device = prompt_embeds.device
    for scheduler in (video_scheduler, audio_scheduler):
        # The grid's final zero is one of the "inference steps" and costs no evaluation.
        scheduler.set_timesteps(evaluations + 1, device=device)
        if len(scheduler.timesteps) != evaluations:
            raise EngineError(
                "BAD_ORDER", f"the schedule cannot hold {evaluations} distinct evaluations"
            )
    placed = layout.to(device)
    video, audio = rows.video, rows.audio
    for index in range(evaluations):
        watch.raise_if_cancelled()
        video_time = video_scheduler.timesteps[index]
        audio_time = audio_scheduler.timesteps[index]
        timestep, timestep_indices = row_times(layout, float(video_time), float(audio_time))
        video_velocity, audio_velocity = transformer(
            hidden_states=video[None],
            audio_hidden_states=audio[None],
            encoder_hidden_states=prompt_embeds,
            timestep=timestep.to(device),
            timestep_indices=timestep_indices.to(device),
            token_tags=placed["token_tags"],
            position_ids=placed["position_ids"],
            video_indices=placed["video_indices"],
            audio_indices=placed["audio_indices"],
            text_indices=placed["text_indices"],
            return_dict=False,
        )
        (video,) = video_scheduler.step(
            video_velocity[0].float(), video_time, video, return_dict=False
        )
        (audio,) = audio_scheduler.step(
            audio_velocity[0].float(), audio_time, audio, return_dict=False
        )
        if not bool(torch.isfinite(video).all() & torch.isfinite(audio).all()):
            raise NonFinite(f"the latents after evaluation {index + 1} of {evaluations}")
        watch.report("evaluate", index + 1, evaluations)
    watch.raise_if_cancelled()
    return Rows(video, audio)


def row_times(
    layout: Layout, video_time: float, audio_time: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The distinct times of a packed sequence, and the index of every row's time among them."""
    timestep, indices = MiniMaxH3SetTimestepsStep.build_row_timesteps(
        layout.video_indices,
        layout.audio_indices,
        0,
        0,
        layout.text_indices.numel(),
        video_time,
        audio_time,
        max(video_time, _VISUAL_CONDITION_TIME),
        _AUDIO_CONDITION_TIME,
    )
    return timestep, indices


def unpack(
    rows: Rows, shape: Shape, patch_size: tuple[int, int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows back into latents: video (1, c, frames, height, width) and audio (2, c, frames)."""
    patch_t, patch_h, patch_w = patch_size
    grid = (shape.video_frames // patch_t, shape.height // patch_h, shape.width // patch_w)
    patches = rows.video.reshape(1, *grid, shape.video_channels, *patch_size)
    video = patches.permute(0, 4, 1, 5, 2, 6, 3, 7).reshape(
        1, shape.video_channels, shape.video_frames, shape.height, shape.width
    )
    audio = rows.audio.reshape(MINIMAX_H3_AUDIO_CHANNELS, shape.audio_frames, shape.audio_channels)
    return video.contiguous(), audio.permute(0, 2, 1).contiguous()
