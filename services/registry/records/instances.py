"""Instances: registration by boot and journal, heartbeats, and what an expired lease means."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlmodel import Session, col, select

from reelmesh.v1 import stage_pb2
from services.common.rpc.errors import MeshError, Reason
from services.registry.columns import utc_now
from services.registry.database import touch
from services.registry.lifecycle import (
    RUN_LIVE,
    InstanceEvent,
    InstanceState,
    RunEvent,
    Stage,
    advance_instance,
)
from services.registry.records.bindings import withdraw_unsent
from services.registry.records.events import INSTANCES, QUEUES
from services.registry.records.outputs import may_leave
from services.registry.records.reports import apply_event
from services.registry.schema import InstanceRow, RunRow

_LEASED = (InstanceState.READY, InstanceState.DRAINING)


def _find(session: Session, instance_id: str) -> InstanceRow | None:
    query = select(InstanceRow).where(col(InstanceRow.instance_id) == instance_id)
    return session.exec(query.with_for_update()).first() if "\0" not in instance_id else None


def register(session: Session, instance: stage_pb2.Instance, stage: Stage) -> int:
    """Take in one start of an instance's process; its generation.

    The same boot keeps its generation. A new boot takes over with the same journal, which only
    one process can hold; with another journal INSTANCE_HELD while the old lease lives.
    """
    row = _find(session, instance.instance_id)
    if row is None:
        row = InstanceRow(
            instance_id=instance.instance_id,
            stage=stage,
            endpoint=instance.endpoint,
            generation=1,
            boot_id=instance.boot_id,
            journal_id=instance.journal_id,
            capabilities=b"",
        )
    elif row.journal_id != instance.journal_id or row.stage is not stage:
        if row.state in _LEASED:
            raise MeshError(
                Reason.INSTANCE_HELD,
                "another process with another journal holds this instance id and its lease "
                "lives: stop it, or give this one its own name",
            )
        row.generation += 1
    elif row.boot_id != instance.boot_id or row.state is InstanceState.GONE:
        # One that was removed and is back begins anew, though its process did not.
        row.generation += 1
    if row.boot_id != instance.boot_id:
        row.drain_requested = False
    row.state = advance_instance(row.state, InstanceEvent.REGISTERED)
    if row.drain_requested:
        row.state = advance_instance(row.state, InstanceEvent.DRAIN_REQUESTED)
    row.stage = stage
    row.endpoint = instance.endpoint
    row.boot_id = instance.boot_id
    row.journal_id = instance.journal_id
    row.capabilities = instance.capabilities.SerializeToString()
    row.slots = max(1, instance.capabilities.slots)
    row.version = instance.version[:64]
    row.pool = instance.pool or "default"
    row.heartbeat_time = utc_now()
    session.add(row)
    touch(session, QUEUES, INSTANCES, row.instance_id)
    return row.generation


def renew(
    session: Session, instance_id: str, generation: int, boot_id: str, *, serving: bool
) -> tuple[bool, bool]:
    """Take in a heartbeat: whether the instance has to drain, and whether it may exit.

    STALE_GENERATION from an older start, INSTANCE_NOT_FOUND if unknown.
    """
    row = _find(session, instance_id)
    if row is None or row.state is InstanceState.GONE:
        raise MeshError(Reason.INSTANCE_NOT_FOUND, "the instance is not registered")
    if (row.generation, row.boot_id) != (generation, boot_id):
        raise MeshError(Reason.STALE_GENERATION, "a newer start of this instance has taken over")
    taking = serving and not row.drain_requested
    event = InstanceEvent.HEARD_SERVING if taking else InstanceEvent.HEARD_DRAINING
    before = row.state
    row.state = advance_instance(row.state, event)
    row.heartbeat_time = utc_now()
    session.add(row)
    if row.state is not before:
        touch(session, QUEUES, INSTANCES, instance_id)
    # Not before it has said that it takes nothing more.
    return row.drain_requested, row.drain_requested and not serving and may_leave(session, row)


def heard(session: Session) -> Mapping[str, datetime]:
    """When each instance that has a lease was heard last."""
    query = select(InstanceRow.instance_id, InstanceRow.heartbeat_time).where(
        col(InstanceRow.state).in_(_LEASED)
    )
    return dict(session.exec(query).all())


def suspect(session: Session, instance_id: str, heard_time: datetime | None = None) -> bool:
    """The lease expired: SUSPECT, and its live runs UNKNOWN. Whether that was news.

    Nothing happens if it was heard again since `heard_time`.

    Slots stay held and nothing is requeued; only a binding whose start was never sent is taken
    back, because it certainly does not run.
    """
    row = _find(session, instance_id)
    if row is None or row.state not in _LEASED or heard_time not in (None, row.heartbeat_time):
        return False
    row.state = advance_instance(row.state, InstanceEvent.LEASE_EXPIRED)
    session.add(row)
    query = select(RunRow.run_id).where(
        col(RunRow.instance_id) == instance_id, col(RunRow.state).in_(RUN_LIVE)
    )
    for run_id in session.exec(query).all():
        if not withdraw_unsent(session, run_id):
            apply_event(session, run_id, RunEvent.LEASE_EXPIRED)
    touch(session, QUEUES, INSTANCES, instance_id)
    return True


def held_runs(session: Session, instance_id: str) -> Sequence[str]:
    """The runs that hold the instance's slots, oldest first."""
    runs = select(RunRow.run_id).where(
        col(RunRow.instance_id) == instance_id, col(RunRow.state).in_(RUN_LIVE)
    )
    return session.exec(runs.order_by(col(RunRow.bind_time))).all()


def list_instances(session: Session) -> Sequence[tuple[InstanceRow, list[str]]]:
    """All instances by name, each with the runs that hold its slots."""
    held: dict[str, list[str]] = {}
    runs = select(RunRow.instance_id, RunRow.run_id).where(col(RunRow.state).in_(RUN_LIVE))
    for instance_id, run_id in session.exec(runs.order_by(col(RunRow.bind_time))):
        held.setdefault(instance_id, []).append(run_id)
    rows = session.exec(select(InstanceRow).order_by(col(InstanceRow.instance_id)))
    return [(row, held.get(row.instance_id, [])) for row in rows]


def present(session: Session) -> Sequence[InstanceRow]:
    """All instances that are not GONE, by name."""
    query = select(InstanceRow).where(col(InstanceRow.state) != InstanceState.GONE)
    return session.exec(query.order_by(col(InstanceRow.instance_id))).all()
