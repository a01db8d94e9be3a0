"""Data files of a table: Parquet written and read by pyarrow, and what the log has to say about each."""

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction

from catalog.errors import CorruptError, InvalidInputError, ReadOnlyError
from catalog.tables.commits import first_line
from catalog.tables.locks import fsync
from catalog.tables.names import Place
from catalog.tables.native_statistics import Where, expression, group_ranges, groups_with, statistics, tells
from catalog.tables.opening import gone
from catalog.tables.port import Table
from catalog.tables.schema import CHECKPOINT_FACTS, SCHEMAS, definition
from catalog.threads import start

SMALL_FILE = 1 << 20
UNNAMED_LASTS = timedelta(days=1)
"""How long ago a data file may have been written that is committed; far less than after what time it is deleted."""
REMEMBERED_FILES = 1024
"""Small files of `checkpoints` whose rows are kept in memory: a stream is looked through at every save that prunes."""
_ROW_GROUP_ROWS, _ROW_GROUP_BYTES = 256, 16 << 20
_READING = {"coerce_int96_timestamp_unit": "us", "pre_buffer": False}
"""Without pre-buffering all reading happens in the caller's thread, none in Arrow's, which may outlive Python."""


class DataFiles:
    """Reads and writes the data files of one table; which of them count is the log's to say."""

    def __init__(
        self, place: Place, table: Table, options: Mapping[str, str], *, durable: bool, syncing: ThreadPoolExecutor
    ) -> None:
        """Know where they are.

        Args:
            place: the catalog.
            table: the table.
            options: deltalake's options for that storage.
            durable: on a local disk, fsync what is written.
            syncing: puts parts of a file on the disk while the next one is made; whatever it does must take no lock.
        """
        self.table = table
        self.uri = f"{place.path}/{table}"
        self.folder = place.local_folder / table if place.local_folder else None
        self.options = dict(options)
        self.durable = durable and self.folder is not None
        self.place = place
        self._syncing = syncing
        self._known_ranges: dict[tuple[str, tuple[str, ...]], pa.Table] = {}
        self._remembered = lru_cache(REMEMBERED_FILES)(self._read_facts)

    @cached_property
    def storage(self) -> pa_fs.FileSystem:
        """The file system, with the table's folder as its root."""
        if self.folder:
            return pa_fs.SubTreeFileSystem(str(self.folder), pa_fs.LocalFileSystem())
        return pa_fs.PyFileSystem(DeltaStorageHandler(self.uri, self.options))

    def open(self, path: str) -> pa.NativeFile:
        """Open a data file for reading."""
        if self.folder:
            return pa.memory_map(str(self.folder / path))
        file = self.storage.open_input_file(path)
        # One request for a small file, instead of one for each of its columns.
        return pa.BufferReader(file.read()) if file.size() < SMALL_FILE else file

    def read(self, files: pa.Table, where: Where, columns: Sequence[str] | None) -> pa.Table:
        """Return rows of these files, from the statistics where they are exact, else from the files themselves."""
        names = list(columns or SCHEMAS[self.table].names)
        asked = {*names, *(condition.column for condition in where)} - {"stream"}
        told: list[dict[str, Any]] = []
        unread: list[tuple[str, str]] = []
        for file in files.to_pylist():
            stream = file["partition.stream"]
            if tells(file, asked):
                told += [{"stream": stream, **{name: file[f"min.{name}"] for name in asked}}] * file["num_records"]
            else:
                unread.append((stream, file["path"]))
        parts = [_told_rows(self.table, told, where, names)] if told or not unread else []
        where = [condition for condition in where if condition.column != "stream"]  # is the log's to tell
        remembered: list[pa.Table] = []
        for stream, path in unread:
            facts = self._facts(path, asked)
            if facts is None:
                parts.append(_with_stream(self._read_file(path, where, names), stream, names))
            else:
                remembered.append(_with_stream(facts, stream, CHECKPOINT_FACTS))
        if remembered:
            # At once, and in one piece: to filter a small file's rows takes longer to set up than to do.
            rows = pa.concat_tables(remembered).combine_chunks()
            parts.append(rows.filter(expression(where)).select(names))
        return pa.concat_tables(parts)

    def _read_file(self, path: str, where: Where, names: Sequence[str]) -> pa.Table:
        """Return rows of one data file, from the row groups that may have some."""
        schema = SCHEMAS[self.table]
        columns = [name for name in schema.names if name in {*names, *(one.column for one in where)} - {"stream"}]
        return self._read_columns(path, where, pa.schema([schema.field(name) for name in columns]))

    def _facts(self, path: str, asked: Set[str]) -> pa.Table | None:
        """Return all rows of a small file of `checkpoints` that is at hand, if what is asked is among their facts."""
        if self.folder is None or self.table is not Table.CHECKPOINTS or not asked <= set(CHECKPOINT_FACTS):
            return None
        found = (self.folder / path).stat()
        return self._remembered(path, found.st_mtime_ns, found.st_size) if found.st_size < SMALL_FILE else None

    def _read_facts(self, path: str, *_changed: int) -> pa.Table:
        """Return all rows of a small file without manifests; a data file is never changed, but it may be damaged."""
        facts = [name for name in CHECKPOINT_FACTS if name != "stream"]
        return self._read_columns(path, [], pa.schema([SCHEMAS[self.table].field(name) for name in facts]))

    def _read_columns(self, path: str, where: Where, expected: pa.Schema) -> pa.Table:
        return pa.concat_tables([expected.empty_table(), *self._groups(path, where, expected)])

    def _groups(self, path: str, where: Where, expected: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows of one data file that meet every condition, a row group at a time."""
        with self.open(path) as source:
            is_small = source.size() < SMALL_FILE
            try:
                with pq.ParquetFile(source, **_READING) as file:
                    for group in groups_with(self._ranges(path, file, where), where):
                        rows = _read_group(file, group, expected, where, is_small=is_small)
                        if rows is not None:
                            yield rows
            except (pa.ArrowException, UnicodeDecodeError, KeyError, OSError) as error:
                if not _tells_damage(error, at_hand=self.folder is not None or is_small):
                    raise
                raise CorruptError(f"{path} of {self.place}, {self.table}, is damaged: {first_line(error)}") from error

    def _ranges(self, path: str, file: pq.ParquetFile, where: Where) -> pa.Table:
        """Return the ranges of a data file's row groups, which never change: merged, a file may have thousands."""
        asked = path, tuple(sorted({condition.column for condition in where}))
        found = self._known_ranges.get(asked)
        if found is None:
            if len(self._known_ranges) >= REMEMBERED_FILES:
                self._known_ranges.clear()
            found = self._known_ranges[asked] = group_ranges(file.metadata, asked[1])
        return found

    def parts(self, stream: str, path: str) -> Iterator[pa.Table]:
        """Yield all rows of a data file of a stream with all columns, a row group at a time."""
        schema = SCHEMAS[self.table]
        own = schema.remove(schema.get_field_index("stream"))
        return (_with_stream(rows, stream, schema.names) for rows in self._groups(path, [], own))

    def listed(self) -> list[pa_fs.FileInfo]:
        """Return all files in the table's folder and below, whether they count or not."""
        found = self.storage.get_file_info(pa_fs.FileSelector("", recursive=True))
        return [info for info in found if info.type is pa_fs.FileType.File]

    def delete(self, file: pa_fs.FileInfo) -> int:
        """Delete a data file, and return how many bytes the storage got back: none if it was gone."""
        if self.folder is None:
            with suppress(FileNotFoundError):
                self.storage.delete_file(file.path)
                return int(file.size)
            return 0
        # Hadoop hides a checksum beside each of Spark's files.
        path = self.folder / file.path
        return sum(_unlinked(one) for one in (path, path.with_name(f".{path.name}.crc")))

    def lasts(self, file: AddAction) -> bool:
        """Say whether a new data file that no log names is there; in a bucket its age tells, without a request."""
        if self.folder:
            return (self.folder / file.path).exists()
        return now_ms() - file.modification_time < UNNAMED_LASTS / timedelta(milliseconds=1)

    def write(self, stream: str, tables: Iterable[pa.Table]) -> AddAction:
        """Write rows of a stream into a new data file, durable, and return what the log has to say about it."""
        path = f"part-{uuid.uuid4()}.parquet"
        kept = definition(self.table).statistics
        facts: list[pa.Table] = []
        writer: pq.ParquetWriter | None = None
        syncing: list[Future[None]] = []
        try:
            for rows in tables:
                _check_required(self.table, rows)
                writer = writer or _writer(path, self.storage, rows, kept)
                facts.append(rows.select(kept))
                per_group = max(1, _ROW_GROUP_BYTES * rows.num_rows // max(rows.nbytes, 1))
                writer.write_table(rows.drop_columns(["stream"]), min(per_group, _ROW_GROUP_ROWS))
                if self.folder and self.durable and rows.nbytes >= SMALL_FILE:
                    # The disk works while the next part is made.
                    syncing.append(start(self._syncing, fsync, self.folder / path))
                del rows  # it is not held while the next part is made
            if writer:
                writer.close()
            for one in syncing:
                one.result()  # a fault of the disk is told only once
        except BaseException as error:
            if writer:
                with suppress(pa.ArrowException, OSError):  # perhaps what has just failed
                    writer.close()
            if self.storage.get_file_info(path).type is pa_fs.FileType.File:
                self.storage.delete_file(path)
            if isinstance(error, PermissionError):
                raise ReadOnlyError(f"cannot write in {self.uri}: {error.strerror or error}") from error
            if self.folder and not self.folder.is_dir():
                raise gone(self.place, self.table) from error
            raise
        if self.folder and self.durable:
            fsync(self.folder / path)
            fsync(self.folder)
        size = self.storage.get_file_info(path).size
        return AddAction(path, size, {"stream": stream}, now_ms(), True, statistics(pa.concat_tables(facts)))


def _unlinked(path: Path) -> int:
    try:
        size = path.stat().st_size
        path.unlink()
    except FileNotFoundError:
        return 0
    return size


def _writer(path: str, storage: pa_fs.FileSystem, first: pa.Table, statistics: Sequence[str]) -> pq.ParquetWriter:
    """Open a new data file for rows like these; bytes are compressed only if that helps."""
    compression = {name: "zstd" for name in first.column_names if name != "stream"}
    if "data" in compression:
        compression["data"] = "snappy" if _compressible(first.column("data")) else "none"
    return pq.ParquetWriter(
        path,
        first.schema.remove(first.schema.get_field_index("stream")),
        filesystem=storage,
        compression=compression,
        use_dictionary=False,
        write_statistics=list(statistics),
    )


def _compressible(data: pa.ChunkedArray) -> bool:
    sample = next((bytes(one.as_buffer()[:65_536]) for one in data if one.is_valid and len(one.as_buffer())), b"")
    return len(pa.compress(sample, "snappy", asbytes=True)) < 0.9 * len(sample)


def _read_group(
    file: pq.ParquetFile, group: int, expected: pa.Schema, where: Where, *, is_small: bool
) -> pa.Table | None:
    """Return the rows of a row group that meet every condition, if any; bytes are read only then."""

    def read(names: Sequence[str]) -> pa.Table:
        # Handing a few rows' columns to threads takes longer than reading them.
        rows = file.read_row_group(group, columns=list(names), use_threads=not is_small)
        # Other writers' files may have kinds of text and time that filters do not know.
        rows = rows.select(names).cast(pa.schema([expected.field(name) for name in names]))
        rows.validate(full=True)  # a damaged page may decode into what is no text
        return rows

    if not where:
        return read(expected.names) if file.metadata.row_group(group).num_rows else None
    asked = sorted({condition.column for condition in where})
    rows = read(expected.names if is_small else asked)
    numbers = pa.array(range(rows.num_rows))
    wanted = rows.select(asked).append_column("row", numbers).filter(expression(where)).column("row")
    if not len(wanted):
        return None
    rows = rows if is_small else read(expected.names)
    # A selection is a copy, and most often all rows of a group are wanted.
    return rows if len(wanted) == rows.num_rows else rows.take(wanted)


def _tells_damage(error: Exception, *, at_hand: bool) -> bool:
    """Say whether a failed read is the data file's fault: Arrow's word for a damaged page is an OSError too.

    Args:
        error: why it failed.
        at_hand: whether no network was asked meanwhile, which may fail as well.
    """
    if isinstance(error, OSError):
        return at_hand and error.errno is None
    return not isinstance(error, MemoryError)


def _told_rows(table: Table, told: list[dict[str, Any]], where: Where, names: list[str]) -> pa.Table:
    rows = pa.Table.from_pylist(told, SCHEMAS[table])
    return (rows.filter(expression(where)) if told else rows).select(names)


def _with_stream(rows: pa.Table, stream: str, names: Sequence[str]) -> pa.Table:
    """Add the partition column, which data files do not have."""
    if "stream" in names:
        rows = rows.append_column("stream", pa.repeat(pa.scalar(stream), rows.num_rows))
    return rows.select(list(names))


def _check_required(table: Table, rows: pa.Table) -> None:
    for column in definition(table).columns:
        if column.required and rows.column(column.name).null_count:
            raise InvalidInputError(f"column {column.name} of {table} must not be NULL")


def now_ms() -> int:
    """Return the time as the log has it."""
    return time.time_ns() // 1_000_000
