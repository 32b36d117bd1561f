"""What a mesh that is about to stop leaves undone, in words."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from reelmesh.v1 import jobs_pb2, stage_pb2
from services.cli.access import NoAccess, find_access
from services.cli.client import Client
from services.common.rpc.errors import MeshError

_LIMIT_S = 2.0  # nobody waits longer for a stop because of this
_MOST = 100
_LIVE = (
    stage_pb2.RUN_STATE_BOUND,
    stage_pb2.RUN_STATE_ACCEPTED,
    stage_pb2.RUN_STATE_RUNNING,
    stage_pb2.RUN_STATE_UNKNOWN,
)
_ENDED = (
    jobs_pb2.JOB_STATE_SUCCEEDED,
    jobs_pb2.JOB_STATE_FAILED,
    jobs_pb2.JOB_STATE_CANCELLED,
)


async def unfinished(home: Path) -> Sequence[jobs_pb2.Job]:
    """Live jobs of the key in `home`; none if the registry cannot be asked any more."""
    try:
        access = find_access(home)
        async with asyncio.timeout(_LIMIT_S), Client(access.address, access.key) as client:
            jobs = await client.list_jobs(_MOST)
    except (NoAccess, MeshError, TimeoutError):
        return []
    return [job for job in jobs if job.state not in _ENDED]


def farewell(jobs: Sequence[jobs_pb2.Job]) -> list[str]:
    """A line for each job that the stop cuts short, and one for those that only wait."""
    lines = [
        f"cut short: {job.job_id}; after the next start: reelmesh resume {job.job_id} -o FILE"
        for job in jobs
        if any(attempt.state in _LIVE for attempt in job.attempts)
    ]
    waiting = len(jobs) - len(lines)
    if waiting:
        lines.append(f"{waiting} waiting job{'s' * (waiting > 1)} will go on at the next start")
    return lines
