"""The Python client of a reelmesh: what the command is written on, for other programs too.

    async with Client("127.0.0.1:7400", key) as client:
        job = await client.create_job(jobs_pb2.JobSpec(prompt="a red kite over the sea"))
        async for job in client.watch_job(job.job_id):
            print(job.state, job.progress.done, job.progress.total)
        await client.download(job.artifact_id, Path("kite.mp4"))

Every method raises MeshError with the server's reason.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Self

from reelmesh.v1 import (
    artifacts_pb2,
    artifacts_pb2_grpc,
    jobs_pb2,
    jobs_pb2_grpc,
)
from services.cli.calls import call
from services.cli.operator import Operator
from services.common.rpc.channel import Peer, calling
from services.common.rpc.errors import MeshError, Reason
from services.common.transfer.download import receive_to_file

TERMINAL = frozenset(
    {
        jobs_pb2.JOB_STATE_SUCCEEDED,
        jobs_pb2.JOB_STATE_FAILED,
        jobs_pb2.JOB_STATE_CANCELLED,
    }
)
# A server that stops cancels the calls that had just reached it: we cancel no watch of our own so.
_AGAIN = {
    Reason.UNREACHABLE,
    Reason.DRAINING,
    Reason.CANCELLED,
    Reason.REVISION_COMPACTED,
    Reason.DEADLINE,
}
_FIRST_WAIT_S, _LAST_WAIT_S = 0.2, 5.0


class Client:
    """A registry's client listener, spoken to with one key."""

    def __init__(self, address: str, key: str) -> None:
        self._peer = Peer(address, key)

    async def __aenter__(self) -> Self:
        return self

    @property
    def operator(self) -> Operator:
        """What an admin's key may do besides."""
        return Operator(self._peer)

    async def __aexit__(self, *_: object) -> None:
        await self._peer.close()

    async def create_job(self, spec: jobs_pb2.JobSpec) -> jobs_pb2.Job:
        """Make a job. Sent again with the same request id if the answer is lost."""
        request = jobs_pb2.CreateJobRequest(spec=spec, request_id=str(uuid.uuid4()))
        stub = jobs_pb2_grpc.JobServiceStub(self._peer.channel)
        for wait_s in (_FIRST_WAIT_S, 1.0):
            try:
                answer: jobs_pb2.CreateJobResponse = await call(self._peer, stub.CreateJob, request)
            except MeshError as error:
                if error.reason not in (Reason.UNREACHABLE, Reason.DEADLINE):
                    raise
                await asyncio.sleep(wait_s)
            else:
                return answer.job
        answer = await call(self._peer, stub.CreateJob, request)
        return answer.job

    async def get_job(self, job_id: str) -> jobs_pb2.Job:
        """One job."""
        stub = jobs_pb2_grpc.JobServiceStub(self._peer.channel)
        answer: jobs_pb2.GetJobResponse = await call(
            self._peer, stub.GetJob, jobs_pb2.GetJobRequest(job_id=job_id)
        )
        return answer.job

    async def list_jobs(self, most: int) -> Sequence[jobs_pb2.Job]:
        """The newest `most` jobs."""
        stub = jobs_pb2_grpc.JobServiceStub(self._peer.channel)
        jobs: list[jobs_pb2.Job] = []
        token = ""
        while len(jobs) < most:
            answer: jobs_pb2.ListJobsResponse = await call(
                self._peer,
                stub.ListJobs,
                jobs_pb2.ListJobsRequest(page_size=most - len(jobs), page_token=token),
            )
            jobs.extend(answer.jobs)
            token = answer.next_page_token
            if not token:
                break
        return jobs

    async def cancel_job(self, job_id: str) -> jobs_pb2.Job:
        """Ask a job to stop."""
        stub = jobs_pb2_grpc.JobServiceStub(self._peer.channel)
        answer: jobs_pb2.CancelJobResponse = await call(
            self._peer, stub.CancelJob, jobs_pb2.CancelJobRequest(job_id=job_id)
        )
        return answer.job

    async def resume_job(self, job_id: str) -> jobs_pb2.Job:
        """A new job that redoes only what an ended one lacks."""
        stub = jobs_pb2_grpc.JobServiceStub(self._peer.channel)
        request = jobs_pb2.ResumeJobRequest(job_id=job_id, request_id=str(uuid.uuid4()))
        answer: jobs_pb2.ResumeJobResponse = await call(self._peer, stub.ResumeJob, request)
        return answer.job

    async def get_receipt(self, job_id: str) -> jobs_pb2.Receipt:
        """What made an ended job's video."""
        stub = jobs_pb2_grpc.JobServiceStub(self._peer.channel)
        request = jobs_pb2.GetReceiptRequest(job_id=job_id)
        answer: jobs_pb2.GetReceiptResponse = await call(self._peer, stub.GetReceipt, request)
        return answer.receipt

    async def watch_job(
        self, job_id: str, on_away: Callable[[MeshError], None] | None = None
    ) -> AsyncIterator[jobs_pb2.Job]:
        """The job at every change until it has ended.

        A registry that goes away is waited for, without a limit: the job lives on in it. Each
        failed try is told to `on_away`.
        """
        stub = jobs_pb2_grpc.JobServiceStub(self._peer.channel)
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                async with calling():
                    stream = stub.WatchJob(
                        jobs_pb2.WatchJobRequest(job_id=job_id), metadata=self._peer.metadata()
                    )
                    async for answer in stream:
                        wait_s = _FIRST_WAIT_S
                        if answer.HasField("job"):
                            yield answer.job
                return
            except MeshError as error:
                if error.reason not in _AGAIN:
                    raise
                if on_away is not None:
                    on_away(error)
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, _LAST_WAIT_S)

    async def get_artifact(self, artifact_id: str) -> artifacts_pb2.Artifact:
        """What an artifact is."""
        stub = artifacts_pb2_grpc.ArtifactServiceStub(self._peer.channel)
        answer: artifacts_pb2.GetArtifactResponse = await call(
            self._peer, stub.GetArtifact, artifacts_pb2.GetArtifactRequest(artifact_id=artifact_id)
        )
        return answer.artifact

    async def download(
        self,
        artifact_id: str,
        path: Path,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Write an artifact to `path`, which appears only whole and verified.

        A broken connection is resumed where it broke.
        """
        stub = artifacts_pb2_grpc.ArtifactServiceStub(self._peer.channel)

        def open_stream(offset: int) -> Any:
            request = artifacts_pb2.DownloadRequest(artifact_id=artifact_id, offset=offset)
            return stub.Download(request, metadata=self._peer.metadata())

        await receive_to_file(open_stream, path, progress=progress)
