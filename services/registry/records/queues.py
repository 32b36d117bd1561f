"""Where a waiting job stands, and what it waits for, in words.

Before its first stage a job's place is how many jobs will be given a turn before it if nobody else
comes: by the fairness between owners and not by who was first, so it may also grow when an owner
comes who was given less. Later it is how many wait for the same stage with an earlier turn. Nothing
is counted beyond a hundred, whatever the length of the queue.
"""

from collections.abc import Sequence
from functools import cache, partial

from sqlalchemy import ColumnElement, bindparam, func
from sqlalchemy import select as select_columns
from sqlmodel import Session, col, select

from reelmesh.v1 import jobs_pb2, stage_pb2
from services.registry.lifecycle import InstanceState, RunState, Stage
from services.registry.messages import job_message
from services.registry.records.events import attempts_of
from services.registry.records.places import places_of
from services.registry.records.slots import Shape, fits_capabilities, fits_shape, shape_of
from services.registry.records.sources import find_source
from services.registry.schema import LIVE, InstanceRow, JobRow, RunRow

_NAMES = {Stage.ENCODE: "an encoder", Stage.SAMPLE: "a sampler", Stage.DECODE: "a decoder"}

# Built once: building it takes longer than SQLite does.
_FIRST_READY = (
    select(InstanceRow.capabilities)
    .where(
        col(InstanceRow.stage) == bindparam("stage"),
        col(InstanceRow.state) == InstanceState.READY,
    )
    .limit(1)
)


def describe_job(session: Session, job: JobRow) -> jobs_pb2.Job:
    """The job as it is now, with its place in the queue. Get and Watch alike tell this."""
    message = job_message(job, attempts_of(session, [job.job_id])[job.job_id])
    tell_places(session, [(job, message)])
    return message


def tell_places(session: Session, told: Sequence[tuple[JobRow, jobs_pb2.Job]]) -> None:
    """Put into the messages of jobs where they stand, if they wait, and what for."""
    waiting = [(job, message) for job, message in told if job.waiting and job.stage is not None]
    places = places_of(session, [job for job, _ in waiting])
    able = cache(partial(_any_able, session, Stage.ENCODE))
    for job, message in waiting:
        message.queue_position = ahead = places[job.job_id]
        if ahead and job.stage is Stage.ENCODE and able(shape_of(job)):
            message.waiting_for = f"{_NAMES[job.stage]} to be free"
        elif job.stage is not None:
            message.waiting_for = _waiting_for(session, job, job.stage, ahead)


def _waiting_for(session: Session, job: JobRow, stage: Stage, ahead: int) -> str:
    name, asked = _NAMES[stage], [col(InstanceRow.stage) == stage]
    if stage is Stage.SAMPLE and job.sampler_id:
        name = f"the sampler {job.sampler_id}"
        asked.append(col(InstanceRow.instance_id) == job.sampler_id)
    elif stage is Stage.SAMPLE and job.pool:
        name = f"a sampler of the pool {job.pool}"
        asked.append(col(InstanceRow.pool) == job.pool)
    kinds = session.execute(
        select_columns(
            col(InstanceRow.state), col(InstanceRow.capabilities), func.sum(InstanceRow.slots)
        )
        .where(*asked, col(InstanceRow.state) != InstanceState.GONE)
        .group_by(col(InstanceRow.state), col(InstanceRow.capabilities))
    ).all()
    able = [(state, slots) for state, packed, slots in kinds if fits_capabilities(packed, job)]
    slots = sum(slots for state, slots in able if state is InstanceState.READY)
    if not kinds:
        return f"{name}: none is registered"
    if not able:
        return f"{name} that can run it: none is registered"
    if not slots:
        return f"{name}: {_absence(job, stage, {state for state, _ in able})}"
    source = find_source(session, job.job_id, stage)
    if source is not None and not source.copied:
        holder = session.get(InstanceRow, source.run.instance_id)
        if holder is not None and holder.state is InstanceState.SUSPECT:
            return f"the instance {holder.instance_id}, which holds its input and is not heard"
    if ahead or _busy(session, asked) >= slots:
        return f"{name} to be free"
    if stage is not Stage.DECODE and _is_sampled(session, job.owner_id):
        # There is room, so it is the owner's own limit, if anything.
        return "another job of its owner to be sampled"
    return f"{name} to take it{_last_refusal(session, job, stage)}"


def _last_refusal(session: Session, job: JobRow, stage: Stage) -> str:
    """Who refused the job's latest run of this stage, and why: a full disk must not look idle."""
    query = (
        select(RunRow)
        .where(col(RunRow.job_id) == job.job_id, col(RunRow.stage) == stage)
        .order_by(col(RunRow.bind_time).desc())
        .limit(1)
    )
    run = session.exec(query).first()
    if run is None or run.state is not RunState.REFUSED or not run.failure:
        return ""
    reason = stage_pb2.Failure.FromString(run.failure).reason
    return f"; {run.instance_id} refused it: {reason}"


def _any_able(session: Session, stage: Stage, shape: Shape) -> bool:
    """Whether the first READY instance can run such a job: then there is no need to look at all."""
    packed = session.exec(_FIRST_READY, params={"stage": stage}).first()
    return packed is not None and fits_shape(packed, shape)


def _absence(job: JobRow, stage: Stage, states: set[InstanceState]) -> str:
    if not (stage is Stage.SAMPLE and job.sampler_id):
        return "none is ready"
    return "it is not heard" if InstanceState.SUSPECT in states else "it is draining"


def _is_sampled(session: Session, owner_id: str) -> bool:
    """Whether a job of the owner holds a sampler."""
    query = select(JobRow.job_id).where(
        col(JobRow.owner_id) == owner_id,
        col(JobRow.stage) == Stage.SAMPLE,
        col(JobRow.waiting).is_(False),
    )
    return session.exec(query.limit(1)).first() is not None


def _busy(session: Session, asked: list[ColumnElement[bool]]) -> int:
    """Slots held at READY instances of those that were asked for."""
    there = select(InstanceRow.instance_id).where(
        *asked, col(InstanceRow.state) == InstanceState.READY
    )
    query = select(func.count()).where(LIVE, col(RunRow.instance_id).in_(there))
    return session.exec(query).one()
