"""Checkpoint streams (seed 001): output streams that close into handles, and state shared between checkpoints."""

import io
import logging
import os
import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from catalog import artifacts, chunks, keys
from catalog.chunks import Base, Stored
from catalog.cutting import Buffer, Cutting, Hashing, Writing
from catalog.errors import InvalidInputError, StreamClosedError, UnknownHandleError
from catalog.handles import ArtifactHandle, CheckpointedStateScope, InlineHandle, StateHandle
from catalog.input_stream import ArtifactInputStream
from catalog.output_stream import BufferedOutputStream, CheckpointStateOutputStream, as_stream_error
from catalog.protocol import Stream
from catalog.reader import StreamReader
from catalog.tables.port import Condition, Equals, In, Table
from catalog.tables.schema import arrow

log = logging.getLogger(__name__)

STREAM_THRESHOLD_BYTES = 20 << 10
STREAM_THRESHOLD_MAX_BYTES = 1 << 20
MAX_AMPLIFICATION = 2.0
_READ_BUFFER_BYTES = 1 << 20


class CheckpointStreamFactory(ABC):
    """Where the state of one checkpoint is written; safe to share by threads. Failures are OSErrors."""

    @abstractmethod
    def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> CheckpointStateOutputStream:
        """Return a new stream to write state into.

        Args:
            scope: EXCLUSIVE, or SHARED if later checkpoints may use it too.
        """

    @abstractmethod
    def can_fast_duplicate(self, handle: StateHandle, scope: CheckpointedStateScope) -> bool:
        """Say whether `duplicate` would take this handle, as far as that is known without looking anywhere."""

    @abstractmethod
    def duplicate(self, handles: Sequence[StateHandle], scope: CheckpointedStateScope) -> list[StateHandle]:
        """Return new handles to the same content in the same order, without moving the bytes; all or none.

        Raises:
            UnknownHandleError: one is from elsewhere, or its state is gone.
        """

    @abstractmethod
    def reuse_previous_state_handle(self, handles: Iterable[StateHandle]) -> None:
        """Say that this checkpoint still uses state of an earlier one, which then lives as long as this one does.

        Raises:
            UnknownHandleError: nobody knows such a handle, or it says something else than what is stored.
        """

    @abstractmethod
    def could_reuse_state_handle(self, handle: StateHandle) -> bool:
        """Say whether reuse is worth it; False means to write the state anew.

        It is not where the handle is unknown, or where reuse would keep alive too much that nobody uses.
        """

    @abstractmethod
    def open(self, handle: StateHandle) -> BinaryIO:
        """Return a seekable file to read; every byte is verified. A handle can be opened any number of times."""

    @abstractmethod
    def discard(self, handles: Iterable[StateHandle]) -> None:
        """Remove state that this factory has written, as if its streams had been closed without a handle."""

    def of_operator(self, operator: str) -> "CheckpointStreamFactory":
        """Return this factory, with the operator's name written down beside what is written through it."""
        keys.text(operator, "operator name")
        return self

    @abstractmethod
    def without_sharing(self) -> "CheckpointStreamFactory":
        """Return this factory, for state that must be complete in itself: nothing earlier is used for it."""


class CatalogStreamFactory(CheckpointStreamFactory):
    """Writes the state of one checkpoint into a catalog; `CheckpointStore.stream_factory` makes it.

    Everything goes under one attempt, invisible until `CheckpointStore.save_with_handles` names it: a factory that is
    never saved leaves orphans, which the sweep takes.
    """

    def __init__(
        self,
        stream: Stream,
        key: str,
        *,
        previous: str | None,
        share: bool = True,
        threshold: int = STREAM_THRESHOLD_BYTES,
        max_amplification: float = MAX_AMPLIFICATION,
        cutting: Cutting = Cutting.FIXED,
        hash_threads: int | None = None,
    ) -> None:
        """Make a factory.

        Args:
            stream: the stream's rows.
            key: the checkpoint.
            previous: the checkpoint whose chunks need not be written again, None for the stream's latest.
            share: False if the checkpoint must depend on nothing old.
            threshold: up to so many bytes ride in the handle, 0 to 1 MiB.
            max_amplification: how many times the space that is used reuse may keep alive.
            cutting: how large state is cut into chunks.
            hash_threads: how many threads hash a stream; by default all cores but one, which is left for processing.
        """
        if not isinstance(max_amplification, int | float) or not max_amplification >= 1:
            raise InvalidInputError(f"max_amplification must be a number of at least 1, not {max_amplification!r}")
        if hash_threads is not None:
            keys.u64(hash_threads, "hash_threads", minimum=1)
        self._threshold = check_threshold(threshold)
        self._max_amplification = max_amplification
        self._cutting = Cutting(cutting)
        self._hash_threads = hash_threads or max((os.cpu_count() or 1) - 1, 1)
        self._operator: str | None = None
        self._shares = share
        self._only_exclusive = False
        self._work = _Work(stream, key, previous)

    def of_operator(self, operator: str) -> "CatalogStreamFactory":
        """See CheckpointStreamFactory.of_operator."""
        return self._view(_operator=keys.text(operator, "operator name"))

    def without_sharing(self) -> "CatalogStreamFactory":
        """See CheckpointStreamFactory.without_sharing."""
        return self._view(_shares=False, _only_exclusive=True)

    def _view(self, **different: Any) -> "CatalogStreamFactory":
        view = object.__new__(CatalogStreamFactory)
        view.__dict__.update(self.__dict__, **different)
        return view

    @property
    def key(self) -> str:
        """The checkpoint that it writes for."""
        return self._work.key

    @property
    def attempt(self) -> str:
        """Under which it writes."""
        return self._work.attempt

    def writes_to(self, stream: Stream) -> bool:
        """Say whether this is the stream that it writes to."""
        own = self._work.stream
        return (own.engine.place, own.stream) == (stream.engine.place, stream.stream)

    def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> CheckpointStateOutputStream:
        """See CheckpointStreamFactory."""
        scope = self._scope(scope)
        self._work.check_open()
        path = self._work.new_path(scope)

        def upload(pieces: Iterator[Buffer]) -> StateHandle:
            how = Writing(
                base=self._work.lender if self._shares else lambda: None,
                cutting=self._cutting,
                hashing=Hashing.CHUNKS,
                hash_threads=self._hash_threads,
                still=True,
            )
            stored = self._work.write(path, pieces, how, scope=str(scope), operator=self._operator)
            return self._work.handle(stored, scope)

        return BufferedOutputStream(self._threshold, upload, lambda: self._work.remove([path]))

    def can_fast_duplicate(self, handle: StateHandle, scope: CheckpointedStateScope) -> bool:
        """See CheckpointStreamFactory."""
        self._scope(scope)
        if isinstance(handle, InlineHandle):
            return True
        return isinstance(handle, ArtifactHandle) and self._why_not(handle) is None

    def _scope(self, scope: CheckpointedStateScope) -> CheckpointedStateScope:
        scope = checked_scope(scope)
        return CheckpointedStateScope.EXCLUSIVE if self._only_exclusive else scope

    def _why_not(self, handle: ArtifactHandle) -> str | None:
        """Say why a handle cannot be used here, as far as that is known without looking anywhere."""
        if handle.stream != self._work.stream.label:
            return f"it is of stream {handle.stream!r}"
        if handle.attempt == self.attempt:
            return None
        if handle.checkpoint_key == self.key:
            return "it is of another attempt at this checkpoint"
        return None if self._shares else "this checkpoint must depend on nothing earlier"

    def _rows_of(self, handle: object) -> "_Found":
        handle = _artifact(handle)
        if why := self._why_not(handle):
            raise UnknownHandleError(f"handle {handle.path!r} cannot be used: {why}", path=handle.path)
        rows, via = self._work.rows_of(handle)
        if not self._shares and any(row.get("via") for row in rows):
            raise UnknownHandleError(
                f"handle {handle.path!r} cannot be used: it shares state, and this must depend on nothing earlier",
                path=handle.path,
            )
        return rows, via

    def duplicate(self, handles: Sequence[StateHandle], scope: CheckpointedStateScope) -> list[StateHandle]:
        """See CheckpointStreamFactory; the chunks are shared, so a duplicate costs no space."""
        scope = self._scope(scope)
        with as_stream_error("handles cannot be duplicated"), self._work.lock:  # none is discarded or saved meanwhile
            self._work.check_open()
            found = {
                number: self._rows_of(one) for number, one in enumerate(handles) if not isinstance(one, InlineHandle)
            }
            made = {number: (self._work.new_path(scope), *rows) for number, rows in found.items()}
            stored = self._work.link(made.values(), scope=str(scope), operator=self._operator)
        return [
            self._work.handle(stored[made[number][0]], scope) if number in made else one
            for number, one in enumerate(handles)
        ]

    def reuse_previous_state_handle(self, handles: Iterable[StateHandle]) -> None:
        """See CheckpointStreamFactory; a handle can be reused once its checkpoint is saved."""
        self._work.check_open()
        for one in list(handles):
            if not isinstance(one, InlineHandle):
                with as_stream_error("a handle cannot be reused"):
                    self._work.reuse(_artifact(one).path, self._reusable(one))

    def could_reuse_state_handle(self, handle: StateHandle) -> bool:
        """See CheckpointStreamFactory; what is kept alive is all that the tables hold of the attempts involved.

        After False for that reason, no stream of this checkpoint borrows from these attempts.
        """
        if isinstance(handle, InlineHandle):
            return True
        try:
            with as_stream_error("whether a handle can be reused is not known"):
                rows, _ = self._reusable(handle)
                if self._work.amplification(rows) <= self._max_amplification:
                    return True
                self._work.avoid(rows)
                return False
        except UnknownHandleError:
            return False

    def _reusable(self, handle: StateHandle) -> "_Found":
        """Return the rows of an earlier checkpoint's shared state."""
        rows, via = self._rows_of(handle)
        path = _artifact(handle).path
        if via is None:
            raise UnknownHandleError(f"handle {path!r} is of this very checkpoint, not of an earlier one", path=path)
        if _artifact(handle).scope == CheckpointedStateScope.EXCLUSIVE.value:
            raise UnknownHandleError(f"handle {path!r} is exclusive to its checkpoint: write shared state", path=path)
        return rows, via

    def open(self, handle: StateHandle) -> BinaryIO:
        """See CheckpointStreamFactory."""
        return open_handle(self._work.stream, handle)

    def discard(self, handles: Iterable[StateHandle]) -> None:
        """See CheckpointStreamFactory."""
        own = [one.path for one in handles if isinstance(one, ArtifactHandle) and one.attempt == self.attempt]
        if own:
            with as_stream_error("state could not be removed"):
                self._work.remove(own, known_elsewhere=True)

    def close(self) -> None:
        """Refuse to write from now on, for a checkpoint that is given up; see CheckpointStore.abandon."""
        self._work.close()

    def finish(self, handles: Iterable[StateHandle]) -> dict[str, Stored]:
        """Return the artifacts of these handles, all part of the attempt now; nothing more can be written.

        Raises:
            UnknownHandleError: one was neither written nor reused through this factory.
        """
        return self._work.finish([one for one in handles if isinstance(one, ArtifactHandle)])


_Found = tuple[Sequence[Mapping[str, Any]], str | None]
"""A handle's chunk rows, and the earlier checkpoint through which they are known, None if it is this one."""


class _Work:
    """What the views of one factory share."""

    def __init__(self, stream: Stream, key: str, previous: str | None) -> None:
        self.stream = stream
        self.key = key
        self.attempt = keys.new_uuid7()
        self._previous = previous
        self.lock = threading.RLock()
        self._base: Base | None = None
        self._base_asked = False
        self._written: dict[str, Stored] = {}
        self._discarded: dict[str, Stored] = {}
        """What was discarded, but has the bytes of duplicates."""
        self._reused: dict[str, _Found] = {}
        self._held: dict[tuple[str, str], chunks.Held] = {}
        """What attempts hold."""
        self._avoided: set[tuple[str, str]] = set()
        """Key and attempt of those that hold too much that nobody uses."""
        self._lender: Base | None = None
        self._closed = self._given_up = self._id_is_free = False

    def check_open(self) -> None:
        if self._closed:
            raise StreamClosedError(
                f"checkpoint {keys.checkpoint_id(self.key)} is saved or given up: make a factory for the next one"
            )

    def close(self) -> None:
        with self.lock:
            self._closed = self._given_up = True

    def new_path(self, scope: CheckpointedStateScope) -> str:
        return f"{keys.checkpoint_id(self.key)}/{scope}/{keys.new_uuid7()}"

    def base(self) -> Base | None:
        """Return the previous checkpoint's chunks, read when they are first needed."""
        with self.lock:
            if not self._base_asked:
                self._base = self.stream.base(self._previous)
                self._base_asked = True
            return self._base

    def lender(self) -> Base | None:
        """Return the previous checkpoint's chunks without those that the attempts to avoid hold."""
        base = self.base()
        with self.lock:
            if base is None or not self._avoided:
                return base
            if self._lender is None:
                rows = [row for row in base.rows if chunks.holder(row)[:2] not in self._avoided]
                self._lender = Base(base.key, rows)
            return self._lender

    def avoid(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Borrow from the attempts that have these rows' bytes no more: what is written anew would be there again."""
        involved = {chunks.holder(row)[:2] for row in rows}
        with self.lock:
            if not involved <= self._avoided:
                self._avoided |= involved
                self._lender = None

    def write(self, path: str, pieces: Iterator[Buffer], how: Writing, **columns: Any) -> Stored:
        with self.lock:
            self.check_open()
            if not self._id_is_free:
                self.stream.check_open(self.key)
                self._id_is_free = True
        stored = self.stream.stage(self.key, self.attempt, path, "snapshot", self._while_open(pieces), how, **columns)
        with self.lock:
            self.check_open()
            self._written[path] = stored
        return stored

    def _while_open(self, pieces: Iterator[Buffer]) -> Iterator[Buffer]:
        """Yield pieces, and end in an error before the commit with them begins if the checkpoint is saved by then."""
        for piece in pieces:
            self.check_open()
            yield piece
        self.check_open()

    def handle(self, stored: Stored, scope: CheckpointedStateScope) -> ArtifactHandle:
        return ArtifactHandle(
            stream=self.stream.label,
            checkpoint_key=self.key,
            attempt=self.attempt,
            path=stored.path,
            size_bytes=stored.size,
            sha256=stored.sha256,
            cutting=stored.rows[0]["cutting"],
            scope=scope.value,
        )

    def remove(self, paths: Sequence[str], *, known_elsewhere: bool = False) -> None:
        """Delete artifacts of this attempt, which no row names.

        Args:
            paths: which ones.
            known_elsewhere: their handles were given out, so another process may have made them part of a checkpoint;
                then they are left to the sweep.
        """
        with self.lock:
            if self._given_up:
                return  # garbage that the sweep takes
            if self._closed:
                # Part of a checkpoint, except what came too late to be: the sweep would keep that with all the attempt.
                paths = sorted(set(paths) - self._written.keys() - self._discarded.keys())
            self._discarded |= {path: self._written.pop(path) for path in paths if path in self._written}
            rest = (row for one in self._written.values() for row in one.rows)
            duplicated = {row["chunk_sha256"] for row in rest if row.get("held_attempt") == self.attempt}
            gone = {*paths, *self._discarded}
            gone -= {
                path
                for path, one in self._discarded.items()
                if any(row["chunk_sha256"] in duplicated for row in one.rows)
            }
            for path in gone:
                self._discarded.pop(path, None)
            if not gone or (known_elsewhere and self._may_be_needed_elsewhere()):
                return
            own = Equals("checkpoint_key", self.key), Equals("attempt", self.attempt)
            where: list[Condition] = [Equals("stream", self.stream.stream), *own, In("path", tuple(sorted(gone)))]
            # Nothing is finished meanwhile: a later checkpoint could borrow of a saved one what goes.
            self.stream.engine.delete(Table.ARTIFACTS, where)

    def _may_be_needed_elsewhere(self) -> bool:
        """Say whether the id has a row, or others' rows have their bytes here: then only the sweep can tell.

        `checkpoints` is read first, as by the sweep. Who adopts looks whether the bytes are there once its rows are.
        """
        if self.stream.find(self.key, manifest=False) is not None:
            return True
        named = Equals("checkpoint_key", self.key), Equals("held_attempt", self.attempt)
        borrowers = artifacts.facts(self.stream.engine, self.stream.stream, named)
        return any(row["attempt"] != self.attempt for row in borrowers)

    def rows_of(self, handle: ArtifactHandle) -> _Found:
        """Return a handle's rows.

        Raises:
            UnknownHandleError: its checkpoint is not saved or gone, or it is another artifact.
        """
        if handle.attempt == self.attempt:
            found: _Found = (self._written[handle.path].rows if handle.path in self._written else (), None)
        else:
            found = self._rows_of_earlier(handle)
        stored = chunks.totals(found[0]).get(handle.path)
        if stored is None:
            raise UnknownHandleError(
                f"handle {handle.path!r} is not known: its state was never saved, or is gone", path=handle.path
            )
        _check_same(handle, stored)
        return found

    def _rows_of_earlier(self, handle: ArtifactHandle) -> _Found:
        base = self.base()
        if base and handle.path in base.by_path:
            return base.by_path[handle.path], base.key
        creator = self.stream.find(handle.checkpoint_key, manifest=False)
        if creator is None or not creator.live or creator.origin is None or creator.origin.attempt != handle.attempt:
            return (), None
        named = Equals("checkpoint_key", creator.key), Equals("attempt", handle.attempt), Equals("path", handle.path)
        return artifacts.facts(self.stream.engine, self.stream.stream, named), creator.key

    def reuse(self, path: str, found: _Found) -> None:
        with self.lock:
            self._reused[path] = found

    def amplification(self, rows: Sequence[Mapping[str, Any]]) -> float:
        """Return how many bytes these rows keep alive for each one that the previous checkpoint uses of them."""
        involved = {chunks.holder(row)[:2] for row in rows}
        with self.lock:
            if unknown := involved - self._held.keys():
                attempts = tuple(sorted({attempt for _, attempt in unknown}))
                found = artifacts.facts(self.stream.engine, self.stream.stream, [In("attempt", attempts)])
                for one in unknown:
                    own = (row for row in found if (row["checkpoint_key"], row["attempt"]) == one)
                    self._held[one] = chunks.held(own)
            held = {chunk: some for one in involved for chunk, some in self._held[one].items()}
        base = self.base()
        # One that the previous checkpoint does not use is all that is used of what holds it.
        using = base if base and rows[0]["path"] in base.by_path else Base("", rows)
        return chunks.amplification(held, using.uses)

    def link(
        self, made: Iterable[tuple[str, Sequence[Mapping[str, Any]], str | None]], **columns: Any
    ) -> dict[str, Stored]:
        """Make rows of other artifacts part of this attempt, each under a path, in one commit."""
        columns = {"checkpoint_key": self.key, "staged_at": self.stream.clock(), **columns}
        rows = [
            row
            for path, some, via in made
            # Of this attempt itself, what it borrows it goes on borrowing through the same checkpoint.
            for row in chunks.links(some, self.attempt, path=path, **({"via": via} if via else {}), **columns)
        ]
        if rows:
            self.stream.engine.append(Table.ARTIFACTS, [arrow(Table.ARTIFACTS, rows)])
        stored = chunks.totals(rows)
        with self.lock:
            self._written |= stored
        return stored

    def finish(self, handles: Sequence[ArtifactHandle]) -> dict[str, Stored]:
        wanted = {one.path for one in handles}
        with self.lock:
            for one in handles:
                if one.path not in self._written.keys() | self._reused.keys():
                    raise UnknownHandleError(f"handle {one.path!r} was neither written nor reused through this factory")
                known = self._written.get(one.path) or chunks.totals(self._reused[one.path][0])[one.path]
                _check_same(one, known)
            self._leave_out(self._written.keys() - wanted)
            # A save that is tried again has linked them before.
            reused = [(path, *self._reused[path]) for path in sorted(wanted - self._written.keys())]
            self.link(reused)
            self._closed = True
            return {path: self._written[path] for path in wanted}

    def _leave_out(self, paths: Iterable[str]) -> None:
        """Delete what will not be saved: under the attempt of a checkpoint the sweep would keep it as long as that."""
        try:
            self.remove(sorted(paths), known_elsewhere=True)
        except Exception:
            log.exception("state that is not saved could not be removed: it stays as long as its checkpoint")


def open_handle(stream: StreamReader, handle: StateHandle, *, through: str | None = None) -> BinaryIO:
    """Return a seekable file with a handle's state; see CheckpointStreamFactory.open.

    Args:
        stream: the stream's rows.
        handle: what to open.
        through: the saved checkpoint that uses it, if that is known; else its creator's rows, else anybody's.
    """
    if isinstance(handle, InlineHandle):
        return open_inline(handle)
    handle = _artifact(handle)
    if handle.stream != stream.label:
        raise UnknownHandleError(f"handle {handle.path!r} is of stream {handle.stream!r}, not of {stream.label!r}")
    with as_stream_error("the state cannot be read"):
        rows: list[dict[str, Any]] = []
        for where in (Equals("checkpoint_key", through or handle.checkpoint_key), None):
            named = [Equals("path", handle.path), *([where] if where else [])]
            rows = stream.named_then(artifacts.facts(stream.engine, stream.stream, named))
            by_attempt: dict[str, list[dict[str, Any]]] = defaultdict(list)
            for row in rows:
                by_attempt[row["attempt"]].append(row)
            # Of an attempt that is purged, only the rows stay whose bytes somebody holds.
            whole = [one for one, some in by_attempt.items() if _is_whole(handle, some)]
            if whole:
                chosen = by_attempt[handle.attempt if handle.attempt in whole else max(whole)]
                return io.BufferedReader(ArtifactInputStream(stream, chosen, handle.sha256), _READ_BUFFER_BYTES)
    raise UnknownHandleError(f"handle {handle.path!r} is not known: its state was never saved, or is gone")


def _is_whole(handle: ArtifactHandle, rows: Sequence[Mapping[str, Any]]) -> bool:
    kept = chunks.inventory(rows)[handle.path]
    return kept.complete and (kept.size, kept.sha256) == (handle.size_bytes, handle.sha256)


def _check_same(handle: ArtifactHandle, stored: Stored) -> None:
    if (stored.size, stored.sha256) != (handle.size_bytes, handle.sha256):
        raise UnknownHandleError(
            f"handle {handle.path!r} has other content than what is stored under that name", path=handle.path
        )


def open_inline(handle: InlineHandle) -> BinaryIO:
    """Return a file with the state in a handle, verified."""
    with as_stream_error("the state cannot be read"):
        return io.BytesIO(handle.data())


def check_threshold(threshold: object) -> int:
    """Return how many bytes ride in a handle, if that is allowed."""
    if isinstance(threshold, bool) or not isinstance(threshold, int):
        raise InvalidInputError(f"threshold must be an integer, not {threshold!r}")
    if not 0 <= threshold <= STREAM_THRESHOLD_MAX_BYTES:
        raise InvalidInputError(f"threshold must be 0 to {STREAM_THRESHOLD_MAX_BYTES} bytes, not {threshold}")
    return threshold


def checked_scope(scope: object) -> CheckpointedStateScope:
    """Return a scope, else refuse it."""
    try:
        return CheckpointedStateScope(str(scope))
    except ValueError as error:
        raise InvalidInputError(f"scope must be EXCLUSIVE or SHARED, not {scope!r}") from error


def _artifact(handle: object) -> ArtifactHandle:
    if not isinstance(handle, ArtifactHandle):
        raise UnknownHandleError(f"{type(handle).__name__} is no handle of a checkpoint stream")
    return handle
