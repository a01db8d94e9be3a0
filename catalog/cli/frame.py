"""What all commands share: exit codes, arguments, and how an error becomes a sentence."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import IntEnum
from typing import Annotated

import typer

from catalog.cli.output import Output, OutputFormat, make_output
from catalog.errors import CatalogError, ConflictError, InvalidInputError, NotACatalogError


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


PathArgument = Annotated[
    str, typer.Argument(metavar="PATH", help="The catalog: a folder, or an address such as s3://…")
]
StreamArgument = Annotated[str, typer.Argument(metavar="STREAM", help="The stream; '' is the one with the empty name.")]
OutputOption = Annotated[OutputFormat, typer.Option("--output", help="How the result is shown.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the trace of an error.")]


@contextmanager
def running(output: OutputFormat, debug: bool) -> Iterator[Output]:
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
            out.note(_sentence(error))
        raise typer.Exit(_exit_code(error)) from error


def time_argument(text: str) -> datetime:
    """Return the time in an argument; without a time zone it is UTC, as all times that are shown."""
    try:
        found = datetime.fromisoformat(text.strip().removesuffix(" UTC"))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no time; write it as 2026-01-31T12:00:00Z") from error
    return found if found.utcoffset() is not None else found.replace(tzinfo=UTC)


def _sentence(error: Exception) -> str:
    if isinstance(error, CatalogError | OSError):
        return f"ckpt: {error}"
    return f"ckpt: {type(error).__name__}: {error} (not foreseen; --debug shows the trace)"


def _exit_code(error: Exception) -> ExitCode:
    match error:
        case NotACatalogError():
            return ExitCode.NO_CATALOG
        case ConflictError():
            return ExitCode.CONFLICT
        case InvalidInputError():
            return ExitCode.USAGE
    return ExitCode.FAILURE
