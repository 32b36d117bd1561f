"""What a request becomes, and why it cannot run: decided before any slot is taken.

Pure: the limits come as data from the instances that published them. A limit of 0 is one that an
instance does not state. Every refusal names the field as the caller wrote it and a value that
would do.
"""

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from google.protobuf.duration_pb2 import Duration

from reelmesh.v1 import jobs_pb2, stage_pb2, transfer_pb2
from services.common.rpc.errors import MeshError, Reason
from services.common.stage.canvas import refuse_canvas
from services.registry.lifecycle import Stage

FPS = 24
# The model's own lengths, for instances that state none: 17n + 5 frames.
FRAME_STEP, FRAME_BASE = 17, 5
_MOST_FRAMES = 1 << 20
DEFAULT_FRAMES, DEFAULT_EVALUATIONS = 124, 49
# No tokenizer makes a token of more characters than this on average.
_CHARACTERS_PER_TOKEN = 64
MOST_PRIORITY, MOST_RESUMES = 100, 5
# Refusals told of many.
_MOST_TOLD = 5
NAMES = {Stage.ENCODE: "encoder", Stage.SAMPLE: "sampler", Stage.DECODE: "decoder"}


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
    priority: int = 0
    pool: str = ""
    sampler_id: str = ""
    automatic_resumes: int = 0


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
        priority=_in_range(spec.priority, "priority", -MOST_PRIORITY, MOST_PRIORITY),
        pool=spec.pool,
        sampler_id=spec.sampler_id,
        automatic_resumes=_in_range(spec.automatic_resumes, "automatic_resumes", 0, MOST_RESUMES),
    )
    for stage, those in by_width.items():
        refusals = [refusal for one in those if (refusal := _refusal(one, resolution))]
        if those and len(refusals) == len(those):
            raise _refuse_all(stage, refusals, spec)
    trained = limits.trained_max_frames
    off = bool(trained) and resolution.frames > trained
    return replace(resolution, off_distribution=off)


def _in_range(value: int, name: str, least: int, most: int) -> int:
    if least <= value <= most:
        return value
    nearest = max(least, min(most, value))
    raise MeshError(
        Reason.INVALID_FIELD,
        f"{name} is {least} to {most}; the nearest is {nearest}",
        field=f"spec.{name}",
        info={"nearest": str(nearest)},
    )


def _refuse_all(stage: Stage, refusals: Sequence[MeshError], spec: jobs_pb2.JobSpec) -> MeshError:
    """Why nobody can run it: the field, if all blame the same one; otherwise what each says."""
    if len({(one.reason, one.field) for one in refusals}) == 1:
        return _as_asked(refusals[0], spec)
    told = "; ".join(dict.fromkeys(one.message for one in refusals[:_MOST_TOLD]))
    words = f"no {NAMES[stage]} could ever run this: each refuses something else: {told}"
    return MeshError(Reason.NO_INSTANCE_FITS, words)


def _as_asked(refusal: MeshError, spec: jobs_pb2.JobSpec) -> MeshError:
    """The refusal, naming the field that the caller used for the length."""
    if refusal.field == "spec.frames" and spec.HasField("duration"):
        refusal.field = "spec.duration"
    return refusal


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
        or refuse_canvas(limits, asked.height, asked.width, "spec.canvas")
        or _refuse_evaluations(limits, asked.evaluations)
    )


def _refuse_frames(limits: stage_pb2.Limits, frames: int) -> MeshError | None:
    step, base = _grid(limits)
    least = snap_frames(max(1, limits.min_frames), limits)
    most = base + step * (((limits.max_frames or _MOST_FRAMES) - base) // step)
    if least <= frames <= most and (frames - base) % step == 0:
        return None
    nearest = max(least, min(most, snap_frames(frames, limits)))
    return MeshError(
        Reason.FRAMES_OUT_OF_RANGE,
        f"{frames} frames ({step}n + {base}) are not admitted: {least} to {most} are; "
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
