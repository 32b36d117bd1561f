"""What an instance publishes about itself, from its checkpoint and its settings."""

from collections.abc import Sequence

from reelmesh.v1 import stage_pb2
from services.common.checkpoint.facts import describe
from services.common.config import StageSettings
from services.common.stage.modes import mode_number

# Admission limits that no config of the checkpoint holds: aspect 1:4 to 4:1 and 768x1344 pixels
# are the model card's, the shortest edge is two tiles of the canvas grid, and the most evaluations
# is a bound against slips of the keyboard.
_MAX_ASPECT = 4.0
_MAX_PIXELS = 768 * 1344
_MIN_EDGE = 64
_MAX_EVALUATIONS = 200


def publish(
    settings: StageSettings,
    stage: stage_pb2.Stage,
    *,
    modes: Sequence[str] = ("t2va",),
    layout: str = "",
) -> stage_pb2.Capabilities:
    """The capabilities of an instance. Reads the checkpoint's configs; blocks; imports no torch."""
    facts = describe(settings.checkpoint)
    longest = settings.max_frames or facts.max_frames
    limits = stage_pb2.Limits(
        min_frames=settings.min_frames or facts.min_frames,
        max_frames=longest,
        trained_max_frames=facts.max_frames,
        frame_step=facts.frame_step,
        frame_base=facts.frame_offset,
        canvas_multiple=facts.canvas_multiple,
        min_edge=_MIN_EDGE,
        max_pixels=_MAX_PIXELS,
        default_height=facts.default_height,
        default_width=facts.default_width,
        default_frames=settings.min_frames or facts.min_frames,
        default_evaluations=facts.default_evaluations,
        max_evaluations=_MAX_EVALUATIONS,
        max_prompt_tokens=facts.text_limit_tokens,
        max_aspect=_MAX_ASPECT,
    )
    return stage_pb2.Capabilities(
        stage=stage,
        modes=map(mode_number, modes),
        checkpoint=settings.checkpoint.rstrip("/").rsplit("/", 1)[-1],
        checkpoint_digest=facts.digest,
        limits=limits,
        slots=1,
        layout=layout,
        precision=settings.dtype,
    )
