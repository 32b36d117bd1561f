"""Cancel at every point; a terminal state never changes."""

from reelmesh.v1 import jobs_pb2, stage_pb2
from services.common.rpc.errors import Reason
from tests.registry.mesh import Mesh, until
from tests.registry.stages import ENDED

CANCELLED = jobs_pb2.JOB_STATE_CANCELLED


async def test_a_queued_job_is_cancelled_at_once(mesh: Mesh) -> None:
    """Nothing of it was sent anywhere."""
    encoder, _, _ = await mesh.add_all()
    await encoder.hold()
    client = mesh.local
    first, second = await client.create(), await client.create("a second boat")
    await client.until(first.job_id, lambda one: bool(encoder.journal.begun))
    assert (await client.cancel(second.job_id)).state == CANCELLED
    assert not (await client.get(second.job_id)).attempts


async def test_a_running_job_is_cancelled_when_its_run_has_ended(mesh: Mesh) -> None:
    """The request is visible at once; the slot serves the next job."""
    _, sampler, _ = await mesh.add_all()
    await sampler.hold()
    client = mesh.local
    job = await client.create()
    await client.until(job.job_id, lambda one: bool(sampler.journal.begun))
    assert (await client.cancel(job.job_id)).cancel_requested
    ended = await client.ended(job.job_id)
    assert ended.state == CANCELLED
    assert ended.attempts[-1].state == stage_pb2.RUN_STATE_CANCELLED
    assert not ended.artifact_id
    await sampler.release()
    other = await client.create("next")
    assert (await client.ended(other.job_id)).state == jobs_pb2.JOB_STATE_SUCCEEDED
    assert await client.get(job.job_id) == ended


async def test_a_cancel_at_completion_leaves_one_final_state(mesh: Mesh) -> None:
    """Whichever came first; with CANCELLED there is no file."""
    _, _, decoder = await mesh.add_all()
    client = mesh.local
    for round_ in range(6):
        job = await client.create(f"boat {round_}")
        await client.until(
            job.job_id, lambda one: one.stage == stage_pb2.STAGE_DECODE or one.end_time.seconds > 0
        )
        await client.cancel(job.job_id)
        ended = await client.ended(job.job_id)
        published = list(mesh.settings.artifact_folder.glob(f"{ended.artifact_id or 'none'}.mp4"))
        assert (ended.state == jobs_pb2.JOB_STATE_SUCCEEDED) == bool(published)
        assert (await client.cancel(job.job_id)).state == ended.state
        assert await client.get(job.job_id) == ended
    assert decoder.generation == 1


async def test_a_decode_that_finished_after_the_cancel_is_thrown_away(mesh: Mesh) -> None:
    """Its publish is refused and its bundle deleted."""
    _, _, decoder = await mesh.add_all()
    await decoder.hold()
    client = mesh.local
    job = await client.create()
    await client.until(job.job_id, lambda one: bool(decoder.journal.begun))
    decoder.deaf = True  # it does not hear the cancel and finishes
    await client.cancel(job.job_id)
    await decoder.release()
    ended = await client.ended(job.job_id)
    assert ended.state == CANCELLED
    assert not list(mesh.settings.artifact_folder.glob("*.mp4"))
    assert decoder.delivery_errors == [Reason.JOB_ENDED]


async def test_a_failed_run_fails_its_job_with_the_workers_words(mesh: Mesh) -> None:
    """FAILED names the stage and is not tried again by itself."""
    _, sampler, _ = await mesh.add_all()
    sampler.fail = Reason.OUT_OF_MEMORY
    job = await mesh.local.create()
    ended = await mesh.local.ended(job.job_id)
    assert ended.state == jobs_pb2.JOB_STATE_FAILED
    assert ended.failure.reason == Reason.OUT_OF_MEMORY
    assert ended.failure.message == "the engine said so"
    assert ended.failure.stage == stage_pb2.STAGE_SAMPLE
    assert len(sampler.starts) == 1


async def test_two_jobs_overlap_on_their_stages(mesh: Mesh) -> None:
    """The second one samples before the first one's decode ends."""
    _, sampler, decoder = await mesh.add_all()
    await decoder.hold()
    client = mesh.local
    first, second = await client.create(), await client.create("a second boat")

    async def both() -> bool:
        return len(sampler.journal.begun) == 2 and len(decoder.journal.begun) == 1

    await until(both)
    assert (await client.get(first.job_id)).stage == stage_pb2.STAGE_DECODE
    await decoder.release()
    for job in (first, second):
        assert (await client.ended(job.job_id)).state == jobs_pb2.JOB_STATE_SUCCEEDED


async def test_the_encoder_runs_ahead_by_two_jobs_at_most(mesh: Mesh) -> None:
    """The other jobs stay QUEUED, and their places are told."""
    encoder, sampler, _ = await mesh.add_all()
    await sampler.hold()
    client = mesh.local
    jobs = [await client.create(f"boat {number}") for number in range(6)]

    async def settled() -> bool:
        return len(encoder.journal.begun) == 3 and len(sampler.journal.begun) == 1

    await until(settled)
    await client.until(
        jobs[-1].job_id,
        lambda one: one.state == jobs_pb2.JOB_STATE_QUEUED and one.queue_position == 2,
    )
    assert len(encoder.journal.begun) == 3
    await sampler.release()
    for job in jobs:
        assert (await client.ended(job.job_id)).state == jobs_pb2.JOB_STATE_SUCCEEDED


async def test_a_bound_job_is_cancelled_before_its_start_arrives(mesh: Mesh) -> None:
    """The start is on its way and unanswered: the run is stopped as soon as it is known."""
    encoder, _, _ = await mesh.add_all()
    await encoder.hold()
    encoder.hold_starts.clear()
    client = mesh.local
    job = await client.create()
    bound = await client.until(job.job_id, lambda one: encoder.arrived > 0 and one.attempts != [])
    assert bound.attempts[0].state == stage_pb2.RUN_STATE_BOUND
    assert (await client.cancel(job.job_id)).cancel_requested
    encoder.hold_starts.set()
    assert (await client.ended(job.job_id)).state == CANCELLED

    async def stopped() -> bool:
        return all(run.state in ENDED for run in encoder.journal.runs.values())

    await until(stopped)
    await encoder.release()
    other = await client.create("next")
    assert (await client.ended(other.job_id)).state == jobs_pb2.JOB_STATE_SUCCEEDED


async def test_a_job_is_cancelled_during_its_mux(mesh: Mesh) -> None:
    """Within the phase; nothing is published and the decoder serves the next job."""
    _, _, decoder = await mesh.add_all()
    decoder.phase = "mux"
    decoder.steps = 3
    client = mesh.local
    job = await client.create()
    decoder.step_s = 0.2
    await client.until(job.job_id, lambda one: one.progress.phase == "mux")
    await client.cancel(job.job_id)
    ended = await client.ended(job.job_id)
    assert ended.state == CANCELLED
    assert ended.attempts[-1].state == stage_pb2.RUN_STATE_CANCELLED
    assert not list(mesh.settings.artifact_folder.glob("art_*"))
    other = await client.create("next")
    assert (await client.ended(other.job_id)).state == jobs_pb2.JOB_STATE_SUCCEEDED


async def test_a_job_that_waits_to_resume_is_cancelled_at_once(mesh: Mesh) -> None:
    """Between two of its runs nothing of it is at work."""
    _, sampler, _ = await mesh.add_all()
    await sampler.hold()
    sampler.fail, sampler.resumable = Reason.INTERRUPTED, True
    client = mesh.local
    job = await client.create(automatic_resumes=1)
    await client.until(job.job_id, lambda one: bool(sampler.journal.begun))
    sampler.refuse = True
    await sampler.release()
    waiting = await client.until(job.job_id, lambda one: one.resumes == 1)
    assert waiting.state == jobs_pb2.JOB_STATE_RUNNING
    await client.cancel(job.job_id)
    assert (await client.ended(job.job_id)).state == CANCELLED
    assert len(sampler.journal.begun) == 1
