"""Rows as the messages that clients read, and the few words that differ between the two."""

from collections.abc import Sequence
from datetime import datetime

from google.protobuf.timestamp_pb2 import Timestamp

from reelmesh.v1 import artifacts_pb2, jobs_pb2, owners_pb2, stage_pb2, transfer_pb2
from services.registry.lifecycle import InstanceState, JobState, RunState, Stage
from services.registry.limits import Limits, own_or
from services.registry.schema import (
    ArtifactRow,
    InstanceRow,
    JobRow,
    KeyRow,
    OwnerRow,
    RunRow,
)

FPS = 24


def stage_name(stage: Stage | None) -> str:
    """The stage as the contract has it."""
    return f"STAGE_{stage or 'UNSPECIFIED'}"


def stage_of(value: stage_pb2.Stage) -> Stage | None:
    """The contract's stage as ours; None if it is unspecified or not known."""
    try:
        return Stage(stage_pb2.Stage.Name(value).removeprefix("STAGE_"))
    except ValueError:
        return None


def run_state_name(state: RunState) -> str:
    """The run's state as the contract has it."""
    return f"RUN_STATE_{state}"


def run_state_of(value: stage_pb2.RunState) -> RunState | None:
    """The contract's state as ours; None if it is unspecified or not known."""
    try:
        return RunState(stage_pb2.RunState.Name(value).removeprefix("RUN_STATE_"))
    except ValueError:
        return None


def job_state_name(state: JobState) -> str:
    """The job's state as the contract has it."""
    return f"JOB_STATE_{state}"


def job_state_of(value: jobs_pb2.JobState) -> JobState | None:
    """The contract's state as ours; None if it is unspecified or not known."""
    try:
        return JobState(jobs_pb2.JobState.Name(value).removeprefix("JOB_STATE_"))
    except ValueError:
        return None


def instance_state_name(state: InstanceState) -> str:
    """The instance's state as the contract has it."""
    return f"INSTANCE_STATE_{state}"


def timestamp(time: datetime | None) -> Timestamp | None:
    """The time, or None: an unset field."""
    if time is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(time)
    return stamp


def clip_message(job: JobRow) -> transfer_pb2.Clip:
    """The video that is wanted."""
    return transfer_pb2.Clip(
        mode=f"MODE_{job.mode}",
        height=job.height,
        width=job.width,
        frames=job.frames,
    )


def spec_message(job: JobRow) -> jobs_pb2.ResolvedSpec:
    """What the request became."""
    return jobs_pb2.ResolvedSpec(
        prompt=job.prompt,
        clip=clip_message(job),
        seed=int(job.seed),
        evaluations=job.evaluations,
        inference_steps=job.evaluations + 1,
        fps=FPS,
        off_distribution=job.off_distribution,
        prompt_tokens=job.prompt_tokens,
        duration_s=job.frames / FPS,
        checkpoint_digest=job.checkpoint_digest,
        priority=job.priority,
        pool=job.pool,
        sampler_id=job.sampler_id,
        automatic_resumes=job.automatic_resumes,
    )


def attempt_message(run: RunRow) -> jobs_pb2.Attempt:
    """One run, as the owner of its job may see it: no token, no endpoint."""
    timings = stage_pb2.Run.FromString(run.timings or b"").timings
    return jobs_pb2.Attempt(
        run_id=run.run_id,
        stage=stage_name(run.stage),
        state=run_state_name(run.state),
        instance_id=run.instance_id,
        generation=run.generation,
        failure=stage_pb2.Failure.FromString(run.failure) if run.failure is not None else None,
        timings=timings,
        bind_time=timestamp(run.bind_time),
        end_time=timestamp(run.end_time),
        output_size_bytes=run.output_size_bytes,
        output_sha256=run.output_sha256 or b"",
    )


def job_message(job: JobRow, runs: Sequence[RunRow]) -> jobs_pb2.Job:
    """The job and its runs, without its place in the queue.

    A REFUSED run was no attempt and is not told: a job may be refused many times.
    """
    message = jobs_pb2.Job(
        job_id=job.job_id,
        state=job_state_name(job.state),
        spec=spec_message(job),
        stage=stage_name(job.stage),
        failure=stage_pb2.Failure.FromString(job.failure) if job.failure is not None else None,
        artifact_id=job.artifact_id or "",
        cancel_requested=job.cancel_requested,
        attempts=[attempt_message(run) for run in runs if run.state is not RunState.REFUSED],
        create_time=timestamp(job.create_time),
        start_time=timestamp(job.start_time),
        end_time=timestamp(job.end_time),
        revision=job.revision,
        resumed_from=job.resumed_from or "",
        resumes=job.resumes,
    )
    under_way = job.stage is not None and not job.waiting and runs
    if under_way and runs[-1].phase:
        last = runs[-1]
        progress = stage_pb2.Progress(phase=last.phase, done=last.done, total=last.total)
        message.progress.CopyFrom(progress)
    return message


def artifact_message(artifact: ArtifactRow) -> artifacts_pb2.Artifact:
    """The artifact."""
    return artifacts_pb2.Artifact(
        artifact_id=artifact.artifact_id,
        job_id=artifact.job_id,
        manifest=transfer_pb2.Manifest.FromString(artifact.manifest),
        size_bytes=artifact.size_bytes,
        sha256=artifact.sha256,
        create_time=timestamp(artifact.create_time),
        file_name=f"{artifact.artifact_id}.mp4",
    )


def owner_message(owner: OwnerRow, limits: Limits) -> owners_pb2.Owner:
    """The owner, with the limits that hold for it."""
    quota = owners_pb2.Quota(
        max_running=own_or(owner.max_running, limits.max_running),
        max_waiting=own_or(owner.max_waiting, limits.max_waiting),
        weight=owner.weight,
    )
    return owners_pb2.Owner(
        owner_id=owner.owner_id,
        name=owner.name,
        admin=owner.admin,
        create_time=timestamp(owner.create_time),
        quota=quota,
    )


def key_message(key: KeyRow) -> owners_pb2.Key:
    """The key, without its secret."""
    return owners_pb2.Key(
        key_id=key.key_id,
        owner_id=key.owner_id,
        label=key.label,
        create_time=timestamp(key.create_time),
        revoke_time=timestamp(key.revoke_time),
    )


def instance_message(instance: InstanceRow, run_ids: Sequence[str]) -> stage_pb2.Instance:
    """The instance, and the runs that hold its slots."""
    return stage_pb2.Instance(
        instance_id=instance.instance_id,
        endpoint=instance.endpoint,
        generation=instance.generation,
        boot_id=instance.boot_id,
        journal_id=instance.journal_id,
        capabilities=stage_pb2.Capabilities.FromString(instance.capabilities),
        state=instance_state_name(instance.state),
        busy_slots=len(run_ids),
        heartbeat_time=timestamp(instance.heartbeat_time),
        version=instance.version,
        run_ids=run_ids,
        pool=instance.pool,
        drain_requested=instance.drain_requested,
    )
