"""How quick folding is: a chain of a hundred links, beside a bare Delta OPTIMIZE of the same rows."""

import asyncio
import os
import shutil
from itertools import count
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from catalog import AppendLog, CheckpointCatalog, CheckpointManifestV2, artifact_path, new_uuid7
from catalog.tables.port import Table
from tests.benchmarks.lines import Line, alternate

FOLDERS = {"log": AppendLog()}


async def _save_chain(catalog: CheckpointCatalog, stream: str, links: int, size: int) -> None:
    checkpointer, parent = catalog.checkpointer(stream), None
    for _ in range(links):
        id, data = new_uuid7(), os.urandom(size)
        write = checkpointer.save_delta if parent else checkpointer.save_snapshot
        sha256 = await write(id, "log", 0, data)
        path = artifact_path(id, "log", 0, delta=parent is not None)
        entry = {"partition_id": 0, "is_delta": parent is not None, "path": path, "size_bytes": size, "sha256": sha256}
        operators = {"log": {"partitions": [entry]}}
        await checkpointer.save_manifest(CheckpointManifestV2.new(id, 1, operators=operators, parent_id=parent))
        await checkpointer.update_latest(id)
        parent = id


def run(spark: Any, folder: Path, *, links: int = 100, size: int = 64 << 10, rounds: int = 3) -> list[Line]:
    """Fold a chain with either engine, each time in a catalog that has not been folded."""
    original = folder / "chain"
    # No tidying: OPTIMIZE and the fold find the same hundred small files.
    with CheckpointCatalog.native(original, create=True, maintain_every=0) as catalog:
        asyncio.run(_save_chain(catalog, "chain", links, size))
    numbers = count()

    def places() -> list[Path]:
        made = [folder / f"chain {next(numbers)}" for _ in range(rounds + 1)]
        for place in made:
            shutil.copytree(original, place)
        return made

    def fold(catalog: CheckpointCatalog) -> None:
        (found,) = catalog.fold_chains(["chain"], folders=FOLDERS).folded
        assert found.links == links

    native = iter([CheckpointCatalog.native(place, maintain_every=0) for place in places()])
    on_spark = iter([CheckpointCatalog.for_path(spark, place) for place in places()])
    bare, bare_native = iter(places()), iter(places())

    def optimize() -> None:
        spark.sql(f"OPTIMIZE delta.`{next(bare) / Table.ARTIFACTS}`").collect()

    def compact() -> None:
        DeltaTable(str(next(bare_native) / Table.ARTIFACTS)).optimize.compact()

    mine, theirs = alternate(rounds, lambda: fold(next(native)), compact)
    lines = [Line.slower(f"fold a chain of {links}, native", mine, "bare compact of the same rows", theirs, None)]
    mine, theirs = alternate(rounds, lambda: fold(next(on_spark)), optimize)
    lines.append(Line.slower(f"fold a chain of {links}, Spark", mine, "bare OPTIMIZE of the same rows", theirs, None))
    return lines
