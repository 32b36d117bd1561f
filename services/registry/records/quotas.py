"""What an owner may have, and how much may wait: checked in the transaction that makes the job.

Counted from the job rows, so no crash can leak a unit. An owner may have `max_running` jobs that
hold a sampler, and besides them `max_waiting` that have not been sampled yet: together that many
jobs from their creation until their latents are there, whether queued, being encoded or encoded.
So nothing that is done ahead makes room, and it makes no difference how fast the first one begins.
One encoded job more than an owner may run is prepared, so its sampler is never idle in between. Of
the pool the same is true, with the slots of its samplers instead of `max_running`; an owner whose
`max_waiting` is none is not held by it either, though its jobs count for the others.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

from sqlalchemy import ColumnElement, bindparam, func
from sqlalchemy import select as select_columns
from sqlmodel import Session

from services.common.rpc.errors import MeshError, Reason
from services.registry.lifecycle import JobState, Stage
from services.registry.limits import Limits, own_or
from services.registry.placement import work_of
from services.registry.records.charges import measured_unit_s
from services.registry.records.rooms import ANY, Room, Wanted, count_rooms
from services.registry.records.turns import UNSAMPLED
from services.registry.schema import JobRow, OwnerRow, table_of

_LEAST_RETRY_S, _MOST_RETRY_S = 1.0, 3600.0


# Built once: building one takes longer than SQLite does.
_JOBS, _OWNERS = table_of(JobRow), table_of(OwnerRow)


def _own(*conditions: ColumnElement[bool]) -> Any:
    """How many jobs of an owner there are of a kind."""
    query = select_columns(func.count()).where(_JOBS.c.owner_id == _OWNERS.c.owner_id, *conditions)
    return query.correlate(_OWNERS).scalar_subquery()


def _of_owners(count: Any) -> Any:
    return select_columns(_OWNERS.c.owner_id, count).where(
        _OWNERS.c.owner_id.in_(bindparam("owner_ids", expanding=True))
    )


_OWN_WAITING = _of_owners(_own(_JOBS.c.waiting.is_(True), _JOBS.c.state == JobState.QUEUED))
_OWN_UNSAMPLED = _of_owners(
    _own(_JOBS.c.stage.in_(UNSAMPLED))
    # A resumed job that only has to be decoded waits too, until it begins.
    + _own(_JOBS.c.stage == Stage.DECODE, _JOBS.c.state == JobState.QUEUED)
)


class Holder(Protocol):
    """An owner's own limits."""

    @property
    def owner_id(self) -> str:
        """Its id."""

    @property
    def max_running(self) -> int | None:
        """Jobs that may hold a sampler."""

    @property
    def max_waiting(self) -> int | None:
        """Jobs besides them."""


def check_quota(session: Session, owner: Holder, wanted: Wanted, limits: Limits) -> None:
    """Refuse one more job of the owner, locked: QUOTA_EXCEEDED, or QUEUE_FULL for everybody."""
    Quotas(session, limits, [owner], [wanted]).admit(owner, wanted)


class Quotas:
    """What one transaction may admit: counted once, and whatever it admits counts from then on.

    The owners are locked, and `wanted` is all that may be asked of it.
    """

    def __init__(
        self,
        session: Session,
        limits: Limits,
        owners: Collection[Holder],
        wanted: Sequence[Wanted],
    ) -> None:
        self._session = session
        self._limits = limits
        limited = [one for one in owners if self._waiting(one) >= 0]
        self._have = self._count_own(limited)
        self._rooms: Mapping[tuple[str, str], Room] = {}
        if limited and limits.waiting_per_sampler >= 0:
            self._rooms = count_rooms(session, limits, wanted)

    def admit(self, owner: Holder, wanted: Wanted) -> None:
        """Count one more job of the owner, or refuse it: QUOTA_EXCEEDED or QUEUE_FULL."""
        if self._waiting(owner) >= 0:
            self._check_owner(owner, wanted)
            for pool, sampler_id in dict.fromkeys([ANY, (wanted.pool, wanted.sampler_id)]):
                self._check_pool(pool, sampler_id, wanted)
            self._have[owner.owner_id] += 1
        for room in self._rooms.values():
            room.have += room.counts(wanted)

    def _waiting(self, owner: Holder) -> int:
        return own_or(owner.max_waiting, self._limits.max_waiting)

    def _running(self, owner: Holder) -> int:
        return own_or(owner.max_running, self._limits.max_running)

    def _count_own(self, owners: Collection[Holder]) -> dict[str, int]:
        kinds: dict[bool, list[str]] = {}
        for owner in owners:
            kinds.setdefault(self._running(owner) < 0, []).append(owner.owner_id)
        have: dict[str, int] = {}
        for unlimited, owner_ids in kinds.items():
            query = _OWN_WAITING if unlimited else _OWN_UNSAMPLED
            rows = self._session.connection().execute(query, {"owner_ids": owner_ids})
            have.update((owner_id, count) for owner_id, count in rows)
        return have

    def _check_owner(self, owner: Holder, wanted: Wanted) -> None:
        waiting, running = self._waiting(owner), self._running(owner)
        allowed = waiting if running < 0 else waiting + running
        have = self._have[owner.owner_id]
        if have < allowed:
            return
        words = "no limit" if running < 0 else str(running)
        raise MeshError(
            Reason.QUOTA_EXCEEDED,
            f"you have {have} jobs that are not sampled yet; admitted are {words} running and "
            f"{waiting} waiting",
            retry_after_s=self._bounded(self._job_s(wanted)),
            info={"subject": f"owner:{owner.owner_id}", "limit": str(allowed)},
        )

    def _check_pool(self, pool: str, sampler_id: str, wanted: Wanted) -> None:
        room = self._rooms.get((pool, sampler_id))
        if room is None or not room.full:
            return
        waiting = room.have - room.slots
        job_s = self._job_s(wanted)
        retry_s = None if job_s is None else waiting * job_s / max(1, room.slots)
        name = f"sampler {sampler_id}" if sampler_id else f"pool {pool}" if pool else "mesh"
        raise MeshError(
            Reason.QUEUE_FULL,
            f"{waiting} jobs wait for the samplers of the {name}; at most {room.allowed} may",
            retry_after_s=self._bounded(retry_s),
            info={"subject": f"pool:{pool or '*'}", "limit": str(room.allowed)},
        )

    @cached_property
    def _unit_s(self) -> float | None:
        return measured_unit_s(self._session)

    def _job_s(self, wanted: Wanted) -> float | None:
        """How long such a job takes a sampler, as measured; None if nothing was."""
        if self._unit_s is None:
            return None
        return self._unit_s * work_of(
            Stage.SAMPLE, wanted.height, wanted.width, wanted.frames, wanted.evaluations, 0
        )

    def _bounded(self, seconds: float | None) -> float:
        if seconds is None:
            return self._limits.retry_s
        return min(_MOST_RETRY_S, max(_LEAST_RETRY_S, seconds))
