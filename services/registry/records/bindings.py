"""Bindings: which job's stage goes to which instance, written before any call uses it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import bindparam, insert, update
from sqlmodel import Session, col, select

from reelmesh.v1 import stage_pb2
from services.common.ids import new_id, new_secret
from services.registry.columns import utc_now
from services.registry.lifecycle import (
    RUN_LIVE,
    JobEvent,
    RunEvent,
    RunState,
    Stage,
)
from services.registry.records.changes import change_job, change_run, lock_run
from services.registry.records.events import record_changes
from services.registry.records.halves import find_half, is_kept
from services.registry.records.slots import Bindable
from services.registry.records.sources import Source, find_source
from services.registry.schema import InstanceRow, JobRow, RunRow, table_of

# Built once: building one takes longer than SQLite does.
_BIND = insert(table_of(RunRow))
_READ = (
    select(RunRow, JobRow, InstanceRow.endpoint)
    .join(JobRow, col(JobRow.job_id) == col(RunRow.job_id))
    .join(InstanceRow, col(InstanceRow.instance_id) == col(RunRow.instance_id))
    .where(col(RunRow.run_id) == bindparam("run_id"))
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


@dataclass(frozen=True)
class Choice:
    """A job that goes to an instance for its stage."""

    job: JobRow
    instance_id: str
    expected_s: float


def bind_all(
    session: Session,
    stage: Stage,
    choices: Sequence[Choice],
    instances: Mapping[str, Bindable],
    replica_id: str,
    *,
    sent: bool,
) -> list[str]:
    """Bind the jobs' stage to the instances, all of them locked; the runs' ids.

    `sent`: the starts count as sent from now on, and whoever commits this sends each once, or asks.
    """
    now = utc_now()
    run_ids = [new_id("run") for _ in choices]
    rows = []
    for run_id, choice in zip(run_ids, choices, strict=True):
        instance = instances[choice.instance_id]
        rows.append(
            {
                "run_id": run_id,
                "job_id": choice.job.job_id,
                "stage": stage,
                "instance_id": instance.instance_id,
                "generation": instance.generation,
                "journal_id": instance.journal_id,
                "lease_token": new_secret("rml"),
                "state": RunState.BOUND,
                "start_sent": sent,
                "capabilities": instance.capabilities,
                "version": instance.version,
                "replica_id": replica_id,
                "expected_s": choice.expected_s,
                "resume_run_id": _half_at(session, choice.job, stage, instance),
                "bind_time": now,
            }
        )
        change_job(choice.job, JobEvent.BOUND)
    if rows:
        session.connection().execute(_BIND, rows)
        record_changes(session, [choice.job for choice in choices])
    return run_ids


def _half_at(session: Session, job: JobRow, stage: Stage, instance: Bindable) -> str:
    """Kept with the binding, so that a start says the same whoever sends it."""
    if stage is not Stage.SAMPLE or not (job.resumes or job.resumed_from):
        return ""
    half = find_half(session, job)
    if half is None or not is_kept(half, instance.instance_id, instance.journal_id):
        return ""
    return half.run_id


def read_binding(session: Session, run_id: str) -> Binding | None:
    """The binding as it is now, with its instance's present endpoint."""
    found = session.execute(_READ, {"run_id": run_id}).first()
    if found is None:
        return None
    run, job, endpoint = found
    return Binding(run, job, endpoint, find_source(session, run.job_id, run.stage))


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
