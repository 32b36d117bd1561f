"""Jobs whose input is nowhere any more: no instance holds it and we have no copy.

They cannot wait for it: they fail, or go on by themselves from the first output that is missing.
"""

from collections.abc import Sequence

from sqlalchemy import and_, exists, or_
from sqlmodel import Session, col, select

from services.common.rpc.errors import Reason
from services.registry.database import touch
from services.registry.lifecycle import InstanceState, JobEvent, RunState, Stage
from services.registry.records.changes import change_job, lock_job, make_failure
from services.registry.records.events import QUEUES, record_change
from services.registry.records.sources import find_source, missing_from
from services.registry.schema import InstanceRow, JobRow, RunRow

_NAMES = {Stage.SAMPLE: "conditioning", Stage.DECODE: "latents"}


def find_losses(session: Session, limit: int) -> Sequence[str]:
    """Waiting jobs whose input nobody has."""
    held = and_(
        col(RunRow.output_kept).is_(True),
        col(InstanceRow.state) != InstanceState.GONE,
        col(InstanceRow.journal_id) == col(RunRow.journal_id),
    )
    its = or_(
        col(RunRow.job_id) == col(JobRow.job_id),
        col(RunRow.run_id) == col(JobRow.inherited_encode),
        col(RunRow.run_id) == col(JobRow.inherited_sample),
    )
    needed = or_(
        and_(col(JobRow.stage) == Stage.SAMPLE, col(RunRow.stage) == Stage.ENCODE),
        and_(col(JobRow.stage) == Stage.DECODE, col(RunRow.stage) == Stage.SAMPLE),
    )
    found = exists().where(
        its,
        needed,
        col(RunRow.state) == RunState.SUCCEEDED,
        col(RunRow.instance_id) == col(InstanceRow.instance_id),
        or_(held, col(RunRow.copy_bundle_id).is_not(None)),
    )
    query = select(JobRow.job_id).where(
        col(JobRow.waiting).is_(True),
        col(JobRow.stage).in_((Stage.SAMPLE, Stage.DECODE)),
        ~found,
    )
    return session.exec(query.limit(limit)).all()


def settle_loss(session: Session, job_id: str) -> None:
    """The job FAILED, or its first missing stage queued again if it may resume by itself."""
    job = lock_job(session, job_id)
    if not job.waiting or job.stage not in _NAMES:
        return
    source = find_source(session, job_id, job.stage)
    if source is not None and source.exists:
        return
    if job.resumes < job.automatic_resumes:
        job.stage = missing_from(session, job)
        change_job(job, JobEvent.RESUMED)
    else:
        holder = source.run.instance_id if source is not None else "an instance"
        words = f"the {_NAMES[job.stage]} that {holder} made are not there any more"
        failure = make_failure(Reason.BUNDLE_NOT_FOUND, words, job.stage)
        job.failure = failure.SerializeToString()
        change_job(job, JobEvent.INPUT_LOST)
    record_change(session, job)
    touch(session, QUEUES)
