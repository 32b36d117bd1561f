"""Outputs that stages still hold, and when nobody needs them any more."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import and_, or_, update
from sqlmodel import Session, col, select

from services.registry.lifecycle import JOB_TERMINAL, JobState, RunState, Stage
from services.registry.schema import InstanceRow, JobRow, RunRow


def due_outputs(
    session: Session, ended_before: datetime, reachable: Sequence[str], limit: int
) -> Sequence[tuple[str, str, str]]:
    """(run id, bundle id, endpoint) of outputs to delete.

    Conditioning goes once the latents are there, an MP4 once it is published; everything goes when
    its job ended before `ended_before`.
    """
    consumed = or_(
        and_(
            col(RunRow.stage) == Stage.ENCODE,
            or_(col(JobRow.stage) == Stage.DECODE, col(JobRow.state) == JobState.SUCCEEDED),
        ),
        and_(col(RunRow.stage) == Stage.DECODE, col(RunRow.state) == RunState.SUCCEEDED),
    )
    over = and_(col(JobRow.state).in_(JOB_TERMINAL), col(JobRow.end_time) < ended_before)
    query = (
        select(RunRow.run_id, RunRow.output_bundle_id, InstanceRow.endpoint)
        .join(JobRow, col(JobRow.job_id) == col(RunRow.job_id))
        .join(InstanceRow, col(InstanceRow.instance_id) == col(RunRow.instance_id))
        .where(
            col(RunRow.output_kept).is_(True),
            col(RunRow.instance_id).in_(reachable),
            or_(consumed, over),
        )
        .limit(limit)
    )
    return [
        (run_id, bundle_id or "", endpoint) for run_id, bundle_id, endpoint in session.exec(query)
    ]


def untold_outputs(
    session: Session, reachable: Sequence[str], limit: int
) -> Sequence[tuple[str, str]]:
    """(run id, endpoint) of runs that were published before their stage told of its output."""
    query = (
        select(RunRow.run_id, InstanceRow.endpoint)
        .join(InstanceRow, col(InstanceRow.instance_id) == col(RunRow.instance_id))
        .where(
            col(RunRow.output_kept).is_(False),
            col(RunRow.output_bundle_id).is_(None),
            col(RunRow.state) == RunState.SUCCEEDED,
            col(RunRow.instance_id).in_(reachable),
        )
        .limit(limit)
    )
    return [(run_id, endpoint) for run_id, endpoint in session.exec(query)]


def mark_outputless(session: Session, run_id: str) -> None:
    """The instance does not know the run any more: there is nothing to delete."""
    session.execute(update(RunRow).where(col(RunRow.run_id) == run_id).values(output_bundle_id=""))


def mark_deleted(session: Session, run_id: str) -> None:
    """The instance does not hold the run's output any more."""
    session.execute(update(RunRow).where(col(RunRow.run_id) == run_id).values(output_kept=False))


def ended_runs(session: Session, run_ids: Sequence[str]) -> set[str]:
    """Those of the runs that have ended, or that are not known."""
    query = select(RunRow).where(col(RunRow.run_id).in_(run_ids), col(RunRow.end_time).is_(None))
    return set(run_ids) - {run.run_id for run in session.exec(query)}
