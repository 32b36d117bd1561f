"""Jobs as their owner asks for them. Every function here takes the owner and sees no other's."""

from collections.abc import Collection, Sequence

from sqlalchemy import bindparam, tuple_
from sqlmodel import Session, col, select

from services.common.rpc.errors import MeshError, Reason
from services.registry.database import touch
from services.registry.lifecycle import (
    JOB_TERMINAL,
    RUN_LIVE,
    JobEvent,
    JobState,
    RunState,
)
from services.registry.records.bindings import withdraw_unsent
from services.registry.records.changes import change_job, lock_job
from services.registry.records.events import record_change
from services.registry.records.pages import Place
from services.registry.schema import JobRow, RunRow

# Built once: building it takes longer than SQLite does.
_FIND = select(JobRow).where(
    col(JobRow.job_id) == bindparam("job_id"), col(JobRow.owner_id) == bindparam("owner_id")
)


def find_job(session: Session, owner_id: str, job_id: str) -> JobRow:
    """The owner's job. One of another, an unknown and a malformed id are all alike."""
    values = {"job_id": job_id, "owner_id": owner_id}
    job = session.exec(_FIND, params=values).first() if "\0" not in job_id else None
    if job is None:
        raise MeshError(Reason.JOB_NOT_FOUND, "there is no such job")
    return job


def list_jobs(
    session: Session, owner_id: str, states: Collection[JobState], after: Place | None, size: int
) -> Sequence[JobRow]:
    """The owner's jobs, newest first, at most `size`."""
    query = select(JobRow).where(col(JobRow.owner_id) == owner_id)
    if states:
        query = query.where(col(JobRow.state).in_(states))
    place = tuple_(col(JobRow.create_time), col(JobRow.job_id))
    if after is not None:
        query = query.where(place < tuple_(after.time, after.row_id))
    query = query.order_by(col(JobRow.create_time).desc(), col(JobRow.job_id).desc())
    return session.exec(query.limit(size)).all()


def request_cancel(session: Session, owner_id: str, job_id: str) -> JobRow:
    """Ask the owner's job to stop.

    CANCELLED at once if nothing of it can be at work any more, or if that is in doubt; otherwise
    when its run has ended. A job that has ended stays as it is.
    """
    job = lock_job(session, find_job(session, owner_id, job_id).job_id)
    if job.state in JOB_TERMINAL or job.cancel_requested:
        return job
    job.cancel_requested = True
    session.add(job)
    live = select(RunRow).where(col(RunRow.job_id) == job_id, col(RunRow.state).in_(RUN_LIVE))
    run = session.exec(live).first()
    if run is not None and withdraw_unsent(session, run.run_id):
        return job
    if run is None or run.state is RunState.UNKNOWN:
        change_job(job, JobEvent.CANCELLED)
    record_change(session, job)
    if run is not None:
        touch(session, run.run_id)
    return job
