"""What a move of checkpoints did: a line for each of them, and for each file that is part of none."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from catalog.moving.layouts import Layout


class Moved(StrEnum):
    """What became of a checkpoint, or of a file."""

    IMPORTED = "imported"
    EXPORTED = "exported"
    PRESENT = "already there"
    CORRUPT = "imported as corrupt"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class MoveLine:
    """What became of one checkpoint, or of a file that is part of none."""

    outcome: Moved
    checkpoint_id: int | str | None
    """None for a file that is part of no checkpoint."""
    file: str
    """Its manifest, or the file that the line is about."""
    bytes: int = 0
    """Of all its files."""
    fault: str | None = None
    """What is wrong with it; None if nothing is."""
    note: str | None = None
    """What else is to be said."""

    def __str__(self) -> str:
        what = self.file if self.checkpoint_id is None else f"{self.checkpoint_id} ({self.file})"
        told = "; ".join(filter(None, (self.fault, self.note)))
        return f"{self.outcome} {what}" + (f": {told}" if told else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveReport:
    """What an import or an export did, or would do."""

    stream: str
    place: str
    """Where from, or where to."""
    layout: Layout
    lines: Sequence[MoveLine]
    """Checkpoints by age, then files that are part of none."""
    latest: int | str | None
    """The highest checkpoint that is committed."""
    notes: Sequence[str] = ()
    dry_run: bool = False

    @property
    def faults(self) -> list[MoveLine]:
        """The lines that tell of something that is wrong, or was not moved."""
        return [line for line in self.lines if line.fault is not None]

    def count(self, outcome: Moved) -> int:
        """Return how many checkpoints and files this became of."""
        return sum(line.outcome is outcome for line in self.lines)

    def explain(self) -> str:
        """Return the report as text for people."""
        counts = Counter(line.outcome for line in self.lines)
        told = ", ".join(f"{counts[outcome]} {outcome}" for outcome in Moved if counts[outcome]) or "nothing to move"
        latest = "no latest" if self.latest is None else f"latest is {self.latest}"
        summary = f"{told}; layout {self.layout}, {latest}"
        if self.dry_run:
            summary += "; nothing was written"
        return "\n".join([*map(str, self.lines), *self.notes, summary])
