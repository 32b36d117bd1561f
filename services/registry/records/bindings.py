"""Bindings: which job's stage goes to which instance, written before any call uses it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import func, update
from sqlmodel import Session, col, select

from reelmesh.v1 import stage_pb2, transfer_pb2
from services.common.ids import new_id, new_secret
from services.registry.lifecycle import (
    RUN_LIVE,
    InstanceState,
    JobEvent,
    RunEvent,
    RunState,
    Stage,
)
from services.registry.records.changes import change_job, change_run, lock_run
from services.registry.records.events import record_change
from services.registry.resolution import fits
from services.registry.schema import InstanceRow, JobRow, RunRow

# Jobs looked at for one binding; beyond, the next round looks again.
_LOOK = 32


@dataclass(frozen=True)
class Source:
    """The run whose output a stage needs, and where it is now."""

    run: RunRow
    endpoint: str

    def ref(self) -> transfer_pb2.BundleRef:
        """The bundle, for its consumer."""
        return transfer_pb2.BundleRef(
            instance_id=self.run.instance_id,
            endpoint=self.endpoint,
            bundle_id=self.run.output_bundle_id or "",
            size_bytes=self.run.output_size_bytes,
            sha256=self.run.output_sha256 or b"",
            read_token=self.run.output_token,
        )


@dataclass(frozen=True)
class Binding:
    """A run with all that its start says."""

    run: RunRow
    job: JobRow
    endpoint: str
    source: Source | None

    def run_spec(self) -> stage_pb2.RunSpec:
        """What every start says alike."""
        return stage_pb2.RunSpec(
            run_id=self.run.run_id,
            job_id=self.run.job_id,
            owner_id=self.job.owner_id,
            generation=self.run.generation,
            journal_id=self.run.journal_id,
            lease_token=self.run.lease_token,
        )


def claim(
    session: Session,
    stage: Stage,
    willing: Collection[str],
    reachable: Collection[str],
    encoded_ahead: int,
) -> str | None:
    """Bind the first waiting job of `stage` that a free instance can run; its run id.

    `willing` are the instances that may be bound, `reachable` those that an input can be pulled
    from now. None if there is nothing to bind.
    """
    free = _free_instances(session, stage, willing)
    if not free or (stage is Stage.ENCODE and not _may_encode(session, encoded_ahead)):
        return None
    waiting = (
        select(JobRow)
        .where(col(JobRow.waiting).is_(True), col(JobRow.stage) == stage)
        .order_by(col(JobRow.create_time), col(JobRow.job_id))
        .limit(_LOOK)
        .with_for_update(skip_locked=True)
    )
    for job in session.exec(waiting):
        source = find_source(session, job.job_id, stage)
        if source is not None and source.run.instance_id not in reachable:
            continue
        for instance in free:
            if fits(stage_pb2.Capabilities.FromString(instance.capabilities), job):
                return _bind(session, job, stage, instance)
    return None


def _bind(session: Session, job: JobRow, stage: Stage, instance: InstanceRow) -> str:
    run = RunRow(
        run_id=new_id("run"),
        job_id=job.job_id,
        stage=stage,
        instance_id=instance.instance_id,
        generation=instance.generation,
        journal_id=instance.journal_id,
        lease_token=new_secret("rml"),
    )
    session.add(run)
    change_job(job, JobEvent.BOUND)
    record_change(session, job)
    return run.run_id


def _free_instances(
    session: Session, stage: Stage, reachable: Collection[str]
) -> list[InstanceRow]:
    """READY instances with a free slot, the least busy first. Locked: a slot is bound once."""
    query = (
        select(InstanceRow)
        .where(
            col(InstanceRow.stage) == stage,
            col(InstanceRow.state) == InstanceState.READY,
            col(InstanceRow.instance_id).in_(reachable),
        )
        .order_by(col(InstanceRow.instance_id))
        .with_for_update()
    )
    instances = list(session.exec(query))
    busy = count_busy(session) if instances else {}
    free = [one for one in instances if busy.get(one.instance_id, 0) < one.slots]
    return sorted(free, key=lambda one: busy.get(one.instance_id, 0))


def count_busy(session: Session) -> Mapping[str, int]:
    """Slots held by instance: counted from the runs, so that no crash can leak one."""
    query = (
        select(RunRow.instance_id, func.count())
        .where(col(RunRow.state).in_(RUN_LIVE))
        .group_by(col(RunRow.instance_id))
    )
    return dict(session.exec(query).all())


def _may_encode(session: Session, encoded_ahead: int) -> bool:
    """Whether another encode would not run too far ahead of the samplers."""
    slots = session.exec(
        select(func.sum(InstanceRow.slots)).where(
            col(InstanceRow.stage) == Stage.SAMPLE,
            col(InstanceRow.state) != InstanceState.GONE,
        )
    ).one()
    encoded = session.exec(
        select(func.count()).where(col(JobRow.waiting).is_(True), col(JobRow.stage) == Stage.SAMPLE)
    ).one()
    encoding = session.exec(
        select(func.count()).where(
            col(RunRow.stage) == Stage.ENCODE, col(RunRow.state).in_(RUN_LIVE)
        )
    ).one()
    return encoded + encoding < encoded_ahead * max(1, slots or 0)


def find_source(session: Session, job_id: str, stage: Stage) -> Source | None:
    """The output that `stage` of the job needs; None for the first stage."""
    producer = {Stage.SAMPLE: Stage.ENCODE, Stage.DECODE: Stage.SAMPLE}.get(stage)
    if producer is None:
        return None
    query = (
        select(RunRow, InstanceRow.endpoint)
        .join(InstanceRow, col(InstanceRow.instance_id) == col(RunRow.instance_id))
        .where(
            col(RunRow.job_id) == job_id,
            col(RunRow.stage) == producer,
            col(RunRow.state) == RunState.SUCCEEDED,
        )
        .order_by(col(RunRow.bind_time).desc())
    )
    found = session.exec(query).first()
    return None if found is None else Source(run=found[0], endpoint=found[1])


def read_binding(session: Session, run_id: str) -> Binding | None:
    """The binding as it is now, with its instance's present endpoint."""
    run = session.get(RunRow, run_id)
    if run is None:
        return None
    job = session.get_one(JobRow, run.job_id)
    instance = session.get_one(InstanceRow, run.instance_id)
    source = find_source(session, run.job_id, run.stage)
    return Binding(run, job, instance.endpoint, source)


def mark_sent(session: Session, run_id: str) -> bool:
    """Compare-and-set just before the call: only whoever gets True may call."""
    done = session.execute(
        update(RunRow)
        .where(
            col(RunRow.run_id) == run_id,
            col(RunRow.state) == RunState.BOUND,
            col(RunRow.start_sent).is_(False),
        )
        .values(start_sent=True)
    )
    return int(getattr(done, "rowcount", 0)) == 1


def withdraw_unsent(session: Session, run_id: str) -> bool:
    """Take a binding back whose start was never sent; whether it was so."""
    locked = lock_run(session, run_id)
    if locked is None or locked[0].start_sent or locked[0].state is not RunState.BOUND:
        return False
    change_run(session, *locked, RunEvent.WITHDRAWN)
    return True


def live_runs(session: Session) -> list[str]:
    """All runs that hold a slot, oldest first: what a restarted registry takes up again."""
    query = select(RunRow.run_id).where(col(RunRow.state).in_(RUN_LIVE))
    return list(session.exec(query.order_by(col(RunRow.bind_time))))
