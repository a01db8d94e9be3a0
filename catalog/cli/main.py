"""`ckpt`: the catalog on the command line.

Exit codes: 0 ok, 1 failure, 2 usage, 3 faults found or partly done, 10 no catalog there, 11 conflict.
"""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from catalog.cli import looking, recovering, reporting
from catalog.cli.frame import EXIT_CODES, make_app, run_app

app = make_app("ckpt", no_args_is_help=True, epilog=EXIT_CODES)
app.command("list")(looking.list_command)
app.command("show")(looking.show_command)
app.command("recover")(recovering.recover_command)
app.command("report")(reporting.report_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"ckpt {version('checkpoint-catalog')}")
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Look into a checkpoint catalog, and recover from it."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit.

    Args:
        arguments: those of the command line, by default of this process.
    """
    run_app(app, arguments)


if __name__ == "__main__":
    main()
