"""Commits on a local disk: one OS lock per table, held until the commit is on the disk.

Delta's log store for `file:` ends in a rename that overwrites, so two processes can both believe they wrote one
version. The lock (flock, which the kernel releases when its holder dies) makes commits of one table take turns. It is
kept until the log entry and its folder are fsynced: released earlier, a power cut could keep version n+1 and lose n.
"""

import json
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote

from filelock import FileLock, Timeout

from catalog.errors import LockTimeoutError, NotACatalogError, ReadOnlyError, UnknownOutcomeError

LOCK_TIMEOUT_S = 30.0
CAUGHT_UP = 2
"""Earlier commits that a commit puts on the disk too, unless its process did so before: the disk is asked for each."""
LOCK_FILE = "_commit.lock"
"""In the table's folder; Delta ignores names that begin with an underscore."""


class CommitLock:
    """Lets one commit at a time happen in a folder, across threads and processes."""

    def __init__(
        self, folder: Path, *, timeout_s: float = LOCK_TIMEOUT_S, durable: bool = True, data_too: bool = True
    ) -> None:
        """Make the lock of a table's folder.

        Args:
            folder: the table.
            timeout_s: how long to wait for other holders; below zero for ever.
            durable: put commits on the disk before the lock is released.
            data_too: data files as well, if the engine has not done so itself.
        """
        self._folder = folder
        self._timeout_s = timeout_s if 0 <= timeout_s < threading.TIMEOUT_MAX else threading.TIMEOUT_MAX
        self._durable = durable
        self._data_too = data_too
        # Threads of this process queue here, so that only one of them competes for the OS lock.
        self._threads = threading.Lock()
        self._released_at = -math.inf
        """When a thread of this process last let go of the lock."""
        self._newest = -1
        self._synced = -1
        """The newest version that this process put on the disk."""

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock around a commit, and make what was committed durable before it is released.

        Raises:
            LockTimeoutError: other processes, or one thread of this, held it all the time; nothing was written.
            NotACatalogError: the folder is gone.
            ReadOnlyError: the folder cannot be written.
        """
        with self._turn() as deadline, self._os_lock(deadline):
            before = self._newest = newest_version(self._folder, since=self._newest)
            try:
                yield
            finally:
                if self._durable:
                    self._make_durable(before, data_too=self._data_too)

    def _make_durable(self, before: int, *, data_too: bool) -> None:
        try:
            known = self._synced if self._synced <= before else -1  # else an earlier state was put back
            self._synced = fsync_commits(self._folder, after=before, known=known, data_too=data_too)
        except OSError as error:
            raise UnknownOutcomeError(
                f"a commit in {self._folder} could not be put on the disk: {error.strerror or error}; "
                "it may be lost with the power, so check the disk and look before trying again",
                path=str(self._folder),
            ) from error

    def settle(self) -> None:
        """Put the newest commit on the disk, while the lock is held; a killed writer may not have done so."""
        if self._durable:
            self._make_durable(newest_version(self._folder, since=self._newest) - 1, data_too=True)

    @contextmanager
    def _turn(self) -> Iterator[float]:
        """Wait until no other thread of this process is committing, and give the time at which all waiting ends.

        Each time that one of them is done the wait begins anew: a long queue is none that hangs.
        """
        deadline = time.monotonic() + self._timeout_s
        while not self._threads.acquire(timeout=_seconds_until(deadline)):
            if self._released_at + self._timeout_s <= deadline:
                raise self._timed_out("another thread of this process waits for it or")
            deadline = self._released_at + self._timeout_s
        try:
            yield max(deadline, self._released_at + self._timeout_s)
        finally:
            self._threads.release()

    @contextmanager
    def _os_lock(self, deadline: float) -> Iterator[None]:
        path = self._folder / LOCK_FILE
        if not self._folder.is_dir():  # filelock would make it
            raise NotACatalogError(
                f"{self._folder} was removed while its catalog was open: bring it back from a backup, or take another "
                "place",
                place=str(self._folder.parent),
                found=False,
            )
        # A soft lock would outlive a killed holder; a removed lock file would let two holders in.
        lock = FileLock(path, timeout=_seconds_until(deadline), fallback_to_soft=False, preserve_lock_file=True)
        try:
            lock.acquire()
        except Timeout as error:
            raise self._timed_out("another process") from error
        except OSError as error:
            raise ReadOnlyError(
                f"cannot write in {self._folder}: {error.strerror or error}; give this process write permission",
                path=str(self._folder),
            ) from error
        try:
            yield
        finally:
            lock.release()
            self._released_at = time.monotonic()

    def _timed_out(self, holder: str) -> LockTimeoutError:
        path = self._folder / LOCK_FILE
        return LockTimeoutError(
            f"the lock {path} was not free within {self._timeout_s:g} s: {holder} is committing there; "
            "nothing was written, try again",
            path=str(path),
        )


def _seconds_until(deadline: float) -> float:
    return min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)


def log_entry(table: Path, version: int) -> Path:
    """Return where a local Delta table's log has a version."""
    return table / "_delta_log" / f"{version:020d}.json"


def log_checkpoint(table: Path, version: int) -> Path:
    """Return where a local Delta table's log has the checkpoint of a version, if it has one."""
    return table / "_delta_log" / f"{version:020d}.checkpoint.parquet"


def newest_version(table: Path, *, since: int = -1) -> int:
    """Return the newest version in a local Delta table's log, -1 when there is none.

    Args:
        table: the table's folder.
        since: a version that was there: a long log is then not listed, since entries go from the oldest on.
    """
    if since >= 0 and log_entry(table, since).exists():
        while log_entry(table, since + 1).exists():
            since += 1
        return since
    return max((version for version, kind in _log_files(table).values() if kind == "json"), default=-1)


def shorten_log(table: Path, below: int, *, dry_run: bool = False) -> tuple[int, int]:
    """Remove what no version from `below` on needs from a local Delta table's log, the oldest first.

    A version is read from the newest checkpoint at or before it and the entries that follow.

    Returns:
        How many bytes went, and how many entries.
    """
    files = _log_files(table)
    checkpoints = (version for version, kind in files.values() if kind == "checkpoint.parquet" and version <= below)
    first = max(checkpoints, default=0)
    freed = entries = 0
    for name, (version, kind) in sorted(files.items(), key=lambda item: item[1]):
        if version < first:
            path = table / "_delta_log" / name
            with suppress(FileNotFoundError):  # somebody else shortens it too
                freed += path.stat().st_size
                entries += kind == "json"
                if not dry_run:
                    path.unlink()
    return freed, entries


def mend_log(table: Path) -> Path | None:
    """Set the newest checkpoint of a local log aside if it is half-written, as a power cut may leave it.

    Nothing is lost: only once it is on the disk entries go that it sums up. The caller holds the table's lock, so that
    nobody is writing it just now.

    Returns:
        Where it is now; None if it is whole, or cannot be done without.
    """
    checkpoints = sorted(version for version, kind in _log_files(table).values() if kind == "checkpoint.parquet")
    if not checkpoints or _is_parquet(damaged := log_checkpoint(table, checkpoints[-1])):
        return None
    first = checkpoints[-2] + 1 if len(checkpoints) > 1 else 0
    if not all(log_entry(table, version).exists() for version in range(first, checkpoints[-1] + 1)):
        return None
    aside = damaged.rename(damaged.with_name(f"{damaged.name}.damaged"))
    damaged.with_name("_last_checkpoint").unlink(missing_ok=True)
    fsync(damaged.parent)
    return aside


def _is_parquet(path: Path) -> bool:
    """Say whether a Parquet file was written from its beginning to its end."""
    mark, content = b"PAR1", path.read_bytes()
    return len(content) > 2 * len(mark) and content.startswith(mark) and content.endswith(mark)


def _log_files(table: Path) -> dict[str, tuple[int, str]]:
    """Return version and kind of a local log's files by name; Hadoop hides a checksum beside each of Spark's."""
    try:
        names = os.listdir(table / "_delta_log")  # noqa: PTH208 - a commit waits for this, and Paths are slow
    except FileNotFoundError:
        return {}
    found = ((name, name.lstrip(".").partition(".")) for name in names)
    return {name: (int(number), kind) for name, (number, _, kind) in found if len(number) == 20 and number.isdecimal()}


def fsync_commits(table: Path, *, after: int, known: int = -1, data_too: bool = True) -> int:
    """Put every commit newer than a version on the disk: data files first, then log entries, then their folders.

    Commits that they stand on go along: their writers may have been killed before they could do so themselves.

    Args:
        table: the table's folder.
        after: the version.
        known: up to this one all is known to be on the disk.
        data_too: data files of the newer commits as well.

    Returns:
        The newest version if it was put on the disk, else `known`.
    """
    newest = newest_version(table, since=after)
    if newest == after:
        return known
    folders = {table / "_delta_log"}
    for version in range(max(known, after - CAUGHT_UP, -1) + 1, after + 1):
        with suppress(FileNotFoundError):  # an old version may have left the log, or its files the disk
            folders |= _fsync_commit(table, version, data_too=True)
    for version in range(after + 1, newest + 1):
        folders |= _fsync_commit(table, version, data_too=data_too)
    for folder in folders:
        fsync(folder)
    return newest


def _fsync_commit(table: Path, version: int, *, data_too: bool) -> set[Path]:
    """Put a commit's files on the disk and return the folders that name them."""
    entry = log_entry(table, version)
    files = _added(table, entry) if data_too else []
    for file in files:
        fsync(file)
    fsync(entry)
    if log_checkpoint(table, version).exists():
        fsync(log_checkpoint(table, version))
    return {file.parent for file in files} | ({table} if files else set())


def _added(table: Path, entry: Path) -> list[Path]:
    # Bytes: text is also cut at U+2028, U+2029 and U+0085, which JSON has as they are in a stream's name.
    actions = [json.loads(line) for line in entry.read_bytes().splitlines()]
    return [table / unquote(action["add"]["path"]) for action in actions if "add" in action]


def fsync(path: Path) -> None:
    """Put a file, or a folder's entries, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
