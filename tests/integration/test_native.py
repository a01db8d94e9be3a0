"""The native engine: no JVM, commits that are seen everywhere, logs that stay short, bytes that stay the same."""

import asyncio
import errno
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from catalog import (
    AbandonedError,
    CatalogError,
    CheckpointCatalog,
    CheckpointManifest,
    CheckpointManifestV2,
    CheckpointStore,
    CorruptError,
    DamagedCatalogError,
    InvalidInputError,
    LockTimeoutError,
    NotACatalogError,
    PurgedError,
    ReadOnlyError,
    SharedFile,
    cutting,
    keys,
    lifecycle,
    new_uuid7,
    reader,
    retention,
)
from catalog.cli.main import app
from catalog.protocol import Stream
from catalog.report.gather import gather
from catalog.tables import locks as locks_module
from catalog.tables import native, native_files, native_log, native_upkeep
from catalog.tables.commits import judge
from catalog.tables.locks import CommitLock, log_checkpoint, log_entry, newest_version
from catalog.tables.port import Equals, In, Table
from catalog.tables.schema import SCHEMAS, arrow
from tests.planted import plant_marks

LIFE_WITHOUT_SPARK = """
import asyncio, sys
from catalog import CheckpointCatalog, CheckpointManifest, CheckpointId, CheckpointState, new_uuid7

cat = CheckpointCatalog.native(sys.argv[1], create=True)
store = cat.store("orders", max_retained=2)
for _ in range(4):
    store.save_with_state(CheckpointManifest.new(store.next_id(), epoch=1), [b"state"])
store.restore(2)
store.cleanup_orphans()
asyncio.run(cat.checkpointer("clicks").save_snapshot(new_uuid7(), "count", 0, b"everything"))
cat.state_store().save(CheckpointState.new(CheckpointId("sensor", 1)))
cat.compact()
print(store.recover_latest_validated().chosen_id, store.list_ids(), cat.streams())
print(sorted({"pyspark", "py4j", "delta", "great_expectations"} & set(sys.modules)))
"""


def new_catalog(tmp_path, **options):
    return CheckpointCatalog.native(tmp_path / "catalog", create=True, **options)


def save(store, times=1, **fields):
    for _ in range(times):
        store.save(CheckpointManifest.new(store.next_id(), epoch=1, **fields))


def test_the_whole_life_of_a_checkpoint_imports_no_spark(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LIFE_WITHOUT_SPARK, str(tmp_path / "catalog")],
        env={**os.environ, "JAVA_HOME": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == ["4 [2, 3, 4] ['orders', 'sensor']", "[]"], done.stderr


def test_a_place_without_a_catalog_is_refused_unless_it_is_to_be_created(tmp_path):
    with pytest.raises(NotACatalogError, match=r"native\(path, create=True\)"):
        CheckpointCatalog.native(tmp_path / "typo")
    assert not (tmp_path / "typo").exists()
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotACatalogError, match="is a file"):
        CheckpointCatalog.native(tmp_path / "file", create=True)
    write_deltalake(str(tmp_path / "other" / "checkpoints"), pa.table({"x": [1]}))
    with pytest.raises(NotACatalogError):
        CheckpointCatalog.native(tmp_path / "other")


@pytest.mark.parametrize("options", [{"maintain_every": -1}, {"keep_versions": 0}])
def test_options_that_make_no_sense_are_refused(tmp_path, options):
    new_catalog(tmp_path)
    with pytest.raises(InvalidInputError):
        CheckpointCatalog.native(tmp_path / "catalog", **options)


@pytest.mark.parametrize("actor", [5, "\ud800", "x" * 513], ids=ascii)
def test_an_actor_that_is_no_name_is_refused_before_anything_is_written(tmp_path, actor):
    with pytest.raises(InvalidInputError, match="actor"):
        CheckpointCatalog.native(tmp_path / "new", create=True, actor=actor)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "at", [datetime(2026, 1, 1), datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC), 0], ids=str
)
def test_a_clock_that_cannot_be_right_is_refused_before_anything_is_written_and_whenever_it_goes_wrong(tmp_path, at):
    with pytest.raises(InvalidInputError, match="clock"):
        CheckpointCatalog.native(tmp_path / "catalog", create=True, clock=lambda: at)
    assert list(tmp_path.iterdir()) == []
    times = [datetime.now(UTC)]
    store = CheckpointCatalog(new_catalog(tmp_path).engine, clock=lambda: times[-1]).store("s")
    store.save(CheckpointManifest.new(1, epoch=1))
    times.append(at)
    with pytest.raises(InvalidInputError, match="clock"):
        store.save(CheckpointManifest.new(2, epoch=2))
    assert store.list_ids() == [1]


def test_what_was_written_by_a_clock_at_the_end_of_time_can_be_changed_and_cleaned_up(tmp_path):
    catalog = new_catalog(tmp_path)
    wrong = CheckpointStore(Stream(catalog.engine, "s", clock=lambda: datetime.max.replace(tzinfo=UTC), actor="wrong"))
    save(wrong, times=3)
    wrong.save_state_data(4, b"never saved")
    wrong._stream.trash(lambda history, now: retention.drop(history, [keys.integer_key(1)], "old", now), timedelta(0))
    store = catalog.store("s")
    store.pin(2, "audit")
    assert store.prune(1) == 0
    store.unpin(2)
    assert store.prune(1) == 1
    assert catalog.clean_up()[0].swept.orphans == 0
    save(catalog.store("s", max_retained=1))
    assert store.list_ids() == [4]


def test_a_catalog_and_its_stores_tell_where_they_are(tmp_path):
    catalog = CheckpointCatalog.native(tmp_path, create=True)
    assert repr(catalog) == f"CheckpointCatalog('{tmp_path}', native)"
    assert repr(catalog.store("it's")) == f'CheckpointStore("it\'s" at {tmp_path})'
    assert repr(catalog.checkpointer("")) == f"Checkpointer('' at {tmp_path})"
    assert repr(catalog.as_of(version=0)).startswith(f"CheckpointCatalog('{tmp_path}', as of version 0, of 2")


def test_no_name_of_a_stream_disturbs_the_commits_of_others(tmp_path):
    store = new_catalog(tmp_path).store("a\u2028b\u2029c\x85d")
    save(store, times=12)
    fresh = new_catalog(tmp_path)  # puts the last commit before its first on the disk, as of a killed writer
    save(fresh.store("innocent"))
    fresh.compact()
    assert (store.list_ids(), fresh.store("innocent").list_ids()) == (list(range(1, 13)), [1])


def test_a_create_again_opens_what_is_there(tmp_path):
    save(new_catalog(tmp_path).store("s"))
    assert new_catalog(tmp_path).store("s").list_ids() == [1]
    assert CheckpointCatalog.native(f"file:{tmp_path}/catalog").store("s").list_ids() == [1]


@pytest.mark.parametrize("name", ["a%20b", "a%2Fb", "a\\b", "a\nb"], ids=ascii)
def test_a_folder_that_delta_rs_takes_for_another_is_refused_and_not_made(tmp_path, name):
    """With a catalog in `a b`, it is that one's log that delta-rs reads for `a%20b`."""
    save(CheckpointCatalog.native(tmp_path / "a b", create=True).store("s"))
    for create in (True, False):
        with pytest.raises(InvalidInputError, match="cannot be a catalog's folder"):
            CheckpointCatalog.native(tmp_path / name / "catalog", create=create)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a b"]


@pytest.mark.parametrize("name", ["a b", "50%", "%zz", "#?*[]{}:;+", "é", "'\"`~"])
def test_any_other_folder_is_itself(tmp_path, name):
    store = CheckpointCatalog.native(tmp_path / name, create=True).store("s")
    save(store, times=11)
    assert CheckpointCatalog.native(tmp_path / name).store("s").list_ids() == store.list_ids()
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_a_missing_table_is_made_anew_only_if_no_bytes_are_lost_by_it(tmp_path):
    place = tmp_path / "catalog"
    new_catalog(tmp_path)
    for table in (Table.EVENTS, Table.ARTIFACTS):
        shutil.rmtree(place / table)
        with pytest.raises(DamagedCatalogError, match=f"the table `{table}` is gone"):
            CheckpointCatalog.native(place)
        store = new_catalog(tmp_path).store("s")
    store.save_with_state(CheckpointManifest.new(1, epoch=1), [b"state"])
    shutil.rmtree(place / Table.ARTIFACTS)
    with pytest.raises(DamagedCatalogError, match="`artifacts` is gone"):
        new_catalog(tmp_path)
    assert not (place / Table.ARTIFACTS).exists()


@pytest.mark.parametrize("state", [b"state", None])
def test_a_new_table_of_checkpoints_must_not_make_garbage_of_what_is_in_the_others(tmp_path, state):
    place = tmp_path / "catalog"
    catalog = new_catalog(tmp_path)
    catalog.store("s").save_with_state(CheckpointManifest.new(1, epoch=1), state)
    catalog.validate()  # is told in `events`
    backup = shutil.move(place / Table.CHECKPOINTS, tmp_path / "backup")
    for opening in (partial(CheckpointCatalog.native, place), partial(new_catalog, tmp_path)):
        with pytest.raises(DamagedCatalogError, match="its table `checkpoints` is gone"):
            opening()
    assert not (place / Table.CHECKPOINTS).exists()
    shutil.move(backup, place / Table.CHECKPOINTS)
    assert new_catalog(tmp_path).store("s").load_state_data(1) == state


def test_a_catalog_without_its_log_is_damaged_and_one_of_which_nothing_was_made_yet_is_none(tmp_path):
    place = tmp_path / "catalog"
    new_catalog(tmp_path).store("s").save(CheckpointManifest.new(1, epoch=1))
    log = place / Table.CHECKPOINTS / "_delta_log"
    shutil.rmtree(log)
    for opening in (partial(CheckpointCatalog.native, place), partial(new_catalog, tmp_path)):
        with pytest.raises(DamagedCatalogError, match="the table `checkpoints` cannot be read"):
            opening()
    assert not log.exists(), "a new log would hide what was lost"
    shutil.rmtree(place / Table.CHECKPOINTS)
    log.mkdir(parents=True)  # where creating was killed
    with pytest.raises(NotACatalogError, match="no checkpoint catalog at"):
        CheckpointCatalog.native(place)
    assert new_catalog(tmp_path).streams() == []


@pytest.mark.parametrize("left", ["half", "garbage"])
def test_a_log_that_cannot_be_read_is_no_reason_to_make_a_new_catalog(tmp_path, left):
    catalog = new_catalog(tmp_path)
    save(catalog.store("s"), times=2)
    assert catalog.store("s").list_ids() == [1, 2]
    folder = tmp_path / "catalog" / Table.CHECKPOINTS
    entry = log_entry(folder, newest_version(folder))
    whole = entry.read_bytes()
    entry.write_bytes(whole[:-20] if left == "half" else b"\0" * len(whole))
    for use in (
        lambda: CheckpointCatalog.native(tmp_path / "catalog"),
        lambda: CheckpointCatalog.native(tmp_path / "catalog", create=True),
        catalog.store("s").list_ids,
    ):
        with pytest.raises(NotACatalogError, match=r"catalog at .*`checkpoints` cannot be read .* move"):
            use()
    entry.rename(tmp_path / "aside")
    assert CheckpointCatalog.native(tmp_path / "catalog").store("s").list_ids() == [1]


WHAT_PEOPLE_DO = {
    "save": lambda _, store: save(store),
    "save state": lambda _, store: store.save_with_state(CheckpointManifest.new(9, epoch=1), b"state"),
    "list": lambda _, store: store.list_ids(),
    "load": lambda _, store: store.load_state_data(1),
    "recover": lambda _, store: store.recover_latest_validated(),
    "prune": lambda _, store: store.prune(1),
    "versions": lambda catalog, _: catalog.as_of(version=1),
    "compact": lambda catalog, _: catalog.compact(),
    "settle": lambda catalog, _: catalog.engine.settle(Table.CHECKPOINTS),
}


@pytest.mark.parametrize("what", WHAT_PEOPLE_DO)
@pytest.mark.parametrize("gone", [".", Table.CHECKPOINTS, f"{Table.CHECKPOINTS}/_delta_log"], ids=str)
def test_a_catalog_that_is_removed_while_it_is_open_is_told_as_such(tmp_path, gone, what):
    catalog = new_catalog(tmp_path, durable=False)
    store = catalog.store("s")
    for number in (1, 2):
        store.save_with_state(CheckpointManifest.new(number, epoch=1), b"state")
    catalog.close()  # what was about to be loaded ahead is loaded
    shutil.rmtree(tmp_path / "catalog" / gone)
    with pytest.raises(NotACatalogError, match="was removed while"):
        WHAT_PEOPLE_DO[what](catalog, store)
    assert not (tmp_path / "catalog" / gone).exists()


@pytest.mark.parametrize("written_since", range(5))
def test_a_folder_put_back_from_a_backup_is_read_anew_whatever_was_written_to_it_since(tmp_path, written_since):
    """With as many versions as before, or fewer, or more: the numbers alone do not tell it from what was loaded."""
    place, backup = tmp_path / "catalog", tmp_path / "backup"
    living = new_catalog(tmp_path, durable=False)
    store = living.store("s")
    save(store, times=2)
    shutil.copytree(place, backup)
    save(store, times=2)
    assert store.list_ids() == [1, 2, 3, 4]
    times = living.engine.versions()
    shutil.rmtree(place)
    shutil.copytree(backup, place)
    save(CheckpointCatalog.native(place).store("other"), times=written_since)

    if written_since >= 2:
        assert living.engine.versions()[3:5] != times[3:5]
    assert store.list_ids() == [1, 2]
    save(store)
    fresh = CheckpointCatalog.native(place)
    assert fresh.store("s").list_ids() == [1, 2, 3]
    assert fresh.store("other").list_ids() == living.store("other").list_ids() == list(range(1, written_since + 1))
    logged = [one.number for one in fresh.engine.versions()]
    assert logged == list(range(4 + written_since)), "no version is missing, and none has been overwritten"


def test_both_engines_create_the_same_tables(spark, tmp_path):
    new_catalog(tmp_path)
    CheckpointCatalog.create(spark, tmp_path / "by spark")
    for table in Table:
        by_native, by_spark = (DeltaTable(str(tmp_path / name / table)) for name in ("catalog", "by spark"))
        assert by_native.schema().to_json() == by_spark.schema().to_json()
        assert by_native.metadata().configuration == by_spark.metadata().configuration
        assert by_native.metadata().description == by_spark.metadata().description
        assert by_native.metadata().partition_columns == by_spark.metadata().partition_columns == ["stream"]
        assert by_native.protocol() == by_spark.protocol()


def test_processes_that_live_long_and_fresh_ones_see_each_others_commits(tmp_path):
    old = new_catalog(tmp_path).store("s")
    for _ in range(3):
        save(old)
        fresh = CheckpointCatalog.native(tmp_path / "catalog").store("s")
        save(fresh)
        assert old.list_ids() == fresh.list_ids()
    assert old.next_id() == 7


def test_a_process_that_slept_while_the_log_was_shortened_sees_what_is_there_now(tmp_path):
    sleeper = new_catalog(tmp_path).store("s")
    save(sleeper)
    busy = CheckpointCatalog.native(tmp_path / "catalog", maintain_every=10, keep_versions=5)
    save(busy.store("s"), times=120)
    table = tmp_path / "catalog" / Table.CHECKPOINTS
    assert not log_entry(table, 2).exists(), "the log was not shortened: nothing was tried"
    assert sleeper.next_id() == 122
    assert len(sleeper.list_ids()) == 121
    save(sleeper)
    assert busy.store("s").load_latest().checkpoint_id == 122


def test_log_checkpoints_are_made_in_time(tmp_path):
    save(new_catalog(tmp_path, maintain_every=0).store("s"), times=35)
    table = tmp_path / "catalog" / Table.CHECKPOINTS
    made = [version for version in range(36) if log_checkpoint(table, version).exists()]
    assert [version // native_log.LOG_CHECKPOINT_EVERY for version in made] == [1, 2, 3]


def test_tidying_merges_small_files_and_leaves_the_promised_versions_readable(tmp_path):
    catalog = new_catalog(tmp_path, maintain_every=20, keep_versions=60)
    store = catalog.store("s")
    for number in range(1, 131):
        store.save_with_state(CheckpointManifest.new(number, epoch=number), f"state {number}".encode())
    for table in (Table.CHECKPOINTS, Table.ARTIFACTS):
        folder = tmp_path / "catalog" / table
        newest = newest_version(folder)
        entries = len(list((folder / "_delta_log").glob("*.json")))
        assert 60 <= entries <= 60 + 10 + 25, "as many as promised, and back to the log checkpoint before them"
        assert pa.table(DeltaTable(str(folder)).get_add_actions()).num_rows < 30
        for version in (newest - 59, newest - 30, newest):
            assert DeltaTable(str(folder), version=version).to_pyarrow_table(columns=["stream"]).num_rows > 0
    assert store.list_ids() == list(range(1, 131))
    assert [store.load_state_data(one) for one in (1, 64, 130)] == [b"state 1", b"state 64", b"state 130"]


def test_merging_changes_no_row(tmp_path):
    catalog = new_catalog(tmp_path, maintain_every=0)
    for stream in ("a", "b/ü '"):
        store = catalog.store(stream)
        save(store, times=6, sink_commit_statuses={"x": "Pending"})
        store.pin(2, "audit")
        store.prune(3)
        store.save_with_state(CheckpointManifest.new(7, epoch=7), b"bytes")

    def everything():
        rows = [catalog.engine.scan(table, [], SCHEMAS[table].names) for table in Table]
        return [sorted(table.to_pylist(), key=repr) for table in rows]

    before = everything()
    catalog.compact()
    assert everything() == before
    files = pa.table(DeltaTable(str(tmp_path / "catalog" / Table.CHECKPOINTS)).get_add_actions(flatten=True))
    assert files.num_rows == 2
    assert catalog.store("a").next_id() == 8


def test_files_that_other_tools_wrote_under_encoded_names_are_read_merged_and_deleted(tmp_path):
    catalog = new_catalog(tmp_path, maintain_every=0)
    table = tmp_path / "catalog" / Table.EVENTS
    stream = "100 % it's/ü"
    row = {"stream": stream, "event": "verified", "at": datetime.now(UTC)}
    for _ in range(10):
        write_deltalake(DeltaTable(str(table)), arrow(Table.EVENTS, [row]), mode="append")
    catalog.compact()
    assert catalog.engine.scan(Table.EVENTS, [Equals("stream", stream)], ["event"]).num_rows == 10
    write_deltalake(DeltaTable(str(table)), arrow(Table.EVENTS, [row, {**row, "event": "drilled"}]), mode="append")
    assert catalog.engine.delete(Table.EVENTS, [Equals("stream", stream), Equals("event", "verified")]) == 11
    assert DeltaTable(str(table)).to_pyarrow_table().column("event").to_pylist() == ["drilled"]


def test_a_delete_keeps_rows_whose_column_is_null(tmp_path):
    catalog = new_catalog(tmp_path)
    at = datetime.now(UTC)
    rows = [{"stream": "s", "event": "e", "at": at, "checkpoint_key": key} for key in ("1", None, "2")]
    catalog.engine.append(Table.EVENTS, [arrow(Table.EVENTS, rows)])
    assert catalog.engine.delete(Table.EVENTS, [Equals("stream", "s"), Equals("checkpoint_key", "1")]) == 1
    kept = catalog.engine.scan(Table.EVENTS, [], ["checkpoint_key"]).column("checkpoint_key").to_pylist()
    assert sorted(kept, key=str) == ["2", None]


def test_an_address_that_nobody_knows_is_refused_clearly():
    with pytest.raises(NotACatalogError, match="Unknown scheme"):
        CheckpointCatalog.native("nope://bucket/folder")
    with pytest.raises(ReadOnlyError, match="cannot create a catalog at nope://bucket/folder"):
        CheckpointCatalog.native("nope://bucket/folder", create=True)


def test_a_version_keeps_its_time_while_others_commit(tmp_path):
    catalog, others, stop = new_catalog(tmp_path), new_catalog(tmp_path), threading.Event()

    def work():
        for number in itertools.count(1):
            others.store("s").save(CheckpointManifest.new(number, epoch=1))
            if stop.is_set():
                return

    thread = threading.Thread(target=work)
    thread.start()
    times, seen = {}, []
    try:
        while len(seen) < 50:
            seen = catalog.engine.versions()
            assert [one.number for one in seen] == list(range(len(seen)))
            assert all(times.setdefault(one.number, one.at) == one.at for one in seen)
    finally:
        stop.set()
        thread.join()
    anew = {one.number: one.at for one in new_catalog(tmp_path).engine.versions()}
    assert anew.items() >= times.items()


def test_tidying_that_fails_never_fails_the_commit(tmp_path, monkeypatch, caplog):
    catalog = new_catalog(tmp_path, maintain_every=1)

    def broken(*_):
        raise OSError("disk trouble")

    monkeypatch.setattr(native_upkeep.Upkeep, "_merge", broken)
    save(catalog.store("s"))
    assert catalog.store("s").list_ids() == [1]
    assert "tidying" in caplog.text


def test_a_row_without_a_required_column_is_refused_and_nothing_is_written(tmp_path):
    catalog = new_catalog(tmp_path)
    with pytest.raises(InvalidInputError, match="column event of events must not be NULL"):
        catalog.engine.append(Table.EVENTS, [arrow(Table.EVENTS, [{"stream": "s"}])])
    assert list((tmp_path / "catalog" / Table.EVENTS).glob("*.parquet")) == []


def test_a_losing_insert_leaves_no_file_behind(tmp_path):
    catalog = new_catalog(tmp_path)
    store = catalog.store("s")
    save(store)
    files = set((tmp_path / "catalog" / Table.CHECKPOINTS).glob("*.parquet"))
    with pytest.raises(Exception, match="different content"):
        store.save(CheckpointManifest.new(1, epoch=99))
    assert set((tmp_path / "catalog" / Table.CHECKPOINTS).glob("*.parquet")) == files


def test_a_file_is_written_and_read_in_bounded_pieces(tmp_path):
    data = os.urandom(cutting.CHUNK_BYTES * 2 + 7)
    (tmp_path / "state").write_bytes(data)
    store = new_catalog(tmp_path).store("s")
    for number, source in enumerate((tmp_path / "state", SharedFile(tmp_path / "state")), start=1):
        store.save_with_state(CheckpointManifest.new(number, epoch=1), source)
        assert store.load_state_data(number) == data
        assert [len(chunk) for chunk in store.iter_state_data(number)] == [cutting.CHUNK_BYTES] * 2 + [7]


AT_EXIT = """
import atexit, sys
from catalog import CheckpointCatalog, CheckpointManifest

store = CheckpointCatalog.native(sys.argv[1], create=True).store("s")
store.save(CheckpointManifest.new(1, epoch=1))

def last_words():
    store.save_with_state(CheckpointManifest.new(2, epoch=1), b"x" * (9 << 20))
    print(store.list_ids(), len(store.load_state_data(2)))

atexit.register(last_words)
"""


def test_a_checkpoint_can_be_saved_and_loaded_while_the_interpreter_shuts_down(tmp_path):
    command = [sys.executable, "-c", AT_EXIT, str(tmp_path / "catalog")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == (f"[1, 2] {9 << 20}", "")


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(
    "use",
    [
        lambda catalog, _: catalog.store("s").save(CheckpointManifest.new(2, epoch=1)),
        lambda catalog, _: catalog.store("s").save_with_state(CheckpointManifest.new(2, epoch=1), b"x" * (3 << 20)),
        lambda catalog, _: catalog.store("s").list_ids(),
        lambda catalog, _: catalog.compact(),
        lambda _, place: CheckpointCatalog.native(place),
        lambda _, place: CheckpointCatalog.native(place / "new", create=True),
    ],
    ids=["save", "save much", "read", "compact", "open anew", "create"],
)
def test_a_forked_process_is_told_what_to_do_instead_of_hanging(tmp_path, use):
    """Neither the threads of deltalake nor those of this package are in it: a save hung, or ended in a panic."""
    catalog = new_catalog(tmp_path)
    save(catalog.store("s"))
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        code = 1
        try:
            use(catalog, tmp_path / "catalog")
        except CatalogError as error:
            code = 2 if f"was forked from process {os.getppid()}" in str(error) and "'spawn'" in str(error) else 3
            catalog.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
    assert not (tmp_path / "catalog" / "new").exists()
    save(catalog.store("s"))
    assert catalog.store("s").list_ids() == [1, 2]


def test_a_disk_that_fails_to_store_an_early_part_fails_the_save(tmp_path, monkeypatch):
    store = new_catalog(tmp_path).store("s")
    real, faults = native_files.fsync, [OSError(5, "Input/output error")]

    def fsync(path):
        if path.suffix == ".parquet" and faults:
            raise faults.pop()
        real(path)

    monkeypatch.setattr(native_files, "fsync", fsync)
    with pytest.raises(OSError, match="Input/output error"):
        store.save_with_state(CheckpointManifest.new(1, epoch=1), os.urandom(20 << 20))
    assert store.list_ids() == []
    assert list((tmp_path / "catalog" / Table.ARTIFACTS).glob("*.parquet")) == []


@pytest.mark.parametrize("left", [None, 0, 100], ids=["gone", "empty", "cut off"])
def test_recovery_falls_back_from_a_damaged_data_file_and_other_streams_are_tidied_on(tmp_path, left, caplog):
    catalog = new_catalog(tmp_path, maintain_every=0)
    store, table = catalog.store("s"), tmp_path / "catalog" / Table.ARTIFACTS
    store.save_with_state(CheckpointManifest.new(1, epoch=1), b"good")
    before = set(table.glob("*.parquet"))
    store.save_with_state(CheckpointManifest.new(2, epoch=1), b"damaged")
    (newest,) = set(table.glob("*.parquet")) - before
    content = newest.read_bytes()
    newest.unlink()
    if left is not None:
        newest.write_bytes(content[:left])
    with pytest.raises(CorruptError):
        store.load_state_data(2)
    report = store.recover_latest_validated()
    assert report.chosen_id == 1
    found = catalog.validate(["s"]).results
    assert [(one.checkpoint_id, one.issues[0].rule) for _, one in found] == [(2, "state_unreadable")]
    assert store.load_state_data(1) == b"good"

    for number in range(3, 10):
        store.save_with_state(CheckpointManifest.new(number, epoch=1), b"more")
    other = CheckpointCatalog.native(tmp_path / "catalog", maintain_every=1, keep_versions=3).store("other")
    for number in range(1, 20):
        other.save_with_state(CheckpointManifest.new(number, epoch=1), b"x")
    assert "cannot be merged" in caplog.text
    assert not log_entry(table, 0).exists(), "the log is shortened all the same"
    assert other.list_ids() == list(range(1, 20))


@pytest.mark.parametrize("at", [0.0, 0.2, 0.5], ids=["head", "page", "middle"])
def test_recovery_falls_back_from_a_file_whose_pages_cannot_be_decoded(tmp_path, at):
    """Arrow tells a damaged page by an OSError, as it tells a disk that fails."""
    catalog = new_catalog(tmp_path, maintain_every=0)
    store, table = catalog.store("s"), tmp_path / "catalog" / Table.ARTIFACTS
    store.save_with_state(CheckpointManifest.new(1, epoch=1), b"good")
    before = set(table.glob("*.parquet"))
    store.save_with_state(CheckpointManifest.new(2, epoch=1), b"compressible " * 50_000)
    (newest,) = set(table.glob("*.parquet")) - before
    content = bytearray(newest.read_bytes())
    first = int(len(content) * at)
    content[first : first + 100] = bytes(byte ^ 0xA5 for byte in content[first : first + 100])
    newest.write_bytes(content)
    with pytest.raises(CorruptError):
        store.load_state_data(2)
    assert store.recover_latest_validated().chosen_id == 1
    assert [one.checkpoint_id for _, one in catalog.validate(["s"], depth="hashes").results] == [2]
    assert store.load_state_data(1) == b"good"


def test_a_disk_that_cannot_be_read_is_not_called_a_damaged_file(tmp_path, monkeypatch):
    store = new_catalog(tmp_path).store("s")
    store.save_with_state(CheckpointManifest.new(1, epoch=1), b"state")

    def fail(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", fail)
    with pytest.raises(OSError, match="Input/output error"):
        store.load_state_data(1)


def test_a_lock_that_stays_busy_leaves_no_file_behind(tmp_path):
    catalog = new_catalog(tmp_path, lock_timeout_s=0.2)
    folder = tmp_path / "catalog"
    with CommitLock(folder / Table.ARTIFACTS).held(), pytest.raises(LockTimeoutError, match="nothing was written"):
        catalog.store("s").save_with_state(CheckpointManifest.new(1, epoch=1), b"bytes")
    with CommitLock(folder / Table.CHECKPOINTS).held(), pytest.raises(LockTimeoutError, match="nothing was written"):
        catalog.store("s").save(CheckpointManifest.new(1, epoch=1))
    assert [list((folder / table).glob("*.parquet")) for table in Table] == [[], [], []]


def test_settling_puts_a_killed_writers_last_commit_on_the_disk(tmp_path, monkeypatch):
    careless = new_catalog(tmp_path, durable=False)
    careless.store("s").save(CheckpointManifest.new(1, epoch=1))
    table = tmp_path / "catalog" / Table.CHECKPOINTS
    synced = []
    monkeypatch.setattr(locks_module, "fsync", synced.append)
    CheckpointCatalog.native(tmp_path / "catalog").engine.settle(Table.CHECKPOINTS)
    (data,) = table.glob("*.parquet")
    assert {data, log_entry(table, 1), table, table / "_delta_log"} <= set(synced)


def test_files_that_deltalake_rewrote_with_its_own_kinds_of_text_are_read(tmp_path):
    catalog = new_catalog(tmp_path, maintain_every=0)
    save(catalog.store("s"), times=3)
    table = DeltaTable(str(tmp_path / "catalog" / Table.CHECKPOINTS))
    table.update(updates={"reason": "'touched'"}, predicate="stream = 's'")
    assert catalog.store("s").list_ids() == [1, 2, 3]
    assert catalog.validate(["s"]).results == ()
    assert catalog.recover("s").chosen_id == 3


@pytest.mark.parametrize("looked_through", [native_files.SMALL_FILE, 0], ids=["in memory", "by statistics"])
def test_what_a_step_makes_of_a_stream_does_not_grow_with_its_marks(tmp_path, monkeypatch, looked_through):
    monkeypatch.setattr(native, "SMALL_FILE", looked_through)
    catalog = new_catalog(tmp_path, maintain_every=0)
    made = []
    monkeypatch.setattr(reader, "Revision", lambda **row: made.append(row) or lifecycle.Revision(**row))

    def steps(name, first):
        store = catalog.store(name, max_retained=2)
        for number in range(first, first + 4):
            store.save(CheckpointManifest.new(number, epoch=1))
        look_back = catalog.as_of(version=catalog.engine.versions()[-1].number).store(name)
        made.clear()
        assert (store.load_latest(), store.list_ids()) == (store.load_by_id(first + 3), [1, first + 2, first + 3])
        assert (store.prune(2), store.recover_latest_validated().chosen_id) == (0, first + 3)
        assert [one for one, _ in store.list()] == look_back.list_ids() == [1, first + 2, first + 3]
        assert store.next_id() == first + 4
        catalog.clean_up([name])
        assert [one.key for one in catalog.stream(name).history().values() if not one.unpurged] == []
        return len(made)

    for name, marks in (("few", 10), ("many", 5_000)):
        save(catalog.store(name))
        catalog.store(name).pin(1, "old")
        plant_marks(catalog, name, range(2, marks))
    assert steps("few", 10) == steps("many", 5_000)
    plant_marks(catalog, "many", [7_000])
    assert catalog.store("many").next_id() == 7_001
    with pytest.raises(PurgedError):
        catalog.store("many").save(CheckpointManifest.new(4_000, epoch=1))
    plant_marks(catalog, "marks only", [1, 3])
    assert (catalog.store("marks only").next_id(), catalog.store("marks only").list_ids()) == (4, [])
    assert catalog.validate(["marks only"]).results == ()


def test_files_that_can_have_none_of_many_keys_are_not_opened(tmp_path):
    """As one pinned long ago and many new ones are: what is between them is not looked through."""
    catalog = new_catalog(tmp_path, maintain_every=0)
    engine, wanted = catalog.engine, [1, *range(100, 130)]
    for numbers in (wanted[:1], range(50, 60), wanted[1:]):
        plant_marks(catalog, "s", numbers)
    asked = In("checkpoint_key", tuple(f"{one:020d}" for one in wanted))
    files = engine._tables[Table.CHECKPOINTS].refreshed().select([[Equals("stream", "s"), asked]])
    assert files.num_rows == 2
    assert engine.scan(Table.CHECKPOINTS, [asked], ["checkpoint_key"]).num_rows == len(wanted)


def test_a_save_does_not_look_through_marks_beside_one_that_has_no_format(tmp_path, monkeypatch):
    """As an id has that was given up before it was saved: a stream's format may not be told by a file's statistics."""
    monkeypatch.setattr(native, "SMALL_FILE", 0)
    catalog = new_catalog(tmp_path, maintain_every=0)
    for first in range(1, 1_000, 100):
        plant_marks(catalog, "s", range(first, first + 100))
    plant_marks(catalog, "s", [2_000], change="abandoned", format="", revision=0)
    catalog.compact()
    judged = []

    def watched(wanted, rows, unless):
        judged.append(len(rows))
        return judge(wanted, rows, unless)

    monkeypatch.setattr(native, "judge", watched)
    stream = catalog.store("s")
    stream.save(CheckpointManifest.new(3_000, epoch=1))
    with pytest.raises(AbandonedError):
        stream.save(CheckpointManifest.new(2_000, epoch=1))
    with pytest.raises(InvalidInputError, match="manifest-v1"):
        asyncio.run(catalog.checkpointer("s").save_manifest(CheckpointManifestV2.new(new_uuid7(), 1)))
    assert judged[:2] == [0, 1]


def test_a_save_goes_on_without_auto_prune_when_what_came_before_cannot_be_read(tmp_path, caplog):
    catalog = new_catalog(tmp_path, maintain_every=0)
    store, table = catalog.store("s", max_retained=2), tmp_path / "catalog" / Table.CHECKPOINTS
    save(store)
    (oldest,) = table.glob("*.parquet")
    save(store, 3)
    oldest.write_bytes(oldest.read_bytes()[:100])
    fresh = CheckpointCatalog.native(tmp_path / "catalog", maintain_every=0).store("s", max_retained=2)
    fresh.save(CheckpointManifest.new(5, epoch=1))
    assert fresh.load_by_id(5).epoch == 1
    assert "auto-prune of stream 's' failed" in caplog.text
    with pytest.raises(CorruptError, match=r"rows of stream 's' cannot be read.*docs/OPERATIONS.md"):
        fresh.prune(1)


def test_a_damaged_file_of_one_streams_rows_keeps_no_other_stream_from_being_told(tmp_path):
    catalog = new_catalog(tmp_path, maintain_every=0)
    table = tmp_path / "catalog" / Table.CHECKPOINTS
    save(catalog.store("a"), 2)
    before = set(table.glob("*.parquet"))
    save(catalog.store("b"))
    (damaged,) = set(table.glob("*.parquet")) - before
    save(catalog.store("c"))
    damaged.write_bytes(damaged.read_bytes()[:100])
    catalog = CheckpointCatalog.native(tmp_path / "catalog", maintain_every=0)
    why = f"rows of stream 'b' cannot be read.*{damaged.name}.*docs/OPERATIONS.md"

    report = catalog.validate()
    assert (report.valid, report.checked, [one for one, _ in report.unreadable]) == (False, 3, ["b"])
    assert re.search(why, report.explain())
    told = []
    assert list(catalog.histories(damaged=lambda name, error: told.append((name, str(error))))) == ["a", "c"]
    assert [name for name, error in told if re.search(why, error)] == ["b"]
    assert [bool(re.search(why, one)) for one in gather(catalog, now=datetime.now(UTC)).unreadable] == [True]
    for call in (catalog.histories, catalog.store("b").recover_latest_validated, catalog.store("b").load_latest):
        with pytest.raises(CorruptError, match=why) as raised:
            call()
        assert raised.value.stream == "b"
    for command in ("list", "streams", "validate"):
        done = CliRunner().invoke(app, [command, str(tmp_path / "catalog")])
        assert (command, done.exit_code) == (command, 3)
        assert damaged.name in done.output, command


def test_who_holds_the_lock_and_writes_does_not_wait_for_who_waits_for_the_lock(tmp_path):
    engine = new_catalog(tmp_path, maintain_every=0).engine
    loaded = engine._tables[Table.CHECKPOINTS]
    row = {"stream": "s", "checkpoint_key": "1", "revision": 0, "change": "saved", "format": "f", "insert_id": "i"}
    big = arrow(Table.CHECKPOINTS, [{**row, "at": datetime.now(UTC), "manifest": "x" * native_files.SMALL_FILE}])
    written = threading.Event()

    def write_while_it_is_held():
        with loaded.committing():
            behind = engine._ahead.submit(loaded._catch_up, native_log.LOG_CHECKPOINT_EVERY)
            while not behind.running():
                pass
            loaded.files.write("s", [big])
            written.set()

    threading.Thread(target=write_while_it_is_held, daemon=True).start()
    assert written.wait(60), "each waits for the other"
