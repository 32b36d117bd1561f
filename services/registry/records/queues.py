"""Where a waiting job stands, and what it waits for, in words.

Before its first stage a job's place is how many jobs will be given a turn before it if nobody else
comes: by the fairness between owners and not by who was first, so it may also grow when an owner
comes who was given less. Later it is how many wait for the same stage with an earlier turn. Nothing
is counted beyond a hundred, whatever the length of the queue.
"""

from typing import Any

from sqlalchemy import ColumnElement, bindparam, func, literal_column, or_, tuple_
from sqlalchemy import select as select_columns
from sqlalchemy.orm import aliased
from sqlmodel import Session, col, select

from reelmesh.v1 import jobs_pb2, stage_pb2
from services.registry.columns import UtcTime
from services.registry.fairness import Entrant, count_ahead
from services.registry.lifecycle import InstanceState, RunState, Stage
from services.registry.messages import job_message
from services.registry.placement import TYPICAL_UNIT_S
from services.registry.records.charges import UNIT, work
from services.registry.records.events import attempts_of
from services.registry.records.slots import fits_capabilities
from services.registry.records.sources import find_source
from services.registry.records.turns import ENTRANT
from services.registry.schema import LIVE, InstanceRow, JobRow, OwnerRow, RunRow

_NAMES = {Stage.ENCODE: "an encoder", Stage.SAMPLE: "a sampler", Stage.DECODE: "a decoder"}
# What is further ahead is not counted.
MOST_AHEAD = 100


def _encodable(owner_id: Any) -> list[ColumnElement[bool]]:
    return [
        col(JobRow.owner_id) == owner_id,
        col(JobRow.stage) == Stage.ENCODE,
        col(JobRow.waiting).is_(True),
    ]


def _others() -> Any:
    """Owners in turn that may have a job before a virtual time, each with how many wait."""
    one: Any = select(literal_column("1").label("one"))
    waiting = one.where(*_encodable(col(OwnerRow.owner_id)))
    bounded = waiting.limit(MOST_AHEAD).correlate(OwnerRow).subquery()
    count = select(func.count()).select_from(bounded).correlate(OwnerRow).scalar_subquery()
    return (
        select_columns(
            col(OwnerRow.virtual_time_s),
            col(OwnerRow.turn_time),
            col(OwnerRow.owner_id),
            col(OwnerRow.weight),
            count,
        )
        .where(
            col(OwnerRow.in_turn).is_(True),
            col(OwnerRow.owner_id) != bindparam("owner_id"),
            col(OwnerRow.virtual_time_s) <= bindparam("before"),
        )
        .order_by(col(OwnerRow.virtual_time_s))
        .limit(MOST_AHEAD)
    )


def _standing() -> Any:
    """(own jobs that come first, a sampler's seconds for a unit, and the owner as an entrant)."""
    jobs: Any = aliased(JobRow)
    came_first = tuple_(jobs.create_time, jobs.job_id) < tuple_(
        bindparam("create_time", type_=UtcTime), bindparam("job_id")
    )
    own: Any = (
        select(literal_column("1").label("one"))
        .where(
            jobs.owner_id == bindparam("owner_id"),
            jobs.stage == Stage.ENCODE,
            jobs.waiting.is_(True),
            or_(
                jobs.priority > bindparam("priority"),
                (jobs.priority == bindparam("priority")) & came_first,
            ),
        )
        .limit(MOST_AHEAD)
        .subquery()
    )
    return select_columns(
        select(func.count()).select_from(own).scalar_subquery(), UNIT.scalar_subquery(), *ENTRANT
    ).where(col(OwnerRow.owner_id) == bindparam("owner_id"))


# Built once: building it takes longer than SQLite does.
_BEFORE, _STANDING = _others(), _standing()
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
    if job.waiting and job.stage is not None:
        message.queue_position = _ahead(session, job)
        message.waiting_for = _waiting_for(session, job, job.stage, message.queue_position)
    return message


def _ahead(session: Session, job: JobRow) -> int:
    if job.stage is Stage.ENCODE and not job.charged_s:
        return _turns_ahead(session, job)
    place = tuple_(col(JobRow.turn_s), col(JobRow.create_time), col(JobRow.job_id))
    before: Any = select(literal_column("1")).where(
        col(JobRow.waiting).is_(True),
        col(JobRow.stage) == job.stage,
        place < tuple_(job.turn_s, job.create_time, job.job_id),
    )
    return _count(session, before)


def _count(session: Session, rows: Any) -> int:
    bounded = rows.limit(MOST_AHEAD).subquery()
    return int(session.exec(select(func.count()).select_from(bounded)).one())


def _turns_ahead(session: Session, job: JobRow) -> int:
    """By the same order as claims.py gives turns in."""
    values = {"owner_id": job.owner_id, "priority": job.priority}
    values |= {"create_time": job.create_time, "job_id": job.job_id}
    own_ahead, unit_s, *entrant = session.execute(_STANDING, values).one()
    if own_ahead == MOST_AHEAD:
        return MOST_AHEAD
    mine = Entrant(*entrant)
    job_s = work(Stage.SAMPLE, job) * (unit_s or TYPICAL_UNIT_S[Stage.SAMPLE])
    values = {"owner_id": job.owner_id, "before": mine.after(own_ahead * job_s).virtual_time_s}
    before = [(Entrant(*row[:4]), row[4]) for row in session.execute(_BEFORE, values)]
    return min(MOST_AHEAD, count_ahead(mine, own_ahead, before, job_s))


def _waiting_for(session: Session, job: JobRow, stage: Stage, ahead: int) -> str:
    name, asked = _NAMES[stage], [col(InstanceRow.stage) == stage]
    if stage is Stage.SAMPLE and job.sampler_id:
        name = f"the sampler {job.sampler_id}"
        asked.append(col(InstanceRow.instance_id) == job.sampler_id)
    elif stage is Stage.SAMPLE and job.pool:
        name = f"a sampler of the pool {job.pool}"
        asked.append(col(InstanceRow.pool) == job.pool)
    if ahead and stage is Stage.ENCODE and _any_able(session, job, stage):
        return f"{name} to be free"
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


def _any_able(session: Session, job: JobRow, stage: Stage) -> bool:
    """Whether the first READY instance can run the job: then there is no need to look at all."""
    packed = session.exec(_FIRST_READY, params={"stage": stage}).first()
    return packed is not None and fits_capabilities(packed, job)


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
