"""`ckpt import` and `ckpt export`: from the files of another store to a stream, and back."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from typing import Annotated, Any

import typer

from catalog.catalog import CheckpointCatalog
from catalog.cli import output as show_as
from catalog.cli.frame import DebugOption, ExitCode, OutputOption, PathArgument, StreamArgument, running
from catalog.cli.job import chosen_streams
from catalog.cli.output import Output, OutputFormat
from catalog.moving.importing import THREADS
from catalog.moving.layouts import Layout
from catalog.moving.report import MoveReport
from catalog.verify import Progress

LayoutOption = Annotated[
    Layout | None, typer.Option("--layout", help="How files are named; by default it is recognized.")
]
ThreadsOption = Annotated[int, typer.Option("--threads", min=1, help="How many are moved at a time.")]


def import_command(
    path: PathArgument,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A folder, or an address such as s3://…")],
    stream: Annotated[str, typer.Option("--stream", help="The stream to import into.")],
    layout: LayoutOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read and judge everything, and write nothing.")] = False,
    create: Annotated[bool, typer.Option("--create", help="Make the catalog if there is none.")] = False,
    threads: ThreadsOption = THREADS,
    output: OutputOption = OutputFormat.TEXT,
    debug: DebugOption = False,
) -> None:
    """Import the checkpoints that another store keeps as files.

    Run again, it goes on. Exit code 3: something was imported as corrupt or not at all; the lines say what and why.
    """
    with running(output, debug) as out, ExitStack() as opened:
        cat = opened.enter_context(CheckpointCatalog.native(path, create=create and not dry_run))
        with out.working("importing") as say:
            report = cat.import_from(
                source, stream, layout=layout, threads=threads, dry_run=dry_run, progress=_saying(say)
            )
        _show(out, report)


def export_command(
    path: PathArgument,
    stream: StreamArgument,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="An empty folder, or an address such as s3://…")],
    layout: LayoutOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing: only say what would be written.")] = False,
    threads: ThreadsOption = THREADS,
    output: OutputOption = OutputFormat.TEXT,
    debug: DebugOption = False,
) -> None:
    """Export the live checkpoints of a stream as another's files.

    Run again, it goes on. Exit code 3: something was not exported, or was corrupt when it was imported.
    """
    with running(output, debug) as out, ExitStack() as opened:
        cat = opened.enter_context(CheckpointCatalog.native(path))
        with out.working("exporting") as say:
            chosen_streams(cat, [stream])
            report = cat.export_to(
                target, stream, layout=layout, threads=threads, dry_run=dry_run, progress=_saying(say)
            )
        _show(out, report)


def _saying(say: Callable[[str], None]) -> Callable[[Progress], None]:
    def progress(now: Progress) -> None:
        sizes = f"{show_as.size(now.bytes)} of {show_as.size(now.of_bytes)}"
        say(f"{now.checkpoints} of {now.of_checkpoints} checkpoints, {sizes}")

    return progress


def _show(out: Output, report: MoveReport) -> None:
    data: dict[str, Any] = {
        "stream": report.stream,
        "place": report.place,
        "layout": report.layout,
        "latest": report.latest,
        "dry_run": report.dry_run,
        "notes": list(report.notes),
        "lines": [asdict(line) for line in report.lines],
    }
    out.result(data, report.explain())
    if report.faults:
        raise typer.Exit(ExitCode.FAULTS)
