"""A stream's checkpoint as one portable value, to bytes and back.

    u64 sequence · u64 watermark_ns · u64 event_count
    u32 operators · each: u32 length, UTF-8 name, u32 length, state
    u32 sources   · each: u32 length, UTF-8 name, u64 offset

All little-endian, without magic or version. Names are written in the order of their UTF-8 bytes, so equal states give
equal bytes and one hash; any order is read. The stream's id, created_at and metadata are not in the bytes.
"""

import struct
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Self

from catalog import keys
from catalog.errors import DeserializationError, InvalidInputError

MAX_U32 = 2**32 - 1

_HEADER = struct.Struct("<QQQ")


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class CheckpointId:
    """Which checkpoint of which stream.

    Raises:
        InvalidInputError: the stream id is no name, the sequence no u64, or the time has no time zone or is beyond
            what UTC can hold.
    """

    stream_id: str
    sequence: int
    """A u64 that rises with each checkpoint of the stream; 0 is valid."""
    created_at: datetime = field(default_factory=_utc_now, compare=False)
    """In UTC; no part of equality, since the bytes do not carry it."""

    def __post_init__(self) -> None:
        _name(self.stream_id, "stream id")
        keys.u64(self.sequence, "sequence")
        object.__setattr__(self, "created_at", keys.utc(self.created_at, "created_at"))


@dataclass(slots=True)
class CheckpointState:
    """What a stream needs to go on from a checkpoint."""

    id: CheckpointId
    operator_states: dict[str, bytes] = field(default_factory=dict)
    """Opaque state by operator name."""
    source_offsets: dict[str, int] = field(default_factory=dict)
    """Position (a u64, of bytes or records) by source name."""
    watermark_ns: int = 0
    """Highest event time processed, in nanoseconds since 1970; a u64."""
    event_count: int = 0
    """Events processed up to and including this checkpoint; a u64."""
    metadata: dict[str, str] = field(default_factory=dict)
    """Free text by key; it stays in memory, `serialize` leaves it out."""

    @classmethod
    def new(cls, id: CheckpointId) -> Self:
        """Make an empty state."""
        return cls(id)

    def set_operator_state(self, operator: str, state: bytes | bytearray | memoryview) -> None:
        """Keep a copy of an operator's state, in place of an earlier one.

        Raises:
            InvalidInputError: no valid name, or state that is not bytes-like or too long for the format.
        """
        _name(operator, "operator name")
        self.operator_states[operator] = _state(state, operator)

    def set_source_offset(self, source: str, offset: int) -> None:
        """Keep a source's position, in place of an earlier one.

        Raises:
            InvalidInputError: no valid name, or an offset that is no u64.
        """
        _name(source, "source name")
        self.source_offsets[source] = keys.u64(offset, f"offset of source {source!r}")

    def serialize(self) -> bytes:
        """Give the bytes of this state, the same for equal states.

        Raises:
            InvalidInputError: a field was changed, past the setters, to what the format cannot hold.
        """
        # Every field is checked again: the dicts and numbers are open to the caller.
        parts = [
            _HEADER.pack(
                keys.u64(self.id.sequence, "sequence"),
                keys.u64(self.watermark_ns, "watermark_ns"),
                keys.u64(self.event_count, "event_count"),
            ),
            _length(len(self.operator_states), "operator count"),
        ]
        for name, operator in sorted((_name(key, "operator name"), key) for key in self.operator_states):
            state = _state(self.operator_states[operator], operator)
            parts += _length(len(name), "operator name"), name, _length(len(state), "operator state"), state
        parts.append(_length(len(self.source_offsets), "source count"))
        for name, source in sorted((_name(key, "source name"), key) for key in self.source_offsets):
            offset = keys.u64(self.source_offsets[source], f"offset of source {source!r}")
            parts += _length(len(name), "source name"), name, offset.to_bytes(8, "little")
        return b"".join(parts)

    @classmethod
    def deserialize(cls, stream_id: str, data: bytes | bytearray | memoryview) -> Self:
        """Read a state from the bytes of `serialize`; metadata starts empty and created_at now.

        Args:
            stream_id: the stream it belongs to, which the bytes do not say.
            data: all of the bytes and no more; the source section may be absent.

        Raises:
            DeserializationError: the bytes are malformed; `what` and `offset` say which field, and where it starts.
            InvalidInputError: data is not bytes-like, or stream_id is no name.
        """
        read = _Reader(stream_id, _view(data, "data"))
        sequence, watermark_ns, event_count = _HEADER.unpack(read.take(_HEADER.size, "header"))
        state = cls(CheckpointId(stream_id, sequence), watermark_ns=watermark_ns, event_count=event_count)
        for _ in range(read.count("operator count", least_bytes=8)):
            name = read.name("operator name", state.operator_states)
            size = read.number(4, "operator state length")
            state.operator_states[name] = bytes(read.take(size, "operator state"))
        if read.left:  # the section may be absent as a whole, never in part
            for _ in range(read.count("source count", least_bytes=12)):
                name = read.name("source name", state.source_offsets)
                state.source_offsets[name] = read.number(8, "source offset")
        if read.left:
            raise read.error("trailing bytes", read.offset, f"{read.left} bytes follow the end of the state")
        return state

    def copy(self) -> Self:
        """Give an independent copy: changing its dicts leaves this one alone."""
        return replace(
            self,
            operator_states=dict(self.operator_states),
            source_offsets=dict(self.source_offsets),
            metadata=dict(self.metadata),
        )

    __copy__ = copy


class _Reader:
    """Takes fields off the front of the bytes, without copying them, and knows where each one starts."""

    __slots__ = ("_data", "_stream_id", "offset")

    def __init__(self, stream_id: str, data: memoryview) -> None:
        self._stream_id = stream_id
        self._data = data
        self.offset = 0

    @property
    def left(self) -> int:
        return len(self._data) - self.offset

    def error(self, what: str, offset: int, problem: str) -> DeserializationError:
        message = f"not a CheckpointState of stream {self._stream_id!r}: {what} at byte {offset}: {problem}"
        return DeserializationError(message, what=what, offset=offset, stream_id=self._stream_id)

    def take(self, size: int, what: str) -> memoryview:
        start = self.offset
        if size > self.left:
            raise self.error(what, start, f"needs {size} bytes, {self.left} are left")
        self.offset += size
        return self._data[start : self.offset]

    def number(self, size: int, what: str) -> int:
        return int.from_bytes(self.take(size, what), "little")

    def count(self, what: str, least_bytes: int) -> int:
        """Read how many entries follow, each of at least so many bytes."""
        start = self.offset
        count = self.number(4, what)
        # Checked before the first entry is read, so that a damaged count costs nothing.
        if count * least_bytes > self.left:
            raise self.error(what, start, f"{count} entries cannot fit in the {self.left} bytes left")
        return count

    def name(self, what: str, taken: dict[str, bytes] | dict[str, int]) -> str:
        size = self.number(4, f"{what} length")
        start = self.offset
        raw = self.take(size, what)
        try:
            name = str(raw, "utf-8")
        except UnicodeDecodeError as error:
            raise self.error(what, start + error.start, f"not UTF-8, {error.reason}") from error
        # What has been read must be writable again.
        if len(name) > keys.NAME_MAX_CHARS:
            raise self.error(what, start, f"{len(name)} characters, at most {keys.NAME_MAX_CHARS} are allowed")
        if name in taken:
            raise self.error(what, start, f"{name!r} is there twice")
        return name


def _length(size: int, what: str) -> bytes:
    if size > MAX_U32:
        raise InvalidInputError(f"{what} of {size} is above the format's limit of {MAX_U32}", what=what, size=size)
    return size.to_bytes(4, "little")


def _name(value: object, what: str) -> bytes:
    return keys.text(value, what).encode()


def _state(value: object, operator: str) -> bytes:
    what = f"state of operator {operator!r}"
    view = _view(value, what)
    _length(view.nbytes, what)  # before the copy, not after
    return bytes(value) if isinstance(value, bytes) else bytes(view)  # bytes are kept, not copied


def _view(value: object, what: str) -> memoryview:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise InvalidInputError(f"{what} must be bytes-like, not {type(value).__name__}", what=what)
    view = memoryview(value)
    # A view with steps or of wider items has to be flattened, which copies it; the usual ones are taken as they are.
    return view if view.format == "B" and view.ndim == 1 and view.c_contiguous else memoryview(bytes(view))
