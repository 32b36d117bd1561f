"""Takes in what a stage says of a run, if it is about the binding that we wrote."""

from enum import StrEnum

from sqlmodel import Session

from reelmesh.v1 import stage_pb2, transfer_pb2
from services.common.rpc.errors import Reason
from services.registry.lifecycle import (
    RunEvent,
    RunState,
    absence_event,
    holds_slot,
    report_event,
)
from services.registry.messages import run_state_of, stage_of
from services.registry.records.changes import change_run, keep_timings, lock_run, make_failure
from services.registry.records.events import record_change
from services.registry.records.sources import forget_input
from services.registry.schema import RunRow

_PHASE_LIMIT = 32  # characters


class Outcome(StrEnum):
    """What became of a report."""

    LIVE = "LIVE"
    ENDED = "ENDED"
    # Its MP4 has to be fetched and published.
    UNPUBLISHED = "UNPUBLISHED"
    # It is about another run, instance or generation: dropped.
    FOREIGN = "FOREIGN"


def is_about(report: stage_pb2.Run, run: RunRow) -> bool:
    """Whether the report is about this binding.

    A stage that was started again may report its old runs under its new generation, or under 0
    until it has registered: its journal carries them on. A generation before the binding's own
    cannot know the run.
    """
    return (
        report.run_id == run.run_id
        and report.instance_id == run.instance_id
        and (report.generation == 0 or report.generation >= run.generation)
        and stage_of(report.stage) in (run.stage, None)
    )


def apply_report(session: Session, run_id: str, report: stage_pb2.Run) -> Outcome:
    """Take the report into run and job. A report on a run that has ended changes nothing."""
    locked = lock_run(session, run_id)
    reported = run_state_of(report.state)
    if locked is None or reported is None or not is_about(report, locked[0]):
        return Outcome.FOREIGN
    run, job = locked
    if not holds_slot(run.state):
        if run.state is reported is RunState.SUCCEEDED and run.output_bundle_id is None:
            # It was published before its stage could say that it had ended: nothing that is told
            # changes, but now we know which bundle to delete there.
            _keep_output(run, report.output)
            session.add(run)
        return Outcome.ENDED
    if _keep_progress(run, report.progress) and not job.end_time:
        # An event of its own: the last evaluation is told though the run ends with it.
        session.add(run)
        record_change(session, job)
    event = report_event(
        run.stage,
        reported,
        cancel_requested=job.cancel_requested,
        tombstoned=run.tombstoned,
        accepted=run.accepted,
    )
    failure = report.failure if report.HasField("failure") else None
    news = keep_timings(run, report.timings)
    if event in (RunEvent.REPORTED_SUCCEEDED, RunEvent.REPORTED_UNPUBLISHED):
        if not report.output.bundle_id:
            event = RunEvent.REPORTED_FAILED
            failure = make_failure(Reason.INTERNAL, "the stage told of no output", run.stage)
        else:
            news = _keep_output(run, report.output) or news
    elif event is RunEvent.DISCARDED and report.output.bundle_id:
        _keep_output(run, report.output)
        run.output_kept = False  # nobody needs it: to be deleted there
    if event is RunEvent.REPORTED_FAILED and failure is not None:
        forget_input(session, job, run, failure.reason)
    if not change_run(session, run, job, event, failure) and news:
        record_change(session, job)
    if event is RunEvent.REPORTED_UNPUBLISHED:
        return Outcome.UNPUBLISHED
    return Outcome.LIVE if holds_slot(run.state) else Outcome.ENDED


def apply_event(
    session: Session, run_id: str, event: RunEvent, failure: stage_pb2.Failure | None = None
) -> bool:
    """Take an event of the registry's own into a run; whether the run is still live."""
    locked = lock_run(session, run_id)
    if locked is None or not holds_slot(locked[0].state):
        return False
    run, job = locked
    change_run(session, run, job, event, failure)
    return holds_slot(run.state)


def apply_doubt(session: Session, run_id: str) -> None:
    """The start was sent and its answer is lost; what was heard of since stays as it is."""
    locked = lock_run(session, run_id)
    if locked is not None and holds_slot(locked[0].state) and not locked[0].accepted:
        change_run(session, *locked, RunEvent.ANSWER_LOST)


def apply_absence(session: Session, run_id: str, failure: stage_pb2.Failure | None) -> None:
    """The binding's own journal, tombstoned, does not know the run.

    `failure` is what the instance said to the start, if the request itself was to blame: starting
    it again would fail again.
    """
    locked = lock_run(session, run_id)
    if locked is None or not holds_slot(locked[0].state):
        return
    run, job = locked
    if failure is not None and not run.accepted:
        change_run(session, run, job, RunEvent.REPORTED_FAILED, failure)
    else:
        change_run(session, run, job, absence_event(accepted=run.accepted))


def mark_tombstoned(session: Session, run_id: str) -> None:
    """Before the instance is asked to bury the run: if we die in between, its answer is known."""
    locked = lock_run(session, run_id)
    if locked is not None and not locked[0].accepted:
        locked[0].tombstoned = True
        session.add(locked[0])


def _keep_output(run: RunRow, output: transfer_pb2.BundleRef) -> bool:
    """Where the output is; whether that was news."""
    known = run.output_bundle_id == output.bundle_id
    run.output_bundle_id = output.bundle_id
    run.output_size_bytes = output.size_bytes or run.output_size_bytes
    run.output_sha256 = output.sha256 or run.output_sha256
    run.output_token = output.read_token
    run.output_kept = bool(output.bundle_id)
    return not known


def _keep_progress(run: RunRow, progress: stage_pb2.Progress) -> bool:
    # What does not fit its column would stop the run's every report.
    phase = progress.phase.replace("\0", "")[:_PHASE_LIMIT]
    told = (phase, progress.done, progress.total)
    if not phase or told == (run.phase, run.done, run.total):
        return False
    run.phase, run.done, run.total = told
    return True
