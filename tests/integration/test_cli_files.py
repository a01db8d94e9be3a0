"""`ckpt init`, `save` and `restore`: files go in, and the same files come out, or nothing at all."""

import asyncio
import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from catalog import (
    CatalogError,
    CheckpointCatalog,
    CheckpointId,
    CheckpointManifest,
    CheckpointManifestV2,
    CheckpointState,
    artifact_path,
    files,
    keys,
    new_uuid7,
)
from catalog.store import CheckpointStore
from catalog.tables.port import Table
from catalog.testing.native import NativeHarness

CHUNK = 4 << 20
ODD = {
    "plain.txt": b"plain",
    "empty": b"",
    "sub/deep/er/empty": b"",
    "sub/name with 'quotes\" and spaces": b"odd",
    "sub/🦆\n\x1b[31m": b"odder",
    ".hidden": b"\x00\xff" * 100,
    "large": bytes(range(256)) * (CHUNK // 256 + 1000),
    "-dash": b"--help",
}


@pytest.fixture
def place(tmp_path):
    place = tmp_path / "catalog"
    CheckpointCatalog.native(place, create=True, durable=False).close()
    return place


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "state"
    for name, data in ODD.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return folder


def contents(folder):
    return {one.relative_to(folder).as_posix(): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def ids(place, stream="job"):
    with CheckpointCatalog.native(place) as catalog:
        return catalog.store(stream).list_ids()


# -- init --------------------------------------------------------------------------------------------------------------


def test_init_makes_a_catalog_once_and_leaves_one_that_is_there_alone(here, tmp_path):
    place = tmp_path / "new" / "catalog"
    assert here("init", place) == (0, f"made a catalog: {place}\n", "")
    before = sorted(place.rglob("*"))
    code, shown, told = here("init", place, "--output", "json")
    assert (code, json.loads(shown), told) == (0, {"path": str(place), "created": False, "format": 1}, "")
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize("table", Table)
def test_a_catalog_that_lost_a_part_is_told_as_damaged_and_not_to_be_made(here, place, folder, table):
    assert here("save", place, "job", folder)[0] == 0
    log = place / table / "_delta_log" / f"{0:020d}.json"
    whole = log.read_bytes()
    log.write_text("not a log")
    for command in (["init", place], ["list", place], ["save", place, "job", folder]):
        code, shown, told = here(*command)
        assert (code, shown, len(told.splitlines())) == (1, "", 1)
        assert told.startswith(
            f"ckpt: there is a checkpoint catalog at {place}, but it is damaged, the table `{table}` "
        )
        assert ": bring that folder back from a backup" in told
        assert told.endswith(", see docs/OPERATIONS.md\n")
    (line,) = [line for line in here("doctor", place)[1].splitlines() if " catalog " in line]
    assert ("bring that folder back" in line, "ckpt init" in line) == (True, False)
    log.write_bytes(whole)
    assert ids(place) == [1]


def test_init_makes_an_empty_table_anew_and_says_so_unless_bytes_are_lost_by_it(here, place, folder):
    shutil.rmtree(place / Table.EVENTS)
    assert here("list", place)[0] == 1
    assert here("init", place) == (0, f"made the table anew that the catalog had lost: {place}\n", "")
    assert here("save", place, "job", folder)[0] == 0
    shutil.rmtree(place / Table.ARTIFACTS)
    code, shown, told = here("init", place)
    assert (code, shown, "`artifacts` is gone" in told) == (1, "", True)


def test_init_refuses_a_folder_that_holds_something_else(here, folder):
    code, shown, told = here("init", folder)
    assert (code, shown) == (10, "")
    assert "holds other things" in told
    assert contents(folder) == ODD


# -- there and back ----------------------------------------------------------------------------------------------------


def test_a_folder_comes_back_byte_by_byte_whatever_its_files_are_called(ckpt, place, folder, tmp_path):
    saved = ckpt("save", place, "job", folder)
    assert (saved.returncode, saved.stdout) == (0, "1\n")
    assert saved.stderr == f"saved checkpoint 1: {len(ODD)} files, 4.2 MiB, 4.2 MiB of it new\n"
    done = ckpt("restore", place, "job", "--into", "back", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"checkpoint 1 is in {tmp_path}/back: {len(ODD)} files, 4.2 MiB\n"
    assert contents(tmp_path / "back") == ODD


def test_unchanged_files_are_shared_and_each_checkpoint_has_its_own_content(here, place, folder, tmp_path):
    assert here("save", place, "job", folder)[0] == 0
    (folder / "plain.txt").write_bytes(b"changed")
    (folder / "empty").unlink()
    code, shown, _ = here("save", place, "job", folder, "--output", "json")
    found = json.loads(shown)
    assert (code, found["checkpoint_id"], found["files"]) == (0, 2, len(ODD) - 1)
    small = sum(len(data) for name, data in ODD.items() if name not in ("large", "plain.txt")) + len(b"changed")
    assert found["new_bytes"] == small  # what rides in the manifest
    assert here("restore", place, "job", "1", "--into", tmp_path / "one")[0] == 0
    assert here("restore", place, "job", "2", "--into", tmp_path / "two")[0] == 0
    assert contents(tmp_path / "one") == ODD
    assert contents(tmp_path / "two") == contents(folder)
    with CheckpointCatalog.native(place) as catalog:
        assert catalog.validate(depth="hashes").valid


def test_single_files_go_by_their_name(here, place, folder, tmp_path):
    assert here("save", place, "job", folder / "plain.txt", folder / ".hidden", folder / "sub/deep/er/empty")[0] == 0
    assert here("restore", place, "job", "--into", tmp_path / "back")[0] == 0
    assert contents(tmp_path / "back") == {name: ODD[name] for name in ("plain.txt", ".hidden", "empty")}


def test_a_link_to_a_file_is_saved_as_the_file(here, place, folder, tmp_path):
    (folder / "link").symlink_to("plain.txt")
    assert here("save", place, "job", folder)[0] == 0
    assert here("restore", place, "job", "--into", tmp_path / "back")[0] == 0
    assert contents(tmp_path / "back") == {**ODD, "link": b"plain"}
    assert not (tmp_path / "back" / "link").is_symlink()


def test_a_checkpoint_is_saved_with_what_else_is_told_about_it(here, place, folder):
    options = ["--id", 7, "--epoch", 3, "--watermark", "-5", "--pipeline-hash", 2**64 - 1]
    offsets = ["--offset", "kafka/partition-0=1234", "--offset", "kafka/partition-1=5", "--offset", "pg=0/1234ABCD=x"]
    assert here("save", place, "job", folder / "plain.txt", *options, *offsets)[:2] == (0, "7\n")
    assert here("save", place, "job", folder / "plain.txt")[:2] == (0, "8\n")
    with CheckpointCatalog.native(place) as catalog:
        seven, eight = (catalog.store("job").load_by_id(number) for number in (7, 8))
    assert (seven.epoch, seven.watermark, seven.pipeline_hash) == (3, -5, 2**64 - 1)
    assert seven.positions() == {
        ("kafka", "partition-0"): "1234", ("kafka", "partition-1"): "5", ("pg", ""): "0/1234ABCD=x"
    }  # fmt: skip
    assert (eight.epoch, eight.positions()) == (4, {})
    assert here("recover", place, "job", "--at-offset", "kafka/partition-0=1234")[:2] == (0, "7\n")


# -- refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sources", "why"),
    [
        (["nowhere"], "is not there"),
        (["state", "state/plain.txt"], "give one folder, or files"),
        (["state/plain.txt", "other/plain.txt"], "two files are called 'plain.txt'"),
        (["bare"], "there are no files in"),
        (["pipes"], "is not a file, nor a link to one"),
        (["broken"], "is not a file, nor a link to one"),
        (["looped"], "is not a file, nor a link to one"),
        (["long"], "at most 512 are allowed"),
        (["latin"], "cannot be encoded as UTF-8"),
    ],
)
def test_what_cannot_be_saved_as_it_is_is_refused_before_anything_is_written(
    here, place, tmp_path, monkeypatch, sources, why
):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "plain.txt").touch()
    for name in ("other", "bare/empty", "pipes", "broken", "looped", "latin", "long/" + "/".join(["n" * 200] * 3)):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "other" / "plain.txt").touch()
    os.mkfifo(tmp_path / "pipes" / "pipe")
    (tmp_path / "broken" / "link").symlink_to("nowhere")
    (tmp_path / "looped" / "link").symlink_to(tmp_path)
    (tmp_path / "long" / "/".join(["n" * 200] * 3) / "file").touch()
    Path(os.fsdecode(os.fsencode(tmp_path / "latin") + b"/caf\xe9")).touch()
    monkeypatch.chdir(tmp_path)
    before = sorted(place.rglob("*"))
    code, shown, told = here("save", place, "job", *sources)
    assert (code, shown, len(told.splitlines())) == (2, "", 1)
    assert why in told
    assert sorted(place.rglob("*")) == before


def test_a_folder_that_cannot_be_listed_is_an_error_and_not_left_out(here, place, folder, monkeypatch):
    list_folder = os.scandir

    def refuse(path):
        if str(path).endswith("deep"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return list_folder(path)

    monkeypatch.setattr(os, "scandir", refuse)
    code, shown, told = here("save", place, "job", folder)
    assert (code, shown) == (1, "")
    assert "Permission denied" in told
    assert ids(place) == []


@pytest.mark.parametrize(
    "options",
    [
        ["--offset", "kafka=1", "--offset", "kafka=2"],
        ["--offset", "kafka"],
        ["--offset", "=1"],
        ["--id", "0"],
        ["--id", str(2**64)],
        ["--id", "-1"],
        ["--epoch", "-1"],
        ["--epoch", "0"],
        ["--pipeline-hash", "-1"],
        ["--watermark", str(2**63)],
    ],
)
def test_a_wrong_option_of_save_is_a_usage_error_and_nothing_is_saved(here, place, folder, options):
    code, shown, told = here("save", place, "job", folder, *options)
    assert (code, shown) == (2, "")
    assert told
    if options[1] in ("-1", "0"):
        assert told.startswith(f"ckpt: {options[0]} must be from ")
        assert told.endswith(f" to 2^64-1, not {options[1]}\n")
    assert ids(place) == []
    assert CheckpointCatalog.native(place).engine.scan(Table.ARTIFACTS, [], ["stream"]).num_rows == 0


def test_an_id_that_is_taken_is_refused_and_the_next_one_is_free(here, place, folder):
    assert here("save", place, "job", folder, "--id", 5)[0] == 0
    code, shown, told = here("save", place, "job", folder, "--id", 5)
    assert (code, shown) == (1, "")
    assert "take the next id" in told
    assert ids(place) == [5]


def test_a_stream_of_another_format_is_refused(here, place, folder):
    with CheckpointCatalog.native(place) as catalog:
        catalog.state_store().save(CheckpointState.new(CheckpointId("sensor", 1)))
    code, shown, told = here("save", place, "sensor", folder)
    assert (code, shown) == (2, "")
    assert "use another stream" in told


def test_who_loses_a_race_for_the_next_id_takes_the_one_after(place, folder, monkeypatch):
    ask = CheckpointStore.next_id
    with CheckpointCatalog.native(place) as catalog:
        rival, store = catalog.store("job"), catalog.store("job")

        def next_id(self):
            found = ask(self)
            if self is store and found < 3:
                rival.save(CheckpointManifest.new(found, epoch=1))
            return found

        monkeypatch.setattr(CheckpointStore, "next_id", next_id)
        assert files.save(store, files.find([folder])).checkpoint_id == 3
        assert store.list_ids() == [1, 2, 3]


def test_a_file_that_changes_while_it_is_saved_is_told_and_nothing_is_left(place, folder, monkeypatch):
    with CheckpointCatalog.native(place) as catalog:
        store = catalog.store("job")
        found = files.find([folder])
        monkeypatch.setattr(files, "_fingerprint", _noticing(files._fingerprint, folder / "plain.txt"))
        with pytest.raises(CatalogError, match="changed while it was saved"):
            files.save(store, found)
        assert store.list_ids() == []
        assert catalog.engine.scan(Table.ARTIFACTS, [], ["stream"]).num_rows == 0


def _noticing(look, file):
    """Change a file once it has been looked at."""
    seen = []

    def then_change(one):
        found = look(one)
        if one == file and not seen:
            seen.append(one)
            file.write_bytes(b"changed meanwhile")
        return found

    return then_change


def test_nothing_is_shared_with_a_latest_that_cannot_be_read(folder, tmp_path):
    harness = NativeHarness(tmp_path / "damaged", durable=False)
    store = harness.catalog.store("job")
    files.save(store, files.find([folder]))
    harness.corrupt_manifest("job", keys.integer_key(1))
    assert files.save(harness.catalog.store("job"), files.find([folder])).checkpoint_id == 2
    harness.lose_state("job", keys.integer_key(1))
    files.bring_back(harness.catalog.stream("job"), keys.integer_key(2), tmp_path / "back")
    assert contents(tmp_path / "back") == ODD


# -- restore -----------------------------------------------------------------------------------------------------------


def test_restore_refuses_a_folder_that_holds_something_before_anything_is_read(here, folder, tmp_path):
    code, shown, told = here("restore", tmp_path / "no catalog", "job", "--into", folder)
    assert (code, shown) == (2, "")
    assert "pass a new or empty folder" in told
    assert contents(folder) == ODD


def test_restore_takes_an_empty_folder_also_as_a_dot(here, place, folder, tmp_path, monkeypatch):
    assert here("save", place, "job", folder)[0] == 0
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert here("restore", place, "job", "--into", ".")[0] == 0
    assert contents(tmp_path / "empty") == ODD


def test_restore_writes_all_or_nothing(here, folder, tmp_path):
    harness = NativeHarness(tmp_path / "damaged", durable=False)
    files.save(harness.catalog.store("job"), files.find([folder]))
    harness.corrupt_state("job", keys.integer_key(1))
    code, shown, told = here("restore", tmp_path / "damaged", "job", "--into", tmp_path / "back")
    assert (code, shown, len(told.splitlines())) == (1, "", 1)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["damaged", "state"]


@pytest.mark.parametrize("name", ["../escaped", "/tmp/escaped", "a/../../escaped"])
def test_a_manifest_that_names_a_file_elsewhere_writes_nothing_there(here, place, folder, tmp_path, name):
    with CheckpointCatalog.native(place) as catalog:
        files.save(catalog.store("job"), {name: folder / "plain.txt"})
    code, _, told = here("restore", place, "job", "--into", tmp_path / "back")
    assert (code, "leads out of the folder" in told) == (2, True)
    assert not (tmp_path / "escaped").exists()
    assert not (tmp_path / "back").exists()


def test_restore_of_what_is_not_there_or_in_the_trash_says_what_to_do(here, place, folder, tmp_path):
    for _ in range(2):
        assert here("save", place, "job", folder)[0] == 0
    with CheckpointCatalog.native(place) as catalog:
        catalog.store("job").prune(1)
    into = ["--into", tmp_path / "back"]
    code, _, told = here("restore", place, "job", "1", *into)
    assert (code, "`ckpt undo` takes it out" in told) == (1, True)
    assert "perhaps 'job' is meant" in here("restore", place, "jobs", *into)[2]
    assert "has no checkpoint 9" in here("restore", place, "job", "9", *into)[2]
    assert here("restore", place, "job", "not an id", *into)[0] == 2
    assert not (tmp_path / "back").exists()


def test_restore_writes_checkpoints_of_every_format(here, place, tmp_path):
    first = new_uuid7()

    async def snapshot(checkpointer):
        sha256 = await checkpointer.save_snapshot(first, "count", 0, b"everything")
        path = artifact_path(first, "count", 0, delta=False)
        entry = {"partition_id": 0, "is_delta": False, "path": path, "size_bytes": 10, "sha256": sha256}
        operators = {"count": {"partitions": [entry]}}
        await checkpointer.save_manifest(CheckpointManifestV2.new(first, epoch=1, operators=operators))
        await checkpointer.update_latest(first)

    with CheckpointCatalog.native(place) as catalog:
        catalog.store("v1").save_with_state(CheckpointManifest.new(3, epoch=1), b"state")
        asyncio.run(snapshot(catalog.checkpointer("v2")))
        catalog.state_store().save(CheckpointState.new(CheckpointId("sensor", 0)))
    for stream, number, artifacts in (
        ("v1", 3, [b"state"]),
        ("v2", first, [b"everything"]),
        ("sensor", 0, [CheckpointState.new(CheckpointId("sensor", 0)).serialize()]),
    ):
        code, shown, _ = here("restore", place, stream, "--into", tmp_path / stream, "--output", "json")
        assert (code, json.loads(shown)["checkpoint_id"]) == (0, number)
        parts = json.loads((tmp_path / stream / "restore.json").read_text())["apply_in_this_order"]
        assert [(tmp_path / stream / one["file"]).read_bytes() for one in parts] == artifacts
        assert (tmp_path / stream / "manifest.json").is_file()
