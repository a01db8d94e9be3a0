"""Restore drills: what is chosen, restored, checked, timed and recorded, and told when one cannot be restored."""

import asyncio
import json
import pickle
from datetime import UTC, datetime, timedelta

import pytest

from catalog import (
    CheckpointCatalog,
    CheckpointManifest,
    CheckpointManifestV2,
    CheckpointNotFoundError,
    CorruptError,
    Drill,
    InvalidInputError,
    Sample,
    artifact_path,
    drills,
    keys,
    new_uuid7,
)
from catalog.lifecycle import Revision, fold
from catalog.tables.port import Table
from catalog.tables.schema import arrow
from catalog.testing import FakeClock
from catalog.testing.native import NativeHarness

DAY = timedelta(days=1)
MONDAY = datetime(2026, 3, 2, tzinfo=UTC)


@pytest.fixture
def harness(tmp_path):
    return NativeHarness(tmp_path / "catalog", FakeClock(), durable=False)


@pytest.fixture
def catalog(harness):
    return harness.catalog


@pytest.fixture
def scratch(tmp_path):
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def save(catalog, stream, numbers, state=b"state", **fields):
    store = catalog.store(stream)
    for number in numbers:
        store.save_with_state(CheckpointManifest.new(number, epoch=1, **fields), state)
    return store


def events(catalog):
    rows = catalog.engine.scan(Table.EVENTS, [], ["stream", "checkpoint_key", "event", "details"]).to_pylist()
    assert {row["event"] for row in rows} <= {"drilled"}
    return {(row["stream"], keys.checkpoint_id(row["checkpoint_key"])): json.loads(row["details"]) for row in rows}


def ids(report):
    return [(one.stream, one.checkpoint_id) for one in report.drills]


# -- which ones --------------------------------------------------------------------------------------------------------


def history(*numbers, changes=()):
    rows = [("saved", number) for number in numbers] + list(changes)
    revisions = []
    for change, number in rows:
        revision = sum(one.checkpoint_key == keys.integer_key(number) for one in revisions)
        revisions.append(
            Revision(
                stream="s", checkpoint_key=keys.integer_key(number), revision=revision, change=change, at=MONDAY,
                format="manifest-v1", insert_id="", attempt="a", artifact_bytes=number, until=MONDAY,
            )
        )  # fmt: skip
    return fold(revisions)


def chosen(histories, drilled=None, sample=None):
    at = {(stream, keys.integer_key(number)): when for (stream, number), when in (drilled or {}).items()}
    return [(one.stream, one.checkpoint_id, one.reason) for _, one in drills.choose(histories, at, sample)]


def test_the_latest_of_each_stream_is_drilled_and_the_one_that_waits_the_longest():
    histories = {"a": history(1, 2, 3), "b": history(7), "c": {}}
    assert chosen(histories) == [("a", 3, "the latest"), ("a", 1, "never drilled"), ("b", 7, "the latest")]
    drilled = {("a", 1): MONDAY + DAY, ("a", 2): MONDAY, ("a", 3): MONDAY - DAY}
    assert chosen({"a": history(1, 2, 3)}, drilled)[1] == ("a", 2, "last drilled 2026-03-02")
    assert chosen({"a": history(1, 2, 3)}, {("a", 1): MONDAY})[1] == ("a", 2, "never drilled")


def test_only_committed_ones_are_drilled():
    trashed = history(1, 2, 3, changes=[("trashed", 3), ("trashed", 1)])
    assert chosen({"a": trashed}) == [("a", 2, "the latest")]
    assert chosen({"a": trashed}, sample=Sample(percent=100)) == [("a", 2, "sample")]


def test_a_sample_is_chosen_among_all_streams():
    found = chosen({"a": history(1, 2, 3), "b": history(4)}, sample=Sample(checkpoints=3, seed=1))
    assert len(found) == 3
    assert {reason for *_, reason in found} == {"sample"}


# -- restoring ---------------------------------------------------------------------------------------------------------


def test_a_drill_restores_checks_times_and_records_and_leaves_nothing_behind(catalog, scratch):
    save(catalog, "orders", (1, 2), b"x" * 5_000_000)
    save(catalog, "", [1])
    far = []
    report = catalog.run_drills(scratch=scratch, progress=far.append)
    assert ids(report) == [("", 1), ("orders", 2), ("orders", 1)]
    assert report.failed == ()
    assert [one.bytes for one in report.drills] == [5, 5_000_000, 5_000_000]
    assert all(one.seconds > 0 for one in report.drills)
    assert (report.of_checkpoints, report.gone) == (3, 0)
    assert list(scratch.iterdir()) == []
    recorded = events(catalog)
    assert recorded.keys() == {(keys.EMPTY_STREAM, 1), ("orders", 1), ("orders", 2)}
    seconds = report.drills[1].seconds
    assert recorded["orders", 2] == {"restored": True, "bytes": 5_000_000, "seconds": seconds, "error": None}
    assert (far[-1].checkpoints, far[-1].of_checkpoints, far[-1].bytes) == (3, 3, 10_000_005)
    assert report.explain().splitlines()[1].startswith("restored orders 2 (the latest): 4.8 MiB in ")
    assert "drilled 3 of 3 checkpoints: 3 restored, 0 failed" in report.explain()


def test_every_checkpoint_has_its_turn_even_if_one_always_fails(harness, catalog):
    save(catalog, "s", (1, 2, 3, 4))
    harness.corrupt_state("s", keys.integer_key(1))
    turns = []
    for _ in range(4):
        turns.append(ids(catalog.run_drills())[1][1])
        harness.clock.advance(DAY)
    assert turns == [1, 2, 3, 1]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("corrupt_state", "checksum mismatch in chunk 0"),
        ("lose_state", "missing"),
        ("corrupt_manifest", "does not match"),
    ],
)
def test_one_that_cannot_be_restored_is_recorded_as_failed_and_the_others_go_on(
    harness, catalog, scratch, damage, told
):
    save(catalog, "a", (1, 2))
    save(catalog, "b", [1])
    getattr(harness, damage)("a", keys.integer_key(2))
    report = catalog.run_drills(scratch=scratch)
    assert ids(report) == [("a", 2), ("a", 1), ("b", 1)]
    (failed,) = report.failed
    assert (failed.stream, failed.checkpoint_id, failed.seconds) == ("a", 2, None)
    assert told in failed.error
    assert list(scratch.iterdir()) == []
    recorded = events(catalog)
    assert recorded["a", 2] == {"restored": False, "bytes": 5, "seconds": None, "error": failed.error}
    assert recorded["a", 1]["restored"]
    assert recorded["b", 1]["restored"]
    assert f"failed a 2 (the latest): {failed.error}" in report.explain().splitlines()
    assert "drilled 3 of 3 checkpoints: 2 restored, 1 failed" in report.explain()


def test_rows_that_are_not_what_was_saved_fail_the_drill_though_their_bytes_are_there(harness, catalog):
    save(catalog, "s", [1])

    def other(rows):
        for row in rows:
            row["content_sha256"] = "0" * 64

    harness._change(Table.CHECKPOINTS, "s", keys.integer_key(1), other)
    (drill,) = catalog.run_drills().drills
    assert drill.error == "the manifest and its artifacts' hashes are not those that were saved"


def test_the_parents_of_a_delta_are_restored_with_it(catalog):
    first, second = new_uuid7(), new_uuid7()

    async def write(checkpointer):
        for id, parent, data in ((first, None, b"everything"), (second, first, b"more")):
            delta = parent is not None
            sha256 = await (checkpointer.save_delta if delta else checkpointer.save_snapshot)(id, "count", 0, data)
            path = artifact_path(id, "count", 0, delta=delta)
            entry = {"partition_id": 0, "is_delta": delta, "path": path, "size_bytes": len(data), "sha256": sha256}
            operators = {"count": {"partitions": [entry]}}
            await checkpointer.save_manifest(
                CheckpointManifestV2.new(id, epoch=1, parent_id=parent, operators=operators)
            )
            await checkpointer.update_latest(id)

    asyncio.run(write(catalog.checkpointer("clicks")))
    report = catalog.run_drills()
    assert [(one.checkpoint_id, one.bytes) for one in report.drills] == [(second, 14), (first, 10)]


def test_a_dry_run_restores_and_records_nothing(catalog, tmp_path):
    save(catalog, "s", (1, 2))
    report = catalog.run_drills(dry_run=True, scratch=tmp_path / "not there")
    assert [(one.checkpoint_id, one.seconds) for one in report.drills] == [(2, None), (1, None)]
    assert events(catalog) == {}
    assert report.explain().splitlines() == [
        "would restore s 2 (the latest): 0.0 MiB",
        "would restore s 1 (never drilled): 0.0 MiB",
        "2 of 2 checkpoints would be restored",
    ]


def test_without_scratch_space_no_checkpoint_is_blamed(catalog, tmp_path):
    save(catalog, "s", [1])
    with pytest.raises(InvalidInputError, match="no scratch space"):
        catalog.run_drills(scratch=tmp_path / "not there")
    assert events(catalog) == {}


def test_a_checkpoint_that_goes_meanwhile_is_left_out(catalog):
    store = save(catalog, "s", (1, 2))
    planned = pickle.dumps((keys.integer_key(1), Drill("s", 1, "sample", 5), None))
    store.prune(1)
    assert pickle.loads(drills.drill_task(catalog.engine, planned)) is None


def test_what_is_on_the_disk_is_read_back(tmp_path, catalog):
    save(catalog, "s", [1])
    folder = catalog.restore_into("s", 1, tmp_path / "state")
    assert drills._check_files(folder) == 5
    (folder / "artifacts" / "state.bin").write_bytes(b"stale")
    with pytest.raises(CorruptError, match="not on the disk as it was read"):
        drills._check_files(folder)


def test_a_stream_that_is_not_there_is_an_error_and_an_empty_catalog_is_none(catalog):
    with pytest.raises(CheckpointNotFoundError, match="'typo'"):
        catalog.run_drills(["typo"])
    with pytest.raises(InvalidInputError, match="list of names"):
        catalog.run_drills("typo")
    assert catalog.run_drills().drills == ()
    assert catalog.run_drills([]).drills == ()


def test_a_moment_is_drilled_without_a_record(catalog):
    save(catalog, "s", [1])
    version = catalog.engine.versions()[-1].number
    save(catalog, "s", [2])
    assert ids(catalog.as_of(version=version).run_drills()) == [("s", 1)]
    assert events(catalog) == {}


# -- with Spark --------------------------------------------------------------------------------------------------------


def test_executors_restore_and_the_view_tells_how_it_went(spark, harness, catalog, scratch, tmp_path):
    save(catalog, "good", (1, 2, 3), b"x" * 100_000)
    save(catalog, "bad", (1, 2))
    save(catalog, "never drilled", [1])
    harness.corrupt_state("bad", keys.integer_key(2))
    with_spark = CheckpointCatalog.for_path(spark, tmp_path / "catalog")
    report = with_spark.run_drills(["bad", "good"], scratch=scratch)
    assert ids(report) == [("bad", 2), ("bad", 1), ("good", 3), ("good", 1)]
    assert [(one.stream, one.checkpoint_id) for one in report.failed] == [("bad", 2)]
    assert list(scratch.iterdir()) == []
    with pytest.raises(InvalidInputError, match="no scratch space"):
        with_spark.run_drills(["good"], scratch=tmp_path / "not there")
    found = {row["stream"]: row for row in with_spark.view("restore_drills").collect()}
    good, bad, never = found["good"], found["bad"], found["never drilled"]
    assert (good.checkpoint_id, good.committed, good.proven, good.unproven) == ("2", 3, 2, 1)
    assert 0 <= good.unproven_age_seconds < 3600
    assert (good.drills, good.failures, good.last_drill_restored, good.last_error) == (2, 0, True, None)
    assert 0 < good.seconds_p50 <= good.seconds_p99
    assert 0 < good.mib_per_second_p99 <= good.mib_per_second_p50
    assert (bad.checkpoint_id, bad.committed, bad.proven, bad.unproven) == ("2", 2, 1, 1)
    assert (bad.drills, bad.failures, bad.last_failure_key) == (2, 1, keys.integer_key(2))
    assert bad.last_error == report.failed[0].error
    assert (never.checkpoint_id, never.unproven, never.drills, never.last_drill_at) == ("1", 1, 0, None)
    assert (never.seconds_p50, never.mib_per_second_p99) == (None, None)


def test_percentiles_are_of_drills_that_restored_and_the_last_drill_of_a_checkpoint_counts(spark, catalog, tmp_path):
    save(catalog, "s", (1, 2))
    rows = []

    def drilled(number, stream="s", **details):
        key, at = keys.integer_key(number), MONDAY + len(rows) * DAY
        rows.append(
            {"stream": stream, "checkpoint_key": key, "event": "drilled", "at": at, "details": json.dumps(details)}
        )

    for second in range(1, 101):
        drilled(1, restored=True, bytes=100 << 20, seconds=float(second), error=None)
    drilled(1, restored=False, bytes=1 << 20, seconds=None, error="no disk")
    drilled(2, restored=False, bytes=1, seconds=None, error="older")
    drilled(2, restored=True, bytes=0, seconds=1.0, error=None)
    drilled(1, "gone", restored=True, bytes=1 << 20, seconds=0.5, error=None)
    for stream in ("s", "gone"):
        some = [row for row in rows if row["stream"] == stream]
        catalog.engine.append(Table.EVENTS, [arrow(Table.EVENTS, some)])
    with_spark = CheckpointCatalog.for_path(spark, tmp_path / "catalog")
    found = {row["stream"]: row for row in with_spark.view("restore_drills").collect()}
    one = found["s"]
    assert (one.checkpoint_id, one.proven, one.unproven, one.drills, one.failures) == ("1", 1, 1, 103, 2)
    assert (one.last_drill_restored, one.last_error, one.last_failure_key) == (True, "older", keys.integer_key(2))
    assert (one.last_drill_at, one.last_failure_at) == (
        (MONDAY + 102 * DAY).replace(tzinfo=None),
        (MONDAY + 101 * DAY).replace(tzinfo=None),
    )
    assert one.seconds_p50 == pytest.approx(50, abs=1)
    assert one.seconds_p99 == pytest.approx(99, abs=0.1)
    assert one.mib_per_second_p50 == pytest.approx(100 / 50.5, rel=0.02)
    assert one.mib_per_second_p99 == pytest.approx(100 / 99, rel=0.02)
    gone = found["gone"]
    assert (gone.checkpoint_id, gone.committed, gone.drills, gone.mib_per_second_p50) == (None, 0, 1, 2.0)
