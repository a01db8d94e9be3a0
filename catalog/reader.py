"""What a stream holds, read in the protocol's order: `checkpoints` first, then the bytes, and twice before a fault."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from catalog import artifacts, chains, keys, lifecycle
from catalog.artifacts import ChunkFault, NoSuchArtifact
from catalog.errors import (
    AbandonedError,
    ArtifactNotFoundError,
    BrokenChainError,
    CheckpointNotFoundError,
    ClosedIdError,
    ConflictError,
    CorruptError,
    InvalidInputError,
    PurgedError,
    TrashedError,
)
from catalog.lifecycle import Change, Checkpoint, History, Revision, Status
from catalog.manifest import parse_any
from catalog.moment import MomentEngine
from catalog.tables.port import Between, Condition, Engine, Equals, In, Table
from catalog.tables.schema import CHECKPOINT_FACTS
from catalog.threads import start
from catalog.validation import written_paths

T = TypeVar("T")

ROUNDS = 8
"""How often a decision is made anew because another writer changed what it stood on."""
_HEADLINES = ("checkpoint_key", "revision", "change", "format")
_NO_TIME = datetime.min.replace(tzinfo=UTC)
_LIFE = In("change", tuple(change for change in Change if change not in (Change.PURGED, Change.ABANDONED)))
"""What an id has besides marks, unless it was purged and swept, or given up before it was saved."""
_AFTER_ALL_KEYS = "g"
"""Keys are digits, and UUIDs in lower-case hex."""


class StreamReader:
    """One stream's rows."""

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
        self._highest: str | None = None
        self._attempts: dict[str, str] = {}
        """By key, and by path for what was folded."""

    def __str__(self) -> str:
        return f"{self.label!r} at {self.engine.place}"

    def history(
        self, only: Sequence[str] | None = None, *, manifests: bool = False, marks: bool = False
    ) -> dict[str, Checkpoint]:
        """Return the stream's checkpoints, or those of some keys whatever became of them, by key, oldest first.

        Marks stay for ever: what a look at the whole stream costs must not depend on how many there are.

        Args:
            only: the keys.
            manifests: take the manifests along.
            marks: of a whole stream, also ids of which only a mark is left: that they were purged, or given up.
        """
        columns = (*CHECKPOINT_FACTS, "manifest") if manifests else CHECKPOINT_FACTS
        return self._history(self.engine, only, columns, marks=marks or only is not None)

    def _history(
        self, engine: Engine, only: Sequence[str] | None, columns: Sequence[str], *, marks: bool = True
    ) -> dict[str, Checkpoint]:
        history = lifecycle.fold(self._revisions(engine, only, columns, marks=marks))
        if isinstance(engine, MomentEngine) and any(one.parent for one in history.values()):
            # Bytes are read as they are now, and what a chain stood on then may have been folded away since.
            rows = _scan(engine.current, self.stream, only, CHECKPOINT_FACTS, Equals("change", Change.FOLDED))
            history = lifecycle.with_folds(history, _revisions(rows))
        self._attempts = {key: one.origin.attempt for key, one in history.items() if one.origin and one.origin.attempt}
        with suppress(CorruptError):  # is told to whoever reads that checkpoint
            self._attempts |= {fold.path: fold.attempt for one in history.values() for fold in one.folded.values()}
        return history

    def revisions(self, only: Sequence[str] | None = None) -> list[Revision]:
        """Return all rows of the stream, or of some keys, with manifests."""
        return self._revisions(self.engine, only, (*CHECKPOINT_FACTS, "manifest"))

    def _revisions(
        self, engine: Engine, only: Sequence[str] | None, columns: Sequence[str], *, marks: bool = True
    ) -> list[Revision]:
        rows = _scan(engine, self.stream, only, columns, marks=marks)
        self._refuse_other_format(set(rows.column("format").unique().to_pylist()))
        return _revisions(rows)

    def find(self, key: str, *, manifest: bool = True) -> Checkpoint | None:
        """Return one checkpoint, whatever became of it.

        Raises:
            PurgedError: the manifest is wanted, and only a mark still tells that there was such a checkpoint then.
        """
        found = self.history([key], manifests=manifest).get(key)
        if manifest and found and found.live and found.content and found.content.manifest is None:
            self.refuse_purged_since(key)
        return found

    def latest(self) -> Checkpoint | None:
        """Return the committed checkpoint with the highest key, with its manifest."""
        for _ in range(ROUNDS):
            newest = self._newest_committed()
            found = self.find(newest) if newest else None
            if newest is None or (found and found.status is Status.COMMITTED):
                return found
        raise ConflictError(f"the latest checkpoint of stream {self.label!r} went {ROUNDS} times meanwhile; try again")

    def _newest_committed(self) -> str | None:
        """Return the key of the latest, from columns that file statistics tell without a file being opened."""
        rows = _scan(self.engine, self.stream, None, _HEADLINES, marks=False)
        self._refuse_other_format(set(rows.column("format").unique().to_pylist()))
        history = lifecycle.fold(
            Revision(stream=self.stream, insert_id="", at=_NO_TIME, **row) for row in rows.to_pylist()
        )
        newest = lifecycle.latest(history)
        return newest.key if newest else None

    def highest_id(self) -> int:
        """Return the highest integer id of any row, 0 if there is none: ids are never used again.

        What somebody staged under a UUID before the stream's first save fixed its format may be marked here too.
        """
        highest = keys.checkpoint_id(self.highest_key() or keys.integer_key(0, minimum=0))
        if isinstance(highest, int):
            return highest
        found = self.engine.scan(Table.CHECKPOINTS, [Equals("stream", self.stream)], ["checkpoint_key"])
        ids = map(keys.checkpoint_id, found.column("checkpoint_key").unique().to_pylist())
        return max((one for one in ids if isinstance(one, int)), default=0)

    def highest_key(self) -> str | None:
        """Return the highest key of any row: ids are never used again.

        Marks below a key that has more, or that was the highest once, need not be looked through.
        """
        found = self._highest_from(self._highest) if self._highest else None
        if found is None:  # nothing is known yet, or the catalog was put back from a backup
            alive = _scan(self.engine.lookup(), self.stream, None, _HEADLINES, marks=False)
            found = self._highest_from(pc.max(alive.column("checkpoint_key")).as_py() or "")
        self._highest = found
        return found

    def _highest_from(self, since: str) -> str | None:
        from_there = Between("checkpoint_key", since, _AFTER_ALL_KEYS)
        columns = ["checkpoint_key", "format"]
        rows = self.engine.lookup().scan(Table.CHECKPOINTS, [Equals("stream", self.stream), from_there], columns)
        self._refuse_other_format(set(rows.column("format").unique().to_pylist()))
        found: str | None = pc.max(rows.column("checkpoint_key")).as_py()
        return found

    def marked_keys(self) -> pa.ChunkedArray:
        """Return the keys of which only a mark is left, which nothing changes any more."""
        rows = _scan(self.engine, self.stream, None, _HEADLINES)
        return rows.filter(pc.invert(_has_life(rows))).column("checkpoint_key")

    def require_live(self, key: str, checkpoint: Checkpoint | None) -> Checkpoint:
        """Return the checkpoint if it is live, else say what became of it."""
        if checkpoint is None:
            raise CheckpointNotFoundError(
                f"stream {self.label!r} has no checkpoint {keys.checkpoint_id(key)}", stream=self.label, key=key
            )
        if not checkpoint.live:
            raise self.closed(checkpoint)
        return checkpoint

    def along_chain(self, key: str, read: Callable[[Sequence[str], History], T]) -> T:
        """Read something of a live checkpoint and of those it stands on, again as often as any of them moved meanwhile.

        Args:
            key: the checkpoint.
            read: is given the keys, nearest first, and those checkpoints with their manifests.

        Raises:
            ConflictError: they moved every time.
        """
        for _ in range(ROUNDS):
            found = self.require_live(key, self.find(key))
            self.refuse_purged_since(key)
            line = [key, *(chains.ancestors(self.history(), key) if found.parent else ())]
            seen = self.history(line, manifests=True) if found.parent else {key: found}
            self.require_live(key, seen.get(key))  # of the same look as the chain: it may have gone since the first
            try:
                return read(line, seen)
            except (ClosedIdError, CorruptError, BrokenChainError, _MovedError):
                # What it stood on may have been folded away under the reader: ask again, for the whole chain.
                if heads(self.history(line)) == heads(seen):
                    raise
        raise ConflictError(f"the chain of checkpoint {key} changed {ROUNDS} times while it was read; try again")

    def read(self, key: str, path: str, *, own_attempt: str | None = None, from_trash: bool = False) -> bytes:
        """Return an artifact's bytes, verified; see `stream_chunks`."""

        def read() -> bytes:
            with self._located(key, path, own_attempt, from_trash) as (attempt, first_batch):
                return artifacts.read_whole(self.engine, self.stream, key, attempt, path, first_batch=first_batch)

        return self._unmoved(read)

    def hash_of(self, key: str, path: str, prefix: bytes = b"", *, from_trash: bool = False) -> str:
        """Return the SHA-256 of a prefix and an artifact's bytes; see `stream_chunks`."""

        def read() -> str:
            whole = hashlib.sha256(prefix)
            for chunk in self.stream_chunks(key, path, from_trash=from_trash):
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
            from_trash: also of a checkpoint that is in the trash, or purged but not swept: a live one may stand on it.

        Raises:
            ArtifactNotFoundError: there is no such artifact.
            PurgedError: the checkpoint was purged, perhaps while it was read.
            ConflictError: the checkpoint changed while it was read; start again.
            CorruptError: bytes are missing or wrong, and nothing has changed that would explain it.
        """
        with self._located(key, path, own_attempt, from_trash) as (attempt, first_batch):
            yield from artifacts.read(self.engine, self.stream, key, attempt, path, first_batch=first_batch)

    @contextmanager
    def _located(
        self, key: str, path: str, own_attempt: str | None, from_trash: bool
    ) -> Iterator[tuple[str, artifacts.Rows | None]]:
        """Give the attempt to read, and its first bytes if they are there already; explain what goes wrong then."""
        seen, first_batches = self._look(key, path)
        if seen is None and isinstance(self.engine, MomentEngine):
            where = f"stream {self.label!r}, checkpoint {keys.checkpoint_id(key)}: "
            raise ArtifactNotFoundError(
                f"{where}artifact {path!r} is missing: there was no such checkpoint then", stream=self.label, key=key
            )
        if not from_trash:
            self.refuse_purged_since(key)
        if seen is not None and not (from_trash and seen.there):
            self.require_live(key, seen)
        attempt = seen.attempt_of(path) if seen and seen.origin else self._staged_attempt(key, path, own_attempt)
        try:
            if attempt is None:
                raise NoSuchArtifact(f"artifact {path!r} is missing", path=path)
            yield attempt, first_batches.get(attempt)
        except ChunkFault as fault:
            raise self._explain_fault(key, seen, fault) from fault

    def _look(self, key: str, path: str) -> tuple[Checkpoint | None, dict[str, artifacts.Rows]]:
        """Return a checkpoint as it is now, and the first bytes of its path by attempt.

        A saved checkpoint never changes its attempt, so bytes can be loaded while it is asked whether it is live.
        Where the attempt is not known yet, the bytes of the only one there is are most often the right ones.
        """
        with ThreadPoolExecutor(max_workers=1) as pool:
            ahead = start(pool, self._load_ahead, key, path, self._attempts.get(path, self._attempts.get(key)))
            return self._look_up(key), ahead.result()

    def _look_up(self, key: str) -> Checkpoint | None:
        """Return a checkpoint as it is now, without its manifest, with the least work."""
        return self._history(self.engine.lookup(), [key], CHECKPOINT_FACTS).get(key)

    def _load_ahead(self, key: str, path: str, known: str | None) -> dict[str, artifacts.Rows]:
        try:
            if known is None:
                return artifacts.load_first(self.engine, self.stream, key, path)
            return {known: artifacts.load_batch(self.engine, self.stream, key, known, path)}
        except ChunkFault:
            return {}  # perhaps of an attempt that nobody asks for; else it shows again

    def _staged_attempt(self, key: str, path: str, own_attempt: str | None) -> str | None:
        rows = artifacts.facts(self.engine, self.stream, [Equals("checkpoint_key", key), Equals("path", path)])
        if any(row["attempt"] == own_attempt for row in rows):
            return own_attempt
        newest = max(rows, key=lambda row: (row["staged_at"], row["attempt"]), default=None)
        return newest["attempt"] if newest else None

    def _explain_fault(self, key: str, seen: Checkpoint | None, fault: ChunkFault) -> Exception:
        """Ask again before anything is called corrupt: a purge or a fold may have moved the bytes."""
        now = self.now(key, manifest=isinstance(fault, NoSuchArtifact))
        if now is not None and not now.unpurged:
            return self.closed(now)
        moved = (now and now.head.revision) != (seen and seen.head.revision)
        if moved and not isinstance(self.engine, MomentEngine):
            return _MovedError(f"checkpoint {keys.checkpoint_id(key)} changed while it was read ({fault}); try again")
        where = f"stream {self.label!r}, checkpoint {keys.checkpoint_id(key)}: "
        if isinstance(fault, NoSuchArtifact) and not (now and self._was_written(now, str(getattr(fault, "path", "")))):
            return ArtifactNotFoundError(where + str(fault), stream=self.label, key=key)
        return CorruptError(where + str(fault), stream=self.label, key=key, missing=isinstance(fault, NoSuchArtifact))

    def _was_written(self, checkpoint: Checkpoint, path: str) -> bool:
        """Whether a checkpoint had an artifact when it was saved, or folded; else it is not one that was lost."""
        if checkpoint.origin is None or not (checkpoint.origin.artifact_count or checkpoint.folds):
            return False
        try:
            return path in written_paths(checkpoint, parse_any(checkpoint, self.label))
        except CorruptError:
            return True  # what it had cannot be told any more

    def refuse_purged_since(self, key: str) -> None:
        """Tell that a checkpoint of an earlier moment was purged since, whether its bytes are swept or not."""
        if isinstance(self.engine, MomentEngine) and (now := self.now(key)) and not now.unpurged:
            raise self.closed(now)

    def named_then(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return chunk rows, at an earlier moment without those that no checkpoint of that moment has."""
        if not isinstance(self.engine, MomentEngine):
            return rows
        then = self.history(sorted({row["checkpoint_key"] for row in rows}))
        named = {(key, attempt) for key, one in then.items() for attempt in one.attempts}
        return [row for row in rows if (row["checkpoint_key"], row["attempt"]) in named]

    def now(self, key: str, *, manifest: bool = False) -> Checkpoint | None:
        """Return a checkpoint as it is now, whatever moment this stream shows."""
        if not isinstance(self.engine, MomentEngine):
            return self.find(key, manifest=manifest)
        present = StreamReader(self.engine.current, self.label, self.format, clock=self.clock, actor=self.actor)
        return present.find(key, manifest=manifest)

    def check_format(self) -> None:
        """Refuse to stage for a stream that holds another format; asked of the table until the stream has one."""
        if not self._has_format:
            self.highest_key()

    def closed(self, checkpoint: Checkpoint) -> Exception:
        """Return the error that says why an id is not live."""
        name = f"checkpoint {checkpoint.id} of stream {self.label!r}"
        facts = {"stream": self.label, "key": checkpoint.key, "at": checkpoint.head.at}
        if checkpoint.status is Status.TRASHED:
            until = f" until {keys.time_text(checkpoint.undo_until)}" if checkpoint.undo_until else ""
            return TrashedError(f"{name} is in the trash{until}: restore it, or take the next id", **facts)
        at = keys.time_text(checkpoint.head.at)
        if checkpoint.status is Status.PURGED:
            return PurgedError(f"{name} was purged at {at}: take the next id", **facts)
        return AbandonedError(f"{name} was given up at {at} before it was saved: take the next id", **facts)

    def _refuse_other_format(self, there: set[str]) -> None:
        """Refuse a stream that holds what the caller does not expect; marks of unsaved ids have no format."""
        others = there - {self.format, ""}
        if self.format and others:
            raise InvalidInputError(
                f"stream {self.label!r} holds {min(others)} checkpoints, not {self.format} ones: use another stream",
                stream=self.label,
            )
        self._has_format |= self.format in there


def heads(history: History) -> Mapping[str, tuple[int, int]]:
    """Return what tells by key whether a checkpoint moved: its newest revision, and what was folded since a moment."""
    return {key: (one.head.revision, len(one.folds)) for key, one in history.items()}


def _scan(
    engine: Engine,
    stream: str,
    only: Sequence[str] | None,
    columns: Sequence[str],
    *where: Condition,
    marks: bool = True,
) -> pa.Table:
    """Return rows of a stream, with or without those of ids of which only a mark is left."""
    of_keys = [In("checkpoint_key", tuple(only))] if only is not None else []
    conditions = [Equals("stream", stream), *of_keys, *where]
    try:
        if marks:
            return engine.scan(Table.CHECKPOINTS, conditions, columns)
        rows = engine.scan(Table.CHECKPOINTS, conditions, columns, of_keys_with=_LIFE)
    except CorruptError as error:
        raise rows_unreadable(keys.stream_label(stream), error) from error
    return rows.filter(_has_life(rows))


def rows_unreadable(label: str, error: CorruptError) -> CorruptError:
    """Return the error that says which stream's rows cannot be read, and what to do."""
    return CorruptError(
        f"the rows of stream {label!r} cannot be read, so nothing of it is chosen or deleted: {error}; other streams "
        'go on, and docs/OPERATIONS.md says what to do: "a stream cannot be read"',
        stream=label,
    )


def _has_life(rows: pa.Table) -> pa.ChunkedArray:
    """Say of each row whether its key has more than marks, without making an object of any."""
    key, change = rows.column("checkpoint_key"), rows.column("change")
    return pc.is_in(key, pc.unique(key.filter(pc.is_in(change, pa.array(_LIFE.values, change.type)))))


def _revisions(rows: pa.Table) -> list[Revision]:
    return [Revision(**row) for row in rows.to_pylist()]


class _MovedError(ConflictError):
    """The checkpoint changed while it was read."""
