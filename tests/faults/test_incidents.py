"""Public incidents of checkpoint stores, each kept as a test: what went wrong elsewhere does not go wrong here."""

import asyncio
from datetime import timedelta

import pytest

from catalog import (
    AbandonedError,
    CheckpointCatalog,
    CheckpointInUseError,
    CheckpointManifest,
    CheckpointManifestV2,
    CorruptError,
    NotACatalogError,
    artifact_path,
    keys,
    new_uuid7,
)
from catalog.tables.port import Table
from catalog.testing.native import NativeHarness

NOW = timedelta(0)


@pytest.fixture
def harness(tmp_path):
    return NativeHarness(tmp_path / "catalog")


@pytest.fixture
def store(harness):
    store = harness.catalog.store("s")
    for number in (1, 2):
        store.save_with_state(CheckpointManifest.new(number, epoch=number), f"state {number}".encode())
    return store


def save(store, number, state=b"state"):
    store.save_with_state(CheckpointManifest.new(number, epoch=number), state)


def failing(engine, monkeypatch, name, error, *, for_table=None):
    real = getattr(engine, name)

    def call(*arguments, **rest):
        if for_table is None or arguments[0] is for_table:
            raise error
        return real(*arguments, **rest)

    monkeypatch.setattr(engine, name, call)


def test_the_pointer_moved_before_the_data_was_durable(harness, store, monkeypatch):
    order = []
    for name in ("append", "insert_unless"):
        real = getattr(harness.catalog.engine, name)
        monkeypatch.setattr(
            harness.catalog.engine, name, lambda *a, real=real, name=name, **k: (order.append(name), real(*a, **k))[1]
        )
    save(store, 3)
    assert order == ["append", "insert_unless"]


def test_a_quota_error_leaves_the_pointer_where_it_was_and_the_next_save_works(harness, store, monkeypatch):
    with monkeypatch.context() as patch:
        failing(harness.catalog.engine, patch, "append", OSError(28, "No space left on device"))
        with pytest.raises(OSError, match="No space left"):
            save(store, 3)
    assert store.load_latest().checkpoint_id == 2
    save(store, 3)
    assert store.load_latest().checkpoint_id == 3


def test_latest_is_not_cached_from_a_save_whose_commit_failed(harness, store, monkeypatch):
    with monkeypatch.context() as patch:
        failing(harness.catalog.engine, patch, "insert_unless", OSError(5, "Input/output error"))
        with pytest.raises(OSError, match="Input/output"):
            save(store, 3)
    assert store.load_latest().checkpoint_id == 2
    assert store.recover_latest_validated().chosen_id == 2


def test_the_highest_id_is_not_taken_while_it_is_half_written(store):
    store.save_state_data(9, b"only the bytes")
    assert store.load_latest().checkpoint_id == 2
    assert store.recover_latest_validated().chosen_id == 2


def test_zero_byte_files_after_a_power_cut_are_passed_over(store, tmp_path):
    before = set((tmp_path / "catalog" / Table.ARTIFACTS).glob("*.parquet"))
    save(store, 3)
    (newest,) = set((tmp_path / "catalog" / Table.ARTIFACTS).glob("*.parquet")) - before
    newest.write_bytes(b"")
    report = CheckpointCatalog.native(tmp_path / "catalog").recover("s")
    assert report.chosen_id == 2
    with pytest.raises(CorruptError):
        store.load_state_data(3)


@pytest.mark.parametrize("left", [b"", b"PAR1 and then nothing"], ids=["zero bytes", "half of it"])
def test_a_log_checkpoint_that_a_power_cut_left_half_written_is_done_without(store, harness, tmp_path, left):
    for number in range(3, 30):
        save(store, number)
    harness.catalog.close()  # log checkpoints are made in the background
    log = tmp_path / "catalog" / Table.CHECKPOINTS / "_delta_log"
    newest = max(log.glob("*.checkpoint.parquet"))
    assert newest != min(log.glob("*.checkpoint.parquet")), "there is none before it to go on from"
    newest.write_bytes(left)
    with CheckpointCatalog.native(tmp_path / "catalog") as again:
        assert again.store("s").list_ids() == list(range(1, 30))
        save(again.store("s"), 30)
        again.compact()
    assert newest.with_name(f"{newest.name}.damaged").read_bytes() == left
    assert CheckpointCatalog.native(tmp_path / "catalog").store("s").load_latest().checkpoint_id == 30


def test_a_log_without_which_nothing_is_known_is_told_and_left_as_it_is(store, harness, tmp_path):
    for number in range(3, 30):
        save(store, number)
    harness.catalog.close()
    log = tmp_path / "catalog" / Table.CHECKPOINTS / "_delta_log"
    newest = max(log.glob("*.checkpoint.parquet"))
    newest.write_bytes(b"")
    (log / f"{int(newest.name[:20]):020d}.json").unlink()
    before = sorted(log.iterdir())
    with pytest.raises(NotACatalogError):
        CheckpointCatalog.native(tmp_path / "catalog")
    assert sorted(log.iterdir()) == before


def test_a_gap_in_the_id_sequence_is_no_end(store):
    save(store, 7)
    assert store.list_ids() == [1, 2, 7]
    assert store.next_id() == 8
    assert store.recover_latest_validated().chosen_id == 7


def test_prune_does_not_cut_a_delta_chain(harness):
    checkpointer, ids = harness.catalog.checkpointer("chain"), [new_uuid7(), new_uuid7()]

    async def run():
        for parent, id in zip([None, *ids], ids, strict=False):
            delta = parent is not None
            sha = await (checkpointer.save_delta if delta else checkpointer.save_snapshot)(id, "op", 0, b"bytes")
            path = artifact_path(id, "op", 0, delta=delta)
            entry = {"partition_id": 0, "is_delta": delta, "path": path, "size_bytes": 5, "sha256": sha}
            operators = {"op": {"partitions": [entry]}}
            await checkpointer.save_manifest(
                CheckpointManifestV2.new(id, epoch=1, operators=operators, parent_id=parent)
            )
            await checkpointer.update_latest(id)
        with pytest.raises(CheckpointInUseError, match="needed by the deltas"):
            await checkpointer.delete_checkpoint(ids[0])
        return [link.data for link in await checkpointer.load_chain(ids[1], "op", 0)]

    assert asyncio.run(run()) == [b"bytes", b"bytes"]


def test_prune_does_not_delete_bytes_that_another_checkpoint_uses(harness, store):
    """The second writer adopts what the first staged; the first one's attempt stays as long as it is needed."""
    store.save_state_data(3, b"staged by one process")
    other = CheckpointCatalog(harness.catalog.engine, clock=harness.clock).store("s")
    other.save(CheckpointManifest.new(3, epoch=3, operator_states={"op": {"external": True, "external_length": 21}}))
    store.prune(1)
    harness.clock.advance(timedelta(days=30))
    store.cleanup_orphans(NOW)
    assert other.load_state_data(3) == b"staged by one process"


def test_a_delete_killed_half_way_can_be_run_again(harness, store, monkeypatch):
    store.prune(1)
    harness.clock.advance(timedelta(days=30))
    with monkeypatch.context() as patch:
        failing(harness.catalog.engine, patch, "delete", OSError("killed"), for_table=Table.ARTIFACTS)
        with pytest.raises(OSError, match="killed"):
            store.cleanup_orphans(NOW)
    assert store.list_ids() == [2]
    assert harness.artifact_rows("s") == 2
    store.cleanup_orphans(NOW)
    assert harness.artifact_rows("s") == 1
    assert store.validate_checkpoint(2).valid


@pytest.mark.parametrize("swept", ["before the first save", "after it"])
def test_what_another_kind_of_store_staged_and_never_saved_does_not_take_the_next_id_away(harness, swept):
    """Its mark, which stays for ever, is under a UUID."""
    stream = f"staged by two kinds, swept {swept}"
    store = harness.catalog.store(stream)
    asyncio.run(harness.catalog.checkpointer(stream).save_snapshot(new_uuid7(), "op", 0, b"never saved"))
    if swept == "after it":
        store.save(CheckpointManifest.new(store.next_id(), epoch=1))
    assert store.cleanup_orphans(NOW) == 1
    for _ in range(2):
        store.save(CheckpointManifest.new(store.next_id(), epoch=1))
    assert store.list_ids() == list(range(1, store.next_id()))


def test_clean_up_does_not_delete_a_save_in_progress(store):
    """With a grace period it is left alone; without one its id is closed first, and the save is told."""
    store.save_state_data(3, b"in progress")
    assert store.cleanup_orphans() == 0
    store.save(CheckpointManifest.new(3, epoch=3))
    assert store.load_state_data(3) == b"in progress"
    store.save_state_data(4, b"in progress too")
    assert store.cleanup_orphans(NOW) == 1
    with pytest.raises(AbandonedError):
        store.save(CheckpointManifest.new(4, epoch=4))


def test_a_backup_does_not_ignore_a_pin(harness, store, tmp_path):
    store.pin(1, "audit")
    copy = CheckpointCatalog.native(tmp_path / "copy", create=True, clock=harness.clock)
    harness.catalog.copy_to(copy)
    assert copy.store("s").prune(1) == 0, "the pin came along"
    assert copy.store("s").list_ids() == [1, 2]
    assert list(copy.stream("s").find(keys.integer_key(1)).pins) == ["audit"]
