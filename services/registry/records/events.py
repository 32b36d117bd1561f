"""The event log: every change of a job, numbered per owner in the change's own transaction.

The owner's row is locked first, so revisions become visible in their order and none appears late.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from sqlalchemy import bindparam, delete, exists, insert, update
from sqlalchemy import select as select_columns
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import Select

from reelmesh.v1 import jobs_pb2
from services.registry.columns import utc_now
from services.registry.database import touch
from services.registry.lifecycle import JOB_TERMINAL
from services.registry.messages import job_message
from services.registry.records.charges import refund
from services.registry.records.revisions import number, number_all
from services.registry.schema import EventRow, JobRow, OwnerRow, RunRow, table_of

# Whoever waits for a job, a slot or an instance that became free waits for this name.
QUEUES = "queues"
# Whoever keeps what the instances are waits for this name: one of them has changed.
INSTANCES = "instances"

# Built once: building one takes longer than SQLite does.
_RUNS, _EVENTS, _OWNERS = table_of(RunRow), table_of(EventRow), table_of(OwnerRow)
_ATTEMPTS: Any = (
    # What messages.py tells of a run, without the rest of its row.
    select_columns(
        _RUNS.c.run_id,
        _RUNS.c.job_id,
        _RUNS.c.stage,
        _RUNS.c.state,
        _RUNS.c.instance_id,
        _RUNS.c.generation,
        _RUNS.c.failure,
        _RUNS.c.timings,
        _RUNS.c.bind_time,
        _RUNS.c.end_time,
        _RUNS.c.output_size_bytes,
        _RUNS.c.output_sha256,
        _RUNS.c.phase,
        _RUNS.c.done,
        _RUNS.c.total,
    )
    .where(_RUNS.c.job_id.in_(bindparam("job_ids", expanding=True)))
    .order_by(_RUNS.c.bind_time, _RUNS.c.run_id)
)
_KEEP = insert(_EVENTS)
_PAST = (
    select_columns(_EVENTS.c.body)
    .where(_EVENTS.c.job_id == bindparam("job_id"), _EVENTS.c.revision > bindparam("after"))
    .order_by(_EVENTS.c.revision)
    .limit(bindparam("size"))
)
_REVISIONS = select_columns(_OWNERS.c.revision, _OWNERS.c.compacted_revision).where(
    _OWNERS.c.owner_id == bindparam("owner_id")
)


def runs_of(session: Session, job_id: str) -> Sequence[RunRow]:
    """The job's runs in order of binding."""
    query = select(RunRow).where(col(RunRow.job_id) == job_id)
    return session.exec(query.order_by(col(RunRow.bind_time), col(RunRow.run_id))).all()


def attempts_of(session: Session, job_ids: Iterable[str]) -> Mapping[str, list[RunRow]]:
    """What is told of the runs of many jobs, by job, in order of binding: read-only rows."""
    attempts: dict[str, list[RunRow]] = {job_id: [] for job_id in job_ids}
    for row in session.execute(_ATTEMPTS, {"job_ids": list(attempts)}):
        attempts[row.job_id].append(cast(RunRow, row))
    return attempts


def record_change(session: Session, job: JobRow) -> None:
    """Number the job's change, keep the job as it is now, and wake whoever waits for it."""
    _keep(session, [(job, number(session, job))])


def record_first(session: Session, job: JobRow) -> None:
    """The same for a job that is not written yet: it is, with its number."""
    _keep(session, [(job, number(session, job))], {job.job_id: []})


def record_changes(session: Session, jobs: Sequence[JobRow]) -> None:
    """The same for jobs that each have just been bound, with one statement for all of a kind."""
    _keep(session, list(zip(jobs, number_all(session, jobs), strict=True)))


def _keep(
    session: Session,
    numbered: Sequence[tuple[JobRow, int]],
    attempts: Mapping[str, list[RunRow]] | None = None,
) -> None:
    for job, revision in numbered:
        job.revision = revision
        refund(session, job)
        job.first_revision = job.first_revision or revision
        session.add(job)
    session.flush()
    if attempts is None:
        attempts = attempts_of(session, [job.job_id for job, _ in numbered])
    keep_events(session, [(job, job_message(job, attempts[job.job_id])) for job, _ in numbered])


def keep_events(session: Session, told: Sequence[tuple[JobRow, jobs_pb2.Job]]) -> None:
    """Keep numbered jobs as their messages tell them now, and wake whoever waits for them."""
    now, events = utc_now(), []
    for job, message in told:
        message.spec.prompt = ""
        events.append(
            {
                "owner_id": job.owner_id,
                "revision": job.revision,
                "job_id": job.job_id,
                "body": message.SerializeToString(),
                "create_time": now,
            }
        )
        message.spec.prompt = job.prompt
        touch(session, job.job_id, job.owner_id)
    session.connection().execute(_KEEP, events)


def read_events(session: Session, job: JobRow, after: int, limit: int) -> list[jobs_pb2.Job]:
    """The job after each change later than revision `after`, oldest first, at most `limit`."""
    values = {"job_id": job.job_id, "after": after, "size": limit}
    messages = [jobs_pb2.Job.FromString(row.body) for row in session.execute(_PAST, values)]
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
    newest, compacted = session.execute(_REVISIONS, {"owner_id": owner_id}).one()
    return newest, compacted


def owner_revision(session: Session, owner_id: str) -> int:
    """The owner's newest revision."""
    owned = col(OwnerRow.owner_id) == owner_id
    return session.exec(select(OwnerRow.revision).where(owned)).one()
