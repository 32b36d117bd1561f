"""What operators decide: verdicts on runs in doubt, removals, drains. Recorded with who and when.

A run that is ruled over without its instance is owed a burial: see records/burials.py.
"""

from enum import StrEnum

import structlog
from sqlmodel import Session, col, select

from services.common.ids import new_id
from services.common.rpc.errors import MeshError, Reason
from services.registry.database import touch
from services.registry.lifecycle import (
    RUN_LIVE,
    IllegalTransition,
    InstanceEvent,
    InstanceState,
    RunEvent,
    RunState,
    advance_instance,
)
from services.registry.records.bindings import withdraw_unsent
from services.registry.records.changes import change_run, lock_run, make_failure
from services.registry.records.events import INSTANCES, QUEUES
from services.registry.records.losses import find_losses, settle_loss
from services.registry.schema import InstanceRow, RulingRow, RunRow

log = structlog.get_logger()

_LONGEST = 500
_MANY = 10_000


class Verdict(StrEnum):
    """What an operator knows of a run in doubt."""

    NEVER_RAN = "NEVER_RAN"
    FAILED = "FAILED"
    KEEP_WAITING = "KEEP_WAITING"


_EVENTS = {Verdict.NEVER_RAN: RunEvent.RULED_NEVER_RAN, Verdict.FAILED: RunEvent.RULED_FAILED}


def check_note(note: str) -> None:
    """Refuse a note that cannot be kept."""
    if len(note) > _LONGEST or "\0" in note:
        words = f"a note has at most {_LONGEST} characters and no NUL"
        raise MeshError(Reason.INVALID_FIELD, words, field="note")


def resolve_run(
    session: Session, admin_id: str, run_id: str, verdict: Verdict, note: str
) -> RunRow:
    """Rule on a run that is UNKNOWN. RUN_NOT_FOUND, or RUN_NOT_IN_DOUBT for any other run.

    A run that its instance was heard to have cannot be said never to have run: INVALID_FIELD.
    """
    locked = lock_run(session, run_id) if "\0" not in run_id else None
    if locked is None:
        raise MeshError(Reason.RUN_NOT_FOUND, "there is no such run")
    run, job = locked
    if run.state is not RunState.UNKNOWN:
        words = f"the run is {run.state}: only an UNKNOWN one takes a verdict"
        raise MeshError(Reason.RUN_NOT_IN_DOUBT, words)
    if verdict is Verdict.NEVER_RAN and run.accepted:
        words = f"{run.instance_id} was heard to have the run: rule that it failed"
        raise MeshError(Reason.INVALID_FIELD, words, field="verdict")
    _record(session, admin_id, verdict, run_id, note)
    if verdict is Verdict.KEEP_WAITING:
        return run
    words = f"an operator ruled that the run on {run.instance_id} failed{_because(note)}"
    failure = make_failure(Reason.INTERRUPTED, words, run.stage)
    run.burial_owed = True
    change_run(session, run, job, _EVENTS[verdict], failure if verdict is Verdict.FAILED else None)
    return run


def remove_instance(session: Session, admin_id: str, instance_id: str, note: str) -> InstanceRow:
    """The instance's host is off: GONE, its runs LOST, what only it held lost to whoever waits.

    INSTANCE_NOT_FOUND, or INSTANCE_ALIVE while it takes runs or does one.
    """
    instance = _lock_instance(session, instance_id)
    live = select(RunRow.run_id).where(
        col(RunRow.instance_id) == instance_id, col(RunRow.state).in_(RUN_LIVE)
    )
    run_ids = session.exec(live.order_by(col(RunRow.job_id))).all()
    alive = instance.state is InstanceState.READY or (
        instance.state is InstanceState.DRAINING and run_ids
    )
    if alive:
        words = f"the instance is {instance.state} and its lease lives: stop it first"
        raise MeshError(Reason.INSTANCE_ALIVE, words)
    instance.state = advance_instance(instance.state, InstanceEvent.REMOVED)
    instance.drain_requested = False
    session.add(instance)
    _record(session, admin_id, "REMOVE", instance_id, note)
    for run_id in run_ids:
        if not withdraw_unsent(session, run_id):
            _lose(session, run_id, note)
    session.flush()
    for job_id in find_losses(session, _MANY):
        settle_loss(session, job_id)
    touch(session, QUEUES, INSTANCES, instance_id)
    return instance


def request_drain(session: Session, admin_id: str, instance_id: str) -> InstanceRow:
    """Bind nothing more to the instance; its heartbeats tell it. INSTANCE_NOT_FOUND."""
    instance = _lock_instance(session, instance_id)
    try:
        instance.state = advance_instance(instance.state, InstanceEvent.DRAIN_REQUESTED)
    except IllegalTransition as error:
        raise _no_instance() from error
    if not instance.drain_requested:
        _record(session, admin_id, "DRAIN", instance_id, "")
    instance.drain_requested = True
    session.add(instance)
    touch(session, QUEUES, INSTANCES, instance_id)
    return instance


def _lose(session: Session, run_id: str, note: str) -> None:
    locked = lock_run(session, run_id)
    if locked is None:
        return
    run, job = locked
    words = f"the instance {run.instance_id} was removed during the run{_because(note)}"
    run.burial_owed = True
    change_run(
        session, run, job, RunEvent.REMOVED, make_failure(Reason.INTERRUPTED, words, run.stage)
    )


def _lock_instance(session: Session, instance_id: str) -> InstanceRow:
    query = select(InstanceRow).where(col(InstanceRow.instance_id) == instance_id)
    found = session.exec(query.with_for_update()).first() if "\0" not in instance_id else None
    if found is None:
        raise _no_instance()
    return found


def _no_instance() -> MeshError:
    return MeshError(Reason.INSTANCE_NOT_FOUND, "there is no such instance")


def _record(session: Session, admin_id: str, action: str, target: str, note: str) -> None:
    ruling = RulingRow(
        ruling_id=new_id("rul"), owner_id=admin_id, action=action, target=target, note=note
    )
    session.add(ruling)
    log.info("ruled", by=admin_id, action=action, target=target, note=note)


def _because(note: str) -> str:
    return f": {note}" if note else ""
