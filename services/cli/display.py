"""Jobs and instances as a person reads them."""

from datetime import UTC, datetime

from rich.table import Table
from rich.text import Text

from reelmesh.v1 import jobs_pb2, owners_pb2, stage_pb2

_COLORS = {
    jobs_pb2.JOB_STATE_SUCCEEDED: "green",
    jobs_pb2.JOB_STATE_FAILED: "red",
    jobs_pb2.JOB_STATE_CANCELLED: "yellow",
    jobs_pb2.JOB_STATE_VERIFYING: "magenta",
}
_STAGES = {
    stage_pb2.STAGE_ENCODE: "encode",
    stage_pb2.STAGE_SAMPLE: "sample",
    stage_pb2.STAGE_DECODE: "decode",
}
_BYTE_PHASES = ("pull", "upload")
_ID_WIDTH = 36  # of "job_" and 32 digits


def state_name(job: jobs_pb2.Job) -> str:
    """For example "RUNNING"."""
    return jobs_pb2.JobState.Name(job.state).removeprefix("JOB_STATE_")


def describe_stage(job: jobs_pb2.Job) -> str:
    """What a job does right now, in words: only what was measured."""
    if job.state == jobs_pb2.JOB_STATE_QUEUED:
        place = f"{job.queue_position} ahead" if job.queue_position else "next"
        return f"queued, {place}" + (f", {job.waiting_for}" if job.waiting_for else "")
    if job.state == jobs_pb2.JOB_STATE_VERIFYING:
        return f"{_STAGES.get(job.stage, '')}: asking what became of the run"
    if job.state != jobs_pb2.JOB_STATE_RUNNING:
        return state_name(job).lower()
    stage, progress = _STAGES.get(job.stage, ""), job.progress
    if job.waiting_for:
        return f"{stage}: {job.waiting_for}"
    if not progress.phase:
        return stage
    words = f"{stage}: {progress.phase.replace('_', ' ')}"
    if progress.phase in _BYTE_PHASES:
        return f"{words} {size(progress.done)} of {size(progress.total)}"
    return f"{words} {progress.done} of {progress.total}" if progress.total > 1 else words


def size(count: int) -> str:
    """Bytes for people, for example "14.3 MB"."""
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def _table(first: str, *columns: str) -> Table:
    """A table whose first column, an id to copy, is never cut however narrow the terminal."""
    table = Table(box=None, pad_edge=False)
    table.add_column(first, no_wrap=True, min_width=_ID_WIDTH if first != "instance" else None)
    for column in columns:
        table.add_column(column)
    return table


def plain(text: str) -> Text:
    """Somebody's text without what a terminal would obey: control characters become spaces."""
    return Text("".join(c if c.isprintable() or c == "\n" else " " for c in text))


def jobs_table(jobs: list[jobs_pb2.Job]) -> Table:
    """One line a job."""
    table = _table("job", "state", "now", "clip", "made", "prompt")
    for job in jobs:
        clip = job.spec.clip
        table.add_row(
            job.job_id,
            Text(state_name(job), style=_COLORS.get(job.state, "")),
            describe_stage(job),
            f"{clip.width}x{clip.height}, {clip.frames} f",
            _ago(job.create_time.ToDatetime(tzinfo=UTC)),
            plain(" ".join(job.spec.prompt.split())[:40]),
        )
    return table


def job_details(job: jobs_pb2.Job) -> Table:
    """Everything a job tells, one line a fact."""
    spec, clip = job.spec, job.spec.clip
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("job", job.job_id)
    table.add_row("state", Text(state_name(job), style=_COLORS.get(job.state, "")))
    table.add_row("now", describe_stage(job) + (", cancelling" if job.cancel_requested else ""))
    table.add_row("prompt", plain(spec.prompt))
    table.add_row("canvas", f"{clip.width}x{clip.height}")
    table.add_row("length", f"{clip.frames} frames, {spec.duration_s:.2f} s")
    table.add_row("seed", str(spec.seed))
    table.add_row("evaluations", f"{spec.evaluations} ({spec.inference_steps} inference steps)")
    if spec.off_distribution:
        table.add_row("note", "longer than the model was trained for")
    if job.HasField("failure"):
        table.add_row("failure", Text(f"{job.failure.reason}: {job.failure.message}", style="red"))
    if job.artifact_id:
        table.add_row("artifact", job.artifact_id)
    for attempt in job.attempts:
        seconds = sum(timing.duration.ToMilliseconds() for timing in attempt.timings) / 1000
        state = stage_pb2.RunState.Name(attempt.state).removeprefix("RUN_STATE_")
        table.add_row(
            _STAGES.get(attempt.stage, "run"),
            f"{state} on {attempt.instance_id} ({attempt.run_id}), {seconds:.1f} s",
        )
    return table


def instances_table(instances: list[stage_pb2.Instance]) -> Table:
    """One line an instance."""
    table = _table("instance", "stage", "state", "busy", "endpoint", "start", "checkpoint")
    for instance in instances:
        able = instance.capabilities
        table.add_row(
            instance.instance_id,
            _STAGES.get(able.stage, ""),
            stage_pb2.InstanceState.Name(instance.state).removeprefix("INSTANCE_STATE_"),
            f"{instance.busy_slots}/{able.slots}",
            instance.endpoint,
            f"#{instance.generation}",
            f"{able.checkpoint} ({able.checkpoint_digest[:12]})",
        )
    return table


def receipt_table(receipt: jobs_pb2.Receipt) -> Table:
    """What made a video, one line a fact."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("job", receipt.job_id)
    table.add_row("state", jobs_pb2.JobState.Name(receipt.state).removeprefix("JOB_STATE_"))
    if receipt.resumed_from:
        table.add_row("resumes", receipt.resumed_from)
    if receipt.artifact_id:
        digest = receipt.artifact_sha256.hex()
        table.add_row("artifact", f"{receipt.artifact_id}, {size(receipt.artifact_size_bytes)}")
        table.add_row("SHA-256", digest)
    for run in receipt.runs:
        attempt, recipe = run.attempt, run.recipe
        state = stage_pb2.RunState.Name(attempt.state).removeprefix("RUN_STATE_")
        where = f"{attempt.instance_id} #{attempt.generation}"
        words = f"{state} on {where}, {recipe.checkpoint} {recipe.checkpoint_digest[:12]}"
        words += f", {recipe.precision}" + (f", {recipe.layout}" if recipe.layout else "")
        if attempt.HasField("failure"):
            words += f", {attempt.failure.reason}"
        if run.inherited_from:
            words += f", of {run.inherited_from}"
        table.add_row(_STAGES.get(attempt.stage, "run"), words)
    for timing in receipt.timings:
        table.add_row(timing.phase, f"{timing.duration.ToMilliseconds() / 1000:.3f} s")
    return table


def owners_table(owners: list[owners_pb2.Owner]) -> Table:
    """One line an owner."""
    table = _table("owner", "name", "admin", "running", "waiting", "weight")
    for owner in owners:
        quota = owner.quota
        table.add_row(
            owner.owner_id,
            plain(owner.name),
            "yes" if owner.admin else "",
            _limit(quota.max_running),
            _limit(quota.max_waiting),
            f"{quota.weight:g}",
        )
    return table


def keys_table(keys: list[owners_pb2.Key]) -> Table:
    """One line a key."""
    table = _table("key", "label", "made", "ended")
    for key in keys:
        ended = key.HasField("revoke_time")
        table.add_row(
            key.key_id,
            plain(key.label),
            _ago(key.create_time.ToDatetime(tzinfo=UTC)),
            _ago(key.revoke_time.ToDatetime(tzinfo=UTC)) if ended else "",
        )
    return table


def _limit(number: int) -> str:
    return "no limit" if number < 0 else str(number)


def _ago(when: datetime) -> str:
    seconds = max(0, int((datetime.now(UTC) - when).total_seconds()))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit} ago"
    return f"{seconds} s ago"
