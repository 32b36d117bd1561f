"""The rank processes of one epoch: started together, heard together, ended together.

Used by one thread alone, the one that made it: the kernel ends a rank with the *thread* that
started it, so that thread has to live as long as the ranks.
"""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import structlog

from services.common.work import EngineError
from services.sampler.ranks.complaint import tell_exit
from services.sampler.ranks.rank import Post, run_rank

log = structlog.get_logger()

_PATH_BYTES = 107  # what fits a socket's address; nothing of ours is longer
_LONGEST_STEP_S = 1.0
_END_S = 30.0


class RankLost(EngineError):
    """A rank died, hung or cannot go on; the crew has to be ended."""


class PatientClock:
    """Seconds while this process itself was running: a stopped supervisor blames no rank."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self.now = 0.0

    def tick(self) -> float:
        """Advance by what passed, at most a step."""
        moment = time.monotonic()
        self.now += min(moment - self._last, _LONGEST_STEP_S)
        self._last = moment
        return self.now


@dataclass
class _Member:
    """A rank process, its pipe, and when it was last heard."""

    rank: int
    process: SpawnProcess
    pipe: Connection
    seen: float


class Crew:
    """One start of all ranks."""

    def __init__(self, clock: PatientClock, hang_limit_s: float) -> None:
        self._clock = clock
        self._hang_limit_s = hang_limit_s
        self._members: list[_Member] = []
        self._folder: Path | None = None
        self._watched = False

    @property
    def pids(self) -> list[int]:
        """The process ids, by rank."""
        return [member.process.pid or 0 for member in self._members]

    def meeting_place(self) -> Path:
        """A path that no other start on this host uses, for the ranks to find each other."""
        self._folder = Path(tempfile.mkdtemp(prefix="reelmesh-"))
        if len(os.fsencode(self._folder / "meet")) > _PATH_BYTES:
            self._folder.rmdir()
            self._folder = Path(tempfile.mkdtemp(prefix="reelmesh-", dir="/tmp"))
        return self._folder / "meet"

    def start(self, posts: Sequence[Post]) -> None:
        """Start every rank's process."""
        spawning = get_context("spawn")
        for post in posts:
            ours, theirs = spawning.Pipe()
            process = spawning.Process(
                target=run_rank, args=(theirs, post), name=f"rank-{post.rank}", daemon=True
            )
            process.start()
            theirs.close()
            self._members.append(_Member(post.rank, process, ours, self._clock.now))

    def watch(self) -> None:
        """From now on a silent rank is a lost one.

        Not before all have loaded: the loader of big libraries holds a process still for long.
        """
        self._watched = True
        for member in self._members:
            member.seen = self._clock.now

    def send(self, message: Any) -> None:
        """Tell every rank. A rank that is gone is noticed by `receive`."""
        for member in self._members:
            with contextlib.suppress(OSError):
                member.pipe.send(message)

    def receive(
        self, timeout_s: float, also: Sequence[Connection] = ()
    ) -> list[tuple[int, tuple[Any, ...]]]:
        """What ranks said, at most one event each; after `timeout_s`, or when `also` has something.

        Raises `RankLost` when a rank has ended (its last words come first) or, once watched, has
        given no sign of life for the hang limit.
        """
        ready = connection.wait([*(member.pipe for member in self._members), *also], timeout_s)
        now = self._clock.tick()
        heard: list[tuple[int, tuple[Any, ...]]] = []
        lost = ""
        for member in self._members:
            if member.pipe not in ready:
                continue
            try:
                event = member.pipe.recv()
            except (EOFError, OSError):
                member.process.join(_LONGEST_STEP_S)
                lost = f"rank {member.rank} {tell_exit(member.process.exitcode)}"
                continue
            member.seen = now
            if event != ("alive",):
                heard.append((member.rank, event))
        if self._watched and (silent := self.silent(self._hang_limit_s)):
            lost = lost or f"rank {silent[0]} gave no sign of life for {self._hang_limit_s:g} s"
        # Others' words may say why it was lost: they come first, and the loss with the next call.
        if lost and not heard:
            raise RankLost("WORKER_DIED", lost)
        return heard

    def silent(self, limit_s: float) -> list[int]:
        """The ranks that were not heard for so long."""
        return [m.rank for m in self._members if self._clock.now - m.seen > limit_s]

    def end(self) -> None:
        """End every process and wait until they are gone, and with them the memory they held."""
        for member in self._members:
            member.process.kill()
        for member in self._members:
            member.process.join(_END_S)
            while member.process.is_alive():  # the driver may hold it for long
                log.error("rank_does_not_end", rank=member.rank, pid=member.process.pid)
                member.process.join(_END_S)
            member.pipe.close()
        self._members = []
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
