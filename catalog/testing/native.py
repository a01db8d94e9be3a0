"""The harness of a catalog without Spark: it looks at and damages the Delta tables by plain deltalake."""

import os
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from catalog import keys
from catalog.catalog import CheckpointCatalog
from catalog.tables.port import Table
from catalog.testing.harness import FakeClock, Harness


class NativeHarness(Harness):
    """A new catalog at a path."""

    def __init__(self, place: str | os.PathLike[str], clock: FakeClock | None = None, **options: Any) -> None:
        """Create the catalog.

        Args:
            place: a folder, or an address that deltalake takes.
            clock: the catalog's clock, by default a new one.
            options: see CheckpointCatalog.native.
        """
        self.clock = clock or FakeClock()
        self.catalog = CheckpointCatalog.native(place, create=True, clock=self.clock, **options)
        self._place = os.fspath(place)
        self._storage_options = options.get("storage_options")

    def corrupt_manifest(self, stream: str, key: str) -> None:
        """See Harness."""

        def corrupt(rows: list[dict[str, Any]]) -> None:
            newest = max((row for row in rows if row["manifest"] is not None), key=lambda row: row["revision"])
            newest["manifest"] = '{"version": 1, "checkpoint_id"'

        self._change(Table.CHECKPOINTS, stream, key, corrupt)

    def corrupt_state(self, stream: str, key: str) -> None:
        """See Harness."""

        def corrupt(rows: list[dict[str, Any]]) -> None:
            for row in rows:
                row["data"] = bytes(byte ^ 1 for byte in row["data"]) if row["data"] is not None else None

        self._change(Table.ARTIFACTS, stream, key, corrupt)

    def lose_state(self, stream: str, key: str) -> None:
        """See Harness."""
        self._change(Table.ARTIFACTS, stream, key, lambda rows: rows.clear())

    def artifact_rows(self, stream: str) -> int:
        """See Harness."""
        return int(self._rows(Table.ARTIFACTS, stream).num_rows)

    def checkpoint_rows(self, stream: str) -> list[dict[str, Any]]:
        """See Harness."""
        order = [("checkpoint_key", "ascending"), ("revision", "ascending")]
        found: list[dict[str, Any]] = self._rows(Table.CHECKPOINTS, stream).sort_by(order).to_pylist()
        return found

    def _table(self, table: Table) -> DeltaTable:
        return DeltaTable(f"{self._place}/{table}", storage_options=self._storage_options)

    def _rows(self, table: Table, stream: str) -> pa.Table:
        whole = self._table(table).to_pyarrow_table()
        return whole.filter(pc.field("stream") == (stream or keys.EMPTY_STREAM))

    def _change(self, table: Table, stream: str, key: str, change: Any) -> None:
        """Change the rows of a checkpoint and insist that there are any: a fault not planted proves nothing."""
        found = self._rows(table, stream)
        rows = found.filter(pc.field("checkpoint_key") == key).to_pylist()
        if not rows:
            raise LookupError(f"{table} has no row of checkpoint {key} of stream {stream!r}")
        change(rows)
        of_key = f"stream = {_text(stream or keys.EMPTY_STREAM)} AND checkpoint_key = {_text(key)}"
        write_deltalake(
            self._table(table), pa.Table.from_pylist(rows, found.schema), mode="overwrite", predicate=of_key
        )


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
