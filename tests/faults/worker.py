"""A writer process, with a Spark of its own or none, for races and kills; run as a script.

    worker.py ENGINE race PLACE STREAM NAME ID,ID,…   tries to save every id with own content, in an order of its own
    worker.py ENGINE write PLACE STREAM NAME ID,ID,…  the same in the given order
    worker.py ENGINE save PLACE STREAM POINT DELAY    saves one checkpoint after the other and is killed on the way
    worker.py ENGINE churn PLACE STREAM NAME KEEP     saves, prunes, purges and sweeps until its input ends
    worker.py ENGINE grow PLACE STREAM NAME DELAY     saves one checkpoint after the other until its input ends
    worker.py ENGINE upkeep PLACE STREAM POINT DELAY  prunes, purges, sweeps and compacts until its input ends

ENGINE is spark or native. DELAY is after how many seconds it is killed, 0 is never.
It tells what it does line by line on standard output, each line written at once, so that what was told before a
SIGKILL is not lost.
"""

import json
import os
import random
import signal
import sys
import threading
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pyarrow as pa

from catalog import CatalogError, CheckpointCatalog, CheckpointManifest, Last, Retention
from catalog.tables.port import Outcome, Table, Unless


def tell(**facts: Any) -> None:
    """Write one line, past every buffer."""
    os.write(1, (json.dumps(facts) + "\n").encode())


def die() -> None:
    """Kill this process, its JVM and its Python workers, as a lost machine would."""
    os.killpg(os.getpgid(0), signal.SIGKILL)


class Watched:
    """A real engine that tells how far a save has come, and dies where it is told to."""

    def __init__(self, engine: Any, point: str) -> None:
        self._engine = engine
        self._point = point

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def _reach(self, point: str) -> None:
        tell(reached=point)
        if point == self._point:
            die()

    def append(self, table: Table, parts: Iterable[pa.Table]) -> None:
        self._reach("before artifacts")
        self._engine.append(table, parts)
        self._reach("between the commits")

    def insert_unless(self, rows: pa.Table, unless: Sequence[Unless] = ()) -> list[Outcome]:
        outcomes: list[Outcome] = self._engine.insert_unless(rows, unless)
        self._reach("after the manifest")
        return outcomes


def open_catalog(engine: str, place: str, cores: int, **options: Any) -> CheckpointCatalog:
    if engine == "native":
        return CheckpointCatalog.native(place, maintain_every=5, keep_versions=100_000, **options)
    from catalog.session import QUICK_SETTINGS, build_session

    spark = build_session(master=f"local[{cores}]", settings=QUICK_SETTINGS)
    return CheckpointCatalog.for_path(spark, place, **options)


def state_of(checkpoint_id: int, writer: str) -> bytes:
    """The state a writer saves under an id."""
    return f"{writer} wrote {checkpoint_id} ".encode() * 5000


def race(catalog: CheckpointCatalog, stream: str, name: str, ids: list[int], *, shuffled: bool) -> None:
    store = catalog.store(stream)
    store.list_ids()  # warm
    tell(ready=name)
    sys.stdin.readline()
    if shuffled:
        random.Random(name).shuffle(ids)
    for one in ids:
        manifest = CheckpointManifest.new(
            one, epoch=one, source_offsets={name: {"offsets": {"p": str(one)}, "epoch": 1}}
        )
        try:
            store.save_with_state(manifest, [state_of(one, name)])
        except CatalogError as error:
            tell(id=one, won=False, error=type(error).__name__)
        else:
            tell(id=one, won=True)


def save(catalog: CheckpointCatalog, stream: str, point: str, delay_s: float) -> None:
    catalog.engine = Watched(catalog.engine, point)
    store = catalog.store(stream)
    first = store.next_id()
    if delay_s:
        threading.Timer(delay_s, die).start()
    for one in range(first, first + 100):
        tell(begun=one)
        store.save_with_state(CheckpointManifest.new(one, epoch=one), [state_of(one, "killed")])
        tell(acknowledged=one)


def churn(catalog: CheckpointCatalog, stream: str, name: str, keep: int) -> None:
    """Save, and let go of all but the newest for good, as fast as possible."""
    ended = input_ended()
    store = catalog.store(stream)
    for one in count(store.next_id()):
        store.save_with_state(CheckpointManifest.new(one, epoch=one), [state_of(one, name)])
        store.prune(keep, undo_for=timedelta(0))
        purged = catalog.stream(stream).purge()
        if purged:
            store.cleanup_orphans(timedelta(0))
        tell(saved=one, purged=len(purged))
        if ended.is_set():
            return


def input_ended() -> threading.Event:
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    return ended


def grow(catalog: CheckpointCatalog, stream: str, name: str) -> None:
    """Save as fast as possible; whatever goes wrong ends this process."""
    ended = input_ended()
    store = catalog.store(stream)
    for one in count(store.next_id()):
        store.save_with_state(CheckpointManifest.new(one, epoch=one), [state_of(one, name)])
        tell(acknowledged=one)
        if ended.is_set():
            return


KEPT = 5
"""Checkpoints that upkeep leaves."""


def upkeep(catalog: CheckpointCatalog, stream: str, point: str) -> None:
    """Let go of all but the newest, sweep and compact as fast as possible, bytes leaving the disk at once."""
    ended = input_ended()
    if point != "none":
        die_at(point, catalog)
    policy = Retention((Last(KEPT),), undo_for=timedelta(0))
    # A point that is not reached soon is never reached.
    for _ in count() if point == "none" else range(100):
        if ended.is_set():
            return
        trashed = len(catalog.apply_retention([policy], [stream]).removed)
        # Its clock is ahead of the writers': by it, what they write now is soon old.
        (cleaned,) = catalog.clean_up([stream], grace=timedelta(days=300))
        report = catalog.compact(keep_removed=timedelta(0))
        tell(
            trashed=trashed,
            purged=len(cleaned.purged),
            swept=cleaned.swept.chunks,
            merged=sum(one.files_before - one.files_after for one in report.tables),
            deleted=sum(one.deleted_files for one in report.tables),
            problems=report.problems,
        )


def die_at(point: str, catalog: CheckpointCatalog) -> None:
    """Be killed before or after the first call that has something to do, such as `after table.swap`."""
    from catalog.tables import native_files, native_log, native_upkeep

    when, owner, name = point.replace(".", " ").split()
    owners = {
        "engine": catalog.engine, "table": native_log.LoadedTable, "files": native_files.DataFiles,
        "upkeep": native_upkeep,
    }  # fmt: skip
    real = getattr(owners[owner], name)

    def dying(*arguments: Any, **options: Any) -> Any:
        idle = name == "swap" and not arguments[-1]
        if when == "before" and not idle:
            die()
        done = real(*arguments, **options)
        if not idle and done != 0:
            die()
        return done

    setattr(owners[owner], name, dying)


def quick_clock(start: datetime, step: timedelta) -> Any:
    """A clock that is later every time it is asked, so that undo windows pass while one looks on."""
    steps = count()
    return lambda: start + step * next(steps)


if __name__ == "__main__":
    engine, mode, place, stream, what, argument = sys.argv[1:]
    if mode in ("race", "write"):
        ids = [int(one) for one in argument.split(",")]
        race(open_catalog(engine, place, 1), stream, what, ids, shuffled=mode == "race")
    elif mode == "churn":
        clock = quick_clock(datetime.now(UTC) - timedelta(days=300), timedelta(minutes=1))
        churn(open_catalog(engine, place, 1, clock=clock), stream, what, int(argument))
    elif mode == "grow":
        grow(open_catalog(engine, place, 1), stream, what)
    elif mode == "upkeep":
        if float(argument):
            threading.Timer(float(argument), die).start()
        clock = quick_clock(datetime.now(UTC), timedelta(seconds=20))
        upkeep(open_catalog(engine, place, 1, clock=clock), stream, what)
    else:
        save(open_catalog(engine, place, 2), stream, what, float(argument))
