"""What a request becomes, and every way it is refused: the reason, the field, a value that does."""

import math
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from reelmesh.v1 import encoder_pb2, jobs_pb2, stage_pb2, transfer_pb2
from services.common.rpc.errors import MeshError, Reason
from services.common.stage.canvas import nearest_canvas
from services.registry.lifecycle import Stage
from services.registry.resolution import (
    check_length,
    check_prompt,
    check_tokens,
    draw_seed,
    fits,
    resolve,
)
from tests.registry.stages import LIMITS


def capabilities(**changes: Any) -> stage_pb2.Capabilities:
    """What a stage publishes."""
    limits = stage_pb2.Limits(**{**LIMITS, **changes})
    return stage_pb2.Capabilities(
        modes=[transfer_pb2.MODE_T2VA], limits=limits, checkpoint_digest="d" * 64
    )


STAGES = {stage: [capabilities()] for stage in Stage}


def spec(**fields: Any) -> jobs_pb2.JobSpec:
    """A request."""
    return jobs_pb2.JobSpec(**{"prompt": "a boat", **fields})


def canvas(height: int, width: int) -> jobs_pb2.Canvas:
    """A canvas."""
    return jobs_pb2.Canvas(height=height, width=width)


def test_what_is_left_out_is_resolved_from_the_limits() -> None:
    """Mode, canvas, frames, evaluations; the seed is left to whoever makes the job."""
    found = resolve(spec(), STAGES)
    assert (found.mode, found.height, found.width) == ("T2VA", 128, 128)
    assert (found.frames, found.evaluations, found.seed) == (124, 3, None)
    assert not found.off_distribution
    assert found.checkpoint_digest == "d" * 64


@pytest.mark.parametrize(
    ("asked", "frames"), [(124, 124), (120, 124), (125, 141), (141, 141), (329, 345), (345, 345)]
)
def test_frames_are_snapped_up_before_the_range_is_checked(asked: int, frames: int) -> None:
    """108 and fewer become 107 or less and are refused; 120 becomes 124."""
    assert resolve(spec(frames=asked), STAGES).frames == frames


@pytest.mark.parametrize(
    ("seconds", "nanos", "frames"), [(6, 0, 158), (5, 166_666_666, 124), (5, 166_666_667, 141)]
)
def test_a_duration_becomes_frames_rounded_up(seconds: int, nanos: int, frames: int) -> None:
    """Whole nanoseconds: 124 frames' worth of time is 124 frames."""
    duration = Duration(seconds=seconds, nanos=nanos)
    assert resolve(spec(duration=duration), STAGES).frames == frames


BAD: list[tuple[str, dict[str, Any], Reason, str, str | None]] = [
    ("empty", {"prompt": ""}, Reason.PROMPT_EMPTY, "spec.prompt", None),
    ("spaces", {"prompt": " \t\n\u3000"}, Reason.PROMPT_EMPTY, "spec.prompt", None),
    ("invisible", {"prompt": "\u200d\u200f"}, Reason.PROMPT_EMPTY, "spec.prompt", None),
    ("nul", {"prompt": "a\0b"}, Reason.INVALID_FIELD, "spec.prompt", None),
    ("mode", {"mode": 2}, Reason.UNSUPPORTED_MODE, "spec.mode", "MODE_T2VA"),
    ("unknown mode", {"mode": 77}, Reason.UNSUPPORTED_MODE, "spec.mode", "MODE_T2VA"),
    ("no frames", {"frames": 0}, Reason.FRAMES_OUT_OF_RANGE, "spec.frames", "124"),
    ("minus frames", {"frames": -9}, Reason.FRAMES_OUT_OF_RANGE, "spec.frames", "124"),
    ("few frames", {"frames": 107}, Reason.FRAMES_OUT_OF_RANGE, "spec.frames", "124"),
    ("many frames", {"frames": 346}, Reason.FRAMES_OUT_OF_RANGE, "spec.frames", "345"),
    (
        "short",
        {"duration": Duration(seconds=2)},
        Reason.FRAMES_OUT_OF_RANGE,
        "spec.duration",
        "124",
    ),
    ("no time", {"duration": Duration()}, Reason.FRAMES_OUT_OF_RANGE, "spec.duration", "124"),
    (
        "both",
        {"duration": Duration(seconds=6), "frames": 124},
        Reason.INVALID_FIELD,
        "spec.duration",
        None,
    ),
    ("fps", {"fps": 25.0}, Reason.FPS_UNSUPPORTED, "spec.fps", "24"),
    ("fps 0", {"fps": 0.0}, Reason.FPS_UNSUPPORTED, "spec.fps", "24"),
    ("fps nan", {"fps": math.nan}, Reason.FPS_UNSUPPORTED, "spec.fps", "24"),
    ("width", {"canvas": canvas(416, 500)}, Reason.CANVAS_OFF_GRID, "spec.canvas.width", "512x416"),
    (
        "height",
        {"canvas": canvas(10, 416)},
        Reason.CANVAS_OFF_GRID,
        "spec.canvas.height",
        "416x128",
    ),
    ("both", {"canvas": canvas(100, 420)}, Reason.CANVAS_OFF_GRID, "spec.canvas", "416x128"),
    ("zero", {"canvas": canvas(0, 416)}, Reason.CANVAS_OUT_OF_RANGE, "spec.canvas.height", None),
    ("minus", {"canvas": canvas(128, -32)}, Reason.CANVAS_OUT_OF_RANGE, "spec.canvas.width", None),
    (
        "empty canvas",
        {"canvas": canvas(0, 0)},
        Reason.CANVAS_OUT_OF_RANGE,
        "spec.canvas",
        "128x128",
    ),
    ("small", {"canvas": canvas(96, 416)}, Reason.CANVAS_OUT_OF_RANGE, "spec.canvas.height", None),
    ("large", {"canvas": canvas(2048, 2048)}, Reason.CANVAS_OUT_OF_RANGE, "spec.canvas", None),
    ("long", {"canvas": canvas(128, 1024)}, Reason.CANVAS_OUT_OF_RANGE, "spec.canvas", "512x128"),
    ("0 evaluations", {"evaluations": 0}, Reason.EVALUATIONS_OUT_OF_RANGE, "spec.evaluations", "1"),
    ("-1", {"evaluations": -1}, Reason.EVALUATIONS_OUT_OF_RANGE, "spec.evaluations", "1"),
    ("101", {"evaluations": 101}, Reason.EVALUATIONS_OUT_OF_RANGE, "spec.evaluations", "100"),
    (
        "references",
        {"references": [encoder_pb2.Reference()]},
        Reason.NOT_IMPLEMENTED,
        "spec.references",
        None,
    ),
]


@pytest.mark.parametrize(
    ("fields", "reason", "field", "nearest"), [row[1:] for row in BAD], ids=[row[0] for row in BAD]
)
def test_what_cannot_run_is_refused_by_field(
    fields: dict[str, Any], reason: Reason, field: str, nearest: str | None
) -> None:
    """With the nearest value that would do, where there is one."""
    with pytest.raises(MeshError) as refused:
        resolve(spec(**fields), STAGES)
    assert (refused.value.reason, refused.value.field) == (reason, field)
    if nearest is not None:
        assert refused.value.info["nearest"] == nearest


def test_half_a_surrogate_pair_is_refused() -> None:
    """Protobuf would not send it either."""
    with pytest.raises(MeshError) as refused:
        check_prompt("a \ud83d b")
    assert refused.value.field == "spec.prompt"


@pytest.mark.parametrize(
    "prompt", ["a\r\nb", "👩‍🚀 dances", "\u200f\u05e9\u05dc\u05d5\u05dd", "x" * 1000]
)
def test_every_other_text_is_kept_exactly(prompt: str) -> None:
    """Line ends, joined emoji, direction marks, length."""
    assert resolve(spec(prompt=prompt), STAGES).prompt == prompt


def test_a_prompt_is_counted_and_never_cut() -> None:
    """The limit itself is admitted, one more is not, and a very long one is not even counted."""
    check_tokens(20, 20)
    check_length("x" * 1280, 20)
    for tokens, prompt in ((21, "x"), (0, "x" * 100_000)):
        with pytest.raises(MeshError) as refused:
            check_tokens(tokens, 20)
            check_length(prompt, 20)
        assert refused.value.reason is Reason.PROMPT_TOO_LONG
        assert refused.value.field == "spec.prompt"


def test_the_narrowest_stage_decides() -> None:
    """A decoder that takes less than the sampler makes is a limit."""
    stages = {**STAGES, Stage.DECODE: [capabilities(max_frames=200)]}
    with pytest.raises(MeshError) as refused:
        resolve(spec(frames=209), stages)
    assert refused.value.info["nearest"] == "192"


def test_of_several_instances_one_that_can_is_enough() -> None:
    """The widest one counts; the dispatcher gives the job only to those that it fits."""
    narrow, wide = capabilities(max_frames=200), capabilities(max_frames=500)
    stages = {Stage.SAMPLE: [narrow, wide]}
    found = resolve(spec(frames=400), stages)
    assert found.frames == 413
    assert found.off_distribution
    assert fits(wide, found)
    assert not fits(narrow, found)


def test_no_instance_at_all_sets_no_limit_but_the_grid() -> None:
    """A job may be made before its sampler is there, and waits for it."""
    found = resolve(spec(canvas=canvas(256, 256)), {})
    assert (found.frames, found.evaluations) == (124, 49)


@given(height=st.integers(-100, 5000), width=st.integers(-100, 5000))
def test_the_nearest_canvas_is_one_that_is_admitted(height: int, width: int) -> None:
    """Whatever was asked for, what the message proposes passes."""
    near = nearest_canvas(STAGES[Stage.SAMPLE][0].limits, height, width)
    assert resolve(spec(canvas=canvas(*near)), STAGES).height == near[0]


def test_a_drawn_seed_fits_a_signed_integer() -> None:
    """63 bits."""
    assert all(0 <= draw_seed() < 2**63 for _ in range(100))
