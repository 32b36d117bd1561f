"""From CreateJob to the artifact, through fake stages."""

import hashlib

from reelmesh.v1 import artifacts_pb2, jobs_pb2, stage_pb2
from tests.registry.mesh import Mesh


async def test_a_job_becomes_an_artifact_that_its_owner_can_download(mesh: Mesh) -> None:
    """Encode, sample, decode, publish; the bytes are those that were stored."""
    await mesh.add_all()
    client = mesh.local
    made = await client.create(seed=2**64 - 1)
    assert made.state == jobs_pb2.JOB_STATE_QUEUED
    job = await client.ended(made.job_id)
    assert job.state == jobs_pb2.JOB_STATE_SUCCEEDED, job
    assert job.spec.seed == 2**64 - 1
    assert [one.stage for one in job.attempts] == [
        stage_pb2.STAGE_ENCODE,
        stage_pb2.STAGE_SAMPLE,
        stage_pb2.STAGE_DECODE,
    ]
    assert [one.phase for one in job.attempts[-1].timings] == ["mux"]
    messages = await client.read_all(
        client.artifacts.Download, artifacts_pb2.DownloadRequest(artifact_id=job.artifact_id)
    )
    content = b"".join(one.chunk.data for one in messages if one.HasField("chunk"))
    assert messages[0].header.sha256 == messages[-1].finish.sha256
    assert hashlib.sha256(content).digest() == messages[-1].finish.sha256
    assert content.startswith(b"not really an mp4")
    files = [path.name for path in mesh.settings.artifact_folder.glob("*.mp4")]
    assert files == [f"{job.artifact_id}.mp4"]
