"""A rolling upgrade: every process is replaced while jobs run, and nothing is lost."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from reelmesh.v1 import instances_pb2, instances_pb2_grpc, jobs_pb2, stage_pb2
from services.common.rpc.channel import calling
from tests.mesh.harness import Mesh, finish, spec, start_mesh, wait_for
from tests.mesh.test_crashes import assert_each_stage_ran_once

STAGES = ("decoder", "sampler", "encoder")


@pytest.fixture(scope="module")
def roomy_mesh(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """A mesh of the module's own in which any number of jobs may wait."""
    started = start_mesh(
        tmp_path_factory.mktemp("roomy"),
        tiny_checkpoint,
        REELMESH_REGISTRY_WAITING_PER_SAMPLER="-1",
    )
    yield started
    started.stop()


class Operator:
    """An admin's calls."""

    def __init__(self, mesh: Mesh) -> None:
        client = mesh.client()
        self._peer = client._peer
        self._stub = instances_pb2_grpc.InstanceServiceStub(self._peer.channel)

    async def drain(self, instance_id: str) -> None:
        """No new runs."""
        request = instances_pb2.DrainRequest(instance_id=instance_id)
        async with calling():
            await self._stub.Drain(request, metadata=self._peer.metadata(), timeout=20)

    async def states(self) -> dict[str, tuple[int, int]]:
        """(generation, state) by instance."""
        request = instances_pb2.ListInstancesRequest()
        async with calling():
            found = await self._stub.ListInstances(
                request, metadata=self._peer.metadata(), timeout=20
            )
        return {one.instance_id: (one.generation, one.state) for one in found.instances}

    async def close(self) -> None:
        """Hang up."""
        await self._peer.close()


async def replaced(operator: Operator, mesh: Mesh, service: str) -> None:
    """Drain a stage and wait until its next start takes runs."""
    name = f"{service}-1"
    generation, _ = (await operator.states())[name]
    pid = mesh.process(service).pid
    await operator.drain(name)

    async def is_new() -> bool:
        after, state = (await operator.states())[name]
        return after > generation and state == stage_pb2.INSTANCE_STATE_READY

    await wait_for(is_new, f"the next start of {name}", 120)
    assert mesh.process(service).pid != pid


async def test_every_process_is_replaced_under_load_and_nothing_is_lost(roomy_mesh: Mesh) -> None:
    """Each job succeeds, each of its stages ran once, and nothing died."""
    async with roomy_mesh.client() as client:
        jobs = [await client.create_job(spec(seed=seed, evaluations=12)) for seed in range(3)]
        watching = [asyncio.create_task(finish(client, job.job_id)) for job in jobs]

        async def sampling() -> bool:
            job = await client.get_job(jobs[0].job_id)
            return job.progress.phase == "evaluate" or job.stage == stage_pb2.STAGE_DECODE

        await wait_for(sampling, "the first job to be sampled")
        operator = Operator(roomy_mesh)
        for service in STAGES:
            await replaced(operator, roomy_mesh, service)
            jobs.append(await client.create_job(spec(seed=len(jobs), evaluations=12)))
            watching.append(asyncio.create_task(finish(client, jobs[-1].job_id)))
        await operator.close()
        registry = roomy_mesh.process("registry")
        registry.send_signal(signal.SIGTERM)
        await asyncio.to_thread(roomy_mesh.wait_for_restart, "registry", registry.pid)
        jobs.append(await client.create_job(spec(seed=len(jobs))))
        watching.append(asyncio.create_task(finish(client, jobs[-1].job_id)))
        async with asyncio.timeout(200):
            ended = await asyncio.gather(*watching)
        for job in ended:
            assert job.state == jobs_pb2.JOB_STATE_SUCCEEDED, job
            assert job.resumes == 0
            await assert_each_stage_ran_once(roomy_mesh, job)
            artifact = await client.get_artifact(job.artifact_id)
            receipt = roomy_mesh.home / "registry" / "artifacts" / f"{job.artifact_id}.json"
            assert receipt.exists()
            assert artifact.size_bytes > 0
    for service in STAGES:
        log = roomy_mesh.log(service)
        assert "released" in log
        assert "superseded" not in log
