"""Free slots, counted from the runs that hold them, and when the others will be free."""

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Select, bindparam, func
from sqlalchemy import select as select_columns
from sqlmodel import Session, col, select

from reelmesh.v1 import stage_pb2
from services.registry.columns import utc_now
from services.registry.database import touch
from services.registry.lifecycle import InstanceState, Stage
from services.registry.placement import Candidate, remaining_s
from services.registry.records.events import QUEUES
from services.registry.resolution import fits
from services.registry.schema import LIVE, InstanceRow, JobRow, RunRow, table_of


class Shape(NamedTuple):
    """What has to fit of a job: alike for jobs that are alike."""

    mode: str
    height: int
    width: int
    frames: int
    evaluations: int
    checkpoint_digest: str


class Bindable(NamedTuple):
    """What a binding keeps of its instance."""

    instance_id: str
    state: InstanceState
    drain_requested: bool
    generation: int
    journal_id: str
    capabilities: bytes
    version: str


def _taking(stage: Any) -> Sequence[Any]:
    return (
        col(InstanceRow.stage) == stage,
        col(InstanceRow.state) == InstanceState.READY,
        col(InstanceRow.drain_requested).is_(False),
    )


_FREE_SLOTS = select_columns(col(InstanceRow.instance_id)).where(
    *_taking(bindparam("stage")),
    select(func.count())
    .where(LIVE, col(RunRow.instance_id) == col(InstanceRow.instance_id))
    .correlate(InstanceRow)
    .scalar_subquery()
    < col(InstanceRow.slots),
)

_INSTANCES = table_of(InstanceRow)
_RUNS = table_of(RunRow)


def _facts(found: Select[Any]) -> Select[Any]:
    """What a candidate is made of. Only of those that were found along the index is a row read."""
    names = found.subquery()
    return select_columns(
        _INSTANCES.c.instance_id,
        _INSTANCES.c.slots,
        _INSTANCES.c.unit_time_s,
        _INSTANCES.c.pool,
        _INSTANCES.c.capabilities,
    ).join(names, names.c.instance_id == _INSTANCES.c.instance_id)


_FREE = _facts(_FREE_SLOTS)
_FASTER = _facts(
    select_columns(col(InstanceRow.instance_id)).where(
        *_taking(bindparam("stage")), col(InstanceRow.unit_time_s) < bindparam("slowest")
    )
)
_BUSY = select_columns(_RUNS.c.instance_id, _RUNS.c.expected_s, _RUNS.c.bind_time).where(
    LIVE, _RUNS.c.instance_id.in_(bindparam("names", expanding=True))
)
_LOCK = (
    select_columns(*(_INSTANCES.c[name] for name in Bindable._fields))
    .where(_INSTANCES.c.instance_id.in_(bindparam("names", expanding=True)))
    .with_for_update(key_share=True, skip_locked=True)
)


def free_candidates(session: Session, stage: Stage, willing: Collection[str]) -> list[Candidate]:
    """READY and willing instances of the stage that have a free slot.

    Slots in use are counted from the runs that hold them, so no crash can leak one.
    """
    rows = session.connection().execute(_FREE, {"stage": stage})
    free = [row for row in rows if row[0] in willing]
    # One that has a single slot, and it is free, has no other.
    return _candidates(session, free, [row[0] for row in free if row[1] > 1])


def faster_candidates(
    session: Session, stage: Stage, willing: Collection[str], free: Sequence[Candidate]
) -> list[Candidate]:
    """READY and willing instances without a free slot that are faster than a free one.

    Only for these may it pay to wait. An instance that is not heard is never waited for.
    """
    known = {one.instance_id for one in free}
    slowest = max((one.unit_time_s or 0.0 for one in free), default=0.0)
    if not slowest:
        return []
    faster = session.connection().execute(_FASTER, {"stage": stage, "slowest": slowest})
    rows = [row for row in faster if row[0] in willing and row[0] not in known]
    return _candidates(session, rows, [row[0] for row in rows])


def _candidates(session: Session, rows: Sequence[Any], busy: Sequence[str]) -> list[Candidate]:
    """Candidates of the rows; slots are held at those that are `busy` alone."""
    times = _busy_slots(session, busy)
    return [
        Candidate(
            instance_id=name,
            unit_time_s=unit_s,
            slots_free_in_s=[0.0] * (slots - len(times.get(name, []))) + times.get(name, []),
            pool=pool,
            capabilities=capabilities,
        )
        for name, slots, unit_s, pool, capabilities in rows
    ]


def _busy_slots(session: Session, names: Sequence[str]) -> Mapping[str, list[float]]:
    """When each slot that is held will be free, by instance."""
    times: dict[str, list[float]] = {}
    now = utc_now()
    if not names:
        return times
    for name, expected_s, bind_time in session.execute(_BUSY, {"names": list(names)}):
        elapsed_s = max(0.0, (now - bind_time).total_seconds())
        # Never 0, which is a free slot.
        times.setdefault(name, []).append(max(1e-6, remaining_s(expected_s, elapsed_s)))
    return times


def lock_ready(session: Session, names: Collection[str]) -> Mapping[str, Bindable]:
    """The instances, held until the transaction ends, those of them that still take runs.

    Whoever changes one just now is not waited for: its jobs are held too, and we hold owners. It is
    looked at again at once.
    """
    locked = {
        row.instance_id: Bindable(*row)
        for row in session.connection().execute(_LOCK, {"names": sorted(names)})
        if row.state is InstanceState.READY and not row.drain_requested
    }
    if len(locked) < len(names):
        touch(session, QUEUES)
    return locked


def may_take(candidate: Candidate, stage: Stage, job: JobRow) -> bool:
    """Whether the job may go there: what it asked for, and what the instance can do."""
    if stage is Stage.SAMPLE:
        if job.pool and job.pool != candidate.pool:
            return False
        if job.sampler_id and job.sampler_id != candidate.instance_id:
            return False
    return fits_capabilities(candidate.capabilities, job)


def fits_capabilities(capabilities: bytes, job: JobRow) -> bool:
    """Whether an instance that registered these can run the job."""
    return fits_shape(capabilities, shape_of(job))


def shape_of(job: JobRow) -> Shape:
    """What has to fit of the job."""
    return Shape(
        job.mode, job.height, job.width, job.frames, job.evaluations, job.checkpoint_digest
    )


@lru_cache(maxsize=4096)
def fits_shape(capabilities: bytes, shape: Shape) -> bool:
    """Whether an instance that registered these can run a job of this shape."""
    return fits(parse(capabilities), shape)


@lru_cache(maxsize=1024)
def parse(capabilities: bytes) -> stage_pb2.Capabilities:
    """The message, for reading only."""
    return stage_pb2.Capabilities.FromString(capabilities)
