"""Publishing: one transaction, once; leases; collecting; files that went missing."""

import hashlib

import pytest

from reelmesh.v1 import artifacts_pb2, jobs_pb2, transfer_pb2
from services.common.rpc.channel import Peer
from services.common.rpc.errors import MeshError, Reason
from services.common.rpc.identity import Role
from services.registry.schema import RunRow
from tests.registry.mesh import Mesh, begun_at, until
from tests.registry.stages import publish, upload

VIDEO = transfer_pb2.Manifest(kind=transfer_pb2.BUNDLE_KIND_VIDEO)


async def lease_of(mesh: Mesh, run_id: str) -> transfer_pb2.Lease:
    """The lease that the stage was given."""
    run = await mesh.registry.database.read(lambda session: session.get(RunRow, run_id))
    assert run is not None
    return transfer_pb2.Lease(run_id=run_id, token=run.lease_token)


async def test_a_repeated_publish_returns_the_artifact(mesh: Mesh) -> None:
    """After the job has succeeded too, and without a second file."""
    _, _, decoder = await mesh.add_all()
    job = await mesh.local.create()
    ended = await mesh.local.ended(job.job_id)
    lease = await lease_of(mesh, ended.attempts[-1].run_id)
    peer = Peer(mesh.registry.mesh_address, mesh.tokens.of(Role.STAGE))
    assert await publish(peer, lease, decoder.uploads[0]) == ended.artifact_id
    assert len(list(mesh.settings.artifact_folder.glob("*.mp4"))) == 1


async def test_a_wrong_or_older_lease_can_neither_upload_nor_publish(mesh: Mesh) -> None:
    """STALE_RUN on every call that could change anything, without a lease too."""
    _, _, decoder = await mesh.add_all()
    await decoder.hold()
    client = mesh.local
    job = await client.create()
    running = await client.until(job.job_id, begun_at(decoder))
    good = await lease_of(mesh, running.attempts[-1].run_id)
    older = await lease_of(mesh, running.attempts[0].run_id)
    wrong = transfer_pb2.Lease(run_id=good.run_id, token=older.token)
    nobody = transfer_pb2.Lease(run_id="run_" + "0" * 32, token=good.token)
    file = mesh.home / "file.mp4"
    file.write_bytes(b"abc")
    peer = Peer(mesh.registry.mesh_address, mesh.tokens.of(Role.STAGE))
    for lease in (older, wrong, nobody, transfer_pb2.Lease()):
        with pytest.raises(MeshError) as refused:
            await upload(peer, lease, VIDEO, file)
        assert refused.value.reason is Reason.STALE_RUN
        with pytest.raises(MeshError) as refused:
            await publish(peer, lease, "up_" + "0" * 32)
        assert refused.value.reason is Reason.STALE_RUN
    uploaded = await upload(peer, good, VIDEO, file)
    with pytest.raises(MeshError) as refused:
        await publish(peer, good, "up_" + "0" * 32)
    assert refused.value.reason is Reason.UPLOAD_NOT_FOUND
    artifact_id = await publish(peer, good, uploaded)
    assert (await client.get(job.job_id)).artifact_id == artifact_id
    await decoder.release()


async def test_a_publish_after_a_cancel_is_refused(mesh: Mesh) -> None:
    """JOB_ENDED, also while the run is still ending."""
    _, _, decoder = await mesh.add_all()
    await decoder.hold()
    decoder.deaf = True
    client = mesh.local
    job = await client.create()
    running = await client.until(job.job_id, begun_at(decoder))
    lease = await lease_of(mesh, running.attempts[-1].run_id)
    file = mesh.home / "file.mp4"
    file.write_bytes(b"abc")
    peer = Peer(mesh.registry.mesh_address, mesh.tokens.of(Role.STAGE))
    uploaded = await upload(peer, lease, VIDEO, file)
    await client.cancel(job.job_id)
    with pytest.raises(MeshError) as refused:
        await publish(peer, lease, uploaded)
    assert refused.value.reason is Reason.JOB_ENDED
    await decoder.release()
    assert (await client.ended(job.job_id)).state == jobs_pb2.JOB_STATE_CANCELLED


async def test_an_mp4_that_could_not_be_delivered_is_fetched(mesh: Mesh) -> None:
    """The decoder has done its part; the registry asks, pulls and publishes."""
    _, _, decoder = await mesh.add_all()
    decoder.delivers = False
    client = mesh.local
    job = await client.create()
    ended = await client.ended(job.job_id)
    assert ended.state == jobs_pb2.JOB_STATE_SUCCEEDED, ended
    file = mesh.settings.artifact_folder / f"{ended.artifact_id}.mp4"
    assert hashlib.sha256(file.read_bytes()).digest() == ended.attempts[-1].output_sha256


async def test_an_mp4_that_is_gone_fails_the_job(mesh: Mesh) -> None:
    """Success without a file does not exist."""
    _, _, decoder = await mesh.add_all()
    decoder.delivers = False
    decoder.loses_output = True
    job = await mesh.local.create()
    ended = await mesh.local.ended(job.job_id)
    assert ended.state == jobs_pb2.JOB_STATE_FAILED
    assert ended.failure.reason == Reason.BUNDLE_NOT_FOUND


async def test_a_missing_or_damaged_file_is_data_loss_to_its_owner(mesh: Mesh) -> None:
    """Never a short download that looks like success."""
    await mesh.add_all()
    client = mesh.local
    job = await client.create()
    ended = await client.ended(job.job_id)
    request = artifacts_pb2.DownloadRequest(artifact_id=ended.artifact_id)
    file = mesh.settings.artifact_folder / f"{ended.artifact_id}.mp4"
    whole = file.read_bytes()
    for content in (whole[:-1], b"X" + whole[1:], None):
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
        with pytest.raises(MeshError) as refused:
            await client.read_all(client.artifacts.Download, request)
        assert refused.value.reason is Reason.BUNDLE_CORRUPT


async def test_ranges_are_what_was_asked_for(mesh: Mesh) -> None:
    """With the whole's size and digest in every finish; beyond the end is BAD_RANGE."""
    await mesh.add_all()
    client = mesh.local
    job = await client.create()
    ended = await client.ended(job.job_id)
    whole = (mesh.settings.artifact_folder / f"{ended.artifact_id}.mp4").read_bytes()
    for offset, limit in ((0, 0), (5, 0), (5, 3), (0, 1), (len(whole), 0), (3, 10**9)):
        request = artifacts_pb2.DownloadRequest(
            artifact_id=ended.artifact_id, offset=offset, limit=limit
        )
        messages = await client.read_all(client.artifacts.Download, request)
        content = b"".join(one.chunk.data for one in messages if one.HasField("chunk"))
        end = offset + limit if limit else len(whole)
        assert content == whole[offset:end]
        assert messages[-1].finish.size_bytes == len(whole)
        assert messages[-1].finish.sha256 == hashlib.sha256(whole).digest()
    for offset, limit in ((len(whole) + 1, 0), (-1, 0), (0, -1)):
        request = artifacts_pb2.DownloadRequest(
            artifact_id=ended.artifact_id, offset=offset, limit=limit
        )
        with pytest.raises(MeshError) as refused:
            await client.read_all(client.artifacts.Download, request)
        assert refused.value.reason is Reason.BAD_RANGE


async def test_bundles_go_when_nobody_needs_them(mesh: Mesh) -> None:
    """Conditioning once the latents are there, the MP4 once published, latents are kept."""
    encoder, sampler, decoder = await mesh.add_all()
    job = await mesh.local.create()
    await mesh.local.ended(job.job_id)

    async def gone() -> bool:
        return not encoder.store.list() and not decoder_videos()

    def decoder_videos() -> list[object]:
        kind = transfer_pb2.BUNDLE_KIND_VIDEO
        return [one for one in decoder.store.list() if one.manifest.kind == kind]

    await until(gone)
    latents = transfer_pb2.BUNDLE_KIND_LATENTS
    assert [one for one in sampler.store.list() if one.manifest.kind == latents]
    assert not list((mesh.settings.artifact_folder / "incoming" / "bundles").glob("*.bin"))
