"""What compaction does to the tables, and tells: which data files become one, and the report. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from catalog.tables.port import Table

SMALL_FILE = 16 << 20
"""Data files below this are merged; larger ones are not worth being written again."""
MERGED_FILE = 64 << 20
"""What they are merged into at most: a sweep that takes a few rows of a file writes the others anew."""
FEWEST_TO_MERGE = 8
"""Small files of a stream that are left alone: each run would write the merged ones again for one more."""

MIB = 1 << 20
Files = Sequence[Mapping[str, Any]]
"""Live data files: path, size_bytes, partition.stream, and min.checkpoint_key where it is known."""


@dataclass(frozen=True, slots=True)
class CompactedTable:
    """What became of one table, or would."""

    table: Table
    files_before: int
    files_after: int
    """Live data files."""
    bytes_before: int
    bytes_after: int
    """Their size."""
    log_entries_before: int
    log_entries_after: int
    deleted_files: int
    """Data files that left the disk."""
    freed_bytes: int
    """What the disk got back: data files, and the log's own."""
    waiting_bytes: int
    """Data files that no longer count, and stay a while for readers under way and for time travel."""
    problems: tuple[str, ...] = ()
    """Files that cannot be read or are damaged; they are left as they are."""


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """What compaction did, or would do."""

    tables: tuple[CompactedTable, ...]
    dry_run: bool
    seconds: float

    @property
    def freed_bytes(self) -> int:
        """What the disk got back."""
        return sum(one.freed_bytes for one in self.tables)

    @property
    def problems(self) -> tuple[str, ...]:
        """What was left as it is because it cannot be read, or is damaged."""
        return tuple(problem for one in self.tables for problem in one.problems)

    def explain(self) -> str:
        """Return the report as text for people, a line for each table and each problem."""
        would = "would be " if self.dry_run else ""
        lines = [
            f"{one.table}: {one.files_before} -> {one.files_after} files of {one.bytes_after / MIB:.1f} MiB, "
            f"{one.log_entries_before} -> {one.log_entries_after} log entries, "
            f"{one.deleted_files} files {would}deleted, {one.freed_bytes / MIB:.1f} MiB {would}freed, "
            f"{one.waiting_bytes / MIB:.1f} MiB wait"
            for one in self.tables
        ]
        lines += [f"left as it is: {problem}" for problem in self.problems]
        return "\n".join([*lines, f"{self.freed_bytes / MIB:.1f} MiB {would}freed in {self.seconds:.1f} s"])


def merges(files: Iterable[Mapping[str, Any]], below: int = SMALL_FILE) -> list[Files]:
    """Return the groups of live data files that are to become one each.

    Only files of one stream make one, neighbours by key, so that few files have to be opened for a checkpoint.

    Args:
        files: all live data files.
        below: the size in bytes from which on a file is left alone.
    """
    small: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for file in files:
        if file["size_bytes"] < below:
            small[file["partition.stream"]].append(file)
    found: list[Files] = []
    for some in small.values():
        if len(some) >= FEWEST_TO_MERGE:
            some.sort(key=lambda file: (file.get("min.checkpoint_key") or "", file["path"]))
            found += [group for group in _cut(some) if len(group) > 1]
    return found


def _cut(files: Files) -> Iterator[Files]:
    """Cut a list of files into pieces that make up one merged file each."""
    first = size = 0
    for at, file in enumerate(files):
        if size + file["size_bytes"] > MERGED_FILE and at > first:
            yield files[first:at]
            first, size = at, 0
        size += file["size_bytes"]
    yield files[first:]
