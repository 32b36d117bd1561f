"""WatchJobs: all of an owner's jobs in the order of their changes; compaction; never two truths."""

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from sqlmodel import Session, col, select

from reelmesh.v1 import jobs_pb2, stage_pb2
from services.common.rpc.channel import calling
from services.common.rpc.errors import MeshError, Reason
from services.registry.columns import utc_now
from services.registry.schema import EventRow
from tests.registry.mesh import TERMINAL, Client, Mesh, until
from tests.registry.test_resume import resume
from tests.registry.test_watch import watch

SUCCEEDED = jobs_pb2.JOB_STATE_SUCCEEDED


def watch_all(client: Client, revision: int = 0, timeout_s: float = 20) -> Any:
    """A watch over all jobs."""
    request = jobs_pb2.WatchJobsRequest(start_revision=revision)
    return client.jobs.WatchJobs(request, metadata=client.peer.metadata(), timeout=timeout_s)


class Reader:
    """Reads a watch in the background."""

    def __init__(self, client: Client, revision: int = 0) -> None:
        self.messages: list[jobs_pb2.WatchJobsResponse] = []
        self._call = watch_all(client, revision, 60)
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async with calling():
            async for message in self._call:
                self.messages.append(message)

    @property
    def jobs(self) -> list[jobs_pb2.Job]:
        """What was told."""
        return [message.job for message in self.messages if message.HasField("job")]

    async def until_told(self, job_id: str, revision: int) -> jobs_pb2.Job:
        """What was told of the job at that revision, the last time."""

        def found() -> list[jobs_pb2.Job]:
            return [one for one in self.jobs if (one.job_id, one.revision) == (job_id, revision)]

        async def told() -> bool:
            return bool(found())

        await until(told)
        return found()[-1]

    async def stop(self) -> None:
        """Hang up."""
        self._call.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
async def brief(tmp_path: Path, database_url: str) -> AsyncIterator[Mesh]:
    """A mesh whose watches get bookmarks often."""
    mesh = Mesh(
        tmp_path / "home", database_url=database_url, bookmark_s=0.2, waiting_per_sampler=-1
    )
    await mesh.start()
    yield mesh
    await mesh.stop()


async def test_all_jobs_are_told_in_the_order_of_their_changes(mesh: Mesh) -> None:
    """From now on, with a bookmark first; another owner's are not among them."""
    await mesh.add_all()
    client, stranger = mesh.local, await mesh.owner("stranger")
    await client.ended((await client.create("before")).job_id)
    reader, other = Reader(client), Reader(stranger)

    async def began() -> bool:
        return bool(reader.messages) and bool(other.messages)

    await until(began)
    assert reader.messages[0].HasField("bookmark")
    jobs = [await client.create(f"boat {number}") for number in range(2)]
    ended = [await client.ended(job.job_id) for job in jobs]
    for job in ended:
        assert await reader.until_told(job.job_id, job.revision) == job
    revisions = [one.revision for one in reader.jobs]
    first = reader.messages[0].bookmark.revision + 1
    assert revisions == list(range(first, first + len(revisions)))
    assert {one.job_id for one in reader.jobs} == {job.job_id for job in jobs}
    assert {one.spec.prompt for one in reader.jobs} == {"boat 0", "boat 1"}
    assert not other.jobs
    await reader.stop()
    await other.stop()


async def test_a_watch_is_taken_up_where_it_ended(mesh: Mesh) -> None:
    """Nothing twice and nothing left out, in however many pieces it is read."""
    await mesh.add_all()
    client = mesh.local
    for number in range(3):
        await client.ended((await client.create(f"boat {number}")).job_id)
    newest = max(one.revision for one in await _list(client))
    whole = await _read_until(client, 1, newest)
    assert [one.revision for one in whole] == list(range(1, newest + 1))
    pieces: list[jobs_pb2.Job] = []
    while not pieces or pieces[-1].revision < newest:
        after = pieces[-1].revision if pieces else 0
        pieces += await _read_until(client, after + 1, min(newest, after + 7))
    assert pieces == whole


async def test_a_quiet_watch_gets_bookmarks_and_a_stopping_registry_says_so(
    brief: Mesh,
) -> None:
    """DRAINING after a bookmark; the watch goes on from it at the next start."""
    _, sampler, _ = await brief.add_all()
    client = brief.local
    reader = Reader(client)

    async def marked() -> bool:
        return sum(one.HasField("bookmark") for one in reader.messages) >= 3

    await until(marked)
    await sampler.hold()
    job = await client.create()
    await client.until(job.job_id, lambda one: bool(sampler.journal.begun))
    await brief.restart()
    with pytest.raises(MeshError) as ended:
        await reader.task
    assert ended.value.reason is Reason.DRAINING
    assert reader.messages[-1].HasField("bookmark")
    again = Reader(brief.local, reader.messages[-1].bookmark.revision + 1)
    await sampler.release()
    done = await brief.local.ended(job.job_id)
    assert await again.until_told(job.job_id, done.revision) == done
    told = [one.revision for one in (*reader.jobs, *again.jobs)]
    assert told == list(range(told[0], told[0] + len(told)))
    await again.stop()


async def test_a_watch_and_get_never_disagree(brief: Mesh) -> None:
    """Many jobs, cancelled, failed, refused, resumed and read at random; the seed is printed."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    stages = await brief.add_all()
    client = brief.local
    reader = Reader(client, 1)
    read: list[jobs_pb2.Job] = []
    jobs = [(await client.create(f"boat {n}", automatic_resumes=n % 3)).job_id for n in range(8)]
    for _ in range(60):
        stage = chance.choice(stages)
        stage.fail = chance.choice(["", "", Reason.INTERRUPTED])
        stage.resumable = chance.random() < 0.7
        stage.refuse = chance.random() < 0.2
        stage.lose_start = chance.choice(["", "", "", "after", "before"])
        job_id = chance.choice(jobs)
        if chance.random() < 0.1:
            await client.cancel(job_id)
        job = await client.get(job_id)
        read.append(job)
        if chance.random() < 0.3 and job.state in (
            jobs_pb2.JOB_STATE_FAILED,
            jobs_pb2.JOB_STATE_CANCELLED,
        ):
            jobs += await _resumed(client, job)
    for stage in stages:
        stage.fail = stage.lose_start = ""
        stage.refuse = False
    for job_id in jobs:
        read.append(await client.ended(job_id))
    newest = max(job.revision for job in read)
    whole = {one.revision: one for one in await _read_until(client, 1, newest)}
    assert list(whole) == list(range(1, newest + 1))
    for job in read:
        _assert_alike(job, whole[job.revision])
        _assert_alike(job, await reader.until_told(job.job_id, job.revision))
    for job_id in jobs:
        last = [one async for one in watch(client, job_id)][-1].job
        assert last == await client.get(job_id)
        assert last.state in TERMINAL
    await reader.stop()


async def _resumed(client: Client, job: jobs_pb2.Job) -> list[str]:
    """The job that goes on from this one; none where a run that was cancelled in doubt is there."""
    try:
        return [(await resume(client, job.job_id)).job_id]
    except MeshError as error:
        assert job.state == jobs_pb2.JOB_STATE_CANCELLED
        assert error.reason is Reason.NOT_RESUMABLE
        assert "in doubt" in error.message
        return []


async def test_old_events_are_forgotten_but_a_live_jobs_newest(brief: Mesh) -> None:
    """Watches from before say REVISION_COMPACTED, and what they advise works."""
    _, sampler, _ = await brief.add_all()
    client = brief.local
    done = await client.ended((await client.create("done")).job_id)
    await sampler.hold()
    alive = (await client.create("alive")).job_id
    job = await client.until(
        alive,
        lambda one: (
            one.attempts[-1:] != []
            and one.stage == stage_pb2.STAGE_SAMPLE
            and one.attempts[-1].state == stage_pb2.RUN_STATE_RUNNING
        ),
    )
    await _age(brief)

    async def forgotten() -> bool:
        return await _revisions(brief) == [job.revision]

    await until(forgotten)
    for call in (watch(client, alive, 1), watch(client, done.job_id, 1), watch_all(client, 1)):
        with pytest.raises(MeshError) as refused:
            async with calling():
                async for _ in call:
                    pass
        assert refused.value.reason is Reason.REVISION_COMPACTED
    assert [one.job async for one in watch(client, done.job_id, done.revision)] == [done]
    newest = max(one.revision for one in await _list(client))
    reader = Reader(client, newest)
    call = watch(client, alive, job.revision)
    assert (await call.read()).job.job_id == alive
    call.cancel()
    await sampler.release()
    ended = await client.ended(alive)
    assert await reader.until_told(alive, ended.revision) == ended
    # A job that began after that is told from its first change.
    later = await client.ended((await client.create("later")).job_id)
    told = [one.job async for one in watch(client, later.job_id, 1)]
    assert told[0].state == jobs_pb2.JOB_STATE_QUEUED
    assert told[-1] == later
    await reader.stop()


async def test_a_negative_revision_is_refused(mesh: Mesh) -> None:
    """By its field."""
    with pytest.raises(MeshError) as refused:
        async with calling():
            async for _ in watch_all(mesh.local, -1):
                pass
    assert refused.value.field == "start_revision"


async def test_a_consumer_that_reads_nothing_is_cut(tmp_path: Path, database_url: str) -> None:
    """Nothing is kept for it in memory, and after a while its stream ends."""
    mesh = Mesh(tmp_path / "home", database_url=database_url, stream_idle_s=0.5)
    await mesh.start()
    try:
        await mesh.add(stage_pb2.STAGE_ENCODE, "encoder-0", max_prompt_tokens=20_000)
        await mesh.add(stage_pb2.STAGE_SAMPLE, "sampler-0")
        await mesh.add(stage_pb2.STAGE_DECODE, "decoder-0")
        client = mesh.local
        big = "x" * (1 << 20)  # more than fits into the buffers of the wire
        await client.ended((await client.create(f"{big} boat")).job_id)
        newest = max(one.revision for one in await _list(client))
        call = watch_all(client, 1, 60)
        stream = aiter(call)
        await anext(stream)

        async def cut() -> bool:
            return client.owner_id not in mesh.registry.signals._waiting

        await until(cut)
        told = 1
        with pytest.raises(MeshError) as ended:
            async with calling():
                async for _ in stream:
                    told += 1
        assert ended.value.reason is Reason.STREAM_STALLED
        assert told < newest
    finally:
        await mesh.stop()


def _assert_alike(got: jobs_pb2.Job, told: jobs_pb2.Job) -> None:
    """But for the place in the queue, which changes without a change of the job."""
    one, other = jobs_pb2.Job(), jobs_pb2.Job()
    one.CopyFrom(got)
    other.CopyFrom(told)
    for job in (one, other):
        job.queue_position = 0
        job.waiting_for = ""
    assert one == other


async def _list(client: Client) -> list[jobs_pb2.Job]:
    answer = await client.call(client.jobs.ListJobs, jobs_pb2.ListJobsRequest(page_size=200))
    return list(answer.jobs)


async def _read_until(client: Client, start: int, last: int) -> list[jobs_pb2.Job]:
    call = watch_all(client, start)
    told: list[jobs_pb2.Job] = []
    async for message in call:
        if message.HasField("job"):
            told.append(message.job)
        if told and told[-1].revision >= last:
            break
    call.cancel()
    return told


async def _age(mesh: Mesh) -> None:
    """All that happened is a month old."""

    def age(session: Session) -> None:
        session.execute(update(EventRow).values(create_time=utc_now() - timedelta(days=30)))

    await mesh.registry.database.write(age)


async def _revisions(mesh: Mesh) -> list[int]:
    """Of the events that are kept of the local owner's."""
    owner_id = mesh.local.owner_id
    query = select(EventRow.revision).where(col(EventRow.owner_id) == owner_id)
    return await mesh.registry.database.read(lambda session: sorted(session.exec(query)))
