"""`ckpt validate`, `fold`, `compact`, `sweep` and `drill` do what the jobs do, without Spark; and `ckpt doctor`."""

import asyncio
import json
import os
import re
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from catalog import CheckpointCatalog, CheckpointManifest, CheckpointManifestV2, artifact_path, keys, new_uuid7
from catalog.cli import doctor, tasks
from catalog.cli.job import EngineName, EngineOption
from catalog.cli.main import COMMANDS
from catalog.cli.output import JsonOutput
from catalog.tables import probe
from catalog.tables.locks import CommitLock
from catalog.tables.names import path_place
from catalog.tables.port import Table
from catalog.testing.native import NativeHarness

JSON = ("--output", "json")
TRACE = "Traceback (most recent call last):"


@pytest.fixture
def harness(tmp_path):
    return NativeHarness(tmp_path / "catalog", durable=False)


@pytest.fixture
def place(harness, tmp_path):
    store = harness.catalog.store("orders")
    for number in (1, 2, 3):
        store.save_with_state(CheckpointManifest.new(number, epoch=1), f"state {number}".encode())
    return tmp_path / "catalog"


def events(harness):
    return [row["event"] for row in harness.catalog.engine.scan(Table.EVENTS, [], ["event"]).to_pylist()]


# -- as the jobs -------------------------------------------------------------------------------------------------------


def test_validate_reads_all_bytes_and_its_code_tells_of_faults(here, harness, place):
    code, shown, told = here("validate", place, *JSON, "--dry-run")
    found = json.loads(shown)
    assert (code, told, found["valid"], found["checked"], found["bytes"]) == (0, "", True, 3, 21)
    assert events(harness) == []
    harness.corrupt_state("orders", keys.integer_key(2))
    assert here("validate", place, "--depth", "metadata")[0] == 0
    code, shown, _ = here("validate", place)
    assert code == 3
    assert shown.startswith("integrity: orders 2: ")
    assert events(harness) == ["verified"] * 6
    assert json.loads(here("validate", place, "--sample", "1", *JSON)[1])["checked"] == 1
    assert here("validate", place, "--stream", "order")[0] == 1
    assert here("validate", place, "--sample", "0")[0] == 2
    assert here("validate", place, "--sample-percent", "101")[0] == 2


def test_drill_restores_and_its_code_tells_what_could_not_be(here, harness, place):
    code, shown, _ = here("drill", place, "--dry-run", *JSON)
    assert (code, [one["checkpoint_id"] for one in json.loads(shown)["drills"]]) == (0, [3, 1])
    assert here("drill", place)[0] == 0
    assert events(harness) == ["drilled"] * 2
    harness.lose_state("orders", keys.integer_key(3))
    code, shown, _ = here("drill", place)
    assert code == 3
    assert shown.startswith("failed orders 3")


def save_chain(checkpointer, links, format):
    """Save a snapshot and deltas on it, and return the newest id."""

    async def chain():
        parent = None
        for data in links:
            id = new_uuid7()
            delta = parent is not None
            sha256 = await (checkpointer.save_delta if delta else checkpointer.save_snapshot)(id, "log", 0, data)
            path = artifact_path(id, "log", 0, delta=delta)
            entry = {"partition_id": 0, "is_delta": delta, "path": path, "size_bytes": len(data), "sha256": sha256}
            operators = {"log": {"partitions": [entry], "format": format}}
            await checkpointer.save_manifest(
                CheckpointManifestV2.new(id, epoch=1, parent_id=parent, operators=operators)
            )
            await checkpointer.update_latest(id)
            parent = id
        return parent

    return asyncio.run(chain())


def test_fold_turns_a_chain_into_a_snapshot_unless_it_runs_dry(here, harness, tmp_path):
    checkpointer = harness.catalog.checkpointer("clicks")
    newest = save_chain(checkpointer, (b"one ", b"two ", b"three"), "append-log")
    place = tmp_path / "catalog"
    code, shown, _ = here("fold", place, "--min-links", 2, "--dry-run", *JSON)
    assert (code, [one["folded"] for one in json.loads(shown)["chains"]]) == (0, [True])
    assert len(asyncio.run(checkpointer.load_chain(newest, "log", 0))) == 3
    assert here("fold", place, "--min-links", 2)[0] == 0
    assert [one.data for one in asyncio.run(checkpointer.load_chain(newest, "log", 0))] == [b"one two three"]
    assert here("fold", place, "--min-links", 1)[0] == 2


def test_a_chain_that_cannot_be_folded_is_code_3_and_one_line_and_its_trace_is_for_debug(ckpt, harness, tmp_path):
    save_chain(harness.catalog.checkpointer("clicks"), (b"{}", b"no JSON"), "json-merge-patch")
    fold = ("fold", tmp_path / "catalog", "--min-links", 2)
    done = ckpt(*fold)
    assert done.returncode == 3
    assert "2 links, but it could not be folded: " in done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("ckpt: folding 'log' partition 0 of checkpoint ")
    assert ckpt(*fold, "--debug").stderr.splitlines()[:2] == [line, TRACE]


def test_a_broken_chain_is_code_3_and_one_of_an_unknown_format_is_left_alone_on_purpose(here, harness, tmp_path):
    place = tmp_path / "catalog"
    save_chain(harness.catalog.checkpointer("odd"), (b"one", b"two"), "nobody knows it")
    assert here("fold", place, "--min-links", 2)[0] == 0
    checkpointer = harness.catalog.checkpointer("clicks")
    save_chain(checkpointer, (b"one", b"two"), "append-log")
    first = min(harness.catalog.stream("clicks").history())
    harness._change(Table.CHECKPOINTS, "clicks", first, lambda rows: rows.clear())
    for options in (["--dry-run"], []):
        code, shown, _ = here("fold", place, "--min-links", 2, *options, *JSON)
        assert (code, [one["failed"] for one in json.loads(shown)["chains"]]) == (3, [True, False]), options


def test_compact_merges_and_a_dry_run_only_tells(here, harness, place):
    store = harness.catalog.store("orders")
    for number in range(4, 12):
        store.save_with_state(CheckpointManifest.new(number, epoch=1), b"state")
    before = sorted(place.rglob("*.parquet"))
    code, shown, _ = here("compact", place, "--dry-run", *JSON)
    told = {one["table"]: one for one in json.loads(shown)["tables"]}
    assert (code, told["artifacts"]["files_before"], told["artifacts"]["files_after"]) == (0, 11, 1)
    assert sorted(place.rglob("*.parquet")) == before
    assert here("compact", place)[0] == 0
    code, shown, _ = here("compact", place, "--dry-run", *JSON)
    assert {one["table"]: one["files_before"] for one in json.loads(shown)["tables"]}["artifacts"] == 1


def test_the_disk_gets_swept_bytes_back_a_day_later_or_at_once_by_compact_without_keeping(here, tmp_path):
    place = tmp_path / "catalog"
    yesterday = datetime.now(UTC) - timedelta(days=1)
    with CheckpointCatalog.native(place, create=True, clock=lambda: yesterday, durable=False) as catalog:
        store = catalog.store("orders")
        for number in (1, 2, 3):
            store.save_with_state(CheckpointManifest.new(number, epoch=1), os.urandom(1 << 20))
        store.prune(1, undo_for=timedelta(0))

    def on_disk():
        return sum(file.stat().st_size for file in place.rglob("*.parquet")) >> 20

    assert here("sweep", place)[0] == 0
    assert here("compact", place)[0] == 0
    assert on_disk() == 3
    code, shown, _ = here("compact", place, "--keep-removed", "0s", "--dry-run", *JSON)
    assert (code, sum(one["freed_bytes"] for one in json.loads(shown)["tables"]) >> 20, on_disk()) == (0, 2, 3)
    assert here("compact", place, "--keep-removed", "0s")[0] == 0
    assert on_disk() == 1
    for wrong in ("2d", "25h", "soon"):
        code, shown, told = here("compact", tmp_path / "typo", "--keep-removed", wrong)
        assert (code, shown, "--keep-removed" in told, "timedelta" in told) == (2, "", True, False), wrong


def test_compact_says_how_far_it_is(harness):
    store = harness.catalog.store("orders")
    for number in range(4, 12):
        store.save_with_state(CheckpointManifest.new(number, epoch=1), b"state")
    told = []

    class Watched(JsonOutput):
        @contextmanager
        def working(self, what):
            told.append(what)
            yield told.append

    tasks.compact(harness.catalog, Watched(), keep_removed=None, dry_run=False)
    assert told[0] == "compacting …"
    assert re.fullmatch(r"artifacts: (.+) of \1", told[1])


def test_sweep_deletes_what_is_past_its_undo_window_and_what_was_never_saved(here, harness, place):
    yesterday = datetime.now(UTC) - timedelta(days=1)
    with CheckpointCatalog.native(place, clock=lambda: yesterday, durable=False) as catalog:
        catalog.store("orders").prune(2, undo_for=timedelta(0))
        catalog.store("never").save_state_data(1, b"its save never came to an end")
    code, shown, told = here("sweep", place, "--dry-run", *JSON)
    found = json.loads(shown)
    assert (code, told, found["dry_run"], found["errors"]) == (0, "", True, {})
    assert {one["stream"]: (one["purged"], one["swept"]["chunks"]) for one in found["cleaned"]} == {
        "never": ([], 1), "orders": ([1], 1)
    }  # fmt: skip
    assert harness.artifact_rows("orders") == 3
    code, shown, _ = here("sweep", place)
    assert code == 0
    assert shown.splitlines() == [
        "never: 0 checkpoints purged, 1 attempts swept, 1 of them orphaned, 1 chunks",
        "orders: 1 checkpoints purged, 1 attempts swept, 1 chunks",
    ]
    assert (harness.artifact_rows("orders"), harness.artifact_rows("never")) == (2, 0)
    assert here("sweep", place) == (0, "nothing to purge or to sweep\n", "")
    assert events(harness) == ["swept"] * 2, "neither a dry run nor one that finds nothing is written down"
    last = here("history", place, "orders")[1].splitlines()[-1].split()
    assert (last[3:5], last[-6:]) == (["-", "swept"], ["orphans", "0,", "purged", "1,", "chunks", "1"])
    assert here("sweep", place, "--grace", "soon")[0] == 2
    assert here("sweep", place, "--stream", "order")[0] == 1


def test_sweep_leaves_a_stream_alone_that_it_cannot_read_and_says_so(here, harness, place):
    def forget(rows):
        rows[0]["attempt"] = None

    harness._change(Table.CHECKPOINTS, "orders", keys.integer_key(1), forget)
    code, shown, _ = here("sweep", place)
    assert code == 3
    assert shown.startswith("left alone: orders: ")
    assert harness.artifact_rows("orders") == 3


def test_all_that_deletes_can_run_dry_and_all_that_jobs_do_through_spark_can_be_so_too():
    for name in ("prune", "fold", "compact", "sweep", "drill", "validate"):
        options = COMMANDS[name].__annotations__
        assert "dry_run" in options, name
        assert options["engine"] == EngineOption
        assert COMMANDS[name].__defaults__ is not None
        assert EngineName.NATIVE in COMMANDS[name].__defaults__


# -- doctor ------------------------------------------------------------------------------------------------------------


def states(shown):
    return {one["what"]: one["state"] for one in json.loads(shown)}


def test_doctor_looks_at_this_machine_and_at_a_catalog_and_leaves_nothing_there(here, place):
    before = sorted(place.rglob("*"))
    code, shown, told = here("doctor", place, *JSON)
    assert (code, told) == (0, "")
    found = states(shown)
    assert list(found) == [
        "python", "deltalake", "pyspark", "java", "jars", "settings", "catalog", "storage", "locks", "space"
    ]  # fmt: skip
    assert {found[name] for name in ("python", "deltalake", "pyspark", "catalog", "storage", "locks")} == {"ok"}
    assert [one for one in sorted(place.rglob("*")) if one.name != "_commit.lock"] == [
        one for one in before if one.name != "_commit.lock"
    ]
    lines = here("doctor")[1].splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["ok", "python"], ["ok", "deltalake"]]
    assert len(lines) == 1 + 6


def test_doctor_tells_of_a_place_without_a_catalog_and_how_to_make_one(here, tmp_path):
    code, shown, told = here("doctor", tmp_path / "typo")
    assert (code, told) == (3, "")
    (line,) = [line for line in shown.splitlines() if " catalog " in line]
    assert line.startswith("fail")
    assert "`ckpt init`" in line
    assert not (tmp_path / "typo").exists()


def test_doctor_tells_what_is_wrong_with_the_machine_and_the_remedy(tmp_path):
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"'\n")
    old.chmod(0o755)
    found = {
        one.what: one
        for one in doctor._machine(
            {
                "JAVA_HOME": str(tmp_path), "PATH": "", "CHECKPOINT_CATALOG_JARS": str(tmp_path),
                "PYSPARK_PYTHON": "/no/python",
            }
        )
    }  # fmt: skip
    assert (found["java"].state, found["java"].found) == ("warn", f"{old} is Java 8, too old for Spark")
    assert found["java"].remedy.startswith("install Java 17")
    assert (found["jars"].state, "delta-spark_*.jar" in found["jars"].found) == ("fail", True)
    assert (found["settings"].state, found["settings"].remedy) == ("fail", "correct or unset it")
    strange = {one.what: one for one in doctor._machine({**os.environ, "SPARK_HOME": "/opt/spark"})}
    assert (strange["settings"].state, "SPARK_HOME is /opt/spark" in strange["settings"].found) == ("warn", True)


def test_doctor_tells_where_jars_will_come_from(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    first = doctor._jars({})
    assert (first.state, "will be fetched from Maven Central" in first.found) == ("warn", True)
    assert "CHECKPOINT_CATALOG_IVY_SETTINGS" in first.remedy
    jars = tmp_path / ".ivy2.5.2" / "jars"
    jars.mkdir(parents=True)
    package = first.found.split()[0].split(":")
    (jars / f"{package[0]}_{package[1]}-{package[2]}.jar").touch()
    assert doctor._jars({}).state == "ok"


def test_doctor_tells_of_a_missing_package():
    found = doctor._package("no-such-package", doctor.State.FAIL, "pip install it")
    assert (found.state, found.remedy) == ("fail", "pip install it")


def test_doctor_tells_of_a_lock_that_somebody_holds(monkeypatch, place):
    monkeypatch.setattr(doctor, "LOCK_WAIT_S", 0.01)
    with ExitStack() as stack:
        stack.enter_context(CommitLock(place / "events", durable=False).held())
        found = doctor._locks(path_place(place))
    assert (found.state, "events" in found.found) == ("warn", True)
    assert doctor._locks(path_place(place)).state == "ok"


def test_doctor_tells_of_a_disk_that_other_machines_share(monkeypatch, place):
    monkeypatch.setattr(doctor, "_disk", lambda _: "nfs4")
    found = doctor._locks(path_place(place))
    assert (found.state, "nfs4" in found.found) == ("warn", True)


@pytest.mark.parametrize(("free", "total", "state"), [(50 << 30, 100 << 30, "ok"), (1 << 29, 1 << 32, "warn"),
                                                     (4 << 30, 1000 << 30, "warn")])  # fmt: skip
def test_doctor_tells_when_space_runs_out(monkeypatch, place, free, total, state):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=free, total=total))
    found = doctor._space(path_place(place))
    assert (found.state, "`ckpt compact --keep-removed 0s`" in found.remedy) == (state, state == "warn")


def test_doctor_tells_of_a_storage_that_lets_two_writers_win(monkeypatch, place):
    monkeypatch.setattr(probe, "creates_exclusively", lambda _: False)
    found = doctor._storage(path_place(place))
    assert (found.state, "only one process" in found.remedy) == ("fail", True)


def test_doctor_tells_of_a_place_that_cannot_be_written(here, place, monkeypatch):
    def refuse(*_, **__):
        raise OSError("Permission denied (os error 13)")

    monkeypatch.setattr(probe, "write_deltalake", refuse)
    code, shown, _ = here("doctor", place, *JSON)
    assert (code, states(shown)["storage"]) == (3, "fail")
    (found,) = [one for one in json.loads(shown) if one["what"] == "storage"]
    assert "Permission denied" in found["found"]
    assert found["remedy"] == "give this process permission to write there"


def test_two_commits_of_one_version_are_tried_on_object_stores_too_and_nothing_is_left(s3_options):
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    place = path_place(f"s3://bucket/{new_uuid7()}")
    assert probe.creates_exclusively(place, s3_options)
    for folder in (place.path, "s3://bucket"):
        with pytest.raises(TableNotFoundError):
            DeltaTable(folder, storage_options=s3_options)
