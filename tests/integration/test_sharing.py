"""State stored once: what is written again, what it costs to know, and what memory it takes."""

import asyncio
import random
import tracemalloc
import uuid
from pathlib import Path

import pytest

from catalog import (
    CheckpointCatalog,
    CheckpointId,
    CheckpointManifest,
    CheckpointManifestV2,
    CheckpointState,
    cutting,
    keys,
    new_uuid7,
)
from catalog.snapshot import CheckpointOptions, ExecutionType, SnapshotStrategyRunner
from catalog.strategies import DirectorySnapshotStrategy
from catalog.sweep import sweep
from catalog.testing import FakeClock
from catalog.testing.native import NativeHarness
from catalog.testing.stream_factory_suite import AT_ONCE, SHARED, CatalogCheckpoints, Watched, artifact, read

MIB = 1 << 20
CHUNK = 256 << 10


@pytest.fixture(scope="module")
def harness(tmp_path_factory):
    return NativeHarness(tmp_path_factory.mktemp("sharing") / "catalog", FakeClock(), durable=False)


@pytest.fixture
def job(harness):
    return CatalogCheckpoints(harness, str(uuid.uuid4()))


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of 256 KiB, the smallest that are shared, so that a few megabytes are many chunks."""
    sizes = {"CHUNK_BYTES": CHUNK, "CDC_MIN_BYTES": CHUNK, "CDC_AVERAGE_BYTES": 2 * CHUNK, "CDC_MAX_BYTES": 4 * CHUNK}
    for name, size in {**sizes, "_CDC_WINDOW_BYTES": 16 * CHUNK}.items():
        monkeypatch.setattr(cutting, name, size)


def save(job, number, state, **options):
    job.store.save_with_state(CheckpointManifest.new(number, 1), state, **options)
    rows = job.rows(number)
    written = [len(row["data"]) for row in rows if row["data"] is not None]
    (saved,) = [row for row in job.harness.checkpoint_rows(job.name) if int(row["checkpoint_key"]) == number]
    assert saved["shared_bytes"] == sum(row["chunk_size"] for row in rows) - sum(written)
    return len(rows), written


@pytest.mark.usefixtures("small_chunks")
class TestWhatIsWrittenAgain:
    def test_of_state_that_changes_in_place_only_the_chunks_that_changed(self, job):
        state = bytearray(random.Random(1).randbytes(100 * CHUNK))
        assert save(job, 1, bytes(state)) == (100, [CHUNK] * 100)
        state[40 * CHUNK : 41 * CHUNK] = random.Random(2).randbytes(CHUNK)
        assert save(job, 2, bytes(state)) == (100, [CHUNK])
        assert save(job, 3, bytes(state)) == (100, [])
        assert save(job, 4, bytes(state), share=False) == (100, [CHUNK] * 100)
        assert job.store.load_state_data(3) == state

    def test_of_state_in_which_bytes_are_inserted_only_the_chunks_around_them(self, job):
        state = random.Random(1).randbytes(40 * CHUNK)
        save(job, 1, state, cutting="content")
        _, written = save(job, 2, b"inserted" + state, cutting="content")
        assert sum(written) <= 6 * CHUNK
        assert job.store.load_state_data(2) == b"inserted" + state
        _, written = save(job, 3, b"again" + state)
        assert sum(written) == len(b"again" + state), "cut every so many bytes, nothing is the same any more"

    def test_along_a_chain_whose_old_ones_go_every_state_loads(self, job):
        changes, state = random.Random(7), bytearray(random.Random(1).randbytes(8 * CHUNK))
        for number in range(1, 9):
            at = changes.randrange(8) * CHUNK
            state[at : at + CHUNK] = changes.randbytes(CHUNK)
            _, written = save(job, number, bytes(state))
            assert len(written) == (8 if number == 1 else 1)
            if number > 2:
                job.delete(number - 2)
            for kept in job.store.list_ids():
                assert job.store.validate_checkpoint(kept).valid
            assert job.store.load_state_data(number) == state
        rows = job.stream.engine.scan("artifacts", [], ["stream", "data"]).to_pylist()
        held = [row for row in rows if row["stream"] == job.name and row["data"] is not None]
        assert len(held) <= 9, "chunk by chunk: what both use, and the one that changed"
        job.purge(7, 8)
        sweep(job.stream, AT_ONCE)
        assert job.artifacts() == 0

    def test_who_has_the_chunks_is_asked_once_however_many_there_are(self, job):
        save(job, 1, bytes(CHUNK))
        asked = []
        for chunks in (2, 40):
            engine = Watched(job.harness.catalog.engine)
            store = CheckpointCatalog(engine, clock=job.harness.clock).store(job.name)
            number = store.next_id()
            engine.calls.clear()
            store.save_with_state(CheckpointManifest.new(number, 1), random.Random(1).randbytes(chunks * CHUNK))
            asked.append(engine.calls["scan"])
            engine.calls.clear()
            store.save_with_state(CheckpointManifest.new(number + 1, 1), bytes(chunks * CHUNK), previous=number)
            asked.append(engine.calls["scan"])
        assert asked[:2] == asked[2:]
        assert max(asked) <= 4


def test_a_large_stream_holds_a_few_chunks_at_a_time(job):
    """300 MiB: what Python holds meanwhile is counted, bytes of the tables' own buffers not."""
    piece = random.Random(1).randbytes(MIB)
    artifact(job.factory(2))  # what is imported when it is first used does not count
    tracemalloc.start()
    try:
        stream = job.factory(1, share=False).create_checkpoint_state_output_stream(SHARED)
        before, _ = tracemalloc.get_traced_memory()
        for number in range(300):
            stream.write(number.to_bytes(4))
            stream.write(piece)
        handle = stream.close_and_get_handle()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert handle.size_bytes == 300 * (MIB + 4)
    assert peak - before < 80 * MIB
    assert after - before < 6 * MIB, "nothing is kept beside the rows' hashes, whoever keeps the stream"
    with job.open(handle) as file:
        file.seek(299 * (MIB + 4))
        assert file.read() == (299).to_bytes(4) + piece


def test_many_files_are_not_kept_in_memory_until_the_last_one_is_written(job, tmp_path):
    folder = tmp_path / "db"
    folder.mkdir()
    for number in range(24):
        (folder / str(number)).write_bytes(random.Random(number).randbytes(3 * MIB))
    factory = job.factory(1)
    runner = SnapshotStrategyRunner("db", DirectorySnapshotStrategy(folder), ExecutionType.SYNCHRONOUS)
    tracemalloc.start()
    try:
        task = runner.snapshot(1, 0, factory, CheckpointOptions())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(task.result().handles) == 24
    assert peak < 30 * MIB


def test_a_handle_of_state_that_is_everywhere_the_same_comes_back(job):
    factory = job.factory(1)
    handle = artifact(factory, bytes(9 * MIB))
    job.save(factory, [handle, *factory.duplicate([handle], SHARED)])
    later = job.factory(2)
    again = artifact(later, bytes(5 * MIB))
    job.save(later, [again])
    job.delete(1)
    assert read(job.open(again)) == bytes(5 * MIB)
    job.delete(2)
    assert job.artifacts() == 0


class Stores:
    """Save and read back state of a stream through a store of seed 004."""

    def __init__(self, catalog, stream):
        self.catalog, self.stream = catalog, stream

    def save(self, number, state):
        self.catalog.store(self.stream).save_with_state(CheckpointManifest.new(number, 1), state)
        return number

    def load(self, saved):
        return self.catalog.store(self.stream).load_state_data(saved)


class Factories(Stores):
    """The same through checkpoint streams."""

    def save(self, number, state):
        store = self.catalog.store(self.stream)
        factory = store.stream_factory(number)
        handles = {"op": {"0": artifact(factory, state)}}
        store.save_with_handles(CheckpointManifest.new(number, 1, operator_handles=handles), factory)
        return number

    def load(self, saved):
        store = self.catalog.store(self.stream)
        return read(store.open_handle(store.load_by_id(saved).operator_handles["op"]["0"]))


class States(Stores):
    """The same through a state store."""

    def save(self, number, state):
        made = CheckpointState.new(CheckpointId(self.stream, number))
        made.set_operator_state("op", state)
        self.catalog.state_store().save(made)
        return number

    def load(self, saved):
        return self.catalog.state_store().load(self.stream, saved).operator_states["op"]


class Checkpointers(Stores):
    """The same through a checkpointer."""

    def save(self, _, state):
        saved = new_uuid7()
        checkpointer = self.catalog.checkpointer(self.stream)

        async def save():
            sha256 = await checkpointer.save_snapshot(saved, "op", 0, state)
            entry = {"partition_id": 0, "is_delta": False, "path": self.path(saved), "size_bytes": len(state)}
            partitions = {"op": {"partitions": [{**entry, "sha256": sha256}]}}
            await checkpointer.save_manifest(CheckpointManifestV2.new(saved, 1, operators=partitions))
            await checkpointer.update_latest(saved)

        asyncio.run(save())
        return saved

    def load(self, saved):
        return asyncio.run(self.catalog.checkpointer(self.stream).load_artifact(self.path(saved)))

    def path(self, saved):
        return f"{saved}/operators/op/partition-0.snap"


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("api", [Stores, Factories, States, Checkpointers])
def test_whoever_saves_asks_for_a_base_as_often_for_many_chunks_as_for_a_few(harness, api):
    asked = []
    for chunks in (6, 24):
        engine = Watched(harness.catalog.engine)
        one = api(CheckpointCatalog(engine, clock=harness.clock), str(uuid.uuid4()))
        for number in (1, 2):
            one.save(number, random.Random(number).randbytes(chunks * CHUNK))
        asked.append(engine.calls["scan"])
    assert asked[0] == asked[1]


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("api", [Stores, Factories, States, Checkpointers])
class TestOfWhatIsDamagedNothingIsShared:
    state = random.Random(1).randbytes(8 * CHUNK)

    def test_by_whoever_saves_after_a_recovery_that_passed_it_over(self, harness, api):
        """Who processes the same again makes the same chunks."""
        one = api(harness.catalog, str(uuid.uuid4()))
        first, second = one.save(1, bytes(8 * CHUNK)), one.save(2, self.state)
        key = keys.any_key(second)
        harness.corrupt_state(one.stream, key)
        assert harness.catalog.recover(one.stream).chosen_id == first
        third = one.save(3, self.state)
        assert one.load(third) == self.state
        assert harness.catalog.recover(one.stream).chosen_id == third
        one.save(4, self.state)
        rows = harness.catalog.engine.scan("artifacts", [], ["stream", "via"]).to_pylist()
        assert {row["via"] for row in rows if row["stream"] == one.stream} == {None, keys.any_key(third)}

    def test_and_who_was_never_asked_to_share_with_it_saves_all_the_same(self, tmp_path, api, caplog):
        """A file of zero bytes, as a power cut leaves it: sharing only saves space."""
        catalog = CheckpointCatalog.native(tmp_path / "catalog", create=True)
        one = api(catalog, "s")
        one.save(1, bytes(8 * CHUNK))
        before = files(tmp_path)
        one.save(2, self.state)
        (last,) = files(tmp_path) - before
        last.write_bytes(b"")
        later = api(CheckpointCatalog.native(tmp_path / "catalog"), "s")
        assert later.load(later.save(3, self.state)) == self.state
        assert "writes all bytes" in caplog.text


def files(folder: Path) -> set[Path]:
    return set((folder / "catalog" / "artifacts").rglob("*.parquet"))


def test_what_began_before_one_went_back_is_not_shared_with(harness):
    """It may have borrowed what recovery has passed over since."""
    name = str(uuid.uuid4())
    store, other = harness.catalog.store(name), harness.catalog.store(name)
    for number in (1, 2):
        store.save_with_state(CheckpointManifest.new(number, 1), bytes([number]) * CHUNK)
    late = store.stream_factory(3)
    handles = {"op": {"0": artifact(late, b"\2" * CHUNK)}}
    other.go_on_from(1)
    store.save_with_handles(CheckpointManifest.new(3, 1, operator_handles=handles), late)
    assert [harness.catalog.stream(name).base().key, store.stream_factory(4)._work.base().key] == [
        keys.integer_key(1)
    ] * 2
    other.save_with_state(CheckpointManifest.new(4, 1), b"\1" * CHUNK)
    assert store.stream_factory(5)._work.base().key == keys.integer_key(4)
