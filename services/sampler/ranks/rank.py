"""A rank: the child process that holds its part of the transformer and does the denoising.

It speaks with its supervisor over one pipe. Commands come in; "ready", ("report", phase, done,
total), ("done", timings), ("cancelled",) or ("failed", complaint) go out, and ("alive",) all the
while. While it has nothing to do it waits at the pipe, never in a collective. It ends with its
supervisor, whatever ends that.
"""

import ctypes
import functools
import os
import signal
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import structlog

from services.common import telemetry
from services.common.checkpoint.components import ModelSettings
from services.common.work import Cancelled
from services.sampler.engine import SamplerEngine
from services.sampler.layout import RankLayout
from services.sampler.order import SampleOrder
from services.sampler.ranks.complaint import explain
from services.sampler.ranks.pipe import Pipe, RankWatch
from services.sampler.recipe import Recipe

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class Command:
    """One run for all ranks; the first of them writes the output."""

    order: SampleOrder
    conditioning: Path
    output: Path


@dataclass(frozen=True)
class Post:
    """What one rank is told when it starts."""

    rank: int
    epoch: int
    model: ModelSettings
    recipe: Recipe
    layout: RankLayout
    rendezvous: Path
    load_s: float
    collective_s: float
    heartbeat_s: float
    instance_id: str
    log_level: str
    supervisor_pid: int
    environment: Mapping[str, str] = field(default_factory=dict)
    # Called with the rank before it loads: where a test puts a fault.
    prologue: Callable[[int], None] | None = None


def run_rank(connection: Connection, post: Post) -> None:
    """The whole life of a rank: load, then one command after the other."""
    os.environ.update(post.environment)  # before torch is imported
    _die_with(post.supervisor_pid)
    # All ranks are on this host: their own traffic needs no other network.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    os.environ.setdefault("LOG_LEVEL", "warning")  # xfuser's own log
    telemetry.configure("sampler", post.instance_id, post.log_level)
    # Libraries' deprecations are for whoever changes their versions.
    warnings.simplefilter("ignore", FutureWarning)
    structlog.contextvars.bind_contextvars(rank=post.rank, epoch=post.epoch)
    pipe = Pipe(connection)
    threading.Thread(target=pipe.beat, args=(post.heartbeat_s,), daemon=True).start()
    worker = _Worker(post, pipe)
    if not worker.attempt(worker.load):
        return
    while True:
        try:
            command = pipe.receive()
        except EOFError:
            return
        if isinstance(command, Command):
            worker.attempt(functools.partial(worker.sample, command))


class _Worker:
    """The engine of a rank, and the boundary of its process."""

    def __init__(self, post: Post, pipe: Pipe) -> None:
        self._post = post
        self._pipe = pipe
        self._group: Any = None
        self._engine: SamplerEngine | None = None

    def load(self) -> None:
        """Meet the others and load this rank's part."""
        post = self._post
        if post.prologue is not None:
            post.prologue(post.rank)
        if post.layout.ranks > 1:
            from services.sampler.parallel.group import Group, Meeting

            meeting = Meeting(
                post.layout,
                post.rendezvous,
                post.load_s,
                post.collective_s,
                post.recipe,
            )
            self._group = Group(meeting, post.rank)
        self._engine = SamplerEngine(post.model, post.recipe, self._group)
        self._engine.load()
        self._pipe.send("ready")

    def sample(self, command: Command) -> None:
        """One run."""
        assert self._engine is not None  # attempted only after load
        watch = RankWatch(self._pipe, self._group)
        timings = self._engine.sample(command.order, command.conditioning, command.output, watch)
        self._pipe.send("done", timings)

    def attempt(self, act: Callable[[], None]) -> bool:
        """Do it; tell the supervisor how it failed if it does."""
        try:
            act()
        except Cancelled:
            self._pipe.send("cancelled")
        except Exception as error:  # noqa: BLE001 - the boundary of this process
            self._pipe.send("failed", explain(error))
        else:
            return True
        return False


def _die_with(supervisor_pid: int) -> None:
    """Have the kernel end this process with its parent, and leave Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor_pid:
        os._exit(1)
