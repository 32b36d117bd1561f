"""`reelmesh generate` and `reelmesh watch`: follow a job live, and fetch what it made."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from reelmesh.v1 import jobs_pb2
from services.cli import exits
from services.cli.client import TERMINAL, Client
from services.cli.display import describe_stage, state_name
from services.common.rpc.errors import MeshError

console = Console(stderr=True, highlight=False, soft_wrap=True)


async def generate(client: Client, spec: jobs_pb2.JobSpec, output: Path) -> None:
    """Make a job, follow it, write its video to `output`."""
    job = await client.create_job(spec)
    made = job.spec
    console.print(
        f"job {job.job_id}: {made.clip.width}x{made.clip.height}, {made.clip.frames} frames "
        f"({made.duration_s:.2f} s), seed {made.seed}, {made.evaluations} evaluations"
    )
    if made.off_distribution:
        console.print("[yellow]longer than the model was trained for[/]")
    await finish(client, job.job_id, output)


async def finish(client: Client, job_id: str, output: Path | None) -> None:
    """Follow a job to its end, then write its video to `output` if one is named."""
    job = await _follow(client, job_id)
    if job.state != jobs_pb2.JOB_STATE_SUCCEEDED:
        words = f"job {job.job_id} {state_name(job).lower()}"
        if job.HasField("failure"):
            words += f": {job.failure.reason}\n  {job.failure.message.strip()}"
        exits.fail(words, exits.JOB_FAILED)
    if output is None:
        console.print(f"done: reelmesh download {job.job_id} -o FILE")
        return
    await fetch(client, job.artifact_id, output)


async def fetch(client: Client, artifact_id: str, output: Path) -> None:
    """Download an artifact to `output` with a bar."""
    with _bars() as bars:
        task = bars.add_task("download", total=None)

        def show(done: int, total: int) -> None:
            bars.update(task, completed=done, total=total)

        await client.download(artifact_id, output, show)
    print(output)


async def _follow(client: Client, job_id: str) -> jobs_pb2.Job:
    """The job at its end. Ctrl-C asks whether to cancel it or to leave it running."""
    interrupted = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, interrupted.set)
    try:
        while True:
            showing = asyncio.create_task(_show(client, job_id))
            asking = asyncio.create_task(interrupted.wait())
            await asyncio.wait({showing, asking}, return_when=asyncio.FIRST_COMPLETED)
            if showing.done():
                asking.cancel()
                return showing.result()
            showing.cancel()
            await asyncio.wait({showing})
            interrupted.clear()
            cancel = await _ask_cancel(job_id)
            loop.add_signal_handler(signal.SIGINT, interrupted.set)
            if not cancel:
                console.print(f"left running: reelmesh watch {job_id}")
                sys.exit(exits.INTERRUPTED)
            await client.cancel_job(job_id)
            console.print("cancel requested; waiting for the run to end")
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def _ask_cancel(job_id: str) -> bool:
    if not sys.stdin.isatty():
        return False
    question = f"\ncancel job {job_id}? (no leaves it running)"

    def leave() -> None:
        # The thread below waits for a line that will not come.
        print(f"\nleft running: reelmesh watch {job_id}", file=sys.stderr)
        os._exit(exits.INTERRUPTED)

    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, leave)
    try:
        return await asyncio.to_thread(typer.confirm, question, default=False)
    except typer.Abort:
        return False


async def _show(client: Client, job_id: str) -> jobs_pb2.Job:
    """Bars on a terminal; a line at each change elsewhere."""
    last = jobs_pb2.Job()

    def away(error: MeshError) -> None:
        console.print(f"[yellow]the registry is away ({error.reason}); waiting for it[/]")

    with _bars() as bars:
        task = bars.add_task("waiting", total=None)
        said = ""
        async for job in client.watch_job(job_id, away):
            last = job
            words = describe_stage(job) + (" (cancelling)" if job.cancel_requested else "")
            measured = job.state == jobs_pb2.JOB_STATE_RUNNING and job.progress.total > 1
            bars.update(
                task,
                description=words,
                completed=job.progress.done if measured else 0,
                total=job.progress.total if measured else None,
            )
            if words != said and not console.is_terminal:
                console.print(words)
                said = words
    if last.state not in TERMINAL:
        return await client.get_job(job_id)
    return last


def _bars() -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
