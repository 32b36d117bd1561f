"""What the mesh adds to a job: its wall time less the sum of the engines' own times.

The engines' times are those that the stages measured inside their work (encode_text, prepare,
evaluate, decode_audio, decode_video, mux, verify and the writing of a tensor file). The rest is
ours: queueing, starts, journals, pulls, commits, the upload, the publishing, the watch.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.mesh import running_mesh
from reelmesh.v1 import jobs_pb2
from services.cli.access import find_access
from services.cli.client import Client

_JOBS = 7
# Phases of ours among the measured ones; the others are the engines'.
_OURS = ("pull", "commit", "upload")
_PROMPT = "a red ball rolls slowly over the sand"


def measure(checkpoint: Path) -> dict[str, Any]:
    """Medians in seconds over several jobs, one at a time, after one to warm up; and the start."""
    with tempfile.TemporaryDirectory() as folder, running_mesh(Path(folder), checkpoint) as start_s:
        jobs = asyncio.run(_run_jobs(Path(folder)))
    return {
        "start_s": start_s,
        "wall_s": statistics.median(wall for wall, _, _ in jobs),
        "engines_s": statistics.median(engines for _, engines, _ in jobs),
        "overhead_s": statistics.median(wall - engines for wall, engines, _ in jobs),
        "overhead_max_s": max(wall - engines for wall, engines, _ in jobs),
        "moves_s": statistics.median(moves for _, _, moves in jobs),
        "jobs": len(jobs),
    }


async def _run_jobs(home: Path) -> list[tuple[float, float, float]]:
    access = find_access(home)
    async with Client(access.address, access.key) as client:
        await _run_job(client, 0)
        return [await _run_job(client, seed) for seed in range(1, _JOBS + 1)]


async def _run_job(client: Client, seed: int) -> tuple[float, float, float]:
    """Wall time as the client sees it, the engines' share, and the transfers' and commits'."""
    began = time.perf_counter()
    job = await client.create_job(jobs_pb2.JobSpec(prompt=_PROMPT, seed=seed, evaluations=8))
    async for now in client.watch_job(job.job_id):
        job = now
    wall = time.perf_counter() - began
    if job.state != jobs_pb2.JOB_STATE_SUCCEEDED:
        raise RuntimeError(f"{job.failure.reason}: {job.failure.message}")
    engines = moves = 0.0
    for attempt in job.attempts:
        for timing in attempt.timings:
            seconds = timing.duration.ToMicroseconds() / 1e6
            if timing.phase in _OURS:
                moves += seconds
            else:
                engines += seconds
    return wall, engines, moves


def report(figures: dict[str, Any]) -> str:
    """The figures as Markdown."""
    return (
        "| figure | seconds |\n|---|---|\n"
        f"| `reelmesh up` to all four SERVING | {figures['start_s']:.1f} |\n"
        f"| one job, wall | {figures['wall_s']:.3f} |\n"
        f"| of that the engines' own | {figures['engines_s']:.3f} |\n"
        f"| overhead of the mesh, median of {figures['jobs']} | {figures['overhead_s']:.3f} |\n"
        f"| overhead, worst | {figures['overhead_max_s']:.3f} |\n"
        f"| of that pulls, commits and the upload | {figures['moves_s']:.3f} |\n"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoints/tiny"))
    print(report(measure(parser.parse_args().checkpoint)))
