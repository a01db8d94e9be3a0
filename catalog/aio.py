"""The checkpoint store for async callers: every call of CheckpointStore in a thread, off the event loop."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from catalog.store import CheckpointStore
from catalog.stream_factory import CatalogStreamFactory

P = ParamSpec("P")
T = TypeVar("T")


def _in_thread(
    method: Callable[Concatenate[CheckpointStore, P], T],
) -> Callable[Concatenate["AsyncCheckpointStore", P], Coroutine[Any, Any, T]]:
    @functools.wraps(method)
    async def call(self: "AsyncCheckpointStore", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(method, self.store, *args, **kwargs)

    return call


class AsyncCheckpointStore:
    """A CheckpointStore whose calls are awaited; they mean what they mean there."""

    def __init__(self, store: CheckpointStore) -> None:
        """Wrap a store: `AsyncCheckpointStore(cat.store("orders"))`."""
        self.store = store

    def vnode_count(self) -> int:
        """Return the vnode count that manifests are expected to have; needs no waiting."""
        return self.store.vnode_count()

    def with_vnode_count(self, vnode_count: int) -> "AsyncCheckpointStore":
        """Return a store that expects another vnode count."""
        return AsyncCheckpointStore(self.store.with_vnode_count(vnode_count))

    def stream_factory(self, checkpoint_id: int, **options: Any) -> CatalogStreamFactory:
        """Return a factory of output streams for a checkpoint, which needs no waiting; see CheckpointStore."""
        return self.store.stream_factory(checkpoint_id, **options)

    async def iter_state_data(self, checkpoint_id: int) -> AsyncIterator[bytes]:
        """Yield a checkpoint's state in verified chunks; see CheckpointStore."""
        chunks = self.store.iter_state_data(checkpoint_id)
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
            yield chunk

    next_id = _in_thread(CheckpointStore.next_id)
    save = _in_thread(CheckpointStore.save)
    save_with_state = _in_thread(CheckpointStore.save_with_state)
    save_state_data = _in_thread(CheckpointStore.save_state_data)
    save_with_handles = _in_thread(CheckpointStore.save_with_handles)
    open_handle = _in_thread(CheckpointStore.open_handle)
    abandon = _in_thread(CheckpointStore.abandon)
    update_manifest = _in_thread(CheckpointStore.update_manifest)
    load_latest = _in_thread(CheckpointStore.load_latest)
    load_by_id = _in_thread(CheckpointStore.load_by_id)
    load_state_data = _in_thread(CheckpointStore.load_state_data)
    list_ids = _in_thread(CheckpointStore.list_ids)
    list = _in_thread(CheckpointStore.list)
    validate_checkpoint = _in_thread(CheckpointStore.validate_checkpoint)
    recover_latest_validated = _in_thread(CheckpointStore.recover_latest_validated)
    go_on_from = _in_thread(CheckpointStore.go_on_from)
    prune = _in_thread(CheckpointStore.prune)
    delete_checkpoint = _in_thread(CheckpointStore.delete_checkpoint)
    restore = _in_thread(CheckpointStore.restore)
    undo_update = _in_thread(CheckpointStore.undo_update)
    pin = _in_thread(CheckpointStore.pin)
    unpin = _in_thread(CheckpointStore.unpin)
    cleanup_orphans = _in_thread(CheckpointStore.cleanup_orphans)
