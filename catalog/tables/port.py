"""The port: the few verbs through which all catalog logic reaches its tables, as Arrow.

Every fact is an added row and every guard says "no such row", because that is what both engines enforce reliably:
a commit sees rows *added* to its stream after its snapshot, but not always rows *removed*.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    from catalog.tables.compaction import CompactionReport
    from catalog.tables.names import Place


class Table(StrEnum):
    """The catalog's tables."""

    ARTIFACTS = "artifacts"
    EVENTS = "events"
    CHECKPOINTS = "checkpoints"


@dataclass(frozen=True, slots=True)
class Equals:
    """The column has this value."""

    column: str
    value: Any


@dataclass(frozen=True, slots=True)
class In:
    """The column has one of these values."""

    column: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Between:
    """The column is at least low and below high."""

    column: str
    low: Any
    high: Any


Condition = Equals | In | Between


@dataclass(frozen=True, slots=True)
class Unless:
    """A guard: refuses the insert if the stream has a row that matches every field given here."""

    key: str | None = None
    change: str | None = None
    revision_above: int | None = None
    format_other_than: str | None = None


class Outcome(Enum):
    """What became of one row of an insert."""

    INSERTED = "inserted"
    EXISTED = "existed"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a table, and when it was committed."""

    number: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Merging:
    """How far the merging of a table's small files has come."""

    table: Table
    bytes: int
    of_bytes: int


class Engine(Protocol):
    """How the tables are reached; safe to use from several threads."""

    place: "Place"
    """Where the tables are."""
    batch_chunks: int
    """How many chunks of an artifact are best read at a time."""
    workers_write: bool
    """Whether the work of `spread` may commit too."""

    def append(self, table: Table, parts: Iterable[pa.Table]) -> None:
        """Add rows blindly, in one durable commit; parts are taken one by one, for a writer that can keep up."""

    def append_made(
        self, table: Table, tasks: Sequence[bytes], make: Callable[[bytes], Iterator[pa.RecordBatch]]
    ) -> None:
        """Run make(task) where the workers are and add the rows it yields, in one durable commit."""

    def insert_unless(self, rows: pa.Table, unless: Sequence[Unless] = ()) -> list[Outcome]:
        """Insert revisions of one stream into `checkpoints` in one durable commit: the fence.

        A row goes in unless its key already has an equal or higher revision; none goes in if a guard matches.
        The decision and the commit are one transaction: a racing writer of the stream makes it run again.

        Args:
            rows: revisions of one stream; the column insert_id recognizes an own row after an unknown outcome.
            unless: guards, any of which refuses the whole insert.

        Returns:
            What became of each row, in order. A row that is there with its own insert_id counts as inserted.

        Raises:
            ConflictError: other writers were faster every time; nothing was written.
            LockTimeoutError: the table's lock was not free in time; nothing was written.
            UnknownOutcomeError: the commit may or may not have happened.
        """

    def scan(
        self,
        table: Table,
        where: Iterable[Condition],
        columns: Sequence[str],
        *,
        version: int | None = None,
        of_keys_with: Condition | None = None,
    ) -> pa.Table:
        """Return these columns of the rows that meet every condition, as of now or of an earlier version.

        Args:
            table: the table.
            where: the conditions.
            columns: the columns.
            version: of `checkpoints`, by default the newest.
            of_keys_with: rows of keys none of whose rows meets this are not needed: they may be left out where that
                saves reading them. All is of one version.

        Raises:
            CorruptError: a data file is damaged or gone, and the version still names it.
            OutOfReachError: the version cannot be read any more.
        """

    def versions(self) -> list[Version]:
        """Return the versions of `checkpoints` that the log still has, oldest first."""

    def spread(self, tasks: Sequence[bytes], work: Callable[["Engine", bytes], bytes]) -> Iterator[bytes]:
        """Run work(engine, task) where the workers are, and yield what it returns, in the order of the tasks."""

    def worker(self) -> "Engine":
        """Return the engine that `spread` gives to its work, for the few rows before and after it."""

    def lookup(self) -> "Engine":
        """Return the engine that finds a few rows with the least work; a job of workers takes longer than that."""

    def delete(self, table: Table, where: Iterable[Condition]) -> int:
        """Delete the rows that meet every condition, in one durable commit, and return how many."""

    def settle(self, table: Table) -> None:
        """Wait until every row of the table that a scan has returned so far is durable."""

    def compact(
        self,
        *,
        keep_removed: timedelta | None = None,
        dry_run: bool = False,
        progress: Callable[[Merging], None] | None = None,
    ) -> "CompactionReport":
        """Keep the tables small and quick: merge small files, shorten logs, delete what no readable version needs.

        Args:
            keep_removed: how long data files of `artifacts` and `events` stay that no longer count.
            dry_run: only say what would be done.
            progress: is told how far it has come, every now and then.

        Raises:
            CorruptError: merged rows differ from what they were made of; nothing was deleted.
        """

    def close(self) -> None:
        """Wait for work that goes on in the background, such as loading what was just committed."""
