"""Import: files of another store become checkpoints of a stream.

Threads read files ahead; bytes are written before the rows that name them, and rows in one commit for many. A run that
is killed leaves complete checkpoints and orphaned bytes, nothing else, and the next one goes on. What is wrong with a
source is found by the rules of validation; such a checkpoint is only prepared, so that nothing counts on it.
"""

import hashlib
import json
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from catalog import artifacts, chains, chunks, cutting, keys, lifecycle
from catalog.chunks import Kept, Stored
from catalog.cutting import PLAIN, Writing
from catalog.errors import ConflictError
from catalog.lifecycle import Change, Checkpoint, History, Revision, Status
from catalog.manifest import CheckpointManifest
from catalog.moving import contents, layouts
from catalog.moving.contents import SOURCE, SOURCE_TEXT, Content
from catalog.moving.layouts import Candidate, FileFacts, Layout, Plan
from catalog.moving.report import Moved, MoveLine, MoveReport
from catalog.moving.storage import FileFault, Storage
from catalog.protocol import Draft, Stream
from catalog.tables.port import Equals, Outcome, Table, Unless
from catalog.threads import start, workers
from catalog.verify import Progress, chain_issues

THREADS = 4
BATCH = 64
"""Checkpoints per commit."""
BATCH_BYTES = 64 << 20
SMALL_BYTES = cutting.CHUNK_BYTES
"""Files up to this size go into a commit with others; larger ones are written as they are read."""
SMALL_FILES_BYTES = 16 << 20
"""So much of one checkpoint goes into a commit with others; what is more is written as it is read too."""


@dataclass(slots=True)
class _Ready:
    """A checkpoint whose files have been read."""

    candidate: Candidate
    content: Content
    attempt: str
    stored: Mapping[str, Stored]
    rows: list[dict[str, Any]]
    """Chunks that are not written yet."""
    staged: bool
    """Whether some are written: then its row should not wait long, because a clean-up gives up on what waits."""
    mixed: str | None
    note: str | None
    fault: str | None = None
    row: Revision | None = None


class Importer:
    """One run of an import."""

    def __init__(
        self,
        stream: Stream,
        storage: Storage,
        plan: Plan,
        *,
        threads: int = THREADS,
        dry_run: bool = False,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            stream: where to; it holds nothing, or what the layout makes.
            storage: where from.
            plan: what there is.
            threads: how many files are read at a time.
            dry_run: read and judge everything, and write nothing.
            progress: is told how far it has come, after every checkpoint.
        """
        self._stream = stream
        self._storage = storage
        self._plan = plan
        self._threads = threads
        self._dry_run = dry_run
        self._progress = progress
        self._by_key = {one.key: one for one in plan.candidates}
        self._moved, self._of_bytes = 0, sum(one.size for one in plan.candidates)
        self._lines: dict[str, MoveLine] = {}
        self._strays: list[MoveLine] = []
        self._batch: list[_Ready] = []
        self._waiting: dict[str, list[_Ready]] = defaultdict(list)
        """Children by the parent that has to come first."""
        self._loaded: dict[str, Checkpoint] = {}
        self._kept: dict[tuple[str, str], dict[str, Kept]] = {}
        self._foreign: set[str] = set()
        """Ids that have other content in the catalog: no delta of the source stands on that."""
        self._there: History = {}
        self._pointer_text: str | None = None
        self._pointer: str | None = None

    def run(self) -> MoveReport:
        """Import, and say what became of every checkpoint and file."""
        self._read_pointer()
        self._there = self._stream.history(marks=True)
        with workers(self._threads) as pool:
            for ready in self._read_ahead(pool):
                self._arrange(ready)
            for left in [one for some in self._waiting.values() for one in some]:  # they stand on each other
                self._place(left)
            self._commit()
        return self._report()

    # -- reading ---------------------------------------------------------------------------------------------------

    def _read_ahead(self, pool: ThreadPoolExecutor) -> Iterator[_Ready]:
        """Yield what can be imported in the order of keys, while the next few are read."""
        under_way: deque[tuple[Candidate, Future[_Ready]]] = deque()
        for candidate in self._plan.candidates:
            found = self._there.get(candidate.key)
            if found and not found.live:
                self._tell(candidate, Moved.SKIPPED, str(self._stream.closed(found)))
                continue
            under_way.append((candidate, start(pool, self._read, candidate, found is None and not self._dry_run)))
            if len(under_way) > 2 * self._threads:
                yield from self._finish(*under_way.popleft())
        while under_way:
            yield from self._finish(*under_way.popleft())

    def _finish(self, candidate: Candidate, reading: Future[_Ready]) -> Iterator[_Ready]:
        try:
            yield reading.result()
        except FileFault as fault:
            self._tell(candidate, Moved.SKIPPED, str(fault))

    def _read(self, candidate: Candidate, write: bool) -> _Ready:
        """Read a checkpoint's files; large ones are written at once, if at all."""
        raw = self._storage.read(candidate.manifest.path)
        content = contents.read(self._plan.layout, candidate, raw, self._by_key, self._stream.label)
        attempt = keys.new_uuid7()
        manifest = content.manifest
        inline = manifest.inline_hash() if isinstance(manifest, CheckpointManifest) else None
        mixed = hashlib.sha256(inline.encode()) if inline and content.parts else None
        stored: dict[str, Stored] = {}
        rows: list[dict[str, Any]] = []
        small, staged = 0, False
        for path, part in content.parts.items():
            columns = self._stream.chunk_columns(candidate.key, attempt, path, part.kind, **part.columns)
            small += part.file.size
            at_once = part.file.size > SMALL_BYTES or small > SMALL_FILES_BYTES
            stored[path], more = self._keep(columns, part.file, Writing(also=mixed), write, at_once)
            rows += more
            staged |= write and at_once
        whole = mixed.hexdigest() if mixed else None
        content, note = contents.with_whole_checksum(content, stored, whole)
        if content.keep_raw and write:
            columns = self._stream.chunk_columns(candidate.key, attempt, SOURCE_TEXT, SOURCE)
            rows += _rows(columns, raw, PLAIN)
        return _Ready(candidate, content, attempt, stored, rows, staged, whole, note)

    def _keep(
        self, columns: dict[str, Any], file: FileFacts, how: Writing, write: bool, at_once: bool
    ) -> tuple[Stored, list[dict[str, Any]]]:
        """Return a file as an artifact, and its chunks if they have still to be written."""
        path = columns["path"]
        if not write:
            sha256, size = hashlib.sha256(), 0
            for piece in self._storage.pieces(file.path):
                size += len(piece)
                sha256.update(piece)
                if how.also is not None:
                    how.also.update(piece)
            return Stored(path, size, sha256.hexdigest()), []
        if at_once:
            return artifacts.write(self._stream.engine, columns, self._storage.pieces(file.path), how), []
        rows = _rows(columns, self._storage.read(file.path), how)
        return chunks.totals(rows)[path], rows

    # -- judging ---------------------------------------------------------------------------------------------------

    def _arrange(self, ready: _Ready) -> None:
        """Place a checkpoint, or let it wait for its parent; then those that waited for it."""
        parent = ready.content.parent
        if parent in self._by_key and parent not in self._lines and parent not in self._loaded:
            self._waiting[parent].append(ready)
            return
        self._place(ready)
        for child in self._waiting.pop(ready.candidate.key, ()):
            self._arrange(child)

    def _place(self, ready: _Ready) -> None:
        """Judge a checkpoint, and put it among those to be saved if it is not there yet."""
        key = ready.candidate.key
        row = self._row(ready)
        ready.fault = contents.fault(lifecycle.fold([row])[key], ready.content, ready.stored, ready.mixed)
        ready.row = self._described(ready, self._standing(ready, row))
        if self._plan.layout is Layout.PARTITIONS:  # others may stand on it
            self._loaded[key] = lifecycle.fold([ready.row])[key]
            self._kept[key, ready.attempt] = {path: contents.as_kept(one) for path, one in ready.stored.items()}
        else:
            self._loaded[key] = lifecycle.fold([replace(ready.row, manifest=None)])[key]
        self._strays += [
            MoveLine(Moved.SKIPPED, None, file.path, file.size, "no manifest lists it")
            for file in ready.content.unlisted
        ]
        if key in self._there:
            self._compare(ready, self._there[key])
        else:
            self._batch.append(ready)
            size = sum(len(row["data"]) for one in self._batch for row in one.rows)
            if ready.staged or len(self._batch) >= BATCH or size > BATCH_BYTES:
                self._commit()

    def _row(self, ready: _Ready) -> Revision:
        counted = {path: one for path, one in ready.stored.items() if ready.content.parts[path].kind != SOURCE}
        draft = Draft(
            key=ready.candidate.key,
            format=self._plan.layout.holds,
            attempt=ready.attempt,
            manifest=ready.content.text or "",
            artifacts=counted,
            facts=ready.content.columns,
        )
        row = self._stream.draft_row(draft)
        return replace(row, manifest=ready.content.text, manifest_sha256=ready.content.sha256)

    def _standing(self, ready: _Ready, row: Revision) -> Revision:
        """Return the row with what its deltas stand on; a chain that is not whole is a fault."""
        parent, manifest = ready.content.parent, ready.content.manifest
        if parent is None or manifest is None:
            return row
        self._load(parent)
        there = self._loaded.get(parent)
        if there is None or not there.live:
            ready.fault = "; ".join(filter(None, (ready.fault, f"its deltas stand on {parent}, which is not there")))
            return row
        line = [parent, *chains.ancestors(self._loaded, parent)]
        at = max(row.at, there.head.at + timedelta(microseconds=1))
        row = replace(row, parent=parent, at=at, details=json.dumps({"line": line}))
        loaded = {key: self._loaded[key] for key in line if key in self._loaded} | lifecycle.fold([row])
        broken = chain_issues([row.checkpoint_key, *line], loaded, self._kept, manifest, self._stream.label)
        ready.fault = "; ".join(filter(None, (ready.fault, *map(str, broken)))) or None
        return row

    def _load(self, key: str | None) -> None:
        """Know a checkpoint of the catalog that is no more in the source, and all that it stands on."""
        while key and key in self._there and key not in self._loaded and key not in self._foreign:
            found = self._stream.find(key)
            if found is None or not found.live:
                return
            self._loaded[key] = found
            rows = artifacts.facts(self._stream.engine, self._stream.stream, [Equals("checkpoint_key", key)])
            for attempt in found.attempts:
                self._kept[key, attempt] = chunks.inventory(row for row in rows if row["attempt"] == attempt)
            key = found.parent

    def _described(self, ready: _Ready, row: Revision) -> Revision:
        """Return the row with where it comes from, and as prepared if nothing may count on it."""
        candidate, content = ready.candidate, ready.content
        source: dict[str, Any] = {"layout": self._plan.layout}
        if files := contents.named_files(self._plan.layout, candidate, content.parts):
            source["files"] = files
        if content.keep_raw:
            source["text"] = SOURCE_TEXT
        if candidate.key == self._pointer and self._pointer_text is not None:
            source["pointer"] = self._pointer_text
        if ready.fault:
            source["fault"] = ready.fault
        how = "imported as corrupt" if ready.fault else "imported"
        return replace(
            row,
            change=Change.SAVED if self._commits(ready) else Change.PREPARED,
            reason=f"{how} from {self._storage.label}" + (f": {ready.fault}" if ready.fault else ""),
            details=json.dumps({**json.loads(row.details or "{}"), "source": source}),
        )

    def _commits(self, ready: _Ready) -> bool:
        """Whether a checkpoint is committed: nothing is wrong with it, and seed 002's pointer has reached it."""
        waits = self._plan.layout is Layout.PARTITIONS and self._pointer is not None
        return ready.fault is None and not (waits and ready.candidate.key > (self._pointer or ""))

    # -- saving ----------------------------------------------------------------------------------------------------

    def _commit(self) -> None:
        """Save what is ready: bytes first, in one commit, then the rows in another."""
        batch, self._batch = self._batch, []
        if self._dry_run:
            for ready in batch:
                self._tell_imported(ready)
            return
        if not batch:
            return
        if chunks := [row for ready in batch for row in ready.rows]:
            self._stream.engine.append(Table.ARTIFACTS, [artifacts.as_table(chunks)])
        rows = [ready.row for ready in batch if ready.row]
        guards = [Unless(format_other_than=self._plan.layout.holds)]
        guards += [Unless(key=key, change=Change.PURGED) for key in sorted({row.parent for row in rows if row.parent})]
        for ready, outcome in zip(batch, self._stream.insert(rows, guards), strict=True):
            if outcome is Outcome.INSERTED:
                self._tell_imported(ready)
            elif outcome is Outcome.EXISTED and (found := self._stream.find(ready.candidate.key)):
                self._compare(ready, found)
            else:
                raise ConflictError(
                    f"stream {self._stream.label!r} changed while it was imported: run it again, it goes on from here"
                )

    def _compare(self, ready: _Ready, found: Checkpoint) -> None:
        """Tell whether a checkpoint that is there already is the same."""
        candidate = ready.candidate
        if not found.live:
            self._tell(candidate, Moved.SKIPPED, str(self._stream.closed(found)))
        elif not (found.origin and ready.row and found.origin.content_sha256 == ready.row.content_sha256):
            self._foreign.add(found.key)
            self._loaded.pop(found.key, None)
            why = f"checkpoint {found.id} is already there with other content, which stays as it is"
            self._tell(candidate, Moved.SKIPPED, why)
        else:
            note = ready.note
            if found.status is Status.PREPARED and self._commits(ready):
                note = "it was prepared, and is committed now"
                if not self._dry_run:
                    self._stream.change(candidate.key, _promote)
            self._tell(candidate, Moved.PRESENT, ready.fault, note)

    def _tell_imported(self, ready: _Ready) -> None:
        note = ready.note
        if not ready.fault and not self._commits(ready):
            note = f"prepared, because {layouts.POINTERS[self._plan.layout]} has not reached it"
        self._tell(ready.candidate, Moved.CORRUPT if ready.fault else Moved.IMPORTED, ready.fault, note)

    # -- telling ---------------------------------------------------------------------------------------------------

    def _tell(self, candidate: Candidate, outcome: Moved, fault: str | None = None, note: str | None = None) -> None:
        id = keys.checkpoint_id(candidate.key)
        self._lines[candidate.key] = MoveLine(outcome, id, candidate.manifest.path, candidate.size, fault, note)
        self._moved += candidate.size
        if self._progress:
            self._progress(Progress(len(self._lines), len(self._by_key), self._moved, self._of_bytes))

    def _read_pointer(self) -> None:
        file = self._plan.pointer
        if file is None:
            return
        try:
            raw = self._storage.read(file.path)
        except FileFault as fault:
            self._strays.append(MoveLine(Moved.SKIPPED, None, file.path, file.size, str(fault)))
            return
        self._pointer = layouts.read_pointer(self._plan.layout, raw)
        if self._pointer is None:
            why = "it names no checkpoint"
            self._strays.append(MoveLine(Moved.SKIPPED, None, file.path, file.size, why))
        elif self._pointer not in self._by_key:
            why = f"it names checkpoint {keys.checkpoint_id(self._pointer)}, which is not there"
            self._strays.append(MoveLine(Moved.SKIPPED, None, file.path, file.size, why))
        else:
            self._pointer_text = raw.decode()

    def _report(self) -> MoveReport:
        latest = self._latest()
        notes = []
        pointer, named = self._plan.pointer, self._pointer
        if named in self._by_key and latest != named and pointer:
            told = "there is none" if latest is None else f"the latest is {keys.checkpoint_id(latest)}"
            notes.append(f"{pointer.path} says {keys.checkpoint_id(named)}, but {told}")
        strays = [MoveLine(Moved.SKIPPED, None, path, 0, why) for path, why in self._plan.strays.items()]
        return MoveReport(
            stream=self._stream.label,
            place=self._storage.label,
            layout=self._plan.layout,
            lines=[
                *(self._lines[key] for key in sorted(self._lines)),
                *sorted([*strays, *self._strays], key=lambda one: one.file),
            ],
            latest=None if latest is None else keys.checkpoint_id(latest),
            notes=notes,
            dry_run=self._dry_run,
        )

    def _latest(self) -> str | None:
        """Return the key of the stream's latest, or what it would be."""
        if not self._dry_run:
            newest = lifecycle.latest(self._stream.history())
            return newest.key if newest else None
        new = {key: one for key, one in self._loaded.items() if key not in self._there}
        found = lifecycle.latest({**self._there, **new})
        return found.key if found else None


def _promote(checkpoint: Checkpoint) -> dict[str, Any] | None:
    return {"change": Change.PROMOTED} if checkpoint.status is Status.PREPARED else None


def _rows(columns: Mapping[str, Any], data: bytes, how: Writing) -> list[dict[str, Any]]:
    """Return the chunk rows of an artifact."""
    cut = {**columns, "cutting": str(how.cutting), "hashing": str(how.hashing)}
    return list(cutting.chunk_rows(cut, [data], how))
