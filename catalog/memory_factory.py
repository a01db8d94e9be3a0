"""Checkpoint streams in memory, with a size limit: for tests of engines, and for jobs that may lose their state."""

import io
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import BinaryIO

from catalog import cutting, keys
from catalog.errors import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    CheckpointStreamError,
    StreamClosedError,
    UnknownHandleError,
)
from catalog.handles import ArtifactHandle, CheckpointedStateScope, InlineHandle, StateHandle
from catalog.output_stream import CheckpointStateOutputStream
from catalog.stream_factory import (
    STREAM_THRESHOLD_BYTES,
    CheckpointStreamFactory,
    check_threshold,
    checked_scope,
    open_inline,
)

MEMORY_LIMIT_BYTES = 5 << 20


class MemoryCheckpoints:
    """State of the checkpoints of one stream, kept as long as a saved checkpoint uses it."""

    def __init__(self, stream: str = "memory") -> None:
        """Make an empty one.

        Args:
            stream: its name, by which it knows its own handles.
        """
        self.stream = stream
        self.lock = threading.RLock()
        self.state: dict[str, bytes] = {}
        self._used: dict[str, set[str]] = {}

    def factory(
        self,
        checkpoint_id: int,
        *,
        limit_bytes: int = MEMORY_LIMIT_BYTES,
        threshold: int = STREAM_THRESHOLD_BYTES,
        share: bool = True,
    ) -> "MemoryStreamFactory":
        """Return a factory for the state of a checkpoint; a stream of more than limit_bytes is refused."""
        return MemoryStreamFactory(self, keys.integer_key(checkpoint_id), limit_bytes, threshold, share)

    def save(self, factory: "MemoryStreamFactory", handles: Iterable[StateHandle]) -> None:
        """Make a checkpoint of handles that were written, duplicated or reused through a factory."""
        named = [one for one in handles if isinstance(one, ArtifactHandle)]
        with self.lock:
            if self.is_saved(factory.key):
                raise CheckpointExistsError(f"checkpoint {int(factory.key)} is saved already", key=factory.key)
            for one in named:
                if one.path not in factory.own | factory.reused:
                    raise UnknownHandleError(f"handle {one.path!r} was neither written nor reused through this factory")
                self.find(one)
            self._used[factory.key] = {one.path for one in named}
            self._forget(factory.own)

    def delete(self, checkpoint_id: int) -> None:
        """Delete a checkpoint, and the state that no other one uses."""
        key = keys.integer_key(checkpoint_id)
        with self.lock:
            if not self.is_saved(key):
                raise CheckpointNotFoundError(f"there is no checkpoint {checkpoint_id}", key=key)
            self._forget(self._used.pop(key))

    def find(self, handle: ArtifactHandle) -> bytes:
        """Return the state of a handle, if it is what the handle says."""
        data = self.state.get(handle.path) if handle.stream == self.stream else None
        if data is None:
            raise UnknownHandleError(f"handle {handle.path!r} is not known: its state was never saved, or is gone")
        if (len(data), cutting.fingerprint([data], "fixed")) != (handle.size_bytes, handle.sha256):
            raise UnknownHandleError(f"handle {handle.path!r} has other content than what is stored under that name")
        return data

    def is_saved(self, key: str) -> bool:
        """Say whether a checkpoint is saved."""
        return key in self._used

    def uses(self, path: str) -> bool:
        """Say whether a saved checkpoint uses this state."""
        return any(path in paths for paths in self._used.values())

    def _forget(self, paths: Iterable[str]) -> None:
        for path in paths:
            if not self.uses(path):
                self.state.pop(path, None)


class MemoryStreamFactory(CheckpointStreamFactory):
    """Writes the state of one checkpoint into memory; `MemoryCheckpoints.factory` makes it."""

    def __init__(self, kept: MemoryCheckpoints, key: str, limit_bytes: int, threshold: int, share: bool) -> None:
        """See MemoryCheckpoints.factory."""
        self.key = key
        self.own: set[str] = set()
        self.reused: set[str] = set()
        self._kept = kept
        self._attempt = keys.new_uuid7()
        self._limit = limit_bytes
        self._threshold = check_threshold(threshold)
        self._share = share
        self._only_exclusive = False

    def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> CheckpointStateOutputStream:
        """See CheckpointStreamFactory."""
        self._check_open()
        scope = self._scope(scope)
        return _MemoryOutputStream(self._limit, lambda data: self._store(data, scope))

    def can_fast_duplicate(self, handle: StateHandle, scope: CheckpointedStateScope) -> bool:
        """See CheckpointStreamFactory."""
        checked_scope(scope)
        if isinstance(handle, InlineHandle):
            return True
        mine = isinstance(handle, ArtifactHandle) and handle.stream == self._kept.stream
        return mine and (handle.attempt == self._attempt or (self._share and handle.checkpoint_key != self.key))

    def duplicate(self, handles: Sequence[StateHandle], scope: CheckpointedStateScope) -> list[StateHandle]:
        """See CheckpointStreamFactory."""
        self._check_open()
        scope = self._scope(scope)
        with self._kept.lock:
            found = [one if isinstance(one, InlineHandle) else self._find(one) for one in handles]
            return [one if isinstance(one, InlineHandle) else self._add(one, scope) for one in found]

    def reuse_previous_state_handle(self, handles: Iterable[StateHandle]) -> None:
        """See CheckpointStreamFactory."""
        self._check_open()
        for one in list(handles):
            if not isinstance(one, InlineHandle):
                self.reused.add(self._reusable(one).path)

    def could_reuse_state_handle(self, handle: StateHandle) -> bool:
        """See CheckpointStreamFactory; each piece is kept by itself, so reuse keeps nothing else alive."""
        if isinstance(handle, InlineHandle):
            return True
        try:
            self._reusable(handle)
        except UnknownHandleError:
            return False
        return True

    def _reusable(self, handle: StateHandle) -> ArtifactHandle:
        """Return the handle if it is an earlier checkpoint's shared state."""
        self._find(handle)
        assert isinstance(handle, ArtifactHandle)
        if handle.attempt == self._attempt or handle.scope == CheckpointedStateScope.EXCLUSIVE.value:
            raise UnknownHandleError(f"handle {handle.path!r} is not shared state of an earlier checkpoint")
        return handle

    def open(self, handle: StateHandle) -> BinaryIO:
        """See CheckpointStreamFactory."""
        if isinstance(handle, InlineHandle):
            return open_inline(handle)
        return io.BytesIO(self._kept.find(handle))

    def discard(self, handles: Iterable[StateHandle]) -> None:
        """See CheckpointStreamFactory."""
        with self._kept.lock:
            for one in handles:
                if isinstance(one, ArtifactHandle) and one.path in self.own and not self.closed:
                    self.own.discard(one.path)
                    self._kept.state.pop(one.path, None)

    def without_sharing(self) -> "MemoryStreamFactory":
        """See CheckpointStreamFactory."""
        alone = object.__new__(MemoryStreamFactory)
        alone.__dict__.update(self.__dict__, _share=False, _only_exclusive=True)
        return alone

    @property
    def closed(self) -> bool:
        """Whether its checkpoint is saved."""
        return self._kept.is_saved(self.key)

    def _scope(self, scope: CheckpointedStateScope) -> CheckpointedStateScope:
        scope = checked_scope(scope)
        return CheckpointedStateScope.EXCLUSIVE if self._only_exclusive else scope

    def _check_open(self) -> None:
        if self.closed:
            raise StreamClosedError("the checkpoint is saved: make a factory for the next one")

    def _find(self, handle: StateHandle) -> bytes:
        if not isinstance(handle, ArtifactHandle) or not self.can_fast_duplicate(handle, CheckpointedStateScope.SHARED):
            raise UnknownHandleError("the handle is from elsewhere, or this checkpoint must depend on nothing earlier")
        if not (handle.path in self.own or self._kept.uses(handle.path)):
            raise UnknownHandleError(f"handle {handle.path!r} is not known: its state was never saved, or is gone")
        return self._kept.find(handle)

    def _store(self, data: bytes, scope: CheckpointedStateScope) -> StateHandle:
        with self._kept.lock:
            self._check_open()
            return InlineHandle.of(data) if len(data) <= self._threshold else self._add(data, scope)

    def _add(self, data: bytes, scope: CheckpointedStateScope) -> ArtifactHandle:
        path = f"{int(self.key)}/{scope}/{keys.new_uuid7()}"
        self._kept.state[path] = data
        self.own.add(path)
        return ArtifactHandle(
            stream=self._kept.stream,
            checkpoint_key=self.key,
            attempt=self._attempt,
            path=path,
            size_bytes=len(data),
            sha256=cutting.fingerprint([data], "fixed"),
            cutting="fixed",
            scope=scope.value,
        )


class _MemoryOutputStream(CheckpointStateOutputStream):
    def __init__(self, limit_bytes: int, store: Callable[[bytes], StateHandle]) -> None:
        super().__init__()
        self._limit = limit_bytes
        self._store = store
        self._data = io.BytesIO()

    def _add(self, piece: memoryview, *, frozen: bool) -> None:  # noqa: ARG002 - always copied
        if self._data.tell() + len(piece) > self._limit:
            raise CheckpointStreamError(f"state in memory is limited to {self._limit} bytes; this is more")
        self._data.write(piece)

    def _finish(self) -> StateHandle:
        data, self._data = self._data, io.BytesIO()
        return self._store(data.getvalue())

    def _discard(self) -> None:
        self._data = io.BytesIO()
