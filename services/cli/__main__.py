"""The `reelmesh` command."""

from typing import Annotated

import typer

from services.cli import exits
from services.cli.commands import jobs, operators, services
from services.common.version import version

app = typer.Typer(
    help=f"Serve MiniMax-H3 and make videos with it.\n\n{exits.HELP}",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for part in (services.app, jobs.app, operators.app):
    app.add_typer(part)


@app.callback(invoke_without_command=True)
def root(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Options before any command."""
    if show_version:
        print(version())
        raise typer.Exit


def main() -> None:
    """The entry point of the distribution."""
    app()


if __name__ == "__main__":
    main()
