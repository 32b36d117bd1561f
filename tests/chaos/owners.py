"""Owners who keep calling whatever happens: another registry, another time, the same request."""

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from reelmesh.v1 import (
    artifacts_pb2,
    artifacts_pb2_grpc,
    instances_pb2_grpc,
    jobs_pb2,
    jobs_pb2_grpc,
    owners_pb2,
    owners_pb2_grpc,
)
from services.common.rpc.channel import Peer, calling
from services.common.rpc.errors import MeshError, Reason

# What a caller meets while registries and encoders come and go, and asks again after.
PASSING = (
    Reason.UNREACHABLE,
    Reason.DEADLINE,
    Reason.DRAINING,
    Reason.NO_ENCODER,
    Reason.CANCELLED,
)


class Owner:
    """One key, at all registries."""

    def __init__(self, addresses: list[str], key: str) -> None:
        self.peer = Peer(",".join(addresses), key)
        self.key = key
        self.jobs: list[str] = []

    async def call(self, service: Any, method: str, request: Any, limit_s: float = 120) -> Any:
        """The answer, as soon as there is one; only a definite error is raised."""
        deadline = time.monotonic() + limit_s
        while True:
            try:
                async with calling():
                    stub = getattr(service(self.peer.channel), method)
                    return await stub(request, metadata=self.peer.metadata(), timeout=5)
            except MeshError as error:
                if error.reason not in PASSING or time.monotonic() > deadline:
                    raise
                self.peer.turn()
                await asyncio.sleep(0.2)

    async def create(self, request_id: str, **spec: Any) -> str:
        """A job."""
        request = jobs_pb2.CreateJobRequest(spec=jobs_pb2.JobSpec(**spec), request_id=request_id)
        answer = await self.call(jobs_pb2_grpc.JobServiceStub, "CreateJob", request)
        self.jobs.append(answer.job.job_id)
        return self.jobs[-1]

    async def get(self, job_id: str) -> jobs_pb2.Job:
        """The job now."""
        request = jobs_pb2.GetJobRequest(job_id=job_id)
        answer = await self.call(jobs_pb2_grpc.JobServiceStub, "GetJob", request)
        job: jobs_pb2.Job = answer.job
        return job

    async def cancel(self, job_id: str) -> None:
        """Ask it to stop."""
        request = jobs_pb2.CancelJobRequest(job_id=job_id)
        await self.call(jobs_pb2_grpc.JobServiceStub, "CancelJob", request)

    async def receipt(self, job_id: str) -> jobs_pb2.Receipt:
        """What became of the job."""
        request = jobs_pb2.GetReceiptRequest(job_id=job_id)
        answer = await self.call(jobs_pb2_grpc.JobServiceStub, "GetReceipt", request)
        receipt: jobs_pb2.Receipt = answer.receipt
        return receipt

    async def instances(self, method: str, request: Any) -> Any:
        """An operator's call."""
        return await self.call(instances_pb2_grpc.InstanceServiceStub, method, request)

    async def download(self, artifact_id: str) -> tuple[bytes, bytes]:
        """The artifact's bytes and the digest that it is said to have."""
        stub = artifacts_pb2_grpc.ArtifactServiceStub(self.peer.channel)
        ask = artifacts_pb2.GetArtifactRequest(artifact_id=artifact_id)
        async with calling():
            known = await stub.GetArtifact(ask, metadata=self.peer.metadata(), timeout=10)
            stream = stub.Download(
                artifacts_pb2.DownloadRequest(artifact_id=artifact_id),
                metadata=self.peer.metadata(),
                timeout=20,
            )
            content = b"".join([message.chunk.data async for message in stream])
        return content, known.artifact.sha256

    async def may_read(self, artifact_id: str) -> AsyncIterator[str]:
        """The ways in which the artifact can be read; none should be told."""
        stub = artifacts_pb2_grpc.ArtifactServiceStub(self.peer.channel)
        request = artifacts_pb2.GetArtifactRequest(artifact_id=artifact_id)
        try:
            async with calling():
                await stub.GetArtifact(request, metadata=self.peer.metadata(), timeout=10)
            yield "GetArtifact"
        except MeshError as error:
            if error.reason is not Reason.ARTIFACT_NOT_FOUND:
                yield f"GetArtifact: {error.reason}"
        try:
            async with calling():
                download = artifacts_pb2.DownloadRequest(artifact_id=artifact_id)
                async for _ in stub.Download(download, metadata=self.peer.metadata(), timeout=10):
                    yield "Download"
        except MeshError as error:
            if error.reason is not Reason.ARTIFACT_NOT_FOUND:
                yield f"Download: {error.reason}"


async def make_owners(home: Path, addresses: list[str], count: int) -> tuple[Owner, list[Owner]]:
    """The local owner, an admin, as soon as there is a registry; and fresh owners."""
    deadline = time.monotonic() + 120
    while not (home / "client.json").exists():
        assert time.monotonic() < deadline, "no registry started"
        await asyncio.sleep(0.05)
    admin = Owner(addresses, json.loads((home / "client.json").read_text())["key"])
    owners = []
    for number in range(count):
        made = await admin.call(
            owners_pb2_grpc.OwnerServiceStub,
            "CreateOwner",
            owners_pb2.CreateOwnerRequest(name=f"owner {number}"),
        )
        key = await admin.call(
            owners_pb2_grpc.OwnerServiceStub,
            "CreateKey",
            owners_pb2.CreateKeyRequest(owner_id=made.owner.owner_id),
        )
        owners.append(Owner(addresses, key.secret))
    return admin, owners


def digest(content: bytes) -> bytes:
    """SHA-256."""
    return hashlib.sha256(content).digest()
