"""The fence on real Delta tables, with both engines: exact outcomes, conflicts, commits with an unknown outcome."""

import json
import os
import signal
import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException

from catalog import CatalogError, CheckpointCatalog, CheckpointManifest, ConflictError, UnknownOutcomeError
from catalog.tables.locks import log_entry, newest_version
from catalog.tables.names import path_place
from catalog.tables.native import NativeEngine
from catalog.tables.port import Between, Equals, In, Outcome, Table, Unless
from catalog.tables.schema import arrow
from catalog.tables.spark import SparkEngine

INSERTED, EXISTED, REFUSED = Outcome.INSERTED, Outcome.EXISTED, Outcome.REFUSED
numbers = count()


@pytest.fixture(scope="module")
def place(spark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("engine") / "catalog"
    CheckpointCatalog.create(spark, folder)
    return path_place(folder)


@pytest.fixture(params=["spark", "native"])
def engine(request, spark, place):
    return SparkEngine(spark, place) if request.param == "spark" else NativeEngine(place, maintain_every=0)


@pytest.fixture
def stream():
    return f"stream {next(numbers)}"


def row(stream, key, revision=0, change="saved", format="manifest-v1"):
    return {
        "stream": stream,
        "checkpoint_key": f"{key:020d}",
        "revision": revision,
        "change": change,
        "format": format,
        "insert_id": f"insert {next(numbers)}",
        "at": datetime.now(UTC),
    }


def rows(*some):
    return arrow(Table.CHECKPOINTS, some)


def stored(engine, stream):
    found = engine.scan(Table.CHECKPOINTS, [Equals("stream", stream)], ["checkpoint_key", "revision"]).to_pylist()
    return sorted((int(one["checkpoint_key"]), one["revision"]) for one in found)


@pytest.mark.parametrize(
    ("where", "keys"),
    [
        ([Equals("revision", 0)], [1, 2, 3]),
        ([In("checkpoint_key", (f"{1:020d}", f"{3:020d}", "0' OR '1' = '1"))], [1, 3]),
        ([In("checkpoint_key", ())], []),
        ([Between("checkpoint_key", f"{1:020d}", f"{3:020d}")], [1, 2]),
        ([Equals("revision", 0), Between("checkpoint_key", f"{2:020d}", f"{9:020d}")], [2, 3]),
    ],
)
def test_scan_and_delete_take_the_rows_that_meet_every_condition(engine, stream, where, keys):
    stream += "'s \\ \" ` -- 🦊"
    engine.insert_unless(rows(*(row(stream, key) for key in (1, 2, 3))))
    where = [Equals("stream", stream), *where]
    found = engine.scan(Table.CHECKPOINTS, where, ["checkpoint_key"]).column("checkpoint_key").to_pylist()
    assert sorted(map(int, found)) == keys
    engine.delete(Table.CHECKPOINTS, where)
    assert stored(engine, stream) == [(key, 0) for key in (1, 2, 3) if key not in keys]


def test_a_row_goes_in_unless_its_key_has_an_equal_or_higher_revision(engine, stream):
    first = rows(row(stream, 1))
    assert engine.insert_unless(first) == [INSERTED]
    assert engine.insert_unless(first) == [INSERTED], "an own row found again counts as inserted"
    assert engine.insert_unless(rows(row(stream, 1))) == [EXISTED]
    assert engine.insert_unless(rows(row(stream, 1, 2))) == [INSERTED]
    assert engine.insert_unless(rows(row(stream, 1, 1))) == [EXISTED], "a lower revision than the head"
    assert stored(engine, stream) == [(1, 0), (1, 2)]


def test_a_batch_goes_in_row_by_row_in_one_commit(engine, stream):
    engine.insert_unless(rows(row(stream, 2)))
    version = newest_version(engine.place.local_folder / Table.CHECKPOINTS)
    assert engine.insert_unless(rows(row(stream, 1), row(stream, 2), row(stream, 3))) == [INSERTED, EXISTED, INSERTED]
    assert stored(engine, stream) == [(1, 0), (2, 0), (3, 0)]
    assert newest_version(engine.place.local_folder / Table.CHECKPOINTS) == version + 1


def test_a_guard_that_matches_refuses_the_whole_insert(engine, stream):
    engine.insert_unless(rows(row(stream, 1), row(stream, 2, 3, change="purged")))
    purged = Unless(key=f"{2:020d}", change="purged")
    moved = Unless(key=f"{2:020d}", revision_above=2)
    other_format = Unless(format_other_than="manifest-v2")
    for guard in (purged, moved, other_format):
        assert engine.insert_unless(rows(row(stream, 7), row(stream, 8)), [guard]) == [REFUSED, REFUSED]
        assert engine.insert_unless(rows(row(stream, 1)), [guard]) == [EXISTED], "taken is told before refused"
    passing = [
        Unless(key=f"{1:020d}", change="purged"),
        Unless(key=f"{2:020d}", revision_above=3),
        Unless(format_other_than="manifest-v1"),
    ]
    assert engine.insert_unless(rows(row(stream, 7)), passing) == [INSERTED]
    assert stored(engine, stream) == [(1, 0), (2, 3), (7, 0)]


def test_guards_and_keys_look_at_their_own_stream_only(engine, stream):
    engine.insert_unless(rows(row(stream + " other", 1, change="purged", format="manifest-v2")))
    guards = [Unless(key=f"{1:020d}", change="purged"), Unless(format_other_than="manifest-v1")]
    assert engine.insert_unless(rows(row(stream, 1)), guards) == [INSERTED]


def test_a_fenced_insert_rewrites_no_file(engine, stream):
    for key in (1, 2, 3):
        engine.insert_unless(rows(row(stream, key)))
    engine.insert_unless(rows(row(stream, 4)), [Unless(format_other_than="manifest-v1")])
    table = engine.place.local_folder / Table.CHECKPOINTS
    actions = [json.loads(line) for line in log_entry(table, newest_version(table)).read_text().splitlines()]
    assert sorted(next(iter(action)) for action in actions) == ["add", "commitInfo"]


@contextmanager
def out_of_reach(place, stream):
    """Move the data files of a stream away for a while."""
    table = place.local_folder / Table.CHECKPOINTS
    live = pa.table(DeltaTable(str(table)).get_add_actions(flatten=True)).to_pylist()
    files = [table / file["path"] for file in live if file["partition.stream"] == stream]
    assert files
    for file in files:
        file.rename(f"{file}.away")
    try:
        yield
    finally:
        for file in files:
            Path(f"{file}.away").rename(file)


def test_a_fenced_insert_opens_no_file_that_statistics_rule_out(engine, stream):
    for key in (1, 2, 3):
        engine.insert_unless(rows(row(stream, key)))
    guards = [Unless(format_other_than="manifest-v1"), Unless(key=f"{1:020d}", change="purged")]
    guards += [Unless(key=f"{2:020d}", revision_above=0)]
    with out_of_reach(engine.place, stream):
        assert engine.insert_unless(rows(row(stream, 4)), guards) == [INSERTED]
        with pytest.raises(UnknownOutcomeError, match=r"FILE_NOT_EXIST|No such file"):
            engine.insert_unless(rows(row(stream, 3)))
    assert stored(engine, stream) == [(1, 0), (2, 0), (3, 0), (4, 0)]


@pytest.mark.parametrize("engine", ["native"], indirect=True)
def test_the_latest_and_the_next_id_are_found_without_opening_a_file(engine, stream):
    store = CheckpointCatalog(engine).store(stream)
    for one in (1, 2, 3, 4):
        store.save(CheckpointManifest.new(one, epoch=1))
    store.prune(3)
    with out_of_reach(engine.place, stream):
        assert store.next_id() == 5
        assert CheckpointCatalog(engine).stream(stream)._newest_committed() == f"{4:020d}"
        store.save(CheckpointManifest.new(5, epoch=1))
    assert store.load_latest().checkpoint_id == 5
    assert store.list_ids() == [2, 3, 4, 5]


@pytest.fixture
def synced(monkeypatch):
    """What was put on the disk, in order."""
    paths, real = [], os.fsync

    def fsync(descriptor):
        real(descriptor)
        paths.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    monkeypatch.setattr(os, "fsync", fsync)
    return paths


def test_a_save_returns_when_its_files_their_log_entries_and_their_folders_are_on_the_disk(engine, stream, synced):
    CheckpointCatalog(engine).store(stream).save_with_state(CheckpointManifest.new(1, epoch=1), b"state")
    done = list(synced)
    entries = []
    for table in (engine.place.local_folder / Table.ARTIFACTS, engine.place.local_folder / Table.CHECKPOINTS):
        entry = log_entry(table, newest_version(table))
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        (data,) = [table / action["add"]["path"] for action in actions if "add" in action]
        assert {data, data.parent, entry, entry.parent} <= set(done)
        assert done.index(data) < done.index(entry)
        entries.append(done.index(entry))
    assert entries == sorted(entries), "the bytes are durable before the row that names them is committed"


@pytest.mark.parametrize("by_name", [False, True], ids=["folder", "schema"])
def test_a_catalog_is_on_the_disk_when_it_has_been_created(spark, tmp_path, stream, synced, by_name):
    name = f"ckpt_{stream.replace(' ', '_')}"
    engine = CheckpointCatalog.create(spark, name if by_name else tmp_path / name).engine
    assert engine.folder.name.startswith(name)
    for table in Table:
        folder = engine.folder / table
        assert {log_entry(folder, 0), folder / "_delta_log", folder, engine.folder} <= set(synced)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_cannot_use_its_parents_session(engine):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        code = 1
        try:
            engine.scan(Table.CHECKPOINTS, [], ["checkpoint_key"])
        except CatalogError as error:
            code = 2 if f"was forked from process {os.getppid()}" in str(error) else 3
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
    assert isinstance(engine.scan(Table.CHECKPOINTS, [], ["checkpoint_key"]), pa.Table)


def test_durability_can_be_turned_off(spark, tmp_path, stream, synced):
    place = path_place(tmp_path / "catalog")
    NativeEngine.create(place)
    before = len(synced)
    for engine in (SparkEngine(spark, place, durable=False), NativeEngine(place, durable=False)):
        store = CheckpointCatalog(engine).store(stream)
        store.save_with_state(CheckpointManifest.new(store.next_id(), epoch=1), b"state")
    # Other engines of this process may still be at work in their own folders.
    assert [path for path in synced[before:] if path.is_relative_to(tmp_path)] == []


def save_in_threads(spark, place, streams, saves):
    """Save from one thread per stream at once, without the locks that would make them take turns."""
    engine = SparkEngine(spark, place)
    engine._locks = {}  # inside one JVM Delta's own commits are safe
    catalog = CheckpointCatalog(engine)
    failures = []

    def work(name, first):
        try:
            for one in range(first, first + saves):
                catalog.store(name).save(CheckpointManifest.new(one, epoch=1))
        except Exception as error:  # noqa: BLE001 - told to the test below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(name, 1 + 100 * at)) for at, name in enumerate(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    return engine.conflicts, {name: len(catalog.store(name).list_ids()) for name in set(streams)}


def test_two_streams_saving_at_once_record_no_conflict(spark, place, stream):
    conflicts, saved = save_in_threads(spark, place, [stream + " a", stream + " b"], saves=3)
    assert (conflicts, set(saved.values())) == (0, {3})


def test_two_writers_of_one_stream_conflict_and_lose_nothing(spark, place, stream):
    conflicts, saved = save_in_threads(spark, place, [stream, stream], saves=4)
    assert saved == {stream: 8}
    assert conflicts > 0, "the racing MERGEs never met: the fence was not tried"


class FlakySpark(SparkEngine):
    """A real engine whose commit fails, before or after it is done, as often as it is told to."""

    lost = PySparkException("[DELTA_CONCURRENT_APPEND.WITH_PARTITION_HINT] files were added by a concurrent update")
    cut_off = Py4JNetworkError("connection lost")
    failures = ()
    after = False

    def _merge(self, some, condition):
        return fail_around(self, lambda: super(FlakySpark, self)._merge(some, condition))


class FlakyNative(NativeEngine):
    """The same."""

    lost = CommitFailedError("version 7 already exists")
    cut_off = OSError("connection lost")
    failures = ()
    after = False

    def __init__(self, *arguments):
        super().__init__(*arguments)
        loaded = self._tables[Table.CHECKPOINTS]
        commit = loaded.commit
        loaded.commit = lambda *actions, **options: fail_around(self, lambda: commit(*actions, **options))


def fail_around(engine, commit):
    error, *engine.failures = engine.failures or [None]
    if error and not engine.after:
        raise error
    result = commit()
    if error:
        raise error
    return result


@pytest.fixture(params=["spark", "native"])
def flaky(request, spark, place):
    return FlakySpark(spark, place) if request.param == "spark" else FlakyNative(place)


def test_a_commit_that_happened_although_it_failed_is_told_as_inserted(flaky, stream):
    flaky.failures, flaky.after = [flaky.cut_off], True
    assert flaky.insert_unless(rows(row(stream, 1), row(stream, 2))) == [INSERTED, INSERTED]
    assert stored(flaky, stream) == [(1, 0), (2, 0)]


def test_a_commit_whose_outcome_stays_unknown_raises_unknown_outcome(flaky, stream):
    flaky.failures = [flaky.cut_off] * 99
    with pytest.raises(UnknownOutcomeError, match="may or may not have happened: connection lost"):
        flaky.insert_unless(rows(row(stream, 1)))


def test_a_conflict_is_retried_and_given_up_after_a_bounded_number_of_times(flaky, stream):
    flaky.failures = [flaky.lost] * 2
    assert flaky.insert_unless(rows(row(stream, 1))) == [INSERTED]
    assert flaky.conflicts == 2
    flaky._commits.attempts = 3
    flaky.failures = [flaky.lost] * 99
    with pytest.raises(ConflictError, match="lost to other writers 3 times; nothing was written"):
        flaky.insert_unless(rows(row(stream, 2)))
    assert len(flaky.failures) == 96
    assert stored(flaky, stream) == [(1, 0)]
