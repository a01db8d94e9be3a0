"""A writer process, with a Spark of its own or none, for races and kills; run as a script.

    worker.py ENGINE race PLACE STREAM NAME ID,ID,…   tries to save every id with own content, in an order of its own
    worker.py ENGINE write PLACE STREAM NAME ID,ID,…  the same in the given order
    worker.py ENGINE save PLACE STREAM POINT DELAY    saves one checkpoint after the other and is killed on the way
    worker.py ENGINE churn PLACE STREAM NAME KEEP     saves, prunes, purges and sweeps until its input ends

ENGINE is spark or native.
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

from catalog import CatalogError, CheckpointCatalog, CheckpointManifest
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
    from catalog.session import build_session
    from catalog.testing.spark import QUICK_SETTINGS

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
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
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


def quick_clock() -> Any:
    """A clock that is a minute later every time it is asked, so that undo windows pass while one looks on."""
    start, minutes = datetime.now(UTC) - timedelta(days=300), count()
    return lambda: start + timedelta(minutes=next(minutes))


if __name__ == "__main__":
    engine, mode, place, stream, what, argument = sys.argv[1:]
    if mode in ("race", "write"):
        ids = [int(one) for one in argument.split(",")]
        race(open_catalog(engine, place, 1), stream, what, ids, shuffled=mode == "race")
    elif mode == "churn":
        churn(open_catalog(engine, place, 1, clock=quick_clock()), stream, what, int(argument))
    else:
        save(open_catalog(engine, place, 2), stream, what, float(argument))
