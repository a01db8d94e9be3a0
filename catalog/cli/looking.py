"""`ckpt list` and `ckpt show`: what is there, from the native engine, without Spark."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any

import typer

from catalog import artifacts, chunks, keys, lifecycle
from catalog.catalog import CheckpointCatalog
from catalog.cli import output as show_as
from catalog.cli.frame import DebugOption, ExitCode, IdArgument, OutputOption, PathArgument, StreamArgument, running
from catalog.cli.job import chosen_streams
from catalog.cli.output import Column, Facts, Listing, Output, OutputFormat
from catalog.errors import CatalogError, CheckpointNotFoundError
from catalog.lifecycle import Checkpoint, History, Revision, Status
from catalog.manifest import CheckpointManifest, FailedSink, Manifest, parse_any
from catalog.tables.port import Condition, Equals, In
from catalog.verify import Verdict, last_verdicts

SHORT_SHA256 = 12


def list_command(
    path: PathArgument,
    stream: Annotated[str | None, typer.Option("--stream", help="Only this stream.")] = None,
    trash: Annotated[bool, typer.Option("--trash", help="What is in the trash instead, and how long.")] = False,
    output: OutputOption = OutputFormat.TEXT,
    debug: DebugOption = False,
) -> None:
    """List live checkpoints, or those in the trash, oldest first.

    Bytes are those of artifacts: small state rides in the manifest and is not counted.
    """
    with running(output, debug) as out, CheckpointCatalog.native(path) as catalog:
        unread: list[str] = []
        histories = catalog.histories(
            None if stream is None else chosen_streams(catalog, [stream]),
            damaged=lambda _, error: unread.append(str(error)),
        )
        now = datetime.now(UTC)
        rows = [row for label, history in histories.items() for row in list_rows(label, history, now, trash=trash)]
        if not rows:
            what = "nothing in the trash" if trash else "no live checkpoints"
            out.note(what + (f" in stream {stream!r}" if stream is not None else ""))
        out.result(rows, *([_listing(rows)] if rows else []))
        told_unread(out, unread)


def told_unread(out: Output, unread: Sequence[str]) -> None:
    """Say which streams cannot be read, and end with the code for faults if there are any."""
    for problem in unread:
        out.note(problem)
    if unread:
        raise typer.Exit(ExitCode.FAULTS)


def show_command(
    path: PathArgument,
    stream: StreamArgument,
    checkpoint_id: IdArgument,
    output: OutputOption = OutputFormat.TEXT,
    debug: DebugOption = False,
) -> None:
    """Show everything about one checkpoint, whatever became of it.

    The exit code is 3 if its manifest cannot be read.
    """
    with running(output, debug) as out, CheckpointCatalog.native(path) as catalog:
        key = keys.any_key(checkpoint_id)
        life = sorted(catalog.stream(stream).revisions([key]), key=lambda one: one.revision)
        if not life:
            chosen_streams(catalog, [stream])
            raise no_checkpoint(stream, checkpoint_id)
        checkpoint = lifecycle.fold(life)[key]
        manifest, fault = _read_manifest(checkpoint, stream)
        seen = last_verdicts(catalog.engine, [Equals("stream", life[0].stream), Equals("checkpoint_key", key)])
        data = {
            **_facts(stream, checkpoint, datetime.now(UTC)),
            "verified": _verdict(seen.get((life[0].stream, key))),
            "manifest_fault": fault,
            "positions": _positions(manifest),
            "sinks": _sinks(manifest),
            "artifacts": _artifacts(catalog, checkpoint),
            "life": [_life(revision) for revision in life],
        }
        out.result(data, *_blocks(data))
        if fault:
            out.note(fault)
            raise typer.Exit(ExitCode.FAULTS)


def no_checkpoint(stream: str | None, checkpoint_id: str) -> CheckpointNotFoundError:
    """Return the error that says that there is no such checkpoint."""
    return CheckpointNotFoundError(f"stream {stream!r} has no checkpoint {checkpoint_id}: `ckpt list` shows all")


# -- list ----------------------------------------------------------------------------------------------------------


def list_rows(label: str, history: History, now: datetime, *, trash: bool = False) -> list[dict[str, Any]]:
    """Return a stream's live or trashed checkpoints with the columns of the view checkpoint_list."""
    latest = lifecycle.latest(history)
    rows = []
    for one in history.values():
        if (one.status is Status.TRASHED if trash else one.live) and one.origin and one.content:
            rows.append(
                {
                    "stream": label,
                    "checkpoint_id": one.id,
                    "status": str(one.status),
                    "is_latest": latest is not None and one.key == latest.key,
                    "epoch": _number(one.content.epoch),
                    "saved_at": one.origin.at,
                    "age_seconds": age_seconds(one, now),
                    "sinks_committed": one.content.sinks_committed,
                    "sinks_pending": one.content.sinks_pending,
                    "sinks_failed": one.content.sinks_failed,
                    "artifact_count": one.origin.artifact_count,
                    "bytes": _number(one.origin.artifact_bytes),
                    "pinned": one.pinned(now),
                    **({"undo_until": one.undo_until} if trash else {}),
                }
            )
    return rows


def _listing(rows: Sequence[Mapping[str, Any]]) -> Listing:
    columns = (
        Column("stream", folds=True),
        Column("id", right=True),
        Column("status"),
        Column("latest"),
        Column("epoch", right=True),
        Column("saved (UTC)"),
        Column("age", right=True),
        Column("sinks c/p/f"),
        Column("artifacts", right=True),
        Column("bytes", right=True),
        Column("pinned"),
        *([Column("undo until (UTC)")] if "undo_until" in rows[0] else []),
    )
    return Listing(
        columns,
        [
            (
                show_as.name(row["stream"]),
                str(row["checkpoint_id"]),
                row["status"],
                "*" if row["is_latest"] else "",
                show_as.value(row["epoch"]),
                show_as.moment(row["saved_at"]),
                show_as.span(row["age_seconds"]),
                "/".join(show_as.value(row[f"sinks_{status}"]) for status in ("committed", "pending", "failed")),
                show_as.value(row["artifact_count"]),
                show_as.size(row["bytes"]),
                "yes" if row["pinned"] else "",
                *([show_as.moment(row["undo_until"])] if "undo_until" in row else []),
            )
            for row in rows
        ],
    )


# -- show ----------------------------------------------------------------------------------------------------------


def _facts(label: str, one: Checkpoint, now: datetime) -> dict[str, Any]:
    told = one.content.row() if one.content else {}
    first = one.origin.row() if one.origin else {}
    return {
        "stream": label,
        "checkpoint_id": one.id,
        "format": one.head.format,
        "status": str(one.status),
        "saved_at": first.get("at"),
        "age_seconds": age_seconds(one, now),
        "created_at": told.get("created_at"),
        "changed_at": one.head.at,
        "changed_by": one.head.actor,
        "epoch": _number(told.get("epoch")),
        "watermark": _number(told.get("watermark")),
        "event_count": _number(told.get("event_count")),
        "pipeline_hash": _number(told.get("pipeline_hash")),
        "vnode_count": told.get("vnode_count"),
        "parent_id": keys.checkpoint_id(one.parent) if one.parent else None,
        "bytes": _number(first.get("artifact_bytes")),
        "shared_bytes": _number(first.get("shared_bytes")),
        "undo_until": one.undo_until,
        "pinned": one.pinned(now),
        "pins": [
            {"name": name, "reason": pin.reason, "at": pin.at, "by": pin.actor, "until": pin.until}
            for name, pin in (one.held_by(now) or one.pins).items()
        ],
    }


def _verdict(seen: Verdict | None) -> dict[str, Any] | None:
    """Return what validations have found so far, None if nobody has looked; sound is None where only rows were read."""
    return None if seen is None else {"at": seen.at, "sound": seen.sound}


def _read_manifest(checkpoint: Checkpoint, label: str) -> tuple[Manifest | None, str | None]:
    """Return the manifest, or why it cannot be read; a purged checkpoint has none."""
    if checkpoint.content is None:
        return None, None
    try:
        return parse_any(checkpoint, label), None
    except CatalogError as error:
        return None, str(error)


def _positions(manifest: Manifest | None) -> list[dict[str, Any]]:
    told = manifest.positions() if manifest else {}
    return [{"source": source, "position": at or None, "offset": told[source, at]} for source, at in sorted(told)]


def _sinks(manifest: Manifest | None) -> list[dict[str, Any]]:
    statuses = manifest.sink_commit_statuses if isinstance(manifest, CheckpointManifest) else {}
    return [
        {"sink": sink, "status": "Failed", "error": status.Failed}
        if isinstance(status, FailedSink)
        else {"sink": sink, "status": status, "error": None}
        for sink, status in sorted(statuses.items())
    ]


def _artifacts(catalog: CheckpointCatalog, one: Checkpoint) -> list[dict[str, Any]]:
    if one.origin is None or not one.attempts:
        return []
    of_attempt: list[Condition] = [Equals("checkpoint_key", one.key), In("attempt", one.attempts)]
    kept = chunks.inventory(artifacts.facts(catalog.engine, one.origin.stream, of_attempt))
    return [
        {
            "path": path,
            "bytes": kept[path].size,
            "chunks": len(kept[path].chunks),
            "sha256": kept[path].sha256,
            "complete": kept[path].complete,
        }
        for path in sorted(kept)
    ]


def _life(one: Revision) -> dict[str, Any]:
    return {
        "revision": one.revision,
        "at": one.at,
        "change": one.change,
        "actor": one.actor,
        "reason": one.reason,
        "until": one.until,
    }


def _blocks(data: Mapping[str, Any]) -> list[Facts | Listing]:
    return [
        Facts(_fact_texts(data)),
        Listing(
            (Column("source", folds=True), Column("position", folds=True), Column("offset", folds=True)),
            [(show_as.name(one["source"]), show_as.value(one["position"]), one["offset"]) for one in data["positions"]],
            title="Positions",
        ),
        Listing(
            (Column("sink", folds=True), Column("status"), Column("error", folds=True)),
            [(show_as.name(one["sink"]), one["status"], one["error"] or "") for one in data["sinks"]],
            title="Sinks",
        ),
        Listing(
            (Column("path", folds=True), Column("bytes", right=True), Column("chunks", right=True), Column("sha256")),
            [
                (
                    one["path"],
                    show_as.size(one["bytes"]),
                    str(one["chunks"]) if one["complete"] else f"{one['chunks']}, not all",
                    (one["sha256"] or show_as.NOTHING)[:SHORT_SHA256],
                )
                for one in data["artifacts"]
            ],
            title="Artifacts",
        ),
        Listing(
            (
                Column("revision", right=True),
                Column("at (UTC)"),
                Column("change"),
                Column("actor", folds=True),
                Column("reason", folds=True),
                Column("until (UTC)"),
            ),
            [
                (
                    str(one["revision"]),
                    show_as.moment(one["at"], timespec="microseconds"),
                    one["change"],
                    show_as.value(one["actor"]),
                    show_as.value(one["reason"]),
                    show_as.moment(one["until"]),
                )
                for one in data["life"]
            ],
            title="Life",
        ),
    ]


def _fact_texts(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts that there are, with the names and units that people read."""
    texts = {
        "stream": show_as.name(data["stream"]),
        "id": str(data["checkpoint_id"]),
        "format": data["format"],
        "status": data["status"],
        "saved": _utc(data["saved_at"]) + (f", {show_as.span(data['age_seconds'])} ago" if data["saved_at"] else ""),
        "created": _utc(data["created_at"]),
        "changed": f"{_utc(data['changed_at'])} by {data['changed_by']}",
        "epoch": show_as.value(data["epoch"]),
        "watermark": show_as.value(data["watermark"]),
        "parent": show_as.value(data["parent_id"]),
        "bytes": show_as.size(data["bytes"]),
        "verified": _verdict_text(data["verified"]),
        "pinned": _pin_text(data),
    }
    further = {
        "events": show_as.value(data["event_count"]),
        "pipeline hash": show_as.value(data["pipeline_hash"]),
        "vnodes": show_as.value(data["vnode_count"]),
        "shared bytes": show_as.size(data["shared_bytes"] or None),
        "undo until": _utc(data["undo_until"]),
        "manifest": show_as.value(data["manifest_fault"]),
    }
    return {**texts, **{title: text for title, text in further.items() if text != show_as.NOTHING}}


def _verdict_text(seen: Mapping[str, Any] | None) -> str:
    if seen is None:
        return "never"
    found = {True: "sound", False: "damaged, `ckpt validate` tells what", None: "only its rows"}[seen["sound"]]
    return f"{_utc(seen['at'])}: {found}"


def _pin_text(data: Mapping[str, Any]) -> str:
    told = []
    for pin in data["pins"]:
        until = f"until {_utc(pin['until'])}" if pin["until"] else "for ever"
        name = "" if pin["name"] == pin["reason"] else f" ({pin['name']})"
        told.append(f"{until}, by {pin['by']}: {pin['reason']}{name}")
    if data["pinned"]:
        return "; ".join(told)
    return f"no, expired: {told[-1]}" if told else "no"


def _utc(at: datetime | None) -> str:
    return show_as.moment(at, timespec="microseconds") + (" UTC" if at else "")


def age_seconds(one: Checkpoint, now: datetime) -> int | None:
    """Return how long ago a checkpoint was saved."""
    return max(0, int((now - one.origin.at).total_seconds())) if one.origin else None


def _number(found: Decimal | int | None) -> int | None:
    return None if found is None else int(found)
