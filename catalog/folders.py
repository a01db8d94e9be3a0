"""Formats of artifacts: how a snapshot and the deltas after it become one snapshot.

The catalog does not look into artifacts, so somebody has to say what they are. A producer does so in its manifest, by
the name of a format beside an operator's partitions (`{"count": {"format": "append-log", "partitions": […]}}`), or the
caller of `fold_chains` gives a folder for an operator. What nobody knows is left alone.
"""

import hashlib
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import reduce
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from catalog.cutting import Buffer
from catalog.errors import InvalidInputError

BATCH_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class Link:
    """One artifact of a chain, verified while it is read."""

    open: Callable[[], Iterator[Buffer]]
    """Gives its bytes piece by piece, as often as one likes."""

    def read(self) -> bytes:
        """Return all its bytes."""
        return b"".join(self.open())


class Folder(ABC):
    """Knows one format. To know another one, `apply` is enough; the rest is for artifacts that memory cannot hold."""

    format: ClassVar[str]
    """What manifests call it."""

    @abstractmethod
    def apply(self, state: bytes, delta: bytes) -> bytes:
        """Return the snapshot that a delta makes of a snapshot, as whoever restores a chain would.

        Raises:
            InvalidInputError: they are not of this format.
        """

    def fold(self, chain: Sequence[Link]) -> Iterable[Buffer]:
        """Return the pieces of the snapshot that a chain makes: its first link is a snapshot, the others are deltas."""
        return [self._one_by_one(chain)]

    def difference(self, folded: Link, chain: Sequence[Link]) -> str | None:
        """Say how a folded snapshot differs from what applying the chain by itself makes, None if it does not."""
        return None if folded.read() == self._one_by_one(chain) else "it is not what the deltas make, one by one"

    def _one_by_one(self, chain: Sequence[Link]) -> bytes:
        return reduce(self.apply, (link.read() for link in chain))


class AppendLog(Folder):
    """Deltas are what was appended; read and written piece by piece, whatever the size."""

    format = "append-log"

    def apply(self, state: bytes, delta: bytes) -> bytes:
        """See Folder."""
        return state + delta

    def fold(self, chain: Sequence[Link]) -> Iterable[Buffer]:
        """See Folder."""
        return (piece for link in chain for piece in link.open())

    def difference(self, folded: Link, chain: Sequence[Link]) -> str | None:
        """See Folder; by size and hash."""
        (size, sha256), (expected_size, expected_sha256) = _measured([folded]), _measured(chain)
        if size != expected_size:
            return f"it has {size} bytes, its links have {expected_size}"
        return None if sha256 == expected_sha256 else "its bytes are not those of its links in order"


def _measured(links: Iterable[Link]) -> tuple[int, str]:
    size, sha256 = 0, hashlib.sha256()
    for link in links:
        for piece in link.open():
            size += len(piece)
            sha256.update(piece)
    return size, sha256.hexdigest()


# -- JSON --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Number:
    """A number as its text, so that none is rounded."""

    text: str


Json: TypeAlias = "dict[str, Json] | list[Json] | str | _Number | bool | None"


class JsonMergePatch(Folder):
    """Snapshots are JSON, deltas are merge patches (RFC 7396); numbers stay as they are written."""

    format = "json-merge-patch"

    def apply(self, state: bytes, delta: bytes) -> bytes:
        """See Folder."""
        return _json_text(merge_patch(_parsed(state), _parsed(delta))).encode()

    def fold(self, chain: Sequence[Link]) -> Iterable[Buffer]:
        """See Folder; parsed and written once."""
        return [_json_text(self._value(chain)).encode()]

    def difference(self, folded: Link, chain: Sequence[Link]) -> str | None:
        """See Folder; by value."""
        return None if _parsed(folded.read()) == self._value(chain) else "it is not the value that the patches make"

    @staticmethod
    def _value(chain: Sequence[Link]) -> Json:
        return reduce(merge_patch, (_parsed(link.read()) for link in chain))


def merge_patch(target: Json, patch: Json) -> Json:
    """Return what a merge patch makes of a value, as the pseudo-code of RFC 7396 has it; nothing changes in place."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def _parsed(data: bytes) -> Json:
    try:
        found: Json = json.loads(
            data.decode(),
            parse_int=_Number,
            parse_float=_Number,
            parse_constant=_no_number,
            object_pairs_hook=_members,
        )
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"it is not JSON: {error}") from error
    return found


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number")


def _members(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a name twice")
    return found


def _json_text(value: Json) -> str:
    """Return JSON, in ASCII because half a surrogate pair has no bytes in UTF-8."""
    match value:
        case dict():
            return "{" + ",".join(f"{json.dumps(name)}:{_json_text(one)}" for name, one in value.items()) + "}"
        case list():
            return "[" + ",".join(map(_json_text, value)) + "]"
        case _Number():
            return value.text
    return json.dumps(value)


# -- Arrow -------------------------------------------------------------------------------------------------------------


class KeyedTable(Folder):
    """Snapshots are tables with a row for each key (Arrow IPC streams), deltas have rows that replace or remove.

    A delta has the snapshot's columns, and perhaps one of booleans more, the tombstone: where it is true, the key's row
    goes. A key's last row counts. Rows that no delta touched come first, in their order, then those of deltas.
    All deltas are in memory at once, the snapshot only a part at a time.
    """

    format = "keyed-arrow"
    KEY = b"checkpoint_catalog.key"
    """Where a snapshot's schema has the names of its key columns, as a JSON list."""

    def __init__(self, key: Sequence[str] = (), tombstone: str = "_deleted") -> None:
        """Make it.

        Args:
            key: names of the key columns; by default those that the metadata of the snapshot's schema names.
            tombstone: name of the column that says which rows of a delta remove.
        """
        if isinstance(key, str) or not all(isinstance(name, str) for name in key):
            raise InvalidInputError(f"key must be a list of column names, not {key!r}")
        self._key = tuple(key)
        self._tombstone = tombstone

    def apply(self, state: bytes, delta: bytes) -> bytes:
        """See Folder."""
        return b"".join(self.fold([Link(lambda: iter([state])), Link(lambda: iter([delta]))]))

    def fold(self, chain: Sequence[Link]) -> Iterator[Buffer]:
        """See Folder; row numbers of the last of each key, by Arrow's grouping."""
        with _reading(chain[0]) as snapshot:
            schema, key = snapshot.schema, self._key_of(snapshot.schema)
            deltas = self._deltas(chain[1:], schema)
            changes = deltas.take(_last_rows(deltas.select(key)))
            sink = _Pieces()
            with pa.ipc.new_stream(sink, schema) as writer:
                for part in _parts(snapshot, max(BATCH_ROWS, changes.num_rows)):
                    keys = pa.concat_tables([part.select(key), changes.select(key)], promote_options="default")
                    last = _last_rows(keys)
                    writer.write_table(part.take(last.filter(pc.less(last, part.num_rows))))
                    yield from sink.taken()
                stays = changes.filter(pc.invert(changes.column(self._tombstone)))
                writer.write_table(stays.select(schema.names).cast(schema))
            yield from sink.taken()

    def difference(self, folded: Link, chain: Sequence[Link]) -> str | None:
        """See Folder; the deltas row by row into a dict, then the snapshot and the fold side by side."""
        with _reading(chain[0]) as snapshot, _reading(folded) as found:
            schema, key = snapshot.schema, self._key_of(snapshot.schema)
            if not found.schema.equals(schema, check_metadata=True):
                return "its columns are not the snapshot's"
            deltas = self._deltas(chain[1:], schema)
            touched: dict[tuple[Any, ...], int | None] = {}
            for number, (one, removes) in enumerate(
                zip(_keys(deltas, key), deltas.column(self._tombstone).to_pylist(), strict=True)
            ):
                touched.pop(one, None)
                touched[one] = None if removes else number
            rest = _Rows(found)
            for part in _parts(snapshot, BATCH_ROWS):
                expected = part.filter(pa.array([one not in touched for one in _keys(part, key)], pa.bool_()))
                if not _same_rows(rest.take(expected.num_rows), expected):
                    return "rows that no delta touched are not those of the snapshot"
            changed = deltas.take(pa.array([number for number in touched.values() if number is not None], pa.int64()))
            if not _same_rows(rest.take(None), changed.select(schema.names).cast(schema)):
                return "rows of deltas are not the last ones of their keys"
        return None

    def _key_of(self, schema: pa.Schema) -> list[str]:
        told = (schema.metadata or {}).get(self.KEY)
        key = list(self._key) or (json.loads(told) if told else [])
        if not key:
            raise InvalidInputError("its key columns are not known: give KeyedTable(key=[…]) for its operator")
        if missing := [name for name in key if schema.names.count(name) != 1]:
            raise InvalidInputError(f"the snapshot has no key column {missing[0]!r}")
        return key

    def _deltas(self, links: Sequence[Link], schema: pa.Schema) -> pa.Table:
        """Return the rows of deltas in order, with the snapshot's columns and the tombstone."""
        wanted = {**{field.name: field.type for field in schema}, self._tombstone: pa.bool_()}
        found = [pa.table({name: pa.array([], kind) for name, kind in wanted.items()})]
        for link in links:
            with _reading(link) as reader:
                table = reader.read_all()
            if self._tombstone not in table.column_names:
                table = table.append_column(self._tombstone, pa.array([False] * table.num_rows, pa.bool_()))
            if {field.name: field.type for field in table.schema} != wanted or table.num_columns != len(wanted):
                raise InvalidInputError(f"a delta has the columns {table.column_names}, the snapshot {schema.names}")
            columns = {name: table.column(name) for name in wanted}
            found.append(pa.table({**columns, self._tombstone: columns[self._tombstone].fill_null(False)}))
        return pa.concat_tables(found)


@contextmanager
def _reading(link: Link) -> Iterator[pa.ipc.RecordBatchStreamReader]:
    """Give a link as an Arrow stream."""
    pieces = link.open()
    try:
        try:
            reader = pa.ipc.open_stream(io.BufferedReader(_File(pieces)))
        except pa.ArrowInvalid as error:
            raise InvalidInputError(f"it is not an Arrow IPC stream: {error}") from error
        yield reader
    finally:
        if isinstance(pieces, Generator):
            pieces.close()


class _File(io.RawIOBase):
    """Pieces of bytes as a file."""

    def __init__(self, pieces: Iterator[Buffer]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece).cast("B")
        view = memoryview(buffer).cast("B")
        size = min(len(view), len(self._rest))
        view[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


class _Pieces(io.RawIOBase):
    """What was written, to be taken piece by piece."""

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._written.append(bytes(data))
        return len(self._written[-1])

    def taken(self) -> list[bytes]:
        taken, self._written = self._written, []
        return taken


class _Rows:
    """Rows of an Arrow stream, as many at a time as are asked for."""

    def __init__(self, reader: pa.ipc.RecordBatchStreamReader) -> None:
        self._reader = reader
        self._rest = reader.schema.empty_table()

    def take(self, count: int | None) -> pa.Table:
        """Return the next rows, fewer if there are no more; None is all."""
        while count is None or self._rest.num_rows < count:
            batch = next(self._reader, None)
            if batch is None:
                break
            self._rest = pa.concat_tables([self._rest, pa.Table.from_batches([batch])])
        taken = self._rest.slice(0, count)
        self._rest = self._rest.slice(taken.num_rows)
        return taken


def _parts(reader: pa.ipc.RecordBatchStreamReader, at_least: int) -> Iterator[pa.Table]:
    rows = _Rows(reader)
    while (part := rows.take(at_least)).num_rows:
        yield part


def _last_rows(keys: pa.Table) -> pa.Array:
    """Return the number of the last row of each key, ascending."""
    names = [f"key{number}" for number in range(keys.num_columns)]
    numbered = keys.rename_columns(names).append_column("row", pa.array(range(keys.num_rows), pa.int64()))
    last = numbered.group_by(names).aggregate([("row", "max")]).column("row_max")
    return last.take(pc.sort_indices(last)).combine_chunks()


def _keys(table: pa.Table, key: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    return zip(*(table.column(name).to_pylist() for name in key), strict=True)


def _same_rows(found: pa.Table, expected: pa.Table) -> bool:
    if found.num_rows != expected.num_rows:
        return False
    # Arrow takes no NaN for another one.
    return found.equals(expected) or repr(found.to_pylist()) == repr(expected.to_pylist())


# -- which one ---------------------------------------------------------------------------------------------------------

READY: Mapping[str, Folder] = {one.format: one for one in (AppendLog(), JsonMergePatch(), KeyedTable())}
"""Folders by the name that manifests call a format."""


def choose(folders: Mapping[str, Folder], operator: str, told: object) -> Folder | str:
    """Return the folder of an operator, or why there is none.

    Args:
        folders: by operator, or by a pattern as file names have it; the first that fits counts.
        operator: the operator.
        told: the format that its manifest tells, None if it tells none.
    """
    fitting = (one for pattern, one in folders.items() if fnmatchcase(operator, pattern))
    given = folders.get(operator) or next(fitting, None)
    if given is None:
        if told is None:
            return "its format is not known: neither a manifest nor a folder tells it"
        return (
            READY.get(told, f"its format {told!r} is not known") if isinstance(told, str) else "its format is no text"
        )
    if told is not None and told != given.format:
        return f"its manifest tells the format {told!r}, the folder that is given is for {given.format!r}"
    return given


def check_folders(folders: object) -> None:
    """Refuse what are no folders by operator."""
    if not isinstance(folders, Mapping) or not all(
        isinstance(name, str) and isinstance(one, Folder) for name, one in folders.items()
    ):
        raise InvalidInputError(f"folders must be Folders by operator or pattern, not {folders!r}")
