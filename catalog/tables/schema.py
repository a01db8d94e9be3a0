"""The tables' columns as Arrow, once for both engines; sql/tables says the same to Spark, and a test compares them."""

from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyarrow as pa

from catalog.tables.port import Table

FORMAT_PROPERTY = "checkpoint_catalog.format"
FORMAT_VERSION = 1

_TEXT, _INT, _U64, _TIME = pa.string(), pa.int32(), pa.decimal128(20, 0), pa.timestamp("us", "UTC")

SCHEMAS: Mapping[Table, pa.Schema] = {
    Table.CHECKPOINTS: pa.schema(
        [
            ("stream", _TEXT),
            ("checkpoint_key", _TEXT),
            ("revision", _INT),
            ("change", _TEXT),
            ("format", _TEXT),
            ("insert_id", _TEXT),
            ("at", _TIME),
            ("actor", _TEXT),
            ("reason", _TEXT),
            ("until", _TIME),
            ("attempt", _TEXT),
            ("parent", _TEXT),
            ("epoch", _U64),
            ("created_at", _TIME),
            ("watermark", _U64),
            ("event_count", _U64),
            ("pipeline_hash", _U64),
            ("vnode_count", _INT),
            ("sinks_pending", _INT),
            ("sinks_failed", _INT),
            ("artifact_count", _INT),
            ("artifact_bytes", _U64),
            ("manifest_sha256", _TEXT),
            ("content_sha256", _TEXT),
            ("details", _TEXT),
            ("manifest", _TEXT),
        ]
    ),
    Table.ARTIFACTS: pa.schema(
        [
            ("stream", _TEXT),
            ("checkpoint_key", _TEXT),
            ("attempt", _TEXT),
            ("path", _TEXT),
            ("kind", _TEXT),
            ("operator", _TEXT),
            ("partition", pa.int64()),
            ("scope", _TEXT),
            ("staged_at", _TIME),
            ("chunk_no", _INT),
            ("chunk_count", _INT),
            ("chunk_size", _INT),
            ("chunk_sha256", _TEXT),
            ("artifact_size", _U64),
            ("artifact_sha256", _TEXT),
            ("held_key", _TEXT),
            ("held_attempt", _TEXT),
            ("via", _TEXT),
            ("data", pa.binary()),
        ]
    ),
    Table.EVENTS: pa.schema(
        [
            ("stream", _TEXT),
            ("checkpoint_key", _TEXT),
            ("event", _TEXT),
            ("at", _TIME),
            ("actor", _TEXT),
            ("details", _TEXT),
        ]
    ),
}

CHECKPOINT_FACTS = tuple(name for name in SCHEMAS[Table.CHECKPOINTS].names if name != "manifest")
"""Columns of `checkpoints` that are cheap to read for a whole stream."""

CHUNK_FACTS = tuple(name for name in SCHEMAS[Table.ARTIFACTS].names if name != "data")
"""Columns of `artifacts` without the bytes."""


def arrow(table: Table, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Return rows as an Arrow table with the table's schema; columns a row does not name are NULL."""
    return pa.Table.from_pylist(list(rows), schema=SCHEMAS[table])


def create_statement(table: Table, quoted_name: str) -> str:
    """Return the CREATE TABLE statement of sql/tables for a table; a name is the only thing it takes."""
    packaged = files("catalog") / "_sql" / "tables" / f"{table}.sql"
    source = Path(__file__).parents[2] / "sql" / "tables" / f"{table}.sql"
    text = packaged.read_text("utf-8") if packaged.is_file() else source.read_text("utf-8")
    return text.replace("{format}", str(FORMAT_VERSION)).replace("{table}", quoted_name)
