"""What owners are charged for their jobs and pay for their runs, and how fast instances are.

Everything here happens in the transaction of the change that it is about, so no crash can leave
an owner charged for nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, func, update
from sqlalchemy import select as select_columns
from sqlmodel import Session, col, select

from reelmesh.v1 import stage_pb2
from services.registry.columns import utc_now
from services.registry.lifecycle import (
    JOB_TERMINAL,
    InstanceState,
    JobState,
    RunState,
    Stage,
    holds_slot,
)
from services.registry.placement import TYPICAL_UNIT_S, smooth, work_of
from services.registry.schema import InstanceRow, JobRow, OwnerRow, RunRow, table_of

# Statements that every job needs are built once: building one takes longer than SQLite does.
_OWNERS = table_of(OwnerRow)
_PAY = (
    update(_OWNERS)
    .where(_OWNERS.c.owner_id == bindparam("numbered"))
    .values(virtual_time_s=_OWNERS.c.virtual_time_s + bindparam("seconds") / _OWNERS.c.weight)
)
# A measurement is not worth waiting for whoever holds the instance.
_INSTANCES = table_of(InstanceRow)
_SPEED = (
    select_columns(_INSTANCES.c.unit_time_s)
    .where(_INSTANCES.c.instance_id == bindparam("measured"))
    .with_for_update(skip_locked=True, key_share=True)
)
_SET_SPEED = (
    update(_INSTANCES)
    .where(_INSTANCES.c.instance_id == bindparam("measured"))
    .values(unit_time_s=bindparam("unit_s"))
)
# Seconds that a unit of work takes a sampler on average, as measured.
UNIT = select(func.avg(InstanceRow.unit_time_s)).where(
    col(InstanceRow.stage) == Stage.SAMPLE, col(InstanceRow.state) != InstanceState.GONE
)


def work(stage: Stage, job: JobRow) -> float:
    """Units of work of a stage of the job."""
    return work_of(stage, job.height, job.width, job.frames, job.evaluations, job.prompt_tokens)


@dataclass(frozen=True)
class Turn:
    """A job's turn: its owner's virtual time when it was given, and what it is charged."""

    job: JobRow
    time_s: float
    seconds: float


def charge(session: Session, turns: Sequence[Turn]) -> None:
    """The jobs are given their turns: their owners pay what they are expected to take."""
    for turn in turns:
        turn.job.turn_s, turn.job.charged_s = turn.time_s, turn.seconds
    if turns:
        paid = [{"numbered": turn.job.owner_id, "seconds": turn.seconds} for turn in turns]
        session.connection().execute(_PAY, paid)


def sampler_unit_s(session: Session) -> float:
    """Seconds that a unit of work takes a sampler on average; a guess if nothing was measured."""
    return measured_unit_s(session) or TYPICAL_UNIT_S[Stage.SAMPLE]


def measured_unit_s(session: Session) -> float | None:
    """The same, None if nothing was measured."""
    unit_s: float | None = session.exec(UNIT).one()
    return unit_s


def refund(session: Session, job: JobRow) -> None:
    """What was charged for a job goes back if it is queued again, or ends without a sampler."""
    if job.charged_s and (job.state in JOB_TERMINAL or job.state is JobState.QUEUED):
        _pay(session, job.owner_id, -job.charged_s)
        job.charged_s = 0.0


def settle(session: Session, run: RunRow, job: JobRow) -> None:
    """A run has ended: its owner pays the sampler time that it took instead of what was expected,
    and its instance's speed is smoothed if it succeeded, unless it had only the rest to do."""
    if holds_slot(run.state) or run.state is RunState.REFUSED:
        return
    seconds = measured_s(run)
    if run.stage is Stage.SAMPLE:
        _pay(session, job.owner_id, seconds - job.charged_s)
        job.charged_s = 0.0
    if run.state is RunState.SUCCEEDED and seconds > 0 and not run.resume_run_id:
        measured = {"measured": run.instance_id}
        known = session.execute(_SPEED, measured).first()
        if known is not None:
            units = max(work(run.stage, job), 1e-9)
            unit_s = smooth(known.unit_time_s, seconds / units)
            session.execute(_SET_SPEED, {**measured, "unit_s": unit_s})


def measured_s(run: RunRow) -> float:
    """How long the run held its slot: by its stage's own clock if it told."""
    timings = stage_pb2.Run.FromString(run.timings or b"").timings
    told = sum(one.duration.ToNanoseconds() / 1e9 for one in timings)
    if told > 0:
        return told
    # By the calendar, which may have jumped: not below 0, nor far from what was expected.
    seconds = (_or_now(run.end_time) - run.bind_time).total_seconds()
    most = 10 * run.expected_s if run.expected_s else seconds
    return max(0.0, min(seconds, most))


def _or_now(time: datetime | None) -> datetime:
    return time or utc_now()


def _pay(session: Session, owner_id: str, seconds: float) -> None:
    session.execute(_PAY, {"numbered": owner_id, "seconds": seconds})
