"""`ckpt import` and `ckpt export`: the report on stdout, text and JSON, and exit codes."""

import json
import os
import subprocess
import sys

import pytest

from catalog import CheckpointCatalog, CheckpointManifest, new_uuid7
from catalog.cli.main import main
from catalog.moving.storage import Storage
from tests import sources
from tests.sources import put, taken

GOOD = sources.objects([1, 2])
BAD = {**GOOD, "manifests/manifest-000002.json": b"{", "stray": b""}


@pytest.fixture
def place(tmp_path):
    CheckpointCatalog.native(tmp_path / "catalog", create=True).close()
    return str(tmp_path / "catalog")


@pytest.fixture
def run(capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            main([str(one) for one in arguments])
        shown = capsys.readouterr()
        return end.value.code, shown.out, shown.err

    return run


def test_an_import_and_an_export_say_what_they_did_and_end_with_0(run, place, tmp_path):
    code, out, err = run("import", place, put(tmp_path / "in", GOOD), "--stream", "orders")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "imported 1 (manifests/manifest-000001.json)",
        "imported 2 (manifests/manifest-000002.json)",
        "2 imported; layout objects, latest is 2",
    ]
    code, out, err = run("export", place, "orders", tmp_path / "out")
    assert (code, out.splitlines()[-1], err) == (0, "2 exported; layout objects, latest is 2", "")
    assert taken(tmp_path / "out") == GOOD


def test_json_has_a_line_for_every_checkpoint_and_file(run, place, tmp_path):
    code, out, _ = run("import", place, put(tmp_path / "in", BAD), "--stream", "s", "--output", "json")
    told = json.loads(out)
    assert (code, told["latest"], told["layout"], told["dry_run"]) == (3, 1, "objects", False)
    assert [(line["checkpoint_id"], line["outcome"], line["file"]) for line in told["lines"]] == [
        (1, "imported", "manifests/manifest-000001.json"),
        (2, "imported as corrupt", "manifests/manifest-000002.json"),
        (None, "skipped", "stray"),
    ]
    assert told["notes"] == ["manifests/latest.json says 2, but the latest is 1"]
    assert "not JSON" in told["lines"][1]["fault"]


def test_faults_end_with_3_again_and_again_and_on_the_way_out(run, place, tmp_path):
    source = put(tmp_path / "in", BAD)
    assert [run("import", place, source, "--stream", "s", *more)[0] for more in (["--dry-run"], [], [])] == [3, 3, 3]
    assert run("export", place, "s", tmp_path / "out")[0] == 3


def test_a_dry_run_writes_nothing(run, place, tmp_path):
    code, out, _ = run("import", place, put(tmp_path / "in", GOOD), "--stream", "s", "--dry-run")
    assert (code, out.splitlines()[-1]) == (0, "2 imported; layout objects, latest is 2; nothing was written")
    assert CheckpointCatalog.native(place).streams() == []
    CheckpointCatalog.native(place).store("s").save(CheckpointManifest.new(1, epoch=1))
    assert run("export", place, "s", tmp_path / "out", "--dry-run")[0] == 0
    assert not (tmp_path / "out").exists()


def test_refusals_are_one_sentence_on_stderr(run, place, tmp_path):
    put(tmp_path / "in", {"x": b""})
    code, out, err = run("import", place, tmp_path / "in", "--stream", "s")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("ckpt: no checkpoints are recognized")
    assert run("import", tmp_path / "nowhere", tmp_path / "in", "--stream", "s")[0] == 10
    assert run("import", place, tmp_path / "in")[0] == 2
    assert run("export", place, "missing", tmp_path / "out")[0] == 1


def test_a_catalog_can_be_made_on_the_way_and_the_layout_chosen(run, tmp_path):
    assert run("import", tmp_path / "new", tmp_path, "--stream", "s", "--create", "--dry-run")[0] == 10
    assert not (tmp_path / "new").exists()
    both = {**sources.objects([5]), **sources.folders([1])}
    code, out, _ = run(
        "import", tmp_path / "new", put(tmp_path / "in", both), "--stream", "s", "--layout", "folders", "--create"
    )
    assert (code, out.splitlines()[0]) == (3, "imported 1 (checkpoints/checkpoint_000001/manifest.json)")


def test_the_command_reaches_s3_by_the_environment_and_needs_no_spark(s3_options, place, tmp_path):
    source, bucket = f"s3://bucket/{new_uuid7()}", tmp_path / "out"
    for path, data in GOOD.items():
        Storage(source, s3_options).write(path, [data])
    code = (
        "import sys\nfrom catalog.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\nfinally:\n"
        "    print(sorted({'pyspark', 'py4j'} & set(sys.modules)), file=sys.stderr)"
    )
    for arguments in (["import", place, source, "--stream", "s"], ["export", place, "s", bucket]):
        command = [sys.executable, "-c", code, *map(str, arguments)]
        done = subprocess.run(command, env={**os.environ, **s3_options}, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr.strip()) == (0, "[]"), done.stdout + done.stderr
    assert taken(bucket) == GOOD
