"""The owners' turns in the database: who is in turn, what they are charged, and what they took.

Everything here happens in the transaction of the change that it is about, so no crash can leave
an owner charged for nothing.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, bindparam, func, or_, update
from sqlalchemy import select as select_columns
from sqlmodel import Session, col, select

from reelmesh.v1 import stage_pb2
from services.registry.columns import utc_now
from services.registry.fairness import Entrant, start_time
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

# Stages of jobs that are not yet sampled.
UNSAMPLED = (Stage.ENCODE, Stage.SAMPLE)
_PAGE = 32


def work(stage: Stage, job: JobRow) -> float:
    """Units of work of a stage of the job."""
    return work_of(stage, job.height, job.width, job.frames, job.evaluations, job.prompt_tokens)


def _queued(owner_id: Any) -> list[Any]:
    """What says that a job of the owner waits for its turn, along ix_job_turn."""
    return [
        col(JobRow.owner_id) == owner_id,
        col(JobRow.stage).in_(UNSAMPLED),
        col(JobRow.waiting).is_(True),
        col(JobRow.state) == JobState.QUEUED,
    ]


def encodable(owner_id: Any) -> ColumnElement[bool]:
    """Whether a job of the owner waits to be encoded."""
    query = select(JobRow.job_id).where(
        col(JobRow.owner_id) == owner_id,
        col(JobRow.stage) == Stage.ENCODE,
        col(JobRow.waiting).is_(True),
    )
    return query.exists()


# Statements that every job needs are built once: building one takes longer than SQLite does.
_OWNED: Any = bindparam("owner_id")
_JOINING = select_columns(
    col(OwnerRow.virtual_time_s), select(JobRow.job_id).where(*_queued(_OWNED)).exists()
).where(col(OwnerRow.owner_id) == _OWNED)
_LEAST_TIME = (
    select(OwnerRow.virtual_time_s)
    .where(
        col(OwnerRow.in_turn).is_(True),
        select(JobRow.job_id).where(*_queued(col(OwnerRow.owner_id))).exists(),
    )
    .order_by(col(OwnerRow.virtual_time_s))
    .limit(1)
)
_MOST_TIME = select(func.max(OwnerRow.virtual_time_s))
# What makes an entrant of an owner.
ENTRANT = (
    col(OwnerRow.virtual_time_s),
    col(OwnerRow.turn_time),
    col(OwnerRow.owner_id),
    col(OwnerRow.weight),
)
_ENTRANT = select(*ENTRANT).where(col(OwnerRow.owner_id) == _OWNED)
# Seconds that a unit of work takes a sampler on average, as measured.
UNIT = select(func.avg(InstanceRow.unit_time_s)).where(
    col(InstanceRow.stage) == Stage.SAMPLE, col(InstanceRow.state) != InstanceState.GONE
)


_OF = col(OwnerRow.owner_id) == bindparam("numbered")
_NUMBER: Any = (
    update(OwnerRow)
    .where(_OF)
    .values(revision=OwnerRow.revision + 1)
    .returning(col(OwnerRow.revision))
    .execution_options(synchronize_session=False)
)
_NUMBER_WAITING = _NUMBER.values(in_turn=True)
_NUMBER_ROOM = _NUMBER.values(in_turn=or_(col(OwnerRow.in_turn), encodable(bindparam("numbered"))))
_OWNERS = table_of(OwnerRow)
_NUMBER_ALL: Any = (
    update(_OWNERS)
    .where(_OWNERS.c.owner_id.in_(bindparam("numbered", expanding=True)))
    .values(revision=_OWNERS.c.revision + bindparam("changes"))
    .returning(_OWNERS.c.owner_id, _OWNERS.c.revision)
)
_PAY = (
    update(_OWNERS)
    .where(_OWNERS.c.owner_id == bindparam("numbered"))
    .values(virtual_time_s=_OWNERS.c.virtual_time_s + bindparam("seconds") / _OWNERS.c.weight)
)


_JOIN = (
    update(_OWNERS)
    .where(_OWNERS.c.owner_id == bindparam("numbered"))
    .values(virtual_time_s=bindparam("begins_s"), turn_time=bindparam("now"), in_turn=True)
)
_LEAVE = update(_OWNERS).where(_OWNERS.c.owner_id == bindparam("numbered")).values(in_turn=False)
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


_IN_TURN: Any = (
    select_columns(*ENTRANT)
    .where(col(OwnerRow.in_turn).is_(True), encodable(col(OwnerRow.owner_id)))
    .order_by(*ENTRANT[:3])
    .limit(bindparam("size"))
)
_IN_TURN_FROM = _IN_TURN.where(col(OwnerRow.virtual_time_s) >= bindparam("last"))


def join(session: Session, owner_id: str) -> float:
    """The owner, locked, is about to have one more job: its virtual time.

    If it is the first that waits, the owner begins at the least of those in turn.
    """
    now_s, waits = session.execute(_JOINING, {"owner_id": owner_id}).one()
    if waits:
        return float(now_s)
    least = session.exec(_LEAST_TIME).first()
    most = 0.0
    if least is None:
        most = session.exec(_MOST_TIME).one() or 0.0
    begins_s = start_time(now_s, least, most)
    session.execute(_JOIN, {"numbered": owner_id, "begins_s": begins_s, "now": utc_now()})
    return begins_s


def in_turn(session: Session) -> Iterator[Entrant]:
    """Owners that may have a job for a turn, in their order; read as far as it is asked for."""
    seen: set[str] = set()
    last: float | None = None
    while True:
        # Those of the last time come again: more rows than were seen of it bring new ones.
        size = _PAGE + len(seen)
        if last is None:
            rows = session.execute(_IN_TURN, {"size": size}).all()
        else:
            rows = session.execute(_IN_TURN_FROM, {"size": size, "last": last}).all()
        fresh = [row for row in rows if row[2] not in seen]
        for time_s, since, owner_id, weight in fresh:
            seen.add(owner_id)
            yield Entrant(time_s, since, owner_id, weight)
        if len(rows) < size:
            return
        last = rows[-1][0]


def number(session: Session, job: JobRow) -> int:
    """The owner's next revision, for a change of the job; and whether the owner is in turn now.

    It may be if the job waits, or has made room for another one by moving on or ending.
    """
    values = {"numbered": job.owner_id}
    statement = _NUMBER
    if job.waiting and job.stage is Stage.ENCODE:
        statement = _NUMBER_WAITING
    elif job.waiting or job.stage is None:
        # What is asked about are the owner's other jobs. If this one still seems to wait because it
        # is not written yet, the owner is looked at once for nothing.
        statement = _NUMBER_ROOM
    with session.no_autoflush:
        return int(session.execute(statement, values).scalar_one())


def number_all(session: Session, jobs: Sequence[JobRow]) -> list[int]:
    """The next revisions of their owners for changes of jobs that are bound now, in their order."""
    changes = Counter(job.owner_id for job in jobs)
    following: dict[str, int] = {}
    for count in sorted(set(changes.values())):
        names = sorted(owner_id for owner_id in changes if changes[owner_id] == count)
        rows = session.execute(_NUMBER_ALL, {"numbered": names, "changes": count})
        following |= {owner_id: revision - count for owner_id, revision in rows}
    revisions = []
    for job in jobs:
        following[job.owner_id] += 1
        revisions.append(following[job.owner_id])
    return revisions


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


def entrant_of(session: Session, owner_id: str) -> Entrant:
    """The owner as it is now."""
    return Entrant(*session.exec(_ENTRANT, params={"owner_id": owner_id}).one())


def sampler_unit_s(session: Session) -> float:
    """Seconds that a unit of work takes a sampler on average; a guess if nothing was measured."""
    return measured_unit_s(session) or TYPICAL_UNIT_S[Stage.SAMPLE]


def measured_unit_s(session: Session) -> float | None:
    """The same, None if nothing was measured."""
    unit_s: float | None = session.exec(UNIT).one()
    return unit_s


def leave(session: Session, owner_id: str) -> None:
    """The owner, locked, has nothing for a turn until something of it changes."""
    session.execute(_LEAVE, {"numbered": owner_id})


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
