"""Where runs keep their snapshots on this instance's disk, and for how long.

One file a run, replaced as the run goes. It is deleted once its run has succeeded, once the journal
does not know the run, and when a run that ended otherwise ended too long ago.
"""

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import structlog

from reelmesh.v1 import stage_pb2
from services.common.stage.book import TERMINAL

log = structlog.get_logger()


class Shelf:
    """The snapshots of one instance, by run."""

    def __init__(self, folder: Path, retention_s: float) -> None:
        self._folder = folder
        self._retention = timedelta(seconds=retention_s)

    def place(self, run_id: str) -> Path:
        """Where a run's snapshot lies, if it has one."""
        return self._folder / f"{run_id}.safetensors"

    def inherit(self, half_run_id: str, run_id: str) -> Path | None:
        """A run goes on from another's snapshot: where that lies; None if there is none.

        It is the new run's own from the start, so that this one too can be gone on from if it is
        cut short before it has written one.
        """
        half = self.place(half_run_id)
        try:
            os.link(half, self.place(run_id))
        except FileNotFoundError:
            return None
        except OSError as error:  # a file system without links
            log.warning("snapshot_not_linked", error=str(error))
        return half

    def sweep(self, find: Callable[[str], stage_pb2.Run | None], now: datetime) -> None:
        """Delete what nobody will go on from. `find` gives the journal's run of an id."""
        if not self._folder.is_dir():
            return
        for path in self._folder.iterdir():
            run = find(path.stem)
            if run is not None and run.state not in TERMINAL:
                continue
            half_written = path.suffix != ".safetensors"
            if half_written or run is None or self._is_over(run, now):
                path.unlink(missing_ok=True)

    def _is_over(self, run: stage_pb2.Run, now: datetime) -> bool:
        if run.state == stage_pb2.RUN_STATE_SUCCEEDED:
            return True
        return run.end_time.ToDatetime(UTC) + self._retention < now
