"""Commands of people who want videos: generate, and looking after jobs."""

from pathlib import Path
from typing import Annotated

import typer
from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToJson

from reelmesh.v1 import jobs_pb2
from services.cli import exits, generate
from services.cli.display import job_details, jobs_table, receipt_table
from services.cli.options import Force, Home, JobId, Json, Output, check_output, client_of, console

app = typer.Typer()


@app.command("generate")
def generate_command(
    prompt: Annotated[str, typer.Argument(help="What the video should show and sound like.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The MP4 to write; not with --detach.")
    ] = None,
    frames: Annotated[
        int | None, typer.Option(help="Length at 24 a second; snapped up to 17n + 5.")
    ] = None,
    duration: Annotated[float | None, typer.Option(help="Length in seconds instead.")] = None,
    canvas: Annotated[
        str | None, typer.Option(help="WIDTHxHEIGHT, multiples of 32, for example 1344x768.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed; drawn if left out.")] = None,
    evaluations: Annotated[
        int | None, typer.Option(help="Forwards of the transformer (inference steps less one).")
    ] = None,
    priority: Annotated[
        int, typer.Option(help="Among your own waiting jobs, higher first: -100 to 100.")
    ] = 0,
    pool: Annotated[str, typer.Option(help="Only samplers of this pool.")] = "",
    sampler: Annotated[str, typer.Option(help="Only this sampler, by its instance id.")] = "",
    resumes: Annotated[
        int, typer.Option(help="Resume this often by itself after a definite failure: 0 to 5.")
    ] = 0,
    force: Force = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Print the job's id and return.")
    ] = False,
    home: Home = None,
) -> None:
    """Make a video: queue the job, follow it live, write the MP4.

    Example: reelmesh generate "a red kite over the sea, wind" -o kite.mp4 --seed 7

    Ctrl-C asks whether to cancel the job or to leave it running.
    """
    if output is not None:
        check_output(output, force)
    elif not detach:
        exits.fail("name the MP4 to write with -o FILE, or --detach the job", exits.USAGE)
    spec = jobs_pb2.JobSpec()
    try:
        spec.prompt = prompt
        spec.priority, spec.automatic_resumes = priority, resumes
        spec.pool, spec.sampler_id = pool, sampler
        if frames is not None:
            spec.frames = frames
        if seed is not None:
            spec.seed = seed
        if evaluations is not None:
            spec.evaluations = evaluations
    except ValueError as error:
        exits.fail(f"cannot be sent: {error}", exits.USAGE)
    if duration is not None:
        spec.duration.CopyFrom(_seconds(duration))
    if canvas is not None:
        spec.canvas.CopyFrom(_parse_canvas(canvas))

    async def work() -> None:
        async with client_of(home) as client:
            if output is None or detach:
                print((await client.create_job(spec)).job_id)
            else:
                await generate.generate(client, spec, output)

    exits.run(work())


@app.command()
def jobs(
    most: Annotated[int, typer.Option("--most", "-n", min=1, help="How many.")] = 20,
    home: Home = None,
) -> None:
    """List your jobs, newest first.

    Example: reelmesh jobs -n 5
    """

    async def work() -> None:
        async with client_of(home) as client:
            console.print(jobs_table(list(await client.list_jobs(most))))

    exits.run(work())


@app.command()
def show(job_id: JobId, as_json: Json = False, home: Home = None) -> None:
    """Show one job with its runs.

    Example: reelmesh show job_0123456789abcdef0123456789abcdef
    """

    async def work() -> None:
        async with client_of(home) as client:
            job = await client.get_job(job_id)
            if as_json:
                print(MessageToJson(job))
            else:
                console.print(job_details(job))

    exits.run(work())


@app.command()
def watch(job_id: JobId, home: Home = None) -> None:
    """Follow a job live to its end.

    Example: reelmesh watch job_0123456789abcdef0123456789abcdef
    """

    async def work() -> None:
        async with client_of(home) as client:
            await generate.finish(client, job_id, None)

    exits.run(work())


@app.command()
def cancel(job_id: JobId, home: Home = None) -> None:
    """Ask a job to stop: within one evaluation, or one clip of the decoder.

    Example: reelmesh cancel job_0123456789abcdef0123456789abcdef
    """

    async def work() -> None:
        async with client_of(home) as client:
            job = await client.cancel_job(job_id)
            console.print(job_details(job))
            if not job.cancel_requested and job.state != jobs_pb2.JOB_STATE_CANCELLED:
                exits.fail("the job had ended before; nothing was cancelled", exits.JOB_FAILED)

    exits.run(work())


@app.command()
def download(
    job_id: Annotated[str, typer.Argument(help="A job's id, job_…, or an artifact's, art_…")],
    output: Output,
    force: Force = False,
    home: Home = None,
) -> None:
    """Write a finished job's video to a file.

    Example: reelmesh download job_0123456789abcdef0123456789abcdef -o clip.mp4
    """
    check_output(output, force)

    async def work() -> None:
        async with client_of(home) as client:
            artifact_id = job_id
            if not job_id.startswith("art_"):
                job = await client.get_job(job_id)
                if not job.artifact_id:
                    exits.fail(
                        f"job {job_id} has no video: reelmesh show {job_id}", exits.JOB_FAILED
                    )
                artifact_id = job.artifact_id
            await generate.fetch(client, artifact_id, output)

    exits.run(work())


@app.command()
def resume(
    job_id: JobId,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Follow it and write its video here.")
    ] = None,
    force: Force = False,
    home: Home = None,
) -> None:
    """Make a new job that redoes only what a failed or cancelled one lacks.

    Example: reelmesh resume job_0123456789abcdef0123456789abcdef -o clip.mp4
    """
    if output is not None:
        check_output(output, force)

    async def work() -> None:
        async with client_of(home) as client:
            job = await client.resume_job(job_id)
            if output is None:
                print(job.job_id)
            else:
                await generate.finish(client, job.job_id, output)

    exits.run(work())


@app.command()
def receipt(job_id: JobId, as_json: Json = False, home: Home = None) -> None:
    """Show what made an ended job's video: instances, recipe, timings, digests.

    Example: reelmesh receipt job_0123456789abcdef0123456789abcdef --json
    """

    async def work() -> None:
        async with client_of(home) as client:
            made = await client.get_receipt(job_id)
            if as_json:
                print(MessageToJson(made))
            else:
                console.print(receipt_table(made))

    exits.run(work())


def _parse_canvas(text: str) -> jobs_pb2.Canvas:
    width, cross, height = text.lower().partition("x")
    if not (cross and width.isdecimal() and height.isdecimal()):
        exits.fail(f"--canvas {text}: use WIDTHxHEIGHT, for example 1344x768", exits.USAGE)
    try:
        return jobs_pb2.Canvas(height=int(height), width=int(width))
    except ValueError as error:
        exits.fail(f"--canvas {text}: {error}", exits.USAGE)


def _seconds(value: float) -> Duration:
    if not 0 < value < 1e6:  # false for NaN too
        exits.fail(f"--duration {value:g}: use seconds, for example 5.5", exits.USAGE)
    duration = Duration()
    duration.FromMilliseconds(round(value * 1000))
    return duration
