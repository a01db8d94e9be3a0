"""The Spark engine: the port over Delta tables through SQL and DataFrames only, so it runs on Spark Connect too.

It never stops or reconfigures the session it was given.
"""

import logging
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException, PythonException
from pyspark.sql import DataFrame, SparkSession

from catalog.errors import (
    CatalogError,
    CorruptError,
    InvalidInputError,
    NotACatalogError,
    OutOfReachError,
    ReadOnlyError,
    SessionError,
)
from catalog.session import SETTINGS, has_delta
from catalog.tables.commits import JUDGED_BY, Again, Commits, first_line, judge
from catalog.tables.compaction import CompactionReport
from catalog.tables.forks import check_process
from catalog.tables.locks import LOCK_TIMEOUT_S, CommitLock
from catalog.tables.names import Place, TableName, path_place
from catalog.tables.opening import (
    Protocol,
    check_folder,
    check_format,
    created,
    creating,
    damaged,
    lost_bytes,
    lost_rows,
    no_catalog,
    unreadable,
)
from catalog.tables.port import Between, Condition, Engine, Equals, In, Merging, Outcome, Table, Unless, Version
from catalog.tables.schema import create_statement

if TYPE_CHECKING:
    from catalog.tables.native import NativeEngine

log = logging.getLogger(__name__)
T = TypeVar("T")

CONFLICT_ATTEMPTS = 12
_ONE_FILE_BYTES = 8 << 20
_SINGLE_WRITER_SCHEMES = ("s3:", "s3a:", "s3n:")
_CONFLICTS = ("DELTA_CONCURRENT_", "DELTA_METADATA_CHANGED", "DELTA_PROTOCOL_CHANGED")
_GONE = ("DELTA_VERSION_NOT_FOUND", "DELTA_UNSUPPORTED_TIME_TRAVEL", "DELTA_FILE_NOT_FOUND", "DELTA_CANNOT_TIME_TRAVEL")
_NOT_THERE = ("TABLE_OR_VIEW_NOT_FOUND", "PATH_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE", "DELTA_TABLE_ONLY_OPERATION")
_TASKS_AT_ONCE = 32
_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
_FEATURE = "delta.feature."
_SPARK_CATALOG = "spark.sql.catalog.spark_catalog"
_SNAPSHOT_PARTITIONS = "spark.databricks.delta.snapshotPartitions"


class SparkEngine:
    """Reaches one catalog's tables through a Spark session."""

    batch_chunks = 16
    """Every read is a job: the fewer the better."""

    def __init__(
        self,
        spark: SparkSession,
        place: Place,
        *,
        single_writer: bool = False,
        durable: bool = True,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        worker_options: Mapping[str, str] | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Open an existing catalog.

        Args:
            spark: a session with Delta; it is used as it is.
            place: the folder or schema.
            single_writer: the caller promises that no other process writes; needed to write on S3.
            durable: on a local disk, fsync every commit before it is acknowledged.
            lock_timeout_s: on a local disk, how long a commit waits for other processes' commits.
            worker_options: deltalake's storage options, for what executors do by themselves (validation, compaction).
            clock: the time, with time zone; says which removed data files may be deleted.

        Raises:
            NotACatalogError: there is no catalog at that place.
            UnsupportedFormatError: a newer checkpoint-catalog wrote it, or its tables are not for both engines.
        """
        self.place = place
        self._spark = spark
        self._home_pid = os.getpid()
        self._commits = Commits(_is_conflict, _is_unknown, attempts=CONFLICT_ATTEMPTS, first_wait_s=0.1)
        self._names = {table: _table_name(spark, place, table) for table in Table}
        location = _catalog_location(spark, place, self._names)
        self._root = location.rpartition("/")[0].replace("s3a://", "s3://").replace("s3n://", "s3://")
        self._worker_options = dict(worker_options or {})
        self._worker: NativeEngine | None = None
        self._clock = clock
        self._on_s3 = location.startswith(_SINGLE_WRITER_SCHEMES)
        # Not on S3: there the driver's commit could overwrite one that an executor has just made.
        self.workers_write = not self._on_s3
        self._read_only = self._on_s3 and not single_writer
        self.folder: Path | None = None
        """Where the tables are, a schema's as well, if that is a local disk."""
        self._locks: dict[Table, CommitLock] = {}
        if location.startswith(("file:", "/")):
            self.folder = folder = Path("/" + location.removeprefix("file:").lstrip("/")).parent
            check_folder(folder)
            self._locks = {
                table: CommitLock(folder / table, timeout_s=lock_timeout_s, durable=durable) for table in Table
            }

    @classmethod
    def create(cls, spark: SparkSession, place: Place, **options: Any) -> "SparkEngine":
        """Create the tables that are missing, `checkpoints` last, and open the catalog."""
        with creating(place):
            try:
                return cls(spark, place, **options)
            except NotACatalogError as error:
                if getattr(error, "found", False):
                    raise
            try:
                if place.schema:
                    spark.sql(f"CREATE SCHEMA IF NOT EXISTS {TableName(place.schema).sql}")
                for table in Table:
                    spark.sql(create_statement(table, _table_name(spark, place, table)))
            except AnalysisException as error:
                raise NotACatalogError(
                    f"no catalog can be created at {place}: {first_line(error)}", place=str(place), found=True
                ) from error
            engine = cls(spark, place, **options)
            created(engine.folder)
        return engine

    @property
    def spark(self) -> SparkSession:
        """The session, in the process that it belongs to: every verb looks it up here."""
        check_process(self.place, self._home_pid)
        return self._spark

    @property
    def conflicts(self) -> int:
        """How often a commit of this engine had to run again because of another writer."""
        return self._commits.conflicts

    def append(self, table: Table, parts: Iterable[pa.Table]) -> None:
        """See Engine.append."""
        rows = pa.concat_tables(parts).combine_chunks()  # Spark would make a task of every chunk
        frame = self.spark.createDataFrame(rows)
        # One file for few bytes; for many, every core writes its own.
        self._append(table, frame.coalesce(1) if rows.nbytes < _ONE_FILE_BYTES else frame)

    def append_made(
        self, table: Table, tasks: Sequence[bytes], make: Callable[[bytes], Iterator[pa.RecordBatch]]
    ) -> None:
        """See Engine.append_made."""

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for task in batch.column("task").to_pylist():
                    yield from make(task)

        frame = self.spark.createDataFrame(pa.table({"task": pa.array(tasks, pa.binary())}))
        schema = self.spark.table(self._names[table]).schema
        self._append(table, frame.repartition(len(tasks)).mapInArrow(run, schema))

    def insert_unless(self, rows: pa.Table, unless: Sequence[Unless] = ()) -> list[Outcome]:
        """See Engine.insert_unless; an insert-only MERGE that reads the stream's partition, so racers conflict."""
        wanted = rows.select(["stream", "checkpoint_key", "revision", "insert_id"]).to_pylist()
        (stream,) = {row["stream"] for row in wanted}
        keys = ", ".join(_literal(row["checkpoint_key"]) for row in wanted)
        guards = " OR ".join(f"({_guard(guard)})" for guard in unless) or "FALSE"
        # Literals only, so that Delta skips every file whose statistics rule the keys and the guards out.
        named = f"t.stream = {_literal(stream)} AND (t.checkpoint_key IN ({keys}) OR {guards})"
        same = "t.checkpoint_key = s.checkpoint_key AND t.revision >= s.revision"
        if len(wanted) == 1:
            same = f"t.checkpoint_key = {keys} AND t.revision >= {wanted[0]['revision']}"

        def attempt() -> list[Outcome]:
            if self._merge(rows, f"{named} AND (({same}) OR {guards})") == len(wanted):
                return [Outcome.INSERTED] * len(wanted)
            return self._outcomes(wanted, named, unless)

        return self._committed(attempt, f"the insert into checkpoints of stream {stream!r}")

    def scan(
        self,
        table: Table,
        where: Iterable[Condition],
        columns: Sequence[str],
        *,
        version: int | None = None,
        of_keys_with: Condition | None = None,  # noqa: ARG002 - a second job takes longer than the rows it saves
    ) -> pa.Table:
        """See Engine.scan."""
        wanted = ", ".join(f"`{column}`" for column in columns)
        conditions = " AND ".join(map(_condition, where)) or "TRUE"
        # One text: a frame that is made step by step is analyzed at every step.
        statement = f"SELECT {wanted} FROM {self.relation(table, version)} WHERE {conditions}"

        def read() -> pa.Table:
            return self.spark.sql(statement).toArrow()

        try:
            return read()
        except (PySparkException, Py4JError) as error:
            self._explain_unread(error, version)
        try:
            return read()  # a clean-up removed a file of the snapshot; the next snapshot does without it
        except (PySparkException, Py4JError) as error:
            self._explain_unread(error, version)
            raise CorruptError(f"a data file of {self.place}, {table}, cannot be read: {first_line(error)}") from error

    def _explain_unread(self, error: Exception, version: int | None) -> None:
        """Raise what a failed read means, unless it is a data file that is gone or damaged."""
        if version is not None and any(mark in str(error) for mark in (*_GONE, "FAILED_READ_FILE")):
            raise OutOfReachError(
                f"version {version} of {self.place} cannot be read any more: {first_line(error)}", version=version
            ) from error
        if "FAILED_READ_FILE" in str(error):
            return
        if isinstance(error, AnalysisException):
            raise no_catalog(self.place, first_line(error), found=False) from error
        raise error

    def relation(self, table: Table, version: int | None = None) -> str:
        """Return how a table, or an earlier version of it, is named in SQL."""
        return self._names[table] if version is None else f"{self._names[table]} VERSION AS OF {version:d}"

    def sql(self, statement: str) -> DataFrame:
        """Run a statement over the tables; what Spark says against it is an error of this package."""
        try:
            return self.spark.sql(statement)
        except AnalysisException as error:
            if any(mark in str(error) for mark in _NOT_THERE):
                raise no_catalog(self.place, first_line(error), found=False) from error
            raise CatalogError(f"Spark refused a statement over {self.place}: {first_line(error)}") from error

    def versions(self) -> list[Version]:
        """See Engine.versions."""
        history = self.sql(f"DESCRIBE HISTORY {self._names[Table.CHECKPOINTS]}").select("version", "timestamp")
        rows = history.toArrow().to_pylist()
        return sorted((Version(row["version"], row["timestamp"]) for row in rows), key=lambda one: one.number)

    def spread(self, tasks: Sequence[bytes], work: Callable[[Engine, bytes], bytes]) -> Iterator[bytes]:
        """See Engine.spread; executors reach the tables through the native engine, which must be installed there."""
        root, options = self._root, tuple(self._worker_options.items())

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number, task in zip(*(batch.column(name).to_pylist() for name in ("number", "task")), strict=True):
                    done = work(worker_engine(root, options), task)
                    yield pa.RecordBatch.from_pydict({"number": pa.array([number], pa.int32()), "task": [done]})

        for first in range(0, len(tasks), _TASKS_AT_ONCE):
            some = tasks[first : first + _TASKS_AT_ONCE]
            rows = pa.table({"number": pa.array(range(len(some)), pa.int32()), "task": pa.array(some, pa.binary())})
            # From Arrow: a list would be turned into rows by Python workers, in a stage of its own.
            frame = self.spark.createDataFrame(rows).repartition(len(some))
            try:
                results = frame.mapInArrow(run, "number INT, task BINARY").toArrow().to_pylist()
            except PythonException as error:
                raise _failed_at_work(error, f"work on {self.place}") from error
            yield from (row["task"] for row in sorted(results, key=lambda row: row["number"]))

    def worker(self) -> Engine:
        """See Engine.worker; executors have deltalake, this process perhaps not."""
        return self._native() or self

    def _native(self) -> "NativeEngine | None":
        if self._worker is None:
            try:
                self._worker = _native_engine(self._root, self._worker_options, clock=self._clock)
            except ModuleNotFoundError:
                return None
        return self._worker

    def lookup(self) -> Engine:
        """See Engine.lookup; a local disk is all that the native engine surely gets into by itself."""
        return self.worker() if self._locks else self

    def delete(self, table: Table, where: Iterable[Condition]) -> int:
        """See Engine.delete."""
        statement = f"DELETE FROM {self._names[table]} WHERE " + " AND ".join(map(_condition, where))

        def attempt() -> int:
            with self._commit(table):
                return int(self.spark.sql(statement).collect()[0]["num_affected_rows"])

        return self._committed(attempt, f"the delete from {table}")

    def settle(self, table: Table) -> None:
        """See Engine.settle."""
        with self._commit(table):
            if self._locks:
                self._locks[table].settle()

    def compact(
        self,
        *,
        keep_removed: timedelta | None = None,
        dry_run: bool = False,
        progress: Callable[[Merging], None] | None = None,
    ) -> CompactionReport:
        """See Engine.compact; executors merge through the native engine, whose commits are short.

        OPTIMIZE would hold a local table's lock for as long as it writes, and compare nothing before it commits.
        """
        if self._on_s3 and not self._read_only:
            raise ReadOnlyError(
                f"{self.place} is on S3 with Spark as its single writer, beside which nobody may commit: when it does "
                "not write, call CheckpointCatalog.native(path).compact()"
            )
        native = self._native()
        if native is None:
            raise SessionError("compaction needs deltalake: pip install 'checkpoint-catalog[native]'")
        return native.compact(keep_removed=keep_removed, dry_run=dry_run, progress=progress, spread=self._spread_many)

    def _spread_many(self, tasks: Sequence[bytes], work: Callable[[Engine, bytes], bytes]) -> Iterator[bytes]:
        """Run where the workers are what is more than one task: a job for a single one only takes longer."""
        return (self if len(tasks) > 1 else self.worker()).spread(tasks, work)

    def close(self) -> None:
        """See Engine.close; the session is the caller's."""
        if self._worker:
            self._worker.close()

    def _append(self, table: Table, frame: DataFrame) -> None:
        def attempt() -> None:
            with self._commit(table):
                frame.writeTo(self._names[table]).append()

        # Repeated after an unknown outcome it may leave rows twice; readers take one of each.
        self._committed(attempt, f"the append to {table}")

    def _merge(self, rows: pa.Table, condition: str) -> int:
        """Run the insert-only MERGE once and return how many rows went in."""
        view = f"checkpoint_catalog_{uuid.uuid4().hex}"
        self.spark.createDataFrame(rows).createOrReplaceTempView(view)
        target = self._names[Table.CHECKPOINTS]
        merge = f"MERGE INTO {target} t USING {view} s ON {condition} WHEN NOT MATCHED THEN INSERT *"
        try:
            with self._commit(Table.CHECKPOINTS):
                result = self.spark.sql(merge).collect()
        finally:
            self.spark.catalog.dropTempView(view)
        if not result:
            raise SessionError(
                "Delta skipped a MERGE: unset spark.databricks.delta.write.txnAppId and txnVersion in this session"
            )
        return int(result[0]["num_inserted_rows"])

    def _outcomes(self, wanted: list[dict[str, Any]], named: str, unless: Sequence[Unless]) -> list[Outcome]:
        """Tell what became of each row, from one read of the rows that the MERGE looked at."""
        frame = self.spark.table(self._names[Table.CHECKPOINTS]).alias("t").where(named)
        stored = frame.select(*JUDGED_BY).toArrow().to_pylist()
        outcomes = judge(wanted, stored, unless)
        if None in outcomes:
            raise Again("the row that stood in the way is gone")
        return [outcome for outcome in outcomes if outcome]

    def _commit(self, table: Table) -> AbstractContextManager[None]:
        if self._read_only:
            raise ReadOnlyError(
                f"{self.place} is on S3, where a Spark commit is not safe beside another writer: write through the "
                "native engine, or pass single_writer=True if no other process ever writes there"
            )
        return self._locks[table].held() if self._locks else nullcontext()

    def _committed(self, attempt: Callable[[], T], what: str) -> T:
        try:
            return self._commits.run(attempt, what)
        except AnalysisException as error:
            raise CatalogError(f"{what} was refused by Spark: {first_line(error)}") from error
        except PythonException as error:
            raise _failed_at_work(error, what) from error


@cache
def worker_engine(root: str, options: tuple[tuple[str, str], ...]) -> Engine:
    """Return the engine with which an executor's process reaches the tables."""
    return _native_engine(root, dict(options))


def _native_engine(root: str, options: Mapping[str, str], **further: Any) -> "NativeEngine":
    from catalog.tables.native import NativeEngine

    return NativeEngine(path_place(root), storage_options=options, maintain_every=0, **further)


def _is_conflict(error: BaseException) -> bool:
    return isinstance(error, PySparkException | Py4JError) and any(mark in str(error) for mark in _CONFLICTS)


def _is_unknown(error: BaseException) -> bool:
    # What fails in a Python worker fails before the commit.
    if isinstance(error, AnalysisException | PythonException | CatalogError) or _is_conflict(error):
        return False
    return isinstance(error, PySparkException | Py4JError | OSError)


def _failed_at_work(error: PythonException, what: str) -> CatalogError:
    """Return what went wrong in one of Spark's Python workers, which tell it as a trace."""
    _, _, trace = str(error).rpartition("Traceback (most recent call last):\n")
    raised = next((line for line in trace.splitlines() if line and not line.startswith(" ")), first_line(error))
    if missing := _MISSING_MODULE.match(raised):
        return SessionError(
            f"{what} needs {missing[1]} where Spark's Python workers run: "
            "pip install 'checkpoint-catalog[native]' there"
        )
    return CatalogError(f"{what} failed in a Python worker of Spark: {raised}")


def _table_name(spark: SparkSession, place: Place, table: Table) -> str:
    """Return how a table is named in SQL, whichever catalog of Spark's is the session's current one."""
    name = place.table(table)
    # Elsewhere, as on Databricks, Spark's first catalog may be shut, and paths are found without it.
    if (
        place.path
        and spark.conf.get("spark.sql.catalog.spark_catalog", "") == SETTINGS["spark.sql.catalog.spark_catalog"]
    ):
        name = TableName(("spark_catalog", *name.parts))
    return name.sql


def _catalog_location(spark: SparkSession, place: Place, names: Mapping[Table, str]) -> str:
    """Return where `checkpoints` is, after making sure that all is there and ours, and the session right for it."""
    name = names[Table.CHECKPOINTS]
    try:
        # Not DESCRIBE DETAIL, which takes no name of more than three parts.
        properties = {row["key"]: row["value"] for row in spark.sql(f"SHOW TBLPROPERTIES {name}").collect()}
    except AnalysisException as error:
        if place.path and spark.conf.get("spark.sql.runSQLOnFiles") == "false":
            raise SessionError(
                "set spark.sql.runSQLOnFiles to true: without it Spark takes no path for a table"
            ) from error
        if not has_delta(spark):
            raise SessionError(
                "this Spark session has no Delta: make it with catalog.session.build_session(), "
                "or set spark.sql.extensions and spark.sql.catalog.spark_catalog as delta-spark asks"
            ) from error
        if refused := unreadable(place):
            raise refused from error
        if any(_has_rows(spark, names[table]) for table in (Table.ARTIFACTS, Table.EVENTS)):
            raise lost_rows(place) from error
        raise no_catalog(place, first_line(error), found=False) from error
    check_format(place, properties, _protocol(properties))
    _check_settings(spark)
    for table in Table:
        try:
            _ = spark.table(names[table]).schema  # Spark Connect looks no earlier
        except AnalysisException as error:
            if not any(mark in str(error) for mark in _NOT_THERE):
                raise damaged(place, table, first_line(error), found=True) from error
            if table is Table.ARTIFACTS and _has_rows(spark, name):
                raise lost_bytes(place) from error
            raise damaged(place, table, first_line(error), found=False) from error
    described = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
    return next(str(row["data_type"]) for row in described if row["col_name"] == "Location")


def _has_rows(spark: SparkSession, table: str) -> bool:
    """Say whether there is such a table with anything in it."""
    try:
        return bool(spark.table(table).limit(1).count())
    except AnalysisException:
        return False
    except (PySparkException, Py4JError):
        return True  # that cannot be read


def _protocol(properties: Mapping[str, str]) -> Protocol:
    """Return what a table asks of its users; SHOW TBLPROPERTIES tells it beside what was set."""
    features = frozenset(name.removeprefix(_FEATURE) for name in properties if name.startswith(_FEATURE))
    reader, writer = (int(properties.get(f"delta.min{role}Version", 1)) for role in ("Reader", "Writer"))
    return Protocol(reader, writer, features)


def _check_settings(spark: SparkSession) -> None:
    if spark.conf.get("spark.databricks.delta.stalenessLimit", "0") not in ("0", "0ms", "0s"):
        raise SessionError("unset spark.databricks.delta.stalenessLimit: a commit must see what is there now")
    if spark.conf.get("spark.sql.parquet.outputTimestampType") == "TIMESTAMP_MILLIS":
        raise SessionError("set spark.sql.parquet.outputTimestampType to TIMESTAMP_MICROS: times must not be cut short")
    if (
        int(spark.conf.get(_SNAPSHOT_PARTITIONS, "50") or 50) > 8
        or spark.conf.get("spark.sql.session.timeZone") != "UTC"
    ):
        _warn_once(
            f"small commits are several times slower without {_SNAPSHOT_PARTITIONS}=2 and the time zone UTC; "
            "catalog.session.SETTINGS has all that helps"
        )


@cache
def _warn_once(message: str) -> None:
    log.warning(message)


def _literal(value: Any) -> str:
    """Render a value as SQL that folds to a constant; text as hex digits, so that it cannot break out."""
    if isinstance(value, str):
        return f"CAST(X'{value.encode().hex()}' AS STRING)"
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise InvalidInputError(f"a condition takes text and integers, not {value!r}")


def _condition(condition: Condition) -> str:
    match condition:
        case Equals(column=column, value=value):
            return f"{column} = {_literal(value)}"
        case In(values=()):
            return "FALSE"
        case In(column=column, values=values):
            return f"{column} IN ({', '.join(_literal(value) for value in values)})"
        case Between(column=column, low=low, high=high):
            return f"{column} >= {_literal(low)} AND {column} < {_literal(high)}"


def _guard(guard: Unless) -> str:
    parts = []
    if guard.key is not None:
        parts.append(f"t.checkpoint_key = {_literal(guard.key)}")
    if guard.change is not None:
        parts.append(f"t.change = {_literal(guard.change)}")
    if guard.revision_above is not None:
        parts.append(f"t.revision > {_literal(guard.revision_above)}")
    if guard.format_other_than is not None:
        # Marks of streams that were never saved have no format; two inequalities let statistics skip files.
        parts.append(f"t.format <> {_literal(guard.format_other_than)} AND t.format <> ''")
    return " AND ".join(parts)
