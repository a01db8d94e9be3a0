"""A stream that checkpoints each hour, with daily maintenance and an injected clock, on real tables: bounded."""

import random
import statistics
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from catalog import CheckpointCatalog, CheckpointManifest, Last, Newest, Period, Retention
from catalog.tables.port import Table
from catalog.testing import FakeClock

KIB = 1 << 10
HOUR = timedelta(hours=1)
POLICY = Retention((Last(4), Newest(Period.DAILY, 3)), undo_for=timedelta(days=1))


@dataclass
class Measured:
    """The catalog after the maintenance of one day."""

    files: int
    log_entries: int
    disk_bytes: int
    """Without log checkpoints: they name removed files for days of real time, and the whole run takes minutes of it."""
    data_bytes: int
    """Of these, what is in data files."""
    commit_s: float
    """Median of the day's saves."""


def state_of(number):
    """A state of which each hour changes a part, so that checkpoints share chunks."""
    parts = [random.Random(number if number % 5 == part else part).randbytes(4 * KIB) for part in range(5)]
    return b"".join(parts)


def live_through(catalog, clock, place, days, per_day=24):
    """Save each hour and maintain each day; after each day all that the policy keeps loads and validates."""
    store = catalog.store("s")
    saved_at, measured = {}, []
    for _ in range(days):
        spent = []
        for _ in range(per_day):
            number = store.next_id()
            began = time.perf_counter()
            store.save_with_state(CheckpointManifest.new(number, epoch=1), state_of(number))
            spent.append(time.perf_counter() - began)
            saved_at[number] = clock()
            clock.advance(timedelta(days=1) / per_day)
        catalog.apply_retention([POLICY])
        catalog.clean_up()
        report = catalog.compact()
        assert report.problems == ()

        newest_of_day = {at.date(): number for number, at in saved_at.items()}
        promised = {*sorted(saved_at)[-4:], *list(newest_of_day.values())[-3:]}
        assert store.list_ids() == sorted(promised)
        assert {number: store.load_state_data(number) for number in promised} == {
            number: state_of(number) for number in promised
        }
        validated = catalog.validate(depth="hashes")
        assert (validated.checked, validated.results) == (len(promised), ())
        lasting = [file for file in Path(place).rglob("*") if ".checkpoint." not in file.name and file.is_file()]
        disk = sum(file.stat().st_size for file in lasting)
        data = sum(file.stat().st_size for file in lasting if file.parent.name != "_delta_log")
        files = sum(len(list((place / table).rglob("part-*"))) for table in Table)
        entries = sum(one.log_entries_after for one in report.tables)
        measured.append(Measured(files, entries, disk, data, statistics.median(spent)))
    return measured


def check_bounded(measured, warm_days):
    """After the first days, when nothing could go yet, nothing grows any more."""
    middle, last = measured[warm_days : (warm_days + len(measured)) // 2], measured[-len(measured) // 4 :]
    for what in ("files", "log_entries", "disk_bytes"):
        early, late = (max(getattr(day, what) for day in some) for some in (middle, last))
        assert late <= 1.3 * early, f"{what} grows: {[getattr(day, what) for day in measured]}"


def new(tmp_path, **options):
    clock = FakeClock()
    place = tmp_path / "catalog"
    catalog = CheckpointCatalog.native(place, create=True, clock=clock, durable=False, keep_versions=100, **options)
    return catalog, clock, place


def test_days_of_hourly_checkpoints_with_daily_maintenance_stay_bounded(tmp_path):
    catalog, clock, place = new(tmp_path)
    check_bounded(live_through(catalog, clock, place, days=16, per_day=12), warm_days=6)


@pytest.mark.prove
def test_months_of_hourly_checkpoints_with_daily_maintenance_stay_bounded(tmp_path):
    catalog, clock, place = new(tmp_path)
    measured = live_through(catalog, clock, place, days=122)
    check_bounded(measured, warm_days=8)
    for day in (0, 10, 30, 60, 121):
        print(f"\nday {day}: {measured[day]}", end="")
    print()


@pytest.mark.prove
def test_days_of_checkpoints_through_spark_with_daily_maintenance_stay_bounded(spark, tmp_path):
    clock, place = FakeClock(), tmp_path / "catalog"
    catalog = CheckpointCatalog.create(spark, place, clock=clock, durable=False)
    measured = live_through(catalog, clock, place, days=14, per_day=3)
    # Log entries stay below the 1,000 that are kept: neither their number nor their bytes can show a bound here.
    early, late = (max(day.data_bytes for day in some) for some in (measured[5:8], measured[-3:]))
    print("\n" + "\n".join(map(str, measured)))
    assert late <= 1.5 * early
    assert measured[-1].files <= 1.3 * max(day.files for day in measured[5:10])
