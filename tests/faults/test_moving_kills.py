"""A process that imports or exports is killed at one of its writes, and the next run completes it."""

import random
import signal
import subprocess
import sys
from itertools import count, takewhile
from pathlib import Path

import pytest

from catalog import CheckpointCatalog, new_uuid7
from tests import sources
from tests.sources import put, taken

WORKER = Path(__file__).with_name("moving_worker.py")
IDS = [new_uuid7() for _ in range(5)]
FILES = {"numbered": sources.objects([1, 2, 3, 4, 5]), "chain": sources.partitions(IDS)}
WHEN = ("before", "after")


def run(*arguments):
    """Run the worker, and return whether it was killed."""
    command = [sys.executable, str(WORKER), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


def killed_import(tmp_path, files, number, when):
    """Kill an import at a write, run it again, and return whether there was such a write."""
    place, source = tmp_path / f"{number}-{when}", tmp_path / "in"
    CheckpointCatalog.native(place, create=True).close()
    killed = run(place, "import", source, number, when)
    with CheckpointCatalog.native(place) as catalog:
        there = catalog.histories().get("s", {})
        assert all(one.live for one in there.values())
        if there:  # what is there is whole
            assert catalog.validate(["s"], depth="hashes").valid
        report = catalog.import_from(source, "s")
        assert not report.faults
        assert {str(line.outcome) for line in report.lines} <= {"imported", "already there"}
        assert sum(line.outcome == "already there" for line in report.lines) == len(there)
        assert catalog.validate(["s"], depth="hashes").valid
        out = tmp_path / f"{number}-{when}-out"
        catalog.export_to(out, "s")
        assert taken(out) == files
    return killed


def killed_export(tmp_path, files, number, when):
    """Kill an export at a write, look at what is there, run it again, and return whether there was such a write."""
    place, out = tmp_path / "catalog", tmp_path / f"{number}-{when}"
    killed = run(place, "export", out, number, when)
    half = {name: data for name, data in taken(out).items() if not Path(name).name.startswith(".")} if killed else {}
    assert half.items() <= files.items(), "a file that is there is whole"
    with CheckpointCatalog.native(place) as catalog:
        if half:  # whatever has a manifest is whole
            report = CheckpointCatalog.native(tmp_path / f"{number}-{when}-check", create=True).import_from(
                put(tmp_path / f"{number}-{when}-half", half),
                "s",
                layout=catalog.export_to(out, "s", dry_run=True).layout,
            )
            assert not report.count("imported as corrupt")
        assert not catalog.export_to(out, "s").faults
    assert taken(out) == files
    return killed


def imported(tmp_path, files):
    put(tmp_path / "in", files)
    with CheckpointCatalog.native(tmp_path / "catalog", create=True) as catalog:
        catalog.import_from(tmp_path / "in", "s")


def test_an_import_killed_between_bytes_and_rows_is_completed_by_the_next_run(tmp_path):
    put(tmp_path / "in", FILES["numbered"])
    assert killed_import(tmp_path, FILES["numbered"], 3, "before")


def test_an_export_killed_before_a_file_appears_is_completed_by_the_next_run(tmp_path):
    imported(tmp_path, FILES["numbered"])
    assert killed_export(tmp_path, FILES["numbered"], random.Random(7).randrange(3, 9), "before")


@pytest.mark.prove
@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize(("move", "step"), [(killed_import, 1), (killed_export, 4)])
def test_a_move_killed_at_any_of_its_writes_is_completed_by_the_next_run(tmp_path, kind, move, step):
    imported(tmp_path, FILES[kind])
    points = ((number, when) for number in count(0, step) for when in WHEN)
    killed = list(takewhile(lambda point: move(tmp_path, FILES[kind], *point), points))
    assert len(killed) >= 10
