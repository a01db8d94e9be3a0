"""What the jobs, and the commands that do the same, share: options, how the catalog is opened, how far it is."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from enum import StrEnum
from typing import Annotated, Any

import typer

from catalog import keys
from catalog.catalog import LONGEST_KEEP_REMOVED, CheckpointCatalog
from catalog.cli import output as show_as
from catalog.cli.frame import EXIT_CODES, ExitCode, make_app, run_app, span_argument
from catalog.cli.output import Output
from catalog.errors import CheckpointNotFoundError
from catalog.tables.names import any_place
from catalog.verify import Depth, Progress, Sample


def keep_removed_argument(text: str) -> timedelta:
    """Return how long replaced files stay, before any step is taken: as the last one it would be refused too late."""
    wanted = span_argument(text)
    if wanted > LONGEST_KEEP_REMOVED:
        raise typer.BadParameter(f"removed files stay 1d at most, not {text!r}")
    return wanted


class EngineName(StrEnum):
    """How a job reaches the tables."""

    SPARK = "spark"
    NATIVE = "native"


PlaceArgument = Annotated[
    str, typer.Argument(metavar="PLACE", help="The catalog: a folder, an address such as s3://…, or Spark's schema.")
]
EngineOption = Annotated[
    EngineName, typer.Option("--engine", help="Through Spark, with its executors, or without it in this process.")
]
StreamOption = Annotated[
    list[str] | None, typer.Option("--stream", help="Only this stream; can be given several times.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Change nothing: only say what would be done.")]
PoliciesOption = Annotated[
    str | None, typer.Option("--policies", metavar="FILE", help="What to keep: a TOML file with tables [[retention]].")
]
DepthOption = Annotated[
    Depth, typer.Option("--depth", help="Look at manifests and rows, or read and hash every chunk too.")
]
SampleOption = Annotated[
    int | None, typer.Option("--sample", metavar="N", min=1, help="Only so many checkpoints, chosen at random.")
]
PercentOption = Annotated[
    float | None, typer.Option("--sample-percent", metavar="N", help="Only so many of 100, chosen at random.")
]
MinLinksOption = Annotated[
    int, typer.Option("--min-links", metavar="N", min=2, help="Only chains of at least so many links.")
]
GraceOption = Annotated[
    timedelta | None,
    typer.Option(
        "--grace",
        parser=span_argument,
        metavar="SPAN",
        help="Sweep no bytes staged less than this ago: their save may be in progress. An hour by default: 1h.",
    ),
]
KeepRemovedOption = Annotated[
    timedelta | None,
    typer.Option(
        "--keep-removed",
        parser=keep_removed_argument,
        metavar="SPAN",
        help="Keep swept and replaced files so long: by default and at most a day, 1d. With 0s the disk gets their "
        "bytes back at once, and a read that is under way may have to begin again.",
    ),
]
ScratchOption = Annotated[
    str | None, typer.Option("--scratch", metavar="FOLDER", help="Restore into this folder instead of the system's.")
]


@dataclass(frozen=True, slots=True)
class Done:
    """What a job did."""

    data: dict[str, Any]
    text: str
    """The same for people."""
    code: ExitCode = ExitCode.OK


def finish(out: Output, done: Done) -> None:
    """Show what a job did, and exit if there is something to say about it."""
    out.result(done.data, done.text)
    if done.code:
        raise typer.Exit(done.code)


def open_catalog(name: str, place: str, engine: EngineName) -> CheckpointCatalog:
    """Open the catalog at a place; a session that is started for it ends with the process."""
    if engine is EngineName.NATIVE:
        return CheckpointCatalog.native(place)
    from catalog.session import build_session

    open_it = CheckpointCatalog.for_name if any_place(place).schema else CheckpointCatalog.for_path
    return open_it(build_session(name), place)


def chosen_streams(catalog: CheckpointCatalog, wanted: Sequence[str] | None, *, staged: bool = False) -> list[str]:
    """Return the streams that are meant, by default all; a mistyped one is an error, not an empty success.

    Args:
        catalog: the catalog.
        wanted: their names.
        staged: all are also those whose first save never came to an end.
    """
    for name in wanted or ():
        keys.stream_key(name)
    there = catalog.streams(staged=staged)
    if missing := sorted(set(wanted or ()) - set(there)):
        raise CheckpointNotFoundError(no_stream(missing[0], there), stream=missing[0])
    return sorted(set(wanted)) if wanted else there


def no_stream(name: str, there: Sequence[str]) -> str:
    """Say that there is no such stream, and which one may be meant."""
    close = get_close_matches(name, there, n=1)
    perhaps = f"perhaps {close[0]!r} is meant; " if close else ""
    return f"there is no stream {name!r}: {perhaps}`ckpt streams` shows all"


def chosen_sample(count: int | None, percent: float | None) -> Sample | None:
    """Return the sample that options ask for."""
    return None if count is None and percent is None else Sample(checkpoints=count, percent=percent)


@contextmanager
def progressing(out: Output, what: str) -> Iterator[Callable[[Progress], None]]:
    """Say what goes on and how far it is, if somebody watches."""
    with out.working(what) as tell:

        def show(far: Progress) -> None:
            size = f"{show_as.size(far.bytes)} of {show_as.size(far.of_bytes)}"
            tell(f"{far.checkpoints} of {far.of_checkpoints} checkpoints, {size}")

        yield show


class EntryPoint:
    """Runs a job as a command."""

    def __init__(self, name: str, command: Callable[..., None]) -> None:
        """Make it.

        Args:
            name: the command's name.
            command: what it does; typer takes its arguments from the signature.
        """
        self.app = make_app(name)
        self.app.command(epilog=EXIT_CODES)(command)

    def __call__(self, arguments: Sequence[str] | None = None) -> None:
        """Run it, and exit unless all is well: where jobs are called as functions, any SystemExit is a failure."""
        try:
            run_app(self.app, arguments)
        except SystemExit as end:
            if end.code:
                raise
