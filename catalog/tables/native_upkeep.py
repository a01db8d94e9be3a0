"""Keeping a table small and quick: small files merged, the log shortened, and what no readable version needs deleted.

Bytes are rewritten without the lock, compared with what they were made of, and committed only then, and only if that
is still there: a writer waits for a short commit, and never has to decide again because of it on a local disk.
"""

import hashlib
import json
import logging
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from catalog.errors import CatalogError, CorruptError
from catalog.tables import compaction
from catalog.tables.commits import first_line
from catalog.tables.compaction import CompactedTable, Files
from catalog.tables.locks import shorten_log
from catalog.tables.native_files import SMALL_FILE, DataFiles
from catalog.tables.native_log import LoadedTable
from catalog.tables.native_statistics import Snapshot
from catalog.tables.port import Engine, Table
from catalog.tables.schema import definition

if TYPE_CHECKING:
    from catalog.tables.native import NativeEngine

log = logging.getLogger(__name__)

UNNAMED_KEPT = timedelta(days=7)
"""How old a data file that no log names has to be: a slow writer may still commit a younger one."""
Spread = Callable[[Sequence[bytes], Callable[[Engine, bytes], bytes]], Iterator[bytes]]
"""Runs work(engine, task) where the workers are; see Engine.spread."""
_DELETE_EVERY_S = 3600
_DELETED_AT_ONCE = 100
_BATCH_BYTES = 16 << 20
_COMMIT_BYTES, _COMMIT_GROUPS = 256 << 20, 32
"""A commit takes so much along: fewer log entries, and little is lost to a sweep that was faster."""
_PLANNED_BY = ("path", "size_bytes", "partition.stream", "min.checkpoint_key")
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


class Upkeep:
    """Looks after one table."""

    def __init__(
        self, loaded: LoadedTable, clock: Callable[[], datetime], *, maintain_every: int, keep_versions: int
    ) -> None:
        """Make it.

        Args:
            loaded: the table.
            clock: decides which removed files are old enough to be deleted.
            maintain_every: after how many commits of this process the table is tidied; 0 is never.
            keep_versions: how many versions are left in the log on a local disk, at least; see `_kept_for`.
        """
        self._loaded = loaded
        self._files = loaded.files
        self._clock = clock
        self._maintain_every = maintain_every
        self._keep_versions = keep_versions
        self._commits = 0
        """Of this process, since it last tidied the table."""
        self._next_delete = 0.0

    def sometimes(self) -> None:
        """Tidy after so many commits of this process; that never fails the commit that it comes after."""
        self._commits += 1
        if not self._maintain_every or self._commits < self._maintain_every:
            return
        self._commits = 0
        try:
            self._merge(self._planned(self._loaded.refreshed(), SMALL_FILE), self._here)
            self._shorten_log()
            if time.monotonic() > self._next_delete:
                self._next_delete = time.monotonic() + _DELETE_EVERY_S
                self._delete(self._kept_for(None), dry_run=False)
        except Exception:
            log.exception("tidying %s failed; the next time may do better", self._files.uri)

    def compact(
        self, spread: Spread, *, keep_removed: timedelta | None, dry_run: bool, progress: Callable[[int, int], None]
    ) -> CompactedTable:
        """Merge small files, shorten the log, and delete what no readable version needs; see Engine.compact.

        Args:
            spread: runs the merging.
            keep_removed: see Engine.compact.
            dry_run: only say what would be done.
            progress: is told how many bytes have been merged, and of how many.

        Raises:
            CorruptError: merged rows differ from what they were made of; nothing was deleted.
        """
        before = self._loaded.refreshed()
        entries = len(self._loaded.logged())
        problems: list[str] = []
        groups = self._planned(before, compaction.SMALL_FILE)
        if groups and "deletionVectors" in (self._loaded.delta.protocol().reader_features or ()):
            problems, groups = [f"{self._files.table} has deletion vectors, which only Spark understands"], []
        if dry_run:
            freed, removed_entries = self._shorten_log(dry_run=True)
            entries_after = entries - removed_entries
            files_after = before.files.num_rows - sum(map(len, groups)) + len(groups)
        else:
            problems += self._merge(groups, spread, progress)
            freed, _ = self._shorten_log()
            entries_after = len(self._loaded.logged())
            files_after = self._loaded.refreshed().files.num_rows
        deleted, freed_data, waiting = self._delete(self._kept_for(keep_removed), dry_run=dry_run)
        return CompactedTable(
            table=self._files.table,
            files_before=before.files.num_rows,
            files_after=files_after,
            bytes_before=_bytes(before),
            bytes_after=_bytes(before if dry_run else self._loaded.refreshed()),
            log_entries_before=entries,
            log_entries_after=entries_after,
            deleted_files=deleted,
            freed_bytes=freed + freed_data,
            waiting_bytes=waiting,
            problems=tuple(problems),
        )

    # -- merging ---------------------------------------------------------------------------------------------------

    @staticmethod
    def _planned(snapshot: Snapshot, below: int) -> list[Files]:
        known = [name for name in _PLANNED_BY if name in snapshot.files.column_names]
        small = snapshot.files.filter(pc.field("size_bytes") < below)
        return compaction.merges(small.select(known).to_pylist(), below)

    def _here(self, tasks: Sequence[bytes], _work: object) -> Iterator[bytes]:
        return (_answer(self._files, *pickle.loads(task)[1:]) for task in tasks)

    def _merge(
        self, groups: Sequence[Files], spread: Spread, progress: Callable[[int, int], None] = lambda *_: None
    ) -> list[str]:
        """Merge each group of files into one, and return why some were left as they are."""
        problems: list[str] = []
        wrong: list[str] = []
        ready: list[tuple[Files, AddAction]] = []
        total, done = sum(map(_size, groups)), 0
        tasks = [
            pickle.dumps((self._files.table, group[0]["partition.stream"], [file["path"] for file in group]))
            for group in groups
        ]
        for group, answer in zip(groups, spread(tasks, rewrite_task), strict=True):
            found, why = pickle.loads(answer)
            if isinstance(found, AddAction):
                ready.append((group, found))
            elif found is CorruptError:
                wrong.append(why)
            elif self._all_live(group):  # else somebody was faster to replace them
                log.error("a stream's small files cannot be merged: %s", why)
                problems.append(why)
            done += _size(group)
            progress(done, total)
            if len(ready) == _COMMIT_GROUPS or sum(_size(some) for some, _ in ready) >= _COMMIT_BYTES:
                self._loaded.swap(ready)
                ready = []
        self._loaded.swap(ready)
        if wrong:
            raise CorruptError(f"{wrong[0]}; the files stay as they were, and nothing is deleted")
        return problems

    def _all_live(self, group: Files) -> bool:
        live = set(self._loaded.refreshed().files.column("path").to_pylist())
        return all(file["path"] in live for file in group)

    # -- the log ---------------------------------------------------------------------------------------------------

    def _shorten_log(self, *, dry_run: bool = False) -> tuple[int, int]:
        """Make a log checkpoint and remove old entries; return the bytes and the number of entries that went."""
        folder = self._files.folder
        if dry_run:
            below = self._loaded.refreshed().version - self._keep_versions
            return shorten_log(folder, below, dry_run=True) if folder else (0, 0)
        with self._loaded.committing() as snapshot:
            self._loaded.log_checkpoint()
            if folder:
                return shorten_log(folder, snapshot.version - self._keep_versions)
            # An object store lists its log from the newest checkpoint on: only age matters.
            self._loaded.delta.cleanup_metadata()
            return 0, 0

    # -- the disk --------------------------------------------------------------------------------------------------

    def _kept_for(self, keep_removed: timedelta | None) -> timedelta:
        """Return how long removed files stay: at most half the time that the log remembers them, later it is too late.

        Only `checkpoints` is read at earlier versions, so that no wish of a caller makes it shorter there.
        """
        default = timedelta(days=definition(self._files.table).deleted_kept_days) / 2
        return default if keep_removed is None or self._files.table is Table.CHECKPOINTS else keep_removed

    def _delete(self, kept_for: timedelta, *, dry_run: bool) -> tuple[int, int, int]:
        """Delete data files that were removed so long ago, or that no log names, left by killed writers.

        No version that can be read names them any more, so the log says nothing about it. A few at a time, each with a
        new look: who is about to commit one, after a long sleep, finds it gone, or has committed it.

        Returns:
            How many, how many bytes the disk got back, and how many bytes wait until they are old enough.
        """
        # The disk first, the log after it: what was committed in between is then known as live.
        listed = [info for info in self._files.listed() if not _hidden(info.path)]
        live = set(self._loaded.refreshed().files.column("path").to_pylist())
        removed_at = _removed_at(self._files.storage)
        now = self._clock()
        doomed, waiting = [], 0
        for info in listed:
            if info.path in live:
                continue
            removed = removed_at.get(info.path)
            if removed + kept_for <= now if removed else info.mtime + UNNAMED_KEPT <= now:
                doomed.append(info)
            elif removed:
                waiting += info.size
        if dry_run:
            return len(doomed), sum(info.size for info in doomed), waiting
        sizes = [
            size
            for first in range(0, len(doomed), _DELETED_AT_ONCE)
            for size in self._delete_some(doomed[first : first + _DELETED_AT_ONCE])
        ]
        return sum(map(bool, sizes)), sum(sizes), waiting

    def _delete_some(self, doomed: Sequence[pa_fs.FileInfo]) -> list[int]:
        with self._loaded.committing() as snapshot:
            live = set(snapshot.files.column("path").to_pylist())
            return [self._files.delete(info) for info in doomed if info.path not in live]


# -- rewriting, where the workers are ----------------------------------------------------------------------------------


def rewrite_task(engine: Engine, task: bytes) -> bytes:
    """Merge one group of files; runs where the workers are, and commits nothing."""
    table, stream, paths = pickle.loads(task)
    return _answer(cast("NativeEngine", engine).data_files(table), stream, paths)


def _answer(files: DataFiles, stream: str, paths: Sequence[str]) -> bytes:
    """Return the new file, or why there is none: the class that tells a fault of ours from one that was there."""
    try:
        return pickle.dumps((rewrite(files, stream, paths), None))
    except (CatalogError, OSError) as error:
        kind = CorruptError if isinstance(error, _ChangedError) else None
        return pickle.dumps((kind, f"{files.table}, stream {stream!r}: {first_line(error)}"))


class _ChangedError(CatalogError):
    """A merged file does not hold the rows that it was made of."""


def rewrite(files: DataFiles, stream: str, paths: Sequence[str]) -> AddAction:
    """Write the rows of some data files of a stream into one, and compare it with them, before anybody sees it.

    Raises:
        CorruptError: a file is damaged, or a chunk does not have the hash that it should have.
    """
    added = files.write(stream, _batches(files, stream, paths))
    try:
        _compare(files, stream, paths, added.path)
    except BaseException:
        files.storage.delete_file(added.path)
        raise
    return added


def _batches(files: DataFiles, stream: str, paths: Iterable[str]) -> Iterator[pa.Table]:
    """Yield the rows of data files in pieces that are worth a few row groups, the same ones every time."""
    waiting: list[pa.Table] = []
    size = 0
    for part in (part for path in paths for part in files.parts(stream, path)):
        waiting.append(part)
        size += part.nbytes
        if size >= _BATCH_BYTES:
            yield pa.concat_tables(waiting).sort_by(_SORTED_BY[files.table])
            waiting, size = [], 0
    if waiting:
        yield pa.concat_tables(waiting).sort_by(_SORTED_BY[files.table])


def _compare(files: DataFiles, stream: str, paths: Sequence[str], merged: str) -> None:
    """Read a merged file and refuse it unless it has every row as it was, and every chunk its hash."""
    found = files.parts(stream, merged)
    for rows in _batches(files, stream, paths):
        written: list[pa.Table] = []
        while sum(part.num_rows for part in written) < rows.num_rows and (part := next(found, None)) is not None:
            written.append(part)
        if not written or not pa.concat_tables(written).equals(rows):
            raise _ChangedError("merging changed rows")
        if files.table is Table.ARTIFACTS and (key := _damaged(rows)):
            raise CorruptError(f"a chunk of checkpoint {key} is damaged: validate it by hashes")
    if next(found, None) is not None:
        raise _ChangedError("merging added rows")


def _damaged(rows: pa.Table) -> str | None:
    """Return the key of a row whose bytes do not have the hash that they should have, if there is one."""
    for key, data, sha256 in zip(
        *(rows.column(one) for one in ("checkpoint_key", "data", "chunk_sha256")), strict=True
    ):
        if data.is_valid and hashlib.sha256(data.as_buffer()).hexdigest() != sha256.as_py():
            return str(key.as_py())
    return None


# -- what the log and the disk tell ------------------------------------------------------------------------------------


def _removed_at(storage: pa_fs.FileSystem) -> dict[str, datetime]:
    """Return when the data files were removed that the log remembers, by path."""
    names = [info.base_name for info in storage.get_file_info(pa_fs.FileSelector("_delta_log"))]
    parts = [name for name in names if ".checkpoint" in name and name.endswith(".parquet") and name[:20].isdecimal()]
    newest = max((int(name[:20]) for name in parts), default=-1)
    removed: list[dict[str, Any]] = []
    for name in parts:
        if int(name[:20]) == newest:
            with storage.open_input_file(f"_delta_log/{name}") as file:
                rows = pq.ParquetFile(file).read(columns=["remove.path", "remove.deletionTimestamp"]).column("remove")
            removed += [row for row in rows.to_pylist() if row is not None and row["path"] is not None]
    for name in sorted(names):
        if name[20:] == ".json" and name[:20].isdecimal() and int(name[:20]) > newest:
            with storage.open_input_file(f"_delta_log/{name}") as file:
                lines = file.read().splitlines()
            removed += [json.loads(line)["remove"] for line in lines if line.startswith(b'{"remove"')]
    times = ((unquote(row["path"]), row.get("deletionTimestamp") or 0) for row in removed)
    return {path: datetime.fromtimestamp(ms / 1000, UTC) for path, ms in times}


def _hidden(path: str) -> bool:
    return any(part.startswith(("_", ".")) for part in path.split("/"))


def _size(group: Files) -> int:
    return sum(file["size_bytes"] for file in group)


def _bytes(snapshot: Snapshot) -> int:
    return int(pc.sum(snapshot.files.column("size_bytes")).as_py() or 0)
