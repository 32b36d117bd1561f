"""What the stages' own journals say: the truth that all else must agree with."""

import base64
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

STAGES = ("ENCODE", "SAMPLE", "DECODE")
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED", "REFUSED")


@dataclass(frozen=True)
class Entry:
    """One run as its instance wrote it last."""

    run_id: str
    job_id: str
    stage: str
    instance_id: str
    generation: int
    state: str
    start: datetime | None
    end: datetime | None
    output_sha256: bytes
    reason: str

    @property
    def worked(self) -> bool:
        """Whether its engine was ever at it."""
        return self.start is not None


def read_journal(folder: Path, ended_at: datetime | None = None) -> list[Entry]:
    """All runs of an instance. Work that a host took with it ended at `ended_at`."""
    path = folder / "journal.jsonl"
    records: dict[str, dict[str, Any]] = {}
    for line in path.read_bytes().splitlines()[1:] if path.exists() else ():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # torn: never told to anyone
        records[record["run_id"]] = record
    return [_entry(record, ended_at) for record in records.values()]


def _entry(record: Mapping[str, Any], ended_at: datetime | None) -> Entry:
    run = record["run"]
    return Entry(
        run_id=record["run_id"],
        job_id=run.get("jobId", ""),
        stage=run.get("stage", "").removeprefix("STAGE_"),
        instance_id=run.get("instanceId", ""),
        generation=int(run.get("generation", 0)),
        state=run.get("state", "").removeprefix("RUN_STATE_"),
        start=_time(run.get("startTime")),
        end=_time(run.get("endTime")) or ended_at,
        output_sha256=base64.b64decode(run.get("output", {}).get("sha256", "")),
        reason=run.get("failure", {}).get("reason", ""),
    )


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text.replace("Z", "+00:00"))


def find_double_work(entries: Iterable[Entry], lost: str) -> list[str]:
    """Stages of a job that two runs were at together, or that one was at after a success.

    What succeeded at the instance `lost` went with it: that, and what it had been made from, may
    be done again.
    """
    by_stage: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    gone: dict[str, int] = {}
    for entry in entries:
        if entry.worked:
            by_stage[entry.job_id, entry.stage].append(entry)
        if entry.instance_id == lost and entry.state == "SUCCEEDED":
            gone[entry.job_id] = max(STAGES.index(entry.stage), gone.get(entry.job_id, -1))
    faults = []
    for (job_id, stage), runs in by_stage.items():
        runs.sort(key=lambda entry: entry.start or datetime.min)
        for before, after in pairwise(runs):
            assert after.start is not None
            if before.end is None or after.start < before.end:
                faults.append(f"{stage} of {job_id} ran twice at once: {before} and {after}")
            if before.state == "SUCCEEDED" and STAGES.index(stage) > gone.get(job_id, -1):
                faults.append(f"{stage} of {job_id} ran after it had succeeded: {before}, {after}")
    return faults
