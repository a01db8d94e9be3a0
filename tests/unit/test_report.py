"""The report's facts, findings, charts and HTML, from rows alone."""

import json
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pytest

from catalog import keys
from catalog.lifecycle import Revision, fold
from catalog.report import charts, html, sections
from catalog.report.facts import OperatorSize, Report, bring_together
from catalog.report.findings import Level, findings, levels
from catalog.report.page import render
from catalog.validation import Issue

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
HOSTILE = "</script><script>hacked=1</script><!-- <img src=x onerror=hacked=2> \"'&\u202e\u2028"
BROKEN = Issue("integrity", "state_missing", "state data is missing: state.bin")
ODD = Issue("warning", "version_zero", "version is 0")


def key(number):
    return keys.integer_key(number)


def saved(number, ago, *, stream="s", change="saved", revision=0, **columns):
    columns = {"epoch": 1, "artifact_bytes": 100, "shared_bytes": 40, "attempt": "a", **columns}
    return Revision(
        stream=stream, checkpoint_key=key(number), revision=revision, change=change, at=NOW - ago,
        format="manifest-v1", insert_id="", **columns,
    )  # fmt: skip


def verified(number, ago, *, depth="hashes", valid=True, rules=(), stream="s"):
    details = {"depth": depth, "valid": valid, "rules": list(rules), "bytes": 1}
    return event(number, ago, "verified", details, stream)


def drilled(number, ago, *, seconds=2.0, size=4 << 20, error=None, stream="s"):
    details = {"restored": error is None, "bytes": size, "seconds": None if error else seconds, "error": error}
    return event(number, ago, "drilled", details, stream)


def event(number, ago, what, details, stream="s"):
    text = details if isinstance(details, str) else json.dumps(details)
    return {"stream": stream, "checkpoint_key": key(number), "event": what, "at": NOW - ago, "details": text}


def report(*revisions, issues=None, events=(), operators=None, stored=None, **fields):
    names = {row.stream for row in revisions}
    histories = {name: fold(row for row in revisions if row.stream == name) for name in names}
    streams = bring_together(
        histories,
        issues={("s", key(number)): some for number, some in (issues or {}).items()},
        events=events,
        operators=operators or {},
        stored_bytes=stored or {},
    )
    return Report("/place", NOW, streams, **fields)


def told(found):
    return [(one.level.name, one.text) for one in findings(found)]


def warnings_and_worse(found):
    return [one.text for one in findings(found) if one.level >= Level.WARNING]


# -- what is wrong -----------------------------------------------------------------------------------------------------


def test_what_is_worst_comes_first_whichever_stream_it_is_of():
    found = report(
        saved(1, HOUR, sinks_failed=1),
        saved(2, HOUR),
        saved(1, HOUR, stream="z", artifact_bytes=9),
        issues={2: (BROKEN,)},
    )
    assert told(found)[:2] == [
        ("CRITICAL", "nothing to restore from: none of 2 checkpoints is eligible and sound"),
        ("CRITICAL", "1 checkpoint broken (state_missing): 2"),
    ]
    assert [level for level, _ in told(found)] == sorted(
        (level for level, _ in told(found)), key=lambda one: -Level[one]
    )
    assert levels(found, findings(found)) == {"s": Level.CRITICAL, "z": Level.GOOD}


def test_a_broken_latest_tells_what_recovery_would_choose_instead():
    found = report(saved(1, 3 * HOUR), saved(2, HOUR), issues={2: (BROKEN,)})
    (stream,) = found.streams
    assert stream.choice.id == 1
    assert warnings_and_worse(found) == [
        "1 checkpoint broken (state_missing): 2; recovery would choose 1, saved 2 h before"
    ]
    assert findings(found)[0].command == "ckpt show /place s 2"


@pytest.mark.parametrize(
    ("events", "rules"),
    [
        ([], []),
        ([verified(1, DAY, valid=False, rules=["checksum_mismatch", "version_zero"])], ["checksum_mismatch"]),
        ([verified(1, DAY, valid=False, rules=["x"]), verified(1, HOUR, depth="metadata")], ["x"]),
        ([verified(1, HOUR), verified(1, DAY, valid=False, rules=["checksum_mismatch"])], []),
        ([verified(1, DAY, depth="metadata", valid=False, rules=["state_missing"])], []),
    ],
    ids=["never", "warnings are none", "not taken back by metadata", "taken back by hash", "metadata is asked now"],
)
def test_what_reading_bytes_has_shown_counts_until_they_are_read_again(events, rules):
    (stream,) = report(saved(1, 2 * DAY), events=events).streams
    assert [fault.rule for one in stream.checkpoints for fault in one.broken] == rules


def test_what_rows_show_now_is_not_told_twice():
    events = [verified(1, DAY, valid=False, rules=["state_missing"])]
    (stream,) = report(saved(1, 2 * DAY), events=events, issues={1: (BROKEN, ODD)}).streams
    (one,) = stream.checkpoints
    assert [(fault.rule, fault.recorded_at) for fault in one.faults] == [
        ("state_missing", None),
        ("version_zero", None),
    ]


def test_events_that_nobody_understands_are_passed_over():
    strange = [
        event(1, HOUR, "verified", "{"),
        event(1, HOUR, "drilled", {"restored": True}),
        event(1, HOUR, "verified", "[]"),
    ]
    (stream,) = report(saved(1, DAY), events=[*strange, drilled(1, DAY)]).streams
    assert (len(stream.drills), stream.checkpoints[0].proven, stream.checkpoints[0].verified) == (1, True, None)


@pytest.mark.parametrize(("ago", "quiet"), [(100 * MINUTE, False), (101 * MINUTE, True)])
def test_a_stream_is_quiet_after_ten_times_its_usual_interval(ago, quiet):
    found = report(*(saved(number, ago + (6 - number) * 10 * MINUTE) for number in range(1, 7)))
    assert [text.startswith("quiet") for text in warnings_and_worse(found)] == [True] * quiet


@pytest.mark.parametrize(
    ("columns", "ago", "count"),
    [({"sinks_pending": 1}, 5 * MINUTE, 0), ({"sinks_pending": 1}, 15 * MINUTE, 1), ({"sinks_failed": 1}, MINUTE, 1)],
)
def test_pending_sinks_get_some_time_and_failed_ones_none(columns, ago, count):
    assert len(warnings_and_worse(report(saved(1, DAY), saved(2, ago, **columns)))) == count


def test_what_was_never_promoted_is_told_after_the_grace_period():
    found = report(saved(1, DAY), saved(2, 2 * HOUR, change="prepared"), saved(3, MINUTE, change="prepared"))
    assert warnings_and_worse(found) == ["1 checkpoint not promoted within 60 min: 2"]


def test_a_failed_drill_is_critical_until_a_later_one_restores():
    found = report(saved(1, DAY), events=[drilled(1, HOUR, error="disk full")])
    assert warnings_and_worse(found) == ["its last drill could not restore 1: disk full"]
    assert warnings_and_worse(report(saved(1, DAY), events=[drilled(1, HOUR, error="x"), drilled(1, MINUTE)])) == []


def test_the_oldest_unproven_is_committed_and_not_restored_by_its_last_drill():
    rows = saved(1, 3 * DAY), saved(2, 2 * DAY), saved(3, DAY), saved(4, 9 * DAY, change="prepared")
    found = report(*rows, events=[drilled(1, HOUR), drilled(2, 2 * HOUR), drilled(2, HOUR, error="x")])
    assert found.oldest_unproven.id == 2


def test_an_undo_window_that_ends_within_a_day_is_noted():
    gone = saved(1, DAY, change="trashed", revision=1, until=NOW + 23 * HOUR)
    assert [text for _, text in told(report(saved(1, 2 * DAY), gone))] == [
        "1 checkpoint in the trash (100 B) can be restored for less than a day"
    ]


# -- charts ------------------------------------------------------------------------------------------------------------


def rows_of(drawn):
    (rows,) = drawn.spec["datasets"].values()
    return rows


def test_a_timeline_that_is_cut_keeps_what_is_wrong_and_both_ends_and_says_so(monkeypatch):
    monkeypatch.setattr(charts, "TIMELINE_POINTS", 10)
    found = report(*(saved(number, (100 - number) * HOUR) for number in range(1, 100)), issues={50: (BROKEN,)})
    drawn = charts.timeline(found.streams)
    rows = rows_of(drawn)
    assert len(rows) == 10
    assert {"1", "50", "99"} <= {row["checkpoint"] for row in rows}
    assert rows[-1]["part"] == "broken", "not drawn over the others"
    assert drawn.note == "10 of 99 are drawn, what is wrong first."
    assert list(drawn.legend) == ["sound", "broken"]


@pytest.mark.parametrize(("most", "step"), [(200, 1), (1 << 12, 1), (1 << 18, 2), (1 << 30, 5), (1 << 60, 10)])
def test_the_lines_of_a_size_axis_are_neither_too_many_nor_too_few(most, step):
    drawn = charts.sizes(report(saved(1, DAY), saved(2, HOUR, artifact_bytes=most)).streams)
    lines = [one for one in drawn.spec["encoding"]["y"]["axis"]["values"] if 64 <= one <= most]
    assert 1 <= len(lines) <= 7
    assert f"{1 << step} times as much" in drawn.note


def test_bars_add_up_to_the_checkpoint_and_small_operators_are_together():
    sizes = {f"op {n}": OperatorSize(1000 * (20 - n), 0) for n in range(12)}
    found = report(saved(1, DAY), operators={("s", key(1)): sizes})
    rows = rows_of(charts.operators(1, found.streams[0]))
    assert sum(row["value"] for row in rows) == sum(one.bytes for one in sizes.values()) / 1024
    assert [row["part"] for row in rows] == [*(f"op {n}" for n in range(charts.OPERATORS)), "(all others)"]
    new = {row["part"]: row["value"] for row in rows_of(charts.sharing(1, found.streams[0]))}
    assert new == {"shared": 40, "new": 60}


def test_drills_tell_seconds_and_speed_and_failed_ones_stand_at_zero():
    found = report(saved(1, DAY), events=[drilled(1, DAY, seconds=2, size=8 << 20), drilled(1, HOUR, error="<b>")])
    assert [(row["part"], row["value"]) for row in rows_of(charts.drills(found.streams, speed=False))] == [
        ("restored", 2),
        ("failed", 0),
    ]
    assert [row["value"] for row in rows_of(charts.drills(found.streams, speed=True))] == [4]


def test_without_anything_to_draw_there_is_no_chart():
    assert charts.timeline([]) is None
    assert charts.sizes([]) is None
    assert charts.drills([], speed=True) is None
    assert charts.retention([], []) is None


@pytest.mark.parametrize(("part", "expected"), [(0.5, 2.5), (0.99, 3.97), (0.01, 1.03), (1, 4), (0, 1)])
def test_percentiles_are_those_of_spark(part, expected):
    assert sections.percentile([4, 1, 3, 2], part) == pytest.approx(expected)


# -- HTML --------------------------------------------------------------------------------------------------------------


class Elements(HTMLParser):
    """The elements of a page, with their attributes and what is inside scripts."""

    def __init__(self, page):
        super().__init__()
        self.found, self.scripts, self._in_script = [], [], False
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        self._in_script = tag == "script"

    def handle_data(self, data):
        if self._in_script:
            self.scripts.append(data)
            self._in_script = False


def test_what_is_no_element_is_text_also_in_attributes():
    assert html.el("p", "<b>", html.el("i", "&"), None, 7, title='"><b') == (
        '<p title="&quot;&gt;&lt;b">&lt;b&gt;<i>&amp;</i>7</p>'
    )
    assert html.text("a\u202eb\x1b") == "a\\u202eb\\x1b"


def test_data_in_a_script_cannot_end_it_and_arrives_as_it_was():
    written = html.json_script("x", [HOSTILE])
    inner = written.removeprefix('<script type="application/json" id="x">').removesuffix("</script>")
    assert not set(inner) & set("<>&\u2028\u202e")
    assert json.loads(inner) == [HOSTILE]


def test_a_hostile_name_adds_no_element_wherever_it_stands():
    def page(name):
        pin = saved(2, HOUR, stream=name, change="pinned", revision=1, reason=name, actor=name)
        gone = saved(3, HOUR, stream=name, change="trashed", revision=1, reason=name, actor=name, until=NOW + HOUR)
        rows = [*(saved(number, number * HOUR, stream=name) for number in range(1, 4)), pin, gone]
        found = report(
            *rows,
            events=[
                drilled(1, HOUR, stream=name, error=name),
                verified(2, HOUR, stream=name, valid=False, rules=[name]),
            ],
            operators={(name, key(1)): {name: OperatorSize(9, 1), "b": OperatorSize(8, 2)}},
            stored={name: 7},
            unreadable=(name,),
            unplanned={name: name},
        )
        return Elements(render(found, findings(found)))

    plain, hostile = page("plain"), page(HOSTILE)
    assert [tag for tag, _ in hostile.found] == [tag for tag, _ in plain.found]
    assert [sorted(some) for _, some in hostile.found] == [sorted(some) for _, some in plain.found]
    data, script = hostile.scripts
    (rows,) = json.loads(data)["chart-timeline"]["datasets"].values()
    assert {row["stream"] for row in rows} == {charts.label(HOSTILE)}
    assert script == plain.scripts[1]


def test_the_numbers_at_the_top_are_in_the_colour_of_how_bad_it_is():
    def tiles(found):
        shown = Elements(sections.summary(found, findings(found))).found
        return [some["class"].removeprefix("tile").strip() for tag, some in shown if tag == "div"]

    events = [drilled(1, HOUR), verified(1, HOUR)]
    assert tiles(report(saved(1, DAY), events=events)) == ["good", "", "", "", "good", "good"]
    assert tiles(report(saved(1, DAY), issues={1: (BROKEN,)})) == ["critical", "", "", "", "critical", ""]


def test_many_findings_are_there_but_not_in_the_way():
    found = report(*(saved(1, DAY, stream=f"s{n}", sinks_failed=1) for n in range(9)))
    shown = sections.attention(findings(found))
    first, _, more = shown.partition("<details>")
    assert (first.count("<li"), more.count("<li")) == (sections.AT_FIRST, 18 - sections.AT_FIRST)
    assert "<summary>6 more</summary>" in more


def test_a_page_of_nothing_says_so():
    page = render(report(), [])
    assert page.startswith(html.MARK)
    assert "There is no stream yet." in page
    assert json.loads(Elements(page).scripts[0]) == {}
