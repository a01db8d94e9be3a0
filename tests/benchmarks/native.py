"""How fast the native engine is beside a plain-file store, bare deltalake and the Spark engine, in one run."""

import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from catalog import CheckpointCatalog
from catalog.tables.locks import fsync
from catalog.tables.port import Table
from catalog.tables.schema import arrow
from tests.benchmarks.lines import MIB, Line, alternate, manifest
from tests.planted import plant_marks

numbers = count(1)

OPEN = """
import sys, time
from catalog import CheckpointCatalog
import catalog.tables.native
began = time.perf_counter()
CheckpointCatalog.native(sys.argv[1]).store("curve").next_id()
print(time.perf_counter() - began)
"""

LARGE = """
import json, os, sys, threading, time
import psutil
from catalog import CheckpointCatalog, CheckpointManifest

mib = int(sys.argv[2])
store = CheckpointCatalog.native(sys.argv[1], create=True).store("large")
store.save_with_state(CheckpointManifest.new(1, epoch=1), b"warm")
store.load_state_data(1)
process, idle, peak = psutil.Process(), psutil.Process().memory_info().rss, 0

def watch():
    global peak
    while True:
        # What the kernel caches of files that are mapped is not the process's own.
        memory = process.memory_info()
        peak = max(peak, memory.rss - memory.shared)
        time.sleep(0.005)

idle -= process.memory_info().shared
threading.Thread(target=watch, daemon=True).start()
store.save_with_state(CheckpointManifest.new(2, epoch=1), (os.urandom(1 << 20) for _ in range(mib)))
saved = peak
peak = 0
assert sum(len(chunk) for chunk in store.iter_state_data(2)) == mib << 20
print(json.dumps({"saved": (saved - idle) / (1 << 20), "loaded": (peak - idle) / (1 << 20)}))
"""


class PlainFiles:
    """The honest minimum: a temporary file, fsync, rename, fsync of the folder, and a SHA-256."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder

    def save(self, name: str, data: bytes) -> None:
        path = self._folder / name
        with path.with_suffix(".tmp").open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        path.with_suffix(".tmp").rename(path)
        path.with_suffix(".sha256").write_text(hashlib.sha256(data).hexdigest())
        fsync(path.with_suffix(".sha256"))
        fsync(self._folder)

    def load(self, name: str) -> bytes:
        path = self._folder / name
        data = path.read_bytes()
        assert hashlib.sha256(data).hexdigest() == path.with_suffix(".sha256").read_text()
        return data


def small_saves(folder: Path, spark_save_s: float, rounds: int) -> list[Line]:
    """A 1 KB checkpoint beside a plain file, a bare deltalake append and the Spark engine."""
    catalog, plain = CheckpointCatalog.native(folder / "small", create=True), PlainFiles(folder / "plain small")
    store, bare = catalog.store("small"), str(folder / "bare small")
    row = arrow(Table.CHECKPOINTS, [{"stream": "s", "manifest": manifest(1).canonical()}])

    def append() -> None:
        write_deltalake(bare, row, mode="append", partition_by=["stream"])

    ours, files, theirs = alternate(
        rounds,
        lambda: store.save(manifest(next(numbers))),
        lambda: plain.save(str(next(numbers)), manifest(1).canonical().encode()),
        append,
    )
    apart = []
    for _ in range(rounds):
        time.sleep(0.05)  # as producers are: what the engine does after a commit is done by the next one
        one = manifest(next(numbers))
        began = time.perf_counter()
        store.save(one)
        apart.append(time.perf_counter() - began)
    return [
        Line.slower("save 1 KB, native", ours, "plain file", files, 10),
        Line.slower("save 1 KB, native, 50 ms apart", apart, "plain file", files, None),
        Line.slower("save 1 KB, native", ours, "bare write_deltalake", theirs, None),
        Line.slower("save 1 KB, native", ours, "Spark engine", [spark_save_s], 1 / 15),
    ]


def blobs(folder: Path, size_mib: int, rounds: int) -> list[Line]:
    """A large state beside a plain file and bare deltalake."""
    data = os.urandom(size_mib * MIB)
    catalog, plain = CheckpointCatalog.native(folder / "blobs", create=True), PlainFiles(folder / "plain blobs")
    store, name = catalog.store("blobs"), f"{size_mib} MiB"
    table = pa.table({"stream": ["s"], "data": pa.array([data], pa.large_binary())})
    saved, bare = [0], [""]

    def save() -> None:
        saved[0] = next(numbers)
        store.save_with_state(manifest(saved[0]), data, share=False)

    def write() -> None:
        bare[0] = str(folder / f"bare {next(numbers)}")
        write_deltalake(bare[0], table)

    ours, files, theirs = alternate(rounds, save, lambda: plain.save("state", data), write)
    loaded, read, bare_read = alternate(
        rounds,
        lambda: store.load_state_data(saved[0]),
        lambda: plain.load("state"),
        lambda: DeltaTable(bare[0]).to_pyarrow_table(),
    )
    return [
        Line.faster(f"{name} save, native, fsynced", ours, "plain file", files, size_mib, 0.7),
        Line.faster(f"{name} save, native, fsynced", ours, "bare write_deltalake", theirs, size_mib, None),
        Line.faster(f"{name} load, native, verified", loaded, "plain file", read, size_mib, 0.7),
        Line.faster(f"{name} load, native, verified", loaded, "bare deltalake", bare_read, size_mib, None),
    ]


def curve(folder: Path, commits: int) -> tuple[list[Line], dict[str, Any]]:
    """Many commits of one writer that tidies by itself: the last ones beside the hundredth, and opening it anew."""
    place = folder / "curve"
    store = CheckpointCatalog.native(place, create=True).store("curve")
    spent: list[float] = []
    opened: dict[int, list[float]] = {}
    for number in range(1, commits + 1):
        one = manifest(number)
        began = time.perf_counter()
        store.save(one)
        spent.append(time.perf_counter() - began)
        if number in (100, commits):
            opened[number] = [_seconds_to_open(place) for _ in range(5)]
    table = str(place / Table.CHECKPOINTS)
    readable = _readable_versions(table)
    points = range(100, commits + 1, max(100, commits // 10))
    lines = [
        Line.slower(f"commit {commits:,}, tidying", spent[-100:], "commit 100", spent[:100], 1.3),
        Line.slower(f"fresh open at {commits:,}", opened[commits], "at 100", opened[100], 3),
    ]
    facts = {
        "median_ms_of_the_100_commits_up_to": {
            str(at): round(statistics.median(spent[at - 100 : at]) * 1e3, 1) for at in points
        },
        "versions_readable_by_time_travel": readable,
        "slowest_ms": round(max(spent) * 1e3),
    }
    return lines, facts


def beside_marks(folder: Path, marks: int, rounds: int) -> list[Line]:
    """A stream that let many checkpoints go, of each of which a mark stays for ever, beside one that is new."""
    catalog = CheckpointCatalog.native(folder / "marks", create=True)
    plant_marks(catalog, "old", range(1, marks))
    ids = count(marks)
    new, old = (catalog.store(name, max_retained=2) for name in ("new", "old"))
    saves = alternate(rounds, *(partial(lambda store: store.save(manifest(next(ids))), one) for one in (old, new)))
    loads = alternate(rounds, old.load_latest, new.load_latest)
    lists = alternate(rounds, old.list_ids, new.list_ids)
    told = f"beside {marks:,} marks"
    return [
        Line.slower(f"save, max_retained 2, {told}", saves[0], "no marks", saves[1], 1.3),
        Line.slower(f"load_latest {told}", loads[0], "no marks", loads[1], None),
        Line.slower(f"list_ids {told}", lists[0], "no marks", lists[1], None),
    ]


def _readable_versions(table: str) -> int:
    """Count the versions that can still be loaded, from the newest down."""
    newest = DeltaTable(table).version()
    for back in count():
        try:
            if back > newest:
                return back
            DeltaTable(table, version=newest - back)
        except Exception:  # noqa: BLE001 - whatever it is, that version cannot be read
            return back
    raise AssertionError


def _seconds_to_open(place: Path) -> float:
    done = subprocess.run([sys.executable, "-c", OPEN, str(place)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def memory_grown_mib(folder: Path, mib: int) -> dict[str, float]:
    """Save and load so much in a process of its own: how far it grows above its idle size."""
    command = [sys.executable, "-c", LARGE, str(folder / "large"), str(mib)]
    grown: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return grown


def memory(folder: Path) -> list[Line]:
    """1 GiB saved and loaded."""
    return [
        Line(f"memory, 1 GiB {what}, native", f"+{mib:.0f} MiB", "-", "idle process", "-", mib, "≤ 300 MiB", mib <= 300)
        for what, mib in memory_grown_mib(folder, 1024).items()
    ]


def run(
    folder: Path, spark_save_s: float, *, rounds: int, size_mib: int, commits: int
) -> tuple[list[Line], dict[str, Any]]:
    """Measure everything; the second result is what does not fit into a line."""
    lines = small_saves(folder, spark_save_s, rounds * 20)
    lines += blobs(folder, size_mib, rounds)
    lines += memory(folder)
    curve_lines, facts = curve(folder, commits)
    return lines + curve_lines + beside_marks(folder, 50_000, rounds * 20), facts
