"""Commands that run a mesh: up, serve, migrate."""

import os
import runpy
import sys
from typing import Annotated

import typer

from services.cli import exits, up
from services.cli.options import Home
from services.common.config import ServiceSettings, load_settings

app = typer.Typer()


@app.command("up")
def up_command(
    home: Home = None,
    port: Annotated[
        int,
        typer.Option(
            min=1024,
            max=65505,
            help="Clients' port; +1 mesh, +10 encoder, +20 sampler, +30 decoder.",
        ),
    ] = 7400,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="A folder or a hub id; the demo checkpoint of a checkout if nothing names one.",
            envvar="REELMESH_CHECKPOINT",
        ),
    ] = None,
) -> None:
    """Start registry, encoder, sampler and decoder on this machine.

    Example: reelmesh up --home ./mesh --checkpoint MiniMaxAI/MiniMax-H3

    A service that dies is started again on its own journal, five times with growing pauses; if
    that does not help, all are stopped. Ctrl-C stops all. Logs are in HOME/logs.
    """
    folder = home.expanduser().resolve() if home else load_settings(ServiceSettings).home_folder
    exits.run(up.run(folder, port, checkpoint or up.default_checkpoint()))


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
