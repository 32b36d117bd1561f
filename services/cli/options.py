"""What several commands share: options, the client of a home, and the way to print."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from services.cli import exits
from services.cli.access import find_access
from services.cli.client import Client
from services.common.config import DEFAULT_HOME

_PIPED_WIDTH = 1000  # wider than any table: what reads a pipe wants one line a row


def make_console() -> Console:
    """For standard output: as wide as the terminal, and without wrapping where there is none."""
    given = sys.stdout.isatty() or "COLUMNS" in os.environ
    width = None if given else _PIPED_WIDTH
    return Console(highlight=False, soft_wrap=True, width=width)


console = make_console()

Home = Annotated[
    Path | None,
    typer.Option(help=f"The mesh's folder, with its key file. [default: {DEFAULT_HOME}]"),
]
Json = Annotated[bool, typer.Option("--json", help="Print protobuf JSON instead.")]
JobId = Annotated[str, typer.Argument(help="The job's id, job_…")]
Output = Annotated[Path, typer.Option("--output", "-o", help="The file to write.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file.")]


@asynccontextmanager
async def client_of(home: Path | None) -> AsyncIterator[Client]:
    """A client with the address and key that are found for this home."""
    access = find_access(home)
    async with Client(access.address, access.key) as client:
        yield client


def check_output(output: Path, force: bool) -> None:
    """Refuse before minutes of GPU time are spent on a file that cannot be written."""
    folder = output.resolve().parent
    if output.is_dir():
        exits.fail(f"{output} is a folder; name a file in it", exits.USAGE)
    if output.exists() and not output.is_file():
        exits.fail(f"{output} is no regular file; it would be replaced by one", exits.USAGE)
    if output.exists() and not force:
        exits.fail(f"{output} exists; --force overwrites it", exits.USAGE)
    if not folder.is_dir():
        exits.fail(f"the folder {folder} does not exist", exits.USAGE)
    if not os.access(folder, os.W_OK):
        exits.fail(f"the folder {folder} is not writable", exits.USAGE)
