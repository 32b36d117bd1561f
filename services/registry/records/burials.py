"""Runs that an operator ruled over while their instance was away, and what it still owes them.

What was ruled holds only once the instance's own journal agrees: a run that never came is buried
there, one that works on is stopped, and an output that nobody waits for is deleted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlmodel import Session, col, select

from reelmesh.v1 import stage_pb2
from services.registry.lifecycle import RUN_TERMINAL, InstanceState
from services.registry.messages import run_state_of
from services.registry.records.changes import lock_run
from services.registry.schema import InstanceRow, RunRow


@dataclass(frozen=True)
class Burial:
    """One that can be asked for now."""

    run_id: str
    job_id: str
    journal_id: str
    endpoint: str


def owed_burials(session: Session, limit: int) -> Sequence[Burial]:
    """Those at instances that are there and have the journal that took the run."""
    query = (
        select(RunRow.run_id, RunRow.job_id, RunRow.journal_id, InstanceRow.endpoint)
        .join(InstanceRow, col(InstanceRow.instance_id) == col(RunRow.instance_id))
        .where(
            col(RunRow.burial_owed).is_(True),
            col(InstanceRow.journal_id) == col(RunRow.journal_id),
            col(InstanceRow.state).in_((InstanceState.READY, InstanceState.DRAINING)),
        )
        .limit(limit)
    )
    return [Burial(*row) for row in session.exec(query)]


def take_burial(session: Session, run_id: str, report: stage_pb2.Run) -> bool:
    """Take in what the instance said to its cancellation; whether it told of a run that it has.

    The run stays as it was ruled. It is buried once the instance says that it has ended there.
    """
    locked = lock_run(session, run_id)
    if locked is None:
        return False
    run = locked[0]
    run.burial_owed = run_state_of(report.state) not in RUN_TERMINAL
    if report.output.bundle_id and run.output_bundle_id is None:
        # Given up already: to be deleted there.
        run.output_bundle_id, run.output_kept = report.output.bundle_id, False
    session.add(run)
    return bool(report.job_id)
