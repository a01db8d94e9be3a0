"""`make run`: the story is true, quiet, fits 80 columns, and what it recommends works on what it leaves behind."""

import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from catalog import CheckpointCatalog
from catalog.demo import DAMAGED, STREAM, spelled
from catalog.examples.words import library, words_in
from catalog.strategies import MappingSnapshotStrategy

CHECKOUT = Path(__file__).parents[2]


def python_m(*arguments, **options):
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return subprocess.run(
        [sys.executable, "-m", *map(str, arguments)],
        cwd=CHECKOUT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def told(folder):
    """What the demo prints, run as a process without a terminal."""
    ended = python_m("catalog.demo", folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


@pytest.fixture(scope="module")
def left(told, folder):  # noqa: ARG001 - it is the demo that leaves it
    """The catalog that it leaves behind."""
    with CheckpointCatalog.native(folder / "catalog") as catalog:
        yield catalog


def flowing(text):
    """Return a text as if it had been printed in one line."""
    return " ".join(text.split())


def test_the_story_has_its_chapters_and_says_nothing_of_spark_itself(told):
    chapters = [line for line in told.splitlines() if re.match(r"\d\. ", line)]
    assert [chapter[:2] for chapter in chapters] == [f"{number}." for number in range(1, 8)]
    assert not re.search(r"WARN|:: |ivy|log4j|log level", told)
    assert "\x1b" not in told
    assert [line for line in told.splitlines() if len(line) > 80 and not line.startswith("  ")] == []


def test_validation_names_the_damaged_checkpoint_and_no_other(told, left):
    assert re.search(rf"^ +{DAMAGED}  stream 'words', checkpoint {DAMAGED}: artifact", told, re.MULTILINE)
    report = left.validate(depth="hashes", record=False)
    assert [(stream, result.checkpoint_id) for stream, result in report.results] == [(STREAM, DAMAGED)]


def test_recovery_passes_over_the_unconfirmed_and_the_damaged_one_and_the_job_goes_on_from_there(told, left):
    assert "8  passed over: a sink is still pending" in told
    assert f"{DAMAGED}  passed over: " in told
    assert "6  chosen: eligible and valid" in told
    assert "It restores checkpoint 6 and goes on after file " in told
    assert left.recover(STREAM).chosen_id == 10


def test_the_job_ends_with_the_counts_of_an_undisturbed_one(told, left):
    store = left.store(STREAM)
    handles = store.load_by_id(10).operator_handles["words"]
    files = {name: store.open_handle(handle, of=10) for name, handle in handles.items()}
    counted = Counter(word for file in library() for word in words_in(file))
    assert MappingSnapshotStrategy.restore(files) == counted
    assert f"ends with {counted.total():,} words" in flowing(told)
    assert "exactly as many as a count without a crash" in flowing(told)


def test_the_prune_was_done_as_planned_and_undone(told, left):
    planned = re.findall(r"^ +(\d+)  (keep|remove) ", told, re.MULTILINE)
    kept = [int(one) for one, plan in planned if plan == "keep"]
    assert f"Done: {spelled(kept)} are left." in told
    assert re.search(rf"^  after the prune \(version \d+\)  {spelled(kept)}  ", told, re.MULTILINE)
    assert left.store(STREAM).list_ids() == list(range(1, 11))
    changes = [(str(one.change), int(one.checkpoint_key)) for one in left.stream(STREAM).revisions()]
    removed = [int(one) for one, plan in planned if plan == "remove"]
    assert sorted(one for change, one in changes if change == "trashed") == removed
    assert sorted(one for change, one in changes if change == "restored") == removed
    assert 0 < len(removed) < 10


def test_sql_counts_what_is_stored_once(told):
    found = dict(re.findall(r"^  (index|words) +10 +[\d.]+ [KM]iB +([\d.]+ [KM]iB) *$", told, re.MULTILINE))
    whole = dict(re.findall(r"^  (index|words) +10 +([\d.]+ [KM]iB) ", told, re.MULTILINE))
    assert found.keys() == whole.keys() == {"index", "words"}
    assert whole["words"] == found["words"]
    assert whole["index"] != found["index"]


def test_every_command_that_it_recommends_works(told):
    after = told.split("What to try next")[1]
    commands = [shlex.split(line) for line in after.splitlines() if line.startswith("  ") and "ckpt" in line.split()[0]]
    assert len(commands) >= 4
    for command in commands:
        ended = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stderr) == (0, ""), command
        assert ended.stdout


def test_a_folder_with_something_in_it_is_refused(tmp_path):
    (tmp_path / "mine").touch()
    ended = python_m("catalog.demo", tmp_path)
    assert ended.returncode == 2
    assert "is not empty" in ended.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "mine"]
