"""The last step: delete the bytes that nothing needs any more, and nothing can ever need again."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

from catalog import artifacts, chains, keys
from catalog.errors import CorruptError
from catalog.lifecycle import Change, History, Status
from catalog.policies import check_span
from catalog.protocol import Stream
from catalog.tables.port import Condition, Equals, In, Outcome, Table
from catalog.tables.schema import arrow

ORPHAN_GRACE = timedelta(hours=1)
SLICE = 200
"""Attempts per delete."""

Attempts = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]
"""Chunk rows by (key, attempt)."""


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What a sweep removed, or would."""

    orphans: int
    """Attempts that no checkpoint ever named."""
    purged: int
    """Attempts of checkpoints that were purged."""
    chunks: int


def clean_up(stream: Stream, grace: timedelta = ORPHAN_GRACE) -> int:
    """Purge what is past its undo window, sweep, and return how many orphaned attempts were removed."""
    check_span(grace, "grace")
    stream.purge()
    return sweep(stream, grace).orphans


def sweep(stream: Stream, grace: timedelta = ORPHAN_GRACE, *, assume_purged: Set[str] | None = None) -> SweepReport:
    """Delete the bytes that nothing needs any more and nothing can ever need again.

    This is where data could be lost. What keeps it: `checkpoints` is read before `artifacts`; what any unpurged
    checkpoint needs stays, chunk by chunk; an attempt that no row names is deleted only after the next revision of its
    key says abandoned, so that a save in progress finds its id closed instead of its bytes gone; and marks are durable
    before bytes go.

    Args:
        grace: attempts that began less than this ago are left alone.
        assume_purged: delete nothing, and only say what would go if these keys were purged.
    """
    noted = stream.clock()
    history = stream.history()
    history |= {key: replace(history[key], status=Status.PURGED) for key in assume_purged or () if key in history}
    rows = artifacts.facts(stream.engine, stream.stream, [])
    needed, held = _needed(stream, history, rows)
    by_attempt: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_attempt[row["checkpoint_key"], row["attempt"]].append(row)
    dead: set[tuple[str, str]] = set()
    orphans: dict[str, list[str]] = defaultdict(list)
    for key, attempt in sorted(by_attempt.keys() - needed):
        checkpoint = history.get(key)
        if checkpoint and (not checkpoint.unpurged or attempt in checkpoint.abandoned_attempts):
            dead.add((key, attempt))
        elif max(row["staged_at"] for row in by_attempt[key, attempt]) <= noted - grace and not any(
            _has(row, held) for row in by_attempt[key, attempt]
        ):
            orphans[key].append(attempt)
    if assume_purged is None:
        dead |= _abandon(stream, history, orphans)
        stream.engine.settle(Table.CHECKPOINTS)
    else:
        dead |= {(key, attempt) for key, attempts in orphans.items() for attempt in attempts}
    swept = {one: by_attempt[one] for one in dead if not all(_has(row, held) for row in by_attempt[one])}
    if assume_purged is None:
        chunks = _delete(stream, swept, held)
        _delete_purged_rows(stream, history)
    else:
        chunks = sum(not _has(row, held) for rows in swept.values() for row in rows)
    purged = sum(1 for key, _ in swept if key in history and history[key].status is Status.PURGED)
    report = SweepReport(len(swept) - purged, purged, chunks)
    if chunks and assume_purged is None:
        _record(stream, report)
    return report


def _record(stream: Stream, report: SweepReport) -> None:
    """Write down for people that bytes went; the marks in `checkpoints` say of each checkpoint why."""
    row = {
        "stream": stream.stream, "event": "swept", "at": stream.clock(), "actor": stream.actor,
        "details": json.dumps(asdict(report)),
    }  # fmt: skip
    stream.engine.append(Table.EVENTS, [arrow(Table.EVENTS, [row])])


def _needed(
    stream: Stream, history: History, rows: Iterable[Mapping[str, Any]]
) -> tuple[set[tuple[str, str]], set[tuple[str, str, str]]]:
    """Return the attempts of unpurged checkpoints and their parents, and the chunks elsewhere that have their bytes.

    What was folded has no parents any more for the chains that the fold covers, and its fold's attempt instead.
    """
    unpurged = {key for key, one in history.items() if one.unpurged}
    unpurged |= chains.needed_by(history, unpurged).keys()
    needed = set()
    for key in unpurged:
        one = history.get(key)
        if one is None or one.origin is None or len(one.attempts) != 1 + len(one.folds):
            raise CorruptError(
                f"stream {stream.label!r}: checkpoint {keys.checkpoint_id(key)} is unreadable, so nothing is deleted",
                stream=stream.label,
                key=key,
            )
        needed |= {(key, attempt) for attempt in one.attempts}
    held = {
        (row["held_key"], row["held_attempt"], row["chunk_sha256"])
        for row in rows
        if row["held_attempt"] and (row["checkpoint_key"], row["attempt"]) in needed
    }
    return needed, held


def _has(row: Mapping[str, Any], held: Set[tuple[str, str, str]]) -> bool:
    """Say whether a row has bytes that somebody needs."""
    return not row["held_attempt"] and (row["checkpoint_key"], row["attempt"], row["chunk_sha256"]) in held


def _abandon(stream: Stream, history: History, orphans: Mapping[str, list[str]]) -> set[tuple[str, str]]:
    """Close attempts that no row names; one that somebody was faster about is left for the next run."""
    heads = {key: history[key].head.revision if key in history else -1 for key in orphans}
    waiting = {key: list(attempts) for key, attempts in orphans.items()}
    closed = set()
    while waiting:
        # One attempt of a key at a time: the next may go only on top of our own mark, never of a save.
        batch = {key: attempts.pop() for key, attempts in waiting.items()}
        rows = [
            stream.mark(history, key, heads[key] + 1, Change.ABANDONED, "orphaned", attempt=attempt)
            for key, attempt in batch.items()
        ]
        for (key, attempt), outcome in zip(batch.items(), stream.insert(rows), strict=True):
            if outcome is Outcome.INSERTED:
                closed.add((key, attempt))
                heads[key] += 1
            if outcome is not Outcome.INSERTED or not waiting[key]:
                del waiting[key]
    return closed


def _delete(stream: Stream, dead: Attempts, held: Set[tuple[str, str, str]]) -> int:
    """Delete what nobody needs of dead attempts, and return how many chunks that were."""
    whole: list[str] = []
    places: list[list[Condition]] = []
    for (_, attempt), rows in sorted(dead.items()):
        kept = {row["chunk_sha256"] for row in rows if _has(row, held)}
        garbage = {row["chunk_sha256"] for row in rows} - kept
        if not kept:
            whole.append(attempt)
        elif garbage:
            places.append([Equals("attempt", attempt), In("chunk_sha256", tuple(sorted(garbage)))])
    # Attempts are unique across keys; short slices, because a delete loses to every append of its stream.
    places += [[In("attempt", tuple(whole[at : at + SLICE]))] for at in range(0, len(whole), SLICE)]
    of_stream = Equals("stream", stream.stream)
    return sum(stream.engine.delete(Table.ARTIFACTS, [of_stream, *place]) for place in places)


def _delete_purged_rows(stream: Stream, history: History) -> None:
    """Delete the rows of purged checkpoints except the mark, which stays for ever."""
    needed = chains.needed_by(history, [key for key, one in history.items() if one.unpurged])
    gone = [key for key, one in history.items() if one.status is Status.PURGED and one.origin and key not in needed]
    if gone:
        others = tuple(change for change in Change if change is not Change.PURGED)
        of_keys = In("checkpoint_key", tuple(gone))
        stream.engine.delete(Table.CHECKPOINTS, [Equals("stream", stream.stream), of_keys, In("change", others)])
