"""A rank: the child process that holds the transformer and does the denoising.

It speaks with its supervisor over one pipe. Commands come in, and events go out: "ready",
("report", phase, done, total), ("done", timings), ("cancelled",) or ("failed", reason, words).
It ends with its supervisor, whatever ends that.
"""

import ctypes
import functools
import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import structlog

from services.common import telemetry
from services.common.checkpoint.components import ModelSettings
from services.common.work import Cancelled, EngineError, Watch
from services.sampler.engine import SampleOrder, SamplerEngine

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class Command:
    """One run for a rank."""

    order: SampleOrder
    conditioning: Path
    output: Path


CANCEL = "cancel"


class PipedWatch(Watch):
    """A watch whose other end is at the far side of the pipe."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__(lambda phase, done, total: pipe.send(("report", phase, done, total)))
        self._pipe = pipe

    def raise_if_cancelled(self) -> None:
        """Look whether the supervisor asked to stop."""
        while self._pipe.poll():
            if self._pipe.recv() == CANCEL:
                self.cancel()
        super().raise_if_cancelled()


def run_rank(
    pipe: Connection, model: ModelSettings, instance_id: str, log_level: str, supervisor_pid: int
) -> None:
    """The whole life of a rank: load, then one command after the other."""
    _die_with(supervisor_pid)
    telemetry.configure("sampler", instance_id, log_level)
    structlog.contextvars.bind_contextvars(rank=0)
    engine = SamplerEngine(model)
    if not _guarded(pipe, lambda: _load(engine, pipe)):
        return
    while True:
        try:
            command = pipe.recv()
        except EOFError:
            return
        if isinstance(command, Command):
            _guarded(pipe, functools.partial(_sample, engine, command, pipe))


def _load(engine: SamplerEngine, pipe: Connection) -> None:
    engine.load()
    pipe.send(("ready",))


def _sample(engine: SamplerEngine, command: Command, pipe: Connection) -> None:
    watch = PipedWatch(pipe)
    timings = engine.sample(command.order, command.conditioning, command.output, watch)
    pipe.send(("done", timings))


def _guarded(pipe: Connection, act: Callable[[], None]) -> bool:
    """Do it; tell the supervisor how it failed if it does. The boundary of this process."""
    try:
        act()
    except Cancelled:
        pipe.send(("cancelled",))
    except EngineError as error:
        pipe.send(("failed", error.reason, error.message))
    except Exception as error:  # noqa: BLE001 - the boundary of this process
        memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
        words = str(error) if memory else traceback.format_exc()
        pipe.send(("failed", "OUT_OF_MEMORY" if memory else "ENGINE_FAILED", words))
    else:
        return True
    return False


def _die_with(supervisor_pid: int) -> None:
    """Have the kernel end this process with its parent, and leave Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor_pid:
        os._exit(1)
