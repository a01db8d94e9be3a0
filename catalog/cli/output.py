"""How a command shows its result: as text for people, or as JSON for programs. Everything else goes to stderr.

A command hands over its data once, and the blocks that show it; JSON takes the data, text the blocks.
"""

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from catalog import keys

if TYPE_CHECKING:  # only text needs it
    from rich.console import Console
    from rich.table import Table

NOTHING = "-"
PIPED_WIDTH = 100_000
"""Where no terminal says how wide a line may be, no line is broken."""
FOLDED_WIDTH = 16
"""No column is folded to fewer characters than this."""
GAP = 2
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


class OutputFormat(StrEnum):
    """How results are shown."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with a value each, below each other."""

    pairs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    right: bool = False
    """Set to the right, for numbers."""
    folds: bool = False
    """Folded where the terminal is too narrow, for names and free text."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A table."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    title: str = ""
    """Stands above it; without rows it is shown with a dash."""


Block = Facts | Listing | str
"""A part of a result as people see it; a str is lines as they are."""


class Output(ABC):
    """Where a command's result goes."""

    @abstractmethod
    def result(self, data: Any, *blocks: Block) -> None:
        """Show a result.

        Args:
            data: maps, lists and plain values, times and decimals included.
            blocks: the same for people.
        """

    @contextmanager
    def working(self, what: str) -> Iterator[Callable[[str], None]]:
        """Say on stderr that this goes on, while it does and if somebody watches; gives a way to say how far it is."""
        if not sys.stderr.isatty():
            yield lambda _: None
            return
        from rich.text import Text

        with _console(stderr=True).status(Text(visible(what))) as status:
            yield lambda more: status.update(Text(visible(f"{what} {more}")))

    def note(self, text: str) -> None:
        """Say something on stderr, in one line."""
        print(visible(" ".join(text.split())), file=sys.stderr)


class JsonOutput(Output):
    """One JSON value, in ASCII so that any pipe takes it; times are ISO 8601, sizes bytes, spans seconds."""

    def result(self, data: Any, *_: Block) -> None:
        """See Output.result."""
        print(json.dumps(data, indent=2, default=_jsonable), flush=True)


class TextOutput(Output):
    """Tables and lines; coloured and as wide as the terminal, if it is one."""

    def result(self, data: Any, *blocks: Block) -> None:  # noqa: ARG002 - shown by the blocks
        """See Output.result."""
        console = _console()
        for number, block in enumerate(blocks):
            if number:
                console.print()
            match block:
                case Facts():
                    _print_facts(console, block)
                case Listing():
                    _print_listing(console, block)
                case str():
                    for line in block.splitlines():
                        console.print(visible(line), soft_wrap=True)


def make_output(format: OutputFormat) -> Output:
    """Return the output of a format."""
    return JsonOutput() if format is OutputFormat.JSON else TextOutput()


def visible(text: str) -> str:
    """Return a text in which nothing can move the cursor, change colours or hide: such characters are escaped."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


name = keys.shown
"""Returns a name as people see it."""


def size(count: int | None) -> str:
    """Return bytes for people."""
    if count is None:
        return NOTHING
    shown, unit = float(count), ""
    for larger in _UNITS:
        if shown < 1000:
            break
        shown, unit = shown / 1024, larger
    return f"{shown:.1f} {unit}" if unit else f"{count} B"


def count(number: int, what: str) -> str:
    """Return a number of things for people."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def span(seconds: float | None) -> str:
    """Return a length of time for people, in its largest unit."""
    if seconds is None:
        return NOTHING
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds)} s"


def moment(at: datetime | None, *, timespec: str = "seconds") -> str:
    """Return a time for people, in UTC; a column's title says so."""
    return NOTHING if at is None else at.astimezone(UTC).replace(tzinfo=None).isoformat(" ", timespec)


def value(one: object) -> str:
    """Return any other value for people."""
    return NOTHING if one is None else str(one)


def _console(*, stderr: bool = False, width: int | None = None) -> "Console":
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    if width is None and not stream.isatty():
        width = PIPED_WIDTH
    # Nothing that is stored may be taken for markup, an emoji's name or a number to colour.
    return Console(file=stream, width=width, markup=False, emoji=False, highlight=False)


def _print(console: "Console", shown: "Table") -> None:
    """Print a table, without the spaces that fill its last column where nobody looks at a terminal."""
    if console.is_terminal:
        console.print(shown)
        return
    with console.capture() as captured:
        console.print(shown)
    console.file.write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))


def _print_facts(console: "Console", facts: Facts) -> None:
    from rich.table import Table

    grid = Table.grid(padding=(0, GAP, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for title, text in facts.pairs.items():
        grid.add_row(title, visible(text))
    _print(console, grid)


def _print_listing(console: "Console", listing: Listing) -> None:
    from rich.cells import cell_len
    from rich.table import Table

    if listing.title:
        console.print(listing.title if listing.rows else f"{listing.title}: {NOTHING}", style="bold")
    if not listing.rows:
        return
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim")
    needed = 0
    for number, column in enumerate(listing.columns):
        longest = max(cell_len(visible(text)) for text in (column.title, *(row[number] for row in listing.rows)))
        least = min(longest, FOLDED_WIDTH) if column.folds else longest
        needed += least + GAP
        table.add_column(
            column.title, justify="right" if column.right else "left", overflow="fold", no_wrap=not column.folds,
            min_width=least,
        )  # fmt: skip
    for row in listing.rows:
        table.add_row(*map(visible, row))
    # Wider than the terminal if need be, because a value that is cut off misleads.
    _print(_console(width=max(console.width, needed)), table)


def _jsonable(one: object) -> object:
    match one:
        case datetime():
            return one.astimezone(UTC).isoformat()
        case timedelta():
            return one.total_seconds()
        case Decimal():
            return int(one)
    raise TypeError(f"{type(one).__name__} has no place in JSON")
