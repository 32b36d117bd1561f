"""Snapshots stay on the disk for as long as a run could go on from them, and no longer."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from reelmesh.v1 import stage_pb2
from services.sampler.shelf import Shelf

NOW = datetime(2026, 1, 2, tzinfo=UTC)
DAY_S = 86_400.0
RUNS = {
    "run_live": (stage_pb2.RUN_STATE_RUNNING, None),
    "run_failed": (stage_pb2.RUN_STATE_FAILED, timedelta(hours=23)),
    "run_cancelled": (stage_pb2.RUN_STATE_CANCELLED, timedelta(hours=23)),
    "run_old": (stage_pb2.RUN_STATE_FAILED, timedelta(hours=25)),
    "run_done": (stage_pb2.RUN_STATE_SUCCEEDED, timedelta(seconds=1)),
}


def find(run_id: str) -> stage_pb2.Run | None:
    if run_id not in RUNS:
        return None
    state, ago = RUNS[run_id]
    run = stage_pb2.Run(run_id=run_id, state=state)
    if ago is not None:
        run.end_time.FromDatetime(NOW - ago)
    return run


def test_sweep_keeps_what_can_be_gone_on_from(tmp_path: Path) -> None:
    """Live runs and those that ended badly within a day keep theirs; all else goes."""
    shelf = Shelf(tmp_path / "snapshots", DAY_S)
    shelf.sweep(find, NOW)  # without a folder there is nothing to do
    (tmp_path / "snapshots").mkdir()
    for run_id in (*RUNS, "run_unknown"):
        shelf.place(run_id).touch()
    shelf.place("run_live").with_suffix(".draft").touch()
    shelf.place("run_failed").with_suffix(".draft").touch()
    shelf.sweep(find, NOW)
    assert sorted(path.name for path in (tmp_path / "snapshots").iterdir()) == [
        "run_cancelled.safetensors",
        "run_failed.safetensors",
        "run_live.draft",
        "run_live.safetensors",
    ]
