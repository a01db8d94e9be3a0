"""Export: the live checkpoints of a stream, and what they stand on, become files of another store.

As atomic as a bucket can be: a checkpoint's bytes come first, its manifest after, its parent's before, and the pointer
last of all. A target that holds anything else than this very export is refused.
"""

import base64
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from catalog import artifacts, chains, chunks, keys, lifecycle
from catalog.chunks import Kept
from catalog.errors import BrokenChainError, CatalogError, CheckpointNotFoundError, InvalidInputError
from catalog.lifecycle import Checkpoint, History, Status
from catalog.manifest import (
    CheckpointManifest,
    CheckpointManifestV2,
    StateManifest,
    artifact_path,
    parse_any,
    parse_stored,
)
from catalog.moving import contents, layouts
from catalog.moving.contents import SOURCE_TEXT
from catalog.moving.importing import THREADS
from catalog.moving.layouts import FORMATS, Layout
from catalog.moving.report import Moved, MoveLine, MoveReport
from catalog.moving.storage import FileFault, Storage, is_unfinished
from catalog.protocol import Stream
from catalog.tables.port import In
from catalog.threads import start, workers
from catalog.verify import Progress, chain_links

_USUAL = {
    keys.Format.MANIFEST_V1: Layout.OBJECTS,
    keys.Format.MANIFEST_V2: Layout.PARTITIONS,
    keys.Format.STATE_V1: Layout.STATES,
}


class _Unfit(CatalogError):
    """A checkpoint cannot be exported; the message says why."""


@dataclass(frozen=True, slots=True)
class _Files:
    """What a checkpoint is exported as."""

    key: str
    manifest: str
    """The file of the manifest, or of the state."""
    parts: Mapping[str, str]
    """Files of artifacts, by artifact."""
    fault: str | None
    """What was wrong with it when it was imported."""
    clash: str | None = None
    """Why it cannot have these names."""

    @property
    def all(self) -> set[str]:
        """The names of all its files."""
        return {self.manifest, *self.parts.values()}


class Exporter:
    """One run of an export."""

    def __init__(
        self,
        stream: Stream,
        storage: Storage,
        *,
        layout: Layout | None = None,
        threads: int = THREADS,
        dry_run: bool = False,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            stream: where from.
            storage: where to.
            layout: how files are named; by default as those that were imported, else as the stream's format wants it.
            threads: how many checkpoints are written at a time.
            dry_run: read and compare everything, and write nothing.
            progress: is told how far it has come, after every checkpoint.
        """
        self._stream = stream
        self._storage = storage
        self._threads = threads
        self._dry_run = dry_run
        self._progress = progress
        # `checkpoints` is read first, `artifacts` after.
        history = stream.history()
        if not history:
            raise CheckpointNotFoundError(f"there is no stream {stream.label!r} to export", stream=stream.label)
        self._ever = history.keys()
        self._needed = chains.needed_by(history, lifecycle.live_keys(history))
        # What a live one stands on goes along, also from the trash: without it the chain would not be whole.
        self._chosen: History = {
            key: one for key, one in history.items() if one.live or (one.there and key in self._needed)
        }
        self._sources = {key: one.source for key, one in self._chosen.items()}
        self._layout = _layout(layout, self._chosen, self._sources)
        self._kept = self._inventory()
        self._files = self._name_files()
        self._lines: list[MoveLine] = []
        self._moved, self._of_bytes = 0, sum(self._size(files) for files in self._files.values())

    def run(self) -> MoveReport:
        """Export, and say what became of every checkpoint."""
        there = {file.path for file in self._storage.list(missing_ok=True) if not is_unfinished(file.path)}
        self._refuse_others(there)
        self._refuse_other_pointer(there)
        with workers(self._threads) as pool:
            self._refuse_other_manifests(pool, there)
            if not self._dry_run:
                self._storage.clear_unfinished()
            done: dict[str, Future[MoveLine]] = {}
            for key in _parents_first(self._chosen):
                done[key] = start(pool, self._export, self._files[key], done.get(_saved_on(self._chosen[key])), there)
            for line in (done[key].result() for key in sorted(done)):
                self._tell(line)
        latest = lifecycle.latest(
            {key: self._chosen[key] for key in done if done[key].result().outcome is not Moved.SKIPPED}
        )
        if latest and self._layout in layouts.POINTERS and not self._dry_run:
            self._storage.write(layouts.POINTERS[self._layout], [self._pointer(latest.key)])
        return MoveReport(
            stream=self._stream.label,
            place=self._storage.label,
            layout=self._layout,
            lines=self._lines,
            latest=latest.id if latest else None,
            dry_run=self._dry_run,
        )

    # -- naming ----------------------------------------------------------------------------------------------------

    def _inventory(self) -> dict[str, dict[str, Kept]]:
        """Return the artifacts of every chosen checkpoint, what was folded included, by key and path."""
        rows = artifacts.facts(self._stream.engine, self._stream.stream, [In("checkpoint_key", tuple(self._chosen))])
        own = defaultdict(list)
        for row in rows:
            if row["attempt"] in self._chosen[row["checkpoint_key"]].attempts:
                own[row["checkpoint_key"]].append(row)
        return {key: chunks.inventory(own[key]) for key in self._chosen}

    def _name_files(self) -> dict[str, _Files]:
        """Return the files of every checkpoint: as they were called where they came from, if nobody else is.

        Nobody else can be called as usual for a checkpoint, so who came with such a name gives it up for its own usual
        one. Of one name and the same bytes there may be many: a manifest may list a file of another checkpoint.
        """
        called = {key: self._called(key) for key in self._chosen}
        # Manifests of `partitions` name their files, which cannot be called otherwise.
        firm = {key for key in called if not called[key] or self._layout is Layout.PARTITIONS}
        named: dict[str, _Files] = {}
        users: dict[str, dict[str, str]] = defaultdict(dict)
        """Whose a name is, and what tells the bytes."""
        waiting = sorted(self._chosen, reverse=True)

        def give_way(key: str) -> None:
            called[key] = {}
            firm.add(key)
            waiting.append(key)

        while waiting:
            key = waiting.pop()
            files = self._files_of(self._chosen[key], called[key])
            claims = self._claims(files)
            others = {other for name, what in claims.items() for other, its in users[name].items() if its != what}
            if others and key not in firm:
                give_way(key)
                continue
            named[key] = files
            if taken := sorted(others & firm):
                why = f"checkpoint {keys.checkpoint_id(taken[0])} has other bytes under the name of one of its files"
                named[key] = replace(files, clash=why)
                continue
            for other in others:
                for name in self._claims(named.pop(other)):
                    del users[name][other]
                give_way(other)
            for name, what in claims.items():
                users[name][key] = what
        return named

    def _called(self, key: str) -> Mapping[str, str]:
        """Return what files of a checkpoint were called where it came from, by artifact, if not as usual."""
        source = self._sources[key]
        return source.get("files", {}) if source.get("layout") == self._layout else {}

    def _claims(self, files: _Files) -> dict[str, str]:
        """Return the names of a checkpoint's files, each with what tells its bytes from others'."""
        kept = self._kept[files.key]
        return {name: kept[path].sha256 or files.key for path, name in files.parts.items()} | {
            files.manifest: files.key
        }

    def _files_of(self, checkpoint: Checkpoint, called: Mapping[str, str]) -> _Files:
        folds = {fold.path for fold in checkpoint.folded.values()}
        wanted = [path for path in self._kept[checkpoint.key] if path != SOURCE_TEXT and path not in folds]
        if self._layout is Layout.STATES:
            wanted = []
        usual = {path: contents.usual_file(self._layout, checkpoint.key, path) for path in ("", *wanted)}
        files = {path: called.get(path, usual[path]) for path in usual}
        return _Files(checkpoint.key, files.pop(""), files, self._sources[checkpoint.key].get("fault"))

    def _size(self, files: _Files) -> int:
        """Return the bytes of a checkpoint's artifacts."""
        return sum(self._kept[files.key][path].size for path in files.parts)

    def _pointer(self, key: str) -> bytes:
        source = self._sources[key]
        if source.get("layout") == self._layout and "pointer" in source:
            return str(source["pointer"]).encode()
        return layouts.write_pointer(self._layout, key)

    # -- refusing --------------------------------------------------------------------------------------------------

    def _refuse_others(self, there: set[str]) -> None:
        """Refuse a target with a file that this export does not write."""
        own = {name for files in self._files.values() for name in files.all} | {layouts.POINTERS.get(self._layout, "")}
        own |= {
            artifact_path(key, fold.operator, fold.partition, delta=False)
            for key, one in self._chosen.items()
            for fold in one.folded.values()
        }
        if others := sorted(there - own):
            raise InvalidInputError(
                f"{self._storage.label} holds {others[0]}, which is no part of this export: pass an empty place, or "
                "one where the same export was interrupted"
            )

    def _refuse_other_pointer(self, there: set[str]) -> None:
        """Refuse a target whose pointer names nothing of this stream; an earlier export's may name what is gone now."""
        pointer = layouts.POINTERS.get(self._layout)
        if pointer in there and layouts.read_pointer(self._layout, self._storage.read(pointer)) not in self._ever:
            raise InvalidInputError(
                f"{self._storage.label} holds another {pointer} than this export writes, which names no checkpoint of "
                f"stream {self._stream.label!r}: pass an empty place"
            )

    def _refuse_other_manifests(self, pool: ThreadPoolExecutor, there: set[str]) -> None:
        """Refuse a target with another content of a checkpoint, before anything is written."""

        def differs(files: _Files) -> str | None:
            try:
                manifest, *_ = self._manifest(self._find(files.key), files)
            except CatalogError:
                return None  # is told when it is exported
            return None if self._storage.read(files.manifest) == manifest else files.manifest

        some = [files for files in self._files.values() if files.manifest in there]
        for other in filter(None, pool.map(differs, some)):
            raise InvalidInputError(
                f"{self._storage.label} holds another {other} than this export writes: pass an empty place"
            )

    # -- writing ---------------------------------------------------------------------------------------------------

    def _export(self, files: _Files, parent: Future[MoveLine] | None, there: set[str]) -> MoveLine:
        checkpoint = self._chosen[files.key]
        size = self._size(files)
        try:
            if files.clash:
                raise _Unfit(files.clash)
            found = self._find(files.key)
            manifest, parts, note = self._manifest(found, files)
            for name in (files.manifest, *parts.values()):
                _check_inside(name)
            before = [name in there for name in (files.manifest, *parts.values())]
            for path, name in parts.items():
                self._write(found, path, name, name in there)
            if parent and parent.result().outcome is Moved.SKIPPED:
                raise _Unfit(f"its parent {_saved_on(checkpoint)} was not exported")
            if files.manifest not in there and not self._dry_run:
                self._storage.write(files.manifest, [manifest])
            outcome = Moved.PRESENT if all(before) else Moved.EXPORTED
            note = "; ".join(filter(None, (note, self._from_trash(found)))) or None
            return MoveLine(outcome, checkpoint.id, files.manifest, size, files.fault, note)
        except CatalogError as error:
            return MoveLine(Moved.SKIPPED, checkpoint.id, files.manifest, size, str(error))

    def _find(self, key: str) -> Checkpoint:
        """Return a checkpoint as it is now, with its manifest; one that a live one stands on need not be live."""
        found = self._stream.find(key)
        return found if found and found.there and key in self._needed else self._stream.require_live(key, found)

    def _from_trash(self, found: Checkpoint) -> str | None:
        """Return why a checkpoint goes out that is not live, None if it is."""
        if found.live:
            return None
        where = "in the trash" if found.status is Status.TRASHED else found.status
        return f"it is {where} here, and goes out because {keys.checkpoint_id(self._needed[found.key])} stands on it"

    def _manifest(self, found: Checkpoint, files: _Files) -> tuple[bytes, Mapping[str, str], str | None]:
        """Return a manifest's bytes, the files that go with it, by artifact, and what is to be said about it."""
        if self._layout is Layout.STATES:
            return self._state(found), {}, None
        if files.fault is None:
            manifest = parse_any(found, self._stream.label)
            if isinstance(manifest, CheckpointManifest) and manifest.artifact_handles():
                raise _Unfit("its state is in checkpoint streams, for which the layout has no place")
            parent = contents.parent_of(manifest)
            if isinstance(manifest, CheckpointManifestV2) and parent and parent not in self._chosen:
                return self._folded(found, manifest, files)
        if found.content == found.origin and SOURCE_TEXT in self._kept[files.key]:
            raw = self._stream.read(files.key, SOURCE_TEXT, from_trash=not found.live)
            return raw, files.parts, None
        if found.content is None or found.content.manifest is None:
            raise _Unfit("it has no manifest")
        return found.content.manifest.encode(), files.parts, None

    def _state(self, checkpoint: Checkpoint) -> bytes:
        content = checkpoint.content
        if content is None or content.manifest is None:  # was imported as corrupt
            return self._stream.read(checkpoint.key, StateManifest.STATE_PATH)
        manifest = parse_stored(StateManifest, checkpoint, self._stream.label)
        if manifest.state_b64 is None:
            return self._stream.read(checkpoint.key, StateManifest.STATE_PATH)
        return base64.b64decode(manifest.state_b64, validate=True)

    def _folded(
        self, checkpoint: Checkpoint, manifest: CheckpointManifestV2, files: _Files
    ) -> tuple[bytes, Mapping[str, str], str]:
        """Return a manifest that lists what its chains were folded into, because what they stood on is gone."""
        key, parts = checkpoint.key, {}
        operators: dict[str, list[Any]] = {name: [] for name in manifest.operators}
        owners = {entry.path: name for name, entry in manifest.entries()}
        owners |= {fold.path: fold.operator for fold in checkpoint.folded.values()}
        readable = replace(checkpoint, status=Status.PREPARED)  # its folds are the same in the trash
        try:
            for _, entry in chain_links([key], {key: readable}, manifest, self._stream.label):
                operator = owners[entry.path]
                name = artifact_path(key, operator, entry.partition_id, delta=entry.is_delta)
                parts[entry.path] = files.parts.get(entry.path, name)
                operators[operator].append(entry.model_copy(update={"path": parts[entry.path]}))
        except BrokenChainError as error:
            raise _Unfit(str(error)) from error
        changed = {
            "operators": {
                name: manifest.operators[name].model_copy(update={"partitions": entries})
                for name, entries in operators.items()
            },
            "parent_id": None,
        }
        folded = manifest.model_copy(update=changed).checked()
        return folded.canonical().encode(), parts, "its manifest lists what its chains were folded into"

    def _write(self, found: Checkpoint, path: str, name: str, there: bool) -> None:
        """Write an artifact's file, or see that the one that is there is the same; a dry run sees what can be read."""
        pieces = self._stream.stream_chunks(found.key, path, from_trash=not found.live)
        if not there and not self._dry_run:
            self._storage.write(name, pieces)
            return
        mine = _digest(pieces)
        if there and _digest(self._storage.pieces(name)) != mine:
            raise FileFault(f"{name} is already there with other bytes, which stay as they are", path=name)

    def _tell(self, line: MoveLine) -> None:
        self._lines.append(line)
        if self._progress:
            self._moved += line.bytes
            self._progress(Progress(len(self._lines), len(self._chosen), self._moved, self._of_bytes))


def _layout(wanted: Layout | None, chosen: History, sources: Mapping[str, Mapping[str, Any]]) -> Layout:
    format = next((keys.Format(one.head.format) for one in chosen.values()), keys.Format.MANIFEST_V1)
    if wanted and FORMATS[wanted] is not format:
        raise InvalidInputError(f"the stream holds {format} checkpoints, which the layout {wanted} has no place for")
    imported = [source["layout"] for _, source in sorted(sources.items()) if source]
    return wanted or (Layout(imported[-1]) if imported else _USUAL[format])


def _digest(pieces: Iterable[bytes | memoryview]) -> bytes:
    sha256 = hashlib.sha256()
    for piece in pieces:
        sha256.update(piece)
    return sha256.digest()


def _saved_on(checkpoint: Checkpoint) -> str:
    """Return what a checkpoint stood on when it was saved, which its manifest names, folded or not; '' is nothing."""
    return (checkpoint.origin.parent if checkpoint.origin else None) or ""


def _parents_first(chosen: History) -> Iterator[str]:
    """Yield all keys, each after the one that it stands on."""
    seen: set[str] = set()
    for key in chosen:
        line = []
        at = key
        while at in chosen and at not in seen:
            seen.add(at)
            line.append(at)
            at = _saved_on(chosen[at])
        yield from reversed(line)


def _check_inside(name: str) -> None:
    """Refuse a file name that leads out of the target."""
    if any(step in ("", ".", "..") for step in name.split("/")):
        raise _Unfit(f"{name!r} cannot be a file's name")
