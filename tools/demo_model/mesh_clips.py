"""Makes the clips of prompts through a running mesh, and reads the MP4s that it published."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from reelmesh.v1 import jobs_pb2
from services.cli.access import Access
from services.cli.client import Client
from tools.demo_model.cases import Case

_TOGETHER = 4  # jobs in the mesh at a time: enough that no stage waits for the next request


async def publish(
    access: Access,
    cases: Sequence[Case],
    evaluations: int,
    folder: Path,
    done: Callable[[Case, Path], None],
) -> None:
    """Make every case's MP4 in `folder` and call `done` with it, in the order they finish."""
    gate = asyncio.Semaphore(_TOGETHER)
    async with Client(access.address, access.key) as client:

        async def one(number: int, case: Case) -> None:
            async with gate:
                job = await client.create_job(
                    jobs_pb2.JobSpec(prompt=case.prompt, seed=case.seed, evaluations=evaluations)
                )
                async for seen in client.watch_job(job.job_id):
                    job = seen
                if job.state != jobs_pb2.JOB_STATE_SUCCEEDED:
                    raise SystemExit(f"{case.prompt!r} failed: {job.failure.message}")
                path = folder / f"{evaluations}-{number}.mp4"
                await client.download(job.artifact_id, path)
            # Reading takes as long as a stage's work: the watches of the other jobs go on.
            await asyncio.to_thread(done, case, path)

        async with asyncio.TaskGroup() as tasks:
            for number, case in enumerate(cases):
                tasks.create_task(one(number, case))
