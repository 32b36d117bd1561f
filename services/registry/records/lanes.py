"""How far encoding may run ahead of the samplers: so many jobs for each slot, lane by lane.

A lane is what a job asked for: any sampler, those of a pool, or one. Jobs for samplers that are
away so never keep others from being encoded.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, func, or_, select, union_all
from sqlmodel import Session, col

from services.registry.lifecycle import InstanceState, Stage
from services.registry.schema import InstanceRow, JobRow, table_of

_ANY = ("", "")

# Built once: building one takes longer than SQLite does. Each part goes along its index.
_JOBS, _INSTANCES = table_of(JobRow), table_of(InstanceRow)
_SLOTS = (
    select(_INSTANCES.c.pool, func.sum(_INSTANCES.c.slots))
    .where(_INSTANCES.c.stage == Stage.SAMPLE, _INSTANCES.c.state != InstanceState.GONE)
    .group_by(_INSTANCES.c.pool)
)
_AHEAD = union_all(
    *(
        select(_JOBS.c.pool, _JOBS.c.sampler_id, func.count())
        .where(_JOBS.c.stage == stage, _JOBS.c.waiting.is_(waiting))
        .group_by(_JOBS.c.pool, _JOBS.c.sampler_id)
        for stage, waiting in ((Stage.SAMPLE, True), (Stage.ENCODE, False))
    )
)


def _first(named: ColumnElement[bool]) -> Any:
    waiting = select(_JOBS.c.job_id).where(
        _JOBS.c.stage == Stage.ENCODE, _JOBS.c.waiting.is_(True), named
    )
    return select(waiting.limit(1).subquery().c.job_id)


_NAMED = union_all(
    _first(_JOBS.c.pool > ""), _first((_JOBS.c.pool == "") & (_JOBS.c.sampler_id > ""))
)


class Lanes:
    """Counts of one transaction, from the rows."""

    def __init__(self, session: Session, encoded_ahead: int) -> None:
        self._encoded_ahead = encoded_ahead
        self._slots: dict[tuple[str, str], int] = {}
        self._ahead: dict[tuple[str, str], int] = {}
        self._read_slots(session)
        self._read_ahead(session)
        # Whether anything waits that asked for a pool or a sampler.
        self._named = session.execute(_NAMED).first() is not None

    def _read_slots(self, session: Session) -> None:
        for pool, slots in session.execute(_SLOTS):
            self._slots[(pool, "")] = slots
            self._slots[_ANY] = self._slots.get(_ANY, 0) + slots

    def _read_ahead(self, session: Session) -> None:
        for pool, sampler_id, count in session.execute(_AHEAD):
            lane = (pool, sampler_id)
            self._ahead[lane] = self._ahead.get(lane, 0) + count

    def _is_full(self, lane: tuple[str, str]) -> bool:
        pool, sampler_id = lane
        # One sampler has the slots that it has; that it has one is enough to go by.
        slots = 1 if sampler_id else self._slots.get((pool, ""), 0)
        return self._ahead.get(lane, 0) >= self._encoded_ahead * max(1, slots)

    @property
    def any_full(self) -> bool:
        """Whether a job that waits may have been left out."""
        return any(self._is_full(lane) for lane in self._ahead)

    @property
    def full(self) -> bool:
        """Whether nothing that waits may be encoded now."""
        return self._is_full(_ANY) and not self._named

    def add(self, job: JobRow) -> None:
        """The job is being encoded."""
        lane = (job.pool, job.sampler_id)
        self._ahead[lane] = self._ahead.get(lane, 0) + 1

    def admitted(self) -> Sequence[Any]:
        """What says that a job's lane has room."""
        full = [lane for lane in self._ahead if self._is_full(lane)]
        return [
            or_(col(JobRow.pool) != pool, col(JobRow.sampler_id) != sampler_id)
            for pool, sampler_id in full
        ]
