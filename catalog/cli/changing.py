"""`ckpt pin`, `unpin`, `prune` and `undo`: what stays, what goes to the trash, and what comes out of it again."""

import shlex
import sys
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from catalog import keys
from catalog.catalog import CheckpointCatalog
from catalog.cli import output as show_as
from catalog.cli.frame import (
    DebugOption,
    ExitCode,
    IdArgument,
    OutputOption,
    PathArgument,
    StreamArgument,
    running,
    sentence,
    span_argument,
    time_argument,
)
from catalog.cli.job import DryRunOption, EngineName, EngineOption, PoliciesOption, chosen_streams
from catalog.cli.output import Block, Column, Listing, Output, OutputFormat
from catalog.cli.starting import opened
from catalog.cli.tasks import LetGo, let_go
from catalog.errors import CatalogError
from catalog.lifecycle import Status
from catalog.policies import Last, Retention, read_policies
from catalog.protocol import DELETED, PRUNE_UNDO, Stream

# -- pins --------------------------------------------------------------------------------------------------------------


def pin_command(
    path: PathArgument,
    stream: StreamArgument,
    checkpoint_id: IdArgument,
    reason: Annotated[str, typer.Option(help="Why, for whoever wants to delete it.")],
    until: Annotated[
        datetime | None, typer.Option(parser=time_argument, metavar="ISO", help="Until this time, else for ever.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="What to unpin it by, by default the reason; an earlier pin of that name is replaced."),
    ] = None,
    output: OutputOption = OutputFormat.TEXT,
    debug: DebugOption = False,
) -> None:
    """Protect a checkpoint from being deleted.

    It stays as long as any of its pins holds it.
    """
    with running(output, debug) as out:
        if until is not None and until <= datetime.now(UTC):
            raise typer.BadParameter(f"{show_as.moment(until)} UTC is past", param_hint="--until")
        with CheckpointCatalog.native(path) as catalog:
            rows, key = _named(catalog, stream, checkpoint_id)
            rows.pin(key, reason, until, name)
        number = keys.checkpoint_id(key)
        out.result(
            {
                "stream": stream,
                "checkpoint_id": number,
                "pinned": True,
                "name": reason if name is None else name,
                "reason": reason,
                "until": until,
            },
            f"pinned checkpoint {number} {f'until {show_as.moment(until)} UTC' if until else 'for ever'}",
        )


def unpin_command(
    path: PathArgument,
    stream: StreamArgument,
    checkpoint_id: IdArgument,
    name: Annotated[str | None, typer.Option(help="Which pin, if there are several.")] = None,
    output: OutputOption = OutputFormat.TEXT,
    debug: DebugOption = False,
) -> None:
    """Take a pin of a checkpoint back."""
    with running(output, debug) as out, CheckpointCatalog.native(path) as catalog:
        rows, key = _named(catalog, stream, checkpoint_id)
        number = keys.checkpoint_id(key)
        was_pinned = rows.unpin(key, name)
        left = list(rows.require_live(key, rows.find(key, manifest=False)).held_by(datetime.now(UTC)))
        data = {"stream": stream, "checkpoint_id": number, "pinned": bool(left), "was_pinned": was_pinned}
        still = f"; it is still pinned: {', '.join(left)}" if left else ""
        out.result(
            data, f"unpinned checkpoint {number}{still}" if was_pinned else f"checkpoint {number} was not pinned"
        )


def _named(catalog: CheckpointCatalog, stream: str, checkpoint_id: str) -> tuple[Stream, str]:
    """Return the rows of a stream that is there, and the key of an id."""
    key = keys.any_key(checkpoint_id)
    chosen_streams(catalog, [stream])
    return catalog.stream(stream), key


# -- the trash ---------------------------------------------------------------------------------------------------------


def prune_command(
    path: PathArgument,
    stream: Annotated[
        str | None, typer.Argument(metavar="STREAM", help="The stream; with --policies all by default.")
    ] = None,
    keep: Annotated[int | None, typer.Option(metavar="N", min=1, help="How many of the newest stay.")] = None,
    policies: PoliciesOption = None,
    undo_for: Annotated[
        timedelta | None,
        typer.Option(
            parser=span_argument, metavar="SPAN", help="With --keep: how long it can be undone, by default 7d."
        ),
    ] = None,
    dry_run: DryRunOption = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; without a terminal nobody is asked.")] = False,
    engine: EngineOption = EngineName.NATIVE,
    output: OutputOption = OutputFormat.TEXT,
    debug: DebugOption = False,
) -> None:
    """Put old checkpoints into the trash.

    `ckpt undo` takes them out again, until the time that is told. What is pinned, what a kept delta stands on and the
    newest that recovery could choose always stay.
    """
    with running(output, debug) as out:
        wanted = _retention(stream, keep, policies, undo_for)
        with opened(out, path, engine) as catalog:
            streams = chosen_streams(catalog, None if stream is None else [stream])
            plan = None
            if not (dry_run or yes) and sys.stdin.isatty():
                plan = let_go(catalog, out, wanted, streams=streams, grace=None, dry_run=True)
                if plan.report.removed and not _agreed(out, plan, output):
                    out.note("nothing was done")
                    raise typer.Exit(ExitCode.FAILURE)
            done = let_go(catalog, out, wanted, streams=streams, grace=None, dry_run=dry_run)
            place = str(catalog.engine.place)
        undo = undo_commands(place, done)
        data = {**asdict(done.report), "errors": done.errors, "undo": undo}
        shown = plan is not None and plan.report.removed and plan.report.planned == done.report.planned
        table = [] if shown or _nothing_is_known(done) else [_table(done)]
        out.result(data, *table, "\n".join(_summary(done, undo)))
        if done.code:
            raise typer.Exit(done.code)


def _retention(
    stream: str | None, keep: int | None, policies: str | None, undo_for: timedelta | None
) -> list[Retention]:
    if (keep is None) == (policies is None):
        raise typer.BadParameter("give either --keep N or --policies FILE")
    if policies is not None:
        if undo_for is not None:
            raise typer.BadParameter("a file of policies says undo_for itself", param_hint="--undo-for")
        return read_policies(policies)
    if stream is None:
        raise typer.BadParameter("--keep is for one stream: name it after PATH", param_hint="STREAM")
    return [Retention((Last(keep or 1),), undo_for=PRUNE_UNDO if undo_for is None else undo_for)]


def _agreed(out: Output, plan: LetGo, output: OutputFormat) -> bool:
    """Show a plan and ask whether it is to be done."""
    if output is OutputFormat.TEXT:
        out.result(None, _table(plan))
    how_many = show_as.count(len(plan.report.removed), "checkpoint")
    try:
        _ask(f"Put {how_many} into the trash? [y/N] ")
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        _ask("\n")  # what comes next is not part of the question
        raise


def _ask(text: str) -> None:
    """Write to the terminal, also where stderr goes elsewhere."""
    if sys.stderr.isatty():
        print(text, end="", file=sys.stderr, flush=True)
        return
    with Path("/dev/tty").open("w", encoding="utf-8") as terminal:
        terminal.write(text)


def _table(done: LetGo) -> Block:
    columns = (
        Column("stream", folds=True),
        Column("id", right=True),
        Column("what"),
        Column("bytes", right=True),
        Column("freed", right=True),
        Column("reason", folds=True),
    )
    rows = [
        (
            show_as.name(one.stream),
            str(one.checkpoint_id),
            "keep" if one.keep else "remove",
            show_as.size(one.bytes),
            "" if one.keep else show_as.size(one.freed_bytes),
            one.reason,
        )
        for one in done.report.planned
    ]
    return Listing(columns, rows) if rows else "no live checkpoints that a policy is for"


def _nothing_is_known(done: LetGo) -> bool:
    """Say whether there is a reason why nothing was planned, which tells more than that nothing was."""
    return bool(done.errors and not done.report.planned)


def _summary(done: LetGo, undo: Iterable[str]) -> list[str]:
    report = done.report
    freed = show_as.size(sum(one.freed_bytes for one in report.removed))
    what = "would go" if report.dry_run else "went"
    total = show_as.count(len(report.planned), "checkpoint")
    told = f"{len(report.removed)} of {total} {what} to the trash, {freed} once swept"
    lines = [] if _nothing_is_known(done) else [told]
    if not report.dry_run:
        for (name, until), command in zip(report.undo_until.items(), undo, strict=True):
            label = show_as.visible(show_as.name(name))
            lines += [f"{label}: until {show_as.moment(until)} UTC this takes them out again:", command]
    return [*lines, *done.cleaned_lines]


def undo_commands(place: str, done: LetGo) -> list[str]:
    """Return for each stream the command that takes out of the trash what went; none after a dry run."""
    if done.report.dry_run:
        return []
    gone = {name: [one for one in done.report.removed if one.stream == name] for name in done.report.undo_until}
    commands = []
    for name, some in gone.items():
        commands.append(shell_command("undo", place, name, [one.checkpoint_id for one in some]))
    return commands


def shell_command(command: str, place: str, stream: str, ids: Iterable[int | str]) -> str:
    """Return a command about checkpoints of a stream as a line that a shell takes."""
    words = ["ckpt", command, *(["--"] if stream.startswith("-") else []), place, stream, *map(str, ids)]
    return " ".join(map(shell_word, words))


def shell_word(text: str) -> str:
    """Return a text as a word that a shell takes, on one line of plain characters."""
    if text.isprintable():
        return shlex.quote(text)
    escaped = (
        f"\\{one}" if one in "'\\" else one if one.isprintable() else "".join(f"\\x{byte:02x}" for byte in one.encode())
        for one in text
    )
    return f"$'{''.join(escaped)}'"


def delete_command(
    path: PathArgument,
    stream: StreamArgument,
    checkpoint_ids: Annotated[list[str], typer.Argument(metavar="ID…", help="Integers or UUIDv7s.")],
    reason: Annotated[str, typer.Option(help="Why, for whoever looks for them.")] = DELETED,
    undo_for: Annotated[
        timedelta | None,
        typer.Option(parser=span_argument, metavar="SPAN", help="How long it can be undone, by default 7d."),
    ] = None,
    output: OutputOption = OutputFormat.TEXT,
    debug: DebugOption = False,
) -> None:
    """Put certain checkpoints into the trash.

    All or none go, such as damaged ones that policies would keep. What is pinned, or what the deltas of another one
    stand on, is refused.
    """
    with running(output, debug) as out:
        wanted = list(dict.fromkeys(keys.any_key(one) for one in checkpoint_ids))
        window = PRUNE_UNDO if undo_for is None else undo_for
        with CheckpointCatalog.native(path) as catalog:
            chosen_streams(catalog, [stream])
            gone = [keys.checkpoint_id(key) for key in catalog.stream(stream).delete(wanted, reason, window).trash]
        undo = shell_command("undo", path, stream, gone) if gone else None
        told = [f"{show_as.count(len(gone), 'checkpoint')} went to the trash"]
        there = [keys.checkpoint_id(key) for key in wanted if keys.checkpoint_id(key) not in gone]
        told += [f"gone already: {', '.join(map(str, there))}"] if there else []
        told += [f"for {show_as.span(window.total_seconds())} this takes them out again:", undo] if undo else []
        out.result({"stream": stream, "deleted": gone, "reason": reason, "undo": undo}, "\n".join(told))


def undo_command(
    path: PathArgument,
    stream: StreamArgument,
    checkpoint_ids: Annotated[list[str], typer.Argument(metavar="ID…", help="Integers or UUIDv7s.")],
    update: Annotated[
        bool, typer.Option("--update", help="Take the last update of their manifests back instead.")
    ] = False,
    output: OutputOption = OutputFormat.TEXT,
    debug: DebugOption = False,
) -> None:
    """Take checkpoints out of the trash, or an update back.

    The exit code is 3 if only some could be.
    """
    with running(output, debug) as out:
        wanted = list(dict.fromkeys(keys.any_key(one) for one in checkpoint_ids))
        with CheckpointCatalog.native(path) as catalog:
            chosen_streams(catalog, [stream])
            rows = catalog.stream(stream)
            results = [_undone(rows, key, update=update) for key in wanted]
        lines = [f"{one['checkpoint_id']}: {one['error'] or one['outcome']}" for one in results]
        failed = sum(one["error"] is not None for one in results)
        if failed == len(results):
            raise CatalogError("; ".join(lines))
        out.result({"stream": stream, "checkpoints": results}, "\n".join(lines))
        if failed:
            raise typer.Exit(ExitCode.FAULTS)


def _undone(rows: Stream, key: str, *, update: bool) -> dict[str, Any]:
    outcome, error = None, None
    try:
        if update:
            rows.undo_update(key)
            outcome = "its last update was taken back"
        else:
            found = rows.find(key, manifest=False)
            rows.restore(key)
            trashed = found is not None and found.status is Status.TRASHED
            outcome = "taken out of the trash" if trashed else "was not in the trash"
    except CatalogError as failed:
        error = sentence(failed)
    return {"checkpoint_id": keys.checkpoint_id(key), "outcome": outcome, "error": error}
