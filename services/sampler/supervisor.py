"""The face of the ranks: starts them, gives them work, and outlives them.

It has the same verb as the engine, and no torch: a rank may hang, run out of memory or die, and
the process that reports it lives. A dead rank is started again before the next run.
"""

import multiprocessing
import os
import threading
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import structlog

from services.common.checkpoint.components import ModelSettings
from services.common.work import Cancelled, EngineError, Watch
from services.sampler.engine import SampleOrder
from services.sampler.ranks import CANCEL, Command, run_rank

log = structlog.get_logger()

_POLL_S = 0.05
_END_S = 5.0


class Supervisor:
    """One rank, for now; one run at a time."""

    def __init__(
        self, model: ModelSettings, load_limit_s: float, instance_id: str, log_level: str = "info"
    ) -> None:
        self._model = model
        self._instance_id = instance_id
        self._log_level = log_level
        self._load_limit_s = load_limit_s
        self._spawning = multiprocessing.get_context("spawn")
        self._busy = threading.Lock()
        self._rank: SpawnProcess | None = None
        self._pipe: Connection | None = None

    def load(self) -> None:
        """Start the rank and wait until it has loaded. Blocks."""
        with self._busy:
            self._start()

    def sample(
        self, order: SampleOrder, conditioning: Path, output: Path, watch: Watch
    ) -> dict[str, float]:
        """As SamplerEngine.sample, in the rank. WORKER_DIED if the rank ends under it."""
        with self._busy:
            if self._rank is None or not self._rank.is_alive():
                log.warning("rank_restarts")
                self._start()
            assert self._pipe is not None
            self._pipe.send(Command(order, conditioning, output))
            asked = False
            while True:
                if watch.cancelled and not asked:
                    self._pipe.send(CANCEL)
                    asked = True
                event = self._receive(_POLL_S)
                if event is None:
                    continue
                match event:
                    case ("report", phase, done, total):
                        watch.report(phase, done, total)
                    case ("done", timings):
                        return dict(timings)
                    case ("cancelled",):
                        raise Cancelled
                    case ("failed", reason, words):
                        raise EngineError(reason, words)

    def close(self) -> None:
        """End the rank and release its memory."""
        rank, self._rank = self._rank, None
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if rank is not None:
            rank.kill()
            rank.join(_END_S)

    def _start(self) -> None:
        self.close()
        ours, theirs = self._spawning.Pipe()
        rank = self._spawning.Process(
            target=run_rank,
            args=(theirs, self._model, self._instance_id, self._log_level, os.getpid()),
            name="rank-0",
            daemon=True,
        )
        rank.start()
        theirs.close()
        self._rank, self._pipe = rank, ours
        event = self._receive(self._load_limit_s)
        match event:
            case ("ready",):
                log.info("rank_ready", rank=0, pid=rank.pid)
            case ("failed", reason, words):
                self.close()
                raise EngineError(reason, words)
            case _:
                self.close()
                raise EngineError("WORKER_DIED", "rank 0 did not load in time")

    def _receive(self, timeout_s: float) -> Any:
        """The next event, None after `timeout_s`; WORKER_DIED if the rank is gone."""
        assert self._pipe is not None and self._rank is not None
        try:
            return self._pipe.recv() if self._pipe.poll(timeout_s) else None
        except (EOFError, OSError) as error:
            self._rank.join(_END_S)
            code = self._rank.exitcode
            raise EngineError(
                "WORKER_DIED", f"rank 0 ended during the work (exit code {code})"
            ) from error
