"""What became of a checkpoint: its revisions, folded. Pure: rows in, facts out."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

from catalog import keys
from catalog.errors import CorruptError


class Change(StrEnum):
    """What a revision says."""

    SAVED = "saved"
    PREPARED = "prepared"
    PROMOTED = "promoted"
    UPDATED = "updated"
    PINNED = "pinned"
    UNPINNED = "unpinned"
    FOLDED = "folded"
    TRASHED = "trashed"
    RESTORED = "restored"
    PURGED = "purged"
    ABANDONED = "abandoned"


_OF_LIFE = {
    Change.SAVED, Change.PREPARED, Change.PROMOTED, Change.PINNED, Change.UNPINNED, Change.TRASHED, Change.RESTORED,
}  # fmt: skip


class Status(StrEnum):
    """Where a checkpoint is in its life."""

    COMMITTED = "committed"
    PREPARED = "prepared"
    TRASHED = "trashed"
    PURGED = "purged"
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """One row of `checkpoints`; its fields are the table's columns."""

    stream: str
    checkpoint_key: str
    revision: int
    change: str
    format: str
    insert_id: str
    at: datetime
    actor: str | None = None
    reason: str | None = None
    until: datetime | None = None
    attempt: str | None = None
    parent: str | None = None
    epoch: Decimal | int | None = None
    created_at: datetime | None = None
    watermark: Decimal | int | None = None
    event_count: Decimal | int | None = None
    pipeline_hash: Decimal | int | None = None
    vnode_count: int | None = None
    sinks_committed: int | None = None
    sinks_pending: int | None = None
    sinks_failed: int | None = None
    artifact_count: int | None = None
    artifact_bytes: Decimal | int | None = None
    shared_bytes: Decimal | int | None = None
    manifest_sha256: str | None = None
    content_sha256: str | None = None
    details: str | None = None
    manifest: str | None = None

    def row(self) -> dict[str, Any]:
        """Return it as a row for the table."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True)
class Folded:
    """The snapshot that a partition's chain up to a checkpoint was folded into."""

    operator: str
    partition: int
    path: str
    size_bytes: int
    sha256: str
    attempt: str
    """Under which its chunk rows are."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint as its revisions tell it."""

    key: str
    head: Revision
    origin: Revision | None
    """Revision 0 if it was ever saved and is not purged and swept; integrity fields come from here."""
    content: Revision | None
    """The newest revision that carries a manifest."""
    status: Status
    pins: Mapping[str, Revision]
    """Its pins by name, expired or not, the newest last."""
    abandoned_attempts: frozenset[str]
    trash: Revision | None = None
    """The revision that put it into the trash, while it is there; later ones may have abandoned attempts."""
    previous: Revision | None = None
    """The revision that carried the manifest before `content`, if it was ever updated."""
    gapless: bool = True
    """Whether its revisions are 0, 1, 2, … without a hole; nothing of a purged one has to be left."""
    folds: tuple[Revision, ...] = ()
    """The revisions that folded chains of it, oldest first."""
    life: tuple[Revision, ...] = ()
    """The revisions that say whether it is seen or held, oldest first: what its purged row keeps of it."""

    @property
    def id(self) -> int | str:
        """The id that people and APIs see."""
        return keys.checkpoint_id(self.key)

    @property
    def live(self) -> bool:
        """Saved or prepared, and not trashed, purged or abandoned."""
        return self.status in (Status.COMMITTED, Status.PREPARED)

    @property
    def unpurged(self) -> bool:
        """Its bytes must be kept: live, or still in the trash."""
        return self.live or self.status is Status.TRASHED

    @property
    def there(self) -> bool:
        """Its rows are there, and its bytes as long as a checkpoint that is not purged stands on it, even if it is."""
        return self.origin is not None

    @property
    def parent(self) -> str | None:
        """The checkpoint that its deltas stand on; None if it is complete, or all of them have been folded."""
        newest = self.folds[-1] if self.folds else self.origin
        return newest.parent if newest else None

    @property
    def folded(self) -> dict[tuple[str, int], Folded]:
        """What its chains were folded into, by operator and partition.

        Raises:
            CorruptError: a revision that should tell does not.
        """
        return {(one.operator, one.partition): one for row in self.folds for one in _folded(row)}

    @property
    def attempts(self) -> tuple[str, ...]:
        """The attempts whose chunk rows belong to it: that of the save, and those of folds."""
        return tuple(row.attempt for row in (self.origin, *self.folds) if row and row.attempt)

    def attempt_of(self, path: str) -> str | None:
        """Return the attempt that one of its artifacts is under."""
        of_fold = (one.attempt for one in self.folded.values() if one.path == path)
        return next(of_fold, self.origin.attempt if self.origin else None)

    @property
    def bytes(self) -> int:
        """Size of its artifacts, and of what they were folded into."""
        return int(sum(row.artifact_bytes or 0 for row in (self.origin, *self.folds) if row))

    @property
    def undo_until(self) -> datetime | None:
        """When its undo window ends or ended, if it is in the trash."""
        return self.trash.until if self.trash else None

    def held_by(self, now: datetime) -> dict[str, Revision]:
        """Return the pins that hold it at this time, by name."""
        return {name: pin for name, pin in self.pins.items() if pin.until is None or pin.until > now}

    def pinned(self, now: datetime) -> bool:
        """Whether a pin holds it at this time."""
        return bool(self.held_by(now))

    def undoable(self, now: datetime) -> bool:
        """Whether it is in the trash and its undo window is open."""
        return self.status is Status.TRASHED and self.undo_until is not None and self.undo_until > now

    @property
    def source(self) -> dict[str, Any]:
        """Where it was imported from, as its save tells; empty if it was not."""
        details = self.origin.details if self.origin else None
        found: dict[str, Any] = json.loads(details).get("source", {}) if details else {}
        return found

    @property
    def imported_fault(self) -> str | None:
        """What was wrong with it when it was imported, None if nothing was."""
        return self.source.get("fault")

    @property
    def unfit(self) -> str | None:
        """Why nobody may restore from it, as far as its columns tell; None if one may."""
        if self.status is Status.PREPARED and self.imported_fault:
            return f"it was imported as corrupt: {self.imported_fault}"
        if self.status is not Status.COMMITTED or self.content is None:
            return f"it is {self.status}"
        if self.content.epoch == 0 and self.content.format != keys.Format.STATE_V1:
            return "its epoch is 0"
        return None

    @property
    def open_sinks(self) -> str | None:
        """Which sinks have not committed it; None if all have."""
        failed, pending = (self.content.sinks_failed, self.content.sinks_pending) if self.content else (0, 0)
        if failed:
            return "a sink failed" if failed == 1 else f"{failed} sinks failed"
        if pending:
            return "a sink is still pending" if pending == 1 else f"{pending} sinks are still pending"
        return None

    @property
    def eligible(self) -> bool:
        """Whether recovery may choose it, as far as its columns tell."""
        return self.unfit is None and self.open_sinks is None


History = Mapping[str, Checkpoint]
"""A stream's checkpoints by key, oldest first."""


def fold(revisions: Iterable[Revision]) -> dict[str, Checkpoint]:
    """Return what the revisions of a stream say, by key, oldest first."""
    by_key = defaultdict(list)
    for revision in revisions:
        by_key[revision.checkpoint_key].append(revision)
    return {key: _fold_one(key, sorted(by_key[key], key=lambda row: row.revision)) for key in sorted(by_key)}


def with_folds(history: History, revisions: Iterable[Revision]) -> dict[str, Checkpoint]:
    """Return checkpoints with the folds that these revisions tell of, instead of those they had."""
    folds = defaultdict(list)
    for row in sorted(revisions, key=lambda row: row.revision):
        folds[row.checkpoint_key].append(row)
    return {key: replace(one, folds=tuple(folds[key])) if key in folds else one for key, one in history.items()}


def _folded(row: Revision) -> list[Folded]:
    try:
        told = json.loads(row.details or "")["folds"]
        names = [field.name for field in fields(Folded) if field.name != "attempt"]
        return [Folded(attempt=row.attempt or "", **{name: one[name] for name in names}) for one in told]
    except (ValueError, KeyError, TypeError) as error:
        where = f"checkpoint {keys.checkpoint_id(row.checkpoint_key)}, revision {row.revision}"
        raise CorruptError(f"{where}: what was folded is unreadable: {error!r}", key=row.checkpoint_key) from error


def pin_name(row: Revision) -> str | None:
    """Return the name of the pin that a revision sets or takes back; before pins had names it was the reason."""
    told = json.loads(row.details or "{}").get("pin", row.reason)
    return None if told is None else str(told)


def live_keys(history: History) -> list[str]:
    """Return the keys of live checkpoints, oldest first."""
    return [key for key, checkpoint in history.items() if checkpoint.live]


def latest(history: History) -> Checkpoint | None:
    """Return the committed checkpoint with the highest key."""
    committed = (one for key, one in sorted(history.items(), reverse=True) if one.status is Status.COMMITTED)
    return next(committed, None)


def _fold_one(key: str, rows: list[Revision]) -> Checkpoint:
    origin = content = previous = trash = None
    pins: dict[str, Revision] = {}
    committed = purged = False
    abandoned, folds = set[str](), list[Revision]()
    for row in rows:
        match row.change:
            case Change.SAVED | Change.PREPARED if row.revision == 0:
                origin = content = row
                committed = row.change == Change.SAVED
            case Change.PROMOTED:
                committed = True
            case Change.UPDATED:
                previous, content = content, row
            case Change.PINNED:
                pins.pop(pin_name(row) or "", None)
                pins[pin_name(row) or ""] = row
            case Change.UNPINNED:
                name = pin_name(row)
                pins = {other: pin for other, pin in pins.items() if name not in (None, other)}
            case Change.FOLDED:
                folds.append(row)
            case Change.TRASHED:
                trash = row
            case Change.RESTORED:
                trash = None
            case Change.PURGED:
                purged = True
            case Change.ABANDONED if row.attempt:
                abandoned.add(row.attempt)
    if purged:
        status = Status.PURGED
    elif origin is None:
        status = Status.ABANDONED
    elif trash:
        status = Status.TRASHED
    else:
        status = Status.COMMITTED if committed else Status.PREPARED
    gapless = purged or [row.revision for row in rows] == list(range(len(rows)))
    return Checkpoint(
        key, rows[-1], origin, content, status, pins, frozenset(abandoned), trash, previous, gapless, tuple(folds),
        life=tuple(row for row in rows if row.change in _OF_LIFE),
    )  # fmt: skip
