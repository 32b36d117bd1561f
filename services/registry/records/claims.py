"""Claims: the next jobs of a stage are bound to free instances, in one transaction.

ENCODE is where a job is given its turn: owners in the order of fairness.py, an owner's own jobs
by priority, then first come first served, and never so many ahead of the samplers that the order
were decided too early. SAMPLE and DECODE keep the order of the turns. What is looked at is bounded
by free slots, owners and instances, never by how many jobs wait. First everything is chosen, then
all that was chosen is written, with one statement for all of a kind.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from sqlalchemy import bindparam, func, or_, union_all
from sqlalchemy import select as select_columns
from sqlmodel import Session, col, select

from services.registry.fairness import Entrant, Turns, by_priority
from services.registry.lifecycle import Stage
from services.registry.limits import Limits, own_or
from services.registry.placement import Board, Candidate
from services.registry.records.bindings import Choice, bind_all
from services.registry.records.lanes import Lanes
from services.registry.records.quotas import max_running, running_of
from services.registry.records.slots import (
    faster_candidates,
    free_candidates,
    lock_ready,
    may_take,
)
from services.registry.records.sources import readable_inputs
from services.registry.records.turns import (
    Turn,
    charge,
    entrant_of,
    in_turn,
    leave,
    sampler_unit_s,
    work,
)
from services.registry.schema import JobRow, OwnerRow, table_of

# Bindings of one transaction: others want to write too.
BATCH = 16
# Jobs and owners looked at for one transaction; the next round looks again.
_PAGE, _PAGES = 32, 8
# So many jobs left for a better instance keep that one busy: whoever is next need not wait.
_RESERVED = 32
# Any number of ours: with it registries on one database claim one after the other.
_CLAIM_LOCK = 73356375


# Built once: building one takes longer than SQLite does.
_JOBS, _OWNERS = table_of(JobRow), table_of(OwnerRow)
_FIRST_WAITING = {
    stage: select_columns(_JOBS.c.stage)
    .where(_JOBS.c.waiting.is_(True), _JOBS.c.stage == stage)
    # Along the index, however few there are.
    .order_by(_JOBS.c.turn_s, _JOBS.c.create_time, _JOBS.c.job_id)
    .limit(1)
    for stage in Stage
}
_WAITING_STAGES = union_all(
    *(select_columns(first.subquery().c.stage) for first in _FIRST_WAITING.values())
)
_ENCODABLE = (
    col(JobRow.owner_id) == bindparam("owner_id"),
    col(JobRow.stage) == Stage.ENCODE,
    col(JobRow.waiting).is_(True),
    col(JobRow.job_id).not_in(bindparam("passed", expanding=True)),
)
_WAITS = select(JobRow.job_id).where(*_ENCODABLE).limit(1)
_NEXT_JOB = (
    select(JobRow)
    .where(*_ENCODABLE)
    .order_by(col(JobRow.priority).desc(), col(JobRow.create_time), col(JobRow.job_id))
    .limit(1)
    .with_for_update(skip_locked=True)
)
_HOLD = (
    select_columns(_OWNERS.c.max_running)
    .where(_OWNERS.c.owner_id == bindparam("owner_id"))
    .with_for_update()
)
_BEGUN = select_columns(func.count()).where(
    _JOBS.c.owner_id == bindparam("owner_id"),
    or_(
        (_JOBS.c.stage == Stage.ENCODE) & _JOBS.c.waiting.is_(False),
        _JOBS.c.stage == Stage.SAMPLE,
    ),
)


@lru_cache(maxsize=16)
def _in_order(stage: Stage, limits: Limits) -> Any:
    """(job, samplers its owner holds, how many it may hold) of the jobs that wait, by turn."""
    running = running_of(col(JobRow.owner_id))
    limit = max_running(limits)
    query = (
        select(JobRow, running, limit)
        .join(OwnerRow, col(OwnerRow.owner_id) == col(JobRow.owner_id))
        .where(
            col(JobRow.waiting).is_(True),
            col(JobRow.stage) == stage,
            col(JobRow.job_id).not_in(bindparam("seen", expanding=True)),
        )
    )
    if stage is Stage.SAMPLE:
        query = query.where(or_(limit < 0, running < limit))
    order = (col(JobRow.turn_s), col(JobRow.create_time), col(JobRow.job_id))
    return (
        query.order_by(*order).limit(bindparam("size")).with_for_update(skip_locked=True, of=JobRow)
    )


@dataclass(frozen=True)
class Rules:
    """How claims choose. Limits are those of owners who have none of their own."""

    encoded_ahead: int = 2
    limits: Limits = field(default_factory=Limits)
    # Whoever claims follows what it bound.
    replica_id: str = ""


def waiting_stages(session: Session) -> set[Stage]:
    """The stages that a job waits for now: nobody else's turn is taken to find nothing."""
    return {Stage(stage) for stage in session.execute(_WAITING_STAGES).scalars()}


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
    if session.execute(_FIRST_WAITING[stage]).first() is None:
        return []
    if session.get_bind().dialect.name == "postgresql":
        session.execute(select(func.pg_advisory_xact_lock(_CLAIM_LOCK)))
    free = free_candidates(session, stage, willing)
    if not free:
        return []
    board = Board([*free, *faster_candidates(session, stage, willing, free)], stage)
    claim = _Claim(session, stage, board, reachable, rules, most)
    if stage is Stage.ENCODE:
        claim.give_turns()
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

    def give_turns(self) -> None:
        """Choose jobs of the owners whose turn it is."""
        lanes = Lanes(self._session, self._rules.encoded_ahead)
        turns, looked, passed = Turns(in_turn(self._session)), 0, set[str]()
        owners = _Owners(self._session, self._rules.limits)
        while self._open and looked < _PAGE * _PAGES and not lanes.full:
            looked += 1
            entrant = turns.take()
            if entrant is None:
                return
            if not owners.may_begin(entrant.owner_id):
                leave(self._session, entrant.owner_id)
                continue
            job = self._next_job(entrant.owner_id, lanes, passed)
            if job is None:
                if not self._waits(entrant.owner_id):
                    leave(self._session, entrant.owner_id)
                continue
            passed.add(job.job_id)
            after = entrant.after(work(Stage.SAMPLE, job) * self._unit_s)
            if self._place(job, entrant):
                lanes.add(job)
                owners.begin(entrant.owner_id)
            turns.put(after)

    def _waits(self, owner_id: str) -> bool:
        chosen = [choice.job.job_id for choice in self._choices]
        values = {"owner_id": owner_id, "passed": chosen}
        return self._session.exec(_WAITS, params=values).first() is not None

    def _next_job(self, owner_id: str, lanes: Lanes, passed: Collection[str]) -> JobRow | None:
        query = _NEXT_JOB
        if full := lanes.admitted():
            query = query.where(*full)
        values = {"owner_id": owner_id, "passed": list(passed)}
        return self._session.exec(query, params=values).first()

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
        query = _in_order(self._stage, self._rules.limits)
        seen: list[str] = []
        for _ in range(_PAGES):
            # Mostly the first few are bound, and the others need not be held.
            size = _PAGE if seen else min(_PAGE, 4 * self._most, 4 * self._board.count_free())
            rows = self._session.execute(query, {"seen": seen, "size": size}).all()
            jobs = [row[0] for row in rows]
            readable = readable_inputs(self._session, jobs, self._stage, self._reachable)
            for index in by_priority([(job.owner_id, job.priority) for job in jobs]):
                if jobs[index].job_id in readable:
                    yield tuple(rows[index])
            seen += [job.job_id for job in jobs]
            if len(rows) < size:
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
        return bind_all(self._session, self._stage, choices, ready, self._rules.replica_id)

    def _may(self, job: JobRow, hurry: bool) -> Callable[[Candidate], bool]:
        def may(candidate: Candidate) -> bool:
            now = not hurry or 0.0 in candidate.slots_free_in_s
            return now and may_take(candidate, self._stage, job)

        return may


class _Owners:
    """The owners that were taken, held until the transaction ends, and what each has begun."""

    def __init__(self, session: Session, limits: Limits) -> None:
        self._session = session
        self._limits = limits
        self._begun: Counter[str] = Counter()
        self._known: dict[str, int] = {}

    def may_begin(self, owner_id: str) -> bool:
        """Whether the owner may have one more job encoded: one ahead of those it may run."""
        if owner_id not in self._known:
            self._hold(owner_id)
        limit = self._known[owner_id]
        return limit < 0 or self._begun[owner_id] < limit + 1

    def begin(self, owner_id: str) -> None:
        """One more of its jobs is encoded."""
        self._begun[owner_id] += 1

    def _hold(self, owner_id: str) -> None:
        own = self._session.execute(_HOLD, {"owner_id": owner_id}).scalar_one()
        self._known[owner_id] = limit = own_or(own, self._limits.max_running)
        if limit >= 0:
            begun = self._session.execute(_BEGUN, {"owner_id": owner_id}).scalar_one()
            self._begun[owner_id] = begun
