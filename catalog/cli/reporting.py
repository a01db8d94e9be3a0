"""`ckpt report`: how a catalog is, as one HTML page that works offline; from the native engine, without Spark."""

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from catalog.catalog import CheckpointCatalog
from catalog.cli import output as show_as
from catalog.cli.frame import DebugOption, ExitCode, OutputOption, PathArgument, running
from catalog.cli.job import PoliciesOption, StreamOption, chosen_streams
from catalog.cli.output import OutputFormat
from catalog.errors import InvalidInputError, SessionError
from catalog.policies import read_policies
from catalog.report.facts import Report
from catalog.report.findings import Finding, Level, findings
from catalog.report.gather import gather
from catalog.report.html import MARK


def report_command(
    path: PathArgument,
    out_file: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the page is written.")] = Path(
        "report.html"
    ),
    stream: StreamOption = None,
    policies: PoliciesOption = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE even if it is no report.")] = False,
    output: OutputOption = OutputFormat.TEXT,
    debug: DebugOption = False,
) -> None:
    """Write a page about the catalog for the person on call.

    Health, timeline, growth, faults, drills and retention are in one file that loads nothing from elsewhere. A report
    that is there is replaced, any other file only with --force. The exit code is 3 if something critical was found; the
    page is written all the same.
    """
    with running(output, debug) as out:
        render = _renderer()
        target = check_target(out_file, force=force)
        kept = read_policies(policies) if policies is not None else None
        with CheckpointCatalog.native(path) as catalog, out.working("reading the catalog …") as tell:
            wanted = chosen_streams(catalog, stream) if stream else None
            report = gather(catalog, now=datetime.now(UTC), streams=wanted, policies=kept)
            tell("drawing …")
            found = findings(report)
            page = render(report, found).encode()
        replace_file(target, page)
        data = {"file": str(target), "size_bytes": len(page), **_data(report, found)}
        out.result(data, _told(data))
        if found and found[0].level is Level.CRITICAL:
            raise typer.Exit(ExitCode.FAULTS)


def _renderer() -> Callable[[Report, Sequence[Finding]], str]:
    """Return what draws the page: asked for before the catalog is read, which may take long."""
    try:
        from catalog.report.page import render
    except ModuleNotFoundError as error:
        if error.name not in ("altair", "vl_convert"):
            raise
        problem = "a report needs altair and vl-convert-python: pip install 'checkpoint-catalog[report]'"
        raise SessionError(problem) from error
    return render


def check_target(file: Path, *, force: bool) -> Path:
    """Return where a page may be written; refuse a place where it may not, and a file that is no report.

    Raises:
        InvalidInputError: it says why.
    """
    target = file.resolve()  # a link to a report stays a link
    if not target.parent.is_dir():
        raise InvalidInputError(f"there is no folder {target.parent}: make it first")
    if target.exists() and not target.is_file():
        raise InvalidInputError(f"{target} is not a file: pass --out with a file's name")
    if target.is_file() and not force:
        with target.open("rb") as there:
            if (begins := there.read(len(MARK))) and begins != MARK.encode():
                raise InvalidInputError(f"{target} is there and is no report: pass another --out, or --force")
    return target


def replace_file(target: Path, content: bytes) -> None:
    """Write a file, all of it or nothing."""
    beside = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        with beside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def _data(report: Report, found: Sequence[Finding]) -> dict[str, Any]:
    live = [one for stream in report.streams for one in stream.live]
    oldest = report.oldest_unproven
    stored = [stream.stored_bytes for stream in report.streams]
    return {
        "made_at": report.made_at,
        "streams": len(report.streams),
        "checkpoints": len(live),
        "trashed": sum(len(stream.trashed) for stream in report.streams),
        "broken": sum(bool(one.broken) for one in live),
        "bytes": sum(stream.bytes for stream in report.streams),
        "stored_bytes": None if None in stored else sum(filter(None, stored)),
        "oldest_unproven": oldest
        and {"stream": oldest.stream, "checkpoint_id": oldest.id, "saved_at": oldest.saved_at},
        "findings": [
            {"level": one.level.name.lower(), "stream": one.stream, "text": one.text, "command": one.command or None}
            for one in found
        ],
    }


def _told(data: Mapping[str, Any]) -> str:
    """Return the file, what is in it in one line, and what needs attention."""
    oldest = data["oldest_unproven"]
    unproven = f"oldest unproven {show_as.name(oldest['stream'])} {oldest['checkpoint_id']}" if oldest else "all proven"
    counts = f"{_count(data['streams'], 'stream')}, {_count(data['checkpoints'], 'checkpoint')}"
    lines = [data["file"], f"{counts}, {show_as.size(data['bytes'])}, {data['broken']:,} broken, {unproven}"]
    for one in data["findings"]:
        if one["level"] != "note":
            about = "" if one["stream"] is None else f"{show_as.name(one['stream'])}: "
            lines.append(f"{one['level']}: {about}{one['text']}")
    return "\n".join(map(show_as.visible, lines))


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
