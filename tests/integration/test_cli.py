"""The command line: results on stdout and nothing else there, text and JSON, exit codes, and no Spark."""

import asyncio
import errno
import json
import os
import pty
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from importlib.metadata import version

import pytest
import typer

from catalog import (
    CheckpointId,
    CheckpointManifest,
    CheckpointManifestV2,
    CheckpointState,
    ConflictError,
    artifact_path,
    keys,
    new_uuid7,
)
from catalog.cli.frame import running
from catalog.cli.main import main
from catalog.cli.output import OutputFormat, size, span
from catalog.testing.native import NativeHarness

HOSTILE = "[red]x[/] :duck: 🦆\n\x1b[31m"
ROOT, CHILD = new_uuid7(), new_uuid7()

THREE_COMMANDS = """
import sys
from catalog.cli.main import main

for command in (["list"], ["show", "orders", "2"], ["recover", "orders", "--explain"]):
    try:
        main([command[0], sys.argv[1], *command[1:]])
    except SystemExit as end:
        assert not end.code, end
print(sorted({"pyspark", "py4j", "delta", "great_expectations"} & set(sys.modules)), file=sys.stderr)
"""


def orders_manifest(number):
    statuses = {3: "Pending", 4: {"Failed": "disk [bold]full[/]"}}
    return CheckpointManifest.new(
        number,
        epoch=number,
        watermark=number * 100,
        pipeline_hash=2**64 - 1,
        source_offsets={
            "kafka": {"offsets": {f"partition-{n}": str(1000 * number + n) for n in range(2)}, "epoch": number},
            "a/b": {"offsets": {"only": str(number)}, "epoch": number},
        },
        sink_commit_statuses={"search": "Committed", "warehouse": statuses.get(number, "Committed")},
    )


async def save_chain(checkpointer):
    for id, parent, data in ((ROOT, None, b"everything"), (CHILD, ROOT, b"changes")):
        delta = parent is not None
        sha256 = await (checkpointer.save_delta if delta else checkpointer.save_snapshot)(id, "count", 0, data)
        path = artifact_path(id, "count", 0, delta=delta)
        entry = {"partition_id": 0, "is_delta": delta, "path": path, "size_bytes": len(data), "sha256": sha256}
        operators = {"count": {"partitions": [entry]}}
        await checkpointer.save_manifest(CheckpointManifestV2.new(id, epoch=1, parent_id=parent, operators=operators))
    await checkpointer.update_latest(ROOT)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A catalog with a bit of everything; the tests only read it."""
    folder = tmp_path_factory.mktemp("cli") / "catalog"
    harness = NativeHarness(folder)
    catalog = harness.catalog
    orders = catalog.store("orders")
    for number in (1, 2, 3, 4):
        orders.save_with_state(orders_manifest(number), [b"x" * 1500 * number])
    orders.pin(1, "for [bold]audit", until=None)
    orders.pin(2, "for a while", until=harness.clock() + timedelta(microseconds=1))
    asyncio.run(save_chain(catalog.checkpointer("clicks")))
    state = CheckpointState.new(CheckpointId("sensor", 7))
    state.set_source_offset("mqtt", 4711)
    catalog.state_store().save(state)
    catalog.store(HOSTILE).save(CheckpointManifest.new(1, epoch=1))
    catalog.store("").save(CheckpointManifest.new(1, epoch=1))
    broken = catalog.store("broken")
    for number in (1, 2):
        broken.save(CheckpointManifest.new(number, epoch=1))
    broken.prune(1)
    harness.corrupt_manifest("broken", keys.integer_key(2))
    catalog.close()
    return str(folder)


def line_of(text, *words):
    (found,) = [line for line in text.splitlines() if all(word in line for word in words)]
    return found


# -- list ----------------------------------------------------------------------------------------------------------


def test_list_shows_every_live_checkpoint_in_one_line_of_plain_text(ckpt, place):
    done = ckpt("list", place)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert len(done.stdout.splitlines()) == 1 + 4 + 2 + 1 + 1 + 1 + 1
    assert line_of(done.stdout, "[red]x[/] :duck: 🦆\\n\\x1b[31m", "committed  *", "0/0/0", "0 B")
    assert line_of(done.stdout, ROOT, "committed", "*", "-/-/-", "10 B")
    assert "*" not in line_of(done.stdout, CHILD, "prepared")
    assert line_of(done.stdout, "orders", "2/0/0", "1.5 KiB").split()[-1] == "yes"
    assert line_of(done.stdout, "orders", "1/1/0", "4.4 KiB").split()[-1] == "KiB"
    assert "*" in line_of(done.stdout, "orders", "1/0/1", "5.9 KiB")
    assert line_of(done.stdout, "''")


def test_list_as_json_has_plain_numbers_and_the_names_of_the_view(ckpt, place):
    done = ckpt("list", place, "--output", "json", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads(done.stdout)
    assert {row["stream"] for row in rows} == {"", "broken", "clicks", "orders", "sensor", HOSTILE}
    newest = next(row for row in rows if (row["stream"], row["checkpoint_id"]) == ("orders", 4))
    age, saved_at = newest.pop("age_seconds"), newest.pop("saved_at")
    assert 0 <= age < 3600
    assert timedelta(0) <= datetime.now(UTC) - datetime.fromisoformat(saved_at) < timedelta(hours=1)
    assert newest == {
        "stream": "orders", "checkpoint_id": 4, "status": "committed", "is_latest": True, "epoch": 4, "pinned": False,
        "sinks_committed": 1, "sinks_pending": 0, "sinks_failed": 1, "artifact_count": 1, "bytes": 6000,
    }  # fmt: skip


def test_list_of_one_stream_leaves_the_others_out_and_an_unknown_one_is_an_error(here, place):
    code, shown, _ = here("list", place, "--stream", "", "--output", "json")
    assert (code, [row["stream"] for row in json.loads(shown)]) == (0, [""])
    told = "ckpt: there is no stream 'typo': `ckpt streams` shows all\n"
    assert here("list", place, "--stream", "typo") == (1, "", told)


def test_a_terminal_gets_colours_and_whole_values_however_narrow_it_is(place):
    outer, inner = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "40"}
    environment.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "catalog.cli.main", "list", place, "--stream", "clicks"]
    with subprocess.Popen(command, stdout=inner, stderr=inner, env=environment) as process:
        os.close(inner)
        shown = b""
        while chunk := _read(outer):
            shown += chunk
    os.close(outer)
    assert process.returncode == 0
    assert b"\x1b[" in shown
    assert ROOT.encode() in shown
    assert CHILD.encode() in shown


def _read(terminal):
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # how Linux says that the other side is closed
        return b""


# -- show ----------------------------------------------------------------------------------------------------------


def test_show_tells_everything_about_a_checkpoint(ckpt, place):
    done = ckpt("show", place, "orders", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    for fact in (("status", "committed"), ("watermark", "100"), ("pipeline hash", str(2**64 - 1)), ("vnodes", "256")):
        assert line_of(done.stdout, *fact)
    assert "for ever, by " in line_of(done.stdout, "pinned", "by", "for [bold]audit")
    assert line_of(done.stdout, "kafka", "partition-1", "1001")
    assert line_of(done.stdout, "warehouse", "Committed")
    assert line_of(done.stdout, "state.bin", "1.5 KiB")
    assert [line.split()[3] for line in done.stdout.partition("Life\n")[2].splitlines()[1:]] == ["saved", "pinned"]


def test_show_as_json_tells_the_failed_sink_the_parent_and_an_expired_pin(here, place):
    code, shown, _ = here("show", place, "orders", "4", "--output", "json")
    found = json.loads(shown)
    assert code == 0
    assert {"sink": "warehouse", "status": "Failed", "error": "disk [bold]full[/]"} in found["sinks"]
    assert {"source": "kafka", "position": "partition-0", "offset": "4000"} in found["positions"]
    assert [(one["path"], one["bytes"], one["chunks"]) for one in found["artifacts"]] == [("state.bin", 6000, 1)]
    assert len(found["artifacts"][0]["sha256"]) == 64

    child = json.loads(here("show", place, "clicks", CHILD.upper(), "--output", "json")[1])
    assert (child["checkpoint_id"], child["parent_id"], child["status"]) == (CHILD, ROOT, "prepared")
    sensor = json.loads(here("show", place, "sensor", "7", "--output", "json")[1])
    assert sensor["positions"] == [{"source": "mqtt", "position": None, "offset": "4711"}]
    expired = json.loads(here("show", place, "orders", "2", "--output", "json")[1])
    assert (expired["pinned"], [one["name"] for one in expired["pins"]]) == (False, ["for a while"])
    assert line_of(here("show", place, "orders", "2")[1], "pinned", "no, expired: until ")


def test_show_of_a_damaged_or_trashed_checkpoint_tells_what_is_known(here, place):
    code, shown, told = here("show", place, "broken", "2")
    assert code == 3
    assert "does not match its checksum" in told
    assert line_of(shown, "status", "committed")
    assert line_of(shown, "saved  ", "@")
    code, shown, told = here("show", place, "broken", "1")
    assert (code, told) == (0, "")
    assert line_of(shown, "status", "trashed")
    assert line_of(shown, "undo until", "UTC")
    assert line_of(shown, "trashed  ", "@")


# -- recover -------------------------------------------------------------------------------------------------------


def test_recover_prints_the_chosen_id_and_nothing_else(ckpt, place):
    done = ckpt("recover", place, "orders")
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")


def test_recover_with_nothing_fit_says_so_by_its_exit_code(ckpt, here, place):
    done = ckpt("recover", place, "broken")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "stream 'broken': none of 1 live checkpoints is fit to restore from: --explain says why\n"
    code, shown, _ = here("recover", place, "broken", "--explain")
    assert code == 3
    assert line_of(shown, "passed over 2", "does not match its checksum")
    assert line_of(shown, "in the trash, can be restored until", "UTC: 1")
    code, shown, told = here("recover", place, "typo", "--output", "json")
    assert (code, json.loads(shown)["checkpoint_id"]) == (3, None)
    assert told == "there is no stream 'typo': `ckpt streams` shows all\n"


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        (["--allow-pending"], "4"),
        (["--at-offset", "kafka/partition-0=1999"], "1"),
        (["--at-offset", "a/b/=1"], "1"),
        (["--at-watermark", "199"], "1"),
        (["--at-time", "2100-01-01"], "2"),
        (["--at-time", "2100-01-01 00:00:00 UTC"], "2"),
        (["--pipeline-hash", str(2**64 - 1), "--vnode-count", "256", "--lenient"], "2"),
        (["--as-of", "1"], "1"),
    ],
)
def test_recover_takes_only_what_is_asked_for(here, place, options, chosen):
    assert here("recover", place, "orders", *options) == (0, f"{chosen}\n", "")


@pytest.mark.parametrize(
    "options", [["--at-time", "2001-01-01T00:00:00Z"], ["--at-event-count", "5"], ["--pipeline-hash", "1"]]
)
def test_recover_finds_nothing_where_nothing_meets_what_is_asked_for(here, place, options):
    assert here("recover", place, "orders", *options)[:2] == (3, "")


def test_recover_explains_as_text_and_as_json(here, place):
    code, shown, told = here("recover", place, "orders", "--explain", "--at-watermark", "100")
    assert (code, told) == (0, "")
    assert shown.splitlines()[:4] == [
        "passed over 4: a sink failed",
        "passed over 3: a sink is still pending",
        "passed over 2: its watermark is 200, after 100",
        "chosen 1: the newest that is eligible and valid, watermark at most 100",
    ]
    found = json.loads(here("recover", place, "orders", "--explain", "--as-of", "2", "--output", "json")[1])
    assert (found["checkpoint_id"], found["skipped"], found["examined"]) == (2, [], 1)
    assert found["as_of"]["version"] == 2
    assert here("recover", place, "orders", "--explain", "--as-of", "2")[1].startswith("as of version 2, of 20")


def test_recover_writes_the_state_into_a_new_folder_and_into_no_other(here, place, tmp_path):
    folder = tmp_path / "state"
    code, shown, told = here("recover", place, "orders", "--into", str(folder), "--output", "json")
    assert (code, told) == (0, f"the state of checkpoint 2 is in {folder}\n")
    assert json.loads(shown) == {"stream": "orders", "checkpoint_id": 2, "folder": str(folder)}
    (part,) = json.loads((folder / "restore.json").read_text())["apply_in_this_order"]
    assert (folder / part["file"]).read_bytes() == b"x" * 3000
    code, shown, told = here("recover", place, "orders", "--into", str(folder))
    assert (code, shown) == (2, "")
    assert "pass a new or empty folder" in told
    assert here("recover", place, "broken", "--into", str(tmp_path / "none"))[0] == 3
    assert not (tmp_path / "none").exists()


def test_a_folder_that_holds_something_is_refused_before_anything_is_read(here, tmp_path):
    (tmp_path / "full" / "x").mkdir(parents=True)
    code, _, told = here("recover", str(tmp_path / "no catalog"), "orders", "--into", str(tmp_path / "full"))
    assert code == 2
    assert "pass a new or empty folder" in told


# -- errors --------------------------------------------------------------------------------------------------------


def test_a_place_without_a_catalog_is_exit_code_10_and_one_sentence(ckpt, tmp_path):
    for name, code, told in (
        ("typo [red]", 10, "no checkpoint catalog at"),
        ("typo\n", 2, "cannot be a catalog's folder"),
    ):
        done = ckpt("list", str(tmp_path / name))
        assert (done.returncode, done.stdout) == (code, "")
        assert len(done.stderr.splitlines()) == 1
        assert told in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_bad_usage_is_exit_code_2_whoever_notices_it(ckpt, here, place):
    done = ckpt("recover", place, "orders", "--at-offset", "[red]nonsense")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'[red]nonsense' is not SOURCE=N" in done.stderr
    assert "\x1b" not in done.stderr
    for arguments in (
        ["list"],
        ["list", place, "--output", "xml"],
        ["recover", place, "orders", "--at-time", "yesterday"],
        ["recover", place, "orders", "--at-offset", "=5"],
        ["recover", place, "orders", "--at-offset", "kafka=5"],
        ["recover", place, "orders", "--pipeline-hash", "-1"],
        ["show", place, "orders", "not an id"],
        ["list", place, "--stream", "x" * 513],
    ):
        code, shown, told = here(*arguments)
        assert (code, shown) == (2, ""), arguments
        assert told.strip(), arguments


def test_other_errors_are_one_sentence_and_debug_shows_the_trace(here, place):
    code, shown, told = here("show", place, "orders", "99")
    assert (code, shown, told) == (1, "", "ckpt: stream 'orders' has no checkpoint 99: `ckpt list` shows all\n")
    code, shown, told = here("recover", place, "orders", "--as-of", "99999")
    assert (code, shown, len(told.splitlines())) == (1, "", 1)
    code, shown, told = here("show", place, "orders", "99", "--debug")
    assert (code, shown) == (1, "")
    assert told.startswith("Traceback")


@pytest.mark.parametrize(("error", "code"), [(ConflictError("try\nagain"), 11), (ZeroDivisionError("oh"), 1)])
def test_a_conflict_has_an_exit_code_and_so_has_the_unforeseen(capsys, error, code):
    with pytest.raises(typer.Exit) as end, running(OutputFormat.JSON, debug=False):
        raise error
    assert end.value.exit_code == code
    shown, told = capsys.readouterr()
    assert (shown, len(told.splitlines())) == ("", 1)


def test_without_deltalake_one_sentence_says_what_to_install(ckpt, place, tmp_path):
    (tmp_path / "deltalake.py").write_text("raise ModuleNotFoundError('gone', name='deltalake')")
    done = ckpt("list", place, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "ckpt: the native engine needs deltalake: pip install 'checkpoint-catalog[native]'\n"


def test_a_full_disk_is_told(monkeypatch, capsys, place):
    def write(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sys.stdout, "write", write)
    with pytest.raises(SystemExit) as end:
        main(["list", place, "--output", "json"])
    assert end.value.code == 1
    assert "No space left" in capsys.readouterr().err


# -- the rest ------------------------------------------------------------------------------------------------------


def test_looking_and_recovering_import_no_spark_and_need_no_unicode(place):
    done = subprocess.run(
        [sys.executable, "-c", THREE_COMMANDS, place],
        env={**os.environ, "JAVA_HOME": "/nowhere", "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "[]\n")
    assert "[red]x[/] :duck: \\U0001f986" in done.stdout
    assert "chosen 2" in done.stdout


def test_version_and_help_are_results(here):
    assert here("--version") == (0, f"ckpt {version('checkpoint-catalog')}\n", "")
    code, shown, told = here("--help")
    assert (code, told) == (0, "")
    assert all(command in shown for command in ("list", "show", "recover", "10 no"))


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 KiB"), (4 << 20, "4.0 MiB"), (2**60, "1024.0 PiB"), (None, "-")],
)
def test_sizes_are_shown_in_binary_units(count, shown):
    assert size(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0 s"), (119.9, "119 s"), (120, "2 min"), (7200, "2 h"), (86_400 * 2, "2 d"), (None, "-")],
)
def test_spans_are_shown_in_their_largest_unit(seconds, shown):
    assert span(seconds) == shown
