"""The sections of the page: what each table and chart shows, and what is said where there is nothing to show."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain

from catalog.cli.output import NOTHING, moment, name, size
from catalog.prune import Planned
from catalog.report import charts
from catalog.report.charts import Drawn
from catalog.report.facts import CheckpointFacts, Fault, Report, StreamFacts
from catalog.report.findings import Finding, Level
from catalog.report.html import Child, Html, el, join
from catalog.report.pieces import ROWS, ago, badge, cut, figure, ident, stream_name, table, when

AT_FIRST = 12
"""How many findings are seen before more are asked for."""
WORDS = {Level.GOOD: "ok", Level.NOTE: "note", Level.WARNING: "warning", Level.CRITICAL: "critical"}
GUIDE = {
    "Broken": "It breaks a rule of integrity: recovery passes over it. Its rows show it now, or a verification that "
    "read its bytes recorded it.",
    "Sinks open": "A sink has not committed it, or failed to: recovery passes over it, unless it is told otherwise.",
    "Recovery would choose": "The newest that all sinks have committed and that is not broken, as far as is known "
    "without reading bytes. Recovery itself reads and hashes them.",
    "Size and stored": "Size counts every byte that a checkpoint needs. Stored is what the table holds, each byte "
    "once: checkpoints share what did not change.",
    "Every hash, rows only": "How it was last verified: all its bytes were read and hashed, or only its rows were "
    "looked at.",
    "Proven": "Its last drill restored it. Of others nobody knows whether, and how fast, they can be restored.",
    "Quiet": "It has not saved for ten times as long as usual.",
    "Trash": "What was let go. It can be restored until its undo window ends; after that it may be purged at any time.",
}

Section = tuple[Html, list[Drawn]]
"""What is shown, and the charts in it."""


def summary(report: Report, found: Sequence[Finding]) -> Html:
    """Return the numbers at the top."""
    live = [one for stream in report.streams for one in stream.live]
    broken = sum(bool(one.broken) for one in live)
    counts = Counter(one.level for one in found)
    worst, *others = [_counted(counts[level], level) for level in sorted(counts, reverse=True)] or ["nothing"]
    stored = [stream.stored_bytes for stream in report.streams]
    on_disk = f"{size(sum(filter(None, stored)))} stored" + (", as far as is readable" if None in stored else "")
    oldest = report.oldest_unproven
    tiles = [
        ("Attention", worst, ", ".join(others), max(counts, default=Level.GOOD)),
        (
            "Streams",
            f"{len(report.streams):,}",
            f"{sum(bool(one.live) for one in report.streams):,} with checkpoints",
            None,
        ),
        (
            "Live checkpoints",
            f"{len(live):,}",
            f"{sum(len(one.trashed) for one in report.streams):,} in the trash",
            None,
        ),
        ("Size", size(sum(stream.bytes for stream in report.streams)), on_disk, None),
        ("Broken", f"{broken:,}", f"of {len(live):,} live checkpoints", Level.CRITICAL if broken else Level.GOOD),
        ("Oldest unproven", ago(oldest.saved_at, report.made_at), f"{name(oldest.stream)} {oldest.id}", None)
        if oldest
        else ("Oldest unproven", "none", "drills restored every committed one", Level.GOOD),
    ]
    return el("dl", *(_tile(*one) for one in tiles), class_="tiles")


def _counted(count: int, level: Level) -> str:
    return f"{count:,} {WORDS[level]}{'s' if count > 1 and level is not Level.CRITICAL else ''}"


def _tile(title: str, number: str, more: str, level: Level | None) -> Html:
    shown = [el("span", number, class_="number"), el("span", more, class_="more")]
    return el(
        "div", el("dt", title), el("dd", *shown), class_="tile" if level is None else f"tile {level.name.lower()}"
    )


def attention(found: Sequence[Finding]) -> Html:
    """Return what somebody should look at, worst first."""
    if not found:
        return el("p", "Nothing: as far as can be told without reading bytes, all is well.", class_="faint")
    items = [
        el(
            "li",
            badge(WORDS[one.level], one.level),
            " ",
            None if one.stream is None else join([el("strong", stream_name(one.stream)), ": "]),
            one.text,
            el("code", one.command) if one.command else None,
            class_=one.level.name.lower(),
        )
        for one in found[:ROWS]
    ]
    rest = el("ul", *items[AT_FIRST:], class_="findings")
    more = el("details", el("summary", f"{len(items) - AT_FIRST:,} more"), rest) if len(items) > AT_FIRST else None
    return join([el("ul", *items[:AT_FIRST], class_="findings"), more, cut(len(found), ROWS)])


def streams(ordered: Sequence[StreamFacts], worst: Mapping[str, Level], now: datetime) -> Html:
    """Return the streams with their health."""
    columns = {
        "health": "", "stream": "name", "latest": "id", "saved ago": "right", "recovery would choose": "id",
        "live": "right", "trash": "right", "broken": "right", "size of latest": "right", "size of live": "right",
        "stored": "right", "verified by hash": "right", "proven by drill": "right",
    }  # fmt: skip
    return table(columns, [_stream_row(one, worst[one.name], now) for one in ordered], "There is no stream yet.")


def _stream_row(stream: StreamFacts, level: Level, now: datetime) -> list[Child]:
    latest, choice = stream.latest, stream.choice
    return [
        badge(WORDS[level], level),
        stream_name(stream.name),
        ident(latest.id if latest else None),
        ago(latest.saved_at, now) if latest else NOTHING,
        el("span", "the latest", class_="away")
        if choice and choice is latest
        else ident(choice.id if choice else None),
        f"{len(stream.live):,}",
        f"{len(stream.trashed):,}",
        f"{len(stream.broken):,}",
        size(latest.bytes) if latest else NOTHING,
        size(stream.bytes),
        size(stream.stored_bytes),
        f"{sum(charts.trust(one) == 'every hash' for one in stream.live):,}",
        f"{len(stream.committed) - len(stream.unproven):,}",
    ]


def growth(ordered: Sequence[StreamFacts]) -> Section:
    """Return how sizes grow, for the streams that store most."""
    largest = sorted((one for one in ordered if one.bytes), key=lambda one: -one.bytes)
    overview = charts.sizes(ordered)
    drawn = [overview] if overview else []
    parts: list[Child] = [figure(one) for one in drawn]
    for number, stream in enumerate(largest[: charts.GROWTH_STREAMS], 1):
        pair = [one for one in (charts.sharing(number, stream), charts.operators(number, stream)) if one]
        drawn += pair
        parts += [el("h3", stream_name(stream.name)), el("div", *map(figure, pair), class_="pair")] if pair else []
    columns = {
        "stream": "name", "operator": "id", "checkpoints": "right", "oldest": "right", "median": "right",
        "largest": "right", "newest": "right", "written for all": "right",
    }  # fmt: skip
    rows = [row for stream in largest for row in _operator_rows(stream)]
    parts += [
        cut(len(largest), charts.GROWTH_STREAMS, "streams with bytes are drawn one by one, the largest"),
        el("h3", "By stream and operator, in live checkpoints"),
        table(columns, rows, "No live checkpoint has artifacts; state that rides in a manifest is not counted."),
    ]
    return join(parts), drawn


def _operator_rows(stream: StreamFacts) -> Iterable[list[Child]]:
    for operator in sorted({one for checkpoint in stream.live for one in checkpoint.operators}):
        found = [one.operators[operator] for one in stream.live if operator in one.operators]
        sizes = [one.bytes for one in found]
        numbers = sizes[0], round(percentile(sizes, 0.5)), max(sizes), sizes[-1]
        yield [
            stream_name(stream.name),
            el("bdi", operator),
            f"{len(found):,}",
            *map(size, numbers),
            size(sum(one.new_bytes for one in found)),
        ]


def faults(ordered: Sequence[StreamFacts], now: datetime) -> Section:
    """Return what is wrong with live checkpoints, integrity failures first, and when they were verified."""
    found = [(one, fault) for stream in ordered for one in reversed(stream.live) for fault in one.faults]
    found.sort(key=lambda pair: pair[1].severity != "integrity")
    columns = {"severity": "", "stream": "name", "checkpoint": "id", "rule": "", "what": "long", "found": "when"}
    rows = [_fault_row(one, fault, now) for one, fault in found]
    chart = charts.verification(ordered)
    verified = {
        "stream": "name", "live": "right", **dict.fromkeys(charts.TRUST, "right"),
        "last by hash (UTC)": "when", "longest ago by hash (UTC)": "when", "last in any way (UTC)": "when",
    }  # fmt: skip
    parts = [
        table(columns, rows, "No live checkpoint breaks a rule."),
        figure(chart) if chart else None,
        table(verified, [_verified_row(one, now) for one in ordered if one.live], "There is no live checkpoint."),
    ]
    return join(parts), [chart] if chart else []


def _fault_row(one: CheckpointFacts, fault: Fault, now: datetime) -> list[Child]:
    return [
        badge(fault.severity, Level.CRITICAL if fault.severity == "integrity" else Level.NOTE),
        stream_name(one.stream),
        ident(one.id),
        el("code", fault.rule, class_="rule"),
        fault.message,
        join(["by hash, ", when(fault.recorded_at, now)]) if fault.recorded_at else "now, from its rows",
    ]


def _verified_row(stream: StreamFacts, now: datetime) -> list[Child]:
    counts = Counter(map(charts.trust, stream.live))
    by_hash = [one.hashed.at for one in stream.live if one.hashed]
    in_any_way = [one.verified.at for one in stream.live if one.verified]
    times = max(by_hash, default=None), min(by_hash, default=None), max(in_any_way, default=None)
    return [
        stream_name(stream.name),
        f"{len(stream.live):,}",
        *(f"{counts[what]:,}" for what in charts.TRUST),
        *(when(at, now) for at in times),
    ]


def drills(ordered: Sequence[StreamFacts], now: datetime) -> Section:
    """Return how restore drills went, failures first, and what none has restored."""
    drawn = [one for one in (charts.drills(ordered, speed=False), charts.drills(ordered, speed=True)) if one]
    known = [stream for stream in ordered if stream.drills or stream.committed]
    known.sort(key=lambda stream: not any(one.drill and not one.drill.restored for one in stream.committed))
    columns = {
        "stream": "name", "proven": "right", "unproven": "right", "oldest unproven": "id", "failed drills": "right",
        "seconds, half / 99 %": "right", "MiB/s, half / 99 %": "right", "last drill (UTC)": "when",
        "last failure": "long",
    }  # fmt: skip
    none_yet = el("p", "No restore was ever drilled: ", el("code", "ckpt-drill"), " does it, and records how it went.")
    parts = [
        el("div", *map(figure, drawn), class_="pair") if drawn else none_yet,
        table(columns, [_drill_row(stream, now) for stream in known], "There is no committed checkpoint to drill."),
    ]
    return join(parts), drawn


def _drill_row(stream: StreamFacts, now: datetime) -> list[Child]:
    seconds = [one.seconds for one in stream.drills if one.restored and one.seconds is not None]
    speeds = [one.mib_per_second for one in stream.drills if one.mib_per_second is not None]
    failed = [one for one in stream.drills if not one.restored]
    oldest = stream.unproven[0] if stream.unproven else None
    return [
        stream_name(stream.name),
        f"{len(stream.committed) - len(stream.unproven):,}",
        f"{len(stream.unproven):,}",
        join([ident(oldest.id), " ", el("span", f"{ago(oldest.saved_at, now)} old", class_="away")])
        if oldest
        else NOTHING,
        f"{len(failed):,} of {len(stream.drills):,}",
        f"{percentile(seconds, 0.5):.3f} / {percentile(seconds, 0.99):.3f}" if seconds else NOTHING,
        f"{percentile(speeds, 0.5):,.1f} / {percentile(speeds, 0.01):,.1f}" if speeds else NOTHING,
        when(stream.drills[-1].at if stream.drills else None, now),
        f"{failed[-1].checkpoint_id}: {failed[-1].error}" if failed else NOTHING,
    ]


def retention(report: Report, ordered: Sequence[StreamFacts]) -> Section:
    """Return what the policies would do, and what is in the trash or pinned."""
    now = report.made_at
    shown, drawn = _plan(report, ordered)
    trashed = [one for stream in ordered for one in stream.trashed]
    pinned = [one for stream in ordered for one in stream.live if one.checkpoint.pinned(now)]
    trash = {
        "stream": "name", "checkpoints": "right", "from": "id", "to": "id", "can be restored until (UTC)": "when",
        "why": "long", "by": "", "size": "right",
    }  # fmt: skip
    pins = {"stream": "name", "checkpoint": "id", "until (UTC)": "when", "why": "long", "by": "", "size": "right"}
    parts = [
        shown,
        el("h3", f"In the trash: {len(trashed):,}"),
        table(trash, _trash_rows(trashed, now), "Nothing."),
        el("h3", f"Pinned: {len(pinned):,}"),
        table(pins, [row for one in pinned for row in _pin_rows(one, now)], "Nothing."),
    ]
    return join(parts), drawn


def _plan(report: Report, ordered: Sequence[StreamFacts]) -> Section:
    if report.retention is None:
        without = "No policies were given: --policies FILE adds what they would keep and let go."
        return el("p", without, class_="faint"), []
    planned, gone = report.retention.planned, report.retention.removed
    broken = {stream.name for stream in ordered if stream.broken}
    left_alone = sorted(broken & {one.stream for one in gone})
    columns = {
        "plan": "", "stream": "name", "why": "long", "checkpoints": "right", "from": "id", "to": "id", "size": "right",
        "freed": "right",
    }  # fmt: skip
    freed = size(sum(one.freed_bytes for one in gone))
    told = f"{len(gone):,} of {len(planned):,} live checkpoints would go to the trash, and free {freed} once purged."
    chart = charts.retention(ordered, planned)
    parts = [
        el("p", told, " Nothing was changed for this page."),
        el("p", f"ckpt-maintain leaves alone, because something in them is broken: {', '.join(map(name, left_alone))}.")
        if left_alone
        else None,
        *(el("p", f"There is no plan for {name(stream)}: {error}") for stream, error in report.unplanned.items()),
        figure(chart) if chart else None,
        table(columns, _plan_rows(planned), "The policies fit no stream that has a live checkpoint."),
    ]
    return join(parts), [chart] if chart else []


def _plan_rows(planned: Sequence[Planned]) -> list[list[Child]]:
    """Return the plan with equal reasons together, what goes first."""
    together = defaultdict[tuple[bool, str, str], list[Planned]](list)
    for one in planned:
        together[one.keep, one.stream, one.reason].append(one)
    return [
        [
            badge("stays", Level.GOOD) if keep else badge("goes", Level.WARNING),
            stream_name(stream),
            reason,
            f"{len(some):,}",
            ident(some[0].checkpoint_id),
            ident(some[-1].checkpoint_id),
            size(sum(one.bytes for one in some)),
            NOTHING if keep else size(sum(one.freed_bytes for one in some)),
        ]
        for (keep, stream, reason), some in sorted(together.items(), key=lambda item: item[0][:2])
    ]


def _trash_rows(trashed: Sequence[CheckpointFacts], now: datetime) -> list[list[Child]]:
    """Return what was trashed together in one row, what ends first at the top."""
    together = defaultdict[tuple[str, str, str, str], list[CheckpointFacts]](list)
    for one in trashed:
        trash = one.checkpoint.trash
        why = (trash and trash.reason) or NOTHING, (trash and trash.actor) or NOTHING
        together[moment(one.checkpoint.undo_until, timespec="minutes"), one.stream, *why].append(one)
    return [
        [
            stream_name(stream),
            f"{len(some):,}",
            ident(some[0].id),
            ident(some[-1].id),
            when(some[0].checkpoint.undo_until, now),
            reason,
            actor,
            size(sum(one.bytes for one in some)),
        ]
        for (_, stream, reason, actor), some in sorted(together.items(), key=lambda item: item[0])
    ]


def _pin_rows(one: CheckpointFacts, now: datetime) -> list[list[Child]]:
    return [
        [
            stream_name(one.stream),
            ident(one.id),
            when(pin.until, now) if pin.until else "for ever",
            pin.reason or NOTHING,
            pin.actor or NOTHING,
            size(one.bytes),
        ]
        for pin in one.checkpoint.held_by(now).values()
    ]


def guide() -> Html:
    """Return how the page is read."""
    terms = chain.from_iterable((el("dt", term), el("dd", meaning)) for term, meaning in GUIDE.items())
    return el("details", el("summary", "How to read this page"), el("dl", *terms, class_="terms"))


def percentile(values: Sequence[float], part: float) -> float:
    """Return the value below which this part lies, between two values in proportion, as Spark's percentile does."""
    ordered = sorted(values)
    at = (len(ordered) - 1) * part
    low, high = ordered[math.floor(at)], ordered[math.ceil(at)]
    return low + (high - low) * (at - math.floor(at))
