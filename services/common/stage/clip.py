"""Checks of a start's clip against what the instance published, and sizes that follow from it.

The registry refuses earlier; a stage that works alone must not trust its caller either.
"""

from reelmesh.v1 import stage_pb2, transfer_pb2
from services.common.rpc.errors import MeshError, Reason

_VIDEO_CHANNELS, _AUDIO_CHANNELS, _LATENT_EDGE = 24, 32, 16


def check_clip(clip: transfer_pb2.Clip, capabilities: stage_pb2.Capabilities) -> None:
    """INVALID_ARGUMENT naming the field unless the clip fits the instance's limits."""
    limits = capabilities.limits
    if clip.mode not in capabilities.modes:
        known = ", ".join(transfer_pb2.Mode.Name(mode) for mode in capabilities.modes)
        raise MeshError(Reason.UNSUPPORTED_MODE, f"this instance does {known}", field="clip.mode")
    for name in ("height", "width"):
        edge = getattr(clip, name)
        if edge < limits.min_edge:
            raise MeshError(
                Reason.CANVAS_OUT_OF_RANGE,
                f"{name} is {limits.min_edge} or more, not {edge}",
                field=f"clip.{name}",
            )
        if edge % limits.canvas_multiple:
            raise MeshError(
                Reason.CANVAS_OFF_GRID,
                f"{name} is a multiple of {limits.canvas_multiple}, not {edge}",
                field=f"clip.{name}",
            )
    if clip.height * clip.width > limits.max_pixels:
        raise MeshError(
            Reason.CANVAS_OUT_OF_RANGE,
            f"a canvas has at most {limits.max_pixels} pixels, not {clip.height * clip.width}",
            field="clip",
        )
    on_grid = clip.frames % limits.frame_step == limits.frame_base % limits.frame_step
    if not (limits.min_frames <= clip.frames <= limits.max_frames and on_grid):
        raise MeshError(
            Reason.FRAMES_OUT_OF_RANGE,
            f"frames are {limits.frame_step}n + {limits.frame_base}, {limits.min_frames} to "
            f"{limits.max_frames}, not {clip.frames}",
            field="clip.frames",
        )


def latents_bytes(clip: transfer_pb2.Clip) -> int:
    """Size of the latents of a clip in bytes: fp32, video (24, 5n+2, H/16, W/16) and audio."""
    latent_frames = 5 * (clip.frames // 17) + 2
    pixels = (clip.height // _LATENT_EDGE) * (clip.width // _LATENT_EDGE)
    audio = 2 * _AUDIO_CHANNELS * round(clip.frames / 24 * 40)
    return 4 * (_VIDEO_CHANNELS * latent_frames * pixels + audio)
