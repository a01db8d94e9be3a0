"""The charts of a report as Vega-Lite specifications, made with Altair; every text in them is data, never markup."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from catalog.cli.output import NOTHING, moment, name, size, visible
from catalog.lifecycle import Status
from catalog.prune import Planned
from catalog.report.facts import CheckpointFacts, Drilled, StreamFacts

TIMELINE_STREAMS = 30
TIMELINE_POINTS = 3000
SIZE_POINTS = 150
"""Of each stream."""
GROWTH_STREAMS = 6
GROWTH_BARS = 80
OPERATORS = 7
"""Besides all others."""
DRILLS = 600
BAR_STREAMS = 30

# Told apart also without colours by their shapes, and readable on white and on black.
BLUE, GREEN, AMBER, RED, GREY, VIOLET = "#3b82c4", "#2f9e74", "#d99a1c", "#d9484b", "#8b94a0", "#8a6fd1"
SERIES = [BLUE, AMBER, GREEN, VIOLET, "#c85a9b", "#3aa6a6", "#a0724a", GREY]
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Symbol:
    """How something is drawn."""

    color: str
    shape: str = "square"
    """One of Vega's."""
    area: int = 50
    """In square pixels."""


# What is worst is drawn last, over the others.
STATES = {
    "in the trash": Symbol(GREY, "square"),
    "sound": Symbol(BLUE, "circle"),
    "not promoted": Symbol(VIOLET, "diamond", 80),
    "sinks open": Symbol(AMBER, "triangle-up", 90),
    "broken": Symbol(RED, "cross", 130),
}
OUTCOMES = {"restored": Symbol(BLUE, "circle"), "failed": Symbol(RED, "cross", 130)}
TRUST = {
    "found broken": Symbol(RED),
    "never verified": Symbol(GREY),
    "rows only": Symbol(AMBER),
    "every hash": Symbol(GREEN),
}
PLAN = {"stays": Symbol(BLUE), "goes, freed": Symbol(AMBER), "goes, still needed": Symbol(GREY)}
SHARING = {"shared": Symbol(BLUE), "new": Symbol(AMBER)}


@dataclass(frozen=True, slots=True)
class Drawn:
    """One chart."""

    id: str
    title: str
    spec: Mapping[str, Any]
    legend: Mapping[str, Symbol]
    """What each colour and shape means; the page shows it, because a legend in a drawing does not wrap."""
    note: str = ""
    """What was left out, and what else one has to know to read it."""


def label(stream: str) -> str:
    """Return a stream's name as people see it."""
    return visible(name(stream))


def state(one: CheckpointFacts) -> str:
    """Return which of STATES a checkpoint is in."""
    if one.checkpoint.status is Status.TRASHED:
        return "in the trash"
    if one.broken:
        return "broken"
    if one.checkpoint.status is Status.PREPARED:
        return "not promoted"
    return "sinks open" if one.checkpoint.open_sinks else "sound"


def trust(one: CheckpointFacts) -> str:
    """Return which of TRUST holds for a live checkpoint."""
    if one.broken:
        return "found broken"
    if one.hashed and one.hashed.valid:
        return "every hash"
    return "rows only" if one.verified else "never verified"


def timeline(streams: Sequence[StreamFacts]) -> Drawn | None:
    """Draw checkpoints at the time of their save, a line for each stream, in the order given."""
    shown = [stream for stream in streams if stream.checkpoints][:TIMELINE_STREAMS]
    chosen = [one for stream in shown for one in _telling(stream.checkpoints, TIMELINE_POINTS // len(shown))]
    rows = [
        {
            "stream": label(one.stream),
            "at": one.saved_at.isoformat(),
            "part": state(one),
            "checkpoint": str(one.id),
            "saved": moment(one.saved_at),
            "size": size(one.bytes),
            "why": visible(_why(one)),
        }
        for one in sorted(chosen, key=lambda one: list(STATES).index(state(one)))
    ]
    tooltip = _tooltip("stream", "checkpoint", "saved", "why", "size", part="state")
    y = alt.Y("stream:N", sort=[label(one.name) for one in shown]).title(None).axis(grid=True)
    every = sum(len(stream.checkpoints) for stream in streams)
    note = f"{len(rows):,} of {every:,} are drawn, what is wrong first." if len(rows) < every else ""
    note += _left_out(sum(bool(stream.checkpoints) for stream in streams) - len(shown), "streams", " ")
    chart = _points(rows, STATES, "saved (UTC)", y, tooltip).properties(height=26 * len(shown))
    return _drawn("timeline", "When checkpoints were saved", chart, rows, STATES, note)


def sizes(streams: Sequence[StreamFacts]) -> Drawn | None:
    """Draw the size of live checkpoints over time, a line for each of the largest streams."""
    sized = [[one for one in stream.live if one.bytes] for stream in streams]
    largest = sorted(filter(None, sized), key=lambda some: -some[-1].bytes)
    shown = largest[: len(SERIES)]
    legend = _series([label(some[0].stream) for some in shown])
    rows = [
        {
            "part": label(one.stream),
            "at": one.saved_at.isoformat(),
            "bytes": one.bytes,
            "checkpoint": str(one.id),
            "saved": moment(one.saved_at),
            "size": size(one.bytes),
        }
        for some in shown
        for one in _spread(some, SIZE_POINTS)
    ]
    powers = [one.bytes.bit_length() for some in shown for one in some] or [0]
    step = next(step for step in (1, 2, 5, 10) if (max(powers) - min(powers)) / step <= 6)
    chart = (
        _chart(rows)
        .mark_line(point={"size": 18}, strokeWidth=1.5)
        .encode(
            x=_time("saved (UTC)"),
            y=alt.Y("bytes:Q")
            .scale(type="log", base=2)
            .title(None)
            .axis(values=[1 << power for power in range(0, 61, step)], labelExpr=_SIZE_LABEL),
            color=_color(legend),
            tooltip=_tooltip("checkpoint", "saved", "size", part="stream"),
        )
        .properties(height=240)
    )
    thinned = any(len(some) > SIZE_POINTS for some in shown)
    note = f"From line to line it is {1 << step} times as much. " + _left_out(
        len(largest) - len(shown), "smaller streams"
    )
    note += f"At most {SIZE_POINTS} of a stream are drawn, evenly spread." if thinned else ""
    return _drawn("sizes", "Size of live checkpoints", chart, rows, legend, note)


def sharing(number: int, stream: StreamFacts) -> Drawn | None:
    """Draw what each live checkpoint of a stream wrote, and what it shares with earlier ones."""

    def parts(one: CheckpointFacts) -> dict[str, int]:
        return {"shared": one.bytes - one.new_bytes, "new": one.new_bytes}

    return _bars(f"sharing-{number}", "New and shared bytes", stream.live, parts, SHARING)


def operators(number: int, stream: StreamFacts) -> Drawn | None:
    """Draw the size of each operator in the live checkpoints of a stream that has several."""
    totals = Counter[str]()
    for one in stream.live:
        totals.update({operator: found.bytes for operator, found in one.operators.items()})
    if len(totals) < 2:
        return None
    named, others = [operator for operator, _ in totals.most_common(OPERATORS)], "(all others)"

    def parts(one: CheckpointFacts) -> dict[str, int]:
        found = {visible(operator): each.bytes for operator, each in one.operators.items() if operator in named}
        return {**found, others: sum(each.bytes for each in one.operators.values()) - sum(found.values())}

    legend = _series([*map(visible, named), others])
    return _bars(f"operators-{number}", "Bytes by operator", stream.live, parts, legend)


def _bars(
    id: str,
    title: str,
    live: Sequence[CheckpointFacts],
    parts: Callable[[CheckpointFacts], Mapping[str, int]],
    legend: Mapping[str, Symbol],
) -> Drawn | None:
    """Draw a stacked bar for each checkpoint, oldest first."""
    drawn = _spread(live, GROWTH_BARS)
    unit, name_of_unit = _unit(max((sum(parts(one).values()) for one in drawn), default=0))
    rows = [
        {
            "n": n,
            "part": part,
            "rank": list(legend).index(part),
            "value": count / unit,
            "checkpoint": str(one.id),
            "saved": moment(one.saved_at),
            "size": size(count),
            "all": size(sum(parts(one).values())),
        }
        for n, one in enumerate(drawn)
        for part, count in parts(one).items()
        if count
    ]
    chart = (
        _chart(rows)
        .mark_bar()
        .encode(
            # Room for some more, so that a few bars do not become walls.
            x=alt.X("n:O").axis(None).scale(domain=list(range(max(len(drawn), 24))), paddingInner=0.1, paddingOuter=0),
            y=alt.Y("value:Q").title(name_of_unit),
            color=_color(legend),
            order=alt.Order("rank:Q"),
            tooltip=_tooltip("checkpoint", "saved", "size", "all", part="part"),
        )
        .properties(height=150)
    )
    if not rows:
        return None
    first, last = (moment(one.saved_at, timespec="minutes") for one in (drawn[0], drawn[-1]))
    thinned = f"; {len(drawn)} of {len(live):,} are drawn, evenly spread" if len(drawn) < len(live) else ""
    return _drawn(id, title, chart, rows, legend, f"Oldest to newest, {first} to {last} UTC{thinned}.")


def verification(streams: Sequence[StreamFacts]) -> Drawn | None:
    """Draw how many live checkpoints of each stream were verified, and how thoroughly."""
    counts = {stream.name: Counter(map(trust, stream.live)) for stream in streams}
    told = {
        name: {part: f"{count:,} of {some.total():,}" for part, count in some.items()} for name, some in counts.items()
    }
    return _by_stream("verification", "How live checkpoints were last verified", "checkpoints", counts, TRUST, told)


def retention(streams: Sequence[StreamFacts], planned: Sequence[Planned]) -> Drawn | None:
    """Draw how many bytes of each stream the policies keep, and how many they would free."""
    counts = {stream.name: Counter[str]() for stream in streams}
    for one in planned:
        needed = {"goes, freed": one.freed_bytes, "goes, still needed": max(one.bytes - one.freed_bytes, 0)}
        counts[one.stream].update({"stays": one.bytes} if one.keep else needed)
    unit, name_of_unit = _unit(max((some.total() for some in counts.values()), default=0))
    told = {name: {part: size(count) for part, count in some.items()} for name, some in counts.items()}
    scaled = {name: {part: count / unit for part, count in some.items()} for name, some in counts.items()}
    title = "Bytes that the policies keep and let go, shared ones counted for each checkpoint"
    return _by_stream("retention", title, name_of_unit, scaled, PLAN, told)


def _by_stream(
    id: str,
    title: str,
    unit: str,
    counts: Mapping[str, Mapping[str, float]],
    legend: Mapping[str, Symbol],
    told: Mapping[str, Mapping[str, str]],
) -> Drawn | None:
    """Draw a stacked bar across for each stream that has anything, in the order given."""
    some = [stream for stream, found in counts.items() if any(found.values())]
    rows = [
        {
            "stream": label(stream),
            "part": part,
            "rank": rank,
            "count": counts[stream][part],
            "told": told[stream][part],
        }
        for stream in some[:BAR_STREAMS]
        for rank, part in enumerate(legend)
        if counts[stream].get(part)
    ]
    chart = (
        _chart(rows)
        .mark_bar()
        .encode(
            x=alt.X("count:Q").title(unit),
            y=alt.Y("stream:N", sort=list(map(label, some))).title(None),
            color=_color(legend),
            order=alt.Order("rank:Q"),
            tooltip=_tooltip("stream", "told", part="part"),
        )
        .properties(height=24 * len(some[:BAR_STREAMS]))
    )
    return _drawn(id, title, chart, rows, legend, _left_out(len(some) - BAR_STREAMS, "streams"))


def drills(streams: Sequence[StreamFacts], *, speed: bool) -> Drawn | None:
    """Draw how long restores took, or how fast they were."""
    every = sorted((one for stream in streams for one in stream.drills), key=lambda one: one.at)
    usable = [one for one in every if one.mib_per_second is not None] if speed else every
    rows = [_drill_row(one, speed) for one in usable[-DRILLS:]]
    rows.sort(key=lambda row: list(OUTCOMES).index(row["part"]))
    y = alt.Y("value:Q").title("MiB/s" if speed else "seconds")
    tooltip = _tooltip("stream", "checkpoint", "drilled", "seconds", "speed", "size", "error", part="outcome")
    chart = _points(rows, OUTCOMES, "drilled (UTC)", y, tooltip).properties(height=200)
    note = _left_out(len(usable) - DRILLS, "older drills")
    if speed:
        return _drawn("speed", "How fast restores were", chart, rows, OUTCOMES, note)
    note += "Failed ones stand at 0." if any(not one.restored for one in usable[-DRILLS:]) else ""
    return _drawn("drills", "How long restores took", chart, rows, OUTCOMES, note)


def _drill_row(one: Drilled, speed: bool) -> Row:
    rate = one.mib_per_second
    return {
        "stream": label(one.stream),
        "checkpoint": str(one.checkpoint_id),
        "at": one.at.isoformat(),
        "drilled": moment(one.at),
        "part": "restored" if one.restored else "failed",
        "value": (rate if speed else one.seconds) or 0,
        "seconds": NOTHING if one.seconds is None else f"{one.seconds:.3f} s",
        "speed": NOTHING if rate is None else f"{rate:,.1f} MiB/s",
        "size": size(one.bytes),
        "error": visible(one.error or NOTHING),
    }


# -- what they share ---------------------------------------------------------------------------------------------------

_SIZE_LABEL = " : ".join(
    [
        f"datum.value >= {1024**power} ? format(datum.value / {1024**power}, '~r') + ' {unit}'"
        for power, unit in reversed(list(enumerate(_UNITS)))
    ]
    + ["''"]
)
_TIME_LABEL = (
    "utcseconds(datum.value) ? utcFormat(datum.value, '%H:%M:%S')"
    " : utchours(datum.value) || utcminutes(datum.value) ? utcFormat(datum.value, '%H:%M')"
    " : utcdate(datum.value) > 1 || utcmonth(datum.value) ? utcFormat(datum.value, '%d %b')"
    " : utcFormat(datum.value, '%Y')"
)


def _chart(rows: list[Row]) -> alt.Chart:
    fit = alt.AutoSizeParams(type="fit-x", contains="padding")
    chart: alt.Chart = alt.Chart(alt.InlineData(values=rows)).properties(width="container", autosize=fit)
    return chart


def _points(
    rows: list[Row], legend: Mapping[str, Symbol], time: str, y: alt.Y, tooltip: Sequence[alt.Tooltip]
) -> alt.Chart:
    sized = [{**row, "area": legend[row["part"]].area} for row in rows]
    shapes = [one.shape for one in legend.values()]
    chart: alt.Chart = (
        _chart(sized)
        .mark_point(filled=True, opacity=0.75)
        .encode(
            x=_time(time),
            y=y,
            color=_color(legend),
            shape=alt.Shape("part:N", legend=None).scale(domain=list(legend), range=shapes),
            size=alt.Size("area:Q", scale=None, legend=None),
            tooltip=list(tooltip),
        )
    )
    return chart


def _time(title: str) -> alt.X:
    # In UTC, wherever the page is looked at.
    axis = alt.Axis(labelOverlap=True, tickCount={"expr": "width / 70"}, labelExpr=_TIME_LABEL)
    return alt.X("at:T").scale(type="utc").title(title).axis(axis)


def _color(legend: Mapping[str, Symbol]) -> alt.Color:
    colors = [one.color for one in legend.values()]
    return alt.Color("part:N", legend=None).scale(domain=list(legend), range=colors)


def _tooltip(*fields: str, part: str) -> list[alt.Tooltip]:
    titles = {"saved": "saved (UTC)", "drilled": "drilled (UTC)", "told": "how many", "all": "of"}
    return [alt.Tooltip("part:N").title(part), *(alt.Tooltip(f"{one}:N").title(titles.get(one, one)) for one in fields)]


def _drawn(
    id: str, title: str, chart: alt.Chart, rows: Sequence[Row], legend: Mapping[str, Symbol], note: str
) -> Drawn | None:
    """Return a chart with a legend of what is in it; None if nothing is."""
    found = {row["part"] for row in rows}
    shown = {part: symbol for part, symbol in legend.items() if part in found}
    return Drawn(id, title, chart.to_dict(), shown, note.strip()) if rows else None


def _series(names: Sequence[str]) -> dict[str, Symbol]:
    return {one: Symbol(color) for one, color in zip(names, SERIES, strict=False)}


def _unit(most: int) -> tuple[int, str]:
    """Return how many bytes the unit has in which an axis is best read, and its name."""
    power = max(power for power in range(len(_UNITS)) if power == 0 or most >= 1024**power)
    return 1024**power, _UNITS[power]


def _why(one: CheckpointFacts) -> str:
    """Return what there is to say about a checkpoint's state."""
    if one.checkpoint.trash:
        return one.checkpoint.trash.reason or NOTHING
    return "; ".join(fault.message for fault in one.broken) or one.checkpoint.open_sinks or NOTHING


def _telling(some: Sequence[CheckpointFacts], most: int) -> list[CheckpointFacts]:
    """Return at most so many: what is wrong, the newest first, and others evenly spread."""
    if len(some) <= most:
        return list(some)
    wrong = [one for one in some if state(one) in ("broken", "sinks open", "not promoted")][-(most // 2) :]
    taken = {one.id for one in wrong}
    return [*wrong, *_spread([one for one in some if one.id not in taken], most - len(wrong))]


def _spread(some: Sequence[CheckpointFacts], most: int) -> list[CheckpointFacts]:
    """Return at most so many, evenly spread from the oldest to the newest, both included."""
    if len(some) <= most:
        return list(some)
    return [some[round(n * (len(some) - 1) / (most - 1))] for n in range(most)]


def _left_out(count: int, what: str, before: str = "") -> str:
    return f"{before}{count:,} {what} are not drawn. " if count > 0 else ""
