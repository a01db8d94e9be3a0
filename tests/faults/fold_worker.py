"""A process that folds, or saves deltas, for kills and races; run as a script.

fold_worker.py ENGINE fold PLACE STREAM POINT DELAY    folds a chain once and is killed on the way
fold_worker.py ENGINE write PLACE STREAM NAME 0        saves a delta on the one before until its input ends
fold_worker.py ENGINE maintain PLACE STREAM NAME KEEP  folds, prunes, purges and sweeps until its input ends
"""

import asyncio
import sys
import threading
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

from catalog import (
    AppendLog,
    CheckpointCatalog,
    CheckpointManifestV2,
    Last,
    Retention,
    artifact_path,
    new_uuid7,
)

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script it would find only what is beside it
from tests.faults.worker import Watched, die, open_catalog, quick_clock, tell

LINKS = 12


def delta(number: int) -> bytes:
    return f"{number};".encode()


def log_of(links: int) -> bytes:
    """What a chain of so many links makes."""
    return b"".join(delta(number) for number in range(links))


def save(catalog: CheckpointCatalog, stream: str, parent: str | None, data: bytes, **told: Any) -> str:
    """Save and promote a checkpoint of one partition, a delta if it has a parent; more can be told of its operator."""
    checkpointer, id = catalog.checkpointer(stream), new_uuid7()

    async def run() -> None:
        write = checkpointer.save_delta if parent else checkpointer.save_snapshot
        sha256 = await write(id, "log", 0, data)
        path = artifact_path(id, "log", 0, delta=parent is not None)
        entry = {"partition_id": 0, "is_delta": parent is not None, "path": path, "size_bytes": len(data)}
        operators = {"log": {"partitions": [{**entry, "sha256": sha256}], **told}}
        await checkpointer.save_manifest(CheckpointManifestV2.new(id, 1, operators=operators, parent_id=parent))
        await checkpointer.update_latest(id)

    asyncio.run(run())
    return id


class Folding(Watched):
    """A real engine that tells how far a fold has come, and dies where it is told to."""

    def spread(self, tasks: Any, work: Any) -> Any:
        for answer in self._engine.spread(tasks, work):
            self._reach("verified")
            yield answer

    def insert_unless(self, rows: Any, unless: Any = ()) -> Any:
        self._reach("staged")
        outcomes = self._engine.insert_unless(rows, unless)
        self._reach("inserted")
        return outcomes


def until_input_ends() -> threading.Event:
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    return ended


def fold(catalog: CheckpointCatalog, stream: str, point: str, delay_s: float) -> None:
    catalog.engine = Folding(catalog.engine, point)
    if delay_s:
        threading.Timer(delay_s, die).start()
    report = catalog.fold_chains([stream], folders={"log": AppendLog()}, min_links=2)
    tell(done=len(report.folded))


def write(catalog: CheckpointCatalog, stream: str) -> None:
    ended, newest = until_input_ends(), None
    for number in count():
        newest = save(catalog, stream, newest, delta(number))
        tell(saved=number + 1)
        if ended.is_set():
            return


def maintain(catalog: CheckpointCatalog, stream: str, keep: int) -> None:
    ended = until_input_ends()
    while stream not in catalog.streams():
        pass
    while not ended.is_set():
        report = catalog.fold_chains([stream], folders={"log": AppendLog()}, min_links=3)
        catalog.apply_retention([Retention((Last(keep),), undo_for=timedelta(0))], [stream])
        catalog.clean_up([stream], grace=timedelta(hours=1))
        tell(folded=len(report.folded))


if __name__ == "__main__":
    engine, mode, place, stream, what, argument = sys.argv[1:]
    if mode == "fold":
        fold(open_catalog(engine, place, 1), stream, what, float(argument))
    elif mode == "write":
        write(open_catalog(engine, place, 1), stream)
    else:
        # Behind the writer's: by one ahead of it, what it is about to save would soon be orphaned, or never promoted.
        clock = quick_clock(datetime.now(UTC) - timedelta(days=300), timedelta(seconds=20))
        maintain(open_catalog(engine, place, 1, clock=clock), stream, int(argument))
