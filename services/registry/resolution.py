"""What a request becomes, and why it cannot run: decided before any slot is taken.

Pure: the limits come as data from the instances that published them. A limit of 0 is one that an
instance does not state. Every refusal names the field as the caller wrote it and a value that
would do.
"""

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from google.protobuf.duration_pb2 import Duration

from reelmesh.v1 import jobs_pb2, stage_pb2, transfer_pb2
from services.common.rpc.errors import MeshError, Reason
from services.registry.lifecycle import Stage

FPS = 24
# The model's own lengths and sizes, for instances that state none: 17n + 5 frames, and the canvas
# in patches of 32 pixels.
FRAME_STEP, FRAME_BASE, CANVAS_MULTIPLE = 17, 5, 32
DEFAULT_FRAMES, DEFAULT_EVALUATIONS = 124, 49
# No tokenizer makes a token of more characters than this on average.
_CHARACTERS_PER_TOKEN = 64


class Asked(Protocol):
    """What has to fit an instance: a job's row has it too."""

    @property
    def mode(self) -> str:
        """Mode, as the contract names it without its prefix."""

    @property
    def height(self) -> int:
        """Canvas height in pixels."""

    @property
    def width(self) -> int:
        """Canvas width in pixels."""

    @property
    def frames(self) -> int:
        """Length."""

    @property
    def evaluations(self) -> int:
        """Forwards of the transformer."""

    @property
    def checkpoint_digest(self) -> str:
        """The checkpoint; empty: any."""


@dataclass(frozen=True)
class Resolution:
    """A request, settled but for the prompt's tokens and the seed."""

    prompt: str
    mode: str
    height: int
    width: int
    frames: int
    evaluations: int
    checkpoint_digest: str
    off_distribution: bool
    seed: int | None


def check_prompt(prompt: str) -> None:
    """Refuse what no encoder should see. Everything else is kept exactly."""
    if "\0" in prompt:
        raise MeshError(Reason.INVALID_FIELD, "the prompt holds a NUL", field="spec.prompt")
    if any("\ud800" <= character <= "\udfff" for character in prompt):
        words = "the prompt holds half a surrogate pair"
        raise MeshError(Reason.INVALID_FIELD, words, field="spec.prompt")
    if not any(character.isprintable() and not character.isspace() for character in prompt):
        raise MeshError(Reason.PROMPT_EMPTY, "the prompt says nothing", field="spec.prompt")


def check_tokens(tokens: int, most: int) -> None:
    """Refuse a prompt of more tokens than the encoder takes; it is never cut."""
    if most and tokens > most:
        raise MeshError(
            Reason.PROMPT_TOO_LONG,
            f"the prompt has {tokens} tokens; at most {most} are admitted",
            field="spec.prompt",
            info={"nearest": str(most)},
        )


def check_length(prompt: str, most_tokens: int) -> None:
    """Refuse a prompt that is far too long before anybody tokenizes it."""
    most = most_tokens * _CHARACTERS_PER_TOKEN
    if most and len(prompt) > most:
        raise MeshError(
            Reason.PROMPT_TOO_LONG,
            f"the prompt has {len(prompt)} characters; at most {most_tokens} tokens are admitted",
            field="spec.prompt",
            info={"nearest": str(most_tokens)},
        )


def resolve(
    spec: jobs_pb2.JobSpec, stages: Mapping[Stage, Sequence[stage_pb2.Capabilities]]
) -> Resolution:
    """Settle the request by what the instances of every stage admit.

    A stage that has no instance yet sets no limit. Of a stage with several, one that can run the
    job is enough; if none can, the widest one's limit is told.
    """
    check_prompt(spec.prompt)
    if spec.references:
        words = "references are not taken yet; ask for t2va with the prompt alone"
        raise MeshError(Reason.NOT_IMPLEMENTED, words, field="spec.references")
    if spec.HasField("fps") and spec.fps != FPS:
        raise MeshError(
            Reason.FPS_UNSUPPORTED,
            f"the model makes {FPS} frames a second, not {spec.fps:g}",
            field="spec.fps",
            info={"nearest": str(FPS)},
        )
    by_width = {stage: sorted(those, key=_width, reverse=True) for stage, those in stages.items()}
    leading = _leading(by_width)
    limits = leading.limits
    height, width = limits.default_height, limits.default_width
    if spec.HasField("canvas"):
        height, width = spec.canvas.height, spec.canvas.width
    resolution = Resolution(
        prompt=spec.prompt,
        mode=_mode(spec.mode),
        height=height,
        width=width,
        frames=snap_frames(_frames(spec, limits), limits),
        evaluations=(
            spec.evaluations
            if spec.HasField("evaluations")
            else limits.default_evaluations or DEFAULT_EVALUATIONS
        ),
        checkpoint_digest=leading.checkpoint_digest,
        off_distribution=False,
        seed=spec.seed if spec.HasField("seed") else None,
    )
    for those in by_width.values():
        refusals = [refusal for one in those if (refusal := _refusal(one, resolution))]
        if those and len(refusals) == len(those):
            raise refusals[0]
    trained = limits.trained_max_frames
    off = bool(trained) and resolution.frames > trained
    return Resolution(**{**resolution.__dict__, "off_distribution": off})


def fits(capabilities: stage_pb2.Capabilities, job: Asked) -> bool:
    """Whether an instance can run this job."""
    return _refusal(capabilities, job) is None


def draw_seed() -> int:
    """A fresh seed of 63 bits: every language's signed integers hold it."""
    return secrets.randbits(63)


def snap_frames(frames: int, limits: stage_pb2.Limits) -> int:
    """The next length on the grid, upwards."""
    step, base = _grid(limits)
    return base + step * max(0, math.ceil((frames - base) / step))


def _grid(limits: stage_pb2.Limits) -> tuple[int, int]:
    if limits.frame_step <= 0:
        return FRAME_STEP, FRAME_BASE
    return limits.frame_step, limits.frame_base


def _width(capabilities: stage_pb2.Capabilities) -> tuple[int, int]:
    limits = capabilities.limits
    return (limits.max_frames or 1 << 31, limits.max_pixels or 1 << 62)


def _leading(
    stages: Mapping[Stage, Sequence[stage_pb2.Capabilities]],
) -> stage_pb2.Capabilities:
    """Whose defaults count: the sampler's, who does the work; without one the encoder's."""
    for stage in (Stage.SAMPLE, Stage.ENCODE, Stage.DECODE):
        if stages.get(stage):
            return stages[stage][0]
    return stage_pb2.Capabilities()


def _mode(mode: transfer_pb2.Mode) -> str:
    if mode == transfer_pb2.MODE_UNSPECIFIED:
        return "T2VA"
    try:
        return transfer_pb2.Mode.Name(mode).removeprefix("MODE_")
    except ValueError as error:
        raise _unsupported_mode(str(mode), ("T2VA",)) from error


def _unsupported_mode(mode: str, offered: Sequence[str]) -> MeshError:
    return MeshError(
        Reason.UNSUPPORTED_MODE,
        f"the mode {mode.lower()} is not offered; use {' or '.join(offered).lower()}",
        field="spec.mode",
        info={"nearest": f"MODE_{offered[0]}"},
    )


def _frames(spec: jobs_pb2.JobSpec, limits: stage_pb2.Limits) -> int:
    if not spec.HasField("duration"):
        default = limits.default_frames or DEFAULT_FRAMES
        return spec.frames if spec.HasField("frames") else default
    if spec.HasField("frames"):
        words = "say the length in frames or as a duration, not both"
        raise MeshError(Reason.INVALID_FIELD, words, field="spec.duration")
    return _duration_frames(spec.duration)


def _duration_frames(duration: Duration) -> int:
    # In whole nanoseconds: a float would put 124/24 s a frame too far.
    return -(-(duration.seconds * 10**9 + duration.nanos) * FPS // 10**9)


def _refusal(capabilities: stage_pb2.Capabilities, asked: Asked) -> MeshError | None:
    """Why an instance cannot run what is asked for, in its first reason; None if it can."""
    digest = capabilities.checkpoint_digest
    if digest and asked.checkpoint_digest and digest != asked.checkpoint_digest:
        return MeshError(Reason.INPUT_MISMATCH, "the instance has another checkpoint")
    modes = [transfer_pb2.Mode.Name(mode).removeprefix("MODE_") for mode in capabilities.modes]
    if asked.mode not in (modes or ("T2VA",)):
        return _unsupported_mode(asked.mode, modes or ("T2VA",))
    limits = capabilities.limits
    return (
        _refuse_frames(limits, asked.frames)
        or _refuse_canvas(limits, asked.height, asked.width)
        or _refuse_evaluations(limits, asked.evaluations)
    )


def _refuse_frames(limits: stage_pb2.Limits, frames: int) -> MeshError | None:
    step, base = _grid(limits)
    least = snap_frames(max(1, limits.min_frames), limits)
    most = limits.max_frames
    if most:
        most = base + step * ((most - base) // step)
    if least <= frames and (not most or frames <= most) and (frames - base) % step == 0:
        return None
    nearest = least if frames < least else min(most or frames, snap_frames(frames, limits))
    span = f"{least} to {most}" if most else f"at least {least}"
    return MeshError(
        Reason.FRAMES_OUT_OF_RANGE,
        f"{frames} frames ({step}n + {base}) are not admitted: {span} are; "
        f"the nearest is {nearest}",
        field="spec.frames",
        info={"nearest": str(nearest)},
    )


def _refuse_evaluations(limits: stage_pb2.Limits, evaluations: int) -> MeshError | None:
    most = limits.max_evaluations
    if evaluations >= 1 and (not most or evaluations <= most):
        return None
    nearest = 1 if evaluations < 1 else most
    span = f"1 to {most}" if most else "at least 1"
    return MeshError(
        Reason.EVALUATIONS_OUT_OF_RANGE,
        f"{evaluations} evaluations are not admitted: {span} are; the nearest is {nearest}",
        field="spec.evaluations",
        info={"nearest": str(nearest)},
    )


def _refuse_canvas(limits: stage_pb2.Limits, height: int, width: int) -> MeshError | None:
    multiple = limits.canvas_multiple or CANVAS_MULTIPLE
    least = _up(max(limits.min_edge, multiple), multiple)
    near_height, near_width = nearest_canvas(limits, height, width)
    near = f"the nearest canvas is {near_height}x{near_width} (height x width)"
    info = {"nearest": f"{near_height}x{near_width}"}
    for name, edge in (("height", height), ("width", width)):
        if edge % multiple:
            return MeshError(
                Reason.CANVAS_OFF_GRID,
                f"the {name} {edge} is not a multiple of {multiple}: {near}",
                field=f"spec.canvas.{name}",
                info=info,
            )
        if edge < least:
            return MeshError(
                Reason.CANVAS_OUT_OF_RANGE,
                f"the {name} {edge} is below {least}: {near}",
                field=f"spec.canvas.{name}",
                info=info,
            )
    if limits.max_pixels and height * width > limits.max_pixels:
        words = f"{height}x{width} has more than {limits.max_pixels} pixels: {near}"
        return MeshError(Reason.CANVAS_OUT_OF_RANGE, words, field="spec.canvas", info=info)
    ratio = max(height, width) / min(height, width)
    if limits.max_aspect and ratio > limits.max_aspect:
        words = f"{height}x{width} is longer than {limits.max_aspect:g} to 1: {near}"
        return MeshError(Reason.CANVAS_OUT_OF_RANGE, words, field="spec.canvas", info=info)
    return None


def nearest_canvas(limits: stage_pb2.Limits, height: int, width: int) -> tuple[int, int]:
    """A canvas that the limits admit, near to this one: edges rounded, then shrunk to fit."""
    multiple = limits.canvas_multiple or CANVAS_MULTIPLE
    least = _up(max(limits.min_edge, multiple), multiple)
    edges = [max(least, (edge + multiple // 2) // multiple * multiple) for edge in (height, width)]
    pixels = limits.max_pixels
    if pixels and edges[0] * edges[1] > pixels:
        scale = math.sqrt(pixels / (edges[0] * edges[1]))
        edges = [max(least, int(edge * scale) // multiple * multiple) for edge in edges]
        # An edge that was held at the least leaves the other too long.
        long = edges.index(max(edges))
        edges[long] = max(least, min(edges[long], pixels // edges[1 - long] // multiple * multiple))
    if limits.max_aspect:
        long = edges.index(max(edges))
        most = int(edges[1 - long] * limits.max_aspect) // multiple * multiple
        edges[long] = max(least, min(edges[long], most))
    return edges[0], edges[1]


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
