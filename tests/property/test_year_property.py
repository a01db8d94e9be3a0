"""A simulated year of a stream that checkpoints each hour, pruned each day, in the pure parts: no tables."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalog import Every, Last, Newest, Period, Within, chains, retention
from catalog.lifecycle import Change, Revision, fold, live_keys
from catalog.retention import PURGE_MARGIN

FIRST = datetime(2024, 1, 1, tzinfo=UTC)  # a leap year that begins on a Monday
HOUR, DAY = timedelta(hours=1), timedelta(days=1)

policies = st.lists(
    st.one_of(
        st.builds(Last, st.integers(1, 30)),
        st.builds(Every, st.sampled_from([100, 500])),
        st.builds(Within, st.sampled_from([3 * HOUR, 2 * DAY])),
        st.builds(Newest, st.sampled_from(Period), st.integers(1, 14)),
    ),
    min_size=1,
    max_size=4,
)


class Year:
    """A stream's checkpoints as rows, made hour by hour and let go day by day."""

    def __init__(self, policies, *, full_every, missed, pinned, undo_for):
        self.policies = policies
        self.full_every = full_every
        self.missed = missed
        self.pinned = pinned
        self.undo_for = undo_for
        self.saved = {}
        """When each was saved, also those that are long gone."""
        self.history = {}
        self.last = None

    def row(self, key, revision, change, at, **columns):
        return Revision(
            stream="s", checkpoint_key=key, revision=revision, change=change, format="manifest-v1", insert_id="i",
            at=at, epoch=1, **columns,
        )  # fmt: skip

    def save(self, number):
        at = FIRST + (number - 1) * HOUR
        key = f"{number:020d}"
        parent = None if number % self.full_every == 1 % self.full_every else self.last
        if parent is not None and parent not in live_keys(self.history):
            parent = None
        rows = [self.row(key, 0, Change.SAVED, at, parent=parent)]
        if number in self.pinned:
            rows.append(self.row(key, 1, Change.PINNED, at, until=at + 40 * DAY))
        self.history |= fold(rows)
        self.saved[key] = at
        self.last = key

    def tidy(self, now):
        """What the daily job does: trash what no policy keeps, purge what is past its undo window."""
        plan = retention.plan(self.history, self.policies, now)
        for key, reason in plan.trash.items():
            one = self.history[key]
            rows = [row for row in (one.origin, *one.pins.values()) if row is not None]
            until = now + self.undo_for
            mark = self.row(key, one.head.revision + 1, Change.TRASHED, now, until=until, reason=reason)
            self.history |= fold([*rows, mark])
        self.history = dict(sorted(self.history.items()))
        for key in retention.expired(self.history, now):
            del self.history[key]
        return plan

    def promised(self, now):
        """Return what has to be there, told from all that was ever saved, not from what is left."""
        times = sorted((at, key) for key, at in self.saved.items())
        found = set()
        for policy in self.policies:
            match policy:
                case Last(count):
                    found |= {key for _, key in times[-count:]}
                case Every(nth):
                    found |= {key for key in self.saved if int(key) % nth == 0}
                case Within(span):
                    found |= {key for at, key in times if at >= now - span}
                case Newest(period, count):
                    newest = {period.of(at): key for at, key in times}
                    found |= {newest[one] for one in sorted(newest)[-count:]}
        pinned = {f"{one:020d}" for one in self.pinned}
        found |= {key for key in pinned & self.saved.keys() if self.saved[key] + 40 * DAY > now}
        return found

    def most(self):
        """Return how many the policies may keep at most, the checkpoints of one day included."""
        counts = defaultdict(int)
        for policy in self.policies:
            match policy:
                case Last(count) | Newest(_, count):
                    counts["any"] += count
                case Within(span):
                    counts["any"] += span // HOUR + 1
                case Every(nth):
                    counts["any"] += int(self.last or "0") // nth  # ids that were missed count as well
        kept = counts["any"] + len(self.pinned) + 1
        return kept * (self.full_every if self.full_every > 1 else 1)


def live_through(year, days):
    for day in range(days):
        for hour in range(24):
            number = day * 24 + hour + 1
            if number not in year.missed:
                year.save(number)
        now = FIRST + (day + 1) * DAY + HOUR / 2
        plan = year.tidy(now)
        live = set(live_keys(year.history))
        promised = year.promised(now)
        assert promised <= live, f"day {day}: {sorted(promised - live)[0]} was promised and is gone"
        assert all(plan.keep[key] for key in live), "everything that stays has a reason"
        assert len(live) <= year.most()
        for key in live:
            assert set(chains.ancestors(year.history, key)) <= live, "a kept delta stands on what is gone"
        waiting = (year.undo_for + PURGE_MARGIN) // DAY + 2
        assert len(year.history) <= year.most() + waiting * 24 * 2, "the trash does not grow"


years = st.builds(
    Year,
    policies,
    full_every=st.sampled_from([1, 1, 6]),
    missed=st.sets(st.integers(1, 366 * 24), max_size=200),
    pinned=st.sets(st.integers(1, 366 * 24), max_size=5),
    undo_for=st.sampled_from([timedelta(0), HOUR, 7 * DAY]),
)
SLOW = list(HealthCheck)


@settings(max_examples=4, deadline=None, suppress_health_check=SLOW)
@given(years)
def test_through_a_year_of_hourly_checkpoints_all_that_is_promised_is_there_each_day_and_their_number_stays_bounded(
    year,
):
    live_through(year, 366)


@pytest.mark.prove
@settings(max_examples=150, deadline=None, suppress_health_check=SLOW)
@given(years)
def test_through_many_years_of_hourly_checkpoints_all_that_is_promised_is_there_each_day(year):
    live_through(year, 366)


def test_grandfather_father_son_through_a_year_leaves_what_the_calendar_says():
    kept = (Last(3), Newest(Period.DAILY, 7), Newest(Period.WEEKLY, 4), Newest(Period.MONTHLY, 12))
    year = Year(kept, full_every=1, missed=(), pinned=(), undo_for=timedelta(0))
    live_through(year, 366)
    ends = [year.saved[key] for key in live_keys(year.history)]
    # 3 newest, of which one is the newest of the day; 6 more days; 3 more weeks that end on Sundays; 11 more months.
    assert [f"{at:%m-%d %H}" for at in ends] == [
        "01-31 23", "02-29 23", "03-31 23", "04-30 23", "05-31 23", "06-30 23", "07-31 23", "08-31 23", "09-30 23",
        "10-31 23", "11-30 23", "12-15 23", "12-22 23", "12-25 23", "12-26 23", "12-27 23", "12-28 23", "12-29 23",
        "12-30 23", "12-31 21", "12-31 22", "12-31 23",
    ]  # fmt: skip
