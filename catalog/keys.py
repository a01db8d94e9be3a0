"""Names, ids and times at the boundary, and the keys under which ids are stored.

A checkpoint_key is an id as text that sorts by age: a u64 padded to 20 digits, or a UUIDv7. A stream holds one
kind only, because the two do not sort by age among each other.
"""

import os
import re
import threading
import time
import uuid
from datetime import UTC, datetime
from enum import StrEnum

from catalog.errors import InvalidInputError

U64_MAX = 2**64 - 1
NAME_MAX_CHARS = 512

EMPTY_STREAM = "<empty prefix>"
"""Where the stream with the empty name is stored: an empty partition value would mean NULL in Delta."""
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""What Spark takes for NULL in a partition column: what it stored under that name nobody would find again."""

_INTEGER_KEY = re.compile(r"[0-9]{20}")
_UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


class Format(StrEnum):
    """What a stream holds; fixed by its first save."""

    MANIFEST_V1 = "manifest-v1"
    MANIFEST_V2 = "manifest-v2"
    STATE_V1 = "state-v1"


def integer(value: object, what: str) -> int:
    """Return value if it is an integer, else refuse it."""
    # bool is an int to Python, and never meant as an id or a count.
    if isinstance(value, bool) or not isinstance(value, int):
        problem = f"{what} must be an integer, not {type(value).__name__}"
        raise InvalidInputError(problem, what=what, value=value)
    return value


def u64(value: object, what: str, *, minimum: int = 0) -> int:
    """Return value if it is an integer from minimum to 2^64-1, else refuse it."""
    value = integer(value, what)
    if not minimum <= value <= U64_MAX:
        # Printing an int of thousands of digits is an error of its own.
        shown = value if value.bit_length() < 128 else "one that is far too large"
        raise InvalidInputError(f"{what} must be from {minimum} to 2^64-1, not {shown}", what=what, value=value)
    return value


def integer_key(value: object, what: str = "checkpoint_id", *, minimum: int = 1) -> str:
    """Return the key of an integer id: 20 digits, so that text order is age order up to 2^64-1."""
    return f"{u64(value, what, minimum=minimum):020d}"


def uuid7(value: object, what: str = "checkpoint_id", kind: str = "a UUID version 7") -> str:
    """Return the canonical text of a UUID version 7, else refuse it as not being of that kind."""
    found = str(value).lower() if isinstance(value, str | uuid.UUID) else ""
    if not _UUID7.fullmatch(found):
        shown = repr(value) if isinstance(value, str | uuid.UUID) else type(value).__name__
        raise InvalidInputError(f"{what} must be {kind}, not {shown}", what=what, value=value)
    return found


def any_key(value: object) -> str:
    """Return the key of an id of either kind: an integer, also as digits, or a UUIDv7."""
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        value = int(value.lstrip("0")[:40] or "0")  # of 40 it is far too large, and of thousands there is no int
    if isinstance(value, int):
        return integer_key(value, minimum=0)
    return uuid7(value, kind="an integer or a UUID version 7")


def checkpoint_id(key: str) -> int | str:
    """Return the id that people and APIs see for a key."""
    return int(key) if _INTEGER_KEY.fullmatch(key) else key


def text(value: object, what: str) -> str:
    """Return a name if it is text of at most 512 characters that UTF-8 can carry, else refuse it."""
    if not isinstance(value, str):
        raise InvalidInputError(f"{what} must be text, not {type(value).__name__}", what=what, value=value)
    if len(value) > NAME_MAX_CHARS:
        problem = f"{what} has {len(value)} characters, at most {NAME_MAX_CHARS} are allowed"
        raise InvalidInputError(problem, what=what, value=value)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        problem = f"{what} {value!r} cannot be encoded as UTF-8: {error.reason}"
        raise InvalidInputError(problem, what=what, value=value) from error
    return value


def stream_key(name: object) -> str:
    """Return the partition value under which a stream is stored."""
    stream = text(name, "stream name")
    if stream == EMPTY_STREAM:
        raise InvalidInputError(f"stream name {EMPTY_STREAM!r} is reserved for the empty prefix: pass '' instead")
    if stream == NULL_PARTITION:
        raise InvalidInputError(f"stream name {NULL_PARTITION!r} means NULL to Spark: take another name")
    return stream or EMPTY_STREAM


def stream_label(stream: str) -> str:
    """Return the name a caller used for a stored stream."""
    return "" if stream == EMPTY_STREAM else stream


def shown(stream: str) -> str:
    """Return a stream's name as people see it; the empty one as two quotes."""
    return stream or "''"


def utc(value: object, what: str) -> datetime:
    """Return a time in UTC if it has a time zone and UTC can hold it, else refuse it."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise InvalidInputError(f"{what} must be a datetime with a time zone, not {value!r}", what=what, value=value)
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        problem = f"{what} must be in the years 1 to 9999 of UTC, not {value}"
        raise InvalidInputError(problem, what=what, value=value) from error


def time_text(at: datetime) -> str:
    """Return a time as messages tell it."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def now_ms() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Uuid7Source:
    """Makes UUIDv7s that rise strictly within one process, also inside one millisecond (RFC 9562, method 3)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def __call__(self) -> str:
        milliseconds, rest_ns = divmod(time.time_ns(), 1_000_000)
        tick = milliseconds << 12 | (rest_ns << 12) // 1_000_000
        with self._lock:
            tick = self._last = max(tick, self._last + 1)
        random_bits = int.from_bytes(os.urandom(8)) & (1 << 62) - 1
        value = (tick >> 12) << 80 | 0x7 << 76 | (tick & 0xFFF) << 64 | 0b10 << 62 | random_bits
        return str(uuid.UUID(int=value))


new_uuid7 = Uuid7Source()
