"""One run in the ranks, as the supervisor sees it: what was asked, and who has answered what."""

from concurrent.futures import Future
from typing import Any

from services.common.work import Cancelled, EngineError, Watch
from services.sampler.ranks.complaint import Complaint
from services.sampler.ranks.crew import Crew, RankLost
from services.sampler.ranks.pipe import CANCEL
from services.sampler.ranks.plan import Limits
from services.sampler.ranks.rank import Command

_BETTER_CAUSE_S = 2.0


class Shift:
    """A run from its command to the answers of all ranks."""

    def __init__(self, command: Command, watch: Watch, limits: Limits) -> None:
        self.result: Future[dict[str, float]] = Future()
        self._command = command
        self._watch = watch
        self._limits = limits
        self._answers: dict[int, tuple[Any, ...]] = {}
        self._ranks = 0
        self._asked_to_stop = False
        self._progress_at = 0.0
        self._failed_at: float | None = None

    def begin(self, crew: Crew, now: float) -> None:
        """Send every rank to work."""
        self._ranks = len(crew.pids)
        self._progress_at = now
        crew.send(self._command)

    def hear(self, rank: int, event: tuple[Any, ...], now: float) -> None:
        """Take in what a rank said. Progress is told by the first rank, and shown by any."""
        self._progress_at = now
        if event[0] == "report":
            if rank == 0:
                self._watch.report(*event[1:])
            return
        self._answers[rank] = event
        if event[0] == "failed" and self._failed_at is None:
            self._failed_at = now

    def look(self, crew: Crew, now: float) -> bool:
        """Pass on a cancel; whether all have answered. `RankLost` if one never will."""
        if len(self._answers) == self._ranks:
            return True
        if self._watch.cancelled and not self._asked_to_stop:
            self._asked_to_stop = True
            crew.send(CANCEL)
        if self._failed_at is not None and now - self._failed_at > self._patience_s():
            raise self._verdict(crew)
        if now - self._progress_at > self._limits.evaluation_s:
            raise RankLost(
                "WORKER_DIED", f"no rank made progress for {self._limits.evaluation_s:g} s"
            )
        return False

    def settle(self) -> None:
        """Give the caller what all ranks answered. `RankLost` if they did not answer alike."""
        if self._complaints():
            loss = self._loss()
            if not self._is_sound():
                raise loss
            self.result.set_exception(EngineError(loss.reason, loss.message))
            return
        kinds = {answer[0] for answer in self._answers.values()}
        if len(kinds) > 1:
            raise RankLost("WORKER_DIED", f"the ranks ended in different ways: {sorted(kinds)}")
        if kinds == {"cancelled"}:
            self.result.set_exception(Cancelled("the work was cancelled"))
        else:
            self.result.set_result(dict(self._answers[0][1]))

    def fail(self, loss: EngineError) -> None:
        """End it with why the ranks were lost, or with a better reason that one of them gave."""
        if any(complaint.reason == "OUT_OF_MEMORY" for _, complaint in self._complaints()):
            loss = self._loss()
        self.result.set_exception(EngineError(loss.reason, loss.message))

    def _complaints(self) -> list[tuple[int, Complaint]]:
        """What went wrong by rank, causes before their consequences: as they came, OOM first."""
        found = [
            (rank, answer[1]) for rank, answer in self._answers.items() if answer[0] == "failed"
        ]
        return sorted(found, key=lambda item: item[1].reason != "OUT_OF_MEMORY")

    def _is_sound(self) -> bool:
        return all(complaint.sound for _, complaint in self._complaints())

    def _patience_s(self) -> float:
        """How long the others may take to end; a broken rank's have only to tell a better cause."""
        return self._limits.settle_s if self._is_sound() else _BETTER_CAUSE_S

    def _verdict(self, crew: Crew) -> RankLost:
        """Why the ranks are lost, when one has failed and others never answered."""
        loss = self._loss()
        quiet = crew.silent(max(_BETTER_CAUSE_S, 3 * self._limits.heartbeat_s))
        if quiet and loss.reason != "OUT_OF_MEMORY":
            words = f"rank {quiet[0]} gave no sign of life any more; {loss.message}"
            return RankLost("WORKER_DIED", words)
        return loss

    def _loss(self) -> RankLost:
        complaints = self._complaints()
        rank, complaint = complaints[0]
        alike = [other for _, other in complaints].count(complaint) == self._ranks
        place = "" if alike else f"rank {rank}: "
        return RankLost(complaint.reason, f"{place}{complaint.words}")
