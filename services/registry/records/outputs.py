"""Outputs that stages hold, and when nobody needs them any more.

An output is given up in one transaction and deleted at its stage after it, so that nothing is
handed out that is about to go.
"""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import and_, exists, or_, update
from sqlalchemy.orm import aliased
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from services.registry.lifecycle import (
    JOB_TERMINAL,
    RUN_LIVE,
    InstanceState,
    JobState,
    RunState,
    Stage,
    next_stage,
)
from services.registry.records.heirs import has_heirs, is_over, lock_due
from services.registry.schema import InstanceRow, JobRow, RunRow

# While a consumer says nothing, or this, it still reads its input.
_READING = ("", "pull")


def _due(ended_before: datetime) -> SelectOfScalar[RunRow]:
    """Outputs that nobody needs any more.

    Conditioning goes once we have a copy of the latents, an MP4 once it is published, what was
    copied when its job has ended; everything when its job ended before `ended_before`.
    """
    sampled = aliased(RunRow)
    latents_copied = exists().where(
        col(sampled.job_id) == col(RunRow.job_id),
        col(sampled.stage) == Stage.SAMPLE,
        col(sampled.copy_bundle_id).is_not(None),
    )
    consumed = or_(
        and_(
            col(RunRow.stage) == Stage.ENCODE,
            or_(
                and_(col(JobRow.stage) == Stage.DECODE, latents_copied),
                col(JobRow.state) == JobState.SUCCEEDED,
            ),
        ),
        and_(col(RunRow.stage) == Stage.DECODE, col(RunRow.state) == RunState.SUCCEEDED),
        and_(col(JobRow.state).in_(JOB_TERMINAL), col(RunRow.copy_bundle_id).is_not(None)),
    )
    return (
        select(RunRow)
        .join(JobRow, col(JobRow.job_id) == col(RunRow.job_id))
        .where(
            col(RunRow.output_kept).is_(True),
            or_(consumed, is_over(ended_before)),
            ~has_heirs(ended_before),
        )
    )


def are_outputs_due(session: Session, ended_before: datetime) -> bool:
    """Whether there is anything to give up."""
    return session.exec(_due(ended_before).limit(1)).first() is not None


def give_up_outputs(session: Session, ended_before: datetime, limit: int) -> None:
    """Give up what nobody needs any more."""
    for run in lock_due(session, _due(ended_before), limit):
        run.output_kept = False
        session.add(run)


def given_up_outputs(
    session: Session, reachable: Sequence[str], limit: int
) -> Sequence[tuple[str, str, str]]:
    """(run id, bundle id, endpoint) of outputs to delete."""
    query = (
        select(RunRow.run_id, RunRow.output_bundle_id, InstanceRow.endpoint)
        .join(InstanceRow, col(InstanceRow.instance_id) == col(RunRow.instance_id))
        .where(
            col(RunRow.output_kept).is_(False),
            col(RunRow.output_bundle_id) != "",
            col(RunRow.instance_id).in_(reachable),
            col(RunRow.journal_id) == col(InstanceRow.journal_id),
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


def mark_deleted(session: Session, run_id: str) -> None:
    """The instance holds no output of the run: there is nothing to delete any more."""
    session.execute(
        update(RunRow)
        .where(col(RunRow.run_id) == run_id)
        .values(output_bundle_id="", output_kept=False)
    )


def ended_runs(session: Session, run_ids: Sequence[str]) -> set[str]:
    """Those of the runs that have ended, or that are not known."""
    query = select(RunRow).where(col(RunRow.run_id).in_(run_ids), col(RunRow.end_time).is_(None))
    return set(run_ids) - {run.run_id for run in session.exec(query)}


def may_leave(session: Session, instance: InstanceRow) -> bool:
    """Whether a draining instance runs nothing and holds nothing that a live job needs of it."""
    if instance.state is not InstanceState.DRAINING:
        return False
    live = select(RunRow.run_id).where(
        col(RunRow.instance_id) == instance.instance_id, col(RunRow.state).in_(RUN_LIVE)
    )
    if session.exec(live.limit(1)).first() is not None:
        return False
    held = (
        select(RunRow, JobRow)
        .join(
            JobRow,
            or_(
                col(JobRow.job_id) == col(RunRow.job_id),
                col(JobRow.inherited_encode) == col(RunRow.run_id),
                col(JobRow.inherited_sample) == col(RunRow.run_id),
            ),
        )
        .where(
            col(RunRow.instance_id) == instance.instance_id,
            col(RunRow.journal_id) == instance.journal_id,
            col(RunRow.output_kept).is_(True),
            col(JobRow.state).not_in(JOB_TERMINAL),
        )
    )
    return not any(_is_needed(session, run, job) for run, job in session.exec(held).all())


def _is_needed(session: Session, run: RunRow, job: JobRow) -> bool:
    if job.stage is None or job.stage is not next_stage(run.stage):
        return False
    if job.waiting:
        return run.copy_bundle_id is None
    live = select(RunRow).where(col(RunRow.job_id) == job.job_id, col(RunRow.state).in_(RUN_LIVE))
    consumer = session.exec(live).first()
    return consumer is not None and consumer.phase in _READING
