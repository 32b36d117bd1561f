"""Registries on one database: who is there, and whose runs have nobody who follows them."""

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import delete, update
from sqlmodel import Session, col, select

from services.registry.columns import utc_now
from services.registry.database import touch
from services.registry.lifecycle import RUN_LIVE
from services.registry.schema import ReplicaRow, RunRow

# Whoever follows runs waits for this name.
ADOPTED = "adopted"


def beat(session: Session, replica_id: str) -> None:
    """This replica is alive; it is known from now on if it was not, or not any more."""
    row = session.get(ReplicaRow, replica_id, with_for_update=True)
    row = row or ReplicaRow(replica_id=replica_id)
    row.heartbeat_time = utc_now()
    session.add(row)


def leave(session: Session, replica_id: str) -> None:
    """This replica ends: what it followed may be adopted at once."""
    session.execute(delete(ReplicaRow).where(col(ReplicaRow.replica_id) == replica_id))
    touch(session, ADOPTED)


def forget_others(session: Session, replica_id: str) -> None:
    """Nobody else can be on this database."""
    session.execute(delete(ReplicaRow).where(col(ReplicaRow.replica_id) != replica_id))


def beats(session: Session) -> Mapping[str, datetime]:
    """When each replica said last that it is alive."""
    rows = session.exec(select(ReplicaRow.replica_id, ReplicaRow.heartbeat_time))
    return dict(rows.all())


def bury(session: Session, replica_id: str, beat_time: datetime) -> bool:
    """Forget a replica, unless it was heard again since `beat_time`; whether it was forgotten."""
    gone = session.execute(
        delete(ReplicaRow).where(
            col(ReplicaRow.replica_id) == replica_id, col(ReplicaRow.heartbeat_time) == beat_time
        )
    )
    return int(getattr(gone, "rowcount", 0)) == 1


def adopt(session: Session, replica_id: str) -> int:
    """Follow every live run whose replica is not there any more; how many those were."""
    there = select(ReplicaRow.replica_id)
    adopted = session.execute(
        update(RunRow)
        .where(col(RunRow.state).in_(RUN_LIVE), col(RunRow.replica_id).not_in(there))
        .values(replica_id=replica_id)
        .execution_options(synchronize_session=False)
    )
    count = int(getattr(adopted, "rowcount", 0))
    if count:
        touch(session, ADOPTED)
    return count


def count_orphans(session: Session) -> int:
    """Live runs whose replica is not there."""
    there = select(ReplicaRow.replica_id)
    query = select(RunRow.run_id).where(
        col(RunRow.state).in_(RUN_LIVE), col(RunRow.replica_id).not_in(there)
    )
    return len(session.exec(query).all())


def followers(session: Session) -> Mapping[str, str]:
    """All runs that hold a slot, oldest first, each with the replica that follows it."""
    query = select(RunRow.run_id, RunRow.replica_id).where(col(RunRow.state).in_(RUN_LIVE))
    return dict(session.exec(query.order_by(col(RunRow.bind_time))).all())
