"""What the sections of the page are made of: tables, figures with their legends, times and ids."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from catalog.cli.output import NOTHING, moment, name, span
from catalog.report.charts import Drawn, Symbol
from catalog.report.findings import Level
from catalog.report.html import Child, Html, el, join

ROWS = 200
"""How many rows of a table are shown."""
# As Vega draws them, around 0.
SHAPES = {
    "square": "M-5-5H5V5H-5Z",
    "circle": "M-5 0A5 5 0 1 0 5 0A5 5 0 1 0-5 0Z",
    "cross": "M-6-2H-2V-6H2V-2H6V2H2V6H-2V2H-6Z",
    "diamond": "M0-6L5 0L0 6L-5 0Z",
    "triangle-up": "M0-5L6 5H-6Z",
}


def table(columns: Mapping[str, str], rows: Sequence[Sequence[Child]], nothing: str) -> Html:
    """Return a table of at most so many rows, and how many there are.

    Args:
        columns: title and class of each; those of class right are numbers.
        rows: the cells.
        nothing: what is said if there are none.
    """
    if not rows:
        return el("p", nothing, class_="faint")
    head = el("tr", *(el("th", title, class_=kind or None, scope="col") for title, kind in columns.items()))
    body = [
        el("tr", *(el("td", one, class_=kind or None) for one, kind in zip(row, columns.values(), strict=True)))
        for row in rows[:ROWS]
    ]
    shown = el("div", el("table", el("thead", head), el("tbody", *body)), class_="scroll", tabindex="0")
    return join([shown, cut(len(rows), ROWS)])


def cut(count: int, most: int, what: str = "rows are shown, the first") -> Html | None:
    """Return that there is more than is shown, if there is."""
    return el("p", f"Of {count:,} {what} {most:,}.", class_="cut") if count > most else None


def figure(drawn: Drawn) -> Html:
    """Return the place of a chart, its legend, and what is said about it."""
    note = el("small", drawn.note) if drawn.note else None
    legend = el("ul", *(el("li", _swatch(one), part) for part, one in drawn.legend.items()), class_="legend")
    return el("figure", el("figcaption", drawn.title, note), legend, el("div", class_="chart", id=f"chart-{drawn.id}"))


def _swatch(symbol: Symbol) -> Html:
    # A colour as an attribute, because the page allows no style but its own.
    return el("svg", el("path", d=SHAPES[symbol.shape], fill=symbol.color), viewBox="-7 -7 14 14", aria_hidden="true")


def badge(word: str, level: Level) -> Html:
    """Return a word in the colour of how bad it is."""
    return el("span", word, class_=f"badge {level.name.lower()}")


def stream_name(stream: str) -> Html:
    """Return a stream's name, kept from turning the direction of what is beside it."""
    return el("bdi", name(stream))


def ident(id: int | str | None) -> Child:
    """Return a checkpoint's id; a UUID in two lines."""
    shown = NOTHING if id is None else str(id)
    return el("span", shown, class_="uuid") if len(shown) == 36 else shown


def ago(at: datetime, now: datetime) -> str:
    """Return how long ago something was."""
    return span(max((now - at).total_seconds(), 0))


def when(at: datetime | None, now: datetime) -> Child:
    """Return a time, and how far away it is."""
    if at is None:
        return NOTHING
    away = (at - now).total_seconds()
    told = f"in {span(away)}" if away > 0 else f"{span(-away)} ago"
    exact = el("time", moment(at, timespec="minutes"), datetime=at.isoformat())
    return join([exact, " ", el("span", told, class_="away")])
