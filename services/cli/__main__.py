"""The `reelmesh` command."""

import os
import runpy
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToJson
from rich.console import Console

from reelmesh.v1 import jobs_pb2
from services.cli import exits, generate, up
from services.cli.access import find_access
from services.cli.client import Client
from services.cli.display import instances_table, job_details, jobs_table
from services.common.config import DEFAULT_HOME
from services.common.version import version

app = typer.Typer(
    help=f"Serve MiniMax-H3 and make videos with it.\n\n{exits.HELP}",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console(highlight=False, soft_wrap=True)

Home = Annotated[
    Path | None,
    typer.Option(help=f"The mesh's folder, with its key file. [default: {DEFAULT_HOME}]"),
]
Json = Annotated[bool, typer.Option("--json", help="Print protobuf JSON instead.")]
JobId = Annotated[str, typer.Argument(help="The job's id, job_…")]


@app.callback(invoke_without_command=True)
def root(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Options before any command."""
    if show_version:
        print(version())
        raise typer.Exit


@app.command("up")
def up_command(
    home: Home = None,
    port: Annotated[
        int,
        typer.Option(help="Clients' port; +1 mesh, +10 encoder, +20 sampler, +30 decoder."),
    ] = 7400,
    checkpoint: Annotated[
        str | None,
        typer.Option(help="A folder or a hub id.", envvar="REELMESH_CHECKPOINT"),
    ] = None,
) -> None:
    """Start registry, encoder, sampler and decoder on this machine.

    Example: reelmesh up --home ./mesh --checkpoint MiniMaxAI/MiniMax-H3

    A service that dies is started again on its own journal, five times with growing pauses.
    Ctrl-C stops all. Logs are in HOME/logs.
    """
    exits.run(up.run((home or DEFAULT_HOME).expanduser().resolve(), port, checkpoint))


@app.command()
def serve(
    service: Annotated[str, typer.Argument(help="registry, encoder, sampler or decoder")],
) -> None:
    """Run one service in the foreground, set up by its environment or REELMESH_CONFIG.

    Example: REELMESH_HOME=./mesh REELMESH_CHECKPOINT=./h3 reelmesh serve sampler
    """
    if service not in up.SERVICES:
        exits.fail(f"no service {service!r}: {', '.join(up.SERVICES)}", exits.USAGE)
    sys.argv = [f"services.{service}"]
    runpy.run_module(f"services.{service}", run_name="__main__", alter_sys=True)


@app.command()
def migrate(home: Home = None) -> None:
    """Bring the registry's database to this version's schema.

    Example: reelmesh migrate --home ./mesh
    """
    if home is not None:
        os.environ["REELMESH_HOME"] = str(home.expanduser().resolve())
    sys.argv = ["services.registry", "migrate"]
    runpy.run_module("services.registry", run_name="__main__", alter_sys=True)


@app.command("generate")
def generate_command(
    prompt: Annotated[str, typer.Argument(help="What the video should show and sound like.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The MP4 to write.")],
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
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Print the job's id and return.")
    ] = False,
    home: Home = None,
) -> None:
    """Make a video: queue the job, follow it live, write the MP4.

    Example: reelmesh generate "a red kite over the sea, wind" -o kite.mp4 --seed 7

    Ctrl-C asks whether to cancel the job or to leave it running.
    """
    _check_output(output, force)
    spec = jobs_pb2.JobSpec()
    try:
        spec.prompt = prompt
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
        async with _client(home) as client:
            if detach:
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
        async with _client(home) as client:
            console.print(jobs_table(list(await client.list_jobs(most))))

    exits.run(work())


@app.command()
def show(job_id: JobId, as_json: Json = False, home: Home = None) -> None:
    """Show one job with its runs.

    Example: reelmesh show job_0123456789abcdef0123456789abcdef
    """

    async def work() -> None:
        async with _client(home) as client:
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
        async with _client(home) as client:
            await generate.finish(client, job_id, None)

    exits.run(work())


@app.command()
def cancel(job_id: JobId, home: Home = None) -> None:
    """Ask a job to stop: within one evaluation, or one clip of the decoder.

    Example: reelmesh cancel job_0123456789abcdef0123456789abcdef
    """

    async def work() -> None:
        async with _client(home) as client:
            console.print(job_details(await client.cancel_job(job_id)))

    exits.run(work())


@app.command()
def download(
    job_id: Annotated[str, typer.Argument(help="A job's id, job_…, or an artifact's, art_…")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    home: Home = None,
) -> None:
    """Write a finished job's video to a file.

    Example: reelmesh download job_0123456789abcdef0123456789abcdef -o clip.mp4
    """
    _check_output(output, force)

    async def work() -> None:
        async with _client(home) as client:
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
def instances(home: Home = None) -> None:
    """List the stage services that the registry knows. Needs an admin's key.

    Example: reelmesh instances
    """

    async def work() -> None:
        async with _client(home) as client:
            console.print(instances_table(list(await client.list_instances())))

    exits.run(work())


@asynccontextmanager
async def _client(home: Path | None) -> Any:
    access = find_access(home)
    async with Client(access.address, access.key) as client:
        yield client


def _check_output(output: Path, force: bool) -> None:
    """Refuse before minutes of GPU time are spent on a file that cannot be written."""
    if output.exists() and not force:
        exits.fail(f"{output} exists; --force overwrites it", exits.USAGE)
    if not output.resolve().parent.is_dir():
        exits.fail(f"the folder {output.resolve().parent} does not exist", exits.USAGE)
    if not os.access(output.resolve().parent, os.W_OK):
        exits.fail(f"the folder {output.resolve().parent} is not writable", exits.USAGE)


def _parse_canvas(text: str) -> jobs_pb2.Canvas:
    width, cross, height = text.lower().partition("x")
    if not (cross and width.isdecimal() and height.isdecimal()):
        exits.fail(f"--canvas {text}: use WIDTHxHEIGHT, for example 1344x768", exits.USAGE)
    try:
        return jobs_pb2.Canvas(height=int(height), width=int(width))
    except ValueError as error:
        exits.fail(f"--canvas {text}: {error}", exits.USAGE)


def _seconds(value: float) -> Duration:
    duration = Duration()
    try:
        duration.FromMilliseconds(round(value * 1000))
    except (ValueError, OverflowError) as error:
        exits.fail(f"--duration {value}: {error}", exits.USAGE)
    return duration


def main() -> None:
    """The entry point of the distribution."""
    app()


if __name__ == "__main__":
    main()
