"""Receipts: everything that made a video, in the registry and beside the file."""

import json
from pathlib import Path

import pytest
from google.protobuf import json_format

from reelmesh.v1 import jobs_pb2, stage_pb2
from services.common.rpc.errors import MeshError, Reason
from tests.registry.mesh import Client, Mesh, until
from tests.registry.test_resume import fail_at, resume

STAGES = [stage_pb2.STAGE_ENCODE, stage_pb2.STAGE_SAMPLE, stage_pb2.STAGE_DECODE]


async def receipt_of(client: Client, job_id: str) -> jobs_pb2.Receipt:
    """The job's receipt."""
    request = jobs_pb2.GetReceiptRequest(job_id=job_id)
    receipt: jobs_pb2.Receipt = (await client.call(client.jobs.GetReceipt, request)).receipt
    return receipt


def file_of(mesh: Mesh, artifact_id: str) -> Path:
    """Where the receipt lies beside the artifact."""
    return mesh.settings.artifact_folder / f"{artifact_id}.json"


def read(path: Path) -> jobs_pb2.Receipt:
    """A receipt's file."""
    return json_format.ParseDict(json.loads(path.read_text()), jobs_pb2.Receipt())


async def test_a_receipt_says_what_made_the_video(mesh: Mesh) -> None:
    """Instances, recipes, digests, times in order; and no secret."""
    stages = await mesh.add_all()
    job = await mesh.local.create(seed=11, evaluations=5)
    ended = await mesh.local.ended(job.job_id)
    receipt = await receipt_of(mesh.local, job.job_id)
    assert receipt.state == jobs_pb2.JOB_STATE_SUCCEEDED
    assert (receipt.spec.seed, receipt.spec.evaluations) == (11, 5)
    assert [run.attempt for run in receipt.runs] == list(ended.attempts)
    for run, stage in zip(receipt.runs, stages, strict=True):
        assert run.attempt.instance_id == stage.instance_id
        assert run.attempt.generation == 1
        assert run.recipe.checkpoint == "tiny"
        assert run.recipe.checkpoint_digest == stage.digest
        assert (run.recipe.precision, run.recipe.layout) == ("fp32", "tp1-ulysses1")
        assert run.version == "test"
        assert len(run.attempt.output_sha256) == 32
    assert receipt.artifact_sha256 == receipt.runs[-1].attempt.output_sha256
    assert receipt.artifact_size_bytes == receipt.runs[-1].attempt.output_size_bytes
    assert [time.phase for time in receipt.timings] == [
        "queue_encode", "encode", "queue_sample", "sample", "queue_decode", "mux",
    ]  # fmt: skip
    assert all(time.duration.ToTimedelta().total_seconds() >= 0 for time in receipt.timings)
    for secret in ("rml_", "rmb_", "127.0.0.1"):
        assert secret not in str(receipt)


async def test_a_receipt_lies_beside_its_artifact_and_is_made_again(mesh: Mesh) -> None:
    """At once, after it was deleted, and at the next start of a registry."""
    await mesh.add_all()
    job = await mesh.local.create()
    ended = await mesh.local.ended(job.job_id)
    path = file_of(mesh, ended.artifact_id)

    async def there() -> bool:
        return path.exists()

    await until(there)
    receipt = await receipt_of(mesh.local, job.job_id)
    assert read(path) == receipt
    path.unlink()
    await until(there)
    await mesh.registry.stop()
    path.unlink()
    await mesh.resume()
    await until(there)
    assert read(path) == receipt


async def test_a_receipt_of_a_resumed_job_tells_of_what_it_inherited(mesh: Mesh) -> None:
    """With the job that made it; its own times are its own."""
    stages = await mesh.add_all()
    failed = await fail_at(mesh, stages[2])
    resumed = await mesh.local.ended((await resume(mesh.local, failed.job_id)).job_id)
    receipt = await receipt_of(mesh.local, resumed.job_id)
    assert receipt.resumed_from == failed.job_id
    assert [run.attempt.stage for run in receipt.runs] == STAGES
    assert [run.inherited_from for run in receipt.runs] == [failed.job_id, failed.job_id, ""]
    assert [time.phase for time in receipt.timings] == ["queue_decode", "mux"]
    before = await receipt_of(mesh.local, failed.job_id)
    assert before.state == jobs_pb2.JOB_STATE_FAILED
    assert before.runs[-1].attempt.failure.reason == Reason.ENGINE_FAILED
    assert not before.artifact_id
    path = file_of(mesh, resumed.artifact_id)

    async def there() -> bool:
        return path.exists()

    await until(there)
    assert read(path) == receipt


async def test_a_receipt_tells_of_every_attempt_and_why_it_ended(mesh: Mesh) -> None:
    """A job that resumed by itself has made two of a stage."""
    _, sampler, _ = await mesh.add_all()
    sampler.resumable = True
    await sampler.hold()
    job = await mesh.local.create(automatic_resumes=1)
    await mesh.local.until(job.job_id, lambda one: bool(sampler.journal.begun))
    sampler.fail = Reason.WORKER_DIED
    await sampler.release()
    await mesh.local.until(job.job_id, lambda one: one.resumes == 1 or one.end_time.seconds > 0)
    sampler.fail = ""
    await mesh.local.ended(job.job_id)
    receipt = await receipt_of(mesh.local, job.job_id)
    samples = [run.attempt for run in receipt.runs if run.attempt.stage == STAGES[1]]
    assert len(samples) == 2
    assert samples[0].failure.reason == Reason.WORKER_DIED


async def test_a_job_that_lives_has_no_receipt_and_a_stranger_gets_none(mesh: Mesh) -> None:
    """JOB_NOT_ENDED to its owner; to others there is no such job."""
    _, sampler, _ = await mesh.add_all()
    await sampler.hold()
    job = await mesh.local.create()
    with pytest.raises(MeshError) as refused:
        await receipt_of(mesh.local, job.job_id)
    assert refused.value.reason is Reason.JOB_NOT_ENDED
    stranger = await mesh.owner("stranger")
    for job_id in (job.job_id, "job_" + "0" * 32):
        with pytest.raises(MeshError) as refused:
            await receipt_of(stranger, job_id)
        assert refused.value.reason is Reason.JOB_NOT_FOUND
    await sampler.release()
