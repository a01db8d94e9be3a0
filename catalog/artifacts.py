"""Artifacts in their table: written in batches, read back verified; memory is bounded by one batch."""

import hashlib
import io
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from catalog import cutting
from catalog.chunks import Base, Stored, totals
from catalog.cutting import (
    PLAIN,
    Buffer,
    SharedFile,
    Source,
    Writing,
    by_chunks,
    chunk_rows,
    file_pieces,
    hash_of,
    pieces_of,
)
from catalog.errors import CatalogError, CorruptError
from catalog.tables.port import Between, Condition, Engine, Equals, In, Table
from catalog.tables.schema import CHUNK_FACTS, arrow
from catalog.threads import start

Rows = dict[int, dict[str, Any]]
"""Chunk rows with their bytes, by chunk number."""


class ChunkFault(CatalogError):
    """A chunk is missing or is not what was written; the reader asks again before it calls that corrupt."""


class NoSuchArtifact(ChunkFault):
    """The attempt has no artifact of that path at all."""


def write(engine: Engine, columns: Mapping[str, Any], source: Source, how: Writing = PLAIN) -> Stored:
    """Write an artifact under its attempt and return its totals.

    Args:
        engine: the tables.
        columns: the columns that all its chunks share; stream, checkpoint_key, attempt and path name it.
        source: its bytes.
        how: how.
    """
    columns = {**columns, "cutting": str(how.cutting), "hashing": str(how.hashing)}
    how = replace(how, base=cache(how.base))
    if isinstance(source, SharedFile):
        stored = _write_from_executors(engine, columns, source, how.base)
        if how.also is not None:
            for piece in read(engine, columns["stream"], columns["checkpoint_key"], columns["attempt"], stored.path):
                how.also.update(piece)
        return stored
    written: list[dict[str, Any]] = []

    def batch(parts: Iterator[list[dict[str, Any]]]) -> Iterator[pa.Table]:
        size, first = 0, len(written)
        while (
            size < cutting.BATCH_CHUNKS * cutting.CHUNK_BYTES
            and len(written) - first < cutting.BATCH_ROWS
            and (part := next(parts, None))
        ):
            table = as_table(part)
            size += sum(len(row.pop("data") or b"") for row in part)
            written.extend(part)
            yield table
            del table  # it is not held while the next part is made

    # Closed whatever happens: whoever keeps an error must not keep the threads that hash.
    with closing(chunk_rows(columns, pieces_of(source), how)) as rows:
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
        if size >= cutting.PART_CHUNKS * cutting.CHUNK_BYTES or len(part) == cutting.PART_ROWS:
            yield part
            part, size = [], 0
    if part:
        yield part


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


def _write_from_executors(
    engine: Engine, columns: Mapping[str, Any], source: SharedFile, base: Callable[[], Base | None]
) -> Stored:
    known = base() if Path(source.path).stat().st_size >= cutting.SHARED_FROM_BYTES else None
    task = pickle.dumps((str(source.path), dict(columns), known))
    engine.append_made(Table.ARTIFACTS, [task], file_chunks)
    named = [Equals(name, columns[name]) for name in ("checkpoint_key", "attempt", "path")]
    return totals(facts(engine, columns["stream"], named))[columns["path"]]


def file_chunks(task: bytes) -> Iterator[pa.RecordBatch]:
    """Yield a file's chunk rows one by one, so that an executor's memory stays small."""
    path, columns, known = pickle.loads(task)
    for row in chunk_rows(columns, file_pieces(Path(path)), Writing(base=lambda: known)):
        yield from as_table([row]).to_batches()


def facts(engine: Engine, stream: str, where: Iterable[Condition]) -> list[dict[str, Any]]:
    """Return chunk rows of a stream without their bytes."""
    found: list[dict[str, Any]] = engine.scan(
        Table.ARTIFACTS, [Equals("stream", stream), *where], CHUNK_FACTS
    ).to_pylist()
    return found


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
            digests = [start(other_core, hash_of, row["data"]) for row in batch]
            for row, digest in zip(batch, digests, strict=True):
                data: memoryview = row["data"]
                whole.update(digest.result().encode() if by_chunks(row) else data)
                size += len(data)
                if len(data) != row["chunk_size"] or digest.result() != row["chunk_sha256"]:
                    raise _mismatch(path, f"in chunk {row['chunk_no']}")
                if row["chunk_count"] is not None and not _is_whole(row, size, whole.hexdigest()):
                    raise _mismatch(path, "of the whole")
                yield data


def read_whole(
    engine: Engine, stream: str, key: str, attempt: str, path: str, *, first_batch: Rows | None = None
) -> bytes:
    """Return an artifact's bytes, verified by the hash of the whole while they are put together; see `read`."""
    rows: list[dict[str, Any]] = []
    whole, data = hashlib.sha256(), io.BytesIO()

    def add(chunk: Buffer, by_chunks: bool) -> None:
        whole.update(hash_of(chunk).encode() if by_chunks else chunk)

    with ThreadPoolExecutor(max_workers=1) as other_core:
        for batch in _batches(engine, stream, key, attempt, path, first_batch):
            for row in batch:
                start(other_core, add, row["data"], by_chunks(row))
                data.write(row.pop("data"))  # chunk by chunk: a join would keep the other core from going on
            rows += batch
    if _is_whole(rows[-1], data.tell(), whole.hexdigest()):
        return data.getvalue()
    raise _mismatch(path, _first_wrong(rows, data.getbuffer()))


def _first_wrong(rows: Iterable[Mapping[str, Any]], data: memoryview) -> str:
    at = 0
    for row in rows:
        if hash_of(data[at : at + row["chunk_size"]]) != row["chunk_sha256"]:
            return f"in chunk {row['chunk_no']}"
        at += row["chunk_size"]
    return "of the whole"


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
            sha256 = hash_of(row["data"])
            whole = hashlib.sha256(sha256.encode()).hexdigest() if by_chunks(row) else sha256
            if sha256 == row["chunk_sha256"] and _is_whole(row, len(row["data"]), whole):
                found[row["path"]] = bytes(row["data"])
    return found


def _batches(
    engine: Engine, stream: str, key: str, attempt: str, path: str, first_batch: Rows | None
) -> Iterator[list[dict[str, Any]]]:
    """Yield an artifact's chunk rows in order, batch by batch up to the last one; none may be missing."""
    load = partial(load_batch, engine, stream, key, attempt, path)
    # An engine that takes smaller batches loads the next one meanwhile, within the same memory.
    reads_ahead = engine.batch_chunks < cutting.BATCH_CHUNKS
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


def _views(column: pa.ChunkedArray) -> Iterator[memoryview | None]:
    """Yield the values of a binary column; a value taken as a scalar would be a copy."""
    for array in column.chunks:
        _, ends, payload = array.buffers()
        width = pa.int64() if pa.types.is_large_binary(array.type) else pa.int32()
        bounds = pa.Array.from_buffers(width, len(array) + 1, [None, ends], offset=array.offset).to_pylist()
        whole = memoryview(payload) if payload is not None else memoryview(b"")
        for valid, begin, end in zip(array.is_valid().to_pylist(), bounds, bounds[1:], strict=False):
            yield whole[begin:end] if valid else None
