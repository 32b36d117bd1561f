"""The owners' turns in the database: who is in turn, and where an owner joins and leaves them."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from sqlalchemy import ColumnElement, bindparam, func, update
from sqlalchemy import select as select_columns
from sqlmodel import Session, col, select

from services.registry.columns import moments
from services.registry.fairness import Entrant, start_time
from services.registry.lifecycle import JobState, Stage
from services.registry.schema import JobRow, OwnerRow, table_of

# Stages of jobs that are not yet sampled.
UNSAMPLED = (Stage.ENCODE, Stage.SAMPLE)
# More than a claim asks for at once.
_PAGE = 40


def _queued(owner_id: Any) -> list[Any]:
    """What says that a job of the owner waits for its turn, along ix_job_turn."""
    return [
        col(JobRow.owner_id) == owner_id,
        col(JobRow.stage).in_(UNSAMPLED),
        col(JobRow.waiting).is_(True),
        col(JobRow.state) == JobState.QUEUED,
    ]


def encodable(owner_id: Any) -> ColumnElement[bool]:
    """Whether a job of the owner waits to be encoded."""
    query = select(JobRow.job_id).where(
        col(JobRow.owner_id) == owner_id,
        col(JobRow.stage) == Stage.ENCODE,
        col(JobRow.waiting).is_(True),
    )
    return query.exists()


# Statements that every job needs are built once: building one takes longer than SQLite does.
_OWNED: Any = bindparam("owner_id")
_JOINING = select_columns(
    col(OwnerRow.owner_id),
    col(OwnerRow.virtual_time_s),
    select(JobRow.job_id).where(*_queued(col(OwnerRow.owner_id))).correlate(OwnerRow).exists(),
).where(col(OwnerRow.owner_id).in_(bindparam("owner_ids", expanding=True)))
_LEAST_TIME = (
    select(OwnerRow.virtual_time_s)
    .where(
        col(OwnerRow.in_turn).is_(True),
        select(JobRow.job_id).where(*_queued(col(OwnerRow.owner_id))).exists(),
    )
    .order_by(col(OwnerRow.virtual_time_s))
    .limit(1)
)
_MOST_TIME = select(func.max(OwnerRow.virtual_time_s))
# What makes an entrant of an owner.
ENTRANT = (
    col(OwnerRow.virtual_time_s),
    col(OwnerRow.turn_time),
    col(OwnerRow.owner_id),
    col(OwnerRow.weight),
)
_ENTRANT = select(*ENTRANT).where(col(OwnerRow.owner_id) == _OWNED)
_OWNERS = table_of(OwnerRow)
_JOIN = (
    update(_OWNERS)
    .where(_OWNERS.c.owner_id == bindparam("numbered"))
    .values(virtual_time_s=bindparam("begins_s"), turn_time=bindparam("now"), in_turn=True)
)
_LEAVE = update(_OWNERS).where(_OWNERS.c.owner_id == bindparam("numbered")).values(in_turn=False)
_IN_TURN: Any = (
    select_columns(*ENTRANT)
    .where(col(OwnerRow.in_turn).is_(True), encodable(col(OwnerRow.owner_id)))
    .order_by(*ENTRANT[:3])
    .limit(bindparam("size"))
)
_IN_TURN_FROM = _IN_TURN.where(col(OwnerRow.virtual_time_s) >= bindparam("last"))


def join(session: Session, owner_ids: Collection[str]) -> Mapping[str, float]:
    """The owners, locked, are each about to have more jobs: their virtual times.

    One whose first that waits it is begins at the least of those in turn, those before it included.
    """
    connection, times, waiting = session.connection(), {}, set()
    for owner_id, time_s, waits in connection.execute(_JOINING, {"owner_ids": list(owner_ids)}):
        times[owner_id] = float(time_s)
        if waits:
            waiting.add(owner_id)
    begun = [owner_id for owner_id in owner_ids if owner_id not in waiting]
    if not begun:
        return times
    least: float | None = connection.execute(_LEAST_TIME).scalar()
    most = 0.0 if least is not None else connection.execute(_MOST_TIME).scalar() or 0.0
    rows = []
    for owner_id, now in zip(begun, moments(len(begun)), strict=True):
        times[owner_id] = start_time(times[owner_id], least, most)
        least = times[owner_id] if least is None else min(least, times[owner_id])
        rows.append({"numbered": owner_id, "begins_s": times[owner_id], "now": now})
    connection.execute(_JOIN, rows)
    return times


def in_turn(session: Session) -> Iterator[Entrant]:
    """Owners that may have a job for a turn, in their order; read as far as it is asked for."""
    seen: set[str] = set()
    last: float | None = None
    while True:
        # Those of the last time come again: more rows than were seen of it bring new ones.
        size = _PAGE + len(seen)
        if last is None:
            rows = session.execute(_IN_TURN, {"size": size}).all()
        else:
            rows = session.execute(_IN_TURN_FROM, {"size": size, "last": last}).all()
        fresh = [row for row in rows if row[2] not in seen]
        for time_s, since, owner_id, weight in fresh:
            seen.add(owner_id)
            yield Entrant(time_s, since, owner_id, weight)
        if len(rows) < size:
            return
        last = rows[-1][0]


def entrant_of(session: Session, owner_id: str) -> Entrant:
    """The owner as it is now."""
    return Entrant(*session.exec(_ENTRANT, params={"owner_id": owner_id}).one())


def leave(session: Session, owner_id: str) -> None:
    """The owner, locked, has nothing for a turn until something of it changes."""
    session.execute(_LEAVE, {"numbered": owner_id})
