"""The log of one table: the versions that this process has loaded, commits on the newest, and keeping it short."""

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from catalog.errors import CatalogError, ConflictError, CorruptError, OutOfReachError
from catalog.tables.commits import Again, Commits, first_line
from catalog.tables.locks import CommitLock, fsync, log_checkpoint, log_entry, shorten_log
from catalog.tables.native_files import SMALL_FILE, DataFiles, now_ms
from catalog.tables.native_statistics import Snapshot
from catalog.tables.port import Table, Version
from catalog.tables.schema import definition

log = logging.getLogger(__name__)

LOG_CHECKPOINT_EVERY = 10
"""Versions of a local table between log checkpoints; reading and committing slow down with the entries since."""
FEWEST_TO_MERGE = 8
MERGED_FILE = 64 << 20
_DELETE_EVERY_S = 3600
_UNNAMED_KEPT_DAYS = 7
_READ_AT_ONCE = 16
_LOG_ENTRY = re.compile(r"\d{20}\.json")
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


@dataclass(slots=True)
class Replacement:
    """Data files that go and those that come in their place."""

    remove: list[dict[str, Any]] = field(default_factory=list)
    add: list[AddAction] = field(default_factory=list)
    rows: int = 0
    """Rows that are not in the new files."""


class LoadedTable:
    """One table as this process sees it, and its commits."""

    def __init__(
        self,
        files: DataFiles,
        lock: CommitLock | None,
        commits: Commits,
        ahead: ThreadPoolExecutor,
        *,
        maintain_every: int,
        keep_versions: int,
    ) -> None:
        """Load the newest version.

        Args:
            files: the table's data files.
            lock: is held by every commit, on a local disk.
            commits: runs them, again where it must.
            ahead: does what need not be waited for.
            maintain_every: after how many own commits the table is tidied; 0 is never.
            keep_versions: how many versions tidying leaves readable on a local disk, at least.
        """
        self.files = files
        self.lock = lock
        self.mutex = threading.RLock()
        self._commits = commits
        self._ahead = ahead
        self._maintain_every = maintain_every
        self._keep_versions = keep_versions
        self._own_commits = 0
        """Since this process last tidied the table."""
        self._next_delete = 0.0
        self._snapshot: Snapshot | None = None
        self._earlier: Snapshot | None = None
        """The earlier version that was last asked for."""
        self._times: dict[int, datetime] = {}
        """When the versions in the log were made, as far as anybody asked."""
        self._reopen()

    # -- versions --------------------------------------------------------------------------------------------------

    @cached_property
    def schema(self) -> Schema:
        """The table's own schema, which every commit repeats."""
        return self.delta.schema()

    def refreshed(self) -> Snapshot:
        """Return the newest version."""
        with self.mutex:
            if not self._is_newest():
                self._update()
            if self._snapshot is None or self._snapshot.version != self.delta.version():
                self._snapshot = Snapshot(self.delta.version(), _live_files(self.delta))
            return self._snapshot

    def snapshot_at(self, version: int) -> Snapshot:
        """Return an earlier version."""
        with self.mutex:
            if self._earlier is None or self._earlier.version != version:
                try:
                    delta = DeltaTable(self.files.uri, version=version, storage_options=self.files.options)
                except (DeltaError, OSError) as error:
                    raise OutOfReachError(
                        f"version {version} of {self.files.uri} cannot be read: {first_line(error)}", version=version
                    ) from error
                self._earlier = Snapshot(version, _live_files(delta))
            return self._earlier

    def versions(self) -> list[Version]:
        """Return the versions that the log has, oldest first.

        The entries are read here: delta-rs numbers its history downwards from the version that it has loaded, though
        the history begins with the newest, so that beside a writer every version would have another's time.
        """
        names = (info.base_name for info in self.files.storage.get_file_info(pa_fs.FileSelector("_delta_log")))
        listed = [int(name[:20]) for name in names if _LOG_ENTRY.fullmatch(name)]
        # A list made while entries come may lack one before its last.
        there, known = range(min(listed), max(listed) + 1), self._times
        unread = [number for number in there if number not in known]
        with ThreadPoolExecutor(max_workers=_READ_AT_ONCE) as pool:
            told = dict(zip(unread, pool.map(self._time_of, unread), strict=True))
        found = {number: known.get(number) or told[number] for number in there}
        # An entry never changes; those that went are forgotten.
        times = self._times = {number: at for number, at in found.items() if at is not None}
        return [Version(number, at) for number, at in times.items()]

    def _time_of(self, version: int) -> datetime | None:
        """Return when a version was made, None if its entry has just been removed."""
        path = f"_delta_log/{version:020d}.json"
        try:
            with self.files.storage.open_input_file(path) as file:
                lines = file.read().splitlines()
            told = (json.loads(line)["commitInfo"] for line in lines if line.startswith(b'{"commitInfo"'))
            made_ms = next((one["timestamp"] for one in told if "timestamp" in one), None)
            if made_ms is not None:
                return datetime.fromtimestamp(made_ms / 1000, UTC)
            made: datetime | None = self.files.storage.get_file_info(path).mtime
        except FileNotFoundError:
            return None
        return made

    def _is_newest(self) -> bool:
        """Look twice into a local log instead of listing it; entries are only ever removed from the oldest on."""
        if self.files.folder is None:
            return False
        newest, following = (log_entry(self.files.folder, self.delta.version() + ahead) for ahead in (0, 1))
        return not following.exists() and newest.exists()

    def _update(self) -> None:
        if self.delta.version() - self._opened_at < LOG_CHECKPOINT_EVERY:
            try:
                self.delta.update_incremental()
            except DeltaError as error:
                # Idle for so long that the entries it would go on from have been removed.
                log.info("opening %s anew: %s", self.files.uri, first_line(error))
            else:
                return
        self._reopen()

    def _reopen(self) -> None:
        """Load the table from its newest log checkpoint: what has been added entry by entry since makes it slower."""
        self.delta = DeltaTable(self.files.uri, storage_options=self.files.options)
        self._opened_at = self.delta.version()

    # -- commits ---------------------------------------------------------------------------------------------------

    def append(self, added: list[AddAction]) -> None:
        """Add data files, whatever else is there."""

        def attempt() -> None:
            with self.committing():
                self.commit(added, retries=None)

        # Repeated after an unknown outcome it may leave rows twice; readers take one of each.
        with self.discarding(added):
            self._commits.run(attempt, f"the append to {self.files.table}")
        self.tidy_sometimes()

    def replace(self, plan: Callable[[Snapshot], Replacement], what: str, *, data_change: bool = False) -> Replacement:
        """Put new data files in the place of old ones, which must still be there; only the commit holds the lock."""

        def attempt() -> Replacement:
            change = plan(self.refreshed())
            if not change.remove:
                return change
            removed = [
                RemoveAction(
                    file["path"], data_change, now_ms(), file["size_bytes"], {"stream": file["partition.stream"]}
                )
                for file in change.remove
            ]
            for added in change.add:
                added.data_change = data_change
            with self.discarding(change.add), self.committing() as snapshot:
                there = set(snapshot.files.column("path").to_pylist())
                if any(file["path"] not in there for file in change.remove):
                    raise Again("a data file was replaced meanwhile")
                self.commit([*removed, *change.add])
            return change

        return self._commits.run(attempt, what)

    @contextmanager
    def discarding(self, added: Sequence[AddAction]) -> Iterator[None]:
        """Delete new data files if it is certain that they were not committed."""
        try:
            yield
        except (ConflictError, Again, CommitFailedError):
            self.discard(added)
            raise

    def discard(self, added: Sequence[AddAction]) -> None:
        """Delete new data files that were not committed."""
        for file in added:
            self.files.storage.delete_file(file.path)

    @contextmanager
    def committing(self) -> Iterator[Snapshot]:
        """Give the newest version, to be decided and committed on."""
        # In this order, so that readers do not wait while this process waits for others.
        with self.lock.held() if self.lock else nullcontext(), self.mutex:
            yield self.refreshed()

    def commit(self, actions: Sequence[AddAction | RemoveAction], *, retries: int | None = 0) -> None:
        """Write the log entry that follows the loaded version; by default only if no other has."""
        self.delta.create_write_transaction(
            list(actions),
            mode="append",
            schema=self.schema,
            partition_by=["stream"],
            commit_properties=CommitProperties(max_commit_retries=retries),
            post_commithook_properties=PostCommitHookProperties(
                create_checkpoint=self.files.folder is None, cleanup_expired_logs=False
            ),
        )
        with suppress(RuntimeError):  # there are no threads any more while the interpreter shuts down
            self._ahead.submit(self._catch_up, self.delta.version() + 1)

    def _catch_up(self, version: int) -> None:
        """Load the version just made while the caller goes on, after a log checkpoint if it is time for one."""
        try:
            if self.files.folder is None or version % LOG_CHECKPOINT_EVERY:
                self.refreshed()
            else:
                with self.committing():
                    self._log_checkpoint()
        except (CatalogError, DeltaError, OSError) as error:
            log.warning("%s could not be loaded ahead, the next call does it: %s", self.files.uri, first_line(error))

    def _log_checkpoint(self) -> None:
        self.delta.create_checkpoint()
        if self.files.folder and self.files.durable:
            fsync(log_checkpoint(self.files.folder, self.delta.version()))
        self._reopen()

    # -- maintenance -----------------------------------------------------------------------------------------------

    def maintain(self) -> None:
        """Tidy the table, and delete the data files that no readable version needs."""
        self.tidy()
        self._delete_removed()
        # Also what no log names, such as files of killed writers; but never what a slow writer may still commit.
        days = max(definition(self.files.table).deleted_kept_days, _UNNAMED_KEPT_DAYS)
        self._delete_files(days * 24, unnamed_too=True)

    def tidy_sometimes(self) -> None:
        """Tidy after so many commits of this process; that never fails the commit that it comes after."""
        self._own_commits += 1
        if not self._maintain_every or self._own_commits < self._maintain_every:
            return
        self._own_commits = 0
        try:
            self.tidy()
            if time.monotonic() > self._next_delete:
                self._next_delete = time.monotonic() + _DELETE_EVERY_S
                self._delete_removed()
        except Exception:
            log.exception("tidying %s failed; the next time may do better", self.files.uri)

    def tidy(self) -> None:
        """Make a log checkpoint, shorten the log, and merge small files."""
        with self.committing() as snapshot:
            self._log_checkpoint()
            if self.files.folder:
                shorten_log(self.files.folder, snapshot.version - self._keep_versions)
            else:
                # An object store lists its log from the newest checkpoint on: only age matters.
                self.delta.cleanup_metadata()
        self.replace(self._merge_small, f"merging files of {self.files.table}")

    def _merge_small(self, snapshot: Snapshot) -> Replacement:
        """Merge small files of each stream; where one cannot be read, that stream is left as it is."""
        change = Replacement()
        small = snapshot.files.filter(pc.field("size_bytes") < SMALL_FILE)
        for stream in small.column("partition.stream").unique().to_pylist():
            files = small.filter(pc.field("partition.stream") == stream)
            if files.num_rows < FEWEST_TO_MERGE:
                continue
            try:
                merged = [self._merged(stream, some) for some in _slices(files)]
            except (CorruptError, OSError):
                log.exception("the small files of stream %r in %s cannot be merged", stream, self.files.table)
                continue
            change.remove += files.to_pylist()
            change.add += merged
        return change

    def _merged(self, stream: str, files: pa.Table) -> AddAction:
        return self.files.write(stream, [self.files.read(files, [], None).sort_by(_SORTED_BY[self.files.table])])

    def _delete_removed(self) -> None:
        """Delete data files that were removed half the time ago that the log remembers them: later it is too late."""
        self._delete_files(definition(self.files.table).deleted_kept_days * 12)

    def _delete_files(self, removed_hours: int, *, unnamed_too: bool = False) -> None:
        """Delete data files that were removed at least so long ago, or that no log names and are as old.

        No version names them any more, so nobody has to wait, and the log says nothing about it.
        """
        current = DeltaTable(self.files.uri, storage_options=self.files.options)
        for path in current.vacuum(removed_hours, enforce_retention_duration=False, full=unnamed_too):
            with suppress(FileNotFoundError):  # deleted before, and still remembered
                self.files.storage.delete_file(path)


def _live_files(delta: DeltaTable) -> pa.Table:
    files = pa.table(delta.get_add_actions(flatten=True))
    # As they are called on the storage; the log has them as parts of an address, and encodes what it is given.
    paths = pa.array([unquote(path) for path in files.column("path").to_pylist()], pa.string())
    return files.set_column(files.column_names.index("path"), "path", paths)


def _slices(files: pa.Table) -> Iterator[pa.Table]:
    """Cut a list of files into pieces that make up one merged file each."""
    first = size = 0
    for at, one in enumerate(files.column("size_bytes").to_pylist()):
        if size + one > MERGED_FILE:
            yield files.slice(first, at - first)
            first, size = at, 0
        size += one
    yield files.slice(first)
