"""State stored once: what is written again, what it costs to know, and what memory it takes."""

import random
import tracemalloc
import uuid

import pytest

from catalog import CheckpointCatalog, CheckpointManifest, cutting
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
