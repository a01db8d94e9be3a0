"""The catalog through a Spark Connect server, which SPARK_REMOTE names; test_connect.py starts both.

A process has either a Spark of its own or a remote one, so these do not run among the others.
"""

import asyncio
import json
import os
import subprocess
import sys
import threading
import uuid
from datetime import timedelta

import pytest
from pyspark.sql import SparkSession

from catalog import (
    AppendLog,
    CheckpointCatalog,
    CheckpointExistsError,
    CheckpointId,
    CheckpointManifest,
    CheckpointManifestV2,
    CheckpointState,
    CorruptError,
    NotACatalogError,
    OutOfReachError,
    SharedFile,
    artifact_path,
    keys,
    new_uuid7,
    views,
)
from catalog.session import build_session
from catalog.tables.port import Table
from catalog.tables.spark import SparkEngine
from catalog.testing import CheckpointStoreSuite, Harness
from catalog.testing.spark import SparkHarness


@pytest.fixture(scope="session")
def spark():
    """A session of the server's; the catalog's own way to get one asks for no more."""
    session = build_session()
    assert type(session).__module__.startswith("pyspark.sql.connect")
    return session


@pytest.fixture
def another_session():
    """What a second client has."""
    session = SparkSession.builder.remote(os.environ["SPARK_REMOTE"]).create()
    yield session
    session.stop()


@pytest.fixture(scope="module")
def harness(spark, tmp_path_factory):
    return SparkHarness(spark, tmp_path_factory.mktemp("connect") / "catalog")


@pytest.fixture
def stream():
    return f"stream {uuid.uuid4()}"


def manifest(number, **fields):
    return CheckpointManifest.new(number, epoch=1, **fields)


async def save_chain(checkpointer):
    """Save a snapshot and a delta, and return what a restore would apply."""
    parent = None
    for data in (b"everything", b" and more"):
        id, delta = new_uuid7(), parent is not None
        sha256 = await (checkpointer.save_delta if delta else checkpointer.save_snapshot)(id, "count", 0, data)
        path = artifact_path(id, "count", 0, delta=delta)
        entry = {"partition_id": 0, "is_delta": delta, "path": path, "size_bytes": len(data), "sha256": sha256}
        operators = {"count": {"partitions": [entry]}}
        await checkpointer.save_manifest(CheckpointManifestV2.new(id, epoch=1, parent_id=parent, operators=operators))
        await checkpointer.update_latest(id)
        parent = id
    assert await checkpointer.read_latest() == parent
    return [link.data for link in await checkpointer.load_chain(parent, "count", 0)]


class TestStoreOverConnect(CheckpointStoreSuite):
    @pytest.fixture(scope="class")
    @classmethod
    def harness(cls, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Harness:
        return SparkHarness(spark, tmp_path_factory.mktemp("conformance") / "a catalog's folder")


def test_a_place_without_a_catalog_is_told_from_one_with(spark, tmp_path):
    with pytest.raises(NotACatalogError, match="no checkpoint catalog at"):
        CheckpointCatalog.for_path(spark, tmp_path / "none")
    with pytest.raises(NotACatalogError, match="no checkpoint catalog at"):
        CheckpointCatalog.for_name(spark, "no_such_schema")


def test_a_catalog_in_a_schema_saves_and_has_persistent_views(spark):
    name = f"connect_{uuid.uuid4().hex}"
    CheckpointCatalog.create(spark, name).store("orders").save_with_state(manifest(1), b"state")
    again = CheckpointCatalog.for_name(spark, name)
    assert again.store("orders").load_state_data(1) == b"state"
    again.deploy_views()
    (row,) = spark.sql(f"SELECT checkpoint_id FROM {name}.latest_checkpoints").collect()
    assert row.checkpoint_id == "1"


def test_every_view_answers_for_all_three_kinds_of_streams(spark, harness, stream):
    catalog = harness.catalog
    catalog.store(stream).save_with_state(manifest(1), b"state")
    assert asyncio.run(save_chain(catalog.checkpointer(stream + " deltas"))) == [b"everything", b" and more"]
    state = CheckpointState.new(CheckpointId(stream + " states", 1))
    state.set_operator_state("window", b"\x01\x02")
    catalog.state_store().save(state)
    assert catalog.state_store().latest(stream + " states").operator_states == {"window": b"\x01\x02"}
    assert len(catalog.deploy_views(prefix="of_connect_")) == len(views.VIEWS)
    for name in views.VIEWS:
        spark.sql(f"SELECT * FROM of_connect_{name}").collect()
    rows = spark.sql("SELECT stream, status FROM of_connect_checkpoint_list").collect()
    mine = sorted((row.stream, row.status) for row in rows if row.stream.startswith(stream))
    assert mine == [
        (stream, "committed"),
        *[(stream + " deltas", "committed")] * 2,
        (stream + " states", "committed"),
    ]


def test_what_the_executors_do_by_themselves_is_done_by_the_server(harness, stream, tmp_path):
    """Hashing, reading a file, folding, drills and compaction run in the server's Python workers."""
    catalog = harness.catalog
    (tmp_path / "state").write_bytes(b"a state that executors read " * 1000)
    store = catalog.store(stream)
    store.save_with_state(manifest(1), SharedFile(tmp_path / "state"))
    store.save_with_state(manifest(2), b"state")
    harness.corrupt_state(stream, keys.integer_key(2))
    report = catalog.validate([stream], depth="hashes")
    found = [(result.checkpoint_id, one.rule) for _, result in report.results for one in result.issues]
    assert found == [(2, "checksum_mismatch")]
    drilled = catalog.run_drills([stream])
    assert [(one.checkpoint_id, one.error is None) for one in drilled.drills] == [(2, False), (1, True)]
    asyncio.run(save_chain(catalog.checkpointer(stream + " deltas")))
    folded = catalog.fold_chains([stream + " deltas"], folders={"count": AppendLog()}, min_links=2)
    assert [one.reason for one in folded.chains] == ["2 links became one snapshot"]
    catalog.compact()
    assert store.load_state_data(1) == (tmp_path / "state").read_bytes()


def test_a_job_runs_on_the_server(harness, stream):
    harness.catalog.store(stream).save_with_state(manifest(1), b"state")
    job = [sys.executable, "-m", "jobs.verify_checkpoints", harness.catalog.engine.place.path, "--stream", stream]
    done = subprocess.run([*job, "--output", "json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["checked"] == 1


def test_deleting_and_going_back_work(harness, stream):
    catalog = harness.catalog
    store = catalog.store(stream)
    store.save_with_state(manifest(1), b"first")
    before = catalog.engine.versions()[-1]
    store.save_with_state(manifest(2), b"second")
    store.prune(1)
    assert store.list_ids() == [2]
    assert catalog.as_of(version=before.number).store(stream).list_ids() == [1]
    assert catalog.as_of(version=before.number).view("latest_checkpoints").count() >= 1
    store.restore(1)
    assert store.list_ids() == [1, 2]
    assert store.recover_latest_validated().chosen_id == 2
    with pytest.raises(OutOfReachError, match="reachable are versions 0"):
        catalog.as_of(version=10_000)
    store.prune(1)
    harness.clock.advance(timedelta(days=8))
    store.cleanup_orphans(timedelta(0))
    assert harness.artifact_rows(stream) == 1


def test_of_two_clients_that_race_for_an_id_one_wins_and_conflicts_are_recognized(
    spark, another_session, harness, stream
):
    """Without the locks of a local disk, as on a cluster's storage: only Delta keeps the two apart."""
    assert spark.session_id != another_session.session_id
    engines = [SparkEngine(one, harness.catalog.engine.place) for one in (spark, another_session)]
    for engine in engines:
        engine._locks = {}
    stores = [CheckpointCatalog(engine).store(stream) for engine in engines]
    ready = threading.Barrier(2)
    wins, losses, failures = [], [], []

    def race(at):
        try:
            for number in range(1, 5):
                ready.wait()
                try:
                    stores[at].save_with_state(manifest(number), b"of client %d" % at)
                    wins.append((number, at))
                except CheckpointExistsError:
                    losses.append((number, at))
        except Exception as error:  # noqa: BLE001 - told to the test below
            failures.append(error)
            ready.abort()

    threads = [threading.Thread(target=race, args=(at,)) for at in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sorted(number for number, _ in wins) == sorted(number for number, _ in losses) == [1, 2, 3, 4]
    for number, at in wins:
        assert stores[1 - at].load_state_data(number) == b"of client %d" % at
    assert engines[0].conflicts + engines[1].conflicts > 0, "the racing MERGEs never met: the fence was not tried"


def test_a_lost_data_file_is_a_corrupt_catalog_and_a_lost_old_version_is_out_of_reach(spark, tmp_path, stream):
    catalog = CheckpointCatalog.create(spark, tmp_path / "catalog")
    store = catalog.store(stream)
    store.save(manifest(1))
    kept = catalog.engine.versions()[-1].number
    for file in (tmp_path / "catalog" / "checkpoints").rglob("*.parquet"):
        if "_delta_log" not in file.parts:
            file.unlink()
    with pytest.raises(CorruptError, match=r"a data file of .* cannot be read"):
        store.list_ids()
    with pytest.raises(OutOfReachError, match=f"version {kept} of .* cannot be read any more"):
        catalog.engine.scan(Table.CHECKPOINTS, [], ["stream"], version=kept)
