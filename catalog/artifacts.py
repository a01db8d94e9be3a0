"""Artifacts as chunk rows: cut, hash, share, write in batches, read back verified.

Totals (size, hash, number of chunks) are on an artifact's last chunk only: a stream's end is not known before, and
memory stays bounded by one batch whatever the artifact's size.
"""

import hashlib
import io
import pickle
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property, partial
from itertools import chain, count
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import pyarrow as pa

from catalog.errors import CatalogError, CorruptError, InvalidInputError
from catalog.tables.port import Between, Condition, Engine, Equals, In, Table
from catalog.tables.schema import CHUNK_FACTS, arrow
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


Rows = dict[int, dict[str, Any]]
"""Chunk rows with their bytes, by chunk number."""
Buffer = bytes | bytearray | memoryview
Source = Buffer | Iterable[Buffer] | Path | SharedFile
"""Where an artifact's bytes come from: bytes, pieces in order, or a file."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An artifact that has been written."""

    path: str
    size: int
    sha256: str
    shared: int = 0
    """Bytes of it that an earlier checkpoint already held."""
    rows: tuple[Mapping[str, Any], ...] = field(default=(), compare=False, repr=False)
    """Its chunk rows without their bytes."""

    @property
    def vias(self) -> frozenset[str]:
        """The checkpoints that it borrows through."""
        return frozenset(row["via"] for row in self.rows if row.get("via"))


Holder = tuple[str, str, int | None, str]
"""Key and attempt of the row that has a chunk's bytes, its number there if it is known, and their hash."""


def holder(row: Mapping[str, Any]) -> Holder:
    """Return who has a chunk's bytes."""
    if row.get("held_attempt"):
        return row["held_key"], row["held_attempt"], row["held_no"], row["chunk_sha256"]
    return row["checkpoint_key"], row["attempt"], row["chunk_no"], row["chunk_sha256"]


@dataclass(frozen=True)
class Base:
    """An earlier checkpoint whose chunks need not be written again."""

    key: str
    rows: Sequence[Mapping[str, Any]]
    """Its chunk rows without their bytes."""

    @cached_property
    def by_path(self) -> dict[str, list[Mapping[str, Any]]]:
        """Its rows by artifact."""
        found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for row in self.rows:
            found[row["path"]].append(row)
        return dict(found)

    @cached_property
    def uses(self) -> Counter[Holder]:
        """How many of its chunks have their bytes there."""
        return Counter(map(holder, self.rows))

    @cached_property
    def holders(self) -> dict[str, dict[str, Any]]:
        """The columns of a row that borrows, by chunk hash."""
        named = (holder(row) for row in self.rows)
        return {
            sha256: {"held_key": key, "held_attempt": attempt, "held_no": number, "via": self.key}
            for key, attempt, number, sha256 in named
        }


Held = dict[Holder, tuple[int, int]]
"""Size of a chunk, and how many artifacts of the attempt have it under that number, each its own bytes."""


def held(rows: Iterable[Mapping[str, Any]]) -> Held:
    """Return which bytes chunk rows hold."""
    sizes = {(row["path"], holder(row)): row["chunk_size"] for row in rows if not row["held_attempt"]}
    copies = Counter(one for _, one in sizes)
    return {one: (size, copies[one]) for (_, one), size in sizes.items()}


def amplification(held: Held, uses: Mapping[Holder, int]) -> float:
    """Return how many bytes are held for each one that is used; several uses of one copy are one."""
    used = sum(size * min(copies, uses.get(one, 0)) for one, (size, copies) in held.items())
    return sum(size * copies for size, copies in held.values()) / used if used else 1.0


class Hash(Protocol):
    """The part of a hashlib object that is needed here."""

    def update(self, data: Any, /) -> None:
        """Add bytes."""


class ChunkFault(CatalogError):
    """A chunk is missing or is not what was written; the reader asks again before it calls that corrupt."""


class NoSuchArtifact(ChunkFault):
    """The attempt has no artifact of that path at all."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """How an artifact is written."""

    also: Hash | None = None
    """A second hash to be fed with the bytes."""
    base: Callable[[], Base | None] = lambda: None
    """Gives the checkpoint whose chunks are borrowed instead of written again; asked when a chunk is large."""
    cutting: Cutting = Cutting.FIXED
    hashing: Hashing = Hashing.BYTES
    hash_threads: int = 2
    """How many threads hash chunks, where the hash of the whole is over them."""
    still: bool = False
    """Whether pieces never change once they are given; else they are copied."""


def write(engine: Engine, columns: Mapping[str, Any], source: Source, how: Writing = Writing()) -> Stored:
    """Write an artifact under its attempt and return its totals.

    Args:
        engine: the tables.
        columns: the columns that all its chunks share; stream, checkpoint_key, attempt and path name it.
        source: its bytes.
        how: how.
    """
    columns = {**columns, "cutting": str(how.cutting), "hashing": str(how.hashing)}
    if isinstance(source, SharedFile):
        stored = _write_from_executors(engine, columns, source, how.base)
        if how.also is not None:
            for piece in read(engine, columns["stream"], columns["checkpoint_key"], columns["attempt"], stored.path):
                how.also.update(piece)
        return stored
    # What is there all at once is not filled again meanwhile.
    still = how.still or isinstance(source, Buffer | list | tuple)
    written: list[dict[str, Any]] = []

    def batch(parts: Iterator[list[dict[str, Any]]]) -> Iterator[pa.Table]:
        size, first = 0, len(written)
        while size < BATCH_CHUNKS * CHUNK_BYTES and len(written) - first < BATCH_ROWS and (part := next(parts, None)):
            table = as_table(part)
            size += sum(len(row.pop("data") or b"") for row in part)
            written.extend(part)
            yield table

    # Closed whatever happens: whoever keeps an error must not keep the threads that hash.
    with closing(chunk_rows(columns, _pieces(source), replace(how, still=still))) as rows:
        parts = _parts(rows)
        while not (written and written[-1]["chunk_count"]):
            engine.append(Table.ARTIFACTS, batch(parts))
    return totals(written)[columns["path"]]


def _parts(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield rows in groups of a size that engines take well."""
    part: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        part.append(row)
        size += len(row["data"] or b"")
        if size >= PART_CHUNKS * CHUNK_BYTES or len(part) == PART_ROWS:
            yield part
            part, size = [], 0
    if part:
        yield part


def read(
    engine: Engine, stream: str, key: str, attempt: str, path: str, *, first_batch: Rows | None = None
) -> Iterator[memoryview]:
    """Yield an artifact's chunks in order, each one verified before it is handed out, the whole at the end.

    Args:
        engine: the tables.
        stream, key, attempt, path: name the artifact.
        first_batch: what `load_batch` gave for it, if that was asked already.

    Raises:
        NoSuchArtifact: the attempt has no such artifact.
        ChunkFault: a chunk is missing, or its bytes do not match their hash.
    """
    whole, size = hashlib.sha256(), 0
    with ThreadPoolExecutor(max_workers=1) as other_core:
        for batch in _batches(engine, stream, key, attempt, path, first_batch):
            digests = [start(other_core, _sha256, row["data"]) for row in batch]
            for row, digest in zip(batch, digests, strict=True):
                data: memoryview = row["data"]
                whole.update(digest.result().encode() if _by_chunks(row) else data)
                size += len(data)
                if len(data) != row["chunk_size"] or digest.result() != row["chunk_sha256"]:
                    raise _mismatch(path, f"in chunk {row['chunk_no']}")
                if row["chunk_count"] is not None and not _is_whole(row, size, whole.hexdigest()):
                    raise _mismatch(path, "of the whole")
                yield data


def read_small(engine: Engine, stream: str, wanted: Mapping[str, str]) -> dict[str, bytes]:
    """Return artifacts of one chunk each, verified, from one scan; what is not there so is left out.

    Args:
        engine: the tables.
        stream: the stream.
        wanted: the attempt by path.
    """
    places: list[Condition] = [
        Equals("stream", stream),
        In("attempt", tuple({*wanted.values()})),
        In("path", tuple(wanted)),
    ]
    columns = (
        "attempt", "path", "chunk_no", "chunk_count", "chunk_size", "chunk_sha256", "artifact_size", "artifact_sha256",
        "hashing", "data",
    )  # fmt: skip
    found = {}
    for row in _with_views(engine.scan(Table.ARTIFACTS, places, columns)):
        if row["chunk_count"] == 1 and row["data"] is not None and wanted[row["path"]] == row["attempt"]:
            sha256 = _sha256(row["data"])
            whole = hashlib.sha256(sha256.encode()).hexdigest() if _by_chunks(row) else sha256
            if sha256 == row["chunk_sha256"] and _is_whole(row, len(row["data"]), whole):
                found[row["path"]] = bytes(row["data"])
    return found


def read_whole(
    engine: Engine, stream: str, key: str, attempt: str, path: str, *, first_batch: Rows | None = None
) -> bytes:
    """Return an artifact's bytes, verified by the hash of the whole while they are put together; see `read`."""
    rows: list[dict[str, Any]] = []
    whole, data = hashlib.sha256(), io.BytesIO()

    def add(chunk: Buffer, by_chunks: bool) -> None:
        whole.update(_sha256(chunk).encode() if by_chunks else chunk)

    with ThreadPoolExecutor(max_workers=1) as other_core:
        for batch in _batches(engine, stream, key, attempt, path, first_batch):
            for row in batch:
                start(other_core, add, row["data"], _by_chunks(row))
                data.write(row.pop("data"))  # chunk by chunk: a join would keep the other core from going on
            rows += batch
    if _is_whole(rows[-1], data.tell(), whole.hexdigest()):
        return data.getvalue()
    raise _mismatch(path, _first_wrong(rows, data.getbuffer()))


def _by_chunks(row: Mapping[str, Any]) -> bool:
    return row.get("hashing") == Hashing.CHUNKS


def fingerprint(pieces: Iterable[Buffer], cutting: str) -> str:
    """Return the hash that a checkpoint stream's artifact of these bytes has."""
    whole = hashlib.sha256()
    columns = {"path": "", "checkpoint_key": "", "cutting": cutting, "hashing": Hashing.CHUNKS}
    for row in chunk_rows(columns, pieces):
        whole.update(row["chunk_sha256"].encode())
    return whole.hexdigest()


def _first_wrong(rows: Iterable[Mapping[str, Any]], data: memoryview) -> str:
    at = 0
    for row in rows:
        if _sha256(data[at : at + row["chunk_size"]]) != row["chunk_sha256"]:
            return f"in chunk {row['chunk_no']}"
        at += row["chunk_size"]
    return "of the whole"


def _batches(
    engine: Engine, stream: str, key: str, attempt: str, path: str, first_batch: Rows | None
) -> Iterator[list[dict[str, Any]]]:
    """Yield an artifact's chunk rows in order, batch by batch up to the last one; none may be missing."""
    load = partial(load_batch, engine, stream, key, attempt, path)
    # An engine that takes smaller batches loads the next one meanwhile, within the same memory.
    reads_ahead = engine.batch_chunks < BATCH_CHUNKS
    rows = load(0) if first_batch is None else first_batch
    if not rows:
        raise NoSuchArtifact(f"artifact {path!r} is missing", path=path)
    with ThreadPoolExecutor(max_workers=1) as pool:
        for following in count(engine.batch_chunks, engine.batch_chunks):
            batch = _in_order(rows, following - engine.batch_chunks, following, path)
            if batch[-1]["chunk_count"] is not None:
                yield batch
                return
            ahead = start(pool, load, following) if reads_ahead else None
            yield batch
            rows = ahead.result() if ahead else load(following)


def _in_order(rows: Rows, first: int, end: int, path: str) -> list[dict[str, Any]]:
    """Return the chunk rows from one number on, up to the artifact's last chunk."""
    batch = []
    for number in range(first, end):
        if number not in rows:
            raise ChunkFault(f"artifact {path!r}: chunk {number} is missing", path=path)
        batch.append(rows[number])
        if rows[number]["chunk_count"] is not None:
            break
    return batch


def _is_whole(last: Mapping[str, Any], size: int, sha256: str) -> bool:
    return (last["chunk_no"] + 1, size, sha256) == (last["chunk_count"], last["artifact_size"], last["artifact_sha256"])


def _mismatch(path: str, where: str) -> ChunkFault:
    return ChunkFault(f"artifact {path!r}: checksum mismatch {where}", path=path)


def facts(engine: Engine, stream: str, where: Iterable[Condition]) -> list[dict[str, Any]]:
    """Return chunk rows of a stream without their bytes."""
    found: list[dict[str, Any]] = engine.scan(
        Table.ARTIFACTS, [Equals("stream", stream), *where], CHUNK_FACTS
    ).to_pylist()
    return found


@dataclass(frozen=True, slots=True)
class Kept:
    """An artifact as its chunk rows tell it, without their bytes."""

    chunks: tuple[tuple[int, str], ...]
    """Size and hash of each chunk, in order."""
    complete: bool
    """Whether all chunks are there, and sizes add up."""
    sha256: str | None
    """Of the whole; None if its last chunk is missing."""
    held: frozenset[tuple[str, str, str]]
    """Key, attempt and hash of the rows that hold its borrowed chunks."""

    @property
    def size(self) -> int:
        """Bytes, as far as its chunks are there."""
        return sum(size for size, _ in self.chunks)


def inventory(rows: Iterable[Mapping[str, Any]]) -> dict[str, Kept]:
    """Return the artifacts of one attempt by path; a row seen twice is one chunk."""
    by_path: dict[str, dict[int, Mapping[str, Any]]] = defaultdict(dict)
    for row in rows:
        by_path[row["path"]][row["chunk_no"]] = row
    return {path: _kept([chunks[number] for number in sorted(chunks)]) for path, chunks in by_path.items()}


def _kept(rows: Sequence[Mapping[str, Any]]) -> Kept:
    last, size = rows[-1], sum(row["chunk_size"] for row in rows)
    complete = [row["chunk_no"] for row in rows] == list(range(last["chunk_count"] or 0))
    held = {(row["held_key"], row["held_attempt"], row["chunk_sha256"]) for row in rows if row["held_attempt"]}
    return Kept(
        chunks=tuple((row["chunk_size"], row["chunk_sha256"]) for row in rows),
        complete=complete and size == last["artifact_size"],
        sha256=last["artifact_sha256"],
        held=frozenset(held),
    )


def links(rows: Iterable[Mapping[str, Any]], attempt: str, **columns: Any) -> list[dict[str, Any]]:
    """Return rows that make other attempts' chunks part of this attempt without moving their bytes.

    Args:
        rows: the others' chunk rows.
        attempt: this attempt.
        columns: what else is different; `via` where they are of another checkpoint.
    """
    return [
        {
            **row,
            **dict(zip(("held_key", "held_attempt", "held_no"), holder(row), strict=False)),
            "attempt": attempt,
            "data": None,
            **columns,
        }
        for row in rows
    ]


def totals(rows: Iterable[Mapping[str, Any]]) -> dict[str, Stored]:
    """Return the artifacts, by path, whose last chunk is among these rows of one attempt."""
    by_path: dict[str, dict[int, Mapping[str, Any]]] = defaultdict(dict)
    for row in rows:
        by_path[row["path"]][row["chunk_no"]] = row
    found = {}
    for path, chunks in by_path.items():
        last = chunks[max(chunks)]
        if last["chunk_count"] is not None:
            borrowed = (row for row in chunks.values() if row.get("held_key") not in (None, row.get("checkpoint_key")))
            shared = sum(row["chunk_size"] for row in borrowed)
            rows_of_it = tuple(chunks[number] for number in sorted(chunks))
            found[path] = Stored(path, int(last["artifact_size"]), last["artifact_sha256"], shared, rows_of_it)
    return found


def chunk_rows(
    columns: Mapping[str, Any],
    pieces: Iterable[Buffer],
    how: Writing = Writing(),
) -> Generator[dict[str, Any], None, None]:
    """Yield the rows of an artifact, at least one; the last carries the totals, borrowed ones have no bytes.

    Pieces are taken in the caller's thread; two others hash the next few chunks while the caller writes.
    """
    whole, size = hashlib.sha256(), 0
    by_chunks = _by_chunks(columns)

    def add(chunk: Buffer) -> None:
        if not by_chunks:
            whole.update(chunk)
        if how.also is not None:
            how.also.update(chunk)

    def row(number: int, chunk: Buffer, added: Future[None], chunk_hash: Future[str], *, last: bool) -> dict[str, Any]:
        added.result()
        sha256 = chunk_hash.result()
        if by_chunks:
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
        ThreadPoolExecutor(how.hash_threads if by_chunks else 1) as of_chunks,
    ):
        for number, chunk in enumerate(chain([first], chunks)):
            size += len(chunk)
            hashing.append((number, chunk, start(of_whole, add, chunk), start(of_chunks, _sha256, chunk)))
            if len(hashing) > PART_CHUNKS:
                yield row(*hashing.popleft(), last=False)
        while hashing:
            yield row(*hashing.popleft(), last=not hashing)


def as_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return chunk rows as an Arrow table that has the bytes where they are, without a copy."""
    facts = arrow(Table.ARTIFACTS, ({**row, "data": None} for row in rows))
    position = facts.schema.get_field_index("data")
    chunks = [_binary(row["data"]) for row in rows]
    return facts.set_column(position, facts.schema.field(position), pa.chunked_array(chunks, pa.binary()))


def _binary(data: Buffer | None) -> pa.Array:
    if data is None:
        return pa.nulls(1, pa.binary())
    ends = pa.array([0, len(data)], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(data)])


def _cut(pieces: Iterable[Buffer], *, still: bool) -> Iterator[Buffer]:
    """Cut pieces of any sizes into chunks of 4 MiB, without a copy where an unchanging piece holds a whole chunk."""
    rest = bytearray()
    for piece in pieces:
        view = _buffer(piece)
        while len(view):
            if not rest and len(view) >= CHUNK_BYTES:
                chunk = view[:CHUNK_BYTES]
                # A caller may fill its buffer again before the chunk is hashed and written; bytes cannot change.
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


def _pieces(source: Buffer | Iterable[Buffer] | Path) -> Iterable[Buffer]:
    if isinstance(source, bytes | bytearray | memoryview):
        return [source]
    if isinstance(source, Path):
        return _file_pieces(source)
    return source


def _file_pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from _read_pieces(file)


def _read_pieces(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(CHUNK_BYTES):
        yield piece


def _write_from_executors(
    engine: Engine, columns: Mapping[str, Any], source: SharedFile, base: Callable[[], Base | None]
) -> Stored:
    known = base() if Path(source.path).stat().st_size >= SHARED_FROM_BYTES else None
    task = pickle.dumps((str(source.path), dict(columns), known))
    engine.append_made(Table.ARTIFACTS, [task], file_chunks)
    named = [Equals(name, columns[name]) for name in ("checkpoint_key", "attempt", "path")]
    return totals(facts(engine, columns["stream"], named))[columns["path"]]


def file_chunks(task: bytes) -> Iterator[pa.RecordBatch]:
    """Yield a file's chunk rows one by one, so that an executor's memory stays small."""
    path, columns, known = pickle.loads(task)
    for row in chunk_rows(columns, _file_pieces(Path(path)), Writing(base=lambda: known)):
        yield from as_table([row]).to_batches()


def load_batch(engine: Engine, stream: str, key: str, attempt: str, path: str, first: int = 0) -> Rows:
    """Return a batch of an artifact's chunks from one number on, borrowed ones with the bytes of their holders."""
    return _load(engine, stream, key, path, first, [Equals("attempt", attempt)]).get(attempt, {})


def load_first(engine: Engine, stream: str, key: str, path: str) -> dict[str, Rows]:
    """Return the first batch of a path's chunks by attempt; most often there is one, and it is the right one."""
    return _load(engine, stream, key, path, 0, [])


def _load(
    engine: Engine, stream: str, key: str, path: str, first: int, of_attempt: Sequence[Condition]
) -> dict[str, Rows]:
    of_stream = Equals("stream", stream)
    named = Equals("checkpoint_key", key), Equals("path", path), *of_attempt
    columns = (
        "attempt", "chunk_no", "chunk_count", "chunk_size", "chunk_sha256", "artifact_size", "artifact_sha256",
        "held_key", "held_attempt", "held_no", "hashing", "data",
    )  # fmt: skip
    numbers = Between("chunk_no", first, first + engine.batch_chunks)
    rows = _with_views(_scan(engine, path, (of_stream, *named, numbers), columns))
    for key_there, attempt_there in {(row["held_key"], row["held_attempt"]) for row in rows if row["data"] is None}:
        wanted = [row for row in rows if (row["held_key"], row["held_attempt"]) == (key_there, attempt_there)]
        hashes = In("chunk_sha256", tuple({row["chunk_sha256"] for row in wanted}))
        numbers_there = {row["held_no"] for row in wanted}
        place: list[Condition] = [
            of_stream,
            Equals("checkpoint_key", key_there),
            Equals("attempt", attempt_there),
            hashes,
        ]
        place += [In("chunk_no", tuple(numbers_there))] if None not in numbers_there else []
        held = _with_views(_scan(engine, path, place, ("chunk_sha256", "data")))
        bytes_by_hash = {row["chunk_sha256"]: row["data"] for row in held if row["data"] is not None}
        for row in wanted:
            row["data"] = bytes_by_hash.get(row["chunk_sha256"])
    found: dict[str, Rows] = defaultdict(dict)
    for row in rows:
        if row["data"] is not None:
            found[row["attempt"]][row["chunk_no"]] = row
    return found


def _scan(engine: Engine, path: str, where: Sequence[Condition], columns: Sequence[str]) -> pa.Table:
    try:
        return engine.scan(Table.ARTIFACTS, where, columns)
    except CorruptError as error:
        raise ChunkFault(f"artifact {path!r}: {error}", path=path) from error


def _with_views(table: pa.Table) -> list[dict[str, Any]]:
    """Return rows whose bytes are views into the Arrow table instead of copies."""
    rows: list[dict[str, Any]] = table.drop_columns(["data"]).to_pylist()
    for row, data in zip(rows, _views(table.column("data")), strict=True):
        row["data"] = data
    return rows


def _sha256(data: Buffer) -> str:
    return hashlib.sha256(data).hexdigest()


def _views(column: pa.ChunkedArray) -> Iterator[memoryview | None]:
    """Yield the values of a binary column; a value taken as a scalar would be a copy."""
    for array in column.chunks:
        _, ends, payload = array.buffers()
        width = pa.int64() if pa.types.is_large_binary(array.type) else pa.int32()
        bounds = pa.Array.from_buffers(width, len(array) + 1, [None, ends], offset=array.offset).to_pylist()
        whole = memoryview(payload) if payload is not None else memoryview(b"")
        for valid, begin, end in zip(array.is_valid().to_pylist(), bounds, bounds[1:], strict=False):
            yield whole[begin:end] if valid else None
