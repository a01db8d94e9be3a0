"""An artifact's bytes as chunk rows: cut, hashed, and borrowed where an earlier checkpoint has them. No tables.

Totals (size, hash, number of chunks) are on an artifact's last chunk only: a stream's end is not known before, and
memory stays bounded whatever the artifact's size.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from catalog.chunks import Base
from catalog.errors import InvalidInputError
from catalog.threads import start

CHUNK_BYTES = 4 << 20
BATCH_CHUNKS = 16
"""Chunks per commit, and at most per read: 64 MiB, which Arrow and Spark hold a few times over."""
PART_CHUNKS = 4
"""Chunks that are handed to the engine at a time, while as many are being hashed."""
PART_ROWS, BATCH_ROWS = 256, 4096
"""The same for rows without bytes of their own."""
SHARED_FROM_BYTES = 256 << 10
"""Chunks below are written again: that takes less time than to ask who has them."""
CDC_MIN_BYTES, CDC_AVERAGE_BYTES, CDC_MAX_BYTES = CHUNK_BYTES // 8, CHUNK_BYTES // 4, CHUNK_BYTES
_CDC_WINDOW_BYTES = 4 * CHUNK_BYTES


class Hashing(StrEnum):
    """What the hash of a whole artifact is over."""

    BYTES = "bytes"
    """All its bytes, as the stores' checksums want it; one core at a time can make it."""
    CHUNKS = "chunks"
    """Its chunks' hashes in order, which several cores make at once; for checkpoint streams."""


class Cutting(StrEnum):
    """How an artifact is cut into chunks; it is read without knowing."""

    FIXED = "fixed"
    """Every 4 MiB: for state that changes in place."""
    CONTENT = "content"
    """Where the content says so, at most 4 MiB apart: for state in which bytes are inserted and removed."""


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A file that every executor can read under this path: the executors cut, hash and write it, not the driver."""

    path: str | Path


Buffer = bytes | bytearray | memoryview
Source = Buffer | Iterable[Buffer] | Path | SharedFile
"""Where an artifact's bytes come from: bytes, pieces in order, or a file."""


class Hash(Protocol):
    """The part of a hashlib object that is needed here."""

    def update(self, data: Any, /) -> None:
        """Add bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """How an artifact is written."""

    also: Hash | None = None
    """A second hash to be fed with the bytes."""
    base: Callable[[], Base | None] = lambda: None
    """Gives the checkpoint whose chunks are borrowed instead of written again; asked at the first large chunk."""
    cutting: Cutting = Cutting.FIXED
    hashing: Hashing = Hashing.BYTES
    hash_threads: int = 2
    """How many threads hash chunks, where the hash of the whole is over them."""
    still: bool = False
    """Whether pieces never change once they are given; else they are copied."""


PLAIN = Writing()


def check_source(source: object) -> None:
    """Refuse what is not bytes before anything is written; the pieces of an iterator are checked as they come."""
    if isinstance(source, Path | SharedFile):
        if isinstance(source, SharedFile) and not isinstance(source.path, str | Path):
            raise InvalidInputError(f"a shared file's path must be text, not {type(source.path).__name__}")
        file = Path(source.path) if isinstance(source, SharedFile) else source
        if not file.is_file():
            raise InvalidInputError(f"state file {file} does not exist")
    elif isinstance(source, str) or not isinstance(source, Buffer | Iterable):
        raise InvalidInputError(f"state must be bytes, pieces of bytes or a file, not {type(source).__name__}")
    elif isinstance(source, list | tuple):
        for piece in source:
            _buffer(piece)


def chunk_rows(
    columns: Mapping[str, Any],
    pieces: Iterable[Buffer],
    how: Writing = PLAIN,
) -> Generator[dict[str, Any], None, None]:
    """Yield the rows of an artifact, at least one; the last carries the totals, borrowed ones have no bytes.

    Pieces are taken in the caller's thread; two others hash the next few chunks while the caller writes.
    """
    whole, size = hashlib.sha256(), 0
    over_chunks = by_chunks(columns)

    def add(chunk: Buffer) -> None:
        if not over_chunks:
            whole.update(chunk)
        if how.also is not None:
            how.also.update(chunk)

    def row(number: int, chunk: Buffer, added: Future[None], chunk_hash: Future[str], *, last: bool) -> dict[str, Any]:
        added.result()
        sha256 = chunk_hash.result()
        if over_chunks:
            whole.update(sha256.encode())
        known = how.base() if len(chunk) >= SHARED_FROM_BYTES else None
        borrowed = known.holders.get(sha256) if known else None
        return {
            **columns,
            **(borrowed or {}),
            "chunk_no": number,
            "chunk_size": len(chunk),
            "chunk_sha256": sha256,
            "chunk_count": number + 1 if last else None,
            "artifact_size": size if last else None,
            "artifact_sha256": whole.hexdigest() if last else None,
            "data": None if borrowed else chunk,
        }

    by_content = columns.get("cutting") == Cutting.CONTENT
    chunks = _cut_by_content(pieces) if by_content else _cut(pieces, still=how.still)
    first = next(chunks, b"")
    hashing: deque[tuple[int, Buffer, Future[None], Future[str]]] = deque()
    with (
        ThreadPoolExecutor(max_workers=1) as of_whole,
        ThreadPoolExecutor(how.hash_threads if over_chunks else 1) as of_chunks,
    ):
        for number, chunk in enumerate(chain([first], chunks)):
            size += len(chunk)
            hashing.append((number, chunk, start(of_whole, add, chunk), start(of_chunks, hash_of, chunk)))
            if len(hashing) > PART_CHUNKS:
                yield row(*hashing.popleft(), last=False)
        while hashing:
            yield row(*hashing.popleft(), last=not hashing)


def fingerprint(pieces: Iterable[Buffer], cutting: str) -> str:
    """Return the hash that a checkpoint stream's artifact of these bytes has."""
    whole = hashlib.sha256()
    columns = {"path": "", "checkpoint_key": "", "cutting": cutting, "hashing": Hashing.CHUNKS}
    for row in chunk_rows(columns, pieces):
        whole.update(row["chunk_sha256"].encode())
    return whole.hexdigest()


def pieces_of(source: Buffer | Iterable[Buffer] | Path) -> Iterable[Buffer]:
    if isinstance(source, bytes | bytearray | memoryview):
        return [source]
    if isinstance(source, Path):
        return file_pieces(source)
    return source


def file_pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from _read_pieces(file)


def _read_pieces(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(CHUNK_BYTES):
        yield piece


def _cut(pieces: Iterable[Buffer], *, still: bool) -> Iterator[Buffer]:
    """Cut pieces of any sizes into chunks of 4 MiB, without a copy where an unchanging piece holds a whole chunk."""
    rest = bytearray()
    for piece in pieces:
        view = _buffer(piece)
        while len(view):
            if not rest and len(view) >= CHUNK_BYTES:
                chunk = view[:CHUNK_BYTES]
                # A caller may change its buffer before the chunk is hashed and written; bytes cannot change.
                yield chunk if still or isinstance(chunk.obj, bytes) else bytes(chunk)
                view = view[CHUNK_BYTES:]
                continue
            missing = CHUNK_BYTES - len(rest)
            rest += view[:missing]
            view = view[missing:]
            if len(rest) == CHUNK_BYTES:
                yield bytes(rest)
                rest.clear()
    if rest:
        yield bytes(rest)


def _cut_by_content(pieces: Iterable[Buffer]) -> Iterator[Buffer]:
    """Cut pieces of any sizes where their content says so.

    Where a chunk ends depends only on the bytes from its beginning on, up to the largest size of a chunk: a window that
    has as many cuts as the whole would.
    """
    from fastcdc import fastcdc

    sizes = {"min_size": CDC_MIN_BYTES, "avg_size": CDC_AVERAGE_BYTES, "max_size": CDC_MAX_BYTES}
    rest = bytearray()

    def cut(*, to_the_end: bool) -> Iterator[memoryview]:
        window = memoryview(bytes(rest))
        for found in fastcdc(window, **sizes):
            if not to_the_end and found.offset + CDC_MAX_BYTES > len(window):
                break
            yield window[found.offset : found.offset + found.length]
            del rest[: found.length]

    for piece in pieces:
        view = _buffer(piece)
        for at in range(0, len(view), _CDC_WINDOW_BYTES):
            rest += view[at : at + _CDC_WINDOW_BYTES]
            if len(rest) >= _CDC_WINDOW_BYTES:
                yield from cut(to_the_end=False)
    if rest:
        yield from cut(to_the_end=True)


def _buffer(piece: object) -> memoryview:
    if not isinstance(piece, bytes | bytearray | memoryview):
        raise InvalidInputError(f"state must be bytes, not {type(piece).__name__}")
    view = memoryview(piece)
    return view.cast("B") if view.c_contiguous else memoryview(bytes(view))


def by_chunks(row: Mapping[str, Any]) -> bool:
    return row.get("hashing") == Hashing.CHUNKS


def hash_of(data: Buffer) -> str:
    return hashlib.sha256(data).hexdigest()
