"""Owners that are given turns: held until the transaction ends, with what each may begin."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from sqlalchemy import bindparam, func, or_
from sqlalchemy import select as select_columns
from sqlalchemy.orm import aliased
from sqlmodel import Session, col, select

from services.registry.fairness import Entrant
from services.registry.lifecycle import Stage
from services.registry.limits import Limits, own_or
from services.registry.records.waiting import ENCODABLE
from services.registry.schema import JobRow, OwnerRow, table_of

# Built once: building one takes longer than SQLite does.
_JOBS, _OWNERS = table_of(JobRow), table_of(OwnerRow)
_NAMED = _OWNERS.c.owner_id.in_(bindparam("owner_ids", expanding=True))
_HOLD = (
    select_columns(_OWNERS.c.owner_id, _OWNERS.c.max_running)
    .where(_NAMED)
    .with_for_update(key_share=True)
)
_BEGUN = select_columns(
    _OWNERS.c.owner_id,
    select_columns(func.count())
    .where(
        _JOBS.c.owner_id == _OWNERS.c.owner_id,
        or_(
            (_JOBS.c.stage == Stage.ENCODE) & _JOBS.c.waiting.is_(False),
            _JOBS.c.stage == Stage.SAMPLE,
        ),
    )
    .correlate(_OWNERS)
    .scalar_subquery(),
).where(_NAMED)


def _ordered(jobs: Any) -> tuple[Any, ...]:
    """An owner's own jobs: the most wanted first, then first come first served."""
    return jobs.priority.desc(), jobs.create_time, jobs.job_id


_NEXT_JOB = (
    select(JobRow)
    .where(*ENCODABLE)
    .order_by(*_ordered(JobRow))
    .limit(1)
    .with_for_update(skip_locked=True)
)


def _first_jobs() -> Any:
    first: Any = aliased(JobRow)
    of_owner = (
        select_columns(first.job_id)
        .where(
            first.owner_id == _OWNERS.c.owner_id,
            first.stage == Stage.ENCODE,
            first.waiting.is_(True),
        )
        .order_by(*_ordered(first))
        .limit(1)
        .correlate(_OWNERS)
        .scalar_subquery()
    )
    return select_columns(of_owner).where(_NAMED)


_FIRST_JOBS = _first_jobs()
_LOCK_JOBS = (
    select(JobRow)
    .where(col(JobRow.job_id).in_(bindparam("job_ids", expanding=True)))
    .with_for_update(skip_locked=True)
)


class Owners:
    """Those that were taken, and what each has begun: many are asked about at once."""

    def __init__(self, session: Session, limits: Limits) -> None:
        self._session = session
        self._limits = limits
        self._begun: Counter[str] = Counter()
        self._limit: dict[str, int] = {}
        # Each owner's first job, not looked at yet.
        self._first: dict[str, JobRow] = {}

    def held(self, entrants: Iterable[Entrant], at_once: int) -> Iterator[Entrant]:
        """The same entrants; so many at once are held, and their first jobs with them."""
        entrants = iter(entrants)
        while chunk := list(islice(entrants, at_once)):
            self._hold([entrant.owner_id for entrant in chunk])
            yield from chunk

    def may_begin(self, owner_id: str) -> bool:
        """Whether the owner may have one more job encoded: one ahead of those it may run."""
        limit = self._limit[owner_id]
        return limit < 0 or self._begun[owner_id] < limit + 1

    def begin(self, owner_id: str) -> None:
        """One more of its jobs is encoded."""
        self._begun[owner_id] += 1

    def next_job(
        self, owner_id: str, admitted: Sequence[Any], passed: Collection[str]
    ) -> JobRow | None:
        """The owner's first job that waits to be encoded, locked, among those `admitted`.

        Without those `passed`.
        """
        first = self._first.pop(owner_id, None)
        if first is not None and not admitted:
            return first
        query = _NEXT_JOB.where(*admitted) if admitted else _NEXT_JOB
        values = {"owner_id": owner_id, "passed": list(passed)}
        return self._session.exec(query, params=values).first()

    def _hold(self, owner_ids: Sequence[str]) -> None:
        # Only claims hold several owners and wait for one more, and they take turns.
        connection, values = self._session.connection(), {"owner_ids": list(owner_ids)}
        for owner_id, own in connection.execute(_HOLD, values):
            self._limit[owner_id] = own_or(own, self._limits.max_running)
        limited = [owner_id for owner_id in owner_ids if self._limit[owner_id] >= 0]
        if limited:
            for owner_id, begun in connection.execute(_BEGUN, {"owner_ids": limited}):
                self._begun[owner_id] = begun
        firsts = [job_id for (job_id,) in connection.execute(_FIRST_JOBS, values) if job_id]
        for job in self._session.exec(_LOCK_JOBS, params={"job_ids": firsts}):
            # Still, now that it is locked.
            if job.stage is Stage.ENCODE and job.waiting:
                self._first[job.owner_id] = job
