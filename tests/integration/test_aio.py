"""The store for async callers."""

import asyncio
import inspect

import pytest

from catalog import CheckpointCatalog, CheckpointExistsError, CheckpointManifest, CheckpointStore
from catalog.aio import AsyncCheckpointStore


def test_every_call_of_the_store_is_there_and_awaited():
    public = {name for name, _ in inspect.getmembers(CheckpointStore, inspect.isfunction) if not name.startswith("_")}
    waiting = public - {"vnode_count", "with_vnode_count", "stream_factory", "iter_state_data"}
    assert public <= set(dir(AsyncCheckpointStore))
    assert all(inspect.iscoroutinefunction(getattr(AsyncCheckpointStore, name)) for name in waiting)
    assert inspect.isasyncgenfunction(AsyncCheckpointStore.iter_state_data)


def test_saves_and_loads_run_beside_the_event_loop(spark, tmp_path):
    store = AsyncCheckpointStore(CheckpointCatalog.create(spark, tmp_path / "catalog").store("aio"))
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    async def main():
        ticker = asyncio.create_task(tick())
        await asyncio.gather(*(store.save_with_state(CheckpointManifest.new(one, epoch=1), b"x") for one in (1, 2)))
        ticker.cancel()
        with pytest.raises(CheckpointExistsError):
            await store.save(CheckpointManifest.new(1, epoch=9))
        return await store.list(), [chunk async for chunk in store.iter_state_data(2)]

    assert asyncio.run(main()) == ([(1, 1), (2, 1)], [b"x"])
    assert ticks > 10, "the event loop was blocked"
