"""`ckpt streams`, `latest`, `diff` and `history`: how streams are, what changed, and who did what, without Spark."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from catalog import keys, lifecycle
from catalog.catalog import CheckpointCatalog
from catalog.cli import output as show_as
from catalog.cli.frame import DebugOption, ExitCode, OutputOption, PathArgument, StreamArgument, running
from catalog.cli.job import chosen_streams
from catalog.cli.looking import age_seconds, list_rows, no_checkpoint, told_unread
from catalog.cli.output import Column, Listing, OutputFormat
from catalog.lifecycle import History, Status
from catalog.tables.port import Condition, Equals, Table
from catalog.verify import Verdict, event_details, last_verdicts

_REVISION = ("stream", "checkpoint_key", "at", "change", "revision", "actor", "reason", "until", "details")
_EVENT = ("stream", "checkpoint_key", "at", "event", "actor", "details")

# -- streams and their latest ------------------------------------------------------------------------------------------


def streams_command(path: PathArgument, output: OutputOption = OutputFormat.TEXT, debug: DebugOption = False) -> None:
    """List the streams, the latest checkpoint of each, and its health."""
    with running(output, debug) as out, CheckpointCatalog.native(path) as catalog:
        now = datetime.now(UTC)
        verdicts = _verdicts(catalog)
        unread: list[str] = []
        histories = catalog.histories(damaged=lambda _, error: unread.append(str(error)))
        rows = [_stream_row(label, history, verdicts.get(label, {}), now) for label, history in histories.items()]
        if not rows and not unread:
            out.note("no streams")
        out.result(rows, *([_streams(rows)] if rows else []))
        told_unread(out, unread)


def latest_command(
    path: PathArgument, stream: StreamArgument, output: OutputOption = OutputFormat.TEXT, debug: DebugOption = False
) -> None:
    """Print the id of the latest committed checkpoint.

    The exit code is 3 if there is none. `ckpt recover` prints the newest that is fit to restore from.
    """
    with running(output, debug) as out, CheckpointCatalog.native(path) as catalog:
        chosen_streams(catalog, [stream])
        histories = catalog.histories([stream])
        rows = [row for history in histories.values() for row in list_rows(stream, history, datetime.now(UTC))]
        newest = next((row for row in rows if row["is_latest"]), None)
        out.result(newest, "" if newest is None else str(newest["checkpoint_id"]))
        if newest is None:
            out.note(f"stream {stream!r} has no committed checkpoint")
            raise typer.Exit(ExitCode.FAULTS)


def _verdicts(catalog: CheckpointCatalog) -> dict[str, dict[str, Verdict]]:
    """Return what validations have found, by stream and key."""
    found: dict[str, dict[str, Verdict]] = {}
    for (stream, key), verdict in last_verdicts(catalog.engine).items():
        found.setdefault(keys.stream_label(stream), {})[key] = verdict
    return found


def _stream_row(label: str, history: History, verdicts: Mapping[str, Verdict], now: datetime) -> dict[str, Any]:
    """Return how a stream is, with the columns of the view stream_health as far as they can be told quickly."""
    counts = {status: [one for one in history.values() if one.status is status] for status in Status}
    newest = lifecycle.latest(history)
    content = newest.content if newest else None
    known_damaged = {key for key, verdict in verdicts.items() if verdict.sound is False}
    damaged = [one.id for key, one in history.items() if one.live and key in known_damaged]
    live = [*counts[Status.COMMITTED], *counts[Status.PREPARED]]
    return {
        "stream": label,
        "checkpoint_id": newest.id if newest else None,
        "latest_age_seconds": age_seconds(newest, now) if newest else None,
        "sinks_pending": content.sinks_pending if content else None,
        "sinks_failed": content.sinks_failed if content else None,
        "committed": len(counts[Status.COMMITTED]),
        "prepared": len(counts[Status.PREPARED]),
        "trashed": len(counts[Status.TRASHED]),
        "bytes": sum(one.bytes for one in live),
        "trashed_bytes": sum(one.bytes for one in counts[Status.TRASHED]),
        "last_verified_at": max((verdict.at for verdict in verdicts.values()), default=None),
        "damaged": damaged,
        "problems": _problems(history, damaged),
    }


def _problems(history: History, damaged: Iterable[int | str]) -> list[str]:
    """Return what somebody should look at, nothing if all is well. Pure."""
    newest = lifecycle.latest(history)
    found = []
    if newest is None:
        found.append("nothing committed")
    elif not any(one.live and one.eligible for one in history.values()):
        found.append("nothing to recover from")
    if newest and (why := newest.unfit or newest.open_sinks):
        found.append(why)
    if some := list(damaged):
        shown = ", ".join(map(str, some[:3])) + (", …" if len(some) > 3 else "")
        found.append(f"damaged: {shown}")
    return found


def _streams(rows: Iterable[Mapping[str, Any]]) -> Listing:
    columns = (
        Column("stream", folds=True),
        Column("latest", right=True),
        Column("age", right=True),
        Column("live", right=True),
        Column("trashed", right=True),
        Column("sinks p/f"),
        Column("bytes", right=True),
        Column("verified (UTC)"),
        Column("health", folds=True),
    )
    return Listing(
        columns,
        [
            (
                show_as.name(row["stream"]),
                show_as.value(row["checkpoint_id"]),
                show_as.span(row["latest_age_seconds"]),
                str(row["committed"] + row["prepared"]),
                str(row["trashed"]),
                f"{show_as.value(row['sinks_pending'])}/{show_as.value(row['sinks_failed'])}",
                show_as.size(row["bytes"]),
                show_as.moment(row["last_verified_at"]),
                "; ".join(row["problems"]) or "ok",
            )
            for row in rows
        ],
    )


# -- diff --------------------------------------------------------------------------------------------------------------


def diff_command(
    path: PathArgument,
    stream: StreamArgument,
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="A checkpoint.")],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="Another one.")],
    output: OutputOption = OutputFormat.TEXT,
    debug: DebugOption = False,
) -> None:
    """Show what changed between two checkpoints.

    Operators with their bytes, and where the sources stand.
    """
    with running(output, debug) as out, CheckpointCatalog.native(path) as catalog:
        chosen_streams(catalog, [stream])
        found = catalog.diff(stream, before, after)
        moves = [{**asdict(one), "moved_by": one.moved_by} for one in found.positions]
        data = {"stream": stream, **asdict(found), "changed_bytes": found.changed_bytes, "positions": moves}
        out.result(data, found.explain())


# -- history -----------------------------------------------------------------------------------------------------------


def history_command(
    path: PathArgument,
    stream: Annotated[str | None, typer.Argument(metavar="STREAM", help="Only this stream.")] = None,
    checkpoint_id: Annotated[str | None, typer.Argument(metavar="ID", help="Only this checkpoint.")] = None,
    last: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the last so many.")] = None,
    output: OutputOption = OutputFormat.TEXT,
    debug: DebugOption = False,
) -> None:
    """Show all that happened, newest last.

    Every change of a checkpoint's life, with who did it and why, and what was verified, drilled or folded.
    """
    with running(output, debug) as out:
        where: list[Condition] = []
        if stream is not None:
            where.append(Equals("stream", keys.stream_key(stream)))
        if checkpoint_id is not None:
            where.append(Equals("checkpoint_key", keys.any_key(checkpoint_id)))
        with CheckpointCatalog.native(path) as catalog:
            if stream is not None:
                chosen_streams(catalog, [stream])
            rows = _happened(catalog, where)
        if checkpoint_id is not None and not rows:
            raise no_checkpoint(stream, checkpoint_id)
        shown = rows[-last:] if last else rows
        if not shown:
            out.note("nothing has happened")
        out.result(shown, *([_history(shown)] if shown else []))


def _happened(catalog: CheckpointCatalog, where: list[Condition]) -> list[dict[str, Any]]:
    """Return what happened with the columns of the view checkpoint_events, newest last."""
    changes = catalog.engine.scan(Table.CHECKPOINTS, where, _REVISION).to_pylist()
    events = catalog.engine.scan(Table.EVENTS, where, _EVENT).to_pylist()
    found = [
        *({**row, "event": row["change"]} for row in changes),
        *({**row, "revision": None, "reason": None, "until": None} for row in events),
    ]
    found.sort(key=lambda row: (row["at"], row["stream"], row["checkpoint_key"] or "", row["revision"] or 0))
    return [
        {
            "at": row["at"],
            "stream": keys.stream_label(row["stream"]),
            "checkpoint_id": keys.checkpoint_id(row["checkpoint_key"]) if row["checkpoint_key"] else None,
            "event": row["event"],
            "revision": row["revision"],
            "actor": row["actor"],
            "reason": row["reason"],
            "until": row["until"],
            "details": event_details(row["details"]) or row["details"],
        }
        for row in found
    ]


def _history(rows: Iterable[Mapping[str, Any]]) -> Listing:
    columns = (
        Column("at (UTC)"),
        Column("stream", folds=True),
        Column("id", right=True),
        Column("what"),
        Column("actor", folds=True),
        Column("until (UTC)"),
        Column("why, or what was found", folds=True),
    )
    return Listing(
        columns,
        [
            (
                show_as.moment(row["at"], timespec="milliseconds"),
                show_as.name(row["stream"]),
                show_as.value(row["checkpoint_id"]),
                row["event"],
                show_as.value(row["actor"]),
                show_as.moment(row["until"]),
                row["reason"] or _found(row["details"]),
            )
            for row in rows
        ],
    )


def _found(details: Any) -> str:
    """Return what an event says, without what it leaves open."""
    told = details.items() if isinstance(details, dict) else ()
    return ", ".join(f"{name} {_measure(name, one)}" for name, one in told if one not in (None, []))


def _measure(name: str, one: Any) -> str:
    if isinstance(one, float):
        return f"{one:.3f}"
    if isinstance(one, int) and name.endswith("bytes"):
        return show_as.size(one)
    return one if isinstance(one, str) else json.dumps(one, ensure_ascii=False)
