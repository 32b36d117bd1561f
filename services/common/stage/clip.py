"""Checks of a start's clip against what the instance published, and sizes that follow from it.

The registry refuses earlier; a stage that works alone must not trust its caller either.
"""

from reelmesh.v1 import stage_pb2, transfer_pb2
from services.common.rpc.errors import MeshError, Reason
from services.common.stage.canvas import refuse_canvas

_VIDEO_CHANNELS, _AUDIO_CHANNELS, _LATENT_EDGE = 24, 32, 16


def check_clip(clip: transfer_pb2.Clip, capabilities: stage_pb2.Capabilities) -> None:
    """INVALID_ARGUMENT naming the field unless the clip fits the instance's limits."""
    limits = capabilities.limits
    if clip.mode not in capabilities.modes:
        known = ", ".join(transfer_pb2.Mode.Name(mode) for mode in capabilities.modes)
        raise MeshError(Reason.UNSUPPORTED_MODE, f"this instance does {known}", field="clip.mode")
    if refused := refuse_canvas(limits, clip.height, clip.width, "clip"):
        raise refused
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
