"""What needs attention, worst first, each with what to do. Pure."""

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum

from catalog.cli.output import name, size, span
from catalog.report.facts import CheckpointFacts, Report, StreamFacts
from catalog.retention import PROMOTION_GRACE

PENDING_GRACE = timedelta(minutes=10)
"""How long the sinks of the latest checkpoint may take."""
OVERDUE_TIMES = 10
"""A stream is quiet if it has not saved for so many of its usual intervals."""
OVERDUE_AT_LEAST = timedelta(minutes=10)
UNDO_ENDS_SOON = timedelta(days=1)
NAMED = 3
"""How many ids or names a sentence lists."""


class Level(IntEnum):
    """How bad it is."""

    GOOD = 0
    NOTE = 1
    WARNING = 2
    CRITICAL = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that somebody should know."""

    level: Level
    stream: str | None
    """None if it is about several, or the catalog."""
    text: str
    command: str = ""
    """What shows more, or helps."""


def findings(report: Report) -> list[Finding]:
    """Return what needs attention, worst first."""
    unreadable = "it cannot be read, and what it would tell is missing here: "
    found = [Finding(Level.CRITICAL, None, f"{unreadable}{what}") for what in report.unreadable]
    largest = sorted(report.streams, key=lambda one: -one.bytes)
    found += [finding for check in CHECKS for stream in largest if (finding := check(stream, report))]
    return [*found, *_of_catalog(report)]


def levels(report: Report, found: Sequence[Finding]) -> dict[str, Level]:
    """Return how bad it is with each stream."""
    worst = dict.fromkeys((stream.name for stream in report.streams), Level.GOOD)
    for one in found:
        if one.stream is not None:
            worst[one.stream] = max(worst[one.stream], one.level)
    return worst


# -- of a stream -------------------------------------------------------------------------------------------------------


def _nothing_to_restore(stream: StreamFacts, report: Report) -> Finding | None:
    if not stream.live or stream.choice:
        return None
    text = f"nothing to restore from: none of {_count(stream.live)} is eligible and sound"
    return Finding(Level.CRITICAL, stream.name, text, _recover(stream, report))


def _broken(stream: StreamFacts, report: Report) -> Finding | None:
    if not (broken := stream.broken):
        return None
    rules = ", ".join(sorted({fault.rule for one in broken for fault in one.broken}))
    text = f"{_count(broken)} broken ({rules}): {_ids(broken)}{_instead(stream) if stream.latest in broken else ''}"
    return Finding(Level.CRITICAL, stream.name, text, _show(broken[-1], report))


def _not_restored(stream: StreamFacts, report: Report) -> Finding | None:
    failed = [one for one in stream.committed if one.drill and not one.drill.restored and not one.broken]
    if not failed:
        return None
    why = (failed[-1].drill and failed[-1].drill.error) or "no reason was recorded"
    text = f"its last drill could not restore {_ids(failed)}: {why}"
    return Finding(Level.CRITICAL, stream.name, text, _show(failed[-1], report))


def _open_sinks(stream: StreamFacts, report: Report) -> Finding | None:
    latest = stream.latest
    if latest is None or latest.broken or not latest.checkpoint.open_sinks:
        return None
    failed = latest.checkpoint.content and latest.checkpoint.content.sinks_failed
    if not failed and report.made_at - latest.saved_at <= PENDING_GRACE:
        return None
    text = f"the latest, {latest.id}: {latest.checkpoint.open_sinks}{_instead(stream)}"
    return Finding(Level.WARNING, stream.name, text, _recover(stream, report))


def _quiet(stream: StreamFacts, report: Report) -> Finding | None:
    latest, usual = stream.latest, stream.usual_interval
    if latest is None or usual is None or usual < timedelta(seconds=1):  # made in one go, by no schedule
        return None
    age = report.made_at - latest.saved_at
    if age <= max(OVERDUE_TIMES * usual, OVERDUE_AT_LEAST):
        return None
    text = f"quiet for {_span(age)}: checkpoints usually come every {_span(usual)}"
    return Finding(Level.WARNING, stream.name, text, _command("ckpt list", report.place, "--stream", stream.name))


def _not_promoted(stream: StreamFacts, report: Report) -> Finding | None:
    waiting = [one for one in stream.prepared if one.saved_at + PROMOTION_GRACE < report.made_at]
    if not waiting:
        return None
    text = f"{_count(waiting)} not promoted within {_span(PROMOTION_GRACE)}: {_ids(waiting)}"
    return Finding(Level.WARNING, stream.name, text, _show(waiting[-1], report))


def _odd(stream: StreamFacts, _: Report) -> Finding | None:
    if not (odd := stream.odd):
        return None
    rules = Counter(fault.rule for one in odd for fault in one.faults if fault.severity == "warning")
    told = ", ".join(f"{rule} ({count:,})" for rule, count in rules.most_common())
    return Finding(Level.NOTE, stream.name, f"{_count(odd)} odd but harmless: {told}")


CHECKS = (_nothing_to_restore, _broken, _not_restored, _open_sinks, _quiet, _not_promoted, _odd)
"""Worst first."""


# -- of all of them ----------------------------------------------------------------------------------------------------


def _of_catalog(report: Report) -> Iterator[Finding]:
    chosen = [(stream, stream.choice) for stream in report.streams if stream.choice]
    if unproven := [stream.name for stream, one in chosen if not one.proven]:
        text = f"no drill has restored what recovery would choose in {_streams(unproven, len(chosen))}"
        yield Finding(Level.NOTE, None, text, _command("ckpt-drill", report.place, "--engine", "native"))
    if unhashed := [stream.name for stream, one in chosen if one.hashed is None]:
        text = f"nobody has verified by hash what recovery would choose in {_streams(unhashed, len(chosen))}"
        command = _command("ckpt-verify", report.place, "--depth", "hashes", "--engine", "native")
        yield Finding(Level.NOTE, None, text, command)
    soon = [
        one
        for stream in report.streams
        for one in stream.trashed
        if (until := one.checkpoint.undo_until) and report.made_at < until <= report.made_at + UNDO_ENDS_SOON
    ]
    if soon:
        told = f"{_count(soon)} in the trash ({size(sum(one.bytes for one in soon))})"
        yield Finding(Level.NOTE, None, f"{told} can be restored for less than a day")


# -- words -------------------------------------------------------------------------------------------------------------


def _instead(stream: StreamFacts) -> str:
    """Return what recovery would do instead of taking the latest."""
    choice, latest = stream.choice, stream.latest
    if choice is None or latest is None:
        return ""
    return f"; recovery would choose {choice.id}, saved {_span(latest.saved_at - choice.saved_at)} before"


def _recover(stream: StreamFacts, report: Report) -> str:
    return _command("ckpt recover", report.place, stream.name, "--explain")


def _show(one: CheckpointFacts, report: Report) -> str:
    return _command("ckpt show", report.place, one.stream, str(one.id))


def _count(some: Sequence[CheckpointFacts]) -> str:
    return "1 checkpoint" if len(some) == 1 else f"{len(some):,} checkpoints"


def _ids(some: Sequence[CheckpointFacts]) -> str:
    """Return ids, newest first."""
    newest = [str(one.id) for one in reversed(some)]
    return ", ".join(newest[:NAMED]) + (f" and {len(newest) - NAMED:,} more" if len(newest) > NAMED else "")


def _streams(names: Sequence[str], of: int) -> str:
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return f"{len(names):,} of {of:,} streams: {', '.join(map(name, names[:NAMED]))}{more}"


def _span(length: timedelta) -> str:
    return span(length.total_seconds())


def _command(command: str, *arguments: str) -> str:
    return f"{command} {shlex.join(arguments)}"
