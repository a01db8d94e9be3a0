"""`ckpt` as people and scripts meet it: on a terminal, in a pipe, interrupted, its catalog in the environment."""

import os
import pty
import signal
import subprocess
import sys
import sysconfig
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from catalog import CheckpointCatalog, CheckpointManifest
from catalog.cli import main as entry
from catalog.cli.frame import CATALOG_VARIABLE
from catalog.tables.port import Table

CKPT = [sys.executable, "-m", "catalog.cli.main"]


@pytest.fixture
def place(tmp_path):
    place = tmp_path / "catalog"
    with CheckpointCatalog.native(place, create=True, durable=False) as catalog:
        for stream in ("orders", "audit/eu"):
            store = catalog.store(stream)
            for number in (1, 2, 3):
                store.save_with_state(CheckpointManifest.new(number, epoch=1), b"state")
    return place


def live(place, stream="orders"):
    with CheckpointCatalog.native(place) as catalog:
        return catalog.store(stream).list_ids()


# -- a terminal --------------------------------------------------------------------------------------------------------


def on_terminal(*arguments, answer="", elsewhere=()):
    """Run `ckpt` on a terminal, type an answer when it asks, and return its exit code and all that was shown.

    Output that goes elsewhere is said by number and file.
    """
    outer, inner = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "60"}
    with subprocess.Popen(
        [*CKPT, *map(str, arguments)],
        env=environment,
        preexec_fn=lambda: _log_in(inner, elsewhere),  # so that Ctrl-C reaches it
    ) as run:
        os.close(inner)
        shown = b""
        while chunk := _read(outer):
            shown += chunk
            if answer and shown.endswith(b"[y/N] "):
                os.write(outer, answer.encode())
                answer = ""
    os.close(outer)
    return run.returncode, shown.decode().replace("\r\n", "\n")


def _log_in(terminal, elsewhere):
    os.login_tty(terminal)
    for number, file in elsewhere:
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)


def _read(terminal):
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # how Linux says that the other side is closed
        return b""


def test_on_a_terminal_prune_asks_and_does_nothing_unless_the_answer_is_yes(place):
    code, shown = on_terminal("prune", place, "orders", "--keep", "1", answer="n\n")
    assert code == 1
    assert "Put 2 checkpoints into the trash? [y/N] n\nnothing was done\n" in shown
    assert "not one of the newest 1" in shown
    assert live(place) == [1, 2, 3]
    code, shown = on_terminal("prune", place, "orders", "--keep", "1", answer="y\n")
    assert code == 0
    assert shown.count("not one of the newest 1") == 2  # one line each, and not once more after the answer
    assert shown.rstrip().endswith(f"ckpt undo {place} orders 1 2")
    assert live(place) == [3]


@pytest.mark.parametrize(("number", "written"), [(1, "not one of the newest 1"), (2, "nothing was done")])
def test_on_a_terminal_prune_asks_also_where_its_output_goes_elsewhere(place, tmp_path, number, written):
    file = tmp_path / "elsewhere"
    code, shown = on_terminal("prune", place, "orders", "--keep", "1", answer="n\n", elsewhere=[(number, file)])
    assert (code, "Put 2 checkpoints into the trash? [y/N] " in shown) == (1, True)
    assert written in file.read_text()
    assert live(place) == [1, 2, 3]


def test_on_a_terminal_prune_does_not_ask_who_has_said_yes(place):
    code, shown = on_terminal("prune", place, "orders", "--keep", "1", "--yes")
    assert (code, "[y/N]" in shown) == (0, False)
    assert live(place) == [3]


def test_ctrl_c_at_the_question_is_one_line_and_code_130_and_nothing_is_done(place):
    code, shown = on_terminal("prune", place, "orders", "--keep", "1", "--output", "json", answer="\x03")
    assert code == 130
    assert shown.splitlines()[-1] == "ckpt: interrupted; what was not finished does not count"
    assert live(place) == [1, 2, 3]


# -- interrupted -------------------------------------------------------------------------------------------------------


def interrupted(*arguments, when):
    """Run `ckpt`, interrupt it once something is so, and return its exit code, stdout and stderr."""
    with subprocess.Popen(
        [*CKPT, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        while not when():
            assert run.poll() is None, run.communicate()
            time.sleep(0.001)  # looks again; the test does not depend on how long
        run.send_signal(signal.SIGINT)
        shown, told = run.communicate()
    return run.returncode, shown, told


def test_an_interrupted_save_leaves_no_checkpoint_and_the_id_free(place, tmp_path):
    folder = tmp_path / "state"
    folder.mkdir()
    for number in range(400):
        (folder / f"c{number:03}").write_bytes(os.urandom(50_000))

    code, shown, told = interrupted("save", place, "orders", folder, when=lambda: _rows(place) > 6)
    assert (code, shown) == (130, "")
    assert told == "ckpt: interrupted; what was not finished does not count\n"
    assert live(place) == [1, 2, 3]
    with CheckpointCatalog.native(place) as catalog:
        assert catalog.store("orders").next_id() == 4
        assert catalog.engine.scan(Table.ARTIFACTS, [], ["stream"]).num_rows == 6
        assert catalog.validate(depth="hashes").valid


def _rows(place):
    with CheckpointCatalog.native(place) as catalog:
        return catalog.engine.scan(Table.ARTIFACTS, [], ["stream"]).num_rows


def test_an_interrupted_restore_leaves_no_folder(place, tmp_path):
    with CheckpointCatalog.native(place) as catalog:
        pieces = (os.urandom(1 << 20) for _ in range(192))
        catalog.store("big").save_with_state(CheckpointManifest.new(1, epoch=1), pieces)
    begun = tmp_path / "out"
    begun.mkdir()
    code, shown, told = interrupted(
        "restore", place, "big", "--into", begun / "back", when=lambda: any(begun.glob(".back.*/artifacts/state.bin"))
    )
    assert (code, shown, told) == (130, "", "ckpt: interrupted; what was not finished does not count\n")
    assert list(begun.iterdir()) == []


def jvms(pid):
    """Return the JVMs of Spark that a process has started; `java -version`, which it asks before, is none."""
    found = []
    for one in psutil.Process(pid).children():
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if one.name() == "java" and "org.apache.spark.deploy.SparkSubmit" in one.cmdline():
                found.append(one)
    return found


def test_ctrl_c_while_spark_starts_ends_its_jvm_too(place):
    command = [*CKPT, "sql", str(place), "SELECT 1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0) as run:
        while not (jvm := jvms(run.pid)):
            assert run.poll() is None, run.communicate()
            time.sleep(0.001)  # looks again; the test does not depend on how long
        os.killpg(run.pid, signal.SIGINT)
        run.wait()
        left = [one for one in jvm if one.is_running()]
        for one in left:  # it holds the other ends of the pipes, and would never end
            one.kill()
        shown, told = run.communicate()
    assert (run.returncode, shown) == (130, "")
    assert told.splitlines()[-1] == "ckpt: interrupted; what was not finished does not count"
    assert not left


# -- in a pipe ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_reader_that_goes_away_is_nothing_to_complain_about(place, output):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*CKPT, "list", str(place), "--output", output], stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert done.stderr == ""
    assert done.returncode in (0, 1)


def test_a_closed_output_is_no_error(place):
    command = f"{sys.executable} -m catalog.cli.main list {place} >&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_installed_command_is_this_one(place):
    installed = Path(sysconfig.get_path("scripts"), "ckpt")
    done = subprocess.run([installed, "latest", place, "orders"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")


def test_all_commands_import_no_spark():
    code = (
        "import sys; from catalog.cli.main import COMMANDS; assert len(COMMANDS) >= 21;"
        "print(sorted({'pyspark', 'py4j', 'delta', 'great_expectations', 'deltalake'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


# -- the catalog in the environment ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "last"),
    [
        (["latest", "orders"], "3"),
        (["latest", "audit/eu"], "3"),
        (["latest", "./catalog", "orders"], "3"),
        (["recover", "orders"], "3"),
        (["recover", "catalog", "orders"], "3"),
        (["diff", "orders", "1", "2"], "same: 1 part"),
        (["diff", "catalog", "orders", "1", "2"], "same: 1 part"),
        (["undo", "orders", "1", "2"], "2: was not in the trash"),
        (["undo", "./catalog", "orders", "1"], "1: was not in the trash"),
        (["unpin", "--", "orders", "1"], "checkpoint 1 was not pinned"),
        (["prune", "orders", "--keep", "3", "--dry-run"], "0 of 3 checkpoints would go to the trash, 0 B once swept"),
    ],
)
def test_the_environment_names_the_catalog_where_path_is_left_out(here, place, monkeypatch, arguments, last):
    monkeypatch.chdir(place.parent)
    monkeypatch.setenv(CATALOG_VARIABLE, "catalog")
    code, shown, told = here(*arguments)
    assert (code, told) == (0, "")
    assert shown.splitlines()[-1] == last


def test_the_environment_is_enough_for_commands_with_no_other_argument(here, place, monkeypatch):
    monkeypatch.setenv(CATALOG_VARIABLE, str(place))
    for command in ("streams", "list", "history", "validate", "sweep", "compact", "fold", "drill"):
        assert here(command)[0] == 0, command
    assert here("history", "orders", "--output", "json")[1] != here("history", "--output", "json")[1]


@pytest.mark.parametrize("arguments", [["latest", "./orders"], ["save", "./state", "counts"], ["show", "/tmp/x", "1"]])
def test_what_looks_like_a_path_is_never_taken_for_a_stream(here, place, monkeypatch, arguments):
    monkeypatch.setenv(CATALOG_VARIABLE, str(place))
    before = live(place)
    code, shown, told = here(*arguments)
    assert (code, shown) == (2, "")
    assert "Missing argument" in told
    assert live(place) == before


@pytest.mark.parametrize("arguments", [["latest", "orders"], ["diff", "orders", "1", "2"], ["pin", "orders", "1"]])
def test_who_leaves_path_out_without_the_environment_is_told_that_it_comes_first(here, monkeypatch, arguments):
    monkeypatch.delenv(CATALOG_VARIABLE, raising=False)
    code, shown, told = here(*arguments)
    assert (code, shown) == (2, "")
    assert f"PATH comes first, unless {CATALOG_VARIABLE} names the catalog" in told


def test_a_path_that_is_given_wins_over_the_environment(here, place, monkeypatch, tmp_path):
    monkeypatch.setenv(CATALOG_VARIABLE, str(tmp_path / "nowhere"))
    assert here("streams", place)[0] == 0
    assert here("history", place, "orders")[0] == 0
    assert here("streams")[0] == 10


def test_arguments_in_the_wrong_order_are_told_from_a_place_without_a_catalog(here, place, monkeypatch):
    monkeypatch.chdir(place.parent)
    code, shown, told = here("show", "orders", "catalog", "1")
    assert (code, shown) == (10, "")
    assert told.endswith("; catalog is one: PATH comes first\n")
    assert "PATH comes first" not in here("show", "nowhere", "orders", "1")[2]


def test_every_command_has_help_with_the_exit_codes(here):
    for command in entry.COMMANDS:
        code, shown, told = here(command, "--help")
        assert (code, told) == (0, "")
        assert "11 conflict" in " ".join(shown.split()), command
        assert "--output" in shown
        assert "--debug" in shown
    first = here("--help")[1]
    assert "..." not in first.partition("Commands:")[2], "the first sentence of a command is too long for a line"
