"""The packed sequence that the transformer reads: how large a clip's latents are, and which row is
where. The positions come from diffusers' own static functions, chosen by the mode.
"""

from dataclasses import dataclass
from typing import Any

import torch
from diffusers.modular_pipelines.minimax_h3.before_denoise import (
    MiniMaxH3PrepareLayoutStep,
    MiniMaxH3Ref2VAPrepareLayoutStep,
)
from diffusers.modular_pipelines.minimax_h3.modular_pipeline import (
    MINIMAX_H3_AUDIO_CHANNELS,
    MINIMAX_H3_AUDIO_TAG,
    MINIMAX_H3_VIDEO_TAG,
    audio_latent_num_frames,
    video_latent_num_frames,
)

from services.common.work import EngineError
from services.sampler.loop.conditioning import Conditioning

# The video VAE's geometry (its `clip_length`, latents a clip, pixels a latent); the sampler does
# not load the VAE, and diffusers falls back to the same numbers without it.
_FRAMES_PER_CHUNK = 17
_LATENTS_PER_CHUNK = 5
_PIXELS_PER_LATENT = 16


@dataclass(frozen=True)
class Shape:
    """The latents of one clip: video (1, channels, frames, height, width), audio (2, c, frames).

    `patch_size` is the transformer's (frames, height, width) patch: the latents of one video row.
    """

    video_channels: int
    video_frames: int
    height: int
    width: int
    audio_channels: int
    audio_frames: int
    patch_size: tuple[int, int, int]

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
            patch_size=tuple(transformer_config.patch_size),
        )


@dataclass(frozen=True)
class Sequence:
    """Where every row of `[text | conditions | audio | video]` lies, as the transformer reads it.

    `position_ids` (rows, 3) fp64, `token_tags` (rows,), the rows of each modality, and how many of
    the first video and audio rows are conditions: those are read and never written.
    """

    position_ids: torch.Tensor
    token_tags: torch.Tensor
    video_indices: torch.Tensor
    audio_indices: torch.Tensor
    text_indices: torch.Tensor
    condition_video_rows: int
    condition_audio_rows: int

    @classmethod
    def of(cls, conditioning: Conditioning, shape: Shape) -> "Sequence":
        """The sequence of a clip under a conditioning, by the conditioning's mode."""
        target = (shape.video_frames, shape.height, shape.width, shape.audio_frames)
        tags = (MINIMAX_H3_AUDIO_CHANNELS, MINIMAX_H3_AUDIO_TAG, MINIMAX_H3_VIDEO_TAG)
        if conditioning.mode == "ref2va":
            # Of diffusers' references only the kind and the sound are read: ours have no more.
            references: list[Any] = list(conditioning.references)
            return cls(
                *MiniMaxH3Ref2VAPrepareLayoutStep.build_ref2va_packed_sequence(
                    conditioning.text_token_tags,
                    references,
                    conditioning.condition_latents,
                    conditioning.audio_condition_latents,
                    *target,
                    shape.patch_size,
                    *tags,
                )
            )
        return cls(
            *MiniMaxH3PrepareLayoutStep.build_packed_sequence(
                conditioning.text_token_tags,
                *target,
                shape.patch_size,
                *tags,
                conditioning.keyframe_anchors,
            )
        )

    @property
    def length(self) -> int:
        """Rows in all."""
        return int(self.position_ids.shape[0])

    def to(self, device: torch.device) -> dict[str, torch.Tensor]:
        """The tensors on a device, by the transformer's own parameter names."""
        names = ("position_ids", "token_tags", "video_indices", "audio_indices", "text_indices")
        return {name: getattr(self, name).to(device) for name in names}
