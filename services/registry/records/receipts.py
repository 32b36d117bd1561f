"""Receipts: everything that made a video, read from the rows that its making left."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from sqlmodel import Session

from reelmesh.v1 import jobs_pb2, stage_pb2
from services.registry.lifecycle import RunState, Stage
from services.registry.messages import (
    attempt_message,
    job_state_name,
    spec_message,
    timestamp,
)
from services.registry.records.events import runs_of
from services.registry.schema import ArtifactRow, JobRow, RunRow

# Phases of a run that are no work of its stage: named alike in every receipt.
_MUX = ("mux", "verify")
_PUBLISH = ("upload",)


def make_receipt(session: Session, job: JobRow) -> jobs_pb2.Receipt:
    """The receipt of a job that has ended.

    A REFUSED run was no attempt and is left out, as in the job itself.
    """
    own = [run for run in runs_of(session, job.job_id) if run.state is not RunState.REFUSED]
    inherited = [
        run
        for run_id in (job.inherited_encode, job.inherited_sample)
        if run_id and (run := session.get(RunRow, run_id))
    ]
    receipt = jobs_pb2.Receipt(
        job_id=job.job_id,
        state=job_state_name(job.state),
        spec=spec_message(job),
        runs=[_run_receipt(run, job) for run in (*inherited, *own)],
        timings=_timings(job, own),
        resumed_from=job.resumed_from or "",
        create_time=timestamp(job.create_time),
        end_time=timestamp(job.end_time),
        failure=stage_pb2.Failure.FromString(job.failure) if job.failure is not None else None,
    )
    artifact = session.get(ArtifactRow, job.artifact_id) if job.artifact_id else None
    if artifact is not None:
        receipt.artifact_id = artifact.artifact_id
        receipt.artifact_size_bytes = artifact.size_bytes
        receipt.artifact_sha256 = artifact.sha256
    return receipt


def receipt_of_artifact(session: Session, artifact_id: str) -> jobs_pb2.Receipt:
    """The receipt of the job that published the artifact."""
    artifact = session.get_one(ArtifactRow, artifact_id)
    return make_receipt(session, session.get_one(JobRow, artifact.job_id))


def _run_receipt(run: RunRow, job: JobRow) -> jobs_pb2.RunReceipt:
    return jobs_pb2.RunReceipt(
        attempt=attempt_message(run),
        recipe=_recipe(run),
        version=run.version,
        inherited_from=run.job_id if run.job_id != job.job_id else "",
    )


def _recipe(run: RunRow) -> jobs_pb2.Recipe:
    capabilities = stage_pb2.Capabilities.FromString(run.capabilities or b"")
    return jobs_pb2.Recipe(
        checkpoint=capabilities.checkpoint,
        checkpoint_revision=capabilities.checkpoint_revision,
        checkpoint_digest=capabilities.checkpoint_digest,
        loras=capabilities.loras,
        precision=capabilities.precision,
        attention=capabilities.attention,
        cache=capabilities.cache,
        layout=capabilities.layout,
    )


def _timings(job: JobRow, own: Sequence[RunRow]) -> list[stage_pb2.PhaseTime]:
    """What the job waited for, moved and worked on, by its last run of every stage."""
    times = []
    for stage in Stage:
        of_stage = [run for run in own if run.stage is stage]
        if of_stage:
            times += _stage_timings(stage, of_stage[-1], _ready_time(job, own, of_stage[-1]))
    return times


def _stage_timings(stage: Stage, run: RunRow, ready: datetime) -> list[stage_pb2.PhaseTime]:
    told = stage_pb2.Run.FromString(run.timings or b"").timings
    word = stage.lower()
    times = [_phase(f"queue_{word}", run.bind_time - ready)]
    if any(time.phase == "pull" for time in told):
        times.append(_sum(f"transfer_{word}", told, ("pull",)))
    elsewhere = ("pull", *_MUX, *_PUBLISH)
    work = {time.phase for time in told} - set(elsewhere)
    if work:
        times.append(_sum(word, told, work))
    for name, phases in (("mux", _MUX), ("publish", _PUBLISH)):
        if any(time.phase in phases for time in told):
            times.append(_sum(name, told, phases))
    return times


def _ready_time(job: JobRow, own: Sequence[RunRow], run: RunRow) -> datetime:
    """Since when the run could have been bound: the end of the run before it."""
    ends = [
        one.end_time
        for one in own
        if one is not run and one.end_time and one.end_time <= run.bind_time
    ]
    return max([job.create_time, *ends])


def _sum(
    name: str, told: Iterable[stage_pb2.PhaseTime], phases: Iterable[str]
) -> stage_pb2.PhaseTime:
    wanted = set(phases)
    spans = [time.duration.ToTimedelta() for time in told if time.phase in wanted]
    return _phase(name, sum(spans, timedelta()))


def _phase(name: str, span: timedelta) -> stage_pb2.PhaseTime:
    time = stage_pb2.PhaseTime(phase=name)
    time.duration.FromTimedelta(span)
    return time
