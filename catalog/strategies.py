"""Ready snapshot strategies: bytes per partition, a mapping as Arrow, a directory of files."""

import fcntl
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from catalog import cutting
from catalog.errors import InvalidInputError
from catalog.handles import CheckpointedStateScope, InlineHandle, StateHandle
from catalog.snapshot import (
    CheckpointOptions,
    SnapshotResources,
    SnapshotResult,
    SnapshotResultSupplier,
    SnapshotStrategy,
    a_mapping,
)
from catalog.stream_factory import CheckpointStreamFactory

log = logging.getLogger(__name__)

MAPPING_NAME = "mapping.arrow"
_MAPPING_BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class Held(SnapshotResources):
    """State that memory holds until the snapshot is written."""

    state: Any

    def release(self) -> None:
        """Nothing to give back: memory goes with the last reference."""


class PartitionSnapshotStrategy(SnapshotStrategy[Held]):
    """Writes bytes per partition of an operator, each under the name `partition-{n}`."""

    def __init__(self, state: Callable[[], Mapping[int, bytes | memoryview]]) -> None:
        """Make it.

        Args:
            state: gives each partition's bytes as they are now; called in the processing thread, so it should be
                quick, and its bytes must not change afterwards.
        """
        if not callable(state):
            raise InvalidInputError(f"state must be a function that gives bytes by partition, not {state!r}")
        self._state = state

    def sync_prepare_resources(self, checkpoint_id: int) -> Held:  # noqa: ARG002 - the interface
        """See SnapshotStrategy."""
        return Held(dict(self._state()))

    def async_snapshot(
        self,
        resources: Held,
        checkpoint_id: int,  # noqa: ARG002 - the interface
        timestamp: int,  # noqa: ARG002 - the interface
        stream_factory: CheckpointStreamFactory,
        options: CheckpointOptions,  # noqa: ARG002 - the interface
    ) -> SnapshotResultSupplier:
        """See SnapshotStrategy."""

        def write() -> SnapshotResult:
            handles = {}
            for partition, data in sorted(resources.state.items()):
                with stream_factory.create_checkpoint_state_output_stream(CheckpointedStateScope.SHARED) as stream:
                    stream.write(data)
                    handle = stream.close_and_get_handle()
                if handle is not None:
                    handles[f"partition-{partition}"] = handle
            return SnapshotResult(handles)

        return write

    @staticmethod
    def restore(files: Mapping[str, BinaryIO]) -> dict[int, bytes]:
        """Return each partition's bytes; one that had none is not there."""
        return {int(name.removeprefix("partition-")): file.read() for name, file in files.items()}


class MappingSnapshotStrategy(SnapshotStrategy[Held]):
    """Writes a mapping of plain values as an Arrow IPC stream with the columns key and value."""

    def __init__(self, mapping: Mapping[Any, Any], key_type: pa.DataType, value_type: pa.DataType) -> None:
        """Make it.

        Args:
            mapping: the operator's state, which may change meanwhile; keys and values must be immutable.
            key_type: Arrow's type of the keys.
            value_type: Arrow's type of the values.
        """
        self._mapping = a_mapping(mapping, "mapping")
        self._schema = pa.schema([("key", key_type), ("value", value_type)])

    def sync_prepare_resources(self, checkpoint_id: int) -> Held:  # noqa: ARG002 - the interface
        """See SnapshotStrategy; a copy of the references."""
        return Held(dict(self._mapping))

    def async_snapshot(
        self,
        resources: Held,
        checkpoint_id: int,  # noqa: ARG002 - the interface
        timestamp: int,  # noqa: ARG002 - the interface
        stream_factory: CheckpointStreamFactory,
        options: CheckpointOptions,  # noqa: ARG002 - the interface
    ) -> SnapshotResultSupplier:
        """See SnapshotStrategy."""

        def write() -> SnapshotResult:
            items = iter(resources.state.items())
            if not resources.state:
                return SnapshotResult.empty()
            with stream_factory.create_checkpoint_state_output_stream(CheckpointedStateScope.SHARED) as stream:
                with pa.ipc.new_stream(stream, self._schema) as writer:
                    while some := list(islice(items, _MAPPING_BATCH_ROWS)):
                        columns = [
                            pa.array(column, field.type)
                            for column, field in zip(zip(*some, strict=True), self._schema, strict=True)
                        ]
                        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))
                handle = stream.close_and_get_handle()
            assert handle is not None
            return SnapshotResult({MAPPING_NAME: handle})

        return write

    @staticmethod
    def restore(files: Mapping[str, BinaryIO]) -> dict[Any, Any]:
        """Return the mapping; empty if it had no entry."""
        if MAPPING_NAME not in files:
            return {}
        found: dict[Any, Any] = {}
        with pa.ipc.open_stream(files[MAPPING_NAME]) as reader:
            for batch in reader:
                found.update(zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True))
        return found


@dataclass(frozen=True, slots=True)
class NamedFiles(SnapshotResources):
    """Files by the name that each is written under."""

    files: Mapping[str, Path]

    def release(self) -> None:
        """Nothing to give back: the files are somebody else's."""


@dataclass(frozen=True, slots=True)
class LinkedFiles(NamedFiles):
    """Hard links to files as they were, in a folder of their own."""

    folder: Path
    lock: int | None
    """Says that the folder is in use; None where the file system has no locks."""

    def release(self) -> None:
        """Remove the links; the files themselves stay."""
        try:
            shutil.rmtree(self.folder)
        finally:
            if self.lock is not None:
                os.close(self.lock)


class FilesSnapshotStrategy(SnapshotStrategy[NamedFiles]):
    """Writes files that nobody changes meanwhile, each under a name.

    A file that the previous checkpoint has with the same content is not written again; its handle is used on.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        """Make it.

        Args:
            files: by name.
        """
        self._files = a_mapping(files, "files")

    def sync_prepare_resources(self, checkpoint_id: int) -> NamedFiles:  # noqa: ARG002 - the interface
        """See SnapshotStrategy."""
        return NamedFiles(self._files)

    def async_snapshot(
        self,
        resources: NamedFiles,
        checkpoint_id: int,  # noqa: ARG002 - the interface
        timestamp: int,  # noqa: ARG002 - the interface
        stream_factory: CheckpointStreamFactory,
        options: CheckpointOptions,
    ) -> SnapshotResultSupplier:
        """See SnapshotStrategy."""

        def write() -> SnapshotResult:
            handles: dict[str, StateHandle] = {}
            for name, file in resources.files.items():
                earlier = options.previous.get(name)
                if earlier is not None and _is_same(file, earlier) and stream_factory.could_reuse_state_handle(earlier):
                    stream_factory.reuse_previous_state_handle([earlier])
                    handles[name] = earlier
                else:
                    handles[name] = _upload(stream_factory, file)
            return SnapshotResult(handles)

        return write

    @staticmethod
    def restore(files: Mapping[str, BinaryIO], folder: str | os.PathLike[str]) -> Path:
        """Write the files into a new or empty folder, and return it."""
        target = Path(folder)
        if target.exists() and any(target.iterdir()):
            raise InvalidInputError(f"{target} has files already: pass a new or empty folder")
        target.mkdir(parents=True, exist_ok=True)
        for name, file in files.items():
            place = target / name
            if not place.resolve().is_relative_to(target.resolve()):
                raise InvalidInputError(f"the name {name!r} leads out of the folder")
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("wb") as out:
                shutil.copyfileobj(file, out, 1 << 20)
        return target


class DirectorySnapshotStrategy(FilesSnapshotStrategy):
    """Writes a directory of files that are never changed once written, as RocksDB keeps its state.

    The synchronous part makes hard links, so files may be removed meanwhile. A link to a file is saved as the file;
    what is neither, such as a link to a folder, is refused: state must not be incomplete and nobody know.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Make it, and remove the links that a run left which was killed.

        Args:
            directory: the files, in folders too. Links are made beside it, on the same disk.
        """
        self._directory = Path(directory)
        self._prefix = f".{self._directory.name}.links-"
        try:
            self._remove_left_links()
        except OSError:
            log.exception("links left beside %s could not be removed: removed files keep their space", self._directory)

    def _remove_left_links(self) -> None:
        parent = self._directory.parent
        for folder in list(parent.iterdir()) if parent.is_dir() else []:
            # Whoever uses one holds its lock as long as the process lives.
            ours = folder.name.startswith(self._prefix)
            if ours and (lock := _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)) is not None:
                LinkedFiles({}, folder, lock).release()

    def _new_folder(self, checkpoint_id: int) -> tuple[Path, int | None]:
        """Return a new folder for links, with its lock."""
        while True:
            parent, prefix = self._directory.parent, f"{self._prefix}{checkpoint_id}-"
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            lock = _locked(folder, fcntl.LOCK_EX)
            if folder.is_dir():
                return folder, lock
            if lock is not None:  # somebody took it for one that was left, before it was locked
                os.close(lock)

    def sync_prepare_resources(self, checkpoint_id: int) -> LinkedFiles:
        """See SnapshotStrategy."""
        if not self._directory.is_dir():
            raise InvalidInputError(f"{str(self._directory)!r} is not a folder: there is no state to save")
        folder, lock = self._new_folder(checkpoint_id)
        files: dict[str, Path] = {}
        made = LinkedFiles(files, folder, lock)
        try:
            for number, file in enumerate(below(self._directory)):
                require_file(file)
                link = folder / str(number)
                os.link(file.resolve(), link)  # what a symbolic link leads to: a relative one leads nowhere from there
                files[file.relative_to(self._directory).as_posix()] = link
        except BaseException:
            made.release()
            raise
        return made


def _locked(folder: Path, how: int) -> int | None:
    """Lock a folder until its descriptor is closed, at the latest with the process; None if that cannot be done."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(lock, how)
    except OSError:  # somebody has it, or the file system has no locks: then nobody takes it for left, either
        os.close(lock)
        return None
    return lock


def below(folder: Path) -> Iterator[Path]:
    """Yield all that is in a folder and below, except folders, in order; what cannot be listed is an error."""

    def fail(error: OSError) -> None:
        raise error

    for root, folders, names in os.walk(folder, onerror=fail):
        folders.sort()
        links = [name for name in folders if Path(root, name).is_symlink()]  # are not walked into
        yield from (Path(root, name) for name in sorted([*names, *links]))


def require_file(file: Path) -> None:
    """Refuse what cannot be saved as a file."""
    if not file.is_file():
        there = file.exists() or file.is_symlink()
        what = "is not a file, nor a link to one" if there else "is not there"
        raise InvalidInputError(f"{str(file)!r} {what}: nothing was saved")


def _is_same(file: Path, handle: StateHandle) -> bool:
    if file.stat().st_size != handle.size_bytes:
        return False
    with file.open("rb") as opened:
        if isinstance(handle, InlineHandle):
            return hashlib.file_digest(opened, "sha256").hexdigest() == handle.sha256
        return cutting.fingerprint(iter(lambda: opened.read(cutting.CHUNK_BYTES), b""), handle.cutting) == handle.sha256


def _upload(stream_factory: CheckpointStreamFactory, file: Path) -> StateHandle:
    with (
        file.open("rb") as opened,
        stream_factory.create_checkpoint_state_output_stream(CheckpointedStateScope.SHARED) as stream,
    ):
        shutil.copyfileobj(opened, stream, 1 << 20)
        handle = stream.close_and_get_handle()
    # An empty file is a file too.
    return handle if handle is not None else InlineHandle.of(b"")
