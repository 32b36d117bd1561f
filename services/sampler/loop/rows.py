"""The rows that the loop denoises: drawn once from a seed, and unpacked into latents at the end."""

from dataclasses import dataclass

import torch
from diffusers.modular_pipelines.minimax_h3.before_denoise import patchify_video_latents
from diffusers.modular_pipelines.minimax_h3.modular_pipeline import MINIMAX_H3_AUDIO_CHANNELS

from services.sampler.loop.conditioning import Conditioning
from services.sampler.loop.sequence import Shape

# Visual conditions are held at t = 0.999, not quite clean (diffusers, `keyframe_noise_aug`).
VISUAL_CONDITION_TIME = 0.999


@dataclass
class Rows:
    """Rows of the packed sequence, fp32: what is generated, and what it is conditioned on.

    `video` and `condition` are (rows, patch), `audio` and `audio_condition` (rows, channels). No
    noise is drawn after these: with the index of the evaluation they are all of a half-done run.
    """

    video: torch.Tensor
    audio: torch.Tensor
    condition: torch.Tensor
    audio_condition: torch.Tensor

    def to(self, device: torch.device) -> "Rows":
        """The rows on a device."""
        return Rows(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))


def draw_rows(shape: Shape, conditioning: Conditioning, seed: int) -> Rows:
    """The rows of a seed, on the CPU whatever the device.

    One draw a visual condition comes first, in packed order; then the video's noise as latents,
    then the audio's as rows. The order is part of what a seed means (diffusers).
    """
    generator = torch.Generator("cpu").manual_seed(seed)

    def draw(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float32)

    # As MiniMaxH3Scheduler.scale_noise: t * x + (1 - t) * noise, t in fp32.
    time = torch.tensor(VISUAL_CONDITION_TIME, dtype=torch.float32)
    conditions = [
        patchify_video_latents(time * clean + (1.0 - time) * draw(*clean.shape), shape.patch_size)
        for clean in conditioning.condition_latents
    ]
    video = patchify_video_latents(
        draw(1, shape.video_channels, shape.video_frames, shape.height, shape.width),
        shape.patch_size,
    )
    audio = draw(shape.audio_frames * MINIMAX_H3_AUDIO_CHANNELS, shape.audio_channels)
    return Rows(
        video,
        audio,
        torch.cat(conditions) if conditions else video.new_empty(0, video.shape[1]),
        torch.cat(conditioning.audio_condition_latents)
        if conditioning.audio_condition_latents
        else audio.new_empty(0, audio.shape[1]),
    )


def unpack(rows: Rows, shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows back into latents: video (1, c, frames, height, width) and audio (2, c, frames)."""
    patch_t, patch_h, patch_w = shape.patch_size
    grid = (shape.video_frames // patch_t, shape.height // patch_h, shape.width // patch_w)
    patches = rows.video.reshape(1, *grid, shape.video_channels, *shape.patch_size)
    video = patches.permute(0, 4, 1, 5, 2, 6, 3, 7).reshape(
        1, shape.video_channels, shape.video_frames, shape.height, shape.width
    )
    audio = rows.audio.reshape(MINIMAX_H3_AUDIO_CHANNELS, shape.audio_frames, shape.audio_channels)
    return video.contiguous(), audio.permute(0, 2, 1).contiguous()
