"""What a data file's statistics in the log tell about its rows, and what conditions mean for both."""

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from catalog.tables.port import Between, Condition, Equals, In, Unless

_MANY = 20
"""Values of a condition that are compared with a file's statistics one by one."""


@dataclass(frozen=True, slots=True)
class _Other:
    """The column has none of these values; a condition that only guards need."""

    column: str
    values: tuple[Any, ...]


Where = Sequence[Condition | _Other]
"""Conditions that a row has to meet, all of them."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The live data files of one version of a table, with their statistics."""

    version: int
    files: pa.Table

    def select(self, any_of: Iterable[Where]) -> pa.Table:
        """Return the files that may have rows that meet all conditions of one of these groups."""
        none = pa.chunked_array([pa.repeat(pa.scalar(False), self.files.num_rows)])
        return self.files.filter(reduce(pc.or_, (_may_meet(self.files, where) for where in any_of), none))


def _may_meet(ranges: pa.Table, where: Where) -> pa.ChunkedArray:
    """Say of each range, of a data file or a row group, whether rows in it may meet every condition."""
    every = pa.chunked_array([pa.repeat(pa.scalar(True), ranges.num_rows)])
    for condition in where:
        low, high = (_bound(ranges, bound, condition.column) for bound in ("min", "max"))
        if low is not None:
            every = pc.and_(every, pc.fill_null(_overlap(low, high, condition), True))
    return every


def _bound(ranges: pa.Table, bound: str, column: str) -> pa.ChunkedArray | None:
    name = "partition.stream" if column == "stream" else f"{bound}.{column}"
    return ranges.column(name) if name in ranges.column_names else None


def _overlap(low: pa.ChunkedArray, high: pa.ChunkedArray, condition: Condition | _Other) -> pa.ChunkedArray:
    """Say of each range whether a value in it may meet the condition."""
    match condition:
        case Equals(value=value):
            return pc.and_(pc.less_equal(low, value), pc.greater_equal(high, value))
        case In(values=values):
            if len(values) > _MANY:
                return _has_one_of(low, high, sorted(values))
            within = [pc.and_(pc.less_equal(low, one), pc.greater_equal(high, one)) for one in values]
            return reduce(pc.or_, within, pc.not_equal(low, low))
        case Between(low=first, high=end):
            return pc.and_(pc.less(low, end), pc.greater_equal(high, first))
        case _Other(values=values):
            return pc.invert(pc.and_(pc.equal(low, high), pc.is_in(low, value_set=pa.array(values, low.type))))


def _has_one_of(low: pa.ChunkedArray, high: pa.ChunkedArray, ordered: Sequence[Any]) -> pa.ChunkedArray:
    """Say of each range whether one of many values, which need not be neighbours, is in it; null where it is open."""
    found: list[bool | None] = []
    for least, most in zip(low.to_pylist(), high.to_pylist(), strict=True):
        known = least is not None and most is not None
        at = bisect_left(ordered, least) if known else 0
        found.append(at < len(ordered) and ordered[at] <= most if known else None)
    return pa.chunked_array([found], pa.bool_())


def tells(file: Mapping[str, Any], columns: Iterable[str]) -> bool:
    """Say whether a file's statistics are exact for these columns: one value in all rows.

    A text that was cut short for the statistics has a maximum different from its minimum.
    """
    return file["num_records"] is not None and all(
        isinstance(file.get(f"min.{name}"), str | int)
        and file[f"min.{name}"] == file[f"max.{name}"]
        and file[f"null_count.{name}"] == 0
        for name in columns
    )


def expression(where: Where) -> pc.Expression:
    """Return conditions as a filter of rows."""
    return reduce(and_, map(_row_filter, where), pc.scalar(True))


def _row_filter(condition: Condition | _Other) -> pc.Expression:
    column = pc.field(condition.column)
    match condition:
        case Equals(value=value):
            return column == value
        case In(values=values):
            return column.isin(list(values)) if values else pc.scalar(False)
        case Between(low=low, high=high):
            return (column >= low) & (column < high)
        case _Other(values=values):
            return ~column.isin(list(values))


def conditions_of(guard: Unless) -> Where:
    """Return what a row must meet to be what a guard forbids."""
    conditions: list[Condition | _Other] = []
    if guard.key is not None:
        conditions.append(Equals("checkpoint_key", guard.key))
    if guard.change is not None:
        conditions.append(Equals("change", str(guard.change)))
    if guard.revision_above is not None:
        conditions.append(Between("revision", guard.revision_above + 1, 1 << 31))
    if guard.format_other_than is not None:
        conditions.append(_Other("format", (str(guard.format_other_than), "")))
    return conditions


def group_ranges(file: pq.FileMetaData, columns: Iterable[str]) -> pa.Table:
    """Return what the statistics of a data file's row groups tell of columns; what they do not is left out."""
    names = file.schema.to_arrow_schema().names
    ranges: dict[str, Sequence[Any]] = {"group": range(file.num_row_groups)}
    for name in sorted(set(columns) & set(names)):
        number = names.index(name)
        found = [file.row_group(group).column(number).statistics for group in range(file.num_row_groups)]
        if any(one and one.has_min_max for one in found):
            for bound in ("min", "max"):
                told = [getattr(one, bound) if one and one.has_min_max else None for one in found]
                ranges[f"{bound}.{name}"] = told
    return pa.table(ranges)


def groups_with(ranges: pa.Table, where: Where) -> list[int]:
    """Return the row groups that may have rows that meet every condition."""
    found: list[int] = ranges.filter(_may_meet(ranges, where)).column("group").to_pylist()
    return found


def statistics(rows: pa.Table) -> str:
    """Return the statistics of the key columns as the log wants them."""
    lowest, highest = {}, {}
    for name in rows.column_names:
        bounds = pc.min_max(rows.column(name)).as_py()
        if bounds["min"] is not None and not pa.types.is_timestamp(rows.schema.field(name).type):
            lowest[name], highest[name] = bounds["min"], bounds["max"]
    nulls = {name: rows.column(name).null_count for name in rows.column_names}
    return json.dumps({"numRecords": rows.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls})
