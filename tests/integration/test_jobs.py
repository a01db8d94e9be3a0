"""The scheduled jobs: what they do, what they say, and their exit codes; and that running one twice at once is safe."""

import json
import os
import subprocess
import sys
import tomllib
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path

import pytest

from catalog import CatalogError, CheckpointCatalog, CheckpointManifest, ConflictError, keys
from catalog.cli.frame import ExitCode
from catalog.cli.job import Done
from catalog.cli.output import JsonOutput
from catalog.tables.port import Table
from catalog.testing.native import NativeHarness
from jobs import maintain_catalog
from jobs.maintain_catalog import Step, as_a_whole, run_steps

CHECKOUT = Path(__file__).parents[2]
JOBS = sorted(file.stem for file in CHECKOUT.glob("jobs/*.py") if file.stem != "__init__")
NATIVE = ("--engine", "native")
JSON = ("--output", "json")
LAST_TWO = '[[retention]]\nlast = 2\nundo_for = "0s"\n'


@pytest.fixture
def run(capsys):
    """Run a job in this process: gives exit code, stdout and stderr."""

    def run(job, *arguments):
        code = 0
        try:
            import_module(f"jobs.{job}").main([str(one) for one in arguments])
        except SystemExit as end:
            code = end.code
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def place(tmp_path):
    return tmp_path / "catalog"


@pytest.fixture
def harness(place):
    return NativeHarness(place, durable=False)


@pytest.fixture
def catalog(harness):
    return harness.catalog


@pytest.fixture
def policies(tmp_path):
    file = tmp_path / "retention.toml"
    file.write_text(LAST_TWO)
    return file


def save(catalog, stream, numbers, state=b"state"):
    store = catalog.store(stream)
    for number in numbers:
        store.save_with_state(CheckpointManifest.new(number, epoch=1), state)
    return store


def events(catalog):
    return [row["event"] for row in catalog.engine.scan(Table.EVENTS, [], ["event"]).to_pylist()]


# -- all of them -------------------------------------------------------------------------------------------------------


def test_every_job_is_a_command_in_the_wheel_and_is_named_after_no_standard_module():
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))
    commands = {target: name for name, target in project["project"]["scripts"].items() if name != "ckpt"}
    assert commands.keys() == {f"jobs.{job}:main" for job in JOBS}
    assert not set(JOBS) & set(sys.stdlib_module_names)
    assert "jobs" in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    for job in JOBS:
        module = import_module(f"jobs.{job}")
        assert commands[f"jobs.{job}:main"] == module.NAME == module.main.app.info.name


@pytest.mark.parametrize("job", JOBS)
def test_every_job_says_what_it_can_and_refuses_what_it_cannot(run, job, tmp_path):
    code, shown, told = run(job, "--help")
    assert (code, told) == (0, "")
    for option in ("PLACE", "--engine", "--dry-run", "--output", "--debug", "Exit codes: 0 ok"):
        assert option in shown
    code, shown, told = run(job, tmp_path / "typo", *NATIVE)
    assert (code, shown, len(told.splitlines())) == (10, "", 1)
    assert told.startswith(f"{import_module(f'jobs.{job}').NAME}: no checkpoint catalog at")
    for arguments in ([], [tmp_path, "--engine", "duckdb"], [tmp_path, "--output", "xml"], [tmp_path, "--no-such"]):
        code, shown, told = run(job, *arguments)
        assert (code, shown) == (2, ""), arguments
        assert told.strip()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("job", "arguments", "told"),
    [
        ("verify_checkpoints", ["--sample", "0"], "--sample"),
        ("verify_checkpoints", ["--sample-percent", "101"], "percent must be above 0"),
        ("verify_checkpoints", ["--depth", "deep"], "--depth"),
        ("run_drills", ["--sample-percent", "0"], "percent must be above 0"),
        ("apply_retention", ["--policies", "/no/such/file"], "No such file"),
        ("apply_retention", ["--grace", "soon"], "a length of time is a number with"),
        ("fold_chains", ["--min-links", "1"], "--min-links"),
        ("maintain_catalog", ["--policies", "/no/such/file"], "No such file"),
        ("maintain_catalog", ["--skip", "everything"], "--skip"),
        ("compact_catalog", ["--keep-removed", "2d"], "removed files stay 1d at most"),
        ("maintain_catalog", ["--keep-removed", "2d"], "removed files stay 1d at most"),
    ],
)
def test_bad_options_are_refused_before_anything_is_opened(run, tmp_path, job, arguments, told):
    code, shown, said = run(job, tmp_path / "no catalog", *NATIVE, *arguments)
    assert (code, shown) == (2, "")
    assert told in said


@pytest.mark.parametrize("job", [job for job in JOBS if job not in ("compact_catalog", "maintain_catalog")])
def test_a_mistyped_stream_is_an_error_and_no_empty_success(run, catalog, place, job):
    save(catalog, "orders", [1])
    code, shown, told = run(job, place, *NATIVE, "--stream", "order")
    assert (code, shown) == (1, "")
    assert "there is no stream 'order'" in told


# -- one by one --------------------------------------------------------------------------------------------------------


def test_verify_reads_all_bytes_and_records_unless_it_runs_dry(run, harness, catalog, place):
    save(catalog, "orders", (1, 2))
    save(catalog, "other", [1])
    code, shown, told = run("verify_checkpoints", place, *NATIVE, *JSON, "--dry-run")
    found = json.loads(shown)
    assert (code, told, found["valid"], found["checked"], found["bytes"]) == (0, "", True, 3, 15)
    assert events(catalog) == []
    harness.corrupt_state("orders", keys.integer_key(2))
    assert run("verify_checkpoints", place, *NATIVE, "--depth", "metadata")[0] == 0
    assert run("verify_checkpoints", place, *NATIVE, "--stream", "other")[0] == 0
    assert events(catalog) == ["verified"] * 4
    code, shown, _ = run("verify_checkpoints", place, *NATIVE, *JSON)
    (issue,) = json.loads(shown)["issues"]
    assert (code, issue["stream"], issue["checkpoint_id"], issue["rule"]) == (3, "orders", 2, "checksum_mismatch")
    code, shown, _ = run("verify_checkpoints", place, *NATIVE)
    assert code == 3
    assert shown.splitlines()[-1].startswith("integrity failures in 1, having looked at 3 of 3 checkpoints")


def test_drills_say_by_their_exit_code_whether_all_could_be_restored(run, harness, catalog, place, tmp_path):
    save(catalog, "orders", (1, 2, 3))
    code, shown, _ = run("run_drills", place, *NATIVE, *JSON, "--dry-run")
    assert (code, [one["checkpoint_id"] for one in json.loads(shown)["drills"]]) == (0, [3, 1])
    assert events(catalog) == []
    code, shown, _ = run("run_drills", place, *NATIVE, "--scratch", tmp_path)
    assert code == 0
    assert shown.startswith("restored orders 3 (the latest)")
    harness.corrupt_state("orders", keys.integer_key(2))
    code, shown, _ = run("run_drills", place, *NATIVE, *JSON)
    found = json.loads(shown)
    assert (code, found["failed"]) == (3, 1)
    assert [one["checkpoint_id"] for one in found["drills"] if one["error"]] == [2]
    assert run("run_drills", place, *NATIVE, "--scratch", tmp_path / "not there")[0] == 2
    code, shown, _ = run("run_drills", place, *NATIVE, *JSON, "--sample", "1")
    assert len(json.loads(shown)["drills"]) == 1


@pytest.fixture
def aged(place):
    """A catalog in whose stream `old` three checkpoints are in the trash, past their undo window."""
    yesterday = datetime.now(UTC) - timedelta(days=1)
    with CheckpointCatalog.native(place, create=True, clock=lambda: yesterday, durable=False) as catalog:
        store = save(catalog, "old", range(1, 6))
        assert store.prune(2, undo_for=timedelta(0)) == 3
        save(catalog, "young", range(1, 6))
    return CheckpointCatalog.native(place)


def test_retention_plans_trashes_purges_and_sweeps(run, aged, place, policies):
    before = aged.engine.versions()[-1]
    code, shown, told = run("apply_retention", place, *NATIVE, *JSON, "--policies", policies, "--dry-run")
    plan = json.loads(shown)
    assert (code, told, aged.engine.versions()[-1]) == (0, "", before)
    gone = [(one["stream"], one["checkpoint_id"]) for one in plan["planned"] if not one["keep"]]
    assert gone == [("young", 1), ("young", 2), ("young", 3)]
    assert plan["cleaned"][0] == {
        "stream": "old",
        "purged": [1, 2, 3],
        "swept": {"orphans": 0, "purged": 3, "chunks": 3},
    }

    assert run("apply_retention", place, *NATIVE, "--policies", policies, "--trash-only")[0] == 0
    assert aged.store("young").list_ids() == [4, 5]
    aged.store("young").restore(3)
    rows = aged.engine.scan(Table.ARTIFACTS, [], ["stream"]).num_rows
    code, shown, _ = run("apply_retention", place, *NATIVE, *JSON)  # without policies nothing is trashed
    assert (code, json.loads(shown)["cleaned"][0]) == (0, plan["cleaned"][0])
    assert aged.engine.scan(Table.ARTIFACTS, [], ["stream"]).num_rows == rows - 3
    assert aged.store("young").list_ids() == [3, 4, 5]
    code, shown, _ = run(
        "apply_retention", place, *NATIVE, "--policies", policies, "--stream", "young", "--grace", "2h"
    )
    assert code == 0
    assert "remove young 3: not one of the newest 2 (0.0 MiB freed)" in shown
    assert "young: can be restored until" in shown


def test_retention_sweeps_streams_too_whose_first_save_never_came_to_an_end(run, aged, place):
    yesterday = datetime.now(UTC) - timedelta(days=1)
    with CheckpointCatalog.native(place, clock=lambda: yesterday, durable=False) as catalog:
        catalog.store("never").save_state_data(1, b"state")
    code, shown, _ = run("apply_retention", place, *NATIVE, *JSON)
    cleaned = {one["stream"]: one["swept"]["chunks"] for one in json.loads(shown)["cleaned"]}
    assert (code, cleaned["never"]) == (0, 1)
    streams = aged.engine.scan(Table.ARTIFACTS, [], ["stream"]).column("stream").to_pylist()
    assert "never" not in streams


def test_a_stream_that_cannot_be_read_is_left_alone_and_told_and_the_others_are_done(run, harness, catalog, place):
    save(catalog, "a", (1, 2))
    save(catalog, "b", (1, 2, 3))

    def forget(rows):
        rows[0]["attempt"] = None

    harness._change(Table.CHECKPOINTS, "a", keys.integer_key(1), forget)
    policies = place.with_name("one.toml")
    policies.write_text("[[retention]]\nlast = 1\n[[retention]]")
    assert run("apply_retention", place, *NATIVE, "--policies", policies)[0] == 2
    policies.write_text('[[retention]]\nstreams = "b"\nlast = 1\n')
    code, shown, told = run("apply_retention", place, *NATIVE, *JSON, "--policies", policies)
    assert (code, told) == (3, "")
    assert json.loads(shown)["errors"].keys() == {"a"}
    assert "so nothing is deleted" in json.loads(shown)["errors"]["a"]
    assert catalog.store("b").list_ids() == [3]
    assert "left alone: a: " in run("apply_retention", place, *NATIVE)[1]


# -- the whole ---------------------------------------------------------------------------------------------------------


def test_maintenance_does_all_steps_in_their_order(run, aged, place, policies):
    code, shown, told = run("maintain_catalog", place, *NATIVE, *JSON, "--policies", policies)
    steps = json.loads(shown)["steps"]
    assert (code, told) == (0, "")
    assert [one["step"] for one in steps] == ["verify", "fold", "retain", "compact", "drill"]
    assert [one["exit_code"] for one in steps] == [0] * 5
    assert aged.store("young").list_ids() == [4, 5]
    assert steps[2]["result"]["cleaned"][0]["purged"] == [1, 2, 3]
    assert [(one["stream"], one["checkpoint_id"]) for one in steps[4]["result"]["drills"]] == [
        ("old", 5), ("old", 4), ("young", 5), ("young", 4)
    ]  # fmt: skip
    assert set(events(aged)) >= {"verified", "drilled"}
    assert aged.validate(depth="hashes").valid


@pytest.mark.usefixtures("aged")
def test_maintenance_frees_the_disk_at_once_if_it_is_told_to(run, place):
    for options, freed in ([], False), (["--keep-removed", "0s"], True):
        before = len(list((place / Table.ARTIFACTS).rglob("*.parquet")))
        assert run("maintain_catalog", place, *NATIVE, "--skip", "drill", *options)[0] == 0
        assert (len(list((place / Table.ARTIFACTS).rglob("*.parquet"))) < before) is freed


def test_dry_maintenance_changes_nothing(run, aged, place, policies):
    assert aged.streams() == ["old", "young"]

    def files():
        return {file: file.stat().st_mtime_ns for file in place.rglob("*") if file.is_file()}

    before = files()
    code, shown, _ = run("maintain_catalog", place, *NATIVE, "--policies", policies, "--dry-run")
    assert code == 0
    assert [line.split()[1] for line in shown.splitlines() if line.startswith("==")] == [f"{step}:" for step in Step]
    assert files() == before


def test_retention_leaves_streams_alone_in_which_something_is_broken(run, harness, catalog, place, policies):
    save(catalog, "broken", range(1, 6))
    save(catalog, "sound", range(1, 6))
    harness.lose_state("broken", keys.integer_key(5))
    code, shown, _ = run("maintain_catalog", place, *NATIVE, *JSON, "--policies", policies, "--skip", "drill")
    steps = {one["step"]: one for one in json.loads(shown)["steps"]}
    assert (code, steps["verify"]["exit_code"], steps["retain"]["exit_code"]) == (3, 3, 0)
    assert steps["retain"]["result"]["left_alone"] == ["broken"]
    assert "drill" not in steps
    assert catalog.store("broken").list_ids() == [1, 2, 3, 4, 5]
    assert catalog.store("sound").list_ids() == [4, 5]


def test_what_came_in_corrupt_does_not_keep_a_stream_from_being_tidied(run, catalog, place, policies, tmp_path):
    source = tmp_path / "bucket"
    save(catalog, "s", range(1, 6))
    catalog.export_to(source, "s")
    (source / "checkpoints" / "state-000002.bin").write_bytes(b"damaged")
    catalog.import_from(source, "imported")
    code, shown, _ = run("maintain_catalog", place, *NATIVE, *JSON, "--policies", policies, "--skip", "drill")
    steps = {one["step"]: one for one in json.loads(shown)["steps"]}
    assert (code, steps["verify"]["exit_code"]) == (3, 3)
    assert steps["retain"]["result"]["left_alone"] == []
    assert catalog.store("imported").list_ids() == [2, 4, 5]


def test_nothing_is_deleted_where_verification_failed_but_the_other_steps_are_done(
    run, aged, place, policies, monkeypatch
):
    def fail(*_, **__):
        raise ConflictError("the disk is busy")

    monkeypatch.setattr(maintain_catalog, "verify", fail)
    code, shown, told = run("maintain_catalog", place, *NATIVE, *JSON, "--policies", policies)
    steps = {one["step"]: one for one in json.loads(shown)["steps"]}
    assert code == 3
    assert {name: one["exit_code"] for name, one in steps.items()} == {
        "verify": 11, "fold": 0, "retain": 1, "compact": 0, "drill": 0
    }  # fmt: skip
    assert "it is not known whether the checkpoints are sound" in steps["retain"]["error"]
    assert told.splitlines()[0] == "ckpt-maintain: verify: the disk is busy"
    assert aged.store("young").list_ids() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("codes", "whole"), [([], 0), ([0, 0], 0), ([0, 3], 3), ([0, 1], 3), ([11, 11], 11), ([1, 11], 3), ([1], 1)]
)
def test_the_exit_code_of_the_whole_is_that_of_its_steps_where_they_agree(codes, whole):
    assert as_a_whole([ExitCode(code) for code in codes]) == whole


@pytest.mark.parametrize("debug", [False, True])
def test_a_step_that_fails_hides_no_other(capsys, debug):
    def fail():
        raise CatalogError("broken")

    def stumble():
        raise ZeroDivisionError("unforeseen")

    steps = {Step.VERIFY: fail, Step.FOLD: stumble, Step.COMPACT: lambda: Done({"done": 1}, "did it")}
    done = run_steps(JsonOutput(), steps, debug=debug)
    assert done.code == 3
    assert [one["exit_code"] for one in done.data["steps"]] == [1, 1, 0]
    assert done.data["steps"][2]["result"] == {"done": 1}
    assert "did it" in done.text
    told = capsys.readouterr().err
    assert "ckpt-maintain: verify: broken" in told
    assert "ckpt-maintain: fold: ZeroDivisionError: unforeseen" in told
    assert ("Traceback" in told) is debug


# -- as processes ------------------------------------------------------------------------------------------------------


def start(job, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", f"jobs.{job}", *map(str, arguments)],
        cwd=CHECKOUT,
        env={**os.environ, "JAVA_HOME": "/nowhere"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def maintained_by(place, policies, processes, saves):
    """Let processes maintain a catalog at the same time, while checkpoints are saved."""
    started = [start("maintain_catalog", place, *NATIVE, *JSON, "--policies", policies) for _ in range(processes)]
    saved = 5
    with CheckpointCatalog.native(place) as catalog:
        store = catalog.store("busy")
        while saved < 5 + saves or any(process.poll() is None for process in started):
            saved += 1
            store.save_with_state(CheckpointManifest.new(saved, epoch=1), f"state {saved}".encode())
    results = [process.communicate() for process in started]
    for process, (shown, told) in zip(started, results, strict=True):
        assert process.returncode == 0, (shown, told)
    return saved


def test_two_processes_can_maintain_a_catalog_at_once_beside_a_writer(aged, place, policies):
    save(aged, "busy", range(1, 6))
    saved = maintained_by(place, policies, processes=2, saves=10)
    busy = aged.store("busy")
    assert busy.load_state_data(saved) == f"state {saved}".encode()
    assert aged.validate(depth="hashes").valid
    assert aged.store("young").list_ids() == [4, 5]
    assert aged.store("old").list_ids() == [4, 5]
    assert not {1, 2, 3} & set(busy.list_ids())


# -- with Spark --------------------------------------------------------------------------------------------------------


def test_spark_is_the_engine_unless_another_is_asked_for_also_for_a_schema(run, spark, harness, catalog, place):
    save(catalog, "orders", (1, 2))
    harness.corrupt_state("orders", keys.integer_key(1))
    assert run("verify_checkpoints", place, *JSON)[0] == 3
    by_name = CheckpointCatalog.create(spark, "jobs_by_name")
    save(by_name, "orders", [1])
    code, shown, _ = run("run_drills", "jobs_by_name", *JSON)
    assert (code, [one["checkpoint_id"] for one in json.loads(shown)["drills"]]) == (0, [1])
    assert run("run_drills", "no_such_schema")[0] == 10
    assert spark.range(3).count() == 3  # the session is not the job's to stop
