"""Keys that end, and what an owner's keys are."""

from pathlib import Path

import pytest

from reelmesh.v1 import jobs_pb2, owners_pb2
from services.common.ids import new_id
from services.common.rpc.channel import calling
from services.common.rpc.errors import MeshError, Reason
from tests.registry.mesh import Client, Mesh


async def make_key(admin: Client, owner_id: str, label: str = "") -> owners_pb2.CreateKeyResponse:
    """A new key."""
    request = owners_pb2.CreateKeyRequest(owner_id=owner_id, label=label)
    answer: owners_pb2.CreateKeyResponse = await admin.call(admin.owners.CreateKey, request)
    return answer


async def revoke(admin: Client, key_id: str) -> None:
    """End it."""
    await admin.call(admin.owners.RevokeKey, owners_pb2.RevokeKeyRequest(key_id=key_id))


async def test_a_key_ends_at_once_on_a_connection_that_it_opened(mesh: Mesh) -> None:
    """The next call is refused; the owner's other key goes on; ending it twice is harmless."""
    admin, bob = mesh.local, await mesh.owner("bob")
    made = await make_key(admin, bob.owner_id, "laptop")
    laptop = Client(mesh.registry.client_address, made.secret)
    await laptop.call(laptop.jobs.ListJobs, jobs_pb2.ListJobsRequest())
    await revoke(admin, made.key.key_id)
    await revoke(admin, made.key.key_id)
    with pytest.raises(MeshError) as refused:
        await laptop.call(laptop.jobs.ListJobs, jobs_pb2.ListJobsRequest())
    assert refused.value.reason is Reason.UNAUTHENTICATED
    await bob.call(bob.jobs.ListJobs, jobs_pb2.ListJobsRequest())
    await laptop.peer.close()


async def test_a_watch_ends_with_the_key_that_opened_it(mesh: Mesh) -> None:
    """Though nothing of the job happens."""
    _, sampler, _ = await mesh.add_all()
    await sampler.hold()
    admin, bob = mesh.local, await mesh.owner("bob")
    made = await make_key(admin, bob.owner_id)
    laptop = Client(mesh.registry.client_address, made.secret)
    job = await laptop.create()
    await laptop.until(job.job_id, lambda one: bool(sampler.journal.begun))
    call = laptop.jobs.WatchJob(
        jobs_pb2.WatchJobRequest(job_id=job.job_id), metadata=laptop.peer.metadata(), timeout=10
    )
    with pytest.raises(MeshError) as ended:
        async with calling():
            async for message in call:
                if message.job.job_id:
                    await revoke(admin, made.key.key_id)
    assert ended.value.reason is Reason.UNAUTHENTICATED
    await sampler.release()
    assert (await bob.ended(job.job_id)).state == jobs_pb2.JOB_STATE_SUCCEEDED
    await laptop.peer.close()


async def test_keys_are_listed_newest_first_with_their_end_and_without_secrets(mesh: Mesh) -> None:
    """Of an owner that exists."""
    admin, bob = mesh.local, await mesh.owner("bob")
    made = [await make_key(admin, bob.owner_id, label) for label in ("one", "two")]
    await revoke(admin, made[0].key.key_id)
    request = owners_pb2.ListKeysRequest(owner_id=bob.owner_id)
    listed = await admin.call(admin.owners.ListKeys, request)
    assert [key.label for key in listed.keys] == ["two", "one", ""]
    assert [key.HasField("revoke_time") for key in listed.keys] == [False, True, False]
    for one in made:
        assert one.secret not in str(listed)


@pytest.mark.parametrize("key_id", ["", "x", "a\0b", new_id("key")])
async def test_an_unknown_key_cannot_be_ended(tmp_path: Path, key_id: str) -> None:
    """KEY_NOT_FOUND; of an unknown owner there are no keys."""
    mesh = Mesh(tmp_path / "home")
    await mesh.start()
    admin = mesh.local
    with pytest.raises(MeshError) as refused:
        await revoke(admin, key_id)
    assert refused.value.reason is Reason.KEY_NOT_FOUND
    with pytest.raises(MeshError) as refused:
        await admin.call(admin.owners.ListKeys, owners_pb2.ListKeysRequest(owner_id=key_id))
    assert refused.value.reason is Reason.OWNER_NOT_FOUND
    await mesh.stop()
