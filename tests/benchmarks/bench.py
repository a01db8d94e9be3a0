"""How fast both engines are here, each beside something bare in the same run: `make bench`.

Every ratio compares things measured in turn, with the same settings, so that a noisy machine is noisy for all. Bare
Delta does not fsync; the rows marked "fsync off" compare like with like, the others show what it costs.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from catalog import CheckpointCatalog, CheckpointStore
from catalog.cutting import CHUNK_BYTES
from catalog.session import build_session
from catalog.tables.port import Table
from catalog.tables.schema import arrow
from tests.benchmarks import folding, native, producers, trust, upkeep
from tests.benchmarks.lines import MIB, Line, alternate, manifest, show

numbers = count(1)


def small_saves(spark: Any, catalog: CheckpointCatalog, bare: str, rounds: int) -> tuple[list[Line], float]:
    """A 1 KB checkpoint beside a bare append of one row with the same columns; also the seconds it takes."""
    store = catalog.store("small")
    row = arrow(Table.CHECKPOINTS, [{"stream": "s", "manifest": manifest(1).canonical(), "at": datetime.now(UTC)}])

    def append() -> None:
        spark.createDataFrame(row).coalesce(1).write.format("delta").mode("append").save(bare)

    ours, theirs = alternate(rounds, lambda: store.save(manifest(next(numbers))), append)
    return [Line.slower("save 1 KB, Spark", ours, "bare append", theirs, 5)], statistics.median(ours)


def blobs(
    spark: Any, durable: CheckpointCatalog, volatile: CheckpointCatalog, folder: Path, size_mib: int, rounds: int
) -> list[Line]:
    """A large artifact beside a bare Delta write and read of the same chunks."""
    data = os.urandom(size_mib * MIB)
    pieces = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
    numbered = pa.array(range(len(pieces)), pa.int32())
    table = pa.table({"stream": ["s"] * len(pieces), "chunk_no": numbered, "data": pa.array(pieces, pa.binary())})
    written: list[str] = []

    def write() -> None:
        written.append(str(folder / uuid.uuid4().hex))
        spark.createDataFrame(table).write.format("delta").mode("append").partitionBy("stream").save(written[-1])

    def read() -> None:
        assert spark.read.format("delta").load(written[-1]).where("stream = 's'").toArrow().num_rows == len(pieces)

    saved: dict[str, int] = {}

    def save_state(catalog: CheckpointCatalog, stream: str) -> None:
        saved[stream] = next(numbers)
        catalog.store(stream).save_state_data(saved[stream], data)

    def save_whole() -> None:
        saved["whole"] = next(numbers)
        whole_store.save_with_state(manifest(saved["whole"]), data, share=False)

    whole_store = volatile.store("whole")

    def load(store: CheckpointStore) -> None:
        assert len(store.load_state_data(saved["whole"]) or b"") == len(data)

    bare_write, fsynced, unsynced, whole = alternate(
        rounds, write, lambda: save_state(durable, "durable"), lambda: save_state(volatile, "volatile"), save_whole
    )
    whole_store.list()  # as after a recovery
    bare_read, loaded, loaded_new = alternate(
        rounds, read, lambda: load(whole_store), lambda: load(volatile.store("whole"))
    )
    name = f"{size_mib} MiB"
    return [
        Line.faster(f"{name} artifact save, Spark, fsync off", unsynced, "bare write", bare_write, size_mib, 0.7),
        Line.faster(f"{name} artifact save, Spark, fsynced", fsynced, "bare write", bare_write, size_mib, None),
        Line.faster(f"{name} save_with_state, Spark, fsync off", whole, "bare write", bare_write, size_mib, None),
        Line.faster(f"{name} load, Spark, verified", loaded, "bare read", bare_read, size_mib, 0.7),
        Line.faster(f"{name} load by a new store, Spark", loaded_new, "bare read", bare_read, size_mib, None),
    ]


def listing(spark: Any, catalog: CheckpointCatalog, place: Path, checkpoints: int, rounds: int) -> list[Line]:
    """A list of many checkpoints beside a bare SELECT of the same columns."""
    stream = catalog.stream("many")
    catalog.store("many").save(manifest(1))
    template = next(iter(stream.history(manifests=True).values())).origin
    assert template is not None
    rows = [
        {**template.row(), "checkpoint_key": f"{one:020d}", "insert_id": uuid.uuid4().hex}
        for one in range(2, checkpoints + 1)
    ]
    catalog.engine.append(Table.CHECKPOINTS, [arrow(Table.CHECKPOINTS, rows)])  # laid out as one compaction would
    table = str(place / Table.CHECKPOINTS)
    columns = list(template.row())

    def select() -> None:
        frame = spark.read.format("delta").load(table).where("stream = 'many'").select(*columns)
        assert frame.toArrow().num_rows == checkpoints

    def ours() -> None:
        assert len(catalog.store("many").list()) == checkpoints

    mine, bare = alternate(rounds, ours, select)
    return [Line.slower(f"list of {checkpoints:,}, Spark", mine, "bare SELECT", bare, 2)]


def breakdown(catalog: CheckpointCatalog) -> dict[str, float]:
    """Where the time of one small save goes, in milliseconds."""
    engine: Any = catalog.engine
    spent: dict[str, float] = {}

    def timed(name: str) -> Callable[..., Any]:
        real = getattr(engine, name)

        def call(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return real(*arguments)
            finally:
                spent[name] = spent.get(name, 0.0) + (time.perf_counter() - began) * 1e3

        return call

    store = catalog.store("small")
    engine._merge = timed("_merge")
    engine.insert_unless = timed("insert_unless")
    began = time.perf_counter()
    store.save(manifest(next(numbers)))
    total = (time.perf_counter() - began) * 1e3
    del engine._merge, engine.insert_unless
    return {
        "Spark's MERGE": spent["_merge"],
        "the rest of the engine": spent["insert_unless"] - spent["_merge"],
        "manifest, hashes, decisions": total - spent["insert_unless"],
    }


def main() -> None:
    """Measure, print one table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--size-mib", type=int, default=64)
    parser.add_argument("--checkpoints", type=int, default=1000)
    parser.add_argument("--many", type=int, default=10_000, help="checkpoints in the catalog that views look at")
    parser.add_argument("--validate-mib", type=int, default=2048, help="MiB that are validated by hash")
    parser.add_argument("--shared-mib", type=int, default=1024, help="MiB of state of which little changes")
    parser.add_argument("--commits", type=int, default=5000, help="of the native engine, in a row")
    parser.add_argument("--json", type=Path, default=Path("bench-results/bench.json"))
    options = parser.parse_args()
    lines: list[Line] = []

    def measured(some: list[Line], facts: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
        lines.extend(some)
        print(show(some), end="\n\n", file=sys.stderr, flush=True)  # it takes a while until all is measured
        return dict(facts)

    spark = build_session("bench")
    with tempfile.TemporaryDirectory(prefix="checkpoint-catalog-bench-") as name:
        folder = Path(name)
        durable = CheckpointCatalog.create(spark, folder / "catalog")
        volatile = CheckpointCatalog.for_path(spark, folder / "catalog", durable=False)
        few = max(1, options.rounds // 3)  # of upkeep each round takes catalogs of its own, and Spark a minute for them
        small, spark_save_s = small_saves(spark, durable, str(folder / "bare"), options.rounds)
        measured(small)
        measured(blobs(spark, durable, volatile, folder, options.size_mib, options.rounds))
        measured(listing(spark, durable, folder / "catalog", options.checkpoints, options.rounds))
        parts = breakdown(durable)
        facts = measured(
            *trust.run(spark, folder, checkpoints=options.many, size_mib=options.validate_mib, rounds=options.rounds)
        )
        facts |= measured(*upkeep.run(spark, folder, checkpoints=options.checkpoints, rounds=few))
        measured(folding.run(spark, folder, rounds=few))
        spark.stop()
        facts |= measured(
            *native.run(folder, spark_save_s, rounds=options.rounds, size_mib=options.size_mib, commits=options.commits)
        )
        facts |= measured(*producers.run(folder, rounds=options.rounds, size_mib=options.shared_mib))
    print("\n" + show(lines))
    print("\na 1 KB save by Spark spends " + ", ".join(f"{spent:.0f} ms in {part}" for part, spent in parts.items()))
    for what, value in facts.items():
        print(f"{what.replace('_', ' ')}: {value}")
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "rounds": options.rounds}
    report = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "lines": [asdict(line) for line in lines],
        "save_1kb_by_spark_ms": parts,
        "native": facts,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", "utf-8")
    print(f"written to {options.json}")


if __name__ == "__main__":
    main()
