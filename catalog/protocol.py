"""How checkpoints come, change and go: the protocol's steps for one stream, over the port.

The order of writes is the heart. Bytes first, row last; readers and sweepers the other way round. Every fact that
decides whether a checkpoint is seen or needed is a revision in `checkpoints`, inserted only if that revision is new.
"""

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from catalog import artifacts, chains, keys, lifecycle, marks, retention
from catalog.chunks import Base, Stored, links, totals
from catalog.cutting import PLAIN, Source, Writing
from catalog.errors import (
    BasePurgedError,
    BrokenChainError,
    CheckpointExistsError,
    ConflictError,
    CorruptError,
    InvalidInputError,
)
from catalog.gone_back import GoneBack
from catalog.lifecycle import Change, Checkpoint, Folded, History, Revision, Status
from catalog.manifest import content_sha256, parse_any, sha256_text
from catalog.policies import check_span
from catalog.reader import ROUNDS, StreamReader
from catalog.retention import Plan, Planner
from catalog.tables.port import Engine, Equals, In, Outcome, Table, Unless
from catalog.tables.schema import arrow
from catalog.validation import needed_paths

log = logging.getLogger(__name__)

AUTO_PRUNE_UNDO = timedelta(hours=1)
PRUNE_UNDO = timedelta(days=7)
DELETED = "deleted by its owner"
_TOLD_BY_MANIFEST = frozenset(
    {
        "manifest", "manifest_sha256", "epoch", "created_at", "watermark", "event_count", "pipeline_hash",
        "vnode_count", "sinks_committed", "sinks_pending", "sinks_failed",
    }
)  # fmt: skip
"""Columns that change with a manifest."""


def _pinning(name: str, reason: str) -> dict[str, Any]:
    return {"change": Change.PINNED, "reason": reason, "details": json.dumps({"pin": name})}


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A checkpoint about to be saved; its artifacts are already staged."""

    key: str
    format: keys.Format
    attempt: str
    manifest: str
    artifacts: Mapping[str, Stored] = field(default_factory=dict)
    prepared: bool = False
    parent: str | None = None
    pin: str | None = None
    """Why it is pinned from the beginning."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further columns of `checkpoints`."""

    @property
    def vias(self) -> frozenset[str]:
        """The checkpoints that its artifacts are borrowed through."""
        return frozenset().union(*(one.vias for one in self.artifacts.values()))

    @property
    def content_sha256(self) -> str:
        """The hash over the manifest and its artifacts: equal means the same content."""
        return content_sha256(self.manifest, {path: one.sha256 for path, one in self.artifacts.items()})


class Stream(StreamReader):
    """One stream's rows, and the steps that may be taken on them; see `sweep` for the last one."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        format: keys.Format | None = None,
        *,
        clock: Callable[[], datetime],
        actor: str,
        gone_back: GoneBack | None = None,
    ) -> None:
        """Open a stream.

        Args:
            engine, name, format, clock, actor: see StreamReader.
            gone_back: what the others know who write to it, and are told.
        """
        super().__init__(engine, name, format, clock=clock, actor=actor)
        self._gone_back = gone_back or GoneBack()
        self._saved: Base | None = None
        """What was last saved here."""

    # -- staging ---------------------------------------------------------------------------------------------------

    def base(self, key: str | None = None) -> Base | None:
        """Return a checkpoint whose chunks need not be written again, None if there is none.

        Args:
            key: this live one; else what was last saved here, which is known without a look, else what was gone back
                to, else the latest.
        """
        if key is not None:
            return self._base(self.require_live(key, self.find(key, manifest=False)))
        gone_back_to = self._gone_back.base(self.stream)
        if self._saved is not None and gone_back_to in (None, self._saved.key):
            return self._saved
        try:
            return self._base(self.latest() if gone_back_to is None else self.find(gone_back_to, manifest=False))
        except CorruptError as error:  # nobody asked for it: what is damaged must not keep new ones from being saved
            log.warning("stream %r shares with no earlier checkpoint and writes all bytes: %s", self.label, error)
            return None

    def _base(self, found: Checkpoint | None) -> Base | None:
        if found is None or not found.live or found.origin is None or found.origin.attempt is None:
            return None
        named = Equals("checkpoint_key", found.key), Equals("attempt", found.origin.attempt)
        rows = artifacts.facts(self.engine, self.stream, named)
        if len({row["path"] for row in rows}) > (found.origin.artifact_count or 0):
            named_paths = self._paths_of(found.key)
            rows = [row for row in rows if row["path"] in named_paths]
        return Base(found.key, rows)

    def _paths_of(self, key: str) -> set[str]:
        """Return what a checkpoint's manifest names: nobody borrows the rest of its attempt, which may be deleted.

        Such as what a stream left that was closed too late.
        """
        found = self.find(key)
        try:
            return needed_paths(found, parse_any(found, self.label)) if found and found.live else set()
        except CorruptError:  # nothing is shared with what cannot be read
            return set()

    def go_on_from(self, key: str | None) -> None:
        """Share with this checkpoint, or with none, until something is saved; see GoneBack."""
        self._gone_back.go_back(self.stream, key or "")

    def check_open(self, key: str) -> None:
        """Refuse to stage for an id that already has a row, or for a stream that holds another format."""
        self.check_format()
        found = self._look_up(key)
        if found is None:
            return
        if found.live:
            raise CheckpointExistsError(
                f"checkpoint {found.id} of stream {self.label!r} is saved and cannot change: take the next id",
                stream=self.label,
                key=key,
            )
        raise self.closed(found)

    def stage(
        self,
        key: str,
        attempt: str,
        path: str,
        kind: str,
        source: Source,
        how: Writing = PLAIN,
        **columns: Any,
    ) -> Stored:
        """Write an artifact under an attempt: durable, and invisible until a checkpoint names the attempt.

        Chunks that its base has are borrowed instead of written.
        """
        return artifacts.write(self.engine, self.chunk_columns(key, attempt, path, kind, **columns), source, how)

    def chunk_columns(self, key: str, attempt: str, path: str, kind: str, **columns: Any) -> dict[str, Any]:
        """Return the columns that all chunks of an artifact share."""
        return {
            "stream": self.stream,
            "checkpoint_key": key,
            "attempt": attempt,
            "path": path,
            "kind": kind,
            "scope": "exclusive",
            "staged_at": self.clock(),
            **columns,
        }

    def adopt(
        self,
        key: str,
        attempt: str,
        wanted: Mapping[str, str | None],
        check: Callable[[dict[str, Stored]], None] = lambda _: None,
    ) -> tuple[str, dict[str, Stored]]:
        """Make artifacts that another writer staged for this id part of an attempt, without moving their bytes.

        Args:
            key: the checkpoint.
            attempt: the attempt that adopts.
            wanted: the SHA-256 by path, None where any will do: then what the attempt has itself, else what a saved
                checkpoint names, else the newest.
            check: refuses what was found, before anything is written.

        Returns:
            The attempt that has all of it, a new one where this one has other bytes under a path; and what was found.

        Raises:
            ConflictError: whoever staged it discarded it meanwhile.
        """
        named_so = Equals("checkpoint_key", key), In("path", tuple(wanted))
        rows = artifacts.facts(self.engine, self.stream, named_so)
        saved = self.find(key, manifest=False)
        named = saved.origin.attempt if saved and saved.origin else None
        by_attempt = defaultdict(list)
        for row in rows:
            by_attempt[row["path"], row["attempt"]].append(row)

        def preference(one: tuple[str, str]) -> tuple[bool, bool, datetime, str]:
            return one[1] == attempt, one[1] == named, by_attempt[one][0]["staged_at"], one[1]

        chosen: dict[str, str] = {}
        for path, under in sorted(by_attempt, key=preference):
            stored = totals(by_attempt[path, under]).get(path)
            if stored and wanted[path] in (None, stored.sha256):
                chosen[path] = under
        if any(under != attempt and (path, attempt) in by_attempt for path, under in chosen.items()):
            attempt = keys.new_uuid7()  # one path of one attempt never has two contents
        own = [row for path, under in chosen.items() if under == attempt for row in by_attempt[path, under]]
        others = [row for path, under in chosen.items() if under != attempt for row in by_attempt[path, under]]
        linked = links(others, attempt, staged_at=self.clock())
        found = totals([*own, *linked])
        check(found)
        if linked:
            self.engine.append(Table.ARTIFACTS, [arrow(Table.ARTIFACTS, linked)])
            # From now on whoever discards sees these rows; before, they were not to be seen.
            there = {(row["path"], row["attempt"]) for row in artifacts.facts(self.engine, self.stream, named_so)}
            if gone := sorted(path for path, under in chosen.items() if (path, under) not in there):
                raise ConflictError(
                    f"artifact {gone[0]!r} of stream {self.label!r} was discarded while checkpoint "
                    f"{keys.checkpoint_id(key)} was saved: nothing was saved, take the checkpoint again"
                )
        return attempt, found

    # -- coming ----------------------------------------------------------------------------------------------------

    def save(self, draft: Draft, prune: Planner | None = None) -> None:
        """Make a checkpoint exist: one fenced commit, which also carries what auto-prune lets go.

        Raises:
            CheckpointExistsError, TrashedError, PurgedError, AbandonedError: the id is taken, by other content.
            InvalidInputError: the stream holds another format.
            BrokenChainError: the parent of its deltas is not there any more.
            BasePurgedError: chunks that it borrows were purged meanwhile; stage all bytes anew.
        """
        row = self.draft_row(draft)
        guards = [Unless(format_other_than=draft.format)]
        guards += [
            Unless(key=key, change=Change.PURGED) for key in sorted({draft.parent, *draft.vias} - {None}, key=str)
        ]
        for rounds_left in reversed(range(ROUNDS)):
            planner = prune if rounds_left else None  # the save is worth more than its auto-prune
            history = self.history() if draft.parent else None
            row = self._standing_on(row, history or {}, draft)
            others, counted = self._auto_prune(row, history, planner) if planner else ([], [])
            if draft.pin:
                others.append(self._next(lifecycle.fold([row])[row.checkpoint_key], **_pinning(draft.pin, draft.pin)))
            if others:  # what goes or is pinned counts on this save: if the id is taken, nothing of it happens
                counted.append(Unless(key=row.checkpoint_key, revision_above=-1))
            outcome, *_rest = self.insert([row, *others], guards + counted)
            if outcome is Outcome.INSERTED:
                self._saved = Base(draft.key, [row for one in draft.artifacts.values() for row in one.rows])
                self._gone_back.go_on(self.stream, draft.key, draft.attempt)
                return
            found = self.find(draft.key)
            if found is not None:
                self._accept_same(found, draft)
                return
            self._explain_refusal(draft)
        raise ConflictError(
            f"stream {self.label!r} changed {ROUNDS} times while checkpoint {draft.key} was saved; try again"
        )

    def draft_row(self, draft: Draft) -> Revision:
        """Return the row by which a checkpoint comes into being; who inserts it says what it stands on."""
        return Revision(
            stream=self.stream,
            checkpoint_key=draft.key,
            revision=0,
            change=Change.PREPARED if draft.prepared else Change.SAVED,
            format=draft.format,
            insert_id=keys.new_uuid7(),
            at=self.clock(),
            actor=self.actor,
            attempt=draft.attempt,
            parent=draft.parent,
            manifest=draft.manifest,
            manifest_sha256=sha256_text(draft.manifest),
            content_sha256=draft.content_sha256,
            artifact_count=len(draft.artifacts),
            artifact_bytes=sum(one.size for one in draft.artifacts.values()),
            shared_bytes=sum(one.shared for one in draft.artifacts.values()),
            **draft.facts,
        )

    def _standing_on(self, row: Revision, history: History, draft: Draft) -> Revision:
        """Return the row, later than its parent's rows and with the line it stands on, if its parent is there."""
        if draft.parent is None:
            return row
        parent = history.get(draft.parent) or self.find(draft.parent, manifest=False)
        if parent is None or not parent.live:
            why = f"is {parent.status}" if parent else "does not exist"
            raise BrokenChainError(
                f"checkpoint {draft.key} has deltas but its parent {draft.parent} {why}: write a snapshot instead",
                stream=self.label,
                key=draft.key,
            )
        line = [draft.parent, *chains.ancestors(history, draft.parent)]
        return replace(
            row,
            at=max(row.at, keys.after(parent.head.at)),
            details=json.dumps({**json.loads(row.details or "{}"), "line": line}),
        )

    def _auto_prune(
        self, row: Revision, history: History | None, prune: Planner
    ) -> tuple[list[Revision], list[Unless]]:
        """Return the rows and guards by which this save lets old checkpoints go; a fault here never fails the save.

        Nor does a history that cannot be read, which the save itself does not need without a parent.
        """
        try:
            history = self.history() if history is None else history
            now = self.clock()
            after = dict(sorted({**history, **lifecycle.fold([row])}.items()))
            plan = prune(after, now)
            plan.trash.pop(row.checkpoint_key, None)  # never the one being saved
            rows = self._trash_rows(after, plan, now + AUTO_PRUNE_UNDO)
            rows += self._purge_rows(history, now)
        except Exception:
            log.exception("auto-prune of stream %r failed; the save goes on without it, and nothing goes", self.label)
            return [], []
        counts_on_another = rows and plan.counts_on and plan.counts_on.key != row.checkpoint_key
        return rows, self._counts_on(plan) if counts_on_another else []

    def _accept_same(self, found: Checkpoint, draft: Draft) -> None:
        """Return if the stored checkpoint is live and has this very content; else say what the id is."""
        if not found.live:
            raise self.closed(found)
        if found.origin is None or found.origin.content_sha256 != draft.content_sha256:
            raise CheckpointExistsError(
                f"checkpoint {found.id} of stream {self.label!r} is already saved with different content, "
                "which stays as it is: take the next id",
                stream=self.label,
                key=draft.key,
            )

    def _explain_refusal(self, draft: Draft) -> None:
        """Raise why the guards refused a save; a plan that has to be made anew is no reason."""
        self.highest_key()  # refuses another format
        stood_on = sorted({*draft.vias, *([draft.parent] if draft.parent else [])})
        purged = {key for key, one in self.history(stood_on).items() if one.status is Status.PURGED}
        facts = {"stream": self.label, "key": draft.key}
        if draft.parent in purged:
            raise BrokenChainError(
                f"checkpoint {draft.key} stands on {draft.parent}, which was purged meanwhile: write a snapshot",
                **facts,
            )
        if gone := sorted(draft.vias & purged):
            self._saved = None
            raise BasePurgedError(
                f"checkpoint {draft.key} borrows bytes of {gone[0]}, which was purged meanwhile: nothing was saved, "
                "write all bytes anew",
                **facts,
            )

    def abandon(self, key: str, attempt: str, reason: str) -> None:
        """Close an id that was never saved, one commit: what was staged for it is garbage at once.

        Raises:
            CheckpointExistsError: somebody has saved it.
        """
        mark = self.mark(self.history([key]), key, 0, Change.ABANDONED, reason, attempt=attempt)
        if self.insert([mark])[0] is not Outcome.INSERTED:
            self._saved_by_another(key)

    def _saved_by_another(self, key: str) -> None:
        found = self.find(key, manifest=False)
        if found is not None and found.status is not Status.ABANDONED:
            raise CheckpointExistsError(
                f"checkpoint {found.id} of stream {self.label!r} was saved, and is not given up: it is {found.status}",
                stream=self.label,
                key=key,
            )

    # -- changing --------------------------------------------------------------------------------------------------

    def change(self, key: str, decide: Callable[[Checkpoint], dict[str, Any] | None]) -> bool:
        """Add the next revision of a live checkpoint, decided anew as often as somebody else was faster.

        Args:
            key: the checkpoint.
            decide: given the checkpoint, returns the new revision's columns, or None to leave it as it is.

        Returns:
            Whether there was anything to change.
        """
        for _ in range(ROUNDS):
            checkpoint = self.require_live(key, self.find(key))
            columns = decide(checkpoint)
            if columns is None:
                return False
            if self.insert([self._next(checkpoint, **columns)])[0] is Outcome.INSERTED:
                return True
        raise ConflictError(f"checkpoint {keys.checkpoint_id(key)} changed {ROUNDS} times meanwhile; try again")

    def undo_update(self, key: str) -> None:
        """Make the manifest before the last update the current one again, as the next revision.

        Raises:
            InvalidInputError: it was never updated.
            ConflictError: it was updated meanwhile; nobody has asked for that update to be taken back.
        """
        undone: int | None = None

        def decide(checkpoint: Checkpoint) -> dict[str, Any]:
            nonlocal undone
            before = checkpoint.previous
            if before is None or checkpoint.content is None:
                raise InvalidInputError(f"checkpoint {checkpoint.id} of stream {self.label!r} was never updated")
            undone = checkpoint.content.revision if undone is None else undone
            if checkpoint.content.revision != undone:
                raise ConflictError(
                    f"checkpoint {checkpoint.id} of stream {self.label!r} was updated meanwhile, and nothing was taken "
                    "back: look at it, and try again if that update is the one to undo"
                )
            told = {name: value for name, value in before.row().items() if name in _TOLD_BY_MANIFEST}
            return {"change": Change.UPDATED, "reason": f"undo of revision {checkpoint.content.revision}", **told}

        self.change(key, decide)

    def pin(self, key: str, reason: str, until: datetime | None = None, name: str | None = None) -> None:
        """Protect a checkpoint from being trashed; a pin of the same name, by default its reason, is replaced."""
        keys.text(reason, "reason")
        name = keys.text(reason if name is None else name, "name")
        if not (reason.strip() and name.strip()):
            raise InvalidInputError("a pin needs a reason, and a name that is not empty: say why this one must stay")
        if until is not None:
            until = keys.utc(until, "until")
            if until <= self.clock():
                raise InvalidInputError(f"a pin must end in the future, not at {keys.time_text(until)}")
        self.change(key, lambda _: {**_pinning(name, reason), "until": until})

    def unpin(self, key: str, name: str | None = None, *, missing_ok: bool = False) -> bool:
        """Take a pin back, by default the only one, and say whether there was one.

        Args:
            key: the checkpoint.
            name: the pin's.
            missing_ok: leave the others alone if there is none of that name.

        Raises:
            InvalidInputError: it has several, or none of that name.
        """

        def decide(one: Checkpoint) -> dict[str, Any] | None:
            if not one.pins or (missing_ok and name not in (None, *one.pins)):
                return None
            there = [name] if name in one.pins else list(one.held_by(self.clock()) or one.pins)
            if len(there) > 1 or name not in (None, *there):
                wrong = f"has no pin {name!r}" if name is not None else f"has {len(there)} pins"
                raise InvalidInputError(f"checkpoint {one.id} {wrong}: name one of {', '.join(map(repr, one.pins))}")
            return {"change": Change.UNPINNED, "details": json.dumps({"pin": there[0]})}

        return self.change(key, decide)

    def add_fold(self, history: History, key: str, attempt: str, folds: Sequence[Folded], parent: str | None) -> bool:
        """Make folded snapshots, staged and verified, part of a checkpoint, unless it has changed since it was read.

        Whoever is told that it has must start again with a new attempt: this one may have been abandoned.

        Args:
            history: the checkpoint and those that its chains run along, as they were read.
            key: the checkpoint.
            attempt: under which the snapshots are staged.
            folds: what they are.
            parent: what its deltas stand on from now on, None if all are covered.
        """
        facts = [{name: value for name, value in asdict(one).items() if name != "attempt"} for one in folds]
        row = self._next(
            history[key],
            change=Change.FOLDED,
            reason="1 chain became a snapshot" if len(folds) == 1 else f"{len(folds)} chains became one snapshot each",
            attempt=attempt,
            parent=parent,
            artifact_count=len(folds),
            artifact_bytes=sum(one.size_bytes for one in folds),
            shared_bytes=0,
            details=json.dumps({"folds": facts}),
        )
        newest = max(one.head.at for one in history.values())
        row = replace(row, at=max(row.at, keys.after(newest)))
        return self.insert([row])[0] is Outcome.INSERTED

    # -- going -----------------------------------------------------------------------------------------------------

    def trash(self, planner: Planner, undo_for: timedelta = PRUNE_UNDO) -> Plan:
        """Let checkpoints go as planned, undoable for a while, while the one the plan counts on is unchanged.

        Returns:
            The plan, with everything that went.
        """
        check_span(undo_for, "undo_for")
        gone: dict[str, str] = {}
        for _ in range(ROUNDS):
            now = self.clock()
            history = self.history()
            plan = planner(history, now)
            rows = self._trash_rows(history, plan, now + undo_for)
            outcomes = self.insert(rows, self._counts_on(plan)) if rows else []
            gone |= {
                row.checkpoint_key: plan.trash[row.checkpoint_key]
                for row, outcome in zip(rows, outcomes, strict=True)
                if outcome is Outcome.INSERTED
            }
            if all(outcome is Outcome.INSERTED for outcome in outcomes):
                return Plan(gone, plan.keep, plan.counts_on)
        raise ConflictError(f"stream {self.label!r} changed {ROUNDS} times while it was pruned; try again")

    def delete(self, doomed: Sequence[str], reason: str, undo_for: timedelta = PRUNE_UNDO) -> Plan:
        """Let these checkpoints go, all or none; the plan tells of those that were not in the trash yet.

        Raises:
            CheckpointNotFoundError: there never was one of them.
            CheckpointInUseError: one is pinned, or a live checkpoint's deltas stand on it.
        """
        keys.text(reason, "reason")

        def planner(history: History, now: datetime) -> Plan:
            for key in doomed:
                if key not in history and self.find(key, manifest=False) is None:
                    self.require_live(key, None)
            return retention.drop(history, doomed, reason, now)

        return self.trash(planner, undo_for)

    def restore(self, key: str) -> None:
        """Take a checkpoint out of the trash."""
        for _ in range(ROUNDS):
            found = self.find(key, manifest=False)
            if found is None or found.live:
                self.require_live(key, found)
                return
            if found.status is not Status.TRASHED:
                raise self.closed(found)
            if self.insert([self._next(found, change=Change.RESTORED)])[0] is Outcome.INSERTED:
                return
        raise ConflictError(f"checkpoint {keys.checkpoint_id(key)} changed {ROUNDS} times meanwhile; try again")

    def purge(self) -> list[str]:
        """Mark trashed checkpoints whose undo window is over as gone for good, and return their keys."""
        rows = self._purge_rows(self.history(), self.clock())
        outcomes = self.insert(rows) if rows else []
        return [row.checkpoint_key for row, outcome in zip(rows, outcomes, strict=True) if outcome is Outcome.INSERTED]

    # -- rows ------------------------------------------------------------------------------------------------------

    def insert(self, rows: Sequence[Revision], unless: Sequence[Unless] = ()) -> list[Outcome]:
        """Insert revisions through the fence."""
        return self.engine.insert_unless(arrow(Table.CHECKPOINTS, (row.row() for row in rows)), unless)

    def _next(self, checkpoint: Checkpoint, *, change: Change, **columns: Any) -> Revision:
        """Return the checkpoint's next revision."""
        return Revision(
            stream=self.stream,
            checkpoint_key=checkpoint.key,
            revision=checkpoint.head.revision + 1,
            change=change,
            format=checkpoint.head.format,
            insert_id=keys.new_uuid7(),
            at=max(self.clock(), keys.after(checkpoint.head.at)),
            **{"actor": self.actor, **columns},
        )

    def mark(self, history: History, key: str, revision: int, change: Change, reason: str, *, attempt: str) -> Revision:
        """Return a revision of a key that may have no row yet; then the stream's format is not known either."""
        at, insert_id, format = self.clock(), keys.new_uuid7(), ""
        if key in history:
            head = history[key].head
            at, format = max(at, keys.after(head.at)), head.format
        return Revision(
            stream=self.stream, checkpoint_key=key, revision=revision, change=change, format=format,
            insert_id=insert_id, at=at, actor=self.actor, reason=reason, attempt=attempt,
        )  # fmt: skip

    def _trash_rows(self, history: History, plan: Plan, until: datetime) -> list[Revision]:
        return [
            self._next(history[key], change=Change.TRASHED, reason=reason, until=until)
            for key, reason in plan.trash.items()
        ]

    def _purge_rows(self, history: History, now: datetime) -> list[Revision]:
        return [
            self._next(history[key], change=Change.PURGED, reason=reason, details=marks.details(history[key]))
            for key, reason in retention.expired(history, now).items()
        ]

    def _counts_on(self, plan: Plan) -> list[Unless]:
        one = plan.counts_on
        return [Unless(key=one.key, revision_above=one.head.revision)] if one else []
