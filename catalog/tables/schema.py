"""The tables as sql/tables defines them, read once for both engines."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyarrow as pa

from catalog.tables.port import Table

FORMAT_PROPERTY = "checkpoint_catalog.format"
FORMAT_VERSION = 1

_TYPES = {
    "STRING": pa.string(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "DECIMAL(20,0)": pa.decimal128(20, 0),
    "TIMESTAMP_LTZ": pa.timestamp("us", "UTC"),
    "BINARY": pa.binary(),
}
_TEXT = r"'((?:[^']|'')*)'"
_COLUMN = re.compile(rf"^  (\w+) ([A-Z]\S*)( NOT NULL)? COMMENT {_TEXT},?$", re.MULTILINE)
_PROPERTY = re.compile(rf"^  {_TEXT} = {_TEXT},?$", re.MULTILINE)
_COMMENT = re.compile(rf"^COMMENT {_TEXT}$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    name: str
    sql_type: str
    required: bool
    comment: str


@dataclass(frozen=True, slots=True)
class Definition:
    """A table's columns, comment and properties."""

    columns: tuple[Column, ...]
    comment: str
    properties: Mapping[str, str]

    @property
    def statistics(self) -> tuple[str, ...]:
        """The columns that every data file has statistics of in the log."""
        return tuple(self.properties["delta.dataSkippingStatsColumns"].split(","))

    @property
    def deleted_kept_days(self) -> int:
        """How long the log remembers data files that are gone."""
        _, days, unit = self.properties["delta.deletedFileRetentionDuration"].split()
        assert unit == "days"
        return int(days)


def sql_file(folder: str, name: str) -> str:
    """Return the text of a file of sql/."""
    packaged = files("catalog") / "_sql" / folder / f"{name}.sql"
    source = Path(__file__).parents[2] / "sql" / folder / f"{name}.sql"
    return packaged.read_text("utf-8") if packaged.is_file() else source.read_text("utf-8")


def create_statement(table: Table, quoted_name: str) -> str:
    """Return the CREATE TABLE statement of sql/tables for a table; a name is the only thing it takes."""
    text = sql_file("tables", table)
    return text.replace("{format}", str(FORMAT_VERSION)).replace("{table}", quoted_name)


@cache
def definition(table: Table) -> Definition:
    """Return what the CREATE TABLE statement says."""
    text = create_statement(table, "")
    columns = [
        Column(name, sql_type, bool(required), comment.replace("''", "'"))
        for name, sql_type, required, comment in _COLUMN.findall(text)
    ]
    comment = _COMMENT.search(text)
    assert comment, f"sql/tables/{table}.sql has no comment"
    return Definition(tuple(columns), comment[1].replace("''", "'"), dict(_PROPERTY.findall(text)))


SCHEMAS: Mapping[Table, pa.Schema] = {
    table: pa.schema([(column.name, _TYPES[column.sql_type]) for column in definition(table).columns])
    for table in Table
}

CHECKPOINT_FACTS = tuple(name for name in SCHEMAS[Table.CHECKPOINTS].names if name != "manifest")
"""Columns of `checkpoints` that are cheap to read for a whole stream."""

CHUNK_FACTS = tuple(name for name in SCHEMAS[Table.ARTIFACTS].names if name != "data")
"""Columns of `artifacts` without the bytes."""


def arrow(table: Table, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Return rows as an Arrow table with the table's schema; columns a row does not name are NULL."""
    return pa.Table.from_pylist(list(rows), schema=SCHEMAS[table])
