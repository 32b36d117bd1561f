"""Where a waiting job stands, and what it waits for, in words."""

from sqlalchemy import func, tuple_
from sqlmodel import Session, col, select

from reelmesh.v1 import jobs_pb2
from services.registry.lifecycle import InstanceState, Stage
from services.registry.messages import job_message
from services.registry.records.bindings import count_busy, find_source
from services.registry.records.events import runs_of
from services.registry.schema import InstanceRow, JobRow

_NAMES = {Stage.ENCODE: "an encoder", Stage.SAMPLE: "a sampler", Stage.DECODE: "a decoder"}


def describe_job(session: Session, job: JobRow) -> jobs_pb2.Job:
    """The job as it is now, with its place in the queue. Get and Watch alike tell this."""
    message = job_message(job, runs_of(session, job.job_id))
    if job.waiting and job.stage is not None:
        message.queue_position = _count_ahead(session, job)
        message.waiting_for = _waiting_for(session, job, job.stage, message.queue_position)
    return message


def _count_ahead(session: Session, job: JobRow) -> int:
    place = tuple_(col(JobRow.create_time), col(JobRow.job_id))
    query = select(func.count()).where(
        col(JobRow.waiting).is_(True),
        col(JobRow.stage) == job.stage,
        place < tuple_(job.create_time, job.job_id),
    )
    return session.exec(query).one()


def _waiting_for(session: Session, job: JobRow, stage: Stage, ahead: int) -> str:
    name = _NAMES[stage]
    query = select(InstanceRow).where(
        col(InstanceRow.stage) == stage, col(InstanceRow.state) != InstanceState.GONE
    )
    instances = session.exec(query).all()
    ready = [one for one in instances if one.state is InstanceState.READY]
    if not instances:
        return f"{name}: none is registered"
    if not ready:
        return f"{name}: none is ready"
    source = find_source(session, job.job_id, stage)
    if source is not None:
        holder = session.get(InstanceRow, source.run.instance_id)
        if holder is not None and holder.state is InstanceState.SUSPECT:
            return f"the instance {holder.instance_id}, which holds its input and is not heard"
    busy = count_busy(session)
    if ahead or all(busy.get(one.instance_id, 0) >= one.slots for one in ready):
        return f"{name} to be free"
    return f"{name} to take it"
