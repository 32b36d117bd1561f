"""A small mesh for the registry's tests: the real registry, fake stages, and clients with keys."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from reelmesh.v1 import (
    artifacts_pb2_grpc,
    instances_pb2_grpc,
    jobs_pb2,
    jobs_pb2_grpc,
    owners_pb2,
    owners_pb2_grpc,
    stage_pb2,
)
from services.common.rpc.channel import Peer, calling
from services.common.rpc.tokens import MeshTokens, load_tokens
from services.registry.config import RegistrySettings
from services.registry.service import Registry
from tests.registry.stages import FakeStage, Journal

LIMIT_S = 15.0
TERMINAL = (
    jobs_pb2.JOB_STATE_SUCCEEDED,
    jobs_pb2.JOB_STATE_FAILED,
    jobs_pb2.JOB_STATE_CANCELLED,
)


class Client:
    """What an owner can call."""

    def __init__(self, address: str, key: str, owner_id: str = "") -> None:
        self.peer = Peer(address, key)
        self.owner_id = owner_id
        self.key = key
        self.jobs = jobs_pb2_grpc.JobServiceStub(self.peer.channel)
        self.artifacts = artifacts_pb2_grpc.ArtifactServiceStub(self.peer.channel)
        self.owners = owners_pb2_grpc.OwnerServiceStub(self.peer.channel)
        self.instances = instances_pb2_grpc.InstanceServiceStub(self.peer.channel)

    async def call(self, method: Any, request: Any) -> Any:
        """One unary call; its failure as a MeshError."""
        async with calling():
            return await method(request, metadata=self.peer.metadata(), timeout=10)

    async def create(self, prompt: str = "a boat", request_id: str = "", **spec: Any) -> Any:
        """A job."""
        request = jobs_pb2.CreateJobRequest(
            spec=jobs_pb2.JobSpec(prompt=prompt, **spec), request_id=request_id
        )
        return (await self.call(self.jobs.CreateJob, request)).job

    async def get(self, job_id: str) -> jobs_pb2.Job:
        """The job now."""
        answer = await self.call(self.jobs.GetJob, jobs_pb2.GetJobRequest(job_id=job_id))
        job: jobs_pb2.Job = answer.job
        return job

    async def cancel(self, job_id: str) -> jobs_pb2.Job:
        """Ask it to stop."""
        answer = await self.call(self.jobs.CancelJob, jobs_pb2.CancelJobRequest(job_id=job_id))
        job: jobs_pb2.Job = answer.job
        return job

    async def until(
        self, job_id: str, condition: Callable[[jobs_pb2.Job], bool], limit_s: float = LIMIT_S
    ) -> jobs_pb2.Job:
        """The job as soon as the condition holds."""
        job = jobs_pb2.Job()

        async def holds() -> bool:
            nonlocal job
            job = await self.get(job_id)
            return condition(job)

        await until(holds, limit_s, lambda: str(job))
        return job

    async def ended(self, job_id: str, limit_s: float = LIMIT_S) -> jobs_pb2.Job:
        """The job once it has ended."""
        return await self.until(job_id, lambda job: job.state in TERMINAL, limit_s)

    async def read_all(self, method: Any, request: Any) -> list[Any]:
        """All messages of a stream."""
        async with calling():
            stream = method(request, metadata=self.peer.metadata(), timeout=10)
            return [message async for message in stream]


def begun_at(stage: FakeStage) -> Callable[[jobs_pb2.Job], bool]:
    """Whether the stage has begun the job's last attempt, and the job says which that is."""
    return lambda job: bool(job.attempts) and job.attempts[-1].run_id in stage.journal.begun


async def until(
    condition: Callable[[], Awaitable[bool]],
    limit_s: float = LIMIT_S,
    describe: Callable[[], str] = lambda: "",
) -> None:
    """Poll until the condition holds, at most so long."""
    deadline = time.monotonic() + limit_s
    while not await condition():
        assert time.monotonic() < deadline, f"it did not happen in {limit_s} s\n{describe()}"
        await asyncio.sleep(0.02)


def settings_of(home: Path, **changes: Any) -> RegistrySettings:
    """A registry on free ports with quick intervals, so that no test waits for a default."""
    quick: dict[str, Any] = {
        "home": home,
        "client_listen": "127.0.0.1:0",
        "mesh_listen": "127.0.0.1:0",
        "heartbeat_s": 0.2,
        "lease_s": 3.0,
        "call_timeout_s": 2.0,
        "ask_interval_s": 0.5,
        "refusal_backoff_s": 0.1,
        "stop_grace_s": 0.5,
    }
    return RegistrySettings(**{**quick, **changes})


class Mesh:
    """The registry of one home, its stages and its clients."""

    def __init__(self, home: Path, **changes: Any) -> None:
        self.home = home
        self.settings = settings_of(home, **changes)
        self.tokens: MeshTokens = load_tokens(self.settings.tokens_path)
        self.registry = Registry(self.settings)
        self.stages: list[FakeStage] = []
        self.diary: list[tuple[str, str, str]] = []
        self._clients: dict[tuple[str, str], Client] = {}

    async def start(self) -> None:
        """Start the registry."""
        await self.registry.start()

    async def restart(self) -> None:
        """Stop the registry and start another on the same home and ports."""
        await self.registry.stop()
        await self.resume()

    async def resume(self) -> None:
        """Start a registry where one was stopped."""
        listen = {
            "client_listen": self.registry.client_address,
            "mesh_listen": self.registry.mesh_address,
        }
        self.settings = self.settings.model_copy(update=listen)
        self.registry = Registry(self.settings)
        await self.registry.start()

    async def stop(self) -> None:
        """Stop everything."""
        for client in self._clients.values():
            await client.peer.close()
        for stage in self.stages:
            await stage.crash()
        await self.registry.stop()

    async def add(self, stage: stage_pb2.Stage, instance_id: str, **limits: Any) -> FakeStage:
        """A stage, registered and reachable."""
        fake = FakeStage(
            stage,
            instance_id,
            self.home / "stages",
            self.tokens,
            self.registry.mesh_address,
            Journal(diary=self.diary),
            **limits,
        )
        self.stages.append(fake)
        await fake.start()
        await until(lambda: _registered(fake))
        return fake

    async def add_all(self) -> tuple[FakeStage, FakeStage, FakeStage]:
        """An encoder, a sampler and a decoder."""
        return (
            await self.add(stage_pb2.STAGE_ENCODE, "encoder-0"),
            await self.add(stage_pb2.STAGE_SAMPLE, "sampler-0"),
            await self.add(stage_pb2.STAGE_DECODE, "decoder-0"),
        )

    async def replace(self, old: FakeStage, journal: Journal | None = None) -> FakeStage:
        """The next start of a stage that crashed, on its port."""
        fake = old.reborn(self.home / "stages", journal)
        self.stages[self.stages.index(old)] = fake
        await fake.start(int(old.endpoint.rpartition(":")[2]))
        return fake

    @property
    def local(self) -> Client:
        """The local owner, an admin."""
        known = json.loads(self.settings.key_path.read_text())
        return self._client(known["key"], known["owner_id"])

    def _client(self, key: str, owner_id: str) -> Client:
        address = self.registry.client_address
        return self._clients.setdefault((address, key), Client(address, key, owner_id))

    async def owner(self, name: str) -> Client:
        """A fresh owner without the admin right."""
        admin = self.local
        made = await admin.call(admin.owners.CreateOwner, owners_pb2.CreateOwnerRequest(name=name))
        owner_id = made.owner.owner_id
        key = await admin.call(
            admin.owners.CreateKey, owners_pb2.CreateKeyRequest(owner_id=owner_id)
        )
        return self._client(key.secret, owner_id)


async def _registered(fake: FakeStage) -> bool:
    return fake.generation > 0
