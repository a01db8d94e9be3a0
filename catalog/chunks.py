"""What chunk rows tell of artifacts, without their bytes: totals, who holds the bytes, what is borrowed. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any


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
