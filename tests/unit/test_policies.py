"""Policies: what each keeps and why, alone and together, from Python and from a file."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from catalog.errors import InvalidInputError
from catalog.lifecycle import Revision, fold
from catalog.policies import (
    Best,
    Candidates,
    Every,
    Last,
    LastCommitted,
    LastValidated,
    Newest,
    Period,
    Retention,
    Within,
    read_policies,
    span,
)
from catalog.retention import PROMOTION_GRACE, plan

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


def saved(number, at=NOON, change="saved", key=None, **columns):
    base = {"stream": "s", "format": "manifest-v1", "insert_id": "i", "revision": 0, "change": change, "at": at}
    return Revision(**{**base, "checkpoint_key": key or f"{number:020d}", **columns})


def history(*rows):
    return fold(rows)


def kept(policy, *rows, now=NOON, **more):
    found = policy.keeps(Candidates(list(history(*rows).values()), now, **more))
    return {int(key): reason for key, reason in found.items()}


def test_the_newest_are_kept():
    rows = [saved(number) for number in (1, 2, 3)]
    assert kept(Last(2), *rows) == {2: "one of the newest 2", 3: "one of the newest 2"}
    assert kept(Last(0), *rows) == {}
    assert kept(Last(9), *rows).keys() == {1, 2, 3}


def test_every_nth_is_by_id_so_that_what_goes_does_not_change_what_stays():
    rows = [saved(number) for number in range(1, 12)]
    assert kept(Every(5), *rows).keys() == {5, 10}
    assert kept(Every(5), *rows[4:]).keys() == {5, 10}
    uuids = [saved(0, key=f"0190a000-0000-7000-8000-00000000000{number}", epoch=number) for number in (4, 5, 6)]
    found = Every(5).keeps(Candidates(list(history(*uuids).values()), NOON))
    assert list(found) == ["0190a000-0000-7000-8000-000000000005"]


def test_what_was_saved_within_a_time_is_kept():
    rows = [saved(number, NOON - timedelta(hours=10 - number)) for number in range(1, 11)]
    assert kept(Within(timedelta(hours=2)), *rows).keys() == {8, 9, 10}
    assert set(kept(Within(timedelta(hours=2)), *rows).values()) == {"saved within 2 hours"}


@pytest.mark.parametrize(("span", "words"), [(timedelta(days=1), "1 day"), (timedelta(weeks=52), "364 days"),
                                             (timedelta(hours=36), "36 hours"), (timedelta(minutes=90), "90 minutes"),
                                             (timedelta(seconds=1), "1 second"),
                                             (timedelta(seconds=1.5), "1.5 seconds")])  # fmt: skip
def test_a_length_of_time_in_a_reason_is_in_words(span, words):
    assert Within(span).otherwise == f"saved longer than {words} ago"


@pytest.mark.parametrize(
    ("period", "step", "expected"),
    [
        (Period.HOURLY, timedelta(minutes=20), {5: "2024-05-01 11:00", 6: "2024-05-01 12:00"}),
        (Period.DAILY, timedelta(hours=8), {4: "2024-04-30", 6: "2024-05-01"}),
        (Period.WEEKLY, timedelta(days=4), {5: "2024 week 17", 6: "2024 week 18"}),
        (Period.MONTHLY, timedelta(days=10), {5: "2024-04", 6: "2024-05"}),
    ],
)
def test_of_each_period_the_newest_is_kept(period, step, expected):
    rows = [saved(number, NOON - (6 - number) * step) for number in range(1, 7)]
    assert kept(Newest(period, 2), *rows) == {one: f"{period}: newest of {name}" for one, name in expected.items()}


def test_a_week_belongs_to_the_year_that_has_most_of_it():
    assert Period.WEEKLY.of(datetime(2024, 12, 31, tzinfo=UTC)) == "2025 week 01"


def with_number(number, value):
    return saved(number, manifest=json.dumps({"metadata": {"loss": value}}))


def test_the_best_are_by_a_number_in_the_manifest_and_of_equal_ones_the_newest():
    values = [0.5, 0.1, 0.3, 0.1, "0.0", True, None, float("inf")]
    rows = [with_number(number, value) for number, value in enumerate(values, 1)]
    rows += [saved(9), saved(10, manifest="{"), saved(11, manifest="[1]")]
    assert kept(Best(1, "metadata.loss", lowest=True), *rows) == {4: "one of the 1 lowest by metadata.loss: 0.1"}
    assert kept(Best(2, "metadata.loss"), *rows).keys() == {1, 3}
    assert kept(Best(2, "metadata.loss.deeper"), *rows) == {}


def test_the_last_committed_and_the_last_validated_are_kept():
    rows = [saved(1), saved(2), saved(3, sinks_pending=1)]
    assert kept(LastCommitted(), *rows) == {2: "the newest that all sinks have committed"}
    found = kept(LastValidated(), *rows, verified=frozenset({f"{1:020d}", f"{9:020d}"}))
    assert found == {1: "the newest that was validated"}
    assert kept(LastCommitted()) == kept(LastValidated(), *rows) == {}


def test_any_policy_keeps_and_all_reasons_are_told():
    found = plan(history(*(saved(number) for number in range(1, 6))), [Last(1), Every(5), Every(2)], NOON)
    reasons = {int(key): reason for key, reason in found.keep.items()}
    assert reasons == {
        2: "its number can be divided by 2",
        4: "its number can be divided by 2",
        5: "one of the newest 1; its number can be divided by 5",
    }
    assert {int(key) for key in found.trash} == {1, 3}
    why = "not one of the newest 1; its number cannot be divided by 5; its number cannot be divided by 2"
    assert set(found.trash.values()) == {why}


def test_what_waits_to_be_promoted_stays_for_a_while_and_counts_for_no_policy():
    rows = [saved(1), saved(2, NOON - PROMOTION_GRACE, "prepared"), saved(3, NOON, "prepared")]
    found = plan(history(*rows), [Last(1)], NOON)
    assert {int(key): reason for key, reason in found.keep.items()} == {
        1: "one of the newest 1",
        3: "it may still be promoted",
    }
    assert list(found.trash.values()) == ["it was never promoted"]


def test_the_last_recoverable_one_goes_only_by_an_explicit_word():
    rows = history(saved(1), saved(2))
    assert [int(key) for key in plan(rows, [Last(0)], NOON).keep] == [2]
    assert plan(rows, [Last(0)], NOON, allow_empty=True).keep == {}


GOOD = """
[[retention]]
streams = "orders/*"
last = 10
every = 100
within = "2h"
hourly = 24
daily = 7
weekly = 4
monthly = 12
best = [{count = 3, by = "metadata.loss", lowest = true}]
last_committed = true
last_validated = true
undo_for = "3d"

[[retention]]
last = 3
allow_empty = true
"""


def test_a_file_says_it_all(tmp_path):
    (tmp_path / "keep.toml").write_text(GOOD)
    orders, others = read_policies(tmp_path / "keep.toml")
    assert orders.policies == (
        Last(10), Every(100), Within(timedelta(hours=2)), Newest(Period.HOURLY, 24), Newest(Period.DAILY, 7),
        Newest(Period.WEEKLY, 4), Newest(Period.MONTHLY, 12), Best(3, "metadata.loss", lowest=True), LastCommitted(),
        LastValidated(),
    )  # fmt: skip
    assert (orders.undo_for, orders.allow_empty) == (timedelta(days=3), False)
    assert others == Retention((Last(3),), allow_empty=True)
    assert [orders.fits(name) for name in ("orders/eu", "orders", "x orders/eu")] == [True, False, False]
    assert others.fits("anything")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "must have tables"),
        ("retention = []", "it keeps nothing: give at least one"),
        ("last = 3", "must have tables"),
        ("[retention]\nlast = 3", "must have tables"),
        ("[[retention]]\nlast = 3\n[other]", "must have tables"),
        ("[[retention", "keep.toml"),
        ("[[retention]]", "keeps nothing"),
        ("[[retention]]\nlast = 3\n[[retention]]\nkeep = 3", "number 2: 'keep' is not known; known are streams, last"),
        ("[[retention]]\nlast = -1", "last must be from 0"),
        ("[[retention]]\nlast = 1.5", "last must be an integer"),
        ("[[retention]]\nlast = true", "last must be an integer"),
        ("[[retention]]\nevery = 0", "every must be from 1"),
        ("[[retention]]\ndaily = 0", "daily must be from 1"),
        ("[[retention]]\nwithin = 5", "such as 36h, not 5"),
        ("[[retention]]\nwithin = '0h'", "within must be a length of time above 0"),
        ("[[retention]]\nlast = 1\nundo_for = 'soon'", "such as 36h, not 'soon'"),
        ("[[retention]]\nbest = [{count = 3}]", "number 1"),
        ("[[retention]]\nbest = [{count = 3, by = ''}]", "needs `by`"),
        ("[[retention]]\nlast = 1\nlast = 2", "keep.toml"),
        ("[[retention]]\nlast = 0\nallow_empty = 'no'", "allow_empty must be true or false, not 'no'"),
        ("[[retention]]\nlast_committed = 'no'", "last_committed must be true or false, not 'no'"),
        ("[[retention]]\nlast_validated = 0", "last_validated must be true or false, not 0"),
        ("[[retention]]\nbest = [{count = 1, by = 'loss', lowest = 'no'}]", "lowest must be true or false, not 'no'"),
        ("[[retention]]\nlast = 1\nstreams = ['a']", "streams must be text"),
        ("[[retention]]\nlast = 1\nundo_for = '999999999w'", "at most 36500d, not '999999999w'"),
        ("[[retention]]\nwithin = '999999999h'", "at most 36500d"),
        ("[[retention]]\nlast = " + "9" * 5000, "keep.toml"),
        ("a = " + "[" * 5000, "keep.toml"),
    ],
)
def test_a_file_that_says_something_else_is_refused_and_told_where(tmp_path, text, told):
    (tmp_path / "keep.toml").write_text(text)
    with pytest.raises(InvalidInputError, match=r"keep\.toml") as refused:
        read_policies(tmp_path / "keep.toml")
    assert told in str(refused.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match=r"none\.toml: No such file or directory$"):
        read_policies(tmp_path / "none.toml")


@pytest.mark.parametrize("file", [None, 5, "a\0b"])
def test_what_is_no_file_is_refused(file):
    with pytest.raises(InvalidInputError):
        read_policies(file)


def test_policies_from_python_are_held_to_the_same_as_those_from_a_file():
    assert Newest("daily", 3) == Newest(Period.DAILY, 3)
    with pytest.raises(InvalidInputError, match="a period is one of hourly, daily, weekly, monthly, not 'yearly'"):
        Newest("yearly", 3)
    with pytest.raises(InvalidInputError, match="allow_empty must be true or false"):
        Retention((Last(1),), allow_empty="no")
    with pytest.raises(InvalidInputError, match="undo_for must be a timedelta"):
        Retention((Last(1),), undo_for=timedelta(days=100_000))


def test_a_number_that_is_too_large_to_compare_is_none():
    rows = [saved(1, manifest='{"loss": 1' + "0" * 400 + "}"), saved(2, manifest='{"loss": 1}')]
    assert kept(Best(1, "loss"), *rows).keys() == {2}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90s", timedelta(seconds=90)), ("15 m", timedelta(minutes=15)), ("36h", timedelta(hours=36)),
     ("7d", timedelta(days=7)), ("2w", timedelta(weeks=2))],
)  # fmt: skip
def test_lengths_of_time(text, expected):
    assert span(text) == expected


def test_a_year_of_hourly_checkpoints_with_daily_retention_stays_small_and_keeps_what_it_promises():
    policies = [Last(6), Newest(Period.HOURLY, 24), Newest(Period.DAILY, 7), Newest(Period.WEEKLY, 5),
                Newest(Period.MONTHLY, 12)]  # fmt: skip
    live, most = {}, 0
    for hour in range(366 * 24):
        now = NOON + timedelta(hours=hour)
        live[hour + 1] = saved(hour + 1, now)
        if hour % 24 == 23:
            found = plan(history(*live.values()), policies, now)
            for key in found.trash:
                del live[int(key)]
            most = max(most, len(live))
            ages = sorted(now - row.at for row in live.values())
            assert ages[0] == timedelta(0)
            assert len([age for age in ages if age < timedelta(hours=24)]) == min(24, hour + 1), "an hour is missing"
            days = {row.at.date() for row in live.values()}
            assert {(now - timedelta(days=back)).date() for back in range(min(7, hour // 24 + 1))} <= days
    assert most <= 6 + 24 + 7 + 5 + 12
    assert len({row.at.strftime("%Y-%m") for row in live.values()}) == 12
