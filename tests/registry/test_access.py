"""Who may see what: the owner comes from the key, and what is not yours does not exist."""

from pathlib import Path
from typing import Any

import grpc
import pytest
from sqlalchemy import text

from reelmesh.v1 import artifacts_pb2, instances_pb2, jobs_pb2, mesh_pb2, mesh_pb2_grpc, owners_pb2
from services.common.rpc.channel import Peer
from services.common.rpc.errors import MeshError, Reason
from services.common.rpc.identity import Role
from tests.registry.mesh import Client, Mesh

Answer = tuple[grpc.StatusCode, str, tuple[tuple[str, Any], ...]]

JOB_METHODS: list[tuple[str, type[Any], dict[str, Any]]] = [
    ("GetJob", jobs_pb2.GetJobRequest, {}),
    ("WatchJob", jobs_pb2.WatchJobRequest, {}),
    ("WatchJob", jobs_pb2.WatchJobRequest, {"start_revision": 1}),
    ("CancelJob", jobs_pb2.CancelJobRequest, {}),
    ("ResumeJob", jobs_pb2.ResumeJobRequest, {}),
    ("GetReceipt", jobs_pb2.GetReceiptRequest, {}),
]
ARTIFACT_METHODS: list[tuple[str, type[Any], dict[str, Any]]] = [
    ("GetArtifact", artifacts_pb2.GetArtifactRequest, {}),
    ("Download", artifacts_pb2.DownloadRequest, {}),
    ("Download", artifacts_pb2.DownloadRequest, {"offset": 3, "limit": 2}),
    ("Download", artifacts_pb2.DownloadRequest, {"offset": 10**9}),
    ("DeleteArtifact", artifacts_pb2.DeleteArtifactRequest, {}),
    ("GrantAccess", artifacts_pb2.GrantAccessRequest, {}),
    ("RevokeAccess", artifacts_pb2.RevokeAccessRequest, {}),
]


async def answer(client: Client, stub: Any, method: str, request: Any) -> Answer:
    """Code, message and trailers of a call that must fail."""
    call = getattr(stub, method)(request, metadata=client.peer.metadata(), timeout=10)
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        if isinstance(call, grpc.aio.UnaryStreamCall):
            async for _ in call:
                pass
        else:
            await call
    error = failed.value
    trailers = tuple((str(key), value) for key, value in error.trailing_metadata())
    return error.code(), str(error.details()), trailers


async def test_what_is_not_yours_is_byte_for_byte_what_does_not_exist(mesh: Mesh) -> None:
    """Every method, with another's id, a random one and ones of no form; then anonymously."""
    await mesh.add_all()
    alice, bob = await mesh.owner("alice"), await mesh.owner("bob")
    job = await alice.create()
    ended = await alice.ended(job.job_id)
    job_ids = [job.job_id, "job_" + "0" * 32, "x" * 500, "", "../../etc/passwd", "a\0b"]
    artifact_ids = [ended.artifact_id, "art_" + "0" * 32, "%", "art_*", "a\0b"]
    nobody = Client(mesh.registry.client_address, "rmk_wrong")
    for owner, found in ((bob, Reason.JOB_NOT_FOUND), (mesh.local, Reason.JOB_NOT_FOUND)):
        for method, make, more in JOB_METHODS:
            answers = {
                await answer(owner, owner.jobs, method, make(job_id=one, **more)) for one in job_ids
            }
            assert len(answers) == 1, (method, answers)
            code, _, trailers = answers.pop()
            if code is not grpc.StatusCode.UNIMPLEMENTED:
                assert code is grpc.StatusCode.NOT_FOUND
                assert found.encode() in dict(trailers)["grpc-status-details-bin"]
        for method, make, more in ARTIFACT_METHODS:
            answers = {
                await answer(owner, owner.artifacts, method, make(artifact_id=one, **more))
                for one in artifact_ids
            }
            assert len(answers) == 1, (method, answers)
    for method, make, more in JOB_METHODS:
        for one in job_ids[:2]:
            code, _, _ = await answer(nobody, nobody.jobs, method, make(job_id=one, **more))
            assert code is grpc.StatusCode.UNAUTHENTICATED
    for method, make, more in ARTIFACT_METHODS:
        request = make(artifact_id=ended.artifact_id, **more)
        code, _, _ = await answer(nobody, nobody.artifacts, method, request)
        assert code is grpc.StatusCode.UNAUTHENTICATED
    for owner in (bob, mesh.local):
        listed = await owner.call(owner.jobs.ListJobs, jobs_pb2.ListJobsRequest())
        assert not listed.jobs
        files = await owner.call(
            owner.artifacts.ListArtifacts, artifacts_pb2.ListArtifactsRequest()
        )
        assert not files.artifacts
    assert (await alice.get(job.job_id)).artifact_id == ended.artifact_id


async def test_operators_methods_are_for_admins(mesh: Mesh) -> None:
    """PERMISSION_DENIED NOT_ADMIN, before anything is looked up."""
    bob = await mesh.owner("bob")
    calls: list[tuple[Any, Any]] = [
        (bob.owners.CreateOwner, owners_pb2.CreateOwnerRequest(name="x")),
        (bob.owners.ListOwners, owners_pb2.ListOwnersRequest()),
        (bob.owners.CreateKey, owners_pb2.CreateKeyRequest(owner_id=bob.owner_id)),
        (bob.owners.RevokeKey, owners_pb2.RevokeKeyRequest()),
        (bob.owners.SetQuota, owners_pb2.SetQuotaRequest()),
        (bob.instances.ListInstances, instances_pb2.ListInstancesRequest()),
        (bob.instances.Drain, instances_pb2.DrainRequest()),
        (bob.instances.Remove, instances_pb2.RemoveRequest()),
        (bob.instances.ResolveRun, instances_pb2.ResolveRunRequest()),
    ]
    for method, request in calls:
        with pytest.raises(MeshError) as refused:
            await bob.call(method, request)
        assert refused.value.reason is Reason.NOT_ADMIN


async def test_the_two_listeners_take_only_their_own_credentials(mesh: Mesh) -> None:
    """A key opens nothing on the mesh listener, a mesh token nothing for clients."""
    token = mesh.tokens.of(Role.STAGE)
    stranger = Client(mesh.registry.client_address, token)
    code, _, _ = await answer(stranger, stranger.jobs, "ListJobs", jobs_pb2.ListJobsRequest())
    assert code is grpc.StatusCode.UNAUTHENTICATED
    for credential, expected in (
        (mesh.local.key, grpc.StatusCode.UNAUTHENTICATED),
        (mesh.tokens.of(Role.OPERATOR), grpc.StatusCode.PERMISSION_DENIED),
    ):
        peer = Peer(mesh.registry.mesh_address, credential)
        stub = mesh_pb2_grpc.MeshServiceStub(peer.channel)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await stub.Heartbeat(mesh_pb2.HeartbeatRequest(), metadata=peer.metadata())
        assert failed.value.code() is expected


async def test_only_a_hash_of_a_key_is_kept(mesh: Mesh) -> None:
    """Neither the database nor a repeated answer holds the secret."""
    admin = mesh.local
    request = owners_pb2.CreateKeyRequest(owner_id=admin.owner_id, request_id="once")
    first = await admin.call(admin.owners.CreateKey, request)
    again = await admin.call(admin.owners.CreateKey, request)
    assert again.key == first.key
    assert first.secret.startswith("rmk_")
    assert not again.secret
    await mesh.registry.database.write(
        lambda session: session.execute(text("SELECT 1"))  # a commit after it
    )
    for file in mesh.settings.folder.glob("registry.db*"):
        assert first.secret.encode() not in file.read_bytes()
    listed = await Client(mesh.registry.client_address, first.secret).call(
        Client(mesh.registry.client_address, first.secret).jobs.ListJobs,
        jobs_pb2.ListJobsRequest(),
    )
    assert not listed.jobs


async def test_the_key_file_is_private_and_renewed_for_a_new_database(tmp_path: Path) -> None:
    """A key that works is kept; one that another database made is replaced."""
    mesh = Mesh(tmp_path / "home")
    await mesh.start()
    path = mesh.settings.key_path
    assert path.stat().st_mode & 0o777 == 0o600
    key = mesh.local.key
    await mesh.restart()
    assert mesh.local.key == key
    await mesh.stop()
    for file in mesh.settings.folder.glob("registry.db*"):
        file.unlink()
    fresh = Mesh(tmp_path / "home")
    await fresh.start()
    assert fresh.local.key != key
    client = fresh.local
    assert not (await client.call(client.jobs.ListJobs, jobs_pb2.ListJobsRequest())).jobs
    await fresh.stop()
