"""Files in a folder or a bucket, through pyarrow: listed, read in pieces, and written whole or not at all."""

import os
import stat
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pa_fs

from catalog.errors import CatalogError, InvalidInputError
from catalog.moving.layouts import FileFacts
from catalog.tables.commits import first_line
from catalog.tables.locks import fsync
from catalog.tables.names import path_place

PIECE_BYTES = 4 << 20
_BUFFER_BYTES = 64 << 10
"""Small reads are of so much: a bucket is asked for every one."""
_UNFINISHED = ".unfinished-export-"
"""What a file's name begins with while it is being written to a local disk."""


class FileFault(CatalogError):
    """A file could not be read or written; the storage's own words are in the message."""


class Storage:
    """The files below one folder; safe to share by threads."""

    def __init__(self, place: str | os.PathLike[str], options: Mapping[str, str] | None = None) -> None:
        """Know where they are; nothing is read yet.

        Args:
            place: a local folder, or an address such as s3://bucket/folder.
            options: for S3 those that deltalake takes, such as AWS_ENDPOINT_URL; what is missing, the environment says.
        """
        found = path_place(place)
        self.label = str(found)
        self._local = found.local_folder
        try:
            self._files, self._root = _filesystem(self.label, options or {})
        except (OSError, ValueError, pa.ArrowException) as error:
            raise InvalidInputError(f"{self.label} cannot be reached: {first_line(error)}") from error

    def list(self, *, missing_ok: bool = False) -> list[FileFacts]:
        """Return everything that is no folder: links that lead nowhere, pipes and sockets too, which `read` refuses.

        What an export left unfinished, and links to folders that are not followed, are told to be strays.

        Args:
            missing_ok: a folder that is not there is empty, instead of an error.
        """
        try:
            found = list(self._everything(missing_ok=missing_ok))
        except FileNotFoundError as error:
            raise InvalidInputError(f"there is nothing at {error.filename or self.label}") from error
        except (OSError, UnicodeError, pa.ArrowException) as error:
            raise InvalidInputError(f"{self.label} cannot be listed: {first_line(error)}") from error
        return [FileFacts(one.path[len(self._root) + 1 :], one.size or 0, one.mtime, why) for one, why in found]

    def read(self, path: str) -> bytes:
        """Return a file's bytes."""
        return b"".join(self.pieces(path))

    def pieces(self, path: str) -> Iterator[bytes]:
        """Yield a file's bytes in pieces of at most 4 MiB."""
        with self.reading(path) as read:
            while piece := read(PIECE_BYTES):
                yield piece

    @contextmanager
    def reading(self, path: str) -> Iterator[Callable[[int], bytes]]:
        """Give what reads so many of a file's next bytes, or all that are left."""
        with _told(path, "read"):
            if self._local and not stat.S_ISREG((self._local / path).stat().st_mode):  # to open a pipe waits for ever
                raise OSError("it is a pipe, a socket, a device or a folder")
            with self._files.open_input_stream(self._at(path), compression=None, buffer_size=_BUFFER_BYTES) as file:
                yield file.read

    def write(self, path: str, pieces: Iterable[bytes | memoryview]) -> None:
        """Write a file, of which nothing is seen before all of it is there."""
        if self._local:
            self._write_durably(self._local / path, pieces)
            return
        # A stream that is closed makes the object appear, also after an error: small ones are complete beforehand.
        ready: list[bytes | memoryview] = []
        rest = iter(pieces)
        for piece in rest:
            ready.append(piece)
            if len(ready) * PIECE_BYTES > 64 << 20:
                break
        with _told(path, "written"):
            file = self._files.open_output_stream(self._at(path), compression=None)
            try:
                for piece in ready:
                    file.write(piece)
                for piece in rest:
                    file.write(piece)
            except BaseException:
                with suppress(OSError, pa.ArrowException):
                    file.close()
                self._files.delete_file(self._at(path))
                raise
            file.close()

    def _write_durably(self, file: Path, pieces: Iterable[bytes | memoryview]) -> None:
        unfinished = file.with_name(f"{_UNFINISHED}{uuid.uuid4().hex}")
        with _told(str(file), "written"):
            new_folders = [folder for folder in (file.parent, *file.parent.parents) if not folder.exists()]
            file.parent.mkdir(parents=True, exist_ok=True)
            try:
                with unfinished.open("wb") as out:
                    for piece in pieces:
                        out.write(piece)
                    out.flush()
                    os.fsync(out.fileno())
                unfinished.rename(file)
            except BaseException:
                unfinished.unlink(missing_ok=True)
                raise
            for folder in (file.parent, *(one.parent for one in new_folders)):
                fsync(folder)

    def clear_unfinished(self) -> None:
        """Remove what a killed export left of files that it was writing to a local disk."""
        for file in self._local.rglob(f"{_UNFINISHED}*") if self._local else ():
            file.unlink(missing_ok=True)

    def _everything(self, *, missing_ok: bool) -> Iterator[tuple[pa_fs.FileInfo, str | None]]:
        """Yield what is no folder that is listed itself, each with why it is a stray, None if it need not be one."""
        told: Iterable[tuple[pa_fs.FileInfo, str | None]]
        if self._local:
            walked = {} if missing_ok and not self._local.exists() else dict(_walk(self._root))
            told = zip(self._files.get_file_info([*walked]), walked.values(), strict=True)
        else:
            selector = pa_fs.FileSelector(self._root, recursive=True, allow_not_found=missing_ok)
            found = self._files.get_file_info(selector)
            told = ((one, None) for one in found if one.type is not pa_fs.FileType.Directory)
        for one, why in told:
            yield one, "an export that was killed left it unfinished" if is_unfinished(one.path) else why

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"


def is_unfinished(path: str) -> bool:
    """Return whether a file is called as one that an export is writing to a local disk, or was when it was killed."""
    return path.rpartition("/")[2].startswith(_UNFINISHED)


def _walk(root: str) -> Iterator[tuple[str, str | None]]:
    """Yield all below a local folder that is none, and links to folders that are not followed, each with why not.

    pyarrow follows every link: those that lead in circles until the system refuses, and it passes over those that lead
    nowhere. Here each is followed once, after all that has a name of its own: files come under that name at least.
    """
    folders = deque([(root, [_identity(Path(root).stat())])])
    followed: dict[tuple[int, int], str] = {}
    while folders:
        folder, within = folders.popleft()
        for entry in sorted(os.scandir(folder), key=lambda one: one.name):
            if not os.path.isdir(entry.path):  # noqa: PTH112 - `entry.is_dir` fails for a link to itself
                yield entry.path, None
                continue
            identity = _identity(entry.stat())
            link = _identity(entry.stat(follow_symlinks=False)) if entry.is_symlink() else None
            if identity in within:
                yield entry.path, "it leads to a folder that it is in itself, and is not followed"
            elif link is None:
                folders.appendleft((entry.path, [*within, identity]))
            elif link in followed:
                yield entry.path, f"it is the link that is followed as {followed[link]}"
            else:
                followed[link] = entry.path[len(root) + 1 :]
                folders.append((entry.path, [*within, identity]))


def _identity(found: os.stat_result) -> tuple[int, int]:
    """Return what is the same for one file or folder under all its names."""
    return found.st_dev, found.st_ino


@contextmanager
def _told(path: str, done: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, CatalogError):
            raise
        raise FileFault(f"{path} could not be {done}: {first_line(error)}", path=path) from error


def _filesystem(place: str, options: Mapping[str, str]) -> tuple[pa_fs.FileSystem, str]:
    """Return the file system of a place, and the place's path in it."""
    scheme, separator, path = place.partition("://")
    if not separator:
        return pa_fs.LocalFileSystem(), place.rstrip("/")
    if scheme not in ("s3", "s3a"):
        filesystem, path = pa_fs.FileSystem.from_uri(place)
        return filesystem, path.rstrip("/")
    told = {
        name.upper().removeprefix("AWS_"): value for name, value in {**os.environ, **options}.items() if _is_aws(name)
    }
    endpoint = told.get("ENDPOINT_URL") or told.get("ENDPOINT")
    names = {
        "access_key": "ACCESS_KEY_ID",
        "secret_key": "SECRET_ACCESS_KEY",
        "session_token": "SESSION_TOKEN",
        "region": "REGION",
    }
    given = {argument: told[name] for argument, name in names.items() if told.get(name)}
    if "region" not in given and told.get("DEFAULT_REGION"):
        given["region"] = told["DEFAULT_REGION"]
    if endpoint:
        scheme, _, host = endpoint.rpartition("://")
        given |= {"endpoint_override": host.rstrip("/"), "scheme": scheme or "https"}
    return pa_fs.S3FileSystem(**given), path.rstrip("/")


def _is_aws(name: str) -> bool:
    return name.upper().startswith("AWS_")
