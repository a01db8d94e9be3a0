"""How checkpoints come, change and go: the protocol's steps for one stream, over the port.

The order of writes is the heart. Bytes first, row last; readers and sweepers the other way round. Every fact that
decides whether a checkpoint is seen or needed is a revision in `checkpoints`, inserted only if that revision is new.
"""

import hashlib
import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from catalog import artifacts, chains, keys, lifecycle, retention
from catalog.artifacts import ChunkFault, NoSuchArtifact, Source, Stored
from catalog.errors import (
    AbandonedError,
    ArtifactNotFoundError,
    BrokenChainError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    ConflictError,
    CorruptError,
    InvalidInputError,
    PurgedError,
    TrashedError,
)
from catalog.lifecycle import Change, Checkpoint, History, Revision, Status
from catalog.manifest import sha256_text
from catalog.retention import Plan, Planner
from catalog.tables.port import Engine, Equals, In, Outcome, Table, Unless
from catalog.tables.schema import CHECKPOINT_FACTS, arrow

log = logging.getLogger(__name__)
T = TypeVar("T")

ROUNDS = 8
"""How often a decision is made anew because another writer changed what it stood on."""
AUTO_PRUNE_UNDO = timedelta(hours=1)
PRUNE_UNDO = timedelta(days=7)
ORPHAN_GRACE = timedelta(hours=1)
LONGEST_SPAN = timedelta(days=36_500)
_SWEEP_SLICE = 200


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
    vias: frozenset[str] = frozenset()
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further columns of `checkpoints`."""

    @property
    def content_sha256(self) -> str:
        """The hash over the manifest and its artifacts: equal means the same content."""
        lines = [self.manifest, *(f"{path}\0{self.artifacts[path].sha256}" for path in sorted(self.artifacts))]
        return sha256_text("\n".join(lines))


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What a sweep removed."""

    orphans: int
    """Attempts that no checkpoint ever named."""
    purged: int
    """Attempts of checkpoints that were purged."""
    chunks: int


class Stream:
    """One stream's rows, and the steps that may be taken on them."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        format: keys.Format | None = None,
        *,
        clock: Callable[[], datetime],
        actor: str,
    ) -> None:
        """Open a stream.

        Args:
            engine: the tables.
            name: the stream's name.
            format: what the caller expects it to hold; anything else is refused. None takes any.
            clock: the time, with time zone.
            actor: who is written down beside every change.
        """
        self.engine = engine
        self.stream = keys.stream_key(name)
        self.label = name
        self.format = format
        self.clock = clock
        self.actor = actor
        self._has_format = False

    # -- reading ---------------------------------------------------------------------------------------------------

    def history(self, only: Sequence[str] | None = None, *, manifests: bool = False) -> dict[str, Checkpoint]:
        """Return the stream's checkpoints, or those of some keys, by key, oldest first."""
        where = [Equals("stream", self.stream)] + ([In("checkpoint_key", tuple(only))] if only is not None else [])
        columns = (*CHECKPOINT_FACTS, "manifest") if manifests else CHECKPOINT_FACTS
        rows = self.engine.scan(Table.CHECKPOINTS, where, columns).to_pylist()
        self._refuse_other_format({row["format"] for row in rows})
        return lifecycle.fold(Revision(**row) for row in rows)

    def find(self, key: str, *, manifest: bool = True) -> Checkpoint | None:
        """Return one checkpoint, whatever became of it."""
        return self.history([key], manifests=manifest).get(key)

    def latest(self) -> Checkpoint | None:
        """Return the committed checkpoint with the highest key, with its manifest."""
        for _ in range(ROUNDS):
            newest = lifecycle.latest(self.history())
            found = self.find(newest.key) if newest else None
            if newest is None or (found and found.status is Status.COMMITTED):
                return found
        raise ConflictError(f"the latest checkpoint of stream {self.label!r} went {ROUNDS} times meanwhile; try again")

    def highest_key(self) -> str | None:
        """Return the highest key of any row, marks included: ids are never used again."""
        found = self.engine.scan(Table.CHECKPOINTS, [Equals("stream", self.stream)], ["checkpoint_key", "format"])
        self._refuse_other_format(set(found.column("format").to_pylist()))
        return max(found.column("checkpoint_key").to_pylist(), default=None)

    def require_live(self, key: str, checkpoint: Checkpoint | None) -> Checkpoint:
        """Return the checkpoint if it is live, else say what became of it."""
        if checkpoint is None:
            raise CheckpointNotFoundError(
                f"stream {self.label!r} has no checkpoint {keys.checkpoint_id(key)}", stream=self.label, key=key
            )
        if not checkpoint.live:
            raise self._closed(checkpoint)
        return checkpoint

    def read(self, key: str, path: str, *, own_attempt: str | None = None, from_trash: bool = False) -> bytes:
        """Return an artifact's bytes, verified; see `stream_chunks`."""
        return self._unmoved(
            lambda: b"".join(self.stream_chunks(key, path, own_attempt=own_attempt, from_trash=from_trash))
        )

    def hash_of(self, key: str, path: str, prefix: bytes = b"") -> str:
        """Return the SHA-256 of a prefix and an artifact's bytes; see `stream_chunks`."""

        def read() -> str:
            whole = hashlib.sha256(prefix)
            for chunk in self.stream_chunks(key, path):
                whole.update(chunk)
            return whole.hexdigest()

        return self._unmoved(read)

    def _unmoved(self, read: Callable[[], T]) -> T:
        """Read again as often as the checkpoint changed meanwhile."""
        retrying = Retrying(stop=stop_after_attempt(ROUNDS), retry=retry_if_exception_type(_MovedError), reraise=True)
        return retrying(read)

    def stream_chunks(
        self, key: str, path: str, *, own_attempt: str | None = None, from_trash: bool = False
    ) -> Iterator[memoryview]:
        """Yield an artifact's verified chunks: of the manifest's attempt, else the own one, else the newest.

        Args:
            key: the checkpoint.
            path: the artifact.
            own_attempt: what the caller has staged itself.
            from_trash: also of a checkpoint in the trash, on which a live one may stand.

        Raises:
            ArtifactNotFoundError: there is no such artifact.
            PurgedError: the checkpoint was purged, perhaps while it was read.
            ConflictError: the checkpoint changed while it was read; start again.
            CorruptError: bytes are missing or wrong, and nothing has changed that would explain it.
        """
        seen = self.find(key, manifest=False)
        if seen is not None and not (from_trash and seen.unpurged):
            self.require_live(key, seen)
        attempt = seen.origin.attempt if seen and seen.origin else self._staged_attempt(key, path, own_attempt)
        try:
            if attempt is None:
                raise NoSuchArtifact(f"artifact {path!r} is missing", path=path)
            yield from artifacts.read(self.engine, self.stream, key, attempt, path)
        except ChunkFault as fault:
            raise self._explain_fault(key, seen, fault) from fault

    def _staged_attempt(self, key: str, path: str, own_attempt: str | None) -> str | None:
        rows = artifacts.facts(self.engine, self.stream, [Equals("checkpoint_key", key), Equals("path", path)])
        if any(row["attempt"] == own_attempt for row in rows):
            return own_attempt
        newest = max(rows, key=lambda row: (row["staged_at"], row["attempt"]), default=None)
        return newest["attempt"] if newest else None

    def _explain_fault(self, key: str, seen: Checkpoint | None, fault: ChunkFault) -> Exception:
        """Ask again before anything is called corrupt: a purge or a fold may have moved the bytes."""
        now = self.find(key, manifest=False)
        if now is not None and not now.unpurged:
            return self._closed(now)
        if (now and now.head.revision) != (seen and seen.head.revision):
            return _MovedError(f"checkpoint {keys.checkpoint_id(key)} changed while it was read ({fault}); try again")
        expected = now is not None and now.origin is not None and now.origin.artifact_count
        where = f"stream {self.label!r}, checkpoint {keys.checkpoint_id(key)}: "
        if isinstance(fault, NoSuchArtifact) and not expected:
            return ArtifactNotFoundError(where + str(fault), stream=self.label, key=key)
        return CorruptError(where + str(fault), stream=self.label, key=key, missing=isinstance(fault, NoSuchArtifact))

    # -- staging ---------------------------------------------------------------------------------------------------

    def check_format(self) -> None:
        """Refuse to stage for a stream that holds another format; asked of the table until the stream has one."""
        if not self._has_format:
            self.highest_key()

    def check_open(self, key: str) -> None:
        """Refuse to stage for an id that already has a row."""
        found = self.find(key, manifest=False)
        if found is None:
            return
        if found.live:
            raise CheckpointExistsError(
                f"checkpoint {found.id} of stream {self.label!r} is saved and cannot change: take the next id",
                stream=self.label,
                key=key,
            )
        raise self._closed(found)

    def stage(
        self, key: str, attempt: str, path: str, kind: str, source: Source, *, also: Any = None, **columns: Any
    ) -> Stored:
        """Write an artifact under an attempt: durable, and invisible until a checkpoint names the attempt."""
        shared = {
            "stream": self.stream,
            "checkpoint_key": key,
            "attempt": attempt,
            "path": path,
            "kind": kind,
            "scope": "exclusive",
            "staged_at": self.clock(),
            **columns,
        }
        return artifacts.write(self.engine, shared, source, also=also)

    def adopt(
        self,
        key: str,
        attempt: str,
        wanted: Mapping[str, str | None],
        check: Callable[[dict[str, Stored]], None] = lambda _: None,
    ) -> tuple[dict[str, Stored], frozenset[str]]:
        """Make artifacts that another writer staged for this id part of an attempt, without moving their bytes.

        Args:
            key: the checkpoint.
            attempt: the attempt that adopts.
            wanted: the SHA-256 by path, None where any will do: then what a saved checkpoint names, else the newest.
            check: refuses what was found, before anything is written.

        Returns:
            What was found, and the checkpoints it was borrowed through.
        """
        rows = artifacts.facts(self.engine, self.stream, [Equals("checkpoint_key", key), In("path", tuple(wanted))])
        saved = self.find(key, manifest=False)
        named = saved.origin.attempt if saved and saved.origin else None
        by_attempt = defaultdict(list)
        for row in rows:
            by_attempt[row["path"], row["attempt"]].append(row)
        chosen: dict[str, list[dict[str, Any]]] = {}
        for path, under in sorted(by_attempt, key=lambda one: (one[1] == named, by_attempt[one][0]["staged_at"], one)):
            chunks = by_attempt[path, under]
            stored = artifacts.totals(chunks).get(path)
            if stored and wanted[path] in (None, stored.sha256):
                chosen[path] = chunks
        linked = [row for chunks in chosen.values() for row in artifacts.links(chunks, attempt)]
        check(artifacts.totals(linked))
        if linked:
            self.engine.append(Table.ARTIFACTS, arrow(Table.ARTIFACTS, linked))
        return artifacts.totals(linked), frozenset(row["via"] for row in linked if row["via"])

    # -- coming ----------------------------------------------------------------------------------------------------

    def save(self, draft: Draft, prune: Planner | None = None) -> None:
        """Make a checkpoint exist: one fenced commit, which also carries what auto-prune lets go.

        Raises:
            CheckpointExistsError, TrashedError, PurgedError, AbandonedError: the id is taken, by other content.
            InvalidInputError: the stream holds another format.
            BrokenChainError: the parent of its deltas is not there any more.
        """
        row = self._draft_row(draft)
        guards = [Unless(format_other_than=draft.format)]
        guards += [
            Unless(key=key, change=Change.PURGED) for key in sorted({draft.parent, *draft.vias} - {None}, key=str)
        ]
        for rounds_left in reversed(range(ROUNDS)):
            planner = prune if rounds_left else None  # the save is worth more than its auto-prune
            history = self.history() if draft.parent or planner else {}
            row = self._standing_on(row, history, draft)
            others, counted = self._auto_prune(row, history, planner) if planner else ([], [])
            outcome, *_rest = self._insert([row, *others], guards + counted)
            if outcome is Outcome.INSERTED:
                return
            found = self.find(draft.key)
            if found is not None:
                self._accept_same(found, draft)
                return
            self._explain_refusal(draft)
        raise ConflictError(
            f"stream {self.label!r} changed {ROUNDS} times while checkpoint {draft.key} was saved; try again"
        )

    def _draft_row(self, draft: Draft) -> Revision:
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
            **draft.facts,
        )

    def _standing_on(self, row: Revision, history: History, draft: Draft) -> Revision:
        """Return the row, later than its parent's rows, after making sure that the parent is there."""
        if draft.parent is None:
            return row
        parent = history.get(draft.parent)
        if parent is None or not parent.live:
            why = f"is {parent.status}" if parent else "does not exist"
            raise BrokenChainError(
                f"checkpoint {draft.key} has deltas but its parent {draft.parent} {why}: write a snapshot instead",
                stream=self.label,
                key=draft.key,
            )
        return replace(row, at=max(row.at, parent.head.at + timedelta(microseconds=1)))

    def _auto_prune(self, row: Revision, history: History, prune: Planner) -> tuple[list[Revision], list[Unless]]:
        """Return the rows and guards by which this save lets old checkpoints go; a fault here never fails the save."""
        try:
            now = self.clock()
            after = dict(sorted({**history, **lifecycle.fold([row])}.items()))
            plan = prune(after, now)
            plan.trash.pop(row.checkpoint_key, None)  # never the one being saved
            rows = self._trash_rows(after, plan, now + AUTO_PRUNE_UNDO)
            rows += self._purge_rows(history, now)
        except Exception:
            log.exception("auto-prune of stream %r failed; the save goes on without it", self.label)
            return [], []
        if not rows:
            return [], []
        # The plan counts on this save: if the id is taken, nothing goes.
        guards = [Unless(key=row.checkpoint_key, revision_above=-1)]
        if plan.counts_on and plan.counts_on.key != row.checkpoint_key:
            guards += self._counts_on(plan)
        return rows, guards

    def _accept_same(self, found: Checkpoint, draft: Draft) -> None:
        """Return if the stored checkpoint is live and has this very content; else say what the id is."""
        if not found.live:
            raise self._closed(found)
        if found.origin is None or found.origin.content_sha256 != draft.content_sha256:
            raise CheckpointExistsError(
                f"checkpoint {found.id} of stream {self.label!r} is already saved with different content, "
                "which stays as it is: take the next id",
                stream=self.label,
                key=draft.key,
            )

    def _explain_refusal(self, draft: Draft) -> None:
        """Raise why the guards refused a save; a plan that has to be made anew is no reason."""
        history = self.history()
        for key in {draft.parent, *draft.vias}:
            if key in history and history[key].status is Status.PURGED:
                raise BrokenChainError(
                    f"checkpoint {draft.key} stands on {key}, which was purged meanwhile: write a snapshot instead",
                    stream=self.label,
                    key=draft.key,
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
            if self._insert([self._next(checkpoint, **columns)])[0] is Outcome.INSERTED:
                return True
        raise ConflictError(f"checkpoint {keys.checkpoint_id(key)} changed {ROUNDS} times meanwhile; try again")

    def promote(self, key: str) -> bool:
        """Commit a prepared checkpoint; one that is committed already is left as it is."""
        return self.change(key, lambda one: None if one.status is Status.COMMITTED else {"change": Change.PROMOTED})

    def pin(self, key: str, reason: str, until: datetime | None = None) -> None:
        """Protect a checkpoint from being trashed."""
        keys.text(reason, "reason")
        if until is not None and (not isinstance(until, datetime) or until.utcoffset() is None):
            raise InvalidInputError(f"until must be a datetime with a time zone, not {until!r}")
        self.change(key, lambda _: {"change": Change.PINNED, "reason": reason, "until": until})

    def unpin(self, key: str) -> None:
        """Take a pin back."""
        self.change(key, lambda one: {"change": Change.UNPINNED} if one.pin else None)

    # -- going -----------------------------------------------------------------------------------------------------

    def trash(self, planner: Planner, undo_for: timedelta = PRUNE_UNDO) -> Plan:
        """Let checkpoints go as planned, undoable for a while, while the one the plan counts on is unchanged.

        Returns:
            The plan, with everything that went.
        """
        _check_span(undo_for, "undo_for")
        gone: dict[str, str] = {}
        for _ in range(ROUNDS):
            now = self.clock()
            history = self.history()
            plan = planner(history, now)
            rows = self._trash_rows(history, plan, now + undo_for)
            outcomes = self._insert(rows, self._counts_on(plan)) if rows else []
            gone |= {
                row.checkpoint_key: plan.trash[row.checkpoint_key]
                for row, outcome in zip(rows, outcomes, strict=True)
                if outcome is Outcome.INSERTED
            }
            if all(outcome is Outcome.INSERTED for outcome in outcomes):
                return Plan(gone, plan.keep, plan.counts_on)
        raise ConflictError(f"stream {self.label!r} changed {ROUNDS} times while it was pruned; try again")

    def restore(self, key: str) -> None:
        """Take a checkpoint out of the trash."""
        for _ in range(ROUNDS):
            found = self.find(key, manifest=False)
            if found is None or found.live:
                self.require_live(key, found)
                return
            if found.status is not Status.TRASHED:
                raise self._closed(found)
            if self._insert([self._next(found, change=Change.RESTORED)])[0] is Outcome.INSERTED:
                return
        raise ConflictError(f"checkpoint {keys.checkpoint_id(key)} changed {ROUNDS} times meanwhile; try again")

    def purge(self) -> list[str]:
        """Mark trashed checkpoints whose undo window is over as gone for good, and return their keys."""
        rows = self._purge_rows(self.history(), self.clock())
        outcomes = self._insert(rows) if rows else []
        return [row.checkpoint_key for row, outcome in zip(rows, outcomes, strict=True) if outcome is Outcome.INSERTED]

    def clean_up(self, grace: timedelta = ORPHAN_GRACE) -> int:
        """Purge what is past its undo window, sweep, and return how many orphaned attempts were removed."""
        _check_span(grace, "grace")
        self.purge()
        return self.sweep(grace).orphans

    def sweep(self, grace: timedelta = ORPHAN_GRACE) -> SweepReport:
        """Delete the bytes that nothing needs any more and nothing can ever need again.

        This is where data could be lost. What keeps it: `checkpoints` is read before `artifacts`; what any unpurged
        checkpoint needs stays; an attempt that no row names is deleted only after the next revision of its key says
        abandoned, so that a save in progress finds its id closed instead of its bytes gone; and marks are durable
        before bytes go.

        Args:
            grace: attempts that began less than this ago are left alone.
        """
        noted = self.clock()
        history = self.history()
        rows = artifacts.facts(self.engine, self.stream, [])
        needed = self._needed(history, rows)
        rows.sort(key=lambda row: row["staged_at"])
        newest = {(row["checkpoint_key"], row["attempt"]): row["staged_at"] for row in rows}
        dead: set[tuple[str, str]] = set()
        orphans: dict[str, list[str]] = defaultdict(list)
        for key, attempt in sorted(newest.keys() - needed):
            checkpoint = history.get(key)
            if checkpoint and (not checkpoint.unpurged or attempt in checkpoint.abandoned_attempts):
                dead.add((key, attempt))
            elif newest[key, attempt] + grace <= noted:
                orphans[key].append(attempt)
        dead |= self._abandon(history, orphans)
        self.engine.settle(Table.CHECKPOINTS)
        chunks = self._delete_attempts(dead)
        self._delete_purged_rows(history)
        purged = sum(1 for key, _ in dead if key in history and history[key].status is Status.PURGED)
        return SweepReport(len(dead) - purged, purged, chunks)

    def _needed(self, history: History, rows: Iterable[Mapping[str, Any]]) -> set[tuple[str, str]]:
        """Return the attempts that unpurged checkpoints need: their own, their parents', and those that hold bytes."""
        unpurged = {key for key, one in history.items() if one.unpurged}
        unpurged |= chains.needed_by(history, unpurged).keys()
        needed = set()
        for key in unpurged:
            origin = history[key].origin if key in history else None
            if origin is None or origin.attempt is None:
                raise CorruptError(
                    f"stream {self.label!r}: checkpoint {keys.checkpoint_id(key)} is unreadable, so nothing is deleted",
                    stream=self.label,
                    key=key,
                )
            needed.add((key, origin.attempt))
        held = {
            (row["held_key"], row["held_attempt"])
            for row in rows
            if row["held_attempt"] and (row["checkpoint_key"], row["attempt"]) in needed
        }
        return needed | held

    def _abandon(self, history: History, orphans: Mapping[str, list[str]]) -> set[tuple[str, str]]:
        """Close attempts that no row names; one that somebody was faster about is left for the next run."""
        heads = {key: history[key].head.revision if key in history else -1 for key in orphans}
        waiting = {key: list(attempts) for key, attempts in orphans.items()}
        closed = set()
        while waiting:
            # One attempt of a key at a time: the next may go only on top of our own mark, never of a save.
            batch = {key: attempts.pop() for key, attempts in waiting.items()}
            rows = [
                self._mark(history, key, heads[key] + 1, Change.ABANDONED, "orphaned", attempt=attempt)
                for key, attempt in batch.items()
            ]
            for (key, attempt), outcome in zip(batch.items(), self._insert(rows), strict=True):
                if outcome is Outcome.INSERTED:
                    closed.add((key, attempt))
                    heads[key] += 1
                if outcome is not Outcome.INSERTED or not waiting[key]:
                    del waiting[key]
        return closed

    def _delete_attempts(self, dead: set[tuple[str, str]]) -> int:
        # Attempts are unique across keys; short slices, because a delete loses to every append of its stream.
        attempts = sorted({attempt for _, attempt in dead})
        slices = [tuple(attempts[at : at + _SWEEP_SLICE]) for at in range(0, len(attempts), _SWEEP_SLICE)]
        stream = Equals("stream", self.stream)
        return sum(self.engine.delete(Table.ARTIFACTS, [stream, In("attempt", one)]) for one in slices)

    def _delete_purged_rows(self, history: History) -> None:
        """Delete the rows of purged checkpoints except the mark, which stays for ever."""
        needed = chains.needed_by(history, [key for key, one in history.items() if one.unpurged])
        gone = [key for key, one in history.items() if one.status is Status.PURGED and one.origin and key not in needed]
        if gone:
            others = tuple(change for change in Change if change is not Change.PURGED)
            of_keys = In("checkpoint_key", tuple(gone))
            self.engine.delete(Table.CHECKPOINTS, [Equals("stream", self.stream), of_keys, In("change", others)])

    # -- rows ------------------------------------------------------------------------------------------------------

    def _insert(self, rows: Sequence[Revision], unless: Sequence[Unless] = ()) -> list[Outcome]:
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
            at=max(self.clock(), checkpoint.head.at + timedelta(microseconds=1)),
            **{"actor": self.actor, **columns},
        )

    def _mark(
        self, history: History, key: str, revision: int, change: Change, reason: str, *, attempt: str
    ) -> Revision:
        """Return a revision of a key that may have no row yet; then the stream's format is not known either."""
        format = history[key].head.format if key in history else ""
        at, insert_id = self.clock(), keys.new_uuid7()
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
        rows = []
        for key, reason in retention.expired(history, now).items():
            one = history[key]
            kept = {
                "saved_at": one.origin.at.isoformat() if one.origin else None,
                "trashed_at": one.trash.at.isoformat() if one.trash else None,
            }
            rows.append(self._next(one, change=Change.PURGED, reason=reason, details=json.dumps(kept)))
        return rows

    def _counts_on(self, plan: Plan) -> list[Unless]:
        one = plan.counts_on
        return [Unless(key=one.key, revision_above=one.head.revision)] if one else []

    def _closed(self, checkpoint: Checkpoint) -> Exception:
        """Return the error that says why an id is not live."""
        name = f"checkpoint {checkpoint.id} of stream {self.label!r}"
        facts = {"stream": self.label, "key": checkpoint.key, "at": checkpoint.head.at}
        if checkpoint.status is Status.TRASHED:
            until = checkpoint.undo_until
            return TrashedError(f"{name} is in the trash until {until}: restore it, or take the next id", **facts)
        if checkpoint.status is Status.PURGED:
            return PurgedError(f"{name} was purged at {checkpoint.head.at}: take the next id", **facts)
        return AbandonedError(
            f"{name} was given up at {checkpoint.head.at} before it was saved: take the next id", **facts
        )

    def _refuse_other_format(self, there: set[str]) -> None:
        """Refuse a stream that holds what the caller does not expect; marks of unsaved ids have no format."""
        others = there - {self.format, ""}
        if self.format and others:
            raise InvalidInputError(
                f"stream {self.label!r} holds {min(others)} checkpoints, not {self.format} ones: use another stream",
                stream=self.label,
            )
        self._has_format |= self.format in there


def _check_span(span: object, what: str) -> None:
    if not isinstance(span, timedelta) or not timedelta(0) <= span <= LONGEST_SPAN:
        raise InvalidInputError(f"{what} must be a timedelta from 0 to {LONGEST_SPAN.days} days, not {span!r}")


class _MovedError(ConflictError):
    """The checkpoint changed while it was read."""
