"""The native engine: the port over the same Delta tables through delta-rs and pyarrow, without a JVM.

A commit is a Parquet file and one log entry, decided on a loaded version and written only if that is still the newest.
What the statistics in the log already tell is not read from data files.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Field, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import PrimitiveType

from catalog.errors import (
    CatalogError,
    CorruptError,
    InvalidInputError,
    NotACatalogError,
    OutOfReachError,
    ReadOnlyError,
)
from catalog.tables.commits import JUDGED_BY, Commits, first_line, judge
from catalog.tables.compaction import CompactionReport
from catalog.tables.forks import check_process
from catalog.tables.locks import LOCK_TIMEOUT_S, CommitLock
from catalog.tables.names import Place
from catalog.tables.native_files import SMALL_FILE, DataFiles
from catalog.tables.native_log import LoadedTable, Replacement
from catalog.tables.native_statistics import Snapshot, Where, conditions_of, expression
from catalog.tables.native_upkeep import Spread, Upkeep
from catalog.tables.opening import (
    Protocol,
    check_folder,
    check_format,
    created,
    creating,
    damaged,
    has_data,
    lost_bytes,
    lost_rows,
    mended,
    no_catalog,
    unreadable,
)
from catalog.tables.port import Condition, Engine, Equals, In, Merging, Outcome, Table, Unless, Version
from catalog.tables.schema import definition

log = logging.getLogger(__name__)

CONFLICT_ATTEMPTS = 30
KEEP_VERSIONS = 1_000
"""Log entries that maintenance leaves on a local disk; each one makes every commit a little slower."""
MAINTAIN_EVERY = 100
"""Commits of one process to one table after which it tidies the table."""
_DELTA_TYPES = {
    "STRING": "string",
    "INT": "integer",
    "BIGINT": "long",
    "DECIMAL(20,0)": "decimal(20,0)",
    "TIMESTAMP_LTZ": "timestamp",
    "BINARY": "binary",
}


class NativeEngine:
    """Reaches one catalog's tables through delta-rs; safe to use from several threads."""

    batch_chunks = 4
    """A read costs little, and the next batch is loaded while this one is hashed."""
    workers_write = True

    def __init__(
        self,
        place: Place,
        *,
        storage_options: Mapping[str, str] | None = None,
        durable: bool = True,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        maintain_every: int = MAINTAIN_EVERY,
        keep_versions: int = KEEP_VERSIONS,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Open an existing catalog.

        Args:
            place: a local folder, or an address that deltalake takes, such as s3://bucket/folder.
            storage_options: deltalake's options for that storage.
            durable: on a local disk, fsync every commit before it is acknowledged.
            lock_timeout_s: on a local disk, how long a commit waits for other processes' commits.
            maintain_every: after how many own commits to a table this engine tidies it by itself; 0 is never.
            keep_versions: how many versions tidying leaves in a table's log on a local disk, at least. Those can be
                read of which no data file was replaced or deleted half a week ago (`artifacts`, `events`: a day).
            clock: the time, with time zone; says when data files were removed, and which may be deleted.

        Raises:
            NotACatalogError: there is no catalog at that place.
            UnsupportedFormatError: a newer checkpoint-catalog wrote it, or its tables are not for both engines.
        """
        if maintain_every < 0 or keep_versions < 1:
            raise InvalidInputError("maintain_every must not be negative, and keep_versions must be at least 1")
        check_process(place, _home_pid())
        check_folder(place.local_folder)
        self.place = place
        self._commits = Commits(_is_conflict, _is_unknown, attempts=CONFLICT_ATTEMPTS, first_wait_s=0.01)
        self._ahead = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint-catalog")
        # On its own, and takes no lock: who holds one waits for it.
        self._syncing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint-catalog-fsync")

        def load(table: Table) -> LoadedTable:
            files = DataFiles(place, table, storage_options or {}, durable=durable, syncing=self._syncing)
            lock = None
            if files.folder:
                lock = CommitLock(files.folder, timeout_s=lock_timeout_s, durable=durable, data_too=False)
            return LoadedTable(files, lock, self._commits, self._ahead, clock)

        self._loaded: dict[Table, LoadedTable] = {}
        try:
            try:
                self._loaded.update((table, load(table)) for table in Table)
            except DeltaError:
                if not mended(place):
                    raise
                self._loaded.clear()
                self._loaded.update((table, load(table)) for table in Table)
        except (DeltaError, OSError) as error:
            failed = list(Table)[len(self._loaded)]
            raise _unopened(place, dict(storage_options or {}), failed, error) from error
        checkpoints = self._loaded[Table.CHECKPOINTS].delta
        check_format(place, checkpoints.metadata().configuration, _protocol(checkpoints))
        self._upkeep = {
            table: Upkeep(loaded, clock, maintain_every=maintain_every, keep_versions=keep_versions)
            for table, loaded in self._loaded.items()
        }

    @classmethod
    def create(
        cls, place: Place, *, storage_options: Mapping[str, str] | None = None, **options: Any
    ) -> "NativeEngine":
        """Create the tables that are missing, `checkpoints` last, and open the catalog."""
        check_process(place, _home_pid())
        with creating(place):
            try:
                return cls(place, storage_options=storage_options, **options)
            except NotACatalogError as error:
                if getattr(error, "found", False):
                    raise
            options_of_storage = dict(storage_options or {})
            if _lost_bytes(place, options_of_storage):
                raise lost_bytes(place)
            for table in Table:
                _create_table(f"{place.path}/{table}", table, options_of_storage)
            created(place.local_folder)
        return cls(place, storage_options=storage_options, **options)

    @property
    def conflicts(self) -> int:
        """How often a commit of this engine had to run again because of another writer."""
        return self._commits.conflicts

    @property
    def _tables(self) -> dict[Table, LoadedTable]:
        """The tables, in the process that they were loaded in: every verb looks them up here."""
        check_process(self.place, _home_pid())
        return self._loaded

    # -- the port --------------------------------------------------------------------------------------------------

    def append(self, table: Table, parts: Iterable[pa.Table]) -> None:
        """See Engine.append."""
        by_stream = groupby(parts, lambda part: _only(part.column("stream")))
        loaded = self._tables[table]
        loaded.append([loaded.files.write(stream, some) for stream, some in by_stream])
        self._upkeep[table].sometimes()

    def append_made(
        self, table: Table, tasks: Sequence[bytes], make: Callable[[bytes], Iterator[pa.RecordBatch]]
    ) -> None:
        """See Engine.append_made; the workers are this process."""
        self.append(table, (pa.Table.from_batches([batch]) for task in tasks for batch in make(task)))

    def insert_unless(self, rows: pa.Table, unless: Sequence[Unless] = ()) -> list[Outcome]:
        """See Engine.insert_unless; a compare-and-set on the version that the decision was read from."""
        loaded = self._tables[Table.CHECKPOINTS]
        wanted = rows.select(["stream", "checkpoint_key", "revision", "insert_id"]).to_pylist()
        (stream,) = {row["stream"] for row in wanted}
        of_keys = In("checkpoint_key", tuple(row["checkpoint_key"] for row in wanted))
        groups: list[Where] = [[of_keys], *map(conditions_of, unless)]
        in_the_way = [[Equals("stream", stream), *where] for where in groups]
        # Written before the lock is taken, for the usual case that all rows go in.
        staged = loaded.files.write(stream, [rows])

        def attempt() -> list[Outcome]:
            with loaded.committing() as snapshot:
                verdicts = judge(wanted, _rivals(loaded.files, snapshot, in_the_way), unless)
                goes_in = [verdict is None for verdict in verdicts]
                if all(goes_in):
                    loaded.commit([staged])
                elif any(goes_in):
                    loaded.commit([loaded.files.write(stream, [rows.filter(pa.array(goes_in))])])
                return [verdict or Outcome.INSERTED for verdict in verdicts]

        with loaded.discarding([staged]):
            outcomes = self._commits.run(attempt, f"the insert into checkpoints of stream {stream!r}")
        if any(outcome is not Outcome.INSERTED for outcome in outcomes):
            loaded.discard([staged])  # it was never committed: that takes all its rows
        self._upkeep[Table.CHECKPOINTS].sometimes()
        return outcomes

    def scan(
        self,
        table: Table,
        where: Iterable[Condition],
        columns: Sequence[str],
        *,
        version: int | None = None,
        of_keys_with: Condition | None = None,
    ) -> pa.Table:
        """See Engine.scan."""
        conditions = list(where)
        loaded = self._tables[table]

        def read() -> pa.Table:
            snapshot = loaded.refreshed() if version is None else loaded.snapshot_at(version)
            wanted, files = conditions, snapshot.select([conditions])
            if of_keys_with is not None and (pc.sum(files.column("size_bytes")).as_py() or 0) >= SMALL_FILE:
                narrow = [*conditions, of_keys_with]
                found = loaded.files.read(snapshot.select([narrow]), narrow, ["checkpoint_key"])
                wanted = [*conditions, In("checkpoint_key", tuple(found.column(0).unique().to_pylist()))]
                files = snapshot.select([wanted])
            return loaded.files.read(files, wanted, columns)

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
        return self._tables[Table.CHECKPOINTS].versions()

    def worker(self) -> Engine:
        """See Engine.worker."""
        return self

    def lookup(self) -> Engine:
        """See Engine.lookup."""
        return self

    def spread(self, tasks: Sequence[bytes], work: Callable[[Engine, bytes], bytes]) -> Iterator[bytes]:
        """See Engine.spread; the workers are threads of this process."""
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            yield from pool.map(partial(work, self), tasks)

    def delete(self, table: Table, where: Iterable[Condition]) -> int:
        """See Engine.delete; only files of which some rows stay are read whole, and written anew."""
        loaded = self._tables[table]
        conditions = list(where)
        columns = ["stream", *({condition.column for condition in conditions} - {"stream"})]
        meets = expression(conditions)
        stays = ~meets | meets.is_null()

        def plan(snapshot: Snapshot) -> Replacement:
            change = Replacement()
            files = snapshot.select([conditions])
            for number, file in enumerate(files.to_pylist()):
                only = files.slice(number, 1)
                rows = loaded.files.read(only, [], columns)
                staying = rows.filter(stays).num_rows
                if staying == rows.num_rows:
                    continue
                change.remove.append(file)
                change.rows += rows.num_rows - staying
                if staying:
                    rest = loaded.files.read(only, [], None).filter(stays)
                    change.add.append(loaded.files.write(file["partition.stream"], [rest]))
            return change

        return loaded.replace(plan, f"the delete from {table}").rows

    def settle(self, table: Table) -> None:
        """See Engine.settle."""
        loaded = self._tables[table]
        with loaded.committing():
            if loaded.lock:
                loaded.lock.settle()

    def compact(
        self,
        *,
        keep_removed: timedelta | None = None,
        dry_run: bool = False,
        progress: Callable[[Merging], None] | None = None,
        spread: Spread | None = None,
    ) -> CompactionReport:
        """See Engine.compact; safe beside writers of either engine, and to be run as often as one likes.

        Args:
            keep_removed: see Engine.compact.
            dry_run: see Engine.compact.
            progress: see Engine.compact.
            spread: runs the merging of artifacts elsewhere than in this process.
        """
        began = time.monotonic()
        done = []
        for table in self._tables:

            def told(bytes: int, of_bytes: int, table: Table = table) -> None:
                if progress:
                    progress(Merging(table, bytes, of_bytes))

            where = spread if spread and table is Table.ARTIFACTS else self.spread
            done.append(self._upkeep[table].compact(where, keep_removed=keep_removed, dry_run=dry_run, progress=told))
        return CompactionReport(tuple(done), dry_run, time.monotonic() - began)

    def data_files(self, table: Table) -> DataFiles:
        """Return the data files of a table, for those who write them anew."""
        return self._tables[table].files

    def close(self) -> None:
        """See Engine.close; it can be used on, then without work in the background."""
        self._ahead.shutdown()
        self._syncing.shutdown()


@cache
def _home_pid() -> int:
    """Return the process in which a catalog was first opened: deltalake's runtime works nowhere else, not even anew."""
    return os.getpid()


def _unopened(place: Place, options: dict[str, str], table: Table, error: Exception) -> CatalogError:
    """Return what it means that a table cannot be opened."""
    found = not isinstance(error, TableNotFoundError)
    if found and place.local_folder is None:  # for all that is known there may be one
        return CatalogError(
            f"the catalog at {place} cannot be reached or read ({first_line(error)}): check the address, the "
            "credentials and the network"
        )
    if refused := unreadable(place):
        return refused
    # The table `checkpoints` is made last: where something is in it, there was a catalog.
    if place.local_folder:
        folder = place.local_folder / Table.CHECKPOINTS
        was_there = any(folder.glob("_delta_log/[0-9]*")) or any(folder.rglob("*.parquet"))
        others_have_data = any(has_data(place.local_folder / other) for other in (Table.ARTIFACTS, Table.EVENTS))
    else:
        was_there = DeltaTable.is_deltatable(f"{place.path}/{Table.CHECKPOINTS}", options)
        others_have_data = any(_file_uris(place, other, options) for other in (Table.ARTIFACTS, Table.EVENTS))
    if was_there:
        return damaged(place, table, first_line(error), found=found or table is Table.CHECKPOINTS)
    return lost_rows(place) if others_have_data else no_catalog(place, first_line(error), found=found)


def _rivals(files: DataFiles, snapshot: Snapshot, in_the_way: Sequence[Where]) -> list[dict[str, Any]]:
    """Return the rows that may keep others out: of small files all, of large ones only those that are asked for.

    One that closes an id before it was saved has no format: a file with such a one cannot be ruled out as a whole.
    """
    small = pc.field("size_bytes") < SMALL_FILE
    found: list[dict[str, Any]] = files.read(snapshot.select(in_the_way).filter(small), [], JUDGED_BY).to_pylist()
    large = Snapshot(snapshot.version, snapshot.files.filter(~small))
    for where in in_the_way if large.files.num_rows else ():
        found += files.read(large.select([where]), where, JUDGED_BY).to_pylist()
    return found


def _lost_bytes(place: Place, options: dict[str, str]) -> bool:
    """Say whether there are checkpoints, and no table that could have their bytes."""
    if DeltaTable.is_deltatable(f"{place.path}/{Table.ARTIFACTS}", options):
        return False
    return bool(_file_uris(place, Table.CHECKPOINTS, options))


def _file_uris(place: Place, table: Table, options: dict[str, str]) -> list[str]:
    """Return the live data files of a table, none where it is not there."""
    uri = f"{place.path}/{table}"
    return DeltaTable(uri, storage_options=options).file_uris() if DeltaTable.is_deltatable(uri, options) else []


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
    except (DeltaError, OSError) as error:
        raise ReadOnlyError(f"cannot create a catalog at {uri}: {first_line(error)}") from error


def _protocol(delta: DeltaTable) -> Protocol:
    found = delta.protocol()
    features = frozenset({*(found.reader_features or ()), *(found.writer_features or ())})
    return Protocol(found.min_reader_version, found.min_writer_version, features)


def _only(column: pa.ChunkedArray) -> str:
    """Return the one stream of some rows."""
    (value,) = column.unique().to_pylist()
    return str(value)


def _is_conflict(error: BaseException) -> bool:
    return isinstance(error, CommitFailedError)


def _is_unknown(error: BaseException) -> bool:
    return isinstance(error, DeltaError | OSError) and not isinstance(error, CommitFailedError | CatalogError)
