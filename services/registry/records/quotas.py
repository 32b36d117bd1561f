"""What an owner may have, and how much may wait: checked in the transaction that makes the job.

Counted from the job rows, so no crash can leak a unit. An owner may have `max_running` jobs that
hold a sampler, and besides them `max_waiting` that have not been sampled yet: together that many
jobs from their creation until their latents are there, whether queued, being encoded or encoded.
So nothing that is done ahead makes room, and it makes no difference how fast the first one begins.
One encoded job more than an owner may run is prepared, so its sampler is never idle in between. Of
the pool the same is true, with the slots of its samplers instead of `max_running`; an owner whose
`max_waiting` is none is not held by it either, though its jobs count for the others.
"""

import math
from functools import cache
from typing import Any, Protocol

from sqlalchemy import ColumnElement, bindparam, func, or_
from sqlalchemy import select as select_columns
from sqlalchemy.orm import aliased
from sqlmodel import Session, col, select

from services.common.rpc.errors import MeshError, Reason
from services.registry.lifecycle import InstanceState, JobState, Stage
from services.registry.limits import Limits, own_or
from services.registry.placement import work_of
from services.registry.records.charges import measured_unit_s
from services.registry.records.turns import UNSAMPLED
from services.registry.schema import InstanceRow, JobRow, OwnerRow, table_of

# Fewest jobs of a pool that may wait, however few samplers it has.
_LEAST_WAITING = 2
# Jobs that others may be making just now.
_NEAR = 16
# Any number of ours.
_QUEUE_LOCK = 73356376
_LEAST_RETRY_S, _MOST_RETRY_S = 1.0, 3600.0


# Built once: building one takes longer than SQLite does.
_JOBS, _INSTANCES = table_of(JobRow), table_of(InstanceRow)
_OWN = _JOBS.c.owner_id == bindparam("owner_id")
_OWN_WAITING = select_columns(func.count()).where(
    _OWN, _JOBS.c.waiting.is_(True), _JOBS.c.state == JobState.QUEUED
)
_OWN_UNSAMPLED = select_columns(func.count()).where(
    _OWN,
    or_(
        _JOBS.c.stage.in_(UNSAMPLED),
        # A resumed job that only has to be decoded waits too, until it begins.
        (_JOBS.c.stage == Stage.DECODE) & (_JOBS.c.state == JobState.QUEUED),
    ),
)


class Wanted(Protocol):
    """What one more job would be: a wanted, or a job that is resumed."""

    @property
    def height(self) -> int:
        """Canvas height in pixels."""

    @property
    def width(self) -> int:
        """Canvas width in pixels."""

    @property
    def frames(self) -> int:
        """Length."""

    @property
    def evaluations(self) -> int:
        """Forwards of the transformer."""

    @property
    def pool(self) -> str:
        """Asked for; empty: any."""

    @property
    def sampler_id(self) -> str:
        """Asked for; empty: any."""


def max_running(limits: Limits) -> ColumnElement[int]:
    """An owner's limit, in SQL."""
    return func.coalesce(col(OwnerRow.max_running), limits.max_running)


def running_of(owner_id: Any) -> ColumnElement[int]:
    """How many jobs of an owner hold a sampler, in SQL."""
    other = aliased(JobRow)
    query = select(func.count()).where(
        col(other.owner_id) == owner_id,
        col(other.stage) == Stage.SAMPLE,
        col(other.waiting).is_(False),
    )
    return query.correlate(JobRow).scalar_subquery()


def check_quota(session: Session, owner: OwnerRow, wanted: Wanted, limits: Limits) -> None:
    """Refuse one more job of the owner, locked: QUOTA_EXCEEDED, or QUEUE_FULL for everybody."""
    waiting = own_or(owner.max_waiting, limits.max_waiting)
    if waiting < 0:
        return
    _check_owner(session, owner, waiting, limits, wanted)
    if limits.waiting_per_sampler >= 0:
        _check_pool(session, "", "", limits, wanted)
        if wanted.pool or wanted.sampler_id:
            _check_pool(session, wanted.pool, wanted.sampler_id, limits, wanted)


def _check_owner(
    session: Session, owner: OwnerRow, waiting: int, limits: Limits, wanted: Wanted
) -> None:
    running = own_or(owner.max_running, limits.max_running)
    allowed = waiting if running < 0 else waiting + running
    query = _OWN_WAITING if running < 0 else _OWN_UNSAMPLED
    have = session.execute(query, {"owner_id": owner.owner_id}).scalar_one()
    if have < allowed:
        return
    words = "no limit" if running < 0 else str(running)
    raise MeshError(
        Reason.QUOTA_EXCEEDED,
        f"you have {have} jobs that are not sampled yet; admitted are {words} running and "
        f"{waiting} waiting",
        retry_after_s=_bounded(_job_s(session, wanted), limits),
        info={"subject": f"owner:{owner.owner_id}", "limit": str(allowed)},
    )


def _check_pool(
    session: Session, pool: str, sampler_id: str, limits: Limits, wanted: Wanted
) -> None:
    query = _pool_counts(bool(pool), bool(sampler_id))
    values = {"pool": pool} if pool and not sampler_id else {}
    values |= {"sampler_id": sampler_id} if sampler_id else {}
    samplers, slots, have = session.execute(query, values).one()
    allowed = max(_LEAST_WAITING, math.floor(limits.waiting_per_sampler * samplers))
    if have + _NEAR >= slots + allowed and session.get_bind().dialect.name == "postgresql":
        # Owners do not hold each other up; here only one may have the last place.
        session.execute(select(func.pg_advisory_xact_lock(_QUEUE_LOCK)))
        have = session.execute(query, values).one()[2]
    if have < slots + allowed:
        return
    waiting = have - slots
    job_s = _job_s(session, wanted)
    retry_s = None if job_s is None else waiting * job_s / max(1, slots)
    name = f"sampler {sampler_id}" if sampler_id else f"pool {pool}" if pool else "mesh"
    raise MeshError(
        Reason.QUEUE_FULL,
        f"{waiting} jobs wait for the samplers of the {name}; at most {allowed} may",
        retry_after_s=_bounded(retry_s, limits),
        info={"subject": f"pool:{pool or '*'}", "limit": str(allowed)},
    )


@cache
def _pool_counts(pool: bool, sampler_id: bool) -> Any:
    """(samplers, their slots, jobs that are not sampled), of those that were asked for."""
    there: list[ColumnElement[bool]] = [
        _INSTANCES.c.stage == Stage.SAMPLE,
        _INSTANCES.c.state != InstanceState.GONE,
    ]
    waiting: list[ColumnElement[bool]] = [_JOBS.c.stage.in_(UNSAMPLED)]
    if sampler_id:
        there.append(_INSTANCES.c.instance_id == bindparam("sampler_id"))
        waiting.append(_JOBS.c.sampler_id == bindparam("sampler_id"))
    elif pool:
        there.append(_INSTANCES.c.pool == bindparam("pool"))
        waiting.append(_JOBS.c.pool == bindparam("pool"))
    jobs = select_columns(func.count()).select_from(_JOBS).where(*waiting).scalar_subquery()
    slots = func.coalesce(func.sum(_INSTANCES.c.slots), 0)
    return select_columns(func.count(), slots, jobs).where(*there)


def _job_s(session: Session, wanted: Wanted) -> float | None:
    """How long such a job takes a sampler, as measured; None if nothing was."""
    unit_s = measured_unit_s(session)
    if unit_s is None:
        return None
    return unit_s * work_of(
        Stage.SAMPLE,
        wanted.height,
        wanted.width,
        wanted.frames,
        wanted.evaluations,
        0,
    )


def _bounded(seconds: float | None, limits: Limits) -> float:
    if seconds is None:
        return limits.retry_s
    return min(_MOST_RETRY_S, max(_LEAST_RETRY_S, seconds))


def set_quota(session: Session, owner: OwnerRow, running: int, waiting: int, weight: float) -> None:
    """Set the owner's limits. INVALID_FIELD names the one that cannot be."""
    for name, value in (("max_running", running), ("max_waiting", waiting)):
        if value < -1 or value > 10**6:
            words = f"{name} is -1 for no limit, or 0 to 1000000"
            raise MeshError(Reason.INVALID_FIELD, words, field=f"quota.{name}")
    if not 0.01 <= weight <= 100:
        words = "weight is 0.01 to 100; 1 is usual"
        raise MeshError(Reason.INVALID_FIELD, words, field="quota.weight")
    owner.max_running, owner.max_waiting, owner.weight = running, waiting, weight
    owner.in_turn = True
    session.add(owner)
