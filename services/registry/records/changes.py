"""Changes a run and, in the same transaction, whatever that means for its job.

The lifecycle's tables say what follows from what; nothing else in the registry writes a state.
"""

from collections.abc import Iterable
from typing import TypeVar

from sqlalchemy import bindparam
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from reelmesh.v1 import stage_pb2
from services.common.rpc.errors import TABLE, Reason
from services.registry.columns import utc_now
from services.registry.database import touch
from services.registry.lifecycle import (
    JOB_TERMINAL,
    JobEvent,
    RunEvent,
    RunState,
    Stage,
    advance_job,
    advance_run,
    consequence,
    holds_slot,
    may_resume,
    next_stage,
)
from services.registry.messages import stage_name
from services.registry.records.charges import settle
from services.registry.records.events import QUEUES, record_change
from services.registry.schema import JobRow, RunRow

T = TypeVar("T")

_MESSAGE_LIMIT = 4000  # characters, as the contract says


# Built once: building one takes longer than SQLite does.
def _lock(query: SelectOfScalar[T]) -> SelectOfScalar[T]:
    return query.with_for_update().execution_options(populate_existing=True)


_OF_RUN = select(RunRow.job_id).where(col(RunRow.run_id) == bindparam("run_id"))
_LOCK_JOB_OF = _lock(select(JobRow).where(col(JobRow.job_id) == _OF_RUN.scalar_subquery()))
_LOCK_JOB = _lock(select(JobRow).where(col(JobRow.job_id) == bindparam("job_id")))
_LOCK_RUN = _lock(select(RunRow).where(col(RunRow.run_id) == bindparam("run_id")))


def lock_run(session: Session, run_id: str) -> tuple[RunRow, JobRow] | None:
    """The run and its job, held until the transaction ends; None if there is no such run."""
    # The job first, everywhere: two transactions never wait for each other.
    job = session.exec(_LOCK_JOB_OF, params={"run_id": run_id}).first()
    if job is None:
        return None
    return session.exec(_LOCK_RUN, params={"run_id": run_id}).one(), job


def lock_job(session: Session, job_id: str) -> JobRow:
    """The job, held until the transaction ends."""
    return session.exec(_LOCK_JOB, params={"job_id": job_id}).one()


def make_failure(
    reason: Reason, message: str, stage: Stage, *, resumable: bool = True
) -> stage_pb2.Failure:
    """A failure that the registry itself found."""
    return stage_pb2.Failure(
        reason=reason,
        message=message,
        stage=stage_name(stage),
        retryable=TABLE[reason].retryable,
        resumable=resumable,
    )


def change_run(
    session: Session,
    run: RunRow,
    job: JobRow,
    event: RunEvent,
    failure: stage_pb2.Failure | None = None,
) -> bool:
    """Take `event` into the run and its consequence into the job; both must be locked.

    Whether that was a change that is now recorded. Raises IllegalTransition; then nothing is
    changed.
    """
    before = run.state
    run.state = advance_run(run.state, event)
    if run.state in (RunState.ACCEPTED, RunState.RUNNING):
        run.accepted = True
    if failure is not None and run.state is not RunState.SUCCEEDED:
        run.failure = _bounded(failure, run).SerializeToString()
    if not holds_slot(run.state):
        run.end_time = utc_now()
        settle(session, run, job)
    session.add(run)
    if job.state in JOB_TERMINAL:
        # It was cancelled in doubt: the run only gives its slot back.
        if run.state is not before:
            record_change(session, job)
        touch(session, QUEUES, run.run_id)
        return run.state is not before
    follow = consequence(
        run.stage,
        run.state,
        cancel_requested=job.cancel_requested,
        tombstoned=run.tombstoned,
        fresh=run.state in _MAY_REQUEUE and _is_fresh(session, job),
        resuming=may_resume(
            event,
            resumable=_is_resumable(run),
            resumes=job.resumes,
            allowed=job.automatic_resumes,
        ),
    )
    state = job.state
    change_job(job, follow, run)
    if run.state is before and job.state is state:
        return False
    record_change(session, job)
    touch(session, run.run_id)
    if job.waiting or not holds_slot(run.state):
        touch(session, QUEUES)
    return True


def change_job(job: JobRow, event: JobEvent, run: RunRow | None = None) -> None:
    """Take `event` into the job. Raises IllegalTransition; the caller records the change."""
    job.state = advance_job(job.state, event)
    if event is JobEvent.BOUND:
        job.waiting = False
        job.start_time = job.start_time or utc_now()
    elif event in (JobEvent.REQUEUED, JobEvent.RETURNED):
        job.waiting = True
        if event is JobEvent.REQUEUED:
            job.start_time = None
    elif event is JobEvent.RESUMED:
        job.waiting = True
        job.resumes += 1
    elif event is JobEvent.STAGE_DONE and job.stage is not None:
        job.stage = next_stage(job.stage)
        job.waiting = True
    elif event is JobEvent.STAGE_FAILED and run is not None:
        job.failure = run.failure or _unexplained(run).SerializeToString()
    if job.state in JOB_TERMINAL:
        job.stage = None
        job.waiting = False
        job.end_time = utc_now()


def keep_timings(run: RunRow, timings: Iterable[stage_pb2.PhaseTime]) -> bool:
    """What the stage measured, if it says so; whether that was news."""
    told = stage_pb2.Run(timings=timings)
    packed = told.SerializeToString()
    if not told.timings or packed == run.timings:
        return False
    run.timings = packed
    return True


# What a job may go back to its queue by: only then it matters whether it has begun.
_MAY_REQUEUE = (RunState.REFUSED, RunState.CANCELLED)


def _is_fresh(session: Session, job: JobRow) -> bool:
    """Whether nothing was done of the job yet."""
    done = select(RunRow.run_id).where(
        col(RunRow.job_id) == job.job_id, col(RunRow.state) == RunState.SUCCEEDED
    )
    return job.resumes == 0 and session.exec(done).first() is None


def _is_resumable(run: RunRow) -> bool:
    return run.failure is not None and stage_pb2.Failure.FromString(run.failure).resumable


def _bounded(failure: stage_pb2.Failure, run: RunRow) -> stage_pb2.Failure:
    kept = stage_pb2.Failure()
    kept.CopyFrom(failure)
    kept.MergeFrom(stage_pb2.Failure(stage=stage_name(run.stage)))
    if len(kept.message) > _MESSAGE_LIMIT:
        # What a worker says last is what went wrong.
        kept.message = "…" + kept.message[-(_MESSAGE_LIMIT - 1) :]
    return kept


def _unexplained(run: RunRow) -> stage_pb2.Failure:
    if run.state is RunState.CANCELLED:
        return make_failure(Reason.CANCELLED, "the run was cancelled at its instance", run.stage)
    if run.state is RunState.LOST:
        words = f"the instance {run.instance_id} does not know the run any more"
        return make_failure(Reason.INTERRUPTED, words, run.stage)
    return make_failure(Reason.INTERNAL, "the stage reported a failure without a reason", run.stage)
