"""Compaction on real tables, with both engines: fewer files, the same rows, a short log, and a disk that gets free."""

import os
import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, TableFeatures
from deltalake.exceptions import CommitFailedError

from catalog import (
    CheckpointCatalog,
    CheckpointManifest,
    ConflictError,
    CorruptError,
    InvalidInputError,
    ReadOnlyError,
    keys,
)
from catalog.tables import native_upkeep
from catalog.tables import spark as spark_module
from catalog.tables.native_files import DataFiles
from catalog.tables.port import Table
from catalog.tables.schema import SCHEMAS
from catalog.testing import FakeClock
from catalog.testing.native import NativeHarness
from catalog.testing.spark import SparkHarness

KIB, MIB = 1 << 10, 1 << 20
AT_ONCE = timedelta(0)
DAY = timedelta(days=1)


@pytest.fixture(params=["native", "spark"])
def harness(request, tmp_path, clock):
    if request.param == "spark":
        return SparkHarness(request.getfixturevalue("spark"), tmp_path / "catalog", clock)
    return NativeHarness(tmp_path / "catalog", clock, durable=False, maintain_every=0)


@pytest.fixture
def clock(request):
    return FakeClock(datetime.now(UTC) - getattr(request, "param", AT_ONCE))


@pytest.fixture
def catalog(harness):
    return harness.catalog


@pytest.fixture
def native(tmp_path):
    return NativeHarness(tmp_path / "catalog", FakeClock(), durable=False, maintain_every=0)


def fill(place, streams=("s",), count=10, size=KIB):
    """Save checkpoints, one file each, the quick way; both engines have the same tables."""
    with CheckpointCatalog.native(place, maintain_every=0, durable=False) as quick:
        for stream in streams:
            store = quick.store(stream)
            for number in range(store.next_id(), store.next_id() + count):
                store.save_with_state(CheckpointManifest.new(number, epoch=1), os.urandom(size), share=False)


def disk_bytes(place, table=""):
    return sum(file.stat().st_size for file in Path(place, table).rglob("*") if file.is_file())


def live(place, table):
    return {Path(uri).name for uri in DeltaTable(str(place / table)).file_uris()}


def everything(catalog):
    rows = [catalog.engine.scan(table, [], SCHEMAS[table].names) for table in Table]
    return [sorted(table.to_pylist(), key=repr) for table in rows]


def of(report, table):
    return next(one for one in report.tables if one.table is table)


def test_small_files_become_one_per_stream_and_every_row_stays_as_it_was(tmp_path, catalog):
    place = tmp_path / "catalog"
    fill(place, ("a", "b/ü '", "c"))
    catalog.store("a").pin(2, "audit")
    before = everything(catalog)
    report = catalog.compact()
    assert everything(catalog) == before
    artifacts = of(report, Table.ARTIFACTS)
    assert (artifacts.files_before, artifacts.files_after) == (30, 3) == (30, len(live(place, Table.ARTIFACTS)))
    assert of(report, Table.CHECKPOINTS).files_after == len(live(place, Table.CHECKPOINTS)) == 3
    assert artifacts.waiting_bytes == artifacts.bytes_before, "what was merged stays for a while"
    assert report.problems == ()
    assert catalog.validate(depth="hashes").valid
    assert catalog.compact().tables[0].files_after == 3


def test_a_dry_run_says_what_would_be_done_and_changes_nothing(tmp_path, harness, catalog):
    place = tmp_path / "catalog"
    fill(place)
    catalog.compact()
    fill(place)
    harness.clock.advance(2 * DAY)
    before = sorted(place.rglob("*"))
    foreseen = catalog.compact(dry_run=True)
    assert sorted(place.rglob("*")) == before
    done = catalog.compact()
    for planned, found in zip(foreseen.tables, done.tables, strict=True):
        assert (planned.files_before, planned.files_after) == (found.files_before, found.files_after)
        assert (planned.deleted_files, planned.freed_bytes) == (found.deleted_files, found.freed_bytes)
    assert of(done, Table.ARTIFACTS).deleted_files == 10
    assert "would be freed" in foreseen.explain()


# It sweeps today: Spark writes down by the machine's clock when it removed a file.
@pytest.mark.parametrize("clock", [31 * DAY], indirect=True)
def test_what_is_swept_is_really_gone_from_the_disk(tmp_path, harness, catalog):
    """Saved, trashed, purged, swept, compacted: the folder is smaller by the bytes of what went."""
    place, store = tmp_path / "catalog", catalog.store("s")
    states = {number: os.urandom(MIB) for number in range(1, 7)}
    for number, state in states.items():
        store.save_with_state(CheckpointManifest.new(number, epoch=1), state)
    full = disk_bytes(place)
    store.prune(2, undo_for=timedelta(days=30))
    harness.clock.advance(29 * DAY)
    catalog.clean_up(grace=AT_ONCE)
    catalog.compact(keep_removed=AT_ONCE)
    store.restore(4)
    assert store.load_state_data(4) == states[4], "inside the undo window nothing goes"

    harness.clock.advance(2 * DAY)
    (cleaned,) = catalog.clean_up(grace=AT_ONCE)
    assert cleaned.purged == (1, 2, 3)
    assert disk_bytes(place) > full - 3 * MIB, "a sweep alone frees nothing: readers may be under way"
    report = catalog.compact()
    assert disk_bytes(place) > full - 3 * MIB, "removed just now"
    assert of(report, Table.ARTIFACTS).waiting_bytes >= 3 * MIB

    harness.clock.advance(2 * DAY)
    before = disk_bytes(place)
    report = catalog.compact()
    assert before - disk_bytes(place) == pytest.approx(report.freed_bytes, abs=50 * KIB)
    assert full - 3.2 * MIB < disk_bytes(place) < full - 2.8 * MIB, "the bytes of three checkpoints"
    assert not [file for file in (place / Table.ARTIFACTS).rglob("*.crc") if "_delta_log" not in file.parts
                and not file.with_name(file.name[1:-4]).exists()], "no checksum is left behind"  # fmt: skip
    assert {number: store.load_state_data(number) for number in store.list_ids()} == {
        number: states[number] for number in (4, 5, 6)
    }


def test_swept_bytes_go_at_once_if_the_caller_says_so_and_time_travel_stays(tmp_path, harness, catalog):
    place = tmp_path / "catalog"
    fill(place, count=10, size=100 * KIB)
    store = catalog.store("s")
    version = catalog.engine.versions()[-1].number
    before = disk_bytes(place, Table.ARTIFACTS)
    store.prune(1, undo_for=AT_ONCE)
    harness.clock.advance(timedelta(hours=1))
    catalog.clean_up(grace=AT_ONCE)
    catalog.compact(keep_removed=AT_ONCE)
    report = catalog.compact(keep_removed=AT_ONCE)
    assert of(report, Table.ARTIFACTS).waiting_bytes == 0
    assert disk_bytes(place, Table.ARTIFACTS) < before - 850 * KIB
    assert catalog.as_of(version=version).store("s").list_ids() == list(range(1, 11))
    assert of(report, Table.CHECKPOINTS).waiting_bytes > 0, "`checkpoints` keeps what its versions need"
    for wrong in (timedelta(days=2), timedelta(seconds=-1), 0):
        with pytest.raises(InvalidInputError, match="keep_removed must be a timedelta from 0 to 1 days"):
            catalog.compact(keep_removed=wrong)


def test_files_stay_a_day_and_those_of_checkpoints_as_long_as_as_of_promises(tmp_path, native):
    catalog, place = native.catalog, tmp_path / "catalog"
    fill(place)
    version = catalog.engine.versions()[-1].number
    catalog.compact()
    native.clock.advance(timedelta(hours=23))
    assert of(catalog.compact(), Table.ARTIFACTS).deleted_files == 0
    native.clock.advance(timedelta(hours=2))
    assert of(catalog.compact(), Table.ARTIFACTS).deleted_files == 10
    native.clock.advance(timedelta(hours=58))
    assert of(catalog.compact(), Table.CHECKPOINTS).deleted_files == 0
    assert catalog.as_of(version=version).store("s").list_ids() == list(range(1, 11))
    native.clock.advance(timedelta(hours=2))
    assert of(catalog.compact(), Table.CHECKPOINTS).deleted_files == 10
    assert catalog.validate(depth="hashes").valid


@pytest.mark.parametrize(("clock", "remembered"), [(AT_ONCE, 10), (3 * DAY, 0)], indirect=["clock"])
def test_log_checkpoints_forget_what_was_removed_days_ago_and_so_stay_small_for_years(tmp_path, clock, remembered):
    place = tmp_path / "catalog"
    with CheckpointCatalog.native(place, create=True, clock=clock, durable=False, maintain_every=0) as catalog:
        fill(place)
        catalog.compact()
    newest = max((place / Table.ARTIFACTS / "_delta_log").glob("*.checkpoint.parquet"))
    rows = pq.ParquetFile(newest).read(columns=["add.path", "remove.path"])
    named = [sum(row is not None and row["path"] is not None for row in rows[kind].to_pylist())
             for kind in ("add", "remove")]  # fmt: skip
    assert named == [1, remembered]


def test_what_a_killed_writer_left_goes_after_a_week_and_a_running_ones_file_stays(tmp_path, native):
    table = tmp_path / "catalog" / Table.ARTIFACTS
    (table / "part-of-a-save.parquet").write_bytes(b"x" * 1000)
    native.clock.advance(timedelta(days=6, hours=23))
    native.catalog.compact(keep_removed=AT_ONCE)
    assert (table / "part-of-a-save.parquet").exists()
    native.clock.advance(timedelta(hours=2))
    assert of(native.catalog.compact(), Table.ARTIFACTS).freed_bytes >= 1000
    assert not (table / "part-of-a-save.parquet").exists()


@pytest.mark.parametrize("commit", ["append to artifacts", "insert into checkpoints"])
def test_a_writer_that_slept_until_its_file_was_deleted_is_told_so_and_nothing_is_saved(
    tmp_path, native, monkeypatch, commit
):
    store, commits = native.catalog.store("s"), native.catalog.engine._commits
    other = CheckpointCatalog.native(tmp_path / "catalog", clock=native.clock, durable=False)
    real, sleeps = commits.run, [8 * DAY]

    def after_a_sleep(attempt, what):
        if sleeps and commit in what:
            native.clock.advance(sleeps.pop())
            other.compact()
        return real(attempt, what)

    monkeypatch.setattr(commits, "run", after_a_sleep)
    with pytest.raises(ConflictError, match="nothing was saved, try again"):
        store.save_with_state(CheckpointManifest.new(1, epoch=1), b"state")
    assert not sleeps
    assert store.list_ids() == []
    store.save_with_state(CheckpointManifest.new(1, epoch=1), b"state")
    assert store.load_state_data(1) == b"state"
    assert other.validate(depth="hashes").valid


def test_a_file_that_is_committed_just_before_it_would_be_deleted_stays(tmp_path, native, monkeypatch):
    """Its writer slept for a week, and goes on between the look at the log and the deletion."""
    place, store = tmp_path / "catalog", native.catalog.store("s")
    other = CheckpointCatalog.native(place, clock=native.clock, durable=False)
    loaded = native.catalog.engine._tables[Table.ARTIFACTS]
    real, real_look, waiting = loaded.append, native_upkeep._removed_at, []
    monkeypatch.setattr(loaded, "append", waiting.append)
    store.save_with_state(CheckpointManifest.new(1, epoch=1), b"state")
    native.clock.advance(8 * DAY)

    def commits_meanwhile(storage):
        if waiting:
            real(waiting.pop())
        return real_look(storage)

    monkeypatch.setattr(native_upkeep, "_removed_at", commits_meanwhile)
    other.compact()
    assert store.load_state_data(1) == b"state"


def test_the_log_is_shortened_to_the_versions_that_are_promised(tmp_path):
    place = tmp_path / "catalog"
    catalog = CheckpointCatalog.native(place, create=True, durable=False, maintain_every=0, keep_versions=20)
    fill(place, count=60)
    foreseen = catalog.compact(dry_run=True)
    report = of(catalog.compact(), Table.CHECKPOINTS)
    assert report.log_entries_before == 61
    assert 20 <= report.log_entries_after <= 32
    assert of(foreseen, Table.CHECKPOINTS).log_entries_after == pytest.approx(report.log_entries_after, abs=2)
    newest = catalog.engine.versions()[-1].number
    assert catalog.as_of(version=newest - 19).store("s").list_ids()


@pytest.mark.parametrize("lose", ["a byte", "a row"])
def test_merged_rows_that_differ_are_refused_and_nothing_is_deleted(tmp_path, native, monkeypatch, lose):
    place = tmp_path / "catalog"
    fill(place)
    native.catalog.compact()
    fill(place)
    native.clock.advance(9 * DAY)
    files = sorted((place / Table.ARTIFACTS).glob("*.parquet"))
    real = DataFiles.write

    def careless(self, stream, tables):
        def changed(rows):
            if lose == "a row":
                return rows.slice(1)
            data = [bytes(one[:-1]) + bytes([one[-1] ^ 1]) for one in rows.column("data").to_pylist()]
            return rows.set_column(rows.column_names.index("data"), "data", pa.array(data, pa.binary()))

        return real(self, stream, (changed(rows) for rows in tables))

    monkeypatch.setattr(DataFiles, "write", careless)
    with pytest.raises(CorruptError, match="merging changed rows; the files stay as they were"):
        native.catalog.compact(keep_removed=AT_ONCE)
    assert sorted((place / Table.ARTIFACTS).glob("*.parquet")) == files
    monkeypatch.undo()
    assert native.catalog.validate(depth="hashes").valid


def test_files_that_hold_a_damaged_chunk_are_left_and_told_and_other_streams_are_merged(tmp_path, native):
    place, catalog = tmp_path / "catalog", native.catalog
    fill(place, ("bad", "good"))
    native.corrupt_state("bad", keys.integer_key(3))
    fill(place, ("bad",))
    report = catalog.compact()
    assert len(report.problems) == 1
    assert "stream 'bad': a chunk of checkpoint 00000000000000000003 is damaged" in report.problems[0]
    assert of(report, Table.ARTIFACTS).files_before - of(report, Table.ARTIFACTS).files_after == 9
    assert [(stream, result.checkpoint_id) for stream, result in catalog.validate(depth="hashes").results] == [
        ("bad", 3)
    ]
    assert "left as it is" in report.explain()


def test_a_table_with_deletion_vectors_is_left_to_spark(tmp_path, native):
    fill(tmp_path / "catalog")
    DeltaTable(str(tmp_path / "catalog" / Table.ARTIFACTS)).alter.add_feature(
        TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
    )
    report = native.catalog.compact()
    assert of(report, Table.ARTIFACTS).files_after == 10
    assert "deletion vectors" in report.problems[0]
    assert of(report, Table.CHECKPOINTS).files_after == 1


def test_of_two_compactions_at_once_one_wins_and_the_other_leaves_no_file(tmp_path, native, monkeypatch):
    place = tmp_path / "catalog"
    fill(place)
    other = CheckpointCatalog.native(place, durable=False)
    real = native_upkeep._compare

    def meanwhile(*arguments):
        monkeypatch.setattr(native_upkeep, "_compare", real)
        other.compact()
        real(*arguments)

    monkeypatch.setattr(native_upkeep, "_compare", meanwhile)
    before = everything(native.catalog)
    assert native.catalog.compact().problems == ()
    assert everything(native.catalog) == before
    assert len(list((place / Table.ARTIFACTS).glob("*.parquet"))) == 11


def commits_and_fails(catalog, monkeypatch, error):
    """Let the next commit to `artifacts` happen, and its caller believe that it did not."""
    loaded = catalog.engine._tables[Table.ARTIFACTS]
    real, failures = loaded.commit, [error]

    def committed_and_failed(*arguments, **options):
        real(*arguments, **options)
        if failures:
            raise failures.pop()

    monkeypatch.setattr(loaded, "commit", committed_and_failed)
    return failures


# A store that answers too late is asked again by its client, which then finds its own commit in the way.
FAILURES = pytest.mark.parametrize("error", [OSError("reset"), CommitFailedError("version exists")], ids=repr)


@FAILURES
def test_a_merge_whose_commit_may_have_happened_never_loses_its_new_file(tmp_path, native, monkeypatch, error):
    fill(tmp_path / "catalog")
    failures = commits_and_fails(native.catalog, monkeypatch, error)
    native.catalog.compact(keep_removed=AT_ONCE)
    assert not failures
    assert native.catalog.validate(depth="hashes").valid
    assert len(live(tmp_path / "catalog", Table.ARTIFACTS)) == 1


@FAILURES
def test_a_sweep_whose_commit_may_have_happened_never_loses_the_rows_that_stay(tmp_path, native, monkeypatch, error):
    fill(tmp_path / "catalog")
    native.catalog.compact()
    native.catalog.store("s").prune(5, undo_for=AT_ONCE)
    native.clock.advance(DAY)
    failures = commits_and_fails(native.catalog, monkeypatch, error)
    native.catalog.clean_up(grace=AT_ONCE)
    assert not failures
    assert native.catalog.engine.scan(Table.ARTIFACTS, [], ["checkpoint_key"]).num_rows == 5
    assert native.catalog.validate(depth="hashes").valid


def test_spark_merges_artifacts_where_its_workers_are(spark, tmp_path, monkeypatch):
    place = tmp_path / "catalog"
    catalog = CheckpointCatalog.create(spark, place)
    fill(place, ("a", "b"))
    tasks = []
    real = spark_module.SparkEngine.spread

    def counted(self, some, work):
        tasks.extend(pickle.loads(one)[:2] for one in some)
        return real(self, some, work)

    monkeypatch.setattr(spark_module.SparkEngine, "spread", counted)
    seen = []
    catalog.compact(progress=seen.append)
    assert sorted(tasks) == [(Table.ARTIFACTS, "a"), (Table.ARTIFACTS, "b")]
    assert [one.bytes for one in seen if one.table is Table.ARTIFACTS][-1] == seen[0].of_bytes
    assert catalog.store("b").load_state_data(10)


def test_the_past_is_not_compacted(native, tmp_path):
    fill(tmp_path / "catalog")
    version = native.catalog.engine.versions()[-1].number
    with pytest.raises(ReadOnlyError):
        native.catalog.as_of(version=version).compact()
