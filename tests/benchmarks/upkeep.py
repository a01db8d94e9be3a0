"""How quick pruning and compaction are, beside the bare Delta DELETE and OPTIMIZE of the same rows."""

import os
import shutil
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from catalog import CheckpointCatalog, Last, Retention
from catalog.tables.port import Table
from catalog.testing import FakeClock
from tests.benchmarks.lines import MIB, Line, manifest

numbers = count(1)
KEEP = 100
Action = Callable[[Path], Callable[[], Any]]
"""Prepares to work on a catalog of its own, and returns the work that is timed."""


def on_copies(rounds: int, made: Path, *actions: Action) -> list[list[float]]:
    """Return the seconds of each action, run in turn after one warm-up each, on a new copy of a catalog every time."""
    times: list[list[float]] = [[] for _ in actions]
    for number in range(rounds + 1):
        for prepare, spent in zip(actions, times, strict=True):
            copy = made.with_name(f"{made.name} {next(numbers)}")
            shutil.copytree(made, copy)
            work = prepare(copy)
            began = time.perf_counter()
            work()
            if number:
                spent.append(time.perf_counter() - began)
            shutil.rmtree(copy)
    return times


def fill(place: Path, checkpoints: int, size: int) -> None:
    """Save checkpoints, a file for each, as a producer that nobody looks after."""
    with CheckpointCatalog.native(place, create=True, maintain_every=0, durable=False) as catalog:
        store = catalog.store("s")
        for number in range(1, checkpoints + 1):
            store.save_with_state(manifest(number), os.urandom(size), share=False)


def pruning(spark: Any, made: Path, checkpoints: int, rounds: int) -> list[Line]:
    """Retention, purge and sweep: all that it takes until the rows are gone."""
    last = f"{checkpoints - KEEP:020d}"
    doomed = f"stream = 's' AND checkpoint_key <= '{last}'"

    def retain(catalog: CheckpointCatalog, clock: FakeClock) -> None:
        catalog.apply_retention([Retention((Last(KEEP),), undo_for=timedelta(0))])
        clock.advance(timedelta(hours=1))
        (done,) = catalog.clean_up(grace=timedelta(0))
        assert len(done.purged) == done.swept.chunks == checkpoints - KEEP

    def native(place: Path) -> Callable[[], Any]:
        clock = FakeClock()
        catalog = CheckpointCatalog.native(place, clock=clock)
        return lambda: retain(catalog, clock)

    def through_spark(place: Path) -> Callable[[], Any]:
        clock = FakeClock()
        catalog = CheckpointCatalog.for_path(spark, place, clock=clock)
        return lambda: retain(catalog, clock)

    def bare_delete(place: Path) -> Callable[[], Any]:
        tables = [DeltaTable(str(place / table)) for table in (Table.CHECKPOINTS, Table.ARTIFACTS)]
        return lambda: [table.delete(doomed) for table in tables]

    def bare_spark_delete(place: Path) -> Callable[[], Any]:
        tables = [f"delta.`{place / table}`" for table in (Table.CHECKPOINTS, Table.ARTIFACTS)]
        return lambda: [spark.sql(f"DELETE FROM {table} WHERE {doomed}").collect() for table in tables]

    ours, spark_ours, bare, spark_bare = on_copies(rounds, made, native, through_spark, bare_delete, bare_spark_delete)
    what = f"prune {checkpoints:,} to {KEEP}, purge, sweep"
    return [
        Line.slower(f"{what}, native", ours, "bare deltalake DELETE", bare, None),
        Line.slower(f"{what}, Spark", spark_ours, "bare Spark DELETE", spark_bare, None),
    ]


def compacting(spark: Any, made: Path, name: str, rounds: int) -> list[Line]:
    """Compaction of all tables, every row compared and every chunk hashed, beside OPTIMIZE, which does neither."""

    def compact(catalog: CheckpointCatalog) -> None:
        report = catalog.compact()
        assert report.problems == ()
        assert report.tables[0].files_after < report.tables[0].files_before

    def native(place: Path) -> Callable[[], Any]:
        catalog = CheckpointCatalog.native(place)
        return lambda: compact(catalog)

    def through_spark(place: Path) -> Callable[[], Any]:
        catalog = CheckpointCatalog.for_path(spark, place)
        return lambda: compact(catalog)

    def bare_optimize(place: Path) -> Callable[[], Any]:
        tables = [DeltaTable(str(place / table)) for table in (Table.CHECKPOINTS, Table.ARTIFACTS)]
        return lambda: [table.optimize.compact(target_size=64 * MIB) for table in tables]

    def bare_spark_optimize(place: Path) -> Callable[[], Any]:
        tables = [f"delta.`{place / table}`" for table in (Table.CHECKPOINTS, Table.ARTIFACTS)]
        return lambda: [spark.sql(f"OPTIMIZE {table}").collect() for table in tables]

    ours, spark_ours, bare, spark_bare = on_copies(
        rounds, made, native, through_spark, bare_optimize, bare_spark_optimize
    )
    return [
        Line.slower(f"compact {name}, native", ours, "bare deltalake OPTIMIZE", bare, None),
        Line.slower(f"compact {name}, Spark", spark_ours, "bare Spark OPTIMIZE", spark_bare, None),
    ]


def waiting(place: Path) -> dict[str, float]:
    """How long saves take while the catalog is compacted beside them, and alone, in milliseconds."""
    catalog, store = CheckpointCatalog.native(place), CheckpointCatalog.native(place, maintain_every=0).store("s")
    busy = threading.Thread(target=catalog.compact)

    def spent(go_on: Callable[[], bool]) -> list[float]:
        times = []
        while go_on():
            began = time.perf_counter()
            store.save(manifest(store.next_id()))
            times.append((time.perf_counter() - began) * 1e3)
        return sorted(times)

    left = iter(range(50))
    alone = spent(lambda: next(left, None) is not None)
    busy.start()
    beside = spent(busy.is_alive)
    return {
        "alone_median": round(alone[len(alone) // 2], 1),
        "beside_median": round(beside[len(beside) // 2], 1),
        "beside_slowest": round(beside[-1], 1),
        "saves_beside": len(beside),
    }


def run(spark: Any, folder: Path, *, checkpoints: int, rounds: int) -> tuple[list[Line], dict[str, Any]]:
    """Measure everything; the second result is what does not fit into a line."""
    made, large = folder / "upkeep", folder / "upkeep large"
    fill(made, checkpoints, 1000)
    fill(large, 128, 4 * MIB)
    lines = pruning(spark, made, checkpoints, rounds)
    lines += compacting(spark, made, f"{checkpoints:,} checkpoints of 1 KB", rounds)
    lines += compacting(spark, large, "128 checkpoints of 4 MiB", max(1, rounds // 2))
    return lines, {"save_ms_beside_compaction_of_512_MiB": waiting(large)}
