"""WatchJob: every change, in order, from any revision; bookmarks; an end only after the end."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from reelmesh.v1 import jobs_pb2
from services.common.rpc.channel import calling
from services.common.rpc.errors import MeshError, Reason
from tests.registry.mesh import Client, Mesh, until


def watch(client: Client, job_id: str, revision: int = 0) -> Any:
    """A watch."""
    request = jobs_pb2.WatchJobRequest(job_id=job_id, start_revision=revision)
    return client.jobs.WatchJob(request, metadata=client.peer.metadata(), timeout=15)


async def test_a_watch_tells_every_evaluation_and_ends_with_the_job(mesh: Mesh) -> None:
    """Measured progress, rising revisions, and the last message is what Get says."""
    _, sampler, _ = await mesh.add_all()
    sampler.step_s = 0.2
    client = mesh.local
    job = await client.create(evaluations=5)
    told = [message.job async for message in watch(client, job.job_id)]
    done = [one.progress.done for one in told if one.progress.phase == "evaluate"]
    assert set(range(1, 6)) <= set(done)
    revisions = [one.revision for one in told]
    assert revisions == sorted(revisions)
    assert told[-1].state == jobs_pb2.JOB_STATE_SUCCEEDED
    assert told[-1] == await client.get(job.job_id)


async def test_a_watch_replays_from_a_revision(mesh: Mesh) -> None:
    """Nothing is told twice, nothing is left out, after the end too."""
    await mesh.add_all()
    client = mesh.local
    job = await client.create()
    await client.ended(job.job_id)
    everything = [one.job async for one in watch(client, job.job_id, 1)]
    assert [one.revision for one in everything] == list(
        range(job.revision, everything[-1].revision + 1)
    )
    assert everything[0].spec.prompt == "a boat"
    middle = everything[len(everything) // 2].revision
    rest = [one.job async for one in watch(client, job.job_id, middle)]
    assert rest == everything[len(everything) // 2 :]
    last = [one.job async for one in watch(client, job.job_id, 10**6)]
    assert last == everything[-1:]


async def test_a_quiet_watch_gets_bookmarks(tmp_path: Path) -> None:
    """So that a client knows from where to go on."""
    mesh = Mesh(tmp_path / "home", bookmark_s=0.2)
    await mesh.start()
    try:
        _, sampler, _ = await mesh.add_all()
        await sampler.hold()
        client = mesh.local
        job = await client.create()
        await client.until(job.job_id, lambda one: bool(sampler.journal.begun))
        call = watch(client, job.job_id)
        marks = []
        async for message in call:
            if message.HasField("bookmark"):
                marks.append(message.bookmark.revision)
            if len(marks) == 2:
                break
        call.cancel()
        assert marks[0] == (await client.get(job.job_id)).revision
        await sampler.release()
    finally:
        await mesh.stop()


async def test_a_stopping_registry_ends_a_watch_with_a_bookmark_and_draining(
    tmp_path: Path,
) -> None:
    """And the watch goes on at the next start from there."""
    mesh = Mesh(tmp_path / "home")
    await mesh.start()
    _, sampler, _ = await mesh.add_all()
    await sampler.hold()
    client = mesh.local
    job = await client.create()
    await client.until(job.job_id, lambda one: bool(sampler.journal.begun))
    call = watch(client, job.job_id)
    messages: list[jobs_pb2.WatchJobResponse] = []

    async def follow() -> None:
        async with calling():
            async for message in call:
                messages.append(message)

    following = asyncio.create_task(follow())

    async def told() -> bool:
        return bool(messages)

    await until(told)
    await mesh.restart()
    with pytest.raises(MeshError) as ended:
        await following
    assert ended.value.reason is Reason.DRAINING
    assert messages[-1].HasField("bookmark")
    await sampler.release()
    rest = [one async for one in watch(mesh.local, job.job_id, messages[-1].bookmark.revision + 1)]
    assert rest[-1].job.state == jobs_pb2.JOB_STATE_SUCCEEDED
    await mesh.stop()


async def test_a_place_in_the_queue_is_told_as_it_changes(mesh: Mesh) -> None:
    """Though nothing of the job itself changed."""
    encoder, _, _ = await mesh.add_all()
    await encoder.hold()
    client = mesh.local
    jobs = [await client.create(f"boat {number}") for number in range(3)]
    await client.until(jobs[2].job_id, lambda one: one.queue_position == 1)
    call = watch(client, jobs[2].job_id)
    places = []
    async for message in call:
        if message.HasField("job"):
            places.append(message.job.queue_position)
        if len(places) == 1:
            await client.cancel(jobs[1].job_id)
        if len(places) == 2:
            break
    call.cancel()
    assert places == [1, 0]
    await encoder.release()


async def test_a_negative_revision_is_refused(mesh: Mesh) -> None:
    """By its field."""
    await mesh.add_all()
    client = mesh.local
    job = await client.create()
    with pytest.raises(MeshError) as refused:
        async with calling():
            async for _ in watch(client, job.job_id, -1):
                pass
    assert refused.value.field == "start_revision"
