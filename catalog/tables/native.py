"""The native engine: the port over the same Delta tables through delta-rs and pyarrow, without a JVM.

A commit is a Parquet file and one log entry, decided on a loaded version and written only if that is still the newest.
What the statistics in the log already tell is not read from data files.
"""

import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial, reduce
from itertools import groupby
from operator import and_
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Field, PostCommitHookProperties, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction, RemoveAction

from catalog.errors import (
    CatalogError,
    ConflictError,
    CorruptError,
    InvalidInputError,
    NotACatalogError,
    OutOfReachError,
    ReadOnlyError,
)
from catalog.tables.commits import JUDGED_BY, Again, Commits, first_line, judge
from catalog.tables.locks import LOCK_TIMEOUT_S, CommitLock, fsync, log_checkpoint, log_entry, shorten_log
from catalog.tables.names import Place
from catalog.tables.opening import check_format, created, creating, no_catalog
from catalog.tables.port import Between, Condition, Engine, Equals, In, Outcome, Table, Unless, Version
from catalog.tables.schema import SCHEMAS, definition
from catalog.threads import start

log = logging.getLogger(__name__)

CONFLICT_ATTEMPTS = 30
KEEP_VERSIONS = 1_000
"""Log entries that maintenance leaves on a local disk; each one makes every commit a little slower."""
LOG_CHECKPOINT_EVERY = 10
"""Versions of a local table between log checkpoints; reading and committing slow down with the entries since."""
MAINTAIN_EVERY = 100
"""Commits of one process to one table after which it tidies the table."""
SMALL_FILE = 1 << 20
FEWEST_TO_MERGE = 8
MERGED_FILE = 64 << 20
_MANY = 20
"""Values of a condition that are compared with a file's statistics one by one."""
_DELETE_EVERY_S = 3600
_UNNAMED_KEPT_DAYS = 7
_ROW_GROUP_ROWS, _ROW_GROUP_BYTES = 256, 16 << 20
_DELTA_TYPES = {
    "STRING": "string",
    "INT": "integer",
    "BIGINT": "long",
    "DECIMAL(20,0)": "decimal(20,0)",
    "TIMESTAMP": "timestamp",
    "BINARY": "binary",
}
_SORTED_BY = {
    Table.CHECKPOINTS: [("checkpoint_key", "ascending"), ("revision", "ascending")],
    Table.ARTIFACTS: [
        ("checkpoint_key", "ascending"),
        ("attempt", "ascending"),
        ("path", "ascending"),
        ("chunk_no", "ascending"),
    ],
    Table.EVENTS: [("at", "ascending")],
}
_READING = {"coerce_int96_timestamp_unit": "us", "pre_buffer": False}
"""Without pre-buffering all reading happens in the caller's thread, none in Arrow's, which may outlive Python."""


@dataclass(frozen=True, slots=True)
class _Other:
    """The column has none of these values; a condition that only guards need."""

    column: str
    values: tuple[Any, ...]


_Where = Sequence[Condition | _Other]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The live data files of one version of a table, with their statistics."""

    version: int
    files: pa.Table

    def select(self, any_of: Iterable[_Where]) -> pa.Table:
        """Return the files that may have rows that meet all conditions of one of these groups."""
        none = pa.chunked_array([pa.repeat(pa.scalar(False), self.files.num_rows)])
        return self.files.filter(reduce(pc.or_, map(self._may_meet, any_of), none))

    def _may_meet(self, where: _Where) -> pa.ChunkedArray:
        every = pa.chunked_array([pa.repeat(pa.scalar(True), self.files.num_rows)])
        for condition in where:
            low, high = (self._bound(bound, condition.column) for bound in ("min", "max"))
            if low is not None:
                every = pc.and_(every, pc.fill_null(_overlap(low, high, condition), True))
        return every

    def _bound(self, bound: str, column: str) -> pa.ChunkedArray | None:
        name = "partition.stream" if column == "stream" else f"{bound}.{column}"
        return self.files.column(name) if name in self.files.column_names else None


def _overlap(low: pa.ChunkedArray, high: pa.ChunkedArray, condition: Condition | _Other) -> pa.ChunkedArray:
    """Say of each range whether a value in it may meet the condition."""
    match condition:
        case Equals(value=value):
            return pc.and_(pc.less_equal(low, value), pc.greater_equal(high, value))
        case In(values=values):
            if len(values) > _MANY:
                return pc.and_(pc.less_equal(low, max(values)), pc.greater_equal(high, min(values)))
            within = [pc.and_(pc.less_equal(low, one), pc.greater_equal(high, one)) for one in values]
            return reduce(pc.or_, within, pc.not_equal(low, low))
        case Between(low=first, high=end):
            return pc.and_(pc.less(low, end), pc.greater_equal(high, first))
        case _Other(values=values):
            return pc.invert(pc.and_(pc.equal(low, high), pc.is_in(low, value_set=pa.array(values, low.type))))


def _tells(file: Mapping[str, Any], columns: Iterable[str]) -> bool:
    """Say whether a file's statistics are exact for these columns: one value in all rows.

    A text that was cut short for the statistics has a maximum different from its minimum.
    """
    return file["num_records"] is not None and all(
        isinstance(file.get(f"min.{name}"), str | int)
        and file[f"min.{name}"] == file[f"max.{name}"]
        and file[f"null_count.{name}"] == 0
        for name in columns
    )


def _expression(where: _Where) -> pc.Expression:
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


def _guard(guard: Unless) -> list[Condition | _Other]:
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


class _LoadedTable:
    """One table as this process sees it."""

    def __init__(self, place: Place, table: Table, options: Mapping[str, str]) -> None:
        self.name = table
        self.uri = f"{place.path}/{table}"
        self.folder = place.local_folder / table if place.local_folder else None
        self.mutex = threading.RLock()
        self.commits = 0
        """Of this process, since it last tidied the table."""
        self.next_delete = 0.0
        self._options = dict(options)
        self._snapshot: Snapshot | None = None
        self._earlier: Snapshot | None = None
        """The earlier version that was last asked for."""
        self.reopen()

    @cached_property
    def schema(self) -> Schema:
        """The table's own schema, which every commit repeats."""
        return self.delta.schema()

    @cached_property
    def storage(self) -> pa_fs.FileSystem:
        """The file system, with the table's folder as its root."""
        if self.folder:
            return pa_fs.SubTreeFileSystem(str(self.folder), pa_fs.LocalFileSystem())
        return pa_fs.PyFileSystem(DeltaStorageHandler(self.uri, self._options))

    def open(self, path: str) -> pa.NativeFile:
        """Open a data file for reading."""
        if self.folder:
            return pa.memory_map(str(self.folder / path))
        file = self.storage.open_input_file(path)
        # One request for a small file, instead of one for each of its columns.
        return pa.BufferReader(file.read()) if file.size() < SMALL_FILE else file

    def refreshed(self) -> Snapshot:
        """Return the newest version."""
        with self.mutex:
            if not self._is_newest():
                self._update()
            if self._snapshot is None or self._snapshot.version != self.delta.version():
                self._snapshot = Snapshot(self.delta.version(), self._files(self.delta))
            return self._snapshot

    def snapshot_at(self, version: int) -> Snapshot:
        """Return an earlier version."""
        with self.mutex:
            if self._earlier is None or self._earlier.version != version:
                try:
                    delta = DeltaTable(self.uri, version=version, storage_options=self._options)
                except (DeltaError, OSError) as error:
                    raise OutOfReachError(
                        f"version {version} of {self.uri} cannot be read: {first_line(error)}", version=version
                    ) from error
                self._earlier = Snapshot(version, self._files(delta))
            return self._earlier

    def _files(self, delta: DeltaTable) -> pa.Table:
        files = pa.table(delta.get_add_actions(flatten=True))
        # As they are called on the storage; the log has them as parts of an address, and encodes what it is given.
        paths = pa.array([unquote(path) for path in files.column("path").to_pylist()], pa.string())
        return files.set_column(files.column_names.index("path"), "path", paths)

    def _is_newest(self) -> bool:
        """Look twice into a local log instead of listing it; entries are only ever removed from the oldest on."""
        if self.folder is None:
            return False
        newest, following = (log_entry(self.folder, self.delta.version() + ahead) for ahead in (0, 1))
        return not following.exists() and newest.exists()

    def _update(self) -> None:
        if self.delta.version() - self._opened_at < LOG_CHECKPOINT_EVERY:
            try:
                self.delta.update_incremental()
            except DeltaError as error:
                # Idle for so long that the entries it would go on from have been removed.
                log.info("opening %s anew: %s", self.uri, first_line(error))
            else:
                return
        self.reopen()

    def reopen(self) -> None:
        """Load the table from its newest log checkpoint: what has been added entry by entry since makes it slower."""
        self.delta = DeltaTable(self.uri, storage_options=self._options)
        self._opened_at = self.delta.version()

    def delete_files(self, removed_hours: int, *, unnamed_too: bool = False) -> None:
        """Delete data files that were removed at least so long ago, or that no log names and are as old.

        No version names them any more, so nobody has to wait, and the log says nothing about it.
        """
        current = DeltaTable(self.uri, storage_options=self._options)
        for path in current.vacuum(removed_hours, enforce_retention_duration=False, full=unnamed_too):
            with suppress(FileNotFoundError):  # deleted before, and still remembered
                self.storage.delete_file(path)


@dataclass(slots=True)
class _Replacement:
    """Data files that go and those that come in their place."""

    remove: list[dict[str, Any]] = field(default_factory=list)
    add: list[AddAction] = field(default_factory=list)
    rows: int = 0
    """Rows that are not in the new files."""


class NativeEngine:
    """Reaches one catalog's tables through delta-rs; safe to use from several threads."""

    batch_chunks = 4
    """A read costs little, and the next batch is loaded while this one is hashed."""

    def __init__(
        self,
        place: Place,
        *,
        storage_options: Mapping[str, str] | None = None,
        durable: bool = True,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        maintain_every: int = MAINTAIN_EVERY,
        keep_versions: int = KEEP_VERSIONS,
    ) -> None:
        """Open an existing catalog.

        Args:
            place: a local folder, or an address that deltalake takes, such as s3://bucket/folder.
            storage_options: deltalake's options for that storage.
            durable: on a local disk, fsync every commit before it is acknowledged.
            lock_timeout_s: on a local disk, how long a commit waits for other processes' commits.
            maintain_every: after how many own commits to a table this engine tidies it by itself; 0 is never.
            keep_versions: how many versions of a table tidying leaves readable on a local disk, at least.

        Raises:
            NotACatalogError: there is no catalog at that place.
            UnsupportedFormatError: a newer checkpoint-catalog wrote it.
        """
        if maintain_every < 0 or keep_versions < 1:
            raise InvalidInputError("maintain_every must not be negative, and keep_versions must be at least 1")
        self.place = place
        self._durable = durable
        self._maintain_every = maintain_every
        self._keep_versions = keep_versions
        self._commits = Commits(_is_conflict, _is_unknown, attempts=CONFLICT_ATTEMPTS, first_wait_s=0.01)
        try:
            self._tables = {table: _LoadedTable(place, table, storage_options or {}) for table in Table}
        except TableNotFoundError as error:
            raise no_catalog(place, first_line(error), found=False) from error
        except (DeltaError, OSError) as error:
            raise no_catalog(place, first_line(error), found=True) from error
        check_format(place, self._tables[Table.CHECKPOINTS].delta.metadata().configuration)
        self._ahead = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint-catalog")
        self._locks = {
            table: CommitLock(loaded.folder, timeout_s=lock_timeout_s, durable=durable, data_too=False)
            for table, loaded in self._tables.items()
            if loaded.folder
        }

    @classmethod
    def create(
        cls, place: Place, *, storage_options: Mapping[str, str] | None = None, **options: Any
    ) -> "NativeEngine":
        """Create the tables that are missing, `checkpoints` last, and open the catalog."""
        with creating(place):
            try:
                return cls(place, storage_options=storage_options, **options)
            except NotACatalogError as error:
                if getattr(error, "found", False):
                    raise
            for table in Table:
                _create_table(f"{place.path}/{table}", table, dict(storage_options or {}))
            created(place)
        return cls(place, storage_options=storage_options, **options)

    @property
    def conflicts(self) -> int:
        """How often a commit of this engine had to run again because of another writer."""
        return self._commits.conflicts

    # -- the port --------------------------------------------------------------------------------------------------

    def append(self, table: Table, parts: Iterable[pa.Table]) -> None:
        """See Engine.append."""
        by_stream = groupby(parts, lambda part: _only(part.column("stream")))
        self._append(table, [self._write(table, stream, some) for stream, some in by_stream])

    def append_made(
        self, table: Table, tasks: Sequence[bytes], make: Callable[[bytes], Iterator[pa.RecordBatch]]
    ) -> None:
        """See Engine.append_made; the workers are this process."""
        self.append(table, (pa.Table.from_batches([batch]) for task in tasks for batch in make(task)))

    def insert_unless(self, rows: pa.Table, unless: Sequence[Unless] = ()) -> list[Outcome]:
        """See Engine.insert_unless; a compare-and-set on the version that the decision was read from."""
        table = Table.CHECKPOINTS
        wanted = rows.select(["stream", "checkpoint_key", "revision", "insert_id"]).to_pylist()
        (stream,) = {row["stream"] for row in wanted}
        of_keys = In("checkpoint_key", tuple(row["checkpoint_key"] for row in wanted))
        groups: list[_Where] = [[of_keys], *(_guard(guard) for guard in unless)]
        in_the_way = [[Equals("stream", stream), *where] for where in groups]
        # Written before the lock is taken, for the usual case that all rows go in.
        staged = self._write(table, stream, [rows])

        def attempt() -> list[Outcome]:
            with self._committing(table) as snapshot:
                stored = self._read(table, snapshot.select(in_the_way), [], JUDGED_BY).to_pylist()
                verdicts = judge(wanted, stored, unless)
                goes_in = [verdict is None for verdict in verdicts]
                if all(goes_in):
                    self._commit(table, [staged])
                elif any(goes_in):
                    self._commit(table, [self._write(table, stream, [rows.filter(pa.array(goes_in))])])
                return [verdict or Outcome.INSERTED for verdict in verdicts]

        with self._discarding(table, [staged]):
            outcomes = self._commits.run(attempt, f"the insert into checkpoints of stream {stream!r}")
        if any(outcome is not Outcome.INSERTED for outcome in outcomes):
            self._discard(table, [staged])  # it was never committed: that takes all its rows
        self._tidy_sometimes(table)
        return outcomes

    def scan(
        self, table: Table, where: Iterable[Condition], columns: Sequence[str], *, version: int | None = None
    ) -> pa.Table:
        """See Engine.scan."""
        conditions = list(where)
        loaded = self._tables[table]

        def read() -> pa.Table:
            snapshot = loaded.refreshed() if version is None else loaded.snapshot_at(version)
            return self._read(table, snapshot.select([conditions]), conditions, columns)

        try:
            return read()
        except FileNotFoundError as error:
            if version is not None:
                problem = f"version {version} of {self.place} cannot be read any more: a data file of it is gone"
                raise OutOfReachError(problem, version=version) from error
            log.info("a clean-up removed a file of the snapshot; the next snapshot does without it")
        try:
            return read()
        except FileNotFoundError as error:
            raise CorruptError(f"a data file of {self.place}, {table}, is gone: {first_line(error)}") from error

    def versions(self) -> list[Version]:
        """See Engine.versions."""
        loaded = self._tables[Table.CHECKPOINTS]
        with loaded.mutex:
            loaded.refreshed()
            found = [Version(one["version"], _instant(one["timestamp"])) for one in loaded.delta.history()]
        return sorted(found, key=lambda one: one.number)

    def spread(self, tasks: Sequence[bytes], work: Callable[[Engine, bytes], bytes]) -> Iterator[bytes]:
        """See Engine.spread; the workers are threads of this process."""
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            yield from pool.map(partial(work, self), tasks)

    def delete(self, table: Table, where: Iterable[Condition]) -> int:
        """See Engine.delete; only files of which some rows stay are read whole, and written anew."""
        conditions = list(where)
        columns = ["stream", *({condition.column for condition in conditions} - {"stream"})]
        meets = _expression(conditions)
        stays = ~meets | meets.is_null()

        def plan(snapshot: Snapshot) -> _Replacement:
            change = _Replacement()
            files = snapshot.select([conditions])
            for number, file in enumerate(files.to_pylist()):
                only = files.slice(number, 1)
                rows = self._read(table, only, [], columns)
                staying = rows.filter(stays).num_rows
                if staying == rows.num_rows:
                    continue
                change.remove.append(file)
                change.rows += rows.num_rows - staying
                if staying:
                    rest = self._read(table, only, [], None).filter(stays)
                    change.add.append(self._write(table, file["partition.stream"], [rest]))
            return change

        return self._replace(table, plan, f"the delete from {table}", data_change=True).rows

    def settle(self, table: Table) -> None:
        """See Engine.settle."""
        with self._committing(table):
            if self._locks:
                self._locks[table].settle()

    def close(self) -> None:
        """See Engine.close; it can be used on, then without work in the background."""
        self._ahead.shutdown()

    # -- maintenance -----------------------------------------------------------------------------------------------

    def maintain(self) -> None:
        """See Engine.maintain; safe beside writers of either engine, and to be run as often as one likes."""
        for table in Table:
            self._tidy(table)
            self._delete_removed(table)
            # Also what no log names, such as files of killed writers; but never what a slow writer may still commit.
            days = max(definition(table).deleted_kept_days, _UNNAMED_KEPT_DAYS)
            self._tables[table].delete_files(days * 24, unnamed_too=True)

    def _tidy_sometimes(self, table: Table) -> None:
        """Tidy after so many commits of this engine; that never fails the commit that it comes after."""
        loaded = self._tables[table]
        loaded.commits += 1
        if not self._maintain_every or loaded.commits < self._maintain_every:
            return
        loaded.commits = 0
        try:
            self._tidy(table)
            if time.monotonic() > loaded.next_delete:
                loaded.next_delete = time.monotonic() + _DELETE_EVERY_S
                self._delete_removed(table)
        except Exception:
            log.exception("tidying %s failed; the next time may do better", loaded.uri)

    def _tidy(self, table: Table) -> None:
        loaded = self._tables[table]
        with self._committing(table) as snapshot:
            self._log_checkpoint(loaded)
            if loaded.folder:
                shorten_log(loaded.folder, snapshot.version - self._keep_versions)
            else:
                # An object store lists its log from the newest checkpoint on: only age matters.
                loaded.delta.cleanup_metadata()
        self._replace(table, lambda newest: self._merge_small(table, newest), f"merging files of {table}")

    def _delete_removed(self, table: Table) -> None:
        """Delete data files that were removed half the time ago that the log remembers them: later it is too late."""
        self._tables[table].delete_files(definition(table).deleted_kept_days * 12)

    def _merge_small(self, table: Table, snapshot: Snapshot) -> _Replacement:
        """Merge small files of each stream; where one cannot be read, that stream is left as it is."""
        change = _Replacement()
        small = snapshot.files.filter(pc.field("size_bytes") < SMALL_FILE)
        for stream in small.column("partition.stream").unique().to_pylist():
            files = small.filter(pc.field("partition.stream") == stream)
            if files.num_rows < FEWEST_TO_MERGE:
                continue
            try:
                merged = [self._merged(table, stream, some) for some in _slices(files)]
            except (CorruptError, OSError):
                log.exception("the small files of stream %r in %s cannot be merged", stream, table)
                continue
            change.remove += files.to_pylist()
            change.add += merged
        return change

    def _merged(self, table: Table, stream: str, files: pa.Table) -> AddAction:
        return self._write(table, stream, [self._read(table, files, [], None).sort_by(_SORTED_BY[table])])

    # -- reading ---------------------------------------------------------------------------------------------------

    def _read(self, table: Table, files: pa.Table, where: _Where, columns: Sequence[str] | None) -> pa.Table:
        """Return rows of these files, from the statistics where they are exact, else from the files themselves."""
        names = list(columns or SCHEMAS[table].names)
        asked = {*names, *(condition.column for condition in where)} - {"stream"}
        told: list[dict[str, Any]] = []
        unread: list[tuple[str, str]] = []
        for file in files.to_pylist():
            stream = file["partition.stream"]
            if _tells(file, asked):
                told += [{"stream": stream, **{name: file[f"min.{name}"] for name in asked}}] * file["num_records"]
            else:
                unread.append((stream, file["path"]))
        parts = [_told_rows(table, told, where, names)] if told or not unread else []
        for stream, path in unread:
            parts.append(_with_stream(self._read_file(table, path, where, names), stream, names))
        return pa.concat_tables(parts)

    def _read_file(self, table: Table, path: str, where: _Where, names: Sequence[str]) -> pa.Table:
        """Return rows of one data file, from the row groups that may have some."""
        schema = SCHEMAS[table]
        where = [condition for condition in where if condition.column != "stream"]
        columns = [name for name in schema.names if name in {*names, *(one.column for one in where)} - {"stream"}]
        expected = pa.schema([schema.field(name) for name in columns])
        try:
            with self._tables[table].open(path) as source, pq.ParquetFile(source, **_READING) as file:
                groups = [one for one in range(file.num_row_groups) if _may_have(file.metadata.row_group(one), where)]
                is_small = source.size() < SMALL_FILE
                parts = [_read_group(file, group, expected, where, is_small=is_small) for group in groups]
        except pa.ArrowInvalid as error:
            raise CorruptError(f"{path} of {self.place}, {table}, is damaged: {first_line(error)}") from error
        return pa.concat_tables([expected.empty_table(), *(part for part in parts if part is not None)])

    # -- writing ---------------------------------------------------------------------------------------------------

    def _write(self, table: Table, stream: str, tables: Iterable[pa.Table]) -> AddAction:
        """Write rows of a stream into a new data file, durable, and return what the log has to say about it."""
        loaded = self._tables[table]
        path = f"part-{uuid.uuid4()}.parquet"
        kept = definition(table).statistics
        facts: list[pa.Table] = []
        writer: pq.ParquetWriter | None = None
        syncing: list[Future[None]] = []
        try:
            for rows in tables:
                _check_required(table, rows)
                writer = writer or _writer(path, loaded.storage, rows, kept)
                facts.append(rows.select(kept))
                per_group = max(1, _ROW_GROUP_BYTES * rows.num_rows // max(rows.nbytes, 1))
                writer.write_table(rows.drop_columns(["stream"]), min(per_group, _ROW_GROUP_ROWS))
                if loaded.folder and self._durable and rows.nbytes >= SMALL_FILE:
                    # The disk works while the next part is made.
                    syncing.append(start(self._ahead, fsync, loaded.folder / path))
            if writer:
                writer.close()
            for one in syncing:
                one.result()  # a fault of the disk is told only once
        except BaseException as error:
            if loaded.storage.get_file_info(path).type is pa_fs.FileType.File:
                loaded.storage.delete_file(path)
            if isinstance(error, PermissionError):
                raise ReadOnlyError(f"cannot write in {loaded.uri}: {error.strerror or error}") from error
            raise
        if loaded.folder and self._durable:
            fsync(loaded.folder / path)
            fsync(loaded.folder)
        size = loaded.storage.get_file_info(path).size
        return AddAction(path, size, {"stream": stream}, _now_ms(), True, _statistics(pa.concat_tables(facts)))

    def _append(self, table: Table, added: list[AddAction]) -> None:
        def attempt() -> None:
            with self._committing(table):
                self._commit(table, added, retries=None)

        # Repeated after an unknown outcome it may leave rows twice; readers take one of each.
        with self._discarding(table, added):
            self._commits.run(attempt, f"the append to {table}")
        self._tidy_sometimes(table)

    def _replace(
        self, table: Table, plan: Callable[[Snapshot], _Replacement], what: str, *, data_change: bool = False
    ) -> _Replacement:
        """Put new data files in the place of old ones, which must still be there; only the commit holds the lock."""

        def attempt() -> _Replacement:
            change = plan(self._tables[table].refreshed())
            if not change.remove:
                return change
            removed = [
                RemoveAction(
                    file["path"], data_change, _now_ms(), file["size_bytes"], {"stream": file["partition.stream"]}
                )
                for file in change.remove
            ]
            for added in change.add:
                added.data_change = data_change
            with self._discarding(table, change.add), self._committing(table) as snapshot:
                there = set(snapshot.files.column("path").to_pylist())
                if any(file["path"] not in there for file in change.remove):
                    raise Again("a data file was replaced meanwhile")
                self._commit(table, [*removed, *change.add])
            return change

        return self._commits.run(attempt, what)

    @contextmanager
    def _discarding(self, table: Table, added: Sequence[AddAction]) -> Iterator[None]:
        """Delete new data files if it is certain that they were not committed."""
        try:
            yield
        except (ConflictError, Again, CommitFailedError):
            self._discard(table, added)
            raise

    def _discard(self, table: Table, added: Sequence[AddAction]) -> None:
        for file in added:
            self._tables[table].storage.delete_file(file.path)

    @contextmanager
    def _committing(self, table: Table) -> Iterator[Snapshot]:
        """Give the newest version, to be decided and committed on."""
        loaded = self._tables[table]
        # In this order, so that readers do not wait while this process waits for others.
        with self._locks[table].held() if self._locks else nullcontext(), loaded.mutex:
            yield loaded.refreshed()

    def _commit(self, table: Table, actions: Sequence[AddAction | RemoveAction], *, retries: int | None = 0) -> None:
        """Write the log entry that follows the loaded version; by default only if no other has."""
        loaded = self._tables[table]
        loaded.delta.create_write_transaction(
            list(actions),
            mode="append",
            schema=loaded.schema,
            partition_by=["stream"],
            commit_properties=CommitProperties(max_commit_retries=retries),
            post_commithook_properties=PostCommitHookProperties(
                create_checkpoint=loaded.folder is None, cleanup_expired_logs=False
            ),
        )
        with suppress(RuntimeError):  # there are no threads any more while the interpreter shuts down
            self._ahead.submit(self._catch_up, table, loaded.delta.version() + 1)

    def _catch_up(self, table: Table, version: int) -> None:
        """Load the version just made while the caller goes on, after a log checkpoint if it is time for one."""
        loaded = self._tables[table]
        try:
            if loaded.folder is None or version % LOG_CHECKPOINT_EVERY:
                loaded.refreshed()
            else:
                with self._committing(table):
                    self._log_checkpoint(loaded)
        except (CatalogError, DeltaError, OSError) as error:
            log.warning("%s could not be loaded ahead, the next call does it: %s", loaded.uri, first_line(error))

    def _log_checkpoint(self, loaded: _LoadedTable) -> None:
        loaded.delta.create_checkpoint()
        if loaded.folder and self._durable:
            fsync(log_checkpoint(loaded.folder, loaded.delta.version()))
        loaded.reopen()


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
    file: pq.ParquetFile, group: int, expected: pa.Schema, where: _Where, *, is_small: bool
) -> pa.Table | None:
    """Return the rows of a row group that meet every condition, if any; bytes are read only then."""

    def read(names: Sequence[str]) -> pa.Table:
        # Handing a few rows' columns to threads takes longer than reading them.
        rows = file.read_row_group(group, columns=list(names), use_threads=not is_small)
        # Other writers' files may have kinds of text and time that filters do not know.
        return rows.select(names).cast(pa.schema([expected.field(name) for name in names]))

    asked = sorted({condition.column for condition in where})
    at_once = is_small or not where
    rows = read(expected.names if at_once else asked)
    numbers = pa.array(range(rows.num_rows))
    wanted = rows.select(asked).append_column("row", numbers).filter(_expression(where)).column("row")
    if not len(wanted):
        return None
    rows = rows if at_once else read(expected.names)
    # A selection is a copy, and most often all rows of a group are wanted.
    return rows if len(wanted) == rows.num_rows else rows.take(wanted)


def _slices(files: pa.Table) -> Iterator[pa.Table]:
    """Cut a list of files into pieces that make up one merged file each."""
    first = size = 0
    for at, one in enumerate(files.column("size_bytes").to_pylist()):
        if size + one > MERGED_FILE:
            yield files.slice(first, at - first)
            first, size = at, 0
        size += one
    yield files.slice(first)


def _told_rows(table: Table, told: list[dict[str, Any]], where: _Where, names: list[str]) -> pa.Table:
    rows = pa.Table.from_pylist(told, SCHEMAS[table])
    return (rows.filter(_expression(where)) if told else rows).select(names)


def _with_stream(rows: pa.Table, stream: str, names: list[str]) -> pa.Table:
    """Add the partition column, which data files do not have."""
    if "stream" in names:
        rows = rows.append_column("stream", pa.repeat(pa.scalar(stream), rows.num_rows))
    return rows.select(names)


def _may_have(group: pq.RowGroupMetaData, where: _Where) -> bool:
    """Say whether a row group may have rows that meet every condition, as far as its statistics tell."""
    bounds = {}
    for number in range(group.num_columns):
        column = group.column(number)
        if column.is_stats_set and column.statistics.has_min_max:
            bounds[column.path_in_schema] = (column.statistics.min, column.statistics.max)
    return all(
        _overlap(pa.chunked_array([[low]]), pa.chunked_array([[high]]), condition)[0].as_py()
        for condition in where
        if condition.column in bounds
        for low, high in [bounds[condition.column]]
    )


def _create_table(uri: str, table: Table, options: dict[str, str]) -> None:
    """Create a table as sql/tables defines it, unless it is there."""
    defined = definition(table)
    fields = [
        Field(column.name, PrimitiveType(_DELTA_TYPES[column.sql_type]), nullable=not column.required,
              metadata={"comment": column.comment})
        for column in defined.columns
    ]  # fmt: skip
    try:
        DeltaTable.create(
            uri,
            Schema(fields),
            mode="ignore",
            partition_by=["stream"],
            description=defined.comment,
            configuration=defined.properties,
            storage_options=options,
            commit_properties=CommitProperties(max_commit_retries=0),
            raise_if_key_not_exists=False,
        )
    except CommitFailedError as error:
        log.info("somebody else has just created %s: %s", uri, first_line(error))


def _check_required(table: Table, rows: pa.Table) -> None:
    for column in definition(table).columns:
        if column.required and rows.column(column.name).null_count:
            raise InvalidInputError(f"column {column.name} of {table} must not be NULL")


def _only(column: pa.ChunkedArray) -> str:
    """Return the one stream of some rows."""
    (value,) = column.unique().to_pylist()
    return str(value)


def _statistics(rows: pa.Table) -> str:
    """Return the statistics of the key columns as the log wants them."""
    lowest, highest = {}, {}
    for name in rows.column_names:
        bounds = pc.min_max(rows.column(name)).as_py()
        if bounds["min"] is not None and not pa.types.is_timestamp(rows.schema.field(name).type):
            lowest[name], highest[name] = bounds["min"], bounds["max"]
    nulls = {name: rows.column(name).null_count for name in rows.column_names}
    return json.dumps({"numRecords": rows.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls})


def _instant(timestamp_ms: int) -> datetime:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _is_conflict(error: BaseException) -> bool:
    return isinstance(error, CommitFailedError)


def _is_unknown(error: BaseException) -> bool:
    return isinstance(error, DeltaError | OSError) and not isinstance(error, CommitFailedError | CatalogError)
