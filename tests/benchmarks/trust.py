"""How quick looking and trusting are: views, validation and recovery of a catalog of many checkpoints."""

import os
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from catalog import CheckpointCatalog, keys
from catalog.manifest import content_sha256, sha256_text
from catalog.tables.native_files import DataFiles
from catalog.tables.port import Table
from catalog.tables.schema import CHECKPOINT_FACTS, CHUNK_FACTS, arrow
from tests.benchmarks.lines import MIB, Line, alternate, manifest

LISTING = {
    "checkpoint_list": (Table.CHECKPOINTS, Table.EVENTS),
    "latest_checkpoints": (Table.CHECKPOINTS,),
    "trashed_checkpoints": (Table.CHECKPOINTS,),
    "artifact_inventory": (Table.CHECKPOINTS, Table.ARTIFACTS),
    "checkpoint_growth": (Table.CHECKPOINTS, Table.ARTIFACTS),
}
"""Views that list, and the tables that they read."""
READ = {Table.CHECKPOINTS: CHECKPOINT_FACTS, Table.ARTIFACTS: CHUNK_FACTS, Table.EVENTS: ("stream", "at", "details")}


def fill(catalog: CheckpointCatalog, checkpoints: int) -> None:
    """Make a stream of many checkpoints with a small state each, laid out as maintenance would."""
    store = catalog.store("many")
    store.save_with_state(manifest(1), b"state")
    stream = catalog.stream("many")
    row = stream.revisions()[0].row()
    chunk = catalog.engine.scan(Table.ARTIFACTS, [], [*CHUNK_FACTS, "data"]).to_pylist()[0]
    rows, chunks = [], []
    for number in range(2, checkpoints + 1):
        key, attempt = keys.integer_key(number), keys.new_uuid7()
        text = manifest(number).model_copy(update={"state_checksum": chunk["artifact_sha256"]}).canonical()
        own = {"checkpoint_key": key, "attempt": attempt}
        rows.append({**row, **own, "insert_id": uuid.uuid4().hex, "at": datetime.now(UTC), **_hashes(text, chunk)})
        chunks.append({**chunk, **own})
    for table, some in ((Table.ARTIFACTS, chunks), (Table.CHECKPOINTS, rows)):
        catalog.engine.append(table, [arrow(table, some)])


def _hashes(text: str, chunk: dict[str, Any]) -> dict[str, Any]:
    hashes = {chunk["path"]: chunk["artifact_sha256"]}
    return {
        "manifest": text,
        "manifest_sha256": sha256_text(text),
        "content_sha256": content_sha256(text, hashes),
    }


def views(spark: Any, catalog: CheckpointCatalog, place: Path, rounds: int) -> list[Line]:
    """Every listing view beside a full SELECT of the columns that it reads."""
    lines = []
    for name, tables in LISTING.items():

        def select(tables: tuple[Table, ...] = tables) -> None:
            for table in tables:
                spark.read.format("delta").load(str(place / table)).select(*READ[table]).toArrow()

        def show(name: str = name) -> None:
            catalog.view(name).toArrow()

        ours, bare = alternate(rounds, show, select)
        lines.append(Line.slower(f"{name}", ours, "SELECT of its columns", bare, 3))
    return lines


def hashing(spark: Any, folder: Path, size_mib: int, rounds: int) -> list[Line]:
    """Validation of every hash on the executors beside a bare sha2 of the same chunks."""
    place = folder / "hashing"
    native = CheckpointCatalog.native(place, create=True)
    store = native.store("blobs")
    for number in range(1, 9):
        store.save_with_state(manifest(number), os.urandom(size_mib * MIB // 8))
    native.close()
    catalog = CheckpointCatalog.for_path(spark, place)

    def bare() -> None:
        frame = spark.read.format("delta").load(str(place / Table.ARTIFACTS))
        assert frame.where("sha2(data, 256) <> chunk_sha256").count() == 0

    ours, theirs = alternate(rounds, lambda: catalog.validate(depth="hashes"), bare)
    return [Line.faster(f"validate {size_mib} MiB by hash, Spark", ours, "bare sha2", theirs, size_mib, 0.8)]


def recovery(place: Path) -> dict[str, Any]:
    """How much of a catalog recovery of the latest good checkpoint reads."""
    opened: list[str] = []
    real = DataFiles._read_columns

    def counted(files: DataFiles, path: str, *rest: Any) -> Any:
        opened.append(files.table)
        return real(files, path, *rest)

    DataFiles._read_columns = counted  # type: ignore[method-assign]
    try:
        catalog = CheckpointCatalog.native(place)
        began = time.perf_counter()
        report = catalog.recover("many")
        seconds = time.perf_counter() - began
    finally:
        DataFiles._read_columns = real  # type: ignore[method-assign]
    return {
        "chosen": report.chosen_id,
        "examined": report.examined,
        "seconds": round(seconds, 3),
        "data_files_opened": {table: opened.count(table) for table in sorted(set(opened))},
        "live_data_files": {
            str(table): loaded.refreshed().files.num_rows for table, loaded in catalog.engine._tables.items()
        },
    }


def run(spark: Any, folder: Path, *, checkpoints: int, size_mib: int, rounds: int) -> tuple[list[Line], dict[str, Any]]:
    """Measure everything; the second result is what does not fit into a line."""
    place = folder / "trust"
    with CheckpointCatalog.native(place, create=True) as native:
        fill(native, checkpoints)
        assert native.validate(["many"]).results == ()
    catalog = CheckpointCatalog.for_path(spark, place)
    lines = views(spark, catalog, place, rounds)
    lines += hashing(spark, folder, size_mib, rounds)
    return lines, {f"recovery_out_of_{checkpoints}": recovery(place)}
