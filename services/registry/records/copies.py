"""The registry's own copies of outputs: which are due, which there are, which are over.

All of it follows from the rows, so a restarted registry goes on where it was.
"""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, and_, or_, update
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from reelmesh.v1 import transfer_pb2
from services.registry.database import touch
from services.registry.lifecycle import JOB_LIVE, InstanceState, JobState, RunState, Stage
from services.registry.records.changes import lock_run
from services.registry.records.events import QUEUES
from services.registry.records.heirs import has_heirs, is_over, lock_due
from services.registry.records.outputs import mark_deleted
from services.registry.records.sources import locate
from services.registry.schema import InstanceRow, JobRow, ReplicaRow, RunRow


def due_copies(
    session: Session, replica_id: str, ended_after: datetime, limit: int
) -> Sequence[tuple[str, transfer_pb2.BundleRef]]:
    """(run id, where its output is) of outputs to copy, oldest first.

    Latents, as long as their job may still need them; conditioning only if its encoder is to
    drain, because it is soon made again. Of registries on one database the one that followed the
    run copies, or any if that one is not there any more.
    """
    ours = or_(
        col(RunRow.replica_id) == replica_id,
        col(RunRow.replica_id).not_in(select(ReplicaRow.replica_id)),
    )
    ended_badly = col(JobRow.state).in_((JobState.FAILED, JobState.CANCELLED))
    latents = and_(
        col(RunRow.stage) == Stage.SAMPLE,
        or_(
            col(JobRow.state).in_(JOB_LIVE),
            and_(ended_badly, col(JobRow.end_time) > ended_after),
        ),
    )
    conditioning = and_(
        col(RunRow.stage) == Stage.ENCODE,
        col(JobRow.stage) == Stage.SAMPLE,
        col(InstanceRow.drain_requested).is_(True),
    )
    query = (
        select(RunRow)
        .join(JobRow, col(JobRow.job_id) == col(RunRow.job_id))
        .join(InstanceRow, col(InstanceRow.instance_id) == col(RunRow.instance_id))
        .where(
            col(RunRow.output_kept).is_(True),
            col(RunRow.state) == RunState.SUCCEEDED,
            col(RunRow.copy_bundle_id).is_(None),
            col(InstanceRow.state) != InstanceState.GONE,
            col(InstanceRow.journal_id) == col(RunRow.journal_id),
            ours,
            or_(latents, conditioning),
        )
        .order_by(col(RunRow.end_time))
        .limit(limit)
    )
    return [
        (run.run_id, locate(session, run).ref(reachable=True, registry=""))
        for run in session.exec(query).all()
    ]


def keep_copy(session: Session, run_id: str, bundle: transfer_pb2.Bundle) -> bool:
    """The output of the run is copied; False if it was already."""
    locked = lock_run(session, run_id)
    if locked is None or locked[0].copy_bundle_id is not None:
        return False
    run = locked[0]
    run.copy_bundle_id, run.copy_token = bundle.bundle_id, bundle.read_token
    session.add(run)
    touch(session, QUEUES)
    return True


def lose_output(session: Session, run_id: str) -> None:
    """The instance does not have the run's output any more."""
    mark_deleted(session, run_id)
    touch(session, QUEUES)


def _over(ended_before: datetime) -> SelectOfScalar[RunRow]:
    return (
        select(RunRow)
        .join(JobRow, col(JobRow.job_id) == col(RunRow.job_id))
        .where(
            col(RunRow.copy_bundle_id).is_not(None),
            is_over(ended_before),
            ~has_heirs(ended_before),
        )
    )


def are_copies_over(session: Session, ended_before: datetime) -> bool:
    """Whether there is any to give up."""
    return session.exec(_over(ended_before).limit(1)).first() is not None


def give_up_copies(session: Session, ended_before: datetime, limit: int) -> Sequence[str]:
    """Give up the copies of jobs that ended before `ended_before`; their ids, to be deleted."""
    given_up = []
    for run in lock_due(session, _over(ended_before), limit):
        given_up.append(run.copy_bundle_id or "")
        run.copy_bundle_id, run.copy_token = None, ""
        session.add(run)
    return given_up


def copy_ids(session: Session) -> set[str]:
    """Every copy that a row names."""
    query = select(RunRow.copy_bundle_id).where(col(RunRow.copy_bundle_id).is_not(None))
    return {bundle_id for bundle_id in session.exec(query) if bundle_id}


def forget_copies(session: Session, bundle_ids: Sequence[str]) -> None:
    """These files are not there: whoever needs them has to look elsewhere."""
    _forget(session, col(RunRow.copy_bundle_id).in_(bundle_ids))


def forget_copy(session: Session, bundle_id: str, token: str) -> None:
    """The same of one, for whoever has its token."""
    known = and_(col(RunRow.copy_bundle_id) == bundle_id, col(RunRow.copy_token) == token)
    _forget(session, known)


def _forget(session: Session, which: ColumnElement[bool]) -> None:
    session.execute(update(RunRow).where(which).values(copy_bundle_id=None, copy_token=""))
