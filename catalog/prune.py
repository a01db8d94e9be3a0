"""Letting checkpoints go by policy: a plan with a reason for each, then the trash, and at last the disk.

Trashed ones are hidden and can be restored until a stated time. Only after it they are purged, and bytes that nothing
needs any more are swept. Every step can be run again, and beside any other.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from catalog import artifacts, chunks, keys, retention
from catalog.lifecycle import History
from catalog.policies import Best, Retention, check_span
from catalog.protocol import Stream
from catalog.retention import Plan, Planner
from catalog.sweep import ORPHAN_GRACE, SweepReport, sweep
from catalog.tables.port import Equals
from catalog.verify import last_verdicts


@dataclass(frozen=True, slots=True)
class Planned:
    """What retention does with one checkpoint."""

    stream: str
    checkpoint_id: int | str
    keep: bool
    reason: str
    """Why it stays, all policies that keep it included, or why it goes."""
    bytes: int
    """Of its artifacts."""
    freed_bytes: int
    """What the disk gets back once it is purged and swept: bytes that nothing that stays needs."""


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """What retention did, or would do."""

    planned: tuple[Planned, ...]
    undo_until: Mapping[str, datetime]
    """By stream with something that goes: how long that can be restored."""
    dry_run: bool

    @property
    def removed(self) -> tuple[Planned, ...]:
        """What goes."""
        return tuple(one for one in self.planned if not one.keep)

    def explain(self) -> str:
        """Return the report as text for people, a line for each checkpoint."""
        lines = [
            f"{'keep' if one.keep else 'remove'} {keys.shown(one.stream)} {one.checkpoint_id}: {one.reason}"
            + ("" if one.keep else f" ({one.freed_bytes / (1 << 20):.1f} MiB freed)")
            for one in self.planned
        ]
        freed = sum(one.freed_bytes for one in self.removed) / (1 << 20)
        what = "would go" if self.dry_run else "went"
        counts = f"{len(self.removed)} of {len(self.planned)}"
        lines.append(f"{counts} {what} to the trash, {freed:.1f} MiB once purged and swept")
        lines += [
            f"{keys.shown(stream)}: can be restored until {until:%Y-%m-%d %H:%M:%S} UTC"
            for stream, until in self.undo_until.items()
        ]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class CleanUp:
    """What was, or would be, deleted for good of a stream."""

    stream: str
    purged: tuple[int | str, ...]
    """Checkpoints whose undo window was over."""
    swept: SweepReport


def apply(stream: Stream, policy: Retention, *, dry_run: bool) -> tuple[list[Planned], datetime | None]:
    """Trash what a stream's retention does not keep, and return a line for each checkpoint that went or is live.

    Returns:
        The lines, and until when what went can be restored; None if nothing did.
    """
    planner = _planner(stream, policy)
    now = stream.clock()
    history = stream.history()
    done = planner(history, now)
    if done.trash and not dry_run:
        done = stream.trash(planner, policy.undo_for)
        history = stream.history()  # with what has come since the first look, some of which may have gone as well
    freed = freed_bytes(history, artifacts.facts(stream.engine, stream.stream, []), done.trash.keys())
    planned = [
        Planned(stream.label, history[key].id, key not in done.trash, reason, history[key].bytes, freed.get(key, 0))
        for key, reason in sorted({**done.keep, **done.trash}.items())
    ]
    return planned, now + policy.undo_for if done.trash else None


def _planner(stream: Stream, policy: Retention) -> Planner:
    wants_manifests = any(isinstance(one, Best) for one in policy.policies)

    def planner(history: History, now: datetime) -> Plan:
        if wants_manifests:
            # Of these checkpoints only: one that has come since is not part of the plan.
            loaded = stream.history(list(history), manifests=True)
            history = {key: replace(one, content=loaded[key].content) for key, one in history.items() if key in loaded}
        verdicts = last_verdicts(stream.engine, [Equals("stream", stream.stream)])
        sound = {key: one.sound for (_, key), one in verdicts.items() if one.sound is not None}
        return retention.plan(history, policy.policies, now, sound=sound, allow_empty=policy.allow_empty)

    return planner


def freed_bytes(history: History, rows: Iterable[Mapping[str, Any]], gone: Iterable[str]) -> dict[str, int]:
    """Return by key how many bytes nothing needs any more once these checkpoints are purged.

    Bytes that several of them share count for the newest one.
    """
    doomed = set(gone)
    attempts = {(key, attempt): key for key, one in history.items() if one.unpurged for attempt in one.attempts}
    users: dict[chunks.Holder, tuple[int, set[str]]] = {}
    for row in rows:
        user = attempts.get((row["checkpoint_key"], row["attempt"]))
        if user is not None:
            users.setdefault(chunks.holder(row), (row["chunk_size"], set()))[1].add(user)
    freed: dict[str, int] = {}
    for size, used_by in users.values():
        if used_by <= doomed:
            freed[max(used_by)] = freed.get(max(used_by), 0) + size
    return freed


def clean_up(stream: Stream, grace: timedelta = ORPHAN_GRACE, *, dry_run: bool = False) -> CleanUp:
    """Purge what is past its undo window, and sweep the bytes that nothing needs any more."""
    check_span(grace, "grace")
    gone = list(retention.expired(stream.history(), stream.clock())) if dry_run else stream.purge()
    swept = sweep(stream, grace, assume_purged=frozenset(gone) if dry_run else None)
    return CleanUp(stream.label, tuple(map(keys.checkpoint_id, gone)), swept)


def choose(policies: Sequence[Retention], stream: str) -> Retention | None:
    """Return the first retention that fits a stream, None if it is left alone."""
    return next((one for one in policies if one.fits(stream)), None)
