"""A registry that starts on a database with work in every state goes on where it was."""

from reelmesh.v1 import jobs_pb2, stage_pb2
from tests.registry.mesh import Mesh, until
from tests.registry.stages import FakeStage


async def test_work_in_every_state_is_resumed(mesh: Mesh) -> None:
    """What had ended stays as it was; all else ends, and no stage of a job is done twice."""
    encoder, sampler, decoder = await mesh.add_all()
    silent = await mesh.add(stage_pb2.STAGE_SAMPLE, "sampler-1")
    local = mesh.local
    states: dict[str, int] = {}

    async def keep(job_id: str) -> None:
        states[job_id] = (await local.get(job_id)).state

    done = (await local.ended((await local.create("done")).job_id)).job_id
    sampler.fail = silent.fail = "ENGINE_FAILED"
    failed = (await local.ended((await local.create("failed")).job_id)).job_id
    sampler.fail = silent.fail = ""
    await sampler.hold()
    await silent.hold()
    cancelled = (await local.create("cancelled")).job_id
    await local.cancel(cancelled)
    await local.ended(cancelled)
    for job_id in (done, failed, cancelled):
        await keep(job_id)

    sampled = [(await local.create(f"sampled {number}")).job_id for number in range(2)]

    async def both_work() -> bool:
        return all(_begun(stage) & set(sampled) for stage in (sampler, silent))

    await until(both_work)
    silent.beating, silent.mute = False, True
    doubted = next(iter(_begun(silent) & set(sampled)))
    await local.until(doubted, lambda job: job.state == jobs_pb2.JOB_STATE_VERIFYING)
    waiting = (await local.create("waits for a sampler")).job_id
    await local.until(waiting, lambda job: job.stage == stage_pb2.STAGE_SAMPLE)
    await encoder.hold()
    encoded = (await local.create("is encoded")).job_id
    await local.until(encoded, lambda job: job.state == jobs_pb2.JOB_STATE_RUNNING)
    queued = (await local.create("waits for the encoder")).job_id
    assert (await local.get(queued)).state == jobs_pb2.JOB_STATE_QUEUED

    await mesh.restart()
    local = mesh.local
    for job_id, state in states.items():
        assert (await local.get(job_id)).state == state
    silent.beating, silent.mute = True, False
    for stage in (encoder, sampler, silent):
        await stage.release()
    for job_id in (*sampled, waiting, encoded, queued):
        ended = await local.ended(job_id, 30)
        assert ended.state == jobs_pb2.JOB_STATE_SUCCEEDED, ended
    for job_id, state in states.items():
        assert (await local.get(job_id)).state == state
    for stages in ((encoder,), (sampler, silent), (decoder,)):
        work = [
            stage.journal.runs[run_id].job_id for stage in stages for run_id in stage.journal.begun
        ]
        assert len(work) == len(set(work))


def _begun(stage: FakeStage) -> set[str]:
    return {stage.journal.runs[run_id].job_id for run_id in stage.journal.begun}
