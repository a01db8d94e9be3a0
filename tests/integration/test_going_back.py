"""Recovery by position, restoring into a folder, time travel, undo, copies and differences; no Spark needed."""

import asyncio
import contextlib
import hashlib
import json
import os
import threading
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable

from catalog import (
    ArtifactNotFoundError,
    CheckpointCatalog,
    CheckpointedStateScope,
    CheckpointExistsError,
    CheckpointId,
    CheckpointManifest,
    CheckpointManifestV2,
    CheckpointNotFoundError,
    CheckpointState,
    CorruptError,
    InlineHandle,
    InvalidInputError,
    Last,
    OutOfReachError,
    PurgedError,
    ReadOnlyError,
    Retention,
    UnknownHandleError,
    artifact_path,
    keys,
    new_uuid7,
    restore,
    retention,
)
from catalog.protocol import Draft
from catalog.tables.port import Table
from catalog.testing.harness import FakeClock
from catalog.testing.native import NativeHarness
from catalog.verify import Depth, Sample, Verifier

PIPELINE = 0xDEADBEEFCAFE1234


@pytest.fixture
def harness(tmp_path):
    return NativeHarness(tmp_path / "catalog")


@pytest.fixture
def catalog(harness):
    return harness.catalog


def save_v1(catalog, stream="s", count=5, **fields):
    store = catalog.store(stream)
    for number in range(1, count + 1):
        offsets = {"kafka": {"offsets": {"p-0": str(number * 100), "p-1": str(number * 10)}, "epoch": 1}}
        manifest = CheckpointManifest.new(
            number,
            epoch=number,
            timestamp_ms=number * 1000,
            watermark=number * 7,
            source_offsets=offsets,
            pipeline_hash=PIPELINE if number != 4 else 1,
            **fields,
        )
        store.save_with_state(manifest, f"state {number}".encode())
    return store


def save_v2(catalog, stream="v2", deltas=2, data=b"everything"):
    """Save a snapshot and deltas on top of it, and return their ids, oldest first."""
    checkpointer, ids = catalog.checkpointer(stream), []

    async def run():
        for number in range(deltas + 1):
            id, delta = new_uuid7(), number > 0
            content = f"delta {number}".encode() if delta else data
            sha = await (checkpointer.save_delta if delta else checkpointer.save_snapshot)(id, "a/b", 0, content)
            path = artifact_path(id, "a/b", 0, delta=delta)
            entry = {"partition_id": 0, "is_delta": delta, "path": path, "size_bytes": len(content), "sha256": sha}
            manifest = CheckpointManifestV2.new(
                id, epoch=1, operators={"a/b": {"partitions": [entry]}}, parent_id=ids[-1] if ids else None
            )
            await checkpointer.save_manifest(manifest)
            await checkpointer.update_latest(id)
            ids.append(id)

    asyncio.run(run())
    return ids


def save_states(catalog, stream="states", count=3, size=10):
    store = catalog.state_store()
    for number in range(count):
        state = CheckpointState.new(CheckpointId(stream, number))
        state.set_operator_state("window", bytes([number]) * size)
        state.set_source_offset("mqtt", number * 1000)
        state.event_count = number * 50
        store.save(state)


# -- recovery ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wish", "chosen", "because"),
    [
        ({"at_offset": ("kafka", "p-0", 350)}, 3, "its offset of kafka/p-0 is 400, after 350"),
        ({"at_offset": ("kafka", "p-1", 50)}, 5, None),
        ({"at_watermark": 20}, 2, "its watermark is 21, after 20"),
        ({"at_time": datetime.fromtimestamp(4, UTC)}, 4, "after 1970-01-01 00:00:04+00:00"),
        ({"pipeline_hash": 1}, 4, f"its pipeline hash is {PIPELINE}, not 1"),
        ({"vnode_count": 128}, None, "its vnode count is 256, not 128"),
        ({"at_offset": ("no such source", 5)}, None, "it has no offset of no such source to compare"),
        ({"at_offset": ("kafka", "p-0", 350), "pipeline_hash": PIPELINE, "at_watermark": 14}, 2, "after"),
    ],
)
def test_the_newest_good_one_at_or_before_a_position_is_chosen_and_explained(catalog, wish, chosen, because):
    save_v1(catalog)
    report = catalog.recover("s", **wish)
    assert report.chosen_id == chosen
    assert because is None or because in report.explain()


def test_events_and_offsets_of_states_are_positions_too(catalog):
    save_states(catalog)
    assert catalog.recover("states", at_event_count=99).chosen_id == 1
    assert catalog.recover("states", at_offset=("mqtt", 1999)).chosen_id == 1


def test_a_source_with_several_positions_has_to_be_told_which(catalog):
    save_v1(catalog, count=1)
    with pytest.raises(InvalidInputError, match="has offsets of p-0, p-1: say which one"):
        catalog.recover("s", at_offset=("kafka", 5))


@pytest.mark.parametrize(
    "wish",
    [
        {"at_offset": wrong}
        for wrong in (("kafka", "p-0", "x", 5), ("kafka",), (), "abc", ("kafka", "p-0", "5"), ("kafka", 1, 5), (1, 5))
    ]
    + [{"at_watermark": 1.5}, {"at_watermark": True}, {"at_offset": ("kafka", "p-0", 1.5)}],
    ids=str,
)
def test_a_position_that_is_none_is_refused_instead_of_compared(catalog, wish):
    save_v1(catalog, count=1)
    with pytest.raises(InvalidInputError, match="must be"):
        catalog.recover("s", **wish)


def test_one_name_is_not_taken_for_several_and_an_unknown_stream_is_not_copied(catalog, tmp_path):
    save_v1(catalog, count=1)
    copy = CheckpointCatalog.native(tmp_path / "copy", create=True)
    for call in (catalog.validate, catalog.histories, lambda streams: catalog.copy_to(copy, streams)):
        with pytest.raises(InvalidInputError, match=r"pass \['s'\]"):
            call("s")
    with pytest.raises(CheckpointNotFoundError, match="no stream 'orders' to copy"):
        catalog.copy_to(copy, ["s", "orders"])
    assert copy.streams() == []
    for call, aim in (
        (catalog.validate, "to validate"),
        (catalog.run_drills, "to drill"),
        (catalog.fold_chains, "to fold"),
        (partial(catalog.apply_retention, [Retention((Last(0),), allow_empty=True)]), "to apply retention to"),
        (partial(catalog.clean_up, grace=timedelta(0)), "to clean up"),
    ):
        with pytest.raises(CheckpointNotFoundError, match=f"no stream 'orders' {aim}"):
            call(name for name in ("s", "orders"))
    assert catalog.store("s").list_ids() == [1]


def test_a_stream_that_has_only_bytes_is_there_to_be_cleaned_up(catalog):
    catalog.store("staged").save_state_data(1, b"state")
    assert catalog.apply_retention([Retention((Last(1),))], ["staged"]).planned == ()
    (cleaned,) = catalog.clean_up(["staged"], grace=timedelta(0))
    assert cleaned.swept.orphans == 1


def test_names_that_come_one_by_one_or_twice_mean_each_stream_once(catalog, tmp_path):
    for stream in ("a", "b"):
        save_v1(catalog, stream, count=1)
    copy = CheckpointCatalog.native(tmp_path / "copy", create=True)
    wanted = ["b", "a", "b"]
    assert [one.stream for one in catalog.copy_to(copy, (name for name in wanted))] == ["b", "a"]
    assert copy.streams() == ["a", "b"]
    assert len(catalog.run_drills(name for name in wanted).drills) == 2
    assert [one.stream for one in catalog.clean_up(name for name in wanted)] == ["b", "a"]
    with pytest.raises(InvalidInputError, match="stream name must be text"):
        catalog.clean_up([5])


@pytest.mark.parametrize(
    "limits",
    [{}, {"percent": float("nan")}, {"percent": 101}, {"percent": "5"}, {"checkpoints": 1.5}, {"bytes": 0}],
    ids=str,
)
def test_a_sample_of_nothing_or_of_no_number_is_refused(limits):
    with pytest.raises(InvalidInputError):
        Sample(**limits)


def test_a_chain_is_recovered_only_if_all_of_it_is_sound(harness, catalog):
    first, second, third = save_v2(catalog)
    assert catalog.recover("v2").chosen_id == third
    harness.corrupt_state("v2", second)
    report = catalog.recover("v2")
    assert report.chosen_id == first
    assert [one for one, _ in report.skipped] == [third, second]


def test_a_corrupt_manifest_is_passed_over_and_a_missing_state_only_when_lenient(harness, catalog):
    save_v1(catalog, count=3)
    harness.corrupt_manifest("s", keys.integer_key(3))
    harness.lose_state("s", keys.integer_key(2))
    assert catalog.recover("s").chosen_id == 1
    assert catalog.recover("s", lenient=True).chosen_id == 2


def test_recovery_reads_only_the_manifests_and_bytes_of_what_it_examines(catalog, monkeypatch):
    save_v1(catalog, count=12)
    scans = []
    real = catalog.engine.scan

    def scan(table, where, columns, **rest):
        found = real(table, where, columns, **rest)
        scans.append((table, "manifest" in columns, "data" in columns, found.num_rows))
        return found

    monkeypatch.setattr(catalog.engine, "scan", scan)
    assert catalog.recover("s").chosen_id == 12
    assert sum(rows for table, manifest, _, rows in scans if table is Table.CHECKPOINTS and manifest) == 1
    assert sum(rows for _, _, data, rows in scans if data) == 1


@pytest.mark.parametrize("wish", [{}, {"at_offset": ("kafka", "p-0", 1000)}])
def test_recovery_looks_again_when_what_it_examines_is_pruned_meanwhile(catalog, wish, monkeypatch):
    store, real = save_v1(catalog, count=2), Verifier.check
    store.pin(1, "an old one that stays")

    def check(self, key, *rest, **options):
        if key == keys.integer_key(2):
            offsets = {"kafka": {"offsets": {"p-0": "300"}, "epoch": 1}}
            store.save(CheckpointManifest.new(3, epoch=3, source_offsets=offsets))
            store.prune(1)
        return real(self, key, *rest, **options)

    monkeypatch.setattr(Verifier, "check", check)
    report = catalog.recover("s", **wish)
    assert store.list_ids() == [1, 3], "nothing was pruned meanwhile"
    assert report.chosen_id == 3
    assert report.skipped == ()


# -- restoring ---------------------------------------------------------------------------------------------------------


def test_a_state_is_written_into_a_folder_with_its_manifest(catalog, tmp_path):
    store = save_v1(catalog, count=1)
    folder = catalog.restore_into("s", 1, tmp_path / "out")
    assert (folder / "artifacts" / "state.bin").read_bytes() == b"state 1"
    assert CheckpointManifest.from_json((folder / "manifest.json").read_text()) == store.load_by_id(1)


def test_a_chain_is_written_in_the_order_to_apply(catalog, tmp_path):
    ids = save_v2(catalog)
    folder = catalog.restore_into("v2", ids[-1], tmp_path / "out")
    files = json.loads((folder / "restore.json").read_text())["apply_in_this_order"]
    assert [(folder / one["file"]).read_bytes() for one in files] == [b"everything", b"delta 1", b"delta 2"]
    assert [one["checkpoint_key"] for one in files] == ids
    parts = [(part.operator, part.is_delta, b"".join(chunks)) for part, chunks in catalog.open_state("v2", ids[1])]
    assert parts == [("a/b", False, b"everything"), ("a/b", True, b"delta 1")]


def given_and_written(catalog, stream, checkpoint_id, folder):
    """Return what open_state hands out and what restore_into writes, as (operator, name, bytes), which are equal."""
    handed = [
        (part.operator, part.name, b"".join(chunks)) for part, chunks in catalog.open_state(stream, checkpoint_id)
    ]
    written = catalog.restore_into(stream, checkpoint_id, folder)
    files = json.loads((written / "restore.json").read_text())["apply_in_this_order"]
    for one in files:
        file = written / one["file"]
        assert file.resolve().parent == (written / "artifacts").resolve(), "a name leads nowhere"
        assert (one["bytes"], one["sha256"]) == (file.stat().st_size, hashlib.sha256(file.read_bytes()).hexdigest())
    assert [(one["operator"], one["name"], (written / one["file"]).read_bytes()) for one in files] == handed
    return handed


def test_all_state_is_restored_what_rides_in_the_manifest_too_and_says_which_it_is(catalog, tmp_path):
    store, big = catalog.store("s"), os.urandom(100_000)
    factory = store.stream_factory(1)

    def handle(data):
        with factory.create_checkpoint_state_output_stream("shared") as out:
            out.write(data)
            return out.close_and_get_handle()

    inline, artifact = handle(b"small"), handle(big)
    handles = {
        "op": {"partition-0": inline, "partition-1": artifact, "again": artifact},
        "../op": {"../../a/1.sst": inline},
    }
    states = {"in": {"state_b64": "YQ=="}, "empty": {"state_b64": ""}, "none": {}}
    manifest = CheckpointManifest.new(1, epoch=1, operator_handles=handles, operator_states=states)
    store.save_with_handles(manifest, factory)
    assert given_and_written(catalog, "s", 1, tmp_path / "out") == [
        ("../op", "../../a/1.sst", b"small"),
        ("empty", None, b""),
        ("in", None, b"a"),
        ("op", "again", big),
        ("op", "partition-0", b"small"),
        ("op", "partition-1", big),
    ]


@pytest.mark.parametrize("size", [3, 2 << 20], ids=["inline", "artifact"])
def test_a_checkpoint_state_is_restored_as_it_was_serialized(catalog, tmp_path, size):
    state = CheckpointState.new(CheckpointId("states", 1))
    state.set_operator_state("w", b"x" * size)
    catalog.state_store().save(state)
    assert given_and_written(catalog, "states", 1, tmp_path / "out") == [(None, None, state.serialize())]
    written = (tmp_path / "out" / "artifacts" / "checkpoint-state.bin").read_bytes()
    assert CheckpointState.deserialize("states", written).operator_states == {"w": b"x" * size}


def test_state_in_a_manifest_that_is_damaged_is_corrupt_and_named(catalog, tmp_path):
    handle = InlineHandle.of(b"small").model_copy(update={"sha256": "0" * 64})
    manifest = CheckpointManifest.new(1, epoch=1, operator_handles={"op": {"x": handle}})
    draft = Draft(key=manifest.key, format=manifest.FORMAT, attempt="1", manifest=manifest.canonical())
    catalog.stream("s").save(draft)  # as one that refused nothing would have saved it
    with pytest.raises(CorruptError, match=r"checkpoint 1 of stream 's'.*operator 'op', handle 'x'"):
        catalog.restore_into("s", 1, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_holds_something_is_refused_and_a_failure_leaves_nothing(harness, catalog, tmp_path):
    save_v1(catalog, count=1)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(InvalidInputError, match="new or empty folder"):
        catalog.restore_into("s", 1, tmp_path / "full")
    harness.corrupt_state("s", keys.integer_key(1))
    with pytest.raises(CorruptError):
        catalog.restore_into("s", 1, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["catalog", "full"]


@pytest.mark.parametrize("way", [".", "folder", "link"])
def test_an_empty_folder_is_filled_and_stays_the_one_that_it_is(catalog, tmp_path, monkeypatch, way):
    """A mount point cannot be replaced, and who is in a folder that is goes on in a deleted one."""
    save_v1(catalog, count=1)
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("folder")
    before = folder.stat()
    monkeypatch.chdir(folder if way == "." else tmp_path)
    catalog.restore_into("s", 1, way)
    assert (folder.stat().st_ino, folder.stat().st_mode) == (before.st_ino, before.st_mode)
    assert sorted(one.name for one in folder.iterdir()) == ["artifacts", "manifest.json", "restore.json"]
    assert (tmp_path / "link").is_symlink()


def test_a_folder_may_have_as_long_a_name_as_any(catalog, tmp_path):
    save_v1(catalog, count=1)
    assert (catalog.restore_into("s", 1, tmp_path / ("n" * 255)) / "manifest.json").exists()


@pytest.mark.parametrize("folder", ["file", "file/sub", "nowhere", "n" * 256, "a\0b", None, b"bytes"])
def test_what_can_be_no_folder_is_refused_by_its_name(catalog, tmp_path, monkeypatch, folder):
    save_v1(catalog, count=1)
    (tmp_path / "file").touch()
    (tmp_path / "nowhere").symlink_to("missing")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InvalidInputError, match=r"pass a.* new or empty folder"):
        catalog.restore_into("s", 1, folder)
    assert sorted(tmp_path.iterdir()) == before


def test_a_folder_that_may_not_be_written_says_so_and_one_that_fills_meanwhile_keeps_what_it_has(
    harness, catalog, tmp_path, monkeypatch
):
    save_v1(catalog, count=1)
    make = Path.mkdir

    def refuse(self, *arguments, **named):
        if self.parent.name == "locked":
            raise PermissionError("not yours")
        make(self, *arguments, **named)

    (tmp_path / "locked").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", refuse)
        with pytest.raises(ReadOnlyError, match=r"locked.*not yours"):
            catalog.restore_into("s", 1, tmp_path / "locked")
    (tmp_path / "busy").mkdir()

    def meanwhile():
        with restore.writing(tmp_path / "busy") as scratch:
            (scratch / "x").touch()
            (tmp_path / "busy" / "x").write_text("mine")

    with pytest.raises(InvalidInputError, match="not empty any more"):
        meanwhile()
    assert [one.read_text() for one in (tmp_path / "busy").iterdir()] == ["mine"]
    harness.corrupt_state("s", keys.integer_key(1))
    for folder in ("locked", "new/er/folder"):
        with pytest.raises(CorruptError):
            catalog.restore_into("s", 1, tmp_path / folder)
    assert list((tmp_path / "locked").iterdir()) == []
    assert not (tmp_path / "new").exists()


# -- time travel -------------------------------------------------------------------------------------------------------


def test_a_moment_is_the_whole_catalog_as_it_was_and_cannot_change(catalog):
    store = save_v1(catalog, count=3)
    version = catalog.engine.versions()[-1].number
    store.prune(1)
    store.save(CheckpointManifest.new(4, epoch=4))
    catalog.store("later").save(CheckpointManifest.new(1, epoch=1))
    past = catalog.as_of(version=version)
    assert past.moment.version == version
    assert past.streams() == ["s"]
    assert past.store("s").list_ids() == [1, 2, 3]
    assert past.store("s").load_latest().checkpoint_id == 3
    assert past.store("s").load_state_data(1) == b"state 1"
    assert past.recover("s").chosen_id == 3
    assert past.validate(depth="hashes").valid
    with pytest.raises(ReadOnlyError, match="as of version"):
        past.store("s").save(CheckpointManifest.new(9, epoch=9))
    with pytest.raises(ReadOnlyError):
        past.store("s").prune(1)
    assert store.list_ids() == [3, 4]


def test_a_timestamp_means_the_newest_version_at_or_before_it(tmp_path):
    catalog = CheckpointCatalog.native(tmp_path / "catalog", create=True)
    store = catalog.store("s")
    store.save(CheckpointManifest.new(1, epoch=1))
    version = catalog.engine.versions()[-1]
    store.save(CheckpointManifest.new(2, epoch=2))
    past = catalog.as_of(timestamp=version.at)
    assert past.moment.version == version.number
    assert past.store("s").list_ids() == [1]


def test_the_moment_of_a_local_time_is_told_in_utc(catalog):
    save_v1(catalog, count=1)
    now = catalog.engine.versions()[-1].at
    past = catalog.as_of(timestamp=now.astimezone(timezone(timedelta(hours=-5))))
    assert f"{now:%Y-%m-%d %H:%M:%S.%f} UTC" in str(past.moment)
    chosen = catalog.recover("s", at_time=now.astimezone(timezone(timedelta(hours=-5))))
    assert f"time at most {now}" in chosen.explain()


def test_a_moment_outside_the_window_says_what_is_reachable(catalog):
    save_v1(catalog, count=1)
    with pytest.raises(OutOfReachError, match=r"version 99 cannot be read; reachable are versions 0 \(.* UTC\) to 1 "):
        catalog.as_of(version=99)
    with pytest.raises(OutOfReachError, match="has not come yet"):
        catalog.as_of(timestamp=datetime.now(UTC) + timedelta(days=1))
    with pytest.raises(OutOfReachError, match="was made after"):
        catalog.as_of(timestamp=datetime(2020, 1, 1, tzinfo=UTC))
    for wrong in (
        {},
        {"version": 1, "timestamp": datetime.now(UTC)},
        {"version": "1"},
        {"timestamp": datetime(2026, 1, 1)},
        {"timestamp": datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))},
    ):
        with pytest.raises(InvalidInputError):
            catalog.as_of(**wrong)


def test_beyond_the_log_rows_tell_what_was_there_and_the_moment_says_so(tmp_path):
    catalog = CheckpointCatalog.native(tmp_path / "catalog", create=True, keep_versions=2, maintain_every=0)
    store = catalog.store("s")
    store.save(CheckpointManifest.new(1, epoch=1))
    then = datetime.now(UTC)
    for number in range(2, 31):
        store.save(CheckpointManifest.new(number, epoch=1))
    store.prune(2)
    catalog.compact()
    assert catalog.engine.versions()[0].number > 2, "the log was not shortened: nothing was tried"
    past = catalog.as_of(timestamp=then)
    assert past.moment.version is None
    assert "told by rows" in str(past.moment)
    assert past.store("s").list_ids() == [1]
    with pytest.raises(OutOfReachError, match="reachable are versions"):
        catalog.as_of(version=1)


def test_a_version_whose_data_files_are_gone_is_out_of_reach_and_its_time_is_told_by_rows(tmp_path):
    catalog = CheckpointCatalog.native(tmp_path / "catalog", create=True, maintain_every=0)
    for number in range(1, 13):
        catalog.store("s").save(CheckpointManifest.new(number, epoch=1))
    then = catalog.engine.versions()[5]
    catalog.compact()
    table = tmp_path / "catalog" / Table.CHECKPOINTS
    live = {Path(uri).name for uri in DeltaTable(str(table)).file_uris()}
    merged = [file for file in table.glob("*.parquet") if file.name not in live]
    assert len(merged) == 12
    for file in merged:
        file.unlink()
    with pytest.raises(OutOfReachError, match=r"version 5 cannot be read; reachable are versions 13 \(.* to 13 \("):
        catalog.as_of(version=5)
    past = catalog.as_of(timestamp=then.at)
    assert "told by rows" in str(past.moment)
    assert past.store("s").list_ids() == [1, 2, 3, 4, 5]


def swept_since(place):
    """Save ten, purge and sweep them, and return the time when 8, 9, 10 and the pinned 5 were live."""
    clock = FakeClock(datetime.now(UTC) - timedelta(days=1))  # before any version that the log still has
    harness = NativeHarness(place, clock, keep_versions=5, maintain_every=0)
    catalog = harness.catalog
    store = catalog.store("s", max_retained=3)
    for number in range(1, 11):
        store.save_with_state(CheckpointManifest.new(number, epoch=1), b"state")
        if number == 5:
            store.pin(5, "audit")
    harness.clock.advance(timedelta(seconds=1))
    then = harness.clock()
    harness.clock.advance(timedelta(hours=3))
    store.unpin(5)
    for number in range(11, 40):
        store.save(CheckpointManifest.new(number, epoch=1))
    store.cleanup_orphans()
    harness.clock.advance(timedelta(hours=2))
    store.save(CheckpointManifest.new(40, epoch=1))
    store.cleanup_orphans()
    return harness, catalog, then


def test_beyond_the_log_a_moment_has_what_was_purged_and_swept_since(tmp_path):
    harness, catalog, then = swept_since(tmp_path / "catalog")
    version = catalog.engine.versions()[-1].number
    assert {row["change"] for row in harness.checkpoint_rows("s") if int(row["checkpoint_key"]) < 11} == {"purged"}
    catalog.compact()
    assert catalog.engine.versions()[0].number > version - 30, "the log was not shortened: nothing was tried"
    past = catalog.as_of(timestamp=then)
    assert past.moment.version is None
    assert past.streams() == ["s"]
    store = past.store("s")
    assert store.list_ids() == [5, 8, 9, 10]
    statuses = {int(key): one.status for key, one in past.histories()["s"].items()}
    assert {one for one, status in statuses.items() if status == "trashed"} == {1, 2, 3, 4, 6, 7}
    five = past.histories()["s"][keys.integer_key(5)]
    assert (list(five.pins), five.pinned(then)) == (["audit"], True)
    for read in (store.load_latest, lambda: store.load_by_id(8), lambda: store.load_state_data(10)):
        with pytest.raises(PurgedError, match="was purged at"):
            read()
    assert store.load_by_id(7) is None, "it was in the trash"
    report = past.recover("s")
    assert (report.chosen_id, [one for one, _ in report.skipped]) == (None, [10, 9, 8, 5])
    assert past.validate(depth="hashes").results == ()
    with pytest.raises(PurgedError):
        past.copy_to(CheckpointCatalog.native(tmp_path / "copy", create=True))


def test_a_mark_that_does_not_tell_what_was_there_makes_a_moment_out_of_reach(tmp_path):
    """As earlier versions of this package wrote them; what was saved after the moment is none of its business."""
    harness, catalog, then = swept_since(tmp_path / "catalog")
    catalog.store("other").save(CheckpointManifest.new(1, epoch=1))

    def forget(rows):
        rows[0]["details"] = json.dumps({**json.loads(rows[0]["details"]), "life": None})

    catalog.compact()
    harness._change(Table.CHECKPOINTS, "s", keys.integer_key(20), forget)
    past = catalog.as_of(timestamp=then)
    assert past.store("s").list_ids() == [5, 8, 9, 10]
    harness._change(Table.CHECKPOINTS, "s", keys.integer_key(9), forget)
    with pytest.raises(OutOfReachError, match=r"checkpoint 9 of stream 's' was purged at .* reachable are versions"):
        past.store("s").list_ids()
    with pytest.raises(OutOfReachError):
        past.streams()
    assert past.store("other").list_ids() == []


@pytest.mark.parametrize("depth", ["metadata", "hashes"])
def test_validation_of_a_moment_calls_nothing_broken_that_was_purged_since(harness, catalog, depth):
    store = save_v1(catalog, count=3)
    version = catalog.engine.versions()[-1].number
    stream = catalog.stream("s")
    stream.trash(lambda history, now: retention.drop(history, [keys.integer_key(3)], "test", now), timedelta(0))
    harness.clock.advance(timedelta(minutes=6))
    store.cleanup_orphans(timedelta(0))
    harness.lose_state("s", keys.integer_key(1))
    past = catalog.as_of(version=version)
    report = past.validate(["s"], depth=depth)
    assert [result.checkpoint_id for _, result in report.results] == [1], report.explain()
    assert (report.checked, report.of_checkpoints) == (2, 3)
    assert past.recover("s").chosen_id == 2


def test_what_was_purged_since_is_told_as_such_though_its_bytes_are_there(harness, catalog):
    store = save_v1(catalog, count=2)
    version = catalog.engine.versions()[-1].number
    stream = catalog.stream("s")
    stream.trash(lambda history, now: retention.drop(history, [keys.integer_key(1)], "test", now), timedelta(0))
    harness.clock.advance(timedelta(minutes=6))
    assert stream.purge() == [keys.integer_key(1)]
    past = catalog.as_of(version=version).store("s")
    assert past.list_ids() == [1, 2]
    with pytest.raises(PurgedError, match="was purged at"):
        past.load_state_data(1)
    store.cleanup_orphans(timedelta(0))
    with pytest.raises(PurgedError, match="was purged at"):
        past.load_state_data(1)
    assert past.load_state_data(2) == b"state 2"


def test_what_is_staged_at_a_moment_without_a_checkpoint_of_it_is_not_seen(catalog):
    store = save_v1(catalog, count=1)
    ids = save_v2(catalog, deltas=0)
    store.save_state_data(2, b"staged")
    version = catalog.engine.versions()[-1].number
    store.save_with_state(CheckpointManifest.new(3, epoch=3), b"three")
    factory = store.stream_factory(4, threshold=0)
    with factory.create_checkpoint_state_output_stream(CheckpointedStateScope.SHARED) as stream:
        stream.write(b"four")
        handle = stream.close_and_get_handle()
    store.save_with_handles(CheckpointManifest.new(4, epoch=4, operator_handles={"op": {"state": handle}}), factory)
    later = save_v2(catalog, deltas=0)
    catalog = catalog.as_of(version=version)
    store = catalog.store("s")
    assert store.list_ids() == [1]
    assert store.load_state_data(1) == b"state 1"
    assert [store.load_state_data(one) for one in (2, 3)] == [None, None]
    with pytest.raises(ArtifactNotFoundError, match="there was no such checkpoint then"):
        list(store.iter_state_data(3))
    checkpointer = catalog.checkpointer("v2")
    assert asyncio.run(checkpointer.load_artifact(artifact_path(ids[0], "a/b", 0, delta=False))) == b"everything"
    with pytest.raises(ArtifactNotFoundError):
        asyncio.run(checkpointer.load_artifact(artifact_path(later[0], "a/b", 0, delta=False)))
    with pytest.raises(UnknownHandleError, match="is not known"):
        store.open_handle(handle)


def test_a_handle_of_a_moment_opens_there_though_its_creator_is_gone(harness, catalog):
    store = catalog.store("s")
    factory = store.stream_factory(1, threshold=0)
    with factory.create_checkpoint_state_output_stream(CheckpointedStateScope.SHARED) as stream:
        stream.write(b"shared")
        handle = stream.close_and_get_handle()
    handles = {"op": {"state": handle}}
    store.save_with_handles(CheckpointManifest.new(1, epoch=1, operator_handles=handles), factory)
    factory = store.stream_factory(2)
    factory.reuse_previous_state_handle([handle])
    store.save_with_handles(CheckpointManifest.new(2, epoch=2, operator_handles=handles), factory)
    store.prune(1, undo_for=timedelta(0))
    harness.clock.advance(timedelta(minutes=6))
    store.cleanup_orphans(timedelta(0))
    assert [row["revision"] for row in harness.checkpoint_rows("s")] == [2, 0], "nothing was swept"
    past = catalog.as_of(version=catalog.engine.versions()[-1].number).store("s")
    assert past.open_handle(handle).read() == b"shared"


def test_a_moment_stays_the_same_while_others_save_and_prune(tmp_path):
    catalog = CheckpointCatalog.native(tmp_path / "catalog", create=True)
    store = save_v1(catalog, count=5)
    past = catalog.as_of(version=catalog.engine.versions()[-1].number)
    stop = threading.Event()

    def work():
        number = 6
        while not stop.is_set():
            store.save_with_state(CheckpointManifest.new(number, epoch=1), b"new")
            store.prune(3)
            number += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(30):
            seen = past.store("s")
            assert seen.list_ids() == [1, 2, 3, 4, 5]
            assert seen.load_latest().checkpoint_id == 5
            assert seen.load_state_data(1) == b"state 1"
    finally:
        stop.set()
        thread.join()
    assert store.next_id() > 7, "nobody saved meanwhile: nothing was tried"


# -- undo --------------------------------------------------------------------------------------------------------------


def test_a_wrong_update_is_taken_back_without_touching_anything_else(catalog):
    store = save_v1(catalog, count=2, sink_commit_statuses={"a": "Pending"})
    other = save_v1(catalog, "other", count=1)
    before = store.load_by_id(2)
    store.update_manifest(before.with_sink_status("a", "Failed", error="by mistake"))
    assert catalog.recover("s", allow_pending=False).skipped[0] == (2, "a sink failed")
    store.undo_update(2)
    assert store.load_by_id(2) == before
    assert catalog.recover("s").skipped[0] == (2, "a sink is still pending")
    assert store.validate_checkpoint(2).issues == ()
    assert other.load_latest().checkpoint_id == 1
    with pytest.raises(InvalidInputError, match="was never updated"):
        store.undo_update(1)


# -- copies ------------------------------------------------------------------------------------------------------------


def test_a_moment_is_copied_into_a_new_catalog_that_depends_on_nothing(catalog, tmp_path):
    store = save_v1(catalog, count=3)
    ids = save_v2(catalog)
    version = catalog.engine.versions()[-1].number
    store.prune(1)
    store.save(CheckpointManifest.new(4, epoch=4))
    copy = CheckpointCatalog.native(tmp_path / "copy", create=True)
    done = catalog.as_of(version=version).copy_to(copy)
    assert {(one.stream, one.checkpoints) for one in done} == {("s", 3), ("v2", 3)}
    assert copy.store("s").list_ids() == [1, 2, 3]
    assert copy.store("s").load_state_data(1) == b"state 1"
    assert copy.store("s").load_by_id(3) == store.load_by_id(3)
    assert copy.validate(depth="hashes").results == ()
    chain = asyncio.run(copy.checkpointer("v2").load_chain(ids[-1], "a/b", 0))
    assert [link.data for link in chain] == [b"everything", b"delta 1", b"delta 2"]
    with pytest.raises(CheckpointExistsError, match="copy into a new catalog"):
        catalog.copy_to(copy, ["s"])


def test_a_checkpoint_purged_while_it_is_copied_never_comes_without_its_bytes(harness, catalog, tmp_path):
    save_v1(catalog, count=2)
    stream, real = catalog.stream("s"), catalog.engine.scan

    def scan(table, where, columns, **rest):
        found = real(table, where, columns, **rest)
        if table is Table.CHECKPOINTS and "manifest" in columns:
            catalog.engine.scan = real
            stream.trash(lambda history, now: retention.drop(history, [keys.integer_key(1)], "test", now), timedelta(0))
            harness.clock.advance(timedelta(minutes=6))
            stream.purge()
            catalog.store("s").cleanup_orphans(timedelta(0))
        return found

    catalog.engine.scan = scan
    copy = CheckpointCatalog.native(tmp_path / "copy", create=True)
    with contextlib.suppress(PurgedError):
        catalog.copy_to(copy)
    assert copy.validate(depth="hashes").results == ()


def copy_beside(catalog, copy, happening):
    """Copy a catalog, and let something happen after its last bytes are written and before its rows are."""
    real = copy.engine.insert_unless

    def insert_unless(rows, unless=()):
        copy.engine.insert_unless = real
        happening()
        return real(rows, unless)

    copy.engine.insert_unless = insert_unless
    return catalog.copy_to(copy)


@pytest.fixture
def copy_harness(harness, tmp_path):
    """A catalog to copy into, long after what is copied was saved."""
    return NativeHarness(tmp_path / "copy", FakeClock(harness.clock() + timedelta(days=1)))


def test_a_clean_up_beside_a_copy_takes_nothing_of_it(catalog, copy_harness):
    store, copy = save_v1(catalog, count=3), copy_harness.catalog
    cleaned = []
    (done,) = copy_beside(catalog, copy, lambda: cleaned.extend(copy.clean_up()))
    assert [(one.stream, one.swept.orphans) for one in cleaned] == [("s", 0)]
    assert done.checkpoints == 3
    assert copy.store("s").list_ids() == store.list_ids()
    assert copy.validate(depth="hashes").results == ()


def test_a_copy_that_a_clean_up_took_for_given_up_appears_not_at_all(catalog, copy_harness):
    save_v1(catalog, count=3)
    copy = copy_harness.catalog

    def later():
        copy_harness.clock.advance(timedelta(hours=2))
        copy.store("s").cleanup_orphans()

    with pytest.raises(CheckpointExistsError, match="nothing of it was copied"):
        copy_beside(catalog, copy, later)
    assert copy.store("s").list_ids() == []
    assert copy_harness.artifact_rows("s") == 0


def test_a_copy_that_died_goes_on_and_stores_nothing_twice(catalog, copy_harness):
    save_v1(catalog, count=3)
    copy = copy_harness.catalog

    def die():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_beside(catalog, copy, die)
    assert copy.streams() == []
    assert copy_harness.artifact_rows("s") == 3, "it died before its bytes were there: nothing was tried"
    (done,) = catalog.copy_to(copy)
    assert (done.checkpoints, done.bytes) == (3, 3 * 7)
    assert copy_harness.artifact_rows("s") == 3
    assert copy.validate(depth="hashes").results == ()


def test_corrupt_bytes_are_not_copied_and_nothing_appears(harness, catalog, tmp_path):
    save_v1(catalog, count=2)
    harness.corrupt_state("s", keys.integer_key(2))
    copy = CheckpointCatalog.native(tmp_path / "copy", create=True)
    with pytest.raises(CorruptError):
        catalog.copy_to(copy)
    assert copy.streams() == []


# -- differences -------------------------------------------------------------------------------------------------------


def test_a_diff_tells_bytes_by_chunk_and_positions(catalog):
    store, big = catalog.store("s"), os.urandom(9 << 20)
    offsets = {"kafka": {"offsets": {"p-0": "100"}, "epoch": 1}}
    operators = {"kept": {"state_b64": "YQ=="}, "gone": {"state_b64": "Yg=="}}
    store.save_with_state(CheckpointManifest.new(1, epoch=1, source_offsets=offsets, operator_states=operators), big)
    operators = {"kept": {"state_b64": "YQ=="}, "new": {"state_b64": "Y2M="}}
    offsets = {"kafka": {"offsets": {"p-0": "150"}, "epoch": 1}}
    changed = big[: 8 << 20] + os.urandom(1 << 20)
    store.save_with_state(
        CheckpointManifest.new(2, epoch=1, source_offsets=offsets, operator_states=operators), changed
    )
    found = catalog.diff("s", 1, 2)
    assert {(part.operator, part.what, part.changed_bytes) for part in found.parts} == {
        ("kept", "same", 0), ("gone", "removed", 0), ("new", "added", 2), (None, "changed", 1 << 20),
    }  # fmt: skip
    assert [(move.source, move.position, move.moved_by) for move in found.positions] == [("kafka", "p-0", 50)]
    assert found.explain().splitlines() == [
        "removed: gone: 1 -> 0 bytes, 0 changed",
        "added: new: 0 -> 2 bytes, 2 changed",
        f"changed: state: {9 << 20} -> {9 << 20} bytes, {1 << 20} changed",
        "same: 1 part",
        "moved: kafka/p-0: 100 -> 150 (+50)",
    ]


def test_a_diff_tells_what_is_under_each_handle(catalog):
    store, big = catalog.store("s"), os.urandom(600_000)

    def save(number, **states):
        factory, handles = store.stream_factory(number), {}
        for name, data in states.items():
            with factory.create_checkpoint_state_output_stream("shared") as out:
                out.write(data)
                handles[name] = out.close_and_get_handle()
        store.save_with_handles(CheckpointManifest.new(number, epoch=1, operator_handles={"op": handles}), factory)

    save(1, a=b"same", b=big, c=b"other")
    save(2, a=b"same", d=big, c=b"else", e=b"new")
    assert {(part.name, part.what, part.changed_bytes) for part in catalog.diff("s", 1, 2).parts} == {
        ("a", "same", 0), ("b", "removed", 0), ("c", "changed", 4), ("d", "added", 0), ("e", "added", 3),
    }  # fmt: skip
    assert catalog.diff("s", 1, 2).explain().splitlines() == [
        "removed: op b: 600000 -> 0 bytes, 0 changed",
        "changed: op c: 5 -> 4 bytes, 4 changed",
        "added: op d: 0 -> 600000 bytes, 0 changed",
        "added: op e: 0 -> 3 bytes, 3 changed",
        "same: 1 part",
    ]


def test_a_diff_of_partitions_and_of_states(catalog):
    first, second, _ = save_v2(catalog)
    (part,) = catalog.diff("v2", first, second).parts
    assert (part.operator, part.partition, part.what, part.bytes_before) == ("a/b", 0, "changed", 10)
    assert catalog.diff("v2", first, first).explain().startswith("same: 1 part")
    save_states(catalog, size=2 << 20)
    found = catalog.diff("states", 0, "2")
    assert found.changed_bytes == 2 << 20
    assert [move.moved_by for move in found.positions] == [2000]


# -- validation --------------------------------------------------------------------------------------------------------


def test_hashes_find_what_metadata_cannot_and_results_go_to_events(harness, catalog):
    save_v1(catalog, count=3)
    save_v2(catalog)
    harness.corrupt_state("s", keys.integer_key(2))
    assert catalog.validate().valid
    seen = []
    report = catalog.validate(depth="hashes", progress=seen.append)
    assert [(stream, result.checkpoint_id, result.issues[0].rule) for stream, result in report.results] == [
        ("s", 2, "checksum_mismatch")
    ]
    assert (report.checked, report.of_checkpoints, report.bytes) == (6, 6, 3 * 7 + 10 + 7 + 7)
    assert (seen[-1].checkpoints, seen[-1].bytes) == (seen[-1].of_checkpoints, seen[-1].of_bytes) == (6, report.bytes)
    assert "integrity: s 2: " in report.explain()
    events = catalog.engine.scan(Table.EVENTS, [], ["checkpoint_key", "event", "details"]).to_pylist()
    told = [json.loads(event["details"]) for event in events if event["checkpoint_key"] == keys.integer_key(2)]
    assert sorted((one["depth"], one["valid"], one["rules"]) for one in told) == [
        ("hashes", False, ["checksum_mismatch"]),
        ("metadata", True, []),
    ]


@pytest.mark.parametrize(
    ("sample", "checked"),
    [(Sample(checkpoints=3), 3), (Sample(percent=25), 3), (Sample(bytes=15), 2), (Sample(checkpoints=99), 10)],
)
def test_a_sample_looks_at_some(catalog, sample, checked):
    save_v1(catalog, count=10)
    report = catalog.validate(depth=Depth.HASHES, sample=sample)
    assert (report.checked, report.of_checkpoints) == (checked, 10)


def test_the_same_seed_chooses_the_same():
    candidates = [("s", str(number), 1) for number in range(100)]
    chosen = Sample(percent=10, seed=7).choose(candidates)
    assert chosen == Sample(percent=10, seed=7).choose(candidates)
    assert len(chosen) == 10
    assert Sample(checkpoints=1, seed=1).choose([]) == []


@pytest.mark.parametrize("wrong", [{}, {"checkpoints": 0}, {"percent": 101}, {"bytes": -1}])
def test_a_sample_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(InvalidInputError):
        Sample(**wrong)


def test_a_fault_that_a_clean_up_explains_is_none(harness, catalog):
    """A checkpoint is purged and swept between the reading of its rows and of its bytes."""
    save_v1(catalog, count=2)
    stream, real = catalog.stream("s"), catalog.engine.scan

    def scan(table, where, columns, **rest):
        found = real(table, where, columns, **rest)
        if table is Table.CHECKPOINTS and "manifest" in columns:
            catalog.engine.scan = real
            stream.trash(lambda history, now: retention.drop(history, [keys.integer_key(1)], "test", now), timedelta(0))
            harness.clock.advance(timedelta(minutes=6))
            stream.purge()
            catalog.store("s").cleanup_orphans(timedelta(0))
        return found

    catalog.engine.scan = scan
    report = catalog.validate(depth="hashes")
    assert report.results == ()
    assert report.checked == 1
