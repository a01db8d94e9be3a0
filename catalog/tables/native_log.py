"""The log of one table: the versions that this process has loaded, and commits on the newest."""

import json
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pa_fs
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from catalog.errors import CatalogError, ConflictError, OutOfReachError
from catalog.tables.commits import Again, Commits, first_line
from catalog.tables.compaction import Files
from catalog.tables.locks import CommitLock, fsync, log_checkpoint, log_entry
from catalog.tables.native_files import DataFiles
from catalog.tables.native_statistics import Snapshot
from catalog.tables.opening import damaged, gone
from catalog.tables.port import Version

log = logging.getLogger(__name__)

LOG_CHECKPOINT_EVERY = 10
"""Versions of a local table between log checkpoints; reading and committing slow down with the entries since."""
_READ_AT_ONCE = 16
_LOG_ENTRY = re.compile(r"\d{20}\.json")


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
        clock: Callable[[], datetime],
    ) -> None:
        """Load the newest version.

        Args:
            files: the table's data files.
            lock: is held by every commit, on a local disk.
            commits: runs them, again where it must.
            ahead: does what need not be waited for.
            clock: says when a data file was removed.
        """
        self.files = files
        self.lock = lock
        self.mutex = threading.RLock()
        self._commits = commits
        self._ahead = ahead
        self._clock = clock
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
                self._load_newest()
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
        self.refreshed()  # which also finds out whether the log is still the one whose times are known
        listed = self.logged()
        # A list made while entries come may lack one before its last.
        there, known = range(min(listed), max(listed) + 1), self._times
        unread = [number for number in there if number not in known]
        with ThreadPoolExecutor(max_workers=_READ_AT_ONCE) as pool:
            told = dict(zip(unread, pool.map(self._time_of, unread), strict=True))
        found = {number: known.get(number) or told[number] for number in there}
        # An entry never changes; those that went are forgotten.
        times = self._times = {number: at for number, at in found.items() if at is not None}
        return [Version(number, at) for number, at in times.items()]

    def logged(self) -> list[int]:
        """Return the versions that have an entry in the log."""
        names = (info.base_name for info in self.files.storage.get_file_info(pa_fs.FileSelector("_delta_log")))
        return [int(name[:20]) for name in names if _LOG_ENTRY.fullmatch(name)]

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
        return self._is_as_loaded() and not log_entry(self.files.folder, self.delta.version() + 1).exists()

    def _is_as_loaded(self) -> bool:
        """Say whether the log still has the very entry that was loaded last, as far as a look tells.

        In a folder that was put back from a backup, another may have its number.
        """
        return self.files.folder is None or (self._entry is not None and self._entry == self._newest_entry())

    def _newest_entry(self) -> tuple[int, int] | None:
        """Return what tells the entry of the loaded version from another with its number, None if it is gone."""
        if self.files.folder is None:
            return None
        try:
            found = log_entry(self.files.folder, self.delta.version()).stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _load_newest(self) -> None:
        """Load the newest version.

        Raises:
            NotACatalogError: the table, or on a local disk its log, was removed or damaged while it was open.
        """
        try:
            self._update()
        except TableNotFoundError as error:
            raise gone(self.files.place, self.files.table) from error
        except DeltaError as error:
            if self.files.folder is None:
                raise
            raise damaged(self.files.place, self.files.table, first_line(error), found=True) from error

    def _update(self) -> None:
        if not self._is_as_loaded():
            self._snapshot = self._earlier = None
            self._times = {}
        elif self.delta.version() - self._opened_at < LOG_CHECKPOINT_EVERY:
            try:
                self.delta.update_incremental()
            except DeltaError as error:
                # Idle for so long that the entries it would go on from have been removed.
                log.info("opening %s anew: %s", self.files.uri, first_line(error))
            else:
                self._entry = self._newest_entry()
                return
        self._reopen()

    def _reopen(self) -> None:
        """Load the table from its newest log checkpoint: what has been added entry by entry since makes it slower."""
        self.delta = DeltaTable(self.files.uri, storage_options=self.files.options)
        self._opened_at = self.delta.version()
        self._entry = self._newest_entry()

    # -- commits ---------------------------------------------------------------------------------------------------

    def append(self, added: list[AddAction]) -> None:
        """Add data files, whatever else is there."""

        def attempt() -> None:
            with self.committing():
                self.commit(added, retries=None)

        # Repeated after an unknown outcome it may leave rows twice; readers take one of each.
        with self.discarding(added):
            self._commits.run(attempt, f"the append to {self.files.table}")

    def replace(self, plan: Callable[[Snapshot], Replacement], what: str) -> Replacement:
        """Put new data files in the place of old ones, which must still be there; only the commit holds the lock."""

        def attempt() -> Replacement:
            change = plan(self.refreshed())
            if not change.remove:
                return change
            removed = [self._removal(file, data_change=True) for file in change.remove]
            with self.discarding(change.add), self.committing() as snapshot:
                there = set(snapshot.files.column("path").to_pylist())
                if any(file["path"] not in there for file in change.remove):
                    raise Again("a data file was replaced meanwhile")
                self.commit([*removed, *change.add])
            return change

        return self._commits.run(attempt, what)

    def swap(self, merged: Sequence[tuple[Files, AddAction]]) -> None:
        """Put each merged data file in the place of those that it was made of, if these are still there."""
        news = [new for _, new in merged]
        may_be_there = False

        def attempt() -> list[AddAction]:
            nonlocal may_be_there
            with self.committing() as snapshot:
                there = set(snapshot.files.column("path").to_pylist())
                fits = [(old, new) for old, new in merged if all(file["path"] in there for file in old)]
                removed = [self._removal(file, data_change=False) for old, _ in fits for file in old]
                try:
                    if fits:
                        self.commit([*removed, *(new for _, new in fits)])
                except CommitFailedError:
                    raise
                except Exception:
                    may_be_there = True
                    raise
                return [new for _, new in fits]

        for new in news:
            new.data_change = False
        with self.discarding(news):
            done = self._commits.run(attempt, f"merging files of {self.files.table}") if news else []
        if not may_be_there:
            self.discard([new for new in news if new not in done])

    def _removal(self, file: Mapping[str, Any], *, data_change: bool) -> RemoveAction:
        removed_ms = int(self._clock().timestamp() * 1000)
        stream = {"stream": file["partition.stream"]}
        return RemoveAction(file["path"], data_change, removed_ms, file["size_bytes"], stream)

    @contextmanager
    def discarding(self, added: Sequence[AddAction]) -> Iterator[None]:
        """Delete new data files if it is certain that they were not committed."""
        try:
            yield
        except (ConflictError, Again, CommitFailedError):
            self.discard(added)
            raise

    def discard(self, added: Sequence[AddAction]) -> None:
        """Delete new data files that were not committed.

        The log has the last word: a storage that repeats a request of its own takes its first success for a rival.
        """
        live = set(self.refreshed().files.column("path").to_pylist()) if added else set()
        for file in added:
            if file.path not in live:
                with suppress(FileNotFoundError):
                    self.files.storage.delete_file(file.path)

    @contextmanager
    def committing(self) -> Iterator[Snapshot]:
        """Give the newest version, to be decided and committed on."""
        # In this order, so that readers do not wait while this process waits for others.
        with self.lock.held() if self.lock else nullcontext(), self.mutex:
            yield self.refreshed()

    def commit(self, actions: Sequence[AddAction | RemoveAction], *, retries: int | None = 0) -> None:
        """Write the log entry that follows the loaded version; by default only if no other has.

        Raises:
            ConflictError: a new data file may have been deleted meanwhile, because its writer was taken for dead.
        """
        for action in actions:
            if isinstance(action, AddAction) and not self.files.lasts(action):
                raise ConflictError(
                    f"{action.path} was written too long ago to be committed to {self.files.uri}: nothing was saved, "
                    "try again"
                )
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
                    self.log_checkpoint()
        except (CatalogError, DeltaError, OSError) as error:
            log.warning("%s could not be loaded ahead, the next call does it: %s", self.files.uri, first_line(error))

    def log_checkpoint(self) -> None:
        """Sum the log up in one file, while the lock is held."""
        self.delta.create_checkpoint()
        if self.files.folder and self.files.durable:
            fsync(log_checkpoint(self.files.folder, self.delta.version()))
        self._reopen()


def _live_files(delta: DeltaTable) -> pa.Table:
    files = pa.table(delta.get_add_actions(flatten=True))
    # As they are called on the storage; the log has them as parts of an address, and encodes what it is given.
    paths = pa.array([unquote(path) for path in files.column("path").to_pylist()], pa.string())
    return files.set_column(files.column_names.index("path"), "path", paths)
