"""How many jobs may wait for the samplers that they asked for: any, those of a pool, or one."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from sqlalchemy import ColumnElement, bindparam, func
from sqlalchemy import select as select_columns
from sqlmodel import Session, select

from services.registry.lifecycle import InstanceState, Stage
from services.registry.limits import Limits
from services.registry.records.turns import UNSAMPLED
from services.registry.schema import InstanceRow, JobRow, table_of

# Jobs that one transaction admits: others want to write too.
BATCH = 64
# The pool of all samplers.
ANY = ("", "")
# Fewest jobs of a pool that may wait, however few samplers it has.
_LEAST_WAITING = 2
# Jobs that others may be making just now.
_NEAR = 4 * BATCH
# Any number of ours.
_QUEUE_LOCK = 73356376

# Built once: building one takes longer than SQLite does.
_JOBS, _INSTANCES = table_of(JobRow), table_of(InstanceRow)


class Wanted(Protocol):
    """What one more job would be: a request, or a job that is resumed."""

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


@dataclass
class Room:
    """What waits for the samplers of a pool, or for one: jobs that are not sampled yet."""

    pool: str
    sampler_id: str
    have: int
    slots: int
    # Besides as many as there are slots.
    allowed: int

    @property
    def full(self) -> bool:
        """Whether there is none for one more."""
        return self.have >= self.slots + self.allowed

    def counts(self, wanted: Wanted) -> bool:
        """Whether such a job waits for these samplers."""
        if self.sampler_id:
            return self.sampler_id == wanted.sampler_id
        return self.pool in ("", wanted.pool)


def count_rooms(
    session: Session, limits: Limits, wanted: Sequence[Wanted]
) -> Mapping[tuple[str, str], Room]:
    """Rooms by (pool, sampler) of all that these jobs asked for, and of the mesh."""
    rooms = _count(session, limits, wanted)
    near = any(room.have + len(wanted) + _NEAR > room.slots + room.allowed for room in rooms)
    if near and session.get_bind().dialect.name == "postgresql":
        # Owners do not hold each other up; here only one may have the last place.
        session.execute(select(func.pg_advisory_xact_lock(_QUEUE_LOCK)))
        rooms = _count(session, limits, wanted)
    return {(room.pool, room.sampler_id): room for room in rooms}


def _count(session: Session, limits: Limits, wanted: Sequence[Wanted]) -> list[Room]:
    rooms = []
    for pool, sampler_id in {ANY} | {(one.pool, one.sampler_id) for one in wanted}:
        query = _pool_counts(bool(pool), bool(sampler_id))
        values = {"pool": pool} if pool and not sampler_id else {}
        values |= {"sampler_id": sampler_id} if sampler_id else {}
        samplers, slots, have = session.connection().execute(query, values).one()
        waiting = math.floor(limits.waiting_per_sampler * samplers)
        rooms.append(Room(pool, sampler_id, have, slots, max(_LEAST_WAITING, waiting)))
    return rooms


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
