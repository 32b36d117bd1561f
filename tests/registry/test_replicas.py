"""Two registries on one PostgreSQL: they share the work and outlive each other."""

import asyncio
import signal
from collections.abc import AsyncIterator
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import pytest
from sqlmodel import Session, select

from reelmesh.v1 import instances_pb2, jobs_pb2, stage_pb2
from services.common.rpc.tokens import load_tokens
from services.registry import columns
from services.registry.notices import Notices
from services.registry.postgres import connect_arguments
from services.registry.records.replicas import beat, beats, bury
from services.registry.schema import InstanceRow
from services.registry.service import Registry
from services.registry.signals import Signals, wait
from tests.registry.mesh import Client, Mesh, settings_of, until
from tests.registry.stages import FakeStage, Journal
from tests.registry.test_process import Process


class Pair:
    """A mesh and a second registry on its database and its artifacts."""

    def __init__(self, mesh: Mesh, second: Registry) -> None:
        self.mesh = mesh
        self.second = second

    @property
    def here(self) -> Client:
        """The local owner at the first registry."""
        return self.mesh.local

    def there(self) -> Client:
        """The same owner at the second."""
        return Client(self.second.client_address, self.here.key)


@pytest.fixture
async def pair(tmp_path: Path, postgres_url: str) -> AsyncIterator[Pair]:
    """Two registries in this process, and no stages yet."""
    mesh = Mesh(tmp_path / "home", database_url=postgres_url, replica="first", lease_s=1.5)
    await mesh.start()
    second = Registry(
        settings_of(
            tmp_path / "home",
            database_url=postgres_url,
            replica="second",
            bootstrap=False,
            lease_s=1.5,
        )
    )
    await second.start()
    yield Pair(mesh, second)
    await second.stop()
    await mesh.stop()


async def test_two_registries_bind_every_stage_of_every_job_once(pair: Pair) -> None:
    """Jobs come in at both; each is encoded, sampled and decoded exactly once."""
    mesh, there = pair.mesh, pair.there()
    for number in range(2):
        await mesh.add(stage_pb2.STAGE_ENCODE, f"encoder-{number}")
        await mesh.add(stage_pb2.STAGE_SAMPLE, f"sampler-{number}")
        await mesh.add(stage_pb2.STAGE_DECODE, f"decoder-{number}")
    jobs = [
        (await client.create(f"boat {number}")).job_id
        for number in range(6)
        for client in (pair.here, there)
    ]
    for job_id in jobs:
        done = await pair.here.ended(job_id, 40)
        assert done.state == jobs_pb2.JOB_STATE_SUCCEEDED, done
        assert (await there.get(job_id)).artifact_id == done.artifact_id
    begun = [run_id for run_id, _, what in mesh.diary if what == "begin"]
    assert len(begun) == len(set(begun)) == 3 * len(jobs)
    await there.peer.close()


async def test_a_watch_at_one_registry_follows_a_job_of_the_other(pair: Pair) -> None:
    """Every change, to the end."""
    await pair.mesh.add_all()
    job = await pair.here.create()
    there = pair.there()
    request = jobs_pb2.WatchJobRequest(job_id=job.job_id, start_revision=1)
    told = [
        message.job.state
        for message in await there.read_all(there.jobs.WatchJob, request)
        if message.HasField("job")
    ]
    assert told[0] == jobs_pb2.JOB_STATE_QUEUED
    assert told[-1] == jobs_pb2.JOB_STATE_SUCCEEDED
    await there.peer.close()


async def test_a_heartbeat_at_one_registry_keeps_the_lease_at_both(pair: Pair) -> None:
    """Two leases long nobody suspects it, though only one of them hears it."""
    mesh = pair.mesh
    await mesh.add(stage_pb2.STAGE_SAMPLE, "sampler-0")
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def two_leases_later() -> bool:
        found = await pair.here.call(
            pair.here.instances.ListInstances, instances_pb2.ListInstancesRequest()
        )
        assert found.instances[0].state == stage_pb2.INSTANCE_STATE_READY
        return loop.time() - began > 3.0

    await until(two_leases_later)


async def test_a_wrong_and_jumping_clock_at_both_registries_changes_nothing(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A year back, a year on and back again while a job is sampled: nobody loses a lease."""
    shift = timedelta()

    class Jumping(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Jumping":
            moved = datetime.now(tz) + shift
            return cls(*moved.timetuple()[:6], moved.microsecond, tzinfo=tz)

    monkeypatch.setattr(columns, "datetime", Jumping)
    _, sampler, _ = await pair.mesh.add_all()
    await sampler.hold()
    job = await pair.here.create()

    async def sampling() -> bool:
        return bool(sampler.journal.begun)

    await until(sampling)
    loop = asyncio.get_running_loop()
    for days in (-365, 365, 0):
        shift = timedelta(days=days)
        began = loop.time()

        async def a_lease_later(began: float = began) -> bool:
            found = await pair.here.get(job.job_id)
            assert found.state == jobs_pb2.JOB_STATE_RUNNING
            return loop.time() - began > 1.8

        await until(a_lease_later)
    await sampler.release()
    done = await pair.here.ended(job.job_id)
    assert done.state == jobs_pb2.JOB_STATE_SUCCEEDED
    with Session(pair.mesh.registry.database._engine) as session:
        assert {one.state for one in session.exec(select(InstanceRow))} == {"READY"}


async def test_a_replica_that_was_heard_again_is_not_buried(pair: Pair) -> None:
    """Whoever saw it silent lost the race against its heartbeat."""
    database = pair.mesh.registry.database
    await database.write(lambda session: beat(session, "rep_x"))
    old = (await database.read(beats))["rep_x"]
    await database.write(lambda session: beat(session, "rep_x"))
    assert not await database.write(lambda session: bury(session, "rep_x", old))
    now = (await database.read(beats))["rep_x"]
    assert await database.write(lambda session: bury(session, "rep_x", now))


async def test_the_runs_of_a_registry_that_stops_are_adopted_at_once(pair: Pair) -> None:
    """It signs off; the other one sees the job through."""
    _, sampler, _ = await pair.mesh.add_all()
    await sampler.hold()
    job = await pair.here.create()

    async def sampling() -> bool:
        return bool(sampler.journal.begun)

    await until(sampling)
    there = pair.there()
    await pair.mesh.registry.stop()
    await sampler.release()
    done = await there.ended(job.job_id)
    assert done.state == jobs_pb2.JOB_STATE_SUCCEEDED
    assert len(sampler.journal.begun) == 1
    await there.peer.close()
    await pair.mesh.resume()


async def test_a_notice_wakes_who_waits_at_another_registry(postgres_url: str) -> None:
    """By its name, without any looking."""
    ours, theirs = Signals(), Signals()
    arguments = connect_arguments(postgres_url)
    first, second = Notices(arguments, "a", ours), Notices(arguments, "b", theirs)
    tasks = [asyncio.create_task(one.run()) for one in (first, second)]
    with theirs.listening("job_1") as news, theirs.listening("job_2") as other:
        # Both are set once by the listening itself, which may have missed something.
        assert await wait(news, 10)
        news.clear()
        other.clear()
        first.notify(["job_1"])
        assert await wait(news, 10)
        assert not other.is_set()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_registry_that_dies_or_stands_still_is_replaced_by_the_other(
    tmp_path: Path, postgres_url: str, number: signal.Signals
) -> None:
    """Its run is adopted after its lease; when it wakes again nothing is started twice."""
    names = ("first", "second")
    homes = [tmp_path / name for name in names]
    tokens = load_tokens(settings_of(homes[0]).tokens_path)
    homes[1].mkdir()
    (homes[1] / "mesh-tokens.json").write_text((homes[0] / "mesh-tokens.json").read_text())
    first, second = (
        Process(home, postgres_url, artifacts=tmp_path / "artifacts") for home in homes
    )
    await first.start()
    diary: list[tuple[str, str, str]] = []
    stages = [
        FakeStage(stage, name, tmp_path / "stages", tokens, first.mesh, Journal(diary=diary))
        for stage, name in (
            (stage_pb2.STAGE_ENCODE, "encoder-0"),
            (stage_pb2.STAGE_SAMPLE, "sampler-0"),
            (stage_pb2.STAGE_DECODE, "decoder-0"),
        )
    ]
    for stage in stages:
        await stage.start()
    sampler = stages[1]
    await sampler.hold()
    client = first.client()

    async def ready() -> bool:
        return all(stage.generation for stage in stages)

    await until(ready)
    jobs = [(await client.create(f"boat {at}")).job_id for at in range(2)]

    async def sampling() -> bool:
        return bool(sampler.journal.begun)

    await until(sampling)
    await second.start()
    assert first.process is not None
    first.process.send_signal(number)
    # Its heartbeats go to a registry that is away now: the stage moves to the other.
    for stage in stages:
        await stage.move(second.mesh)
    await sampler.release()
    there = Client(second.clients, client.key)
    for job_id in jobs:
        done = await there.ended(job_id, 40)
        assert done.state == jobs_pb2.JOB_STATE_SUCCEEDED, done
    if number is signal.SIGSTOP:
        first.process.send_signal(signal.SIGCONT)
        third = (await client.create("one more")).job_id
        assert (await client.ended(third, 40)).state == jobs_pb2.JOB_STATE_SUCCEEDED
        jobs.append(third)
    begun = [job_id for _, job_id, what in diary if what == "begin"]
    assert sorted(begun) == sorted(jobs * 3)
    await there.peer.close()
    await client.peer.close()
    for stage in stages:
        await stage.crash()
    for process in (first, second):
        await process.stop(signal.SIGKILL)
