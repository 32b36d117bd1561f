"""Claims: the next jobs of a stage are bound to free instances, in one transaction.

ENCODE is where a job is given its turn: owners in the order of fairness.py, an owner's own jobs
by priority, then first come first served, and never so many ahead of the samplers that the order
were decided too early. SAMPLE and DECODE keep the order of the turns. What is looked at is bounded
by free slots, owners and instances, never by how many jobs wait. First everything is chosen, then
all that was chosen is written, with one statement for all of a kind; owners whose turn comes are
held and looked at as many at a time as there are slots for.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from sqlalchemy import func
from sqlmodel import Session, col, select

from services.registry.fairness import Entrant, Turns, by_priority
from services.registry.lifecycle import Stage
from services.registry.limits import Limits
from services.registry.placement import Board, Candidate
from services.registry.records.bindings import Choice, bind_all
from services.registry.records.charges import Turn, charge, sampler_unit_s, work
from services.registry.records.lanes import Lanes
from services.registry.records.slots import (
    faster_candidates,
    free_candidates,
    lock_ready,
    may_take,
)
from services.registry.records.sources import readable_inputs
from services.registry.records.takers import Owners
from services.registry.records.turns import entrant_of, in_turn, leave
from services.registry.records.waiting import in_order, is_next
from services.registry.schema import JobRow

# Bindings of one transaction: others want to write too.
BATCH = 64
# Jobs and owners looked at for one transaction; the next round looks again.
_PAGE, _PAGES = 32, 8
# So many jobs left for a better instance keep that one busy: whoever is next need not wait.
_RESERVED = 32
# Any number of ours: with it registries on one database claim one after the other.
_CLAIM_LOCK = 73356375


@dataclass(frozen=True)
class Rules:
    """How claims choose. Limits are those of owners who have none of their own."""

    encoded_ahead: int = 2
    limits: Limits = field(default_factory=Limits)
    # Whoever claims follows what it bound.
    replica_id: str = ""
    # And sends its start at once: it is marked as sent from the beginning.
    sends: bool = False


def claim_all(
    session: Session,
    stage: Stage,
    willing: Collection[str],
    reachable: Collection[str],
    rules: Rules,
    most: int = BATCH,
) -> list[str]:
    """Bind waiting jobs of `stage` to instances with free slots; the run ids, at most `most`.

    `willing` are the instances that may be bound, `reachable` those that an input can be pulled
    from now.
    """
    if session.get_bind().dialect.name == "postgresql":
        session.execute(select(func.pg_advisory_xact_lock(_CLAIM_LOCK)))
    lanes = Lanes(session, rules.encoded_ahead) if stage is Stage.ENCODE else None
    if lanes is not None and lanes.full:
        return []
    free = free_candidates(session, stage, willing)
    if not free:
        return []
    board = Board([*free, *faster_candidates(session, stage, willing, free)], stage)
    claim = _Claim(session, stage, board, reachable, rules, most)
    if lanes is not None:
        claim.give_turns(lanes)
    else:
        claim.keep_turns()
    return claim.bind()


def claim(
    session: Session,
    stage: Stage,
    willing: Collection[str],
    reachable: Collection[str],
    encoded_ahead: int,
) -> str | None:
    """Bind the next job of `stage`, without limits; its run id, None if there is none to bind."""
    rules = Rules(encoded_ahead)
    return next(iter(claim_all(session, stage, willing, reachable, rules, 1)), None)


class _Claim:
    """One transaction's claims for one stage."""

    def __init__(
        self,
        session: Session,
        stage: Stage,
        board: Board,
        reachable: Collection[str],
        rules: Rules,
        most: int,
    ) -> None:
        self._session = session
        self._stage = stage
        self._board = board
        self._reachable = reachable
        self._rules = rules
        self._most = most
        self._reserved = 0
        self._begun: Counter[str] = Counter()
        self._choices: list[Choice] = []
        # Of the jobs that are given their turn now, by job.
        self._turns: dict[str, Turn] = {}

    @cached_property
    def _unit_s(self) -> float:
        return sampler_unit_s(self._session)

    @property
    def _open(self) -> bool:
        return len(self._choices) < self._most and self._board.free

    def give_turns(self, lanes: Lanes) -> None:
        """Choose jobs of the owners whose turn it is."""
        owners = Owners(self._session, self._rules.limits)
        # One more than is needed: who is next is known before the last one is placed.
        at_once = min(self._most, self._board.count_free()) + 1
        entrants = owners.held(in_turn(self._session), at_once)
        turns, looked, passed = Turns(entrants), 0, set[str]()
        while self._open and looked < _PAGE * _PAGES and not lanes.full:
            looked += 1
            entrant = turns.take()
            if entrant is None:
                return
            if not owners.may_begin(entrant.owner_id):
                leave(self._session, entrant.owner_id)
                continue
            job = owners.next_job(entrant.owner_id, lanes.admitted(), passed)
            if job is None:
                chosen = [choice.job.job_id for choice in self._choices]
                if not is_next(self._session, entrant.owner_id, chosen):
                    leave(self._session, entrant.owner_id)
                continue
            passed.add(job.job_id)
            after = entrant.after(work(Stage.SAMPLE, job) * self._unit_s)
            if self._place(job, entrant):
                lanes.add(job)
                owners.begin(entrant.owner_id)
            turns.put(after)

    def keep_turns(self) -> None:
        """Choose jobs that wait, in the order of their turns."""
        left: list[JobRow] = []
        for job, running, limit in self._in_order():
            if not self._open:
                return
            if self._stage is Stage.SAMPLE and 0 <= limit <= running + self._begun[job.owner_id]:
                continue
            # One that is left for a better instance counts too: it will be there soon.
            self._begun[job.owner_id] += 1
            if not self._place(job):
                left.append(job)
        if self._stage is Stage.SAMPLE and left and self._open:
            self._make_room(left)

    def _make_room(self, left: list[JobRow]) -> None:
        """Jobs were left for better instances, and those behind them will want the same ones.

        The jobs that are not encoded yet are placed as if they were: where one of them would take
        a free instance, the last one that was left takes it now instead of keeping it idle.
        """
        behind = select(JobRow).where(
            col(JobRow.stage) == Stage.ENCODE, col(JobRow.pool) == "", col(JobRow.sampler_id) == ""
        )
        for job in self._session.exec(behind.limit(_RESERVED)):
            if not left or not self._open:
                return
            may = self._may(left[-1], hurry=False)
            candidate = self._board.assign(work(self._stage, job), may)
            if candidate is not None:
                self._choose(left.pop(), candidate)

    def _in_order(self) -> Iterator[tuple[JobRow, int, int]]:
        """(job, samplers its owner holds, how many it may hold), page by page.

        Without those whose input cannot be pulled now.
        """
        seen: list[str] = []
        for _ in range(_PAGES):
            # Mostly the first few are bound, and the others need not be held.
            size = _PAGE if seen else min(_PAGE, 4 * self._most, 4 * self._board.count_free())
            rows = in_order(self._session, self._stage, self._rules.limits, seen, size)
            jobs = [row[0] for row in rows]
            readable = readable_inputs(self._session, jobs, self._stage, self._reachable)
            for index in by_priority([(job.owner_id, job.priority) for job in jobs]):
                if jobs[index].job_id in readable:
                    yield rows[index]
            seen += [job.job_id for job in jobs]
            if len(rows) < size or not self._open:
                return

    def _place(self, job: JobRow, entrant: Entrant | None = None) -> bool:
        """Choose an instance for the job if one is free and none is better.

        A job that needs a sampler is charged to its owner, the `entrant`, once.
        """
        hurry = self._reserved >= _RESERVED
        candidate = self._board.assign(work(self._stage, job), self._may(job, hurry))
        if candidate is None:
            self._reserved += 1
            return False
        self._choose(job, candidate, entrant)
        return True

    def _choose(self, job: JobRow, candidate: Candidate, entrant: Entrant | None = None) -> None:
        if self._stage is not Stage.DECODE and not job.charged_s:
            entrant = entrant or entrant_of(self._session, job.owner_id)
            seconds = work(Stage.SAMPLE, job) * self._unit_s
            self._turns[job.job_id] = Turn(job, entrant.virtual_time_s, seconds)
        expected_s = work(self._stage, job) * self._board.unit_s(candidate)
        self._choices.append(Choice(job, candidate.instance_id, expected_s))

    def bind(self) -> list[str]:
        """Write what was chosen; the run ids.

        A job whose instance has gone since it was looked at waits on: it is looked at again.
        """
        if not self._choices:
            return []
        ready = lock_ready(self._session, {choice.instance_id for choice in self._choices})
        choices = [choice for choice in self._choices if choice.instance_id in ready]
        turns = [self._turns.get(choice.job.job_id) for choice in choices]
        charge(self._session, [turn for turn in turns if turn is not None])
        rules = self._rules
        return bind_all(
            self._session, self._stage, choices, ready, rules.replica_id, sent=rules.sends
        )

    def _may(self, job: JobRow, hurry: bool) -> Callable[[Candidate], bool]:
        def may(candidate: Candidate) -> bool:
            now = not hurry or 0.0 in candidate.slots_free_in_s
            return now and may_take(candidate, self._stage, job)

        return may
