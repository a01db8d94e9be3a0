"""Files as a checkpoint: saved by name, unchanged ones shared with the one before, and brought back as they were.

Names and bytes are kept. Permissions, times and empty folders are not; a link to a file becomes the file.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from catalog import keys, restore
from catalog.errors import (
    BasePurgedError,
    CatalogError,
    CheckpointExistsError,
    CheckpointStreamError,
    CorruptError,
    InvalidInputError,
)
from catalog.handles import StateHandle
from catalog.manifest import CheckpointManifest, parse_any
from catalog.protocol import Stream
from catalog.reader import ROUNDS
from catalog.snapshot import CheckpointOptions, ExecutionType, SnapshotStrategyRunner
from catalog.store import CheckpointStore
from catalog.strategies import DirectorySnapshotStrategy, FilesSnapshotStrategy, below, require_file
from catalog.stream_factory import open_handle

OPERATOR = "files"
"""Under which a manifest lists them."""


def find(paths: Sequence[Path]) -> dict[str, Path]:
    """Return the files to save by name: those of one folder by their path below it, others by their own name.

    Raises:
        InvalidInputError: there are none, or something is there that cannot be saved as a file.
    """
    if len(paths) == 1 and paths[0].is_dir():
        found = {file.relative_to(paths[0]).as_posix(): file for file in below(paths[0])}
    else:
        found = {}
        for path in paths:
            if path.is_dir():
                raise InvalidInputError(f"{path} is a folder: give one folder, or files")
            if path.name in found:
                raise InvalidInputError(f"two files are called {path.name!r}: put them into one folder, and give that")
            found[path.name] = path
    for name, file in found.items():
        require_file(file)
        keys.text(name, f"the name of {str(file)!r}")
    if not found:
        raise InvalidInputError(f"there are no files in {paths[0]}" if paths else "there are no files to save")
    return found


def save(
    store: CheckpointStore,
    files: Mapping[str, Path],
    *,
    checkpoint_id: int | None = None,
    epoch: int | None = None,
    **fields: Any,
) -> CheckpointManifest:
    """Save files as a checkpoint and return its manifest; what the latest one has already is not written again.

    Args:
        store: the stream's store.
        files: by name, see `find`.
        checkpoint_id: by default the next one, asked for again if somebody else is faster.
        epoch: by default one more than the latest has.
        fields: further fields of the manifest.

    Raises:
        CheckpointExistsError: the id is taken.
        CatalogError: a file changed meanwhile; nothing was saved.
    """
    for rounds_left in reversed(range(ROUNDS)):
        try:
            return _save(store, files, store.next_id() if checkpoint_id is None else checkpoint_id, epoch, fields)
        except CatalogError as error:
            told = error.__cause__ if isinstance(error, CheckpointStreamError) else error
            was_free = checkpoint_id is None and isinstance(told, CheckpointExistsError)
            if not rounds_left or not (was_free or isinstance(told, BasePurgedError)):
                raise
    raise AssertionError("the last round returns or raises")


def _save(
    store: CheckpointStore, files: Mapping[str, Path], id: int, epoch: int | None, fields: Mapping[str, Any]
) -> CheckpointManifest:
    try:
        latest = store.load_latest()
        readable = True
    except CorruptError:  # nothing is shared with what cannot be read
        latest, readable = None, False
    if epoch is None:
        epoch = latest.epoch + 1 if latest else 1
    manifest = CheckpointManifest.new(id, epoch, **fields)
    factory = store.stream_factory(id, share=readable)
    before = {name: _fingerprint(file) for name, file in files.items()}
    runner = SnapshotStrategyRunner("files", FilesSnapshotStrategy(files), ExecutionType.SYNCHRONOUS)
    options = CheckpointOptions(previous=latest.operator_handles.get(OPERATOR, {}) if latest else {})
    handles = runner.snapshot(id, manifest.timestamp_ms, factory.of_operator(OPERATOR), options).result().handles
    changed = [file for name, file in files.items() if _fingerprint(file) != before[name]]
    if changed:
        factory.discard(handles.values())
        raise CatalogError(f"{changed[0]} changed while it was saved: nothing was saved, try again when it is still")
    manifest = manifest.model_copy(update={"operator_handles": {OPERATOR: dict(handles)}})
    store.save_with_handles(manifest, factory)
    return manifest


def _fingerprint(file: Path) -> tuple[int, int, int]:
    found = file.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def bring_back(stream: Stream, key: str, folder: str | os.PathLike[str]) -> Path:
    """Write a live checkpoint into a new folder, verified, all of it or nothing, and return the folder.

    Files come back as they were saved; of other checkpoints what restore.materialize writes.
    """
    target = restore.new_folder(folder)
    manifest = parse_any(stream.require_live(key, stream.find(key)), stream.label)
    if not isinstance(manifest, CheckpointManifest) or manifest.operator_handles.keys() != {OPERATOR}:
        return restore.materialize(stream, key, folder)
    with restore.writing(target) as beside:
        DirectorySnapshotStrategy.restore(_Opened(stream, key, manifest.operator_handles[OPERATOR]), beside)
    return target


class _Opened(Mapping[str, BinaryIO]):
    """Files by name, each opened when it is asked for."""

    def __init__(self, stream: Stream, key: str, handles: Mapping[str, StateHandle]) -> None:
        self._stream = stream
        self._key = key
        self._handles = handles

    def __getitem__(self, name: str) -> BinaryIO:
        return open_handle(self._stream, self._handles[name], through=self._key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._handles)

    def __len__(self) -> int:
        return len(self._handles)
