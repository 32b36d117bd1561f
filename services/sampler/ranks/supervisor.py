"""The face of the ranks: starts them, gives them work, watches over them and outlives them.

It has the same verb as the engine, and no torch: a rank may hang, run out of memory or die, and
the process that reports it lives. When one is lost, all are ended, the run fails with the worker's
own words, and a new epoch of ranks is started, also while there is nothing to do.
"""

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing import Pipe
from pathlib import Path

import structlog

from services.common.work import EngineError, Watch
from services.sampler.order import SampleOrder
from services.sampler.ranks.complaint import explain
from services.sampler.ranks.crew import Crew, PatientClock
from services.sampler.ranks.plan import Plan
from services.sampler.ranks.rank import Command
from services.sampler.ranks.shift import Shift

log = structlog.get_logger()

_TICK_S = 0.05
_FIRST_PAUSE_S, _LAST_PAUSE_S = 1.0, 60.0
_GONE = EngineError("WORKER_DIED", "there are no ranks any more, and none will be started")


class Supervisor:
    """All ranks of one sampler; one run at a time."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._clock = PatientClock()
        self._waiting: queue.SimpleQueue[Shift] = queue.SimpleQueue()
        self._woken, self._waker = Pipe(duplex=False)
        self._closing = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="ranks", daemon=True)
        self._first: Future[None] = Future()
        self._telling = threading.Lock()
        self._tell: Callable[[bool | None], None] = lambda _: None
        self._able: bool | None = False
        self._shift: Shift | None = None
        self._losses = 0
        self.epoch = 0
        self.pids: list[int] = []

    def follow(self, tell: Callable[[bool | None], None]) -> None:
        """Have `tell` called, in another thread, when the ranks can work (True) or not (False).

        None: they were started too often in vain, and will not be started again.
        """
        with self._telling:
            self._tell = tell
            tell(self._able)

    def load(self) -> None:
        """Start the ranks and wait until they have loaded. Blocks; raises what stopped one."""
        self._keeper.start()
        self._first.result()

    def sample(
        self, order: SampleOrder, conditioning: Path, output: Path, watch: Watch
    ) -> dict[str, float]:
        """As SamplerEngine.sample, in the ranks. WORKER_DIED if one ends or hangs under it."""
        shift = Shift(Command(order, conditioning, output), watch, self._plan.limits)
        self._waiting.put(shift)
        with contextlib.suppress(OSError):
            self._waker.send(None)
        if not self._keeper.is_alive():
            self._dismiss(_GONE)
        return shift.result.result()

    def close(self) -> None:
        """End all ranks and release their memory."""
        self._closing.set()
        if self._keeper.is_alive():
            with contextlib.suppress(OSError):
                self._waker.send(None)
            self._keeper.join()

    def _keep(self) -> None:
        """Start ranks for as long as it makes sense. The thread that all of them belong to."""
        going = True
        while going and not self._closing.is_set():
            crew = Crew(self._clock, self._plan.limits.hang_s)
            try:
                self._begin(crew)
                while not self._closing.is_set():
                    self._attend(crew)
            except Exception as error:  # noqa: BLE001 - the boundary of the thread that ranks have
                self._say(False)
                crew.end()
                complaint = explain(error)
                going = self._recover(EngineError(complaint.reason, complaint.words))
            finally:
                crew.end()
        self._dismiss(_GONE)

    def _begin(self, crew: Crew) -> None:
        """A new epoch: start the ranks and wait until every one has loaded."""
        self.epoch += 1
        crew.start(self._plan.posts(self.epoch, crew.meeting_place()))
        self.pids = crew.pids
        log.info("ranks_start", epoch=self.epoch, layout=self._plan.layout.name, pids=crew.pids)
        limit = self._clock.tick() + self._plan.limits.load_s
        ready: set[int] = set()
        while len(ready) < self._plan.layout.ranks:
            for rank, event in crew.receive(_TICK_S):
                if event[0] == "failed":
                    raise EngineError(event[1].reason, f"rank {rank}: {event[1].words}")
                ready.add(rank)
            if self._closing.is_set():
                raise EngineError("INTERRUPTED", "the service was stopped while it loaded")
            if self._clock.now > limit:
                raise EngineError("WORKER_DIED", f"the ranks did not load in {limit:g} s")
        crew.watch()
        log.info("ranks_ready", epoch=self.epoch)
        self._say(True)
        if not self._first.done():
            self._first.set_result(None)

    def _attend(self, crew: Crew) -> None:
        """Listen to idle ranks, and do the next run if there is one."""
        crew.receive(self._plan.limits.heartbeat_s, also=[self._woken])
        while self._woken.poll():
            self._woken.recv()
        with contextlib.suppress(queue.Empty):
            self._shift = self._waiting.get_nowait()
        if self._shift is not None:
            self._work(crew, self._shift)
            self._shift = None
            self._losses = 0

    def _work(self, crew: Crew, shift: Shift) -> None:
        shift.begin(crew, self._clock.tick())
        while not shift.look(crew, self._clock.tick()):
            for rank, event in crew.receive(_TICK_S):
                shift.hear(rank, event, self._clock.now)
            if self._closing.is_set():
                raise EngineError("INTERRUPTED", "the service was stopped during the run")
        shift.settle()

    def _recover(self, loss: EngineError) -> bool:
        """After the ranks were ended: fail what they did; whether to start them again."""
        log.error("ranks_lost", epoch=self.epoch, reason=loss.reason, error=loss.message)
        if not self._first.done():
            self._first.set_exception(loss)
            return False
        if self._shift is not None:
            self._shift.fail(loss)
            self._shift = None
        if self._closing.is_set():
            return False
        self._losses += 1
        if self._losses > self._plan.limits.restarts:
            log.error("ranks_given_up", losses=self._losses)
            self._say(None)
            return False
        if self._losses > 1:
            self._dismiss(loss)
            self._closing.wait(min(_FIRST_PAUSE_S * 2 ** (self._losses - 2), _LAST_PAUSE_S))
        return True

    def _say(self, able: bool | None) -> None:
        with self._telling:
            self._able = able
            self._tell(able)

    def _dismiss(self, loss: EngineError) -> None:
        """Fail every run that waits for ranks."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._waiting.get_nowait().fail(loss)
