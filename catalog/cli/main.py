"""`ckpt`: the catalog on the command line.

Exit codes: 0 ok, 1 failure, 2 usage, 3 faults found or partly done, 10 no catalog there, 11 conflict.
"""

import io
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from catalog.cli import looking, recovering

app = typer.Typer(
    name="ckpt",
    no_args_is_help=True,
    add_completion=False,
    # Help and usage errors repeat what was typed: plain text cannot be broken by it.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 ok, 1 failure, 2 usage, 3 faults found or partly done, 10 no catalog there, 11 conflict.",
)
app.command("list")(looking.list_command)
app.command("show")(looking.show_command)
app.command("recover")(recovering.recover_command)


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
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name that the terminal cannot show is escaped, not an error
        sys.stdout.reconfigure(errors="backslashreplace")
    app(arguments, prog_name="ckpt")


if __name__ == "__main__":
    main()
