"""What waits: the next jobs of a stage and of an owner, each with what decides on it."""

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, bindparam, func, or_, union_all
from sqlalchemy import select as select_columns
from sqlalchemy.orm import aliased
from sqlmodel import Session, col, select

from services.registry.lifecycle import Stage
from services.registry.limits import Limits
from services.registry.schema import JobRow, OwnerRow, table_of

# Built once: building one takes longer than SQLite does.
_JOBS = table_of(JobRow)
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
ENCODABLE = (
    col(JobRow.owner_id) == bindparam("owner_id"),
    col(JobRow.stage) == Stage.ENCODE,
    col(JobRow.waiting).is_(True),
    col(JobRow.job_id).not_in(bindparam("passed", expanding=True)),
)
_ANY_NEXT = select(JobRow.job_id).where(*ENCODABLE).limit(1)


def _max_running(limits: Limits) -> ColumnElement[int]:
    """An owner's limit, in SQL."""
    return func.coalesce(col(OwnerRow.max_running), limits.max_running)


def _running_of(owner_id: Any) -> ColumnElement[int]:
    """How many jobs of an owner hold a sampler, in SQL."""
    other = aliased(JobRow)
    query = select(func.count()).where(
        col(other.owner_id) == owner_id,
        col(other.stage) == Stage.SAMPLE,
        col(other.waiting).is_(False),
    )
    return query.correlate(JobRow).scalar_subquery()


@lru_cache(maxsize=16)
def _ordered(stage: Stage, limits: Limits) -> Any:
    """(job, samplers its owner holds, how many it may hold) of the jobs that wait, by turn."""
    running = _running_of(col(JobRow.owner_id))
    limit = _max_running(limits)
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


def waiting_stages(session: Session) -> set[Stage]:
    """The stages that a job waits for now: nobody else's turn is taken to find nothing."""
    return {Stage(stage) for stage in session.execute(_WAITING_STAGES).scalars()}


def in_order(
    session: Session, stage: Stage, limits: Limits, seen: Collection[str], size: int
) -> Sequence[tuple[JobRow, int, int]]:
    """(job, samplers its owner holds, how many it may hold) by turn, locked, but those `seen`."""
    query = _ordered(stage, limits)
    rows = session.execute(query, {"seen": list(seen), "size": size})
    return [(job, running, limit) for job, running, limit in rows]


def is_next(session: Session, owner_id: str, passed: Collection[str]) -> bool:
    """Whether a job of the owner waits to be encoded, besides those `passed`."""
    values = {"owner_id": owner_id, "passed": list(passed)}
    return session.exec(_ANY_NEXT, params=values).first() is not None
