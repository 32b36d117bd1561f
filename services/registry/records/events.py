"""The event log: every change of a job, numbered per owner in the change's own transaction.

The owner's row is locked first, so revisions become visible in their order and none appears late.
"""

from collections.abc import Sequence

from sqlalchemy import update
from sqlmodel import Session, col, select

from reelmesh.v1 import jobs_pb2
from services.registry.database import touch
from services.registry.messages import job_message
from services.registry.schema import EventRow, JobRow, OwnerRow, RunRow

# Whoever waits for a job, a slot or an instance that became free waits for this name.
QUEUES = "queues"


def runs_of(session: Session, job_id: str) -> Sequence[RunRow]:
    """The job's runs in order of binding."""
    query = select(RunRow).where(col(RunRow.job_id) == job_id)
    return session.exec(query.order_by(col(RunRow.bind_time), col(RunRow.run_id))).all()


def record_change(session: Session, job: JobRow) -> None:
    """Number the job's change, keep the job as it is now, and wake whoever waits for it."""
    session.execute(
        update(OwnerRow)
        .where(col(OwnerRow.owner_id) == job.owner_id)
        .values(revision=OwnerRow.revision + 1)
    )
    owned = col(OwnerRow.owner_id) == job.owner_id
    job.revision = session.exec(select(OwnerRow.revision).where(owned)).one()
    session.add(job)
    session.flush()
    body = job_message(job, runs_of(session, job.job_id))
    body.spec.prompt = ""
    event = EventRow(
        owner_id=job.owner_id,
        revision=job.revision,
        job_id=job.job_id,
        body=body.SerializeToString(),
    )
    session.add(event)
    touch(session, job.job_id)


def read_events(session: Session, job: JobRow, after: int, limit: int) -> list[jobs_pb2.Job]:
    """The job after each change later than revision `after`, oldest first, at most `limit`."""
    query = (
        select(EventRow.body)
        .where(col(EventRow.job_id) == job.job_id, col(EventRow.revision) > after)
        .order_by(col(EventRow.revision))
        .limit(limit)
    )
    messages = [jobs_pb2.Job.FromString(body) for body in session.exec(query)]
    for message in messages:
        message.spec.prompt = job.prompt
    return messages


def owner_revision(session: Session, owner_id: str) -> int:
    """The owner's newest revision."""
    owned = col(OwnerRow.owner_id) == owner_id
    return session.exec(select(OwnerRow.revision).where(owned)).one()
