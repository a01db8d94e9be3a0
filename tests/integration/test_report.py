"""`ckpt report`: what it reads of real tables, and how it writes the page."""

import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from catalog import CheckpointCatalog, CheckpointManifest, CheckpointNotFoundError, Last, Retention, keys
from catalog.cli.main import main
from catalog.cli.reporting import replace_file
from catalog.report.findings import Level, findings
from catalog.report.gather import gather
from catalog.report.html import MARK
from catalog.tables.port import Table
from catalog.testing.native import NativeHarness
from tests.planted import Planted

DOCS = Path(__file__).parents[2] / "docs" / "REPORT.md"
MEANWHILE = timedelta(minutes=1)


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A catalog with one fault for each rule; the tests only read it."""
    return Planted(tmp_path_factory.mktemp("planted") / "catalog")


@pytest.fixture
def harness(tmp_path):
    return NativeHarness(tmp_path / "catalog", durable=False)


@pytest.fixture
def ckpt(capsys):
    """Run `ckpt` in this process: gives exit code, stdout and stderr."""

    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            main([str(one) for one in arguments])
        return end.value.code or 0, *capsys.readouterr()

    return run


def save(catalog, stream, *numbers, state=b"state", **fields):
    store = catalog.store(stream)
    for number in numbers:
        store.save_with_state(CheckpointManifest.new(number, epoch=1, **fields), state)
    return store


def read(harness, **options):
    return gather(harness.catalog, now=harness.clock() + MEANWHILE, **options)


def one_stream(report, name):
    (found,) = (stream for stream in report.streams if stream.name == name)
    return found


def versions(place):
    return {table: sorted((place / table / "_delta_log").iterdir()) for table in Table}


# -- what is read ------------------------------------------------------------------------------------------------------


def test_every_planted_fault_is_told_and_nothing_else_is(planted):
    report = read(planted.harness)
    found = {
        (one.stream, str(one.id)): {fault.rule for fault in one.faults} for one in report.checkpoints if one.faults
    }
    assert found == planted.expected
    assert report.unreadable == ()


def test_a_report_writes_nothing_into_the_catalog(planted, tmp_path, ckpt):
    before = versions(planted.place)
    policies = tmp_path / "policies.toml"
    policies.write_text("[[retention]]\nlast = 1\n")
    assert ckpt("report", planted.place, "--out", tmp_path / "r.html", "--policies", policies)[0] == 3
    assert versions(planted.place) == before


def test_sizes_are_told_by_operator_and_what_is_stored_counts_each_byte_once(planted):
    report = read(planted.harness)
    first, second = one_stream(report, "good v2").live
    assert {name: one.bytes for name, one in first.operators.items()} == {"count": len(b"everything")}
    assert {name: one.new_bytes for name, one in second.operators.items()} == {"count": len(b"more")}
    streams = one_stream(report, "good streams")
    shared = [sum(one.new_bytes for one in each.operators.values()) for each in streams.live]
    assert [one.bytes for one in streams.live] == [600_004 - 4, 600_000]
    assert shared == [600_000, 0]
    assert (streams.bytes, streams.stored_bytes) == (1_200_000, 600_000)
    assert one_stream(report, "good state").stored_bytes == 0


def test_drills_and_verifications_are_those_that_were_recorded(harness):
    catalog = harness.catalog
    save(catalog, "s", 1, 2, state=b"x" * 5000)
    harness.corrupt_state("s", keys.integer_key(2))
    catalog.validate(depth="hashes")
    catalog.run_drills()
    (stream,) = read(harness).streams
    good, bad = stream.live
    assert (good.proven, good.hashed.valid, good.faults) == (True, True, ())
    assert [(fault.rule, fault.recorded_at) for fault in bad.faults] == [("checksum_mismatch", harness.clock())]
    assert (bad.proven, bad.drill.restored, "checksum mismatch" in bad.drill.error) == (False, False, True)
    assert [one.checkpoint_id for one in stream.drills] == [2, 1]
    assert stream.choice is good


def test_the_plan_is_that_of_retention_and_is_not_carried_out(harness):
    save(harness.catalog, "s", 1, 2, 3)
    save(harness.catalog, "left alone", 1)
    policies = [Retention((Last(1),), "s")]
    report = read(harness, policies=policies)
    assert report.retention == harness.catalog.apply_retention(policies, dry_run=True)
    assert [one.checkpoint_id for one in report.retention.removed] == [1, 2]
    assert harness.catalog.store("s").list_ids() == [1, 2, 3]


def test_a_lost_data_file_does_not_keep_the_other_streams_from_being_told(harness, tmp_path):
    catalog = harness.catalog
    save(catalog, "lost", 1, state=b"x" * 3000)
    before = set(tmp_path.glob("catalog/artifacts/**/*.parquet"))
    save(catalog, "whole", 1, state=b"x" * 2000)
    (lost,) = before
    lost.unlink()
    with CheckpointCatalog.native(tmp_path / "catalog") as fresh:  # which remembers no rows of small files
        report = gather(fresh, now=datetime.now(UTC), policies=[Retention((Last(1),))])
    assert [one.rule for one in one_stream(report, "lost").live[0].broken] == ["state_unreadable"]
    assert (one_stream(report, "lost").stored_bytes, one_stream(report, "whole").stored_bytes) == (None, 2000)
    assert one_stream(report, "whole").live[0].operators["(state)"].bytes == 2000
    (unreadable,) = report.unreadable
    assert "'lost'" in unreadable
    assert "lost" in report.unplanned
    assert [one.level for one in findings(report) if one.stream in (None, "lost")][:2] == [Level.CRITICAL] * 2


def test_only_the_streams_that_are_asked_for_are_read_and_a_mistyped_one_is_refused(harness):
    save(harness.catalog, "a", 1)
    save(harness.catalog, "b", 1)
    assert [one.name for one in read(harness, streams=["b"]).streams] == ["b"]
    with pytest.raises(CheckpointNotFoundError, match="there is no stream 'c'"):
        read(harness, streams=["b", "c"])


def test_a_stream_whose_first_save_never_ended_is_there_with_its_bytes(harness):
    harness.catalog.store("begun").save_state_data(1, b"x" * 700)
    stream = one_stream(read(harness), "begun")
    assert (stream.checkpoints, stream.stored_bytes) == ((), 700)


# -- how it is written -------------------------------------------------------------------------------------------------


def test_the_command_says_in_short_what_the_page_tells(ckpt, harness, tmp_path):
    save(harness.catalog, "s", 1, 2)
    harness.lose_state("s", keys.integer_key(2))
    file = tmp_path / "r.html"
    code, out, err = ckpt("report", tmp_path / "catalog", "--out", file)
    assert (code, err) == (3, "")
    lines = out.splitlines()
    assert lines[:2] == [str(file), "1 stream, 2 checkpoints, 10 B, 1 broken, oldest unproven s 1"]
    assert lines[2].startswith("critical: s: 1 checkpoint broken (state_missing): 2; recovery would choose 1")
    assert file.read_text("utf-8").startswith(MARK)
    assert {one.name for one in tmp_path.iterdir()} == {"catalog", "r.html"}

    code, out, _ = ckpt("report", tmp_path / "catalog", "--out", file, "--output", "json")
    told = json.loads(out)
    assert (code, told["broken"], told["checkpoints"], told["oldest_unproven"]["checkpoint_id"]) == (3, 1, 2, 1)
    assert told["findings"][0]["level"] == "critical"
    assert told["size_bytes"] == file.stat().st_size


def test_a_sound_catalog_is_success(ckpt, harness, tmp_path):
    save(harness.catalog, "s", 1)
    assert ckpt("report", tmp_path / "catalog", "--out", tmp_path / "r.html")[0] == 0


def test_a_report_is_replaced_and_another_file_only_by_force(ckpt, harness, tmp_path):
    save(harness.catalog, "s", 1)
    file, link = tmp_path / "r.html", tmp_path / "link.html"
    link.symlink_to(file)
    assert ckpt("report", tmp_path / "catalog", "--out", link)[0] == 0
    first = file.read_bytes()
    assert ckpt("report", tmp_path / "catalog", "--out", link)[0] == 0
    assert link.is_symlink()
    assert file.read_bytes() != first
    file.write_text("my notes")
    code, out, err = ckpt("report", tmp_path / "catalog", "--out", file)
    assert (code, out) == (2, "")
    assert "is there and is no report: pass another --out, or --force" in err
    assert file.read_text() == "my notes"
    assert ckpt("report", tmp_path / "catalog", "--out", file, "--force")[0] == 0
    assert file.read_text("utf-8").startswith(MARK)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--out", "nowhere/r.html"], 2, "there is no folder"),
        (["--out", "."], 2, "is not a file"),
        (["--out", "r.html", "--stream", "x"], 1, "there is no stream 'x'"),
        (["--out", "r.html", "--policies", "no.toml"], 2, "no.toml"),
    ],
)
def test_what_cannot_be_done_is_refused_in_a_sentence_and_nothing_is_written(
    ckpt, harness, tmp_path, monkeypatch, arguments, code, said
):
    save(harness.catalog, "s", 1)
    monkeypatch.chdir(tmp_path)
    found, out, err = ckpt("report", "catalog", *arguments)
    assert (found, out) == (code, "")
    assert said in err
    assert [one.name for one in tmp_path.iterdir()] == ["catalog"]


def test_where_there_is_no_catalog_the_exit_code_says_so(ckpt, tmp_path):
    assert ckpt("report", tmp_path / "nothing", "--out", tmp_path / "r.html")[0] == 10


@pytest.mark.parametrize("missing", ["altair", "vl_convert"])
def test_a_missing_extra_is_one_sentence_with_the_command(missing, tmp_path):
    code = f"import sys; sys.modules[{missing!r}] = None; from catalog.cli.main import main; main(sys.argv[1:])"
    arguments = ["report", str(tmp_path / "catalog"), "--out", str(tmp_path / "r.html")]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    said = "ckpt: a report needs altair and vl-convert-python: pip install 'checkpoint-catalog[report]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)
    assert not (tmp_path / "r.html").exists()


def test_a_report_needs_no_spark(harness, tmp_path):
    save(harness.catalog, "s", 1)
    code = (
        "import sys; from catalog.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: assert not end.code, end\n"
        "print(sorted({'pyspark', 'py4j', 'delta', 'great_expectations'} & set(sys.modules)), file=sys.stderr)"
    )
    arguments = ["report", str(tmp_path / "catalog"), "--out", str(tmp_path / "r.html")]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "[]\n")


def test_a_write_that_fails_leaves_the_file_that_was_there_and_nothing_beside_it(tmp_path):
    file = tmp_path / "r.html"
    file.write_text("before")
    with pytest.raises(TypeError):
        replace_file(file, "no bytes")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("r.html", "before")]


def test_the_commands_of_its_documentation_work(ckpt, harness, tmp_path, monkeypatch):
    for stream in ("orders", "clicks"):
        save(harness.catalog, stream, 1)
    monkeypatch.chdir(tmp_path)
    Path("retention.toml").write_text("[[retention]]\nlast = 1\n")
    block = re.search(r"^```shell\n(.*?)^```$", DOCS.read_text("utf-8"), re.MULTILINE | re.DOTALL)[1]
    commands = [line.replace("/data/ckpt", "catalog").split() for line in block.splitlines()]
    assert [words[0] for words in commands] == ["pip", "ckpt", "ckpt"]
    assert [ckpt(*words[1:])[0] for words in commands[1:]] == [0, 0]
    assert Path("report.html").read_text("utf-8").startswith(MARK)
