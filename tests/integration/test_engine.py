"""The fence on real Delta tables: exact outcomes, conflicts, and commits whose outcome is not known at first."""

import threading
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from catalog import CheckpointCatalog, CheckpointManifest, ConflictError, UnknownOutcomeError
from catalog.tables import spark as spark_module
from catalog.tables.names import path_place
from catalog.tables.port import Equals, Outcome, Table, Unless
from catalog.tables.schema import arrow
from catalog.tables.spark import SparkEngine

INSERTED, EXISTED, REFUSED = Outcome.INSERTED, Outcome.EXISTED, Outcome.REFUSED
numbers = count()


@pytest.fixture(scope="module")
def place(spark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("engine") / "catalog"
    CheckpointCatalog.create(spark, folder)
    return path_place(folder)


@pytest.fixture
def engine(spark, place):
    return SparkEngine(spark, place)


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


def test_a_row_goes_in_unless_its_key_has_an_equal_or_higher_revision(engine, stream):
    first = rows(row(stream, 1))
    assert engine.insert_unless(first) == [INSERTED]
    assert engine.insert_unless(first) == [INSERTED], "an own row found again counts as inserted"
    assert engine.insert_unless(rows(row(stream, 1))) == [EXISTED]
    assert engine.insert_unless(rows(row(stream, 1, 2))) == [INSERTED]
    assert engine.insert_unless(rows(row(stream, 1, 1))) == [EXISTED], "a lower revision than the head"
    assert stored(engine, stream) == [(1, 0), (1, 2)]


def test_a_batch_goes_in_row_by_row_in_one_commit(spark, engine, stream):
    engine.insert_unless(rows(row(stream, 2)))
    versions = spark.sql(f"DESCRIBE HISTORY {engine.place.table(Table.CHECKPOINTS).sql}").count()
    assert engine.insert_unless(rows(row(stream, 1), row(stream, 2), row(stream, 3))) == [INSERTED, EXISTED, INSERTED]
    assert stored(engine, stream) == [(1, 0), (2, 0), (3, 0)]
    assert spark.sql(f"DESCRIBE HISTORY {engine.place.table(Table.CHECKPOINTS).sql}").count() == versions + 1


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


def test_a_fenced_insert_rewrites_no_file(spark, engine, stream):
    for key in (1, 2, 3):
        engine.insert_unless(rows(row(stream, key)))
    engine.insert_unless(rows(row(stream, 4)), [Unless(format_other_than="manifest-v1")])
    merge = spark.sql(f"DESCRIBE HISTORY {engine.place.table(Table.CHECKPOINTS).sql} LIMIT 1").collect()[0]
    assert merge["operation"] == "MERGE"
    assert merge["operationMetrics"]["numTargetFilesRemoved"] == "0"
    assert merge["operationMetrics"]["numSourceRows"] == "1"
    assert merge["operationMetrics"].get("numTargetBytesRemoved", "0") == "0"


def test_a_fenced_insert_opens_no_file_that_statistics_rule_out(spark, engine, stream):
    for key in (1, 2, 3):
        engine.insert_unless(rows(row(stream, key)))
    frame = spark.table(engine.place.table(Table.CHECKPOINTS).sql).where(F.col("stream") == stream)
    files = [Path(one.path.removeprefix("file:")) for one in frame.select("_metadata.file_path").toDF("path").collect()]
    for file in files:
        file.rename(f"{file}.away")
    try:
        guards = [Unless(format_other_than="manifest-v1"), Unless(key=f"{1:020d}", change="purged")]
        guards += [Unless(key=f"{2:020d}", revision_above=0)]
        assert engine.insert_unless(rows(row(stream, 4)), guards) == [INSERTED]
        with pytest.raises(UnknownOutcomeError, match="FILE_NOT_EXIST"):
            engine.insert_unless(rows(row(stream, 3)))
    finally:
        for file in files:
            Path(f"{file}.away").rename(file)
    assert stored(engine, stream) == [(1, 0), (2, 0), (3, 0), (4, 0)]


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


class Flaky(SparkEngine):
    """A real engine whose MERGE fails, before or after it is done, as often as it is told to."""

    fails: int
    after: bool
    error: Exception

    def _merge(self, some, condition):
        if self.fails and not self.after:
            self.fails -= 1
            raise self.error
        inserted = super()._merge(some, condition)
        if self.fails:
            self.fails -= 1
            raise self.error
        return inserted


def flaky(spark, place, fails, after, error):
    engine = Flaky(spark, place)
    engine.fails, engine.after, engine.error = fails, after, error
    return engine


def test_a_commit_that_happened_although_it_failed_is_told_as_inserted(spark, place, stream):
    engine = flaky(spark, place, 1, True, Py4JNetworkError("connection lost"))
    assert engine.insert_unless(rows(row(stream, 1), row(stream, 2))) == [INSERTED, INSERTED]
    assert stored(engine, stream) == [(1, 0), (2, 0)]


def test_a_commit_whose_outcome_stays_unknown_raises_unknown_outcome(spark, place, stream):
    engine = flaky(spark, place, 99, False, Py4JNetworkError("connection lost"))
    with pytest.raises(UnknownOutcomeError, match="may or may not have happened: connection lost"):
        engine.insert_unless(rows(row(stream, 1)))


def test_a_conflict_is_retried_and_given_up_after_a_bounded_number_of_times(spark, place, stream, monkeypatch):
    lost = PySparkException("[DELTA_CONCURRENT_APPEND.WITH_PARTITION_HINT] files were added by a concurrent update")
    engine = flaky(spark, place, 2, False, lost)
    assert engine.insert_unless(rows(row(stream, 1))) == [INSERTED]
    assert engine.conflicts == 2
    monkeypatch.setattr(spark_module, "CONFLICT_ATTEMPTS", 3)
    engine.fails = 99
    with pytest.raises(ConflictError, match="lost to other writers 3 times; nothing was written"):
        engine.insert_unless(rows(row(stream, 2)))
    assert engine.fails == 96
    assert stored(engine, stream) == [(1, 0)]
