"""What all commands share: exit codes, arguments, and how an error becomes a sentence."""

import io
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import IntEnum
from typing import Annotated, Any

import typer

from catalog.cli.output import Output, OutputFormat, make_output
from catalog.errors import CatalogError, ConflictError, InvalidInputError, NotACatalogError
from catalog.tables.commits import first_line


class ExitCode(IntEnum):
    """What a command's exit code says."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    FAULTS = 3
    """Faults were found, or it is partly done."""
    NO_CATALOG = 10
    CONFLICT = 11
    """Nothing happened: try again."""


EXIT_CODES = "Exit codes: 0 ok, 1 failure, 2 usage, 3 faults found or partly done, 10 no catalog there, 11 conflict."

PathArgument = Annotated[
    str, typer.Argument(metavar="PATH", help="The catalog: a folder, or an address such as s3://…")
]
StreamArgument = Annotated[str, typer.Argument(metavar="STREAM", help="The stream; '' is the one with the empty name.")]
OutputOption = Annotated[OutputFormat, typer.Option("--output", help="How the result is shown.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the trace of an error.")]


def make_app(name: str, **settings: Any) -> typer.Typer:
    """Return an app to which commands are added."""
    return typer.Typer(
        name=name,
        add_completion=False,
        # Help and usage errors repeat what was typed: plain text cannot be broken by it.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        **settings,
    )


def run_app(app: typer.Typer, arguments: Sequence[str] | None) -> None:
    """Run a command and exit."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name that the terminal cannot show is escaped, not an error
        sys.stdout.reconfigure(errors="backslashreplace")
    app(arguments, prog_name=app.info.name)


@contextmanager
def running(output: OutputFormat, debug: bool, program: str = "ckpt") -> Iterator[Output]:
    """Give a command its output; an error becomes one sentence on stderr and an exit code."""
    out = make_output(output)
    try:
        yield out
    except (typer.Exit, typer.Abort, BrokenPipeError):
        raise
    except Exception as error:
        if debug:
            traceback.print_exc()
        else:
            out.note(f"{program}: {sentence(error)}")
        raise typer.Exit(exit_code(error)) from error


def time_argument(text: str) -> datetime:
    """Return the time in an argument; without a time zone it is UTC, as all times that are shown."""
    try:
        found = datetime.fromisoformat(text.strip().removesuffix(" UTC"))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no time; write it as 2026-01-31T12:00:00Z") from error
    return found if found.utcoffset() is not None else found.replace(tzinfo=UTC)


def sentence(error: Exception) -> str:
    """Return an error as one sentence."""
    if isinstance(error, CatalogError | OSError):
        return str(error)
    return f"{type(error).__name__}: {first_line(error)} (not foreseen; --debug shows the trace)"


def exit_code(error: Exception) -> ExitCode:
    """Return the exit code that an error means."""
    match error:
        case NotACatalogError():
            return ExitCode.NO_CATALOG
        case ConflictError():
            return ExitCode.CONFLICT
        case InvalidInputError():
            return ExitCode.USAGE
    return ExitCode.FAILURE
