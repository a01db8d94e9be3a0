"""`ckpt recover`: which checkpoint to restore from, why, and its state in a folder if that is wanted."""

from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import typer

from catalog.catalog import CheckpointCatalog
from catalog.cli.frame import (
    DebugOption,
    ExitCode,
    OutputOption,
    PathArgument,
    StreamArgument,
    running,
    time_argument,
)
from catalog.cli.job import no_stream
from catalog.cli.output import OutputFormat
from catalog.recovery import RecoveryReport
from catalog.restore import new_folder


@dataclass(frozen=True, slots=True)
class Position:
    """Where a source stands."""

    source: str
    position: str
    """What it is an offset of, such as a partition; empty if the source has one only."""
    offset: str

    @classmethod
    def parse(cls, text: str) -> "Position":
        """Return the position in an argument: SOURCE=OFFSET or SOURCE/POSITION=OFFSET.

        The last slash before it counts, so a source with a slash in its name and no position ends in one: a/b/=7.
        """
        where, equals, offset = text.partition("=")
        if not equals or not where or not offset:
            raise typer.BadParameter(f"{text!r} is not SOURCE=N or SOURCE/POSITION=N, such as kafka/partition-0=1234")
        source, _, position = where.rpartition("/") if "/" in where else (where, "", "")
        return cls(source, position, offset)

    @property
    def number(self) -> int:
        """Its offset, if that is one."""
        try:
            return int(self.offset)
        except ValueError as error:
            raise typer.BadParameter(f"{self.offset!r} is not a number") from error


def offset_argument(text: str) -> tuple[str, int] | tuple[str, str, int]:
    """Return the offset that must not be passed, as CheckpointCatalog.recover takes it."""
    found = Position.parse(text)
    return (found.source, found.position, found.number) if found.position else (found.source, found.number)


@dataclass(frozen=True, slots=True)
class AsOf:
    """A moment: a version of the table `checkpoints`, or a time."""

    version: int | None = None
    timestamp: datetime | None = None

    @classmethod
    def parse(cls, text: str) -> "AsOf":
        """Return the moment in an argument; digits alone are a version."""
        if text.isascii() and text.isdecimal():
            return cls(version=int(text))
        return cls(timestamp=time_argument(text))


def recover_command(
    path: PathArgument,
    stream: StreamArgument,
    explain: Annotated[bool, typer.Option("--explain", help="Say why, and why nothing newer.")] = False,
    allow_pending: Annotated[
        bool, typer.Option("--allow-pending", help="Also take one whose sinks are pending or failed.")
    ] = False,
    lenient: Annotated[bool, typer.Option("--lenient", help="Also take one whose state is missing.")] = False,
    at_offset: Annotated[
        Any,
        typer.Option(
            parser=offset_argument,
            metavar="SOURCE[/POSITION]=N",
            help="Not beyond this offset; a/b/=N if a/b is a source.",
        ),
    ] = None,
    at_watermark: Annotated[int | None, typer.Option(metavar="N", help="Not beyond this watermark.")] = None,
    at_event_count: Annotated[int | None, typer.Option(metavar="N", help="After not more events than these.")] = None,
    at_time: Annotated[
        datetime | None, typer.Option(parser=time_argument, metavar="ISO", help="Not made after this time.")
    ] = None,
    as_of: Annotated[
        AsOf | None,
        typer.Option(parser=AsOf.parse, metavar="VERSION|ISO", help="Recover from the catalog as it was then."),
    ] = None,
    pipeline_hash: Annotated[int | None, typer.Option(metavar="N", help="Only of this pipeline.")] = None,
    vnode_count: Annotated[int | None, typer.Option(metavar="N", help="Only with so many virtual nodes.")] = None,
    into: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Write its state, verified, into this new folder.")
    ] = None,
    output: OutputOption = OutputFormat.TEXT,
    debug: DebugOption = False,
) -> None:
    """Print the id of the newest checkpoint fit to restore from.

    The exit code is 3 if there is none. Times without a time zone are UTC.
    """
    with running(output, debug) as out, ExitStack() as stack:
        if into is not None:
            new_folder(into)  # before anything is read, which may take long
        present = stack.enter_context(CheckpointCatalog.native(path))
        catalog = present.as_of(version=as_of.version, timestamp=as_of.timestamp) if as_of else present
        with out.working(f"looking for a checkpoint of {stream!r} …"):
            report = catalog.recover(
                stream,
                allow_pending=allow_pending,
                lenient=lenient,
                pipeline_hash=pipeline_hash,
                vnode_count=vnode_count,
                at_offset=at_offset,
                at_watermark=at_watermark,
                at_event_count=at_event_count,
                at_time=at_time,
            )
        folder = None
        if into is not None and report.chosen_id is not None:
            with out.working(f"writing the state of checkpoint {report.chosen_id} …"):
                folder = catalog.restore_into(stream, report.chosen_id, into)
            out.note(f"the state of checkpoint {report.chosen_id} is in {folder}")
        data: dict[str, Any] = {"stream": stream, "checkpoint_id": report.chosen_id, "folder": folder and str(folder)}
        moment = catalog.moment
        if explain:
            data |= {"as_of": moment and {"version": moment.version, "at": moment.at}, **_explanation(report)}
            out.result(data, (f"as of {moment}\n" if moment else "") + report.explain())
        else:
            out.result(data, "" if report.chosen_id is None else str(report.chosen_id))
        if report.chosen_id is None:
            hint = "" if explain else ": --explain says why"
            live = f"none of {report.examined} live checkpoints is fit to restore from{hint}"
            if report.examined:
                out.note(f"stream {stream!r}: {live}")
            else:  # which is no error: a job may ask before its first checkpoint
                there = catalog.streams()
                out.note(f"stream {stream!r}: no live checkpoint" if stream in there else no_stream(stream, there))
            raise typer.Exit(ExitCode.FAULTS)


def _explanation(report: RecoveryReport) -> dict[str, Any]:
    return {
        "required": list(report.required),
        "skipped": [{"checkpoint_id": one, "reason": reason} for one, reason in report.skipped],
        "examined": report.examined,
        "elapsed_seconds": report.elapsed,
        "issues": [{"severity": one.severity, "rule": one.rule, "message": one.message} for one in report.issues],
        "undoable": [{"checkpoint_id": one, "until": until} for one, until in report.undoable],
    }
