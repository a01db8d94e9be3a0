"""Creating and opening catalogs: by path, by name, and where there is none."""

import os
import pickle
import shutil
import uuid
from datetime import UTC, datetime
from functools import partial

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from catalog import (
    CatalogError,
    CheckpointCatalog,
    CheckpointManifest,
    DamagedCatalogError,
    InvalidInputError,
    NotACatalogError,
    ReadOnlyError,
    SessionError,
    SharedFile,
    UnsupportedFormatError,
    artifacts,
)
from catalog.cutting import CHUNK_BYTES
from catalog.tables.locks import LOCK_FILE
from catalog.tables.port import Equals, Table
from catalog.tables.schema import FORMAT_PROPERTY, SCHEMAS


@pytest.fixture(scope="module")
def place(spark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("places") / "catalog"
    CheckpointCatalog.create(spark, folder)
    return folder


@pytest.mark.parametrize("table", Table)
def test_the_tables_have_the_columns_and_properties_that_both_engines_agree_on(spark, place, table):
    frame = spark.read.format("delta").load(str(place / table))
    assert spark.createDataFrame(SCHEMAS[table].empty_table()).schema.fieldNames() == frame.schema.fieldNames()
    found = {field.name: field for field in frame.limit(0).toArrow().schema}
    for field in SCHEMAS[table]:
        assert found[field.name].type == field.type, field.name
    assert all(field.metadata.get("comment") for field in frame.schema.fields)
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{place / table}`").collect()[0]
    assert detail["partitionColumns"] == ["stream"]
    assert detail["properties"][FORMAT_PROPERTY] == "1"
    # A feature beyond these would shut the native engine out.
    assert set(detail["tableFeatures"]) <= {"appendOnly", "invariants"}


def test_create_again_opens_what_is_there(spark, place):
    CheckpointCatalog.create(spark, place).store("again").save(CheckpointManifest.new(1, epoch=1))
    assert CheckpointCatalog.create(spark, f"file:{place}").store("again").list_ids() == [1]
    assert CheckpointCatalog.for_path(spark, str(place)).store("again").list_ids() == [1]


def test_a_create_that_died_half_way_is_finished_by_the_next(spark, tmp_path):
    CheckpointCatalog.create(spark, tmp_path / "catalog")
    shutil.rmtree(tmp_path / "catalog" / "checkpoints")
    with pytest.raises(NotACatalogError):
        CheckpointCatalog.for_path(spark, tmp_path / "catalog")
    assert CheckpointCatalog.create(spark, tmp_path / "catalog").streams() == []


@pytest.mark.parametrize("prefix", ["", "spark_catalog."], ids=["one part", "two parts"])
def test_a_catalog_lives_in_a_schema(spark, prefix):
    name = f"{prefix}`ckpt_{uuid.uuid4().hex[:6]}`"
    store = CheckpointCatalog.create(spark, name).store("orders")
    store.save_with_state(CheckpointManifest.new(1, epoch=1), [b"by name"])
    opened = CheckpointCatalog.for_name(spark, name).store("orders")
    assert (opened.list(), opened.load_state_data(1)) == ([(1, 1)], b"by name")
    schema = name.removeprefix(prefix)
    assert (
        spark.sql(f"SELECT max(checkpoint_key) FROM spark_catalog.{schema}.checkpoints").collect()[0][0] == f"{1:020d}"
    )


def test_three_parts_are_refused_by_a_spark_catalog_that_has_no_nested_schemas_with_its_own_words(spark):
    with pytest.raises(NotACatalogError, match=r"`spark_catalog`\.`a`\.`b`.*REQUIRES_SINGLE_PART_NAMESPACE"):
        CheckpointCatalog.create(spark, "spark_catalog.a.b")


def test_what_is_not_a_catalog_is_refused_and_stays_untouched(spark, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("buy milk")
    spark.range(1).write.format("delta").save(str(tmp_path / "foreign" / "checkpoints"))
    for missing in ("nothing", "notes", "foreign"):
        with pytest.raises(NotACatalogError, match=r"CheckpointCatalog\.create"):
            CheckpointCatalog.for_path(spark, tmp_path / missing)
    with pytest.raises(NotACatalogError, match=r"todo\.txt"):
        CheckpointCatalog.create(spark, tmp_path / "notes")
    assert [entry.name for entry in (tmp_path / "notes").iterdir()] == ["todo.txt"]
    with pytest.raises(NotACatalogError, match="not made by checkpoint-catalog"):
        CheckpointCatalog.create(spark, tmp_path / "foreign")
    assert spark.read.format("delta").load(str(tmp_path / "foreign" / "checkpoints")).count() == 1
    with pytest.raises(NotACatalogError, match="is a file"):
        CheckpointCatalog.create(spark, tmp_path / "notes" / "todo.txt")
    with pytest.raises(NotACatalogError, match="no_such_schema"):
        CheckpointCatalog.for_name(spark, "no_such_schema")
    for bad in ("a.b.c.d", "", "a..b"):
        with pytest.raises(InvalidInputError):
            CheckpointCatalog.for_name(spark, bad)


def test_a_newer_format_is_refused(spark, tmp_path):
    CheckpointCatalog.create(spark, tmp_path / "catalog")
    table = f"delta.`{tmp_path}/catalog/checkpoints`"
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{FORMAT_PROPERTY}' = '2')")
    for opening in (CheckpointCatalog.for_path, CheckpointCatalog.create):
        with pytest.raises(UnsupportedFormatError, match="upgrade checkpoint-catalog"):
            opening(spark, tmp_path / "catalog")


DEFAULTS = {
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    **{
        f"spark.databricks.delta.properties.defaults.{name}": value
        for name, value in {
            "columnMapping.mode": "name",
            "enableRowTracking": "true",
            "enableInCommitTimestamps": "true",
            "enableTypeWidening": "true",
            "enableChangeDataFeed": "true",
            "enableDeletionVectors": "true",
            "checkpointPolicy": "v2",
            "appendOnly": "true",
        }.items()
    },
}


def test_a_sessions_defaults_for_tables_do_not_change_what_a_catalog_is(spark, tmp_path):
    for name, value in DEFAULTS.items():
        spark.conf.set(name, value)
    try:
        by_spark = CheckpointCatalog.create(spark, tmp_path / "catalog")
        native = CheckpointCatalog.native(tmp_path / "catalog")
        for number, catalog in enumerate((by_spark, native), start=1):
            catalog.store("s").save_with_state(CheckpointManifest.new(number, epoch=1), [b"state"])
        for catalog in (by_spark, native):
            assert [catalog.store("s").load_state_data(one) for one in (1, 2)] == [b"state"] * 2
            assert catalog.validate(depth="hashes").results == ()
    finally:
        for name in DEFAULTS:
            spark.conf.unset(name)
    for table in Table:
        protocol = DeltaTable(str(tmp_path / "catalog" / table)).protocol()
        assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)


def test_a_table_with_features_that_only_one_engine_can_write_is_refused(spark, tmp_path):
    CheckpointCatalog.create(spark, tmp_path / "catalog")
    table = f"delta.`{tmp_path}/catalog/checkpoints`"
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')")
    for opening in (partial(CheckpointCatalog.for_path, spark), CheckpointCatalog.native):
        with pytest.raises(UnsupportedFormatError, match=r"writer version 7: .*rowTracking"):
            opening(tmp_path / "catalog")


def test_a_catalog_that_was_removed_is_told_as_none(spark, tmp_path):
    catalog = CheckpointCatalog.create(spark, tmp_path / "catalog")
    catalog.store("s").save(CheckpointManifest.new(1, epoch=1))
    shutil.rmtree(tmp_path / "catalog")
    for look in (catalog.store("s").list_ids, catalog.streams, partial(catalog.as_of, version=1)):
        with pytest.raises(NotACatalogError, match="no checkpoint catalog at"):
            look()
    for deploy in (partial(catalog.view, "checkpoint_list"), catalog.deploy_views):
        with pytest.raises(NotACatalogError, match="no checkpoint catalog at"):
            deploy()
    with pytest.raises(NotACatalogError, match="was removed while its catalog was open"):
        catalog.store("s").save(CheckpointManifest.new(2, epoch=1))
    assert not (tmp_path / "catalog").exists()


def test_a_missing_table_is_noticed_and_made_anew_only_if_no_bytes_are_lost_by_it(spark):
    name = f"ckpt_{uuid.uuid4().hex[:6]}"
    opened = CheckpointCatalog.create(spark, name)
    for table in (Table.EVENTS, Table.ARTIFACTS):
        spark.sql(f"DROP TABLE {name}.{table}")
        with pytest.raises(DamagedCatalogError, match=f"the table `{table}` is gone"):
            CheckpointCatalog.for_name(spark, name)
        opened = CheckpointCatalog.create(spark, name)
    opened.store("s").save_with_state(CheckpointManifest.new(1, epoch=1), [b"state"])
    spark.sql(f"DROP TABLE {name}.artifacts")
    for opening in (CheckpointCatalog.for_name, CheckpointCatalog.create):
        with pytest.raises(DamagedCatalogError, match="`artifacts` is gone"):
            opening(spark, name)
    assert not spark.catalog.tableExists(f"{name}.artifacts")


def test_a_new_table_of_checkpoints_must_not_make_garbage_of_what_is_in_the_others(spark):
    name = f"ckpt_{uuid.uuid4().hex[:6]}"
    opened = CheckpointCatalog.create(spark, name)
    opened.store("s").save_with_state(CheckpointManifest.new(1, epoch=1), [b"state"])
    spark.sql(f"DROP TABLE {name}.checkpoints")
    for opening in (CheckpointCatalog.for_name, CheckpointCatalog.create):
        with pytest.raises(DamagedCatalogError, match="its table `checkpoints` is gone"):
            opening(spark, name)
    assert not spark.catalog.tableExists(f"{name}.checkpoints")


def test_a_catalog_by_path_is_found_whatever_the_sessions_current_catalog_is(spark, tmp_path):
    jdbc = "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog"
    driver = "org.apache.derby.iapi.jdbc.AutoloadedDriver"
    for name, value in {"": jdbc, ".url": "jdbc:derby:memory:other;create=true", ".driver": driver}.items():
        spark.conf.set(f"spark.sql.catalog.other{name}", value)
    spark.sql("USE other")
    try:
        catalog = CheckpointCatalog.create(spark, tmp_path / "catalog")
        store = catalog.store("s", max_retained=1)
        for number in (1, 2):
            store.save_with_state(CheckpointManifest.new(number, epoch=1), [b"state"])
        assert catalog.as_of(version=1).store("s").list_ids() == [1]
        assert [row["checkpoint_id"] for row in catalog.view("checkpoint_list").collect()] == ["2"]
    finally:
        spark.sql("USE spark_catalog")


@pytest.mark.parametrize(
    ("setting", "value"),
    [("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MILLIS"), ("spark.sql.runSQLOnFiles", "false")],
)
def test_a_session_that_cuts_times_short_or_takes_no_paths_is_refused_with_the_setting_to_change(
    spark, place, setting, value
):
    spark.conf.set(setting, value)
    try:
        with pytest.raises(SessionError, match=f"set {setting} to"):
            CheckpointCatalog.for_path(spark, place)
    finally:
        spark.conf.unset(setting)


def test_a_view_that_cannot_be_made_is_told_in_one_sentence(spark):
    name = f"ckpt_{uuid.uuid4().hex[:6]}"
    catalog = CheckpointCatalog.create(spark, name)
    spark.sql(f"CREATE TABLE {name}.checkpoint_list (x INT) USING parquet")
    with pytest.raises(CatalogError, match=r"Spark refused a statement over .*checkpoint_list"):
        catalog.deploy_views()


def test_a_read_only_folder_is_refused_before_anything_is_written(spark):
    # A folder that the file system itself refuses: root, who may run the tests, ignores permissions.
    with pytest.raises(ReadOnlyError, match="cannot create a catalog in"):
        CheckpointCatalog.create(spark, "/proc/checkpoint-catalog")


def test_on_s3_the_spark_engine_writes_only_for_a_declared_single_writer(spark, place):
    catalog = CheckpointCatalog.for_path(spark, place)
    catalog.engine._read_only = True  # what the constructor decides from an s3a: location
    with pytest.raises(ReadOnlyError, match="single_writer=True"):
        catalog.store("s3").save(CheckpointManifest.new(1, epoch=1))
    assert catalog.store("s3").list_ids() == []


NAMES = [
    "日" * 200 + "🙂" * 312,
    " /'`\"=%2F\\{}[]..\n\t;-- DROP TABLE",
    "a/b",
    "a%2Fb",
    "a/b/",
    "A/b",
    "lines\u2028that\u2029text\x85has",
    "",
]


def test_any_name_of_a_stream_round_trips_and_is_a_stream_of_its_own(spark, place):
    catalog = CheckpointCatalog.for_path(spark, place)
    for number, name in enumerate(NAMES, start=1):
        manifest = CheckpointManifest.new(number, epoch=1, source_offsets={name: {"offsets": {name: name}, "epoch": 1}})
        catalog.store(name).save_with_state(manifest, [name.encode()])
    for number, name in enumerate(NAMES, start=1):
        store = catalog.store(name)
        assert store.list_ids() == [number]
        assert store.load_latest().source_offsets[name].offsets == {name: name}
        assert store.load_state_data(number) == name.encode()
    assert set(NAMES) <= set(catalog.streams())


def test_a_file_that_the_executors_do_not_have_is_told_in_one_sentence_and_nothing_is_left(
    spark, place, tmp_path, monkeypatch
):
    catalog = CheckpointCatalog.for_path(spark, place)
    store, file = catalog.store("elsewhere"), tmp_path / "state.bin"
    file.write_bytes(b"state")

    def on_another_machine(task):
        _, columns, known = pickle.loads(task)
        return artifacts.file_chunks(pickle.dumps(("/nowhere/state.bin", columns, known)))

    monkeypatch.setattr(artifacts, "file_chunks", on_another_machine)
    with pytest.raises(CatalogError, match=r"failed in a Python worker of Spark: FileNotFoundError.*/nowhere/state"):
        store.save_with_state(CheckpointManifest.new(1, epoch=1), SharedFile(file))
    assert (store.list_ids(), store.load_state_data(1)) == ([], None)


def test_what_the_executors_lack_is_told_with_the_remedy(spark, place):
    def work(_engine, _task):
        raise ModuleNotFoundError("No module named 'deltalake'")

    engine = CheckpointCatalog.for_path(spark, place).engine
    with pytest.raises(SessionError, match=r"needs deltalake where Spark's Python workers run: pip install"):
        list(engine.spread([b"task"], work))


def test_files_are_cut_and_hashed_by_the_executors_and_by_the_driver_alike(spark, place, tmp_path):
    catalog = CheckpointCatalog.for_path(spark, place)
    store = catalog.store("files")
    file = tmp_path / "state.bin"
    data = os.urandom(2 * CHUNK_BYTES + 17)
    file.write_bytes(data)
    store.save_with_state(CheckpointManifest.new(1, epoch=1), file)
    store.save_with_state(CheckpointManifest.new(2, epoch=1), SharedFile(file))
    store.save_with_state(
        CheckpointManifest.new(3, epoch=1), (data[at : at + 999_999] for at in range(0, len(data), 999_999))
    )
    assert [store.load_state_data(one) == data for one in (1, 2, 3)] == [True] * 3
    assert b"".join(store.iter_state_data(2)) == data
    assert len({store.load_by_id(one).state_checksum for one in (1, 2, 3)}) == 1
    columns = ["chunk_no", "chunk_count", "chunk_sha256", "artifact_sha256", "artifact_size"]
    rows = [
        catalog.engine.scan(
            Table.ARTIFACTS, [Equals("stream", "files"), Equals("checkpoint_key", f"{one:020d}")], columns
        ).sort_by("chunk_no")
        for one in (1, 2, 3)
    ]
    assert rows[0].num_rows == 3
    assert rows[0] == rows[1] == rows[2]
    with pytest.raises(InvalidInputError, match="does not exist"):
        store.save_with_state(CheckpointManifest.new(4, epoch=1), tmp_path / "missing")


def test_timestamps_and_u64_come_back_as_they_went_in(spark, place):
    engine = CheckpointCatalog.for_path(spark, place).engine
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    row = {"stream": "events", "event": "verified", "at": at, "checkpoint_key": None, "actor": "me", "details": "{}"}
    engine.append(Table.EVENTS, [pa.Table.from_pylist([row], schema=SCHEMAS[Table.EVENTS])])
    assert engine.scan(Table.EVENTS, [Equals("stream", "events")], list(row)).to_pylist() == [row]


@pytest.mark.prove
def test_the_lock_file_is_no_part_of_the_table(spark, place):
    CheckpointCatalog.for_path(spark, place).store("locked").save(CheckpointManifest.new(1, epoch=1))
    assert (place / "checkpoints" / LOCK_FILE).exists()
    spark.sql(f"VACUUM delta.`{place / 'checkpoints'}`")
    assert (place / "checkpoints" / LOCK_FILE).exists()
