"""The event log: every change of a job, numbered per owner in the change's own transaction.

The owner's row is locked first, so revisions become visible in their order and none appears late.
"""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, exists, update
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import Select

from reelmesh.v1 import jobs_pb2
from services.registry.database import touch
from services.registry.lifecycle import JOB_TERMINAL
from services.registry.messages import job_message
from services.registry.records.turns import number, refund
from services.registry.schema import EventRow, JobRow, OwnerRow, RunRow

# Whoever waits for a job, a slot or an instance that became free waits for this name.
QUEUES = "queues"
# Whoever keeps what the instances are waits for this name: one of them has changed.
INSTANCES = "instances"


def runs_of(session: Session, job_id: str) -> Sequence[RunRow]:
    """The job's runs in order of binding."""
    query = select(RunRow).where(col(RunRow.job_id) == job_id)
    return session.exec(query.order_by(col(RunRow.bind_time), col(RunRow.run_id))).all()


def record_change(session: Session, job: JobRow) -> None:
    """Number the job's change, keep the job as it is now, and wake whoever waits for it."""
    job.revision = number(session, job)
    refund(session, job)
    job.first_revision = job.first_revision or job.revision
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
    touch(session, job.job_id, job.owner_id)


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


def read_owner_events(
    session: Session, owner_id: str, after: int, limit: int
) -> list[tuple[jobs_pb2.Job, JobRow]]:
    """The owner's jobs after each change later than `after`, oldest first, at most `limit`.

    Each with its job's row as it is now.
    """
    query = (
        select(EventRow.body, JobRow)
        .join(JobRow, col(JobRow.job_id) == col(EventRow.job_id))
        .where(col(EventRow.owner_id) == owner_id, col(EventRow.revision) > after)
        .order_by(col(EventRow.revision))
        .limit(limit)
    )
    events = [(jobs_pb2.Job.FromString(body), job) for body, job in session.exec(query)]
    for message, job in events:
        message.spec.prompt = job.prompt
    return events


def _old(older_than: datetime) -> Select[str, int]:
    """(owner, revision) of events from before `older_than`, but no live job's newest."""
    newest = exists().where(
        col(JobRow.job_id) == col(EventRow.job_id),
        col(JobRow.revision) == col(EventRow.revision),
        col(JobRow.state).not_in(JOB_TERMINAL),
    )
    return (
        select(EventRow.owner_id, EventRow.revision)
        .where(col(EventRow.create_time) < older_than, ~newest)
        .order_by(col(EventRow.create_time))
    )


def are_events_old(session: Session, older_than: datetime) -> bool:
    """Whether there is any to forget."""
    return session.exec(_old(older_than).limit(1)).first() is not None


def compact(session: Session, older_than: datetime, limit: int) -> int:
    """Forget events from before `older_than`, but a live job's newest; how many."""
    query = _old(older_than).limit(limit)
    old: dict[str, list[int]] = {}
    for owner_id, revision in session.exec(query):
        old.setdefault(owner_id, []).append(revision)
    for owner_id, revisions in sorted(old.items()):
        session.execute(
            update(OwnerRow)
            .where(
                col(OwnerRow.owner_id) == owner_id,
                col(OwnerRow.compacted_revision) < max(revisions),
            )
            .values(compacted_revision=max(revisions))
        )
        session.execute(
            delete(EventRow).where(
                col(EventRow.owner_id) == owner_id, col(EventRow.revision).in_(revisions)
            )
        )
    return sum(map(len, old.values()))


def revisions_of(session: Session, owner_id: str) -> tuple[int, int]:
    """The owner's newest revision, and the newest whose event may be gone."""
    owned = col(OwnerRow.owner_id) == owner_id
    found = select(OwnerRow.revision, OwnerRow.compacted_revision).where(owned)
    return session.exec(found).one()


def owner_revision(session: Session, owner_id: str) -> int:
    """The owner's newest revision."""
    owned = col(OwnerRow.owner_id) == owner_id
    return session.exec(select(OwnerRow.revision).where(owned)).one()
