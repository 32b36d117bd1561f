"""A half-done run as one file, so that a run that was cut short goes on where it was.

No noise is drawn inside the loop, so the rows, the index of the next evaluation and the schedule
are all there is. The file names what it belongs to: the digest of the request (with the weights
and the recipe) and that of the conditioning. It is written beside its place, synced and renamed:
what is there is always whole.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from services.common.work import EngineError
from services.sampler.loop.rows import Rows
from services.sampler.loop.schedule import Schedule
from services.sampler.order import SNAPSHOT_REFUSED

log = structlog.get_logger()

_FORMAT = "1"


@dataclass(frozen=True)
class Origin:
    """What a half-done run belongs to: SHA-256 of its request and of its conditioning."""

    request: str
    conditioning: str

    @classmethod
    def of(cls, request: Mapping[str, Any], conditioning: Path) -> "Origin":
        """The digests of a request (as JSON) and of a conditioning file's bytes."""
        words = json.dumps(request, sort_keys=True, separators=(",", ":"))
        with conditioning.open("rb") as file:
            bundle = hashlib.file_digest(file, "sha256").hexdigest()
        return cls(hashlib.sha256(words.encode()).hexdigest(), bundle)


@dataclass(frozen=True)
class Snapshot:
    """The rows before evaluation `index`, counted from 0."""

    origin: Origin
    schedule: Schedule
    index: int
    rows: Rows

    def write(self, path: Path) -> None:
        """Replace the snapshot at `path`, durably and as a whole."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        tensors = {
            **{name: value.cpu().contiguous() for name, value in vars(self.rows).items()},
            **vars(self.schedule),
        }
        metadata = {"format": _FORMAT, "index": str(self.index), **vars(self.origin)}
        try:
            save_file(tensors, draft, metadata=metadata)
            _sync(draft)
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        _sync(path.parent)

    @classmethod
    def read(cls, path: Path, origin: Origin, schedule: Schedule, rows: Rows) -> "Snapshot":
        """The snapshot at `path`, if it is a half of just this run.

        `rows` are the run's own at its beginning: the snapshot's have their shapes. Raises
        SNAPSHOT_REFUSED with what differs; to begin at zero instead is the caller's choice.
        """
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except FileNotFoundError:
            raise EngineError(SNAPSHOT_REFUSED, "there is no such snapshot") from None
        except (SafetensorError, OSError) as error:
            raise EngineError(SNAPSHOT_REFUSED, f"the snapshot cannot be read: {error}") from error
        if metadata.get("format") != _FORMAT:
            raise EngineError(SNAPSHOT_REFUSED, "the snapshot has another format")
        for name, expected in vars(origin).items():
            if metadata.get(name) != expected:
                raise EngineError(SNAPSHOT_REFUSED, f"the snapshot is of another {name}")
        expected = {name: value.shape for name, value in {**vars(rows), **vars(schedule)}.items()}
        if {name: value.shape for name, value in tensors.items()} != expected:
            raise EngineError(SNAPSHOT_REFUSED, "the snapshot's tensors have other names or shapes")
        found = cls(
            origin,
            Schedule(tensors.pop("video_sigmas"), tensors.pop("audio_sigmas")),
            int(metadata["index"]),
            Rows(**tensors),
        )
        if not found.schedule.equals(schedule):
            raise EngineError(SNAPSHOT_REFUSED, "the snapshot is of another schedule")
        if not 0 < found.index < schedule.evaluations:
            raise EngineError(SNAPSHOT_REFUSED, f"the snapshot stands at evaluation {found.index}")
        if not all(bool(torch.isfinite(value).all()) for value in vars(found.rows).values()):
            raise EngineError(SNAPSHOT_REFUSED, "the snapshot holds NaN or infinity")
        return found


class Keeper:
    """Keeps the last snapshot of one run in its place."""

    def __init__(self, path: Path, origin: Origin, schedule: Schedule) -> None:
        self._path = path
        self._origin = origin
        self._schedule = schedule

    def __call__(self, index: int, rows: Rows) -> None:
        """Replace it. A full disk is no reason to lose the run as well: then the last one stays."""
        try:
            Snapshot(self._origin, self._schedule, index, rows).write(self._path)
        except (OSError, SafetensorError) as error:
            log.warning("snapshot_not_written", error=str(error))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
