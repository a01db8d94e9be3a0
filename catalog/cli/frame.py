"""What all commands share: exit codes, arguments, and how an error becomes a sentence."""

import io
import logging
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from catalog.cli.output import Output, OutputFormat, make_output
from catalog.errors import (
    CatalogError,
    ConflictError,
    DamagedCatalogError,
    InvalidInputError,
    NotACatalogError,
    TrashedError,
)
from catalog.policies import span
from catalog.tables.commits import first_line
from catalog.tables.port import Table

CATALOG_VARIABLE = "CKPT_CATALOG"

_arguments: ContextVar[Mapping[str, Any]] = ContextVar("arguments", default=MappingProxyType({}))
"""Of the command that runs."""


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
    INTERRUPTED = 130
    """By Ctrl-C."""


EXIT_CODES = (
    "Exit codes: 0 ok, 1 failure, 2 usage, 3 faults found or partly done, 10 no catalog there, 11 conflict, "
    "130 interrupted."
)

PathArgument = Annotated[
    str,
    typer.Argument(metavar="PATH", envvar=CATALOG_VARIABLE, help="The catalog: a folder, or an address such as s3://…"),
]
StreamArgument = Annotated[str, typer.Argument(metavar="STREAM", help="The stream; '' is the one with the empty name.")]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="An integer or a UUIDv7.")]
OutputOption = Annotated[OutputFormat, typer.Option("--output", help="How the result is shown.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the trace of an error.")]


class CatalogCommand(TyperCommand):
    """A command whose first argument, PATH, may be left out where the environment names the catalog."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the catalog of the environment before arguments that begin with something else."""
        catalog = os.environ.get(CATALOG_VARIABLE)
        if catalog:
            return super().parse_args(ctx, [catalog, *args] if self._lacks_path(ctx, args) else args)
        try:
            return super().parse_args(ctx, list(args))  # which takes from the list what it has read
        except typer.BadParameter as error:  # of an argument that is missing: perhaps it is the first one
            if "Missing argument" in error.format_message() and self._lacks_path(ctx, args):
                error.message = f"PATH comes first, unless {CATALOG_VARIABLE} names the catalog"
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run it, and remember its arguments for what an error may have to say about them."""
        _arguments.set(ctx.params)
        return super().invoke(ctx)

    def _lacks_path(self, ctx: Any, args: Sequence[str]) -> bool:
        """Say whether PATH was left out: the first one is no path, and too few are there or another fits in."""
        positional = [one for one in self.params if one.param_type_name == "argument"]
        found, _, _ = self.make_parser(ctx).parse_args(list(args))
        values = [found.get(str(one.name)) for one in positional]
        given = [word for value in values for word in (value if isinstance(value, tuple | list) else [value])]
        words = [word for word in given if isinstance(word, str)]
        # With no word at all PATH is taken from the environment anyway.
        if not words or is_path(words[0]):
            return False
        return any(one.nargs == -1 for one in positional) or len(words) < len(positional)


def is_path(word: str) -> bool:
    """Say whether a word can be nothing but a PATH."""
    return word.startswith(("/", ".", "~")) or "://" in word


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
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the caller has closed it
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - as long as the process lasts
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name that the terminal cannot show is escaped, not an error
        sys.stdout.reconfigure(errors="backslashreplace")
    app(arguments, prog_name=app.info.name)


@contextmanager
def running(output: OutputFormat, debug: bool, program: str = "ckpt") -> Iterator[Output]:
    """Give a command its output; an error becomes one sentence on stderr and an exit code."""
    out = make_output(output)
    try:
        with _telling(out, debug, program):
            yield out
    except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
        raise
    except KeyboardInterrupt as error:
        out.note(f"{program}: interrupted; what was not finished does not count")
        raise typer.Exit(ExitCode.INTERRUPTED) from error
    except Exception as error:
        if debug:
            traceback.print_exc()
        else:
            out.note(f"{program}: {sentence(error)}")
        raise typer.Exit(exit_code(error)) from error


@contextmanager
def _telling(out: Output, debug: bool, program: str) -> Iterator[None]:
    """Tell what the library warns of, unless whoever called has set up logging and hears of it there."""
    library = logging.getLogger("catalog")
    if library.hasHandlers():
        yield
        return
    telling = _Telling(out, debug, program)
    library.addHandler(telling)
    try:
        yield
    finally:
        library.removeHandler(telling)


class _Telling(logging.Handler):
    """Tells a warning of the library in one line; without it Python would print every trace."""

    def __init__(self, out: Output, debug: bool, program: str) -> None:
        super().__init__(logging.WARNING)
        self._out = out
        self._debug = debug
        self._program = program

    def emit(self, record: logging.LogRecord) -> None:
        try:
            error = record.exc_info[1] if record.exc_info else None
            why = f" ({sentence(error)})" if isinstance(error, Exception) else ""
            self._out.note(f"{self._program}: {record.getMessage()}{why}")
            if error and self._debug:
                traceback.print_exception(error)
        except Exception:  # noqa: BLE001 - the rule for handlers: what is warned of goes on whatever happens here
            self.handleError(record)


def time_argument(text: str) -> datetime:
    """Return the time in an argument; without a time zone it is UTC, as all times that are shown."""
    try:
        found = datetime.fromisoformat(text.strip().removesuffix(" UTC"))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no time; write it as 2026-01-31T12:00:00Z") from error
    return found if found.utcoffset() is not None else found.replace(tzinfo=UTC)


def span_argument(text: str) -> timedelta:
    """Return the length of time in an argument."""
    try:
        return span(text)
    except InvalidInputError as error:
        raise typer.BadParameter(str(error)) from error


def sentence(error: Exception) -> str:
    """Return an error as one sentence."""
    match error:
        case TrashedError():
            return f"{error} (`ckpt undo` takes it out)"
        case NotACatalogError() if not isinstance(error, DamagedCatalogError):
            return f"{error}{_misplaced_path()}"
        case CatalogError() | OSError():
            return str(error)
    return f"{type(error).__name__}: {first_line(error)} (not foreseen; --debug shows the trace)"


def _misplaced_path() -> str:
    """Return a hint if another argument than PATH is where a catalog is."""
    for name, value in _arguments.get().items():
        if name != "path" and isinstance(value, str) and Path(value, Table.CHECKPOINTS, "_delta_log").is_dir():
            return f"; {value} is one: PATH comes first"
    return ""


def exit_code(error: Exception) -> ExitCode:
    """Return the exit code that an error means."""
    match error:
        case DamagedCatalogError():
            return ExitCode.FAILURE
        case NotACatalogError():
            return ExitCode.NO_CATALOG
        case ConflictError():
            return ExitCode.CONFLICT
        case InvalidInputError():
            return ExitCode.USAGE
    return ExitCode.FAILURE
