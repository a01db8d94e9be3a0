"""Retention on real tables: planned, carried out, undone, and at last really gone."""

import os
from datetime import timedelta

import pytest

from catalog import (
    Best,
    CheckpointManifest,
    Every,
    InvalidInputError,
    Last,
    LastValidated,
    PurgedError,
    Retention,
    TrashedError,
    Within,
    prune,
)
from catalog.tables.port import Equals, Table
from catalog.tables.schema import arrow
from catalog.testing import FakeClock
from catalog.testing.native import NativeHarness

MIB = 1 << 20
AT_ONCE = timedelta(0)


@pytest.fixture
def harness(tmp_path):
    return NativeHarness(tmp_path / "catalog", FakeClock(), durable=False)


@pytest.fixture
def catalog(harness):
    return harness.catalog


def save(catalog, stream, numbers, state=b"state", **fields):
    store = catalog.store(stream)
    for number in numbers:
        store.save_with_state(CheckpointManifest.new(number, epoch=1, **fields), state)
    return store


def stored_bytes(catalog, stream):
    of_stream = [Equals("stream", stream)]
    rows = catalog.engine.scan(Table.ARTIFACTS, of_stream, ["chunk_size", "held_attempt"]).to_pylist()
    return sum(row["chunk_size"] for row in rows if row["held_attempt"] is None)


def lines(report):
    return {(one.stream, one.checkpoint_id): (one.keep, one.reason) for one in report.planned}


def test_the_report_tells_what_came_after_the_first_look_and_went_too(catalog, monkeypatch):
    save(catalog, "s", range(1, 4))
    real, late = catalog.engine.scan, [range(4, 7)]

    def scan(table, *arguments, **options):
        found = real(table, *arguments, **options)
        if table is Table.CHECKPOINTS and late:
            save(catalog, "s", late.pop())
        return found

    monkeypatch.setattr(catalog.engine, "scan", scan)
    report = catalog.apply_retention([Retention((Last(2),))], ["s"])
    assert catalog.store("s").list_ids() == [5, 6]
    assert lines(report) == {
        **{("s", number): (False, "not one of the newest 2") for number in range(1, 5)},
        **{("s", number): (True, "one of the newest 2") for number in (5, 6)},
    }


def test_a_dry_run_says_what_would_go_and_changes_nothing(harness, catalog):
    save(catalog, "s", range(1, 6))
    before = harness.checkpoint_rows("s")
    report = catalog.apply_retention([Retention((Last(2),))], dry_run=True)
    assert harness.checkpoint_rows("s") == before
    assert lines(report)["s", 1] == (False, "not one of the newest 2")
    assert lines(report)["s", 5] == (True, "one of the newest 2")
    assert [one.checkpoint_id for one in report.removed] == [1, 2, 3]
    assert "3 of 5 would go to the trash" in report.explain()
    assert [one.checkpoint_id for one in catalog.apply_retention([Retention((Last(2),))]).removed] == [1, 2, 3]


def test_what_went_can_be_restored_until_the_stated_time_and_is_gone_after_it(harness, catalog):
    store = save(catalog, "s", range(1, 4))
    policy = Retention((Last(1),), undo_for=timedelta(hours=2))
    report = catalog.apply_retention([policy])
    assert store.list_ids() == [3]
    assert report.undo_until == {"s": harness.clock() + timedelta(hours=2)}
    with pytest.raises(TrashedError):
        store.load_state_data(1)
    store.restore(2)
    assert store.load_state_data(2) == b"state"
    assert catalog.clean_up(grace=AT_ONCE)[0].purged == ()
    harness.clock.advance(timedelta(hours=3))
    (done,) = catalog.clean_up(grace=AT_ONCE)
    assert (done.stream, done.purged, done.swept.purged) == ("s", (1,), 1)
    with pytest.raises(PurgedError):
        store.load_state_data(1)
    assert store.list_ids() == [2, 3]
    assert catalog.clean_up(grace=AT_ONCE)[0].swept.chunks == 0, "a second run finds nothing to do"


def test_the_bytes_that_a_plan_frees_are_those_that_go_from_the_table_also_when_chunks_are_shared(harness, catalog):
    store = catalog.store("s")
    state = bytearray(os.urandom(16 * MIB))
    for number in range(1, 7):
        state[number * 2 * MIB] ^= 1
        store.save_with_state(CheckpointManifest.new(number, epoch=1), bytes(state))
    policy = Retention((Last(1), Every(3)), undo_for=AT_ONCE)
    planned = catalog.apply_retention([policy], dry_run=True)
    before = stored_bytes(catalog, "s")
    catalog.apply_retention([policy])
    harness.clock.advance(timedelta(hours=1))
    catalog.clean_up(grace=AT_ONCE)
    freed = sum(one.freed_bytes for one in planned.planned)
    assert freed > 0
    assert before - stored_bytes(catalog, "s") == freed
    assert all(one.freed_bytes == 0 for one in planned.planned if one.keep)
    assert store.list_ids() == [3, 6]
    assert catalog.validate(depth="hashes").results == ()
    assert store.load_state_data(6) == bytes(state)


def test_the_first_pattern_that_fits_counts_and_a_stream_that_none_fits_is_left_alone(catalog):
    for stream in ("orders/eu", "orders/us", "clicks"):
        save(catalog, stream, range(1, 4))
    policies = [Retention((Last(2),), "orders/eu"), Retention((Last(1),), "orders/*")]
    report = catalog.apply_retention(policies)
    assert [(one.stream, one.checkpoint_id) for one in report.removed] == [
        ("orders/eu", 1), ("orders/us", 1), ("orders/us", 2),
    ]  # fmt: skip
    assert catalog.store("clicks").list_ids() == [1, 2, 3]
    assert catalog.apply_retention([Retention((Last(1),))], ["clicks"]).removed


def test_policies_that_come_one_by_one_count_for_every_stream_and_what_is_none_is_refused(catalog):
    for stream in ("a", "b"):
        save(catalog, stream, range(1, 4))
    for wrong in (["last"], "last", Retention((Last(1),)), [Retention((Last(1),)), Last(1)]):
        with pytest.raises(InvalidInputError, match="policies must be a list of Retention"):
            catalog.apply_retention(wrong)
    report = catalog.apply_retention(one for one in [Retention((Last(2),), "a"), Retention((Last(1),))])
    assert [(one.stream, one.checkpoint_id) for one in report.removed] == [("a", 1), ("b", 1), ("b", 2)]


def test_the_best_and_the_validated_stay(catalog):
    store = catalog.store("s")
    for number, loss in ((1, 0.5), (2, 0.1), (3, 0.3), (4, 0.2)):
        manifest = CheckpointManifest.new(number, epoch=1, metadata={"loss": loss})
        store.save_with_state(manifest, b"state")
    policies = [Retention((Best(1, "metadata.loss", lowest=True), LastValidated()))]
    catalog.validate(depth="metadata")
    assert [one.checkpoint_id for one in catalog.apply_retention(policies, dry_run=True).removed] == [1, 3]
    catalog.validate(depth="hashes")
    store.save(CheckpointManifest.new(5, epoch=1))
    report = catalog.apply_retention(policies)
    assert lines(report)["s", 2] == (True, "one of the 1 lowest by metadata.loss: 0.1")
    assert lines(report)["s", 4] == (True, "the newest that was validated")
    assert lines(report)["s", 5] == (True, "the newest that recovery could choose")
    assert store.list_ids() == [2, 4, 5]


def test_a_checkpoint_that_is_found_damaged_later_does_not_count_as_validated(harness, catalog):
    store = save(catalog, "s", (1, 2))
    catalog.validate(depth="hashes")
    harness.lose_state("s", f"{2:020d}")
    harness.clock.advance(timedelta(hours=1))
    catalog.validate(depth="hashes")
    report = catalog.apply_retention([Retention((LastValidated(),))], dry_run=True)
    assert lines(report)["s", 1] == (True, "the newest that was validated")
    assert store.list_ids() == [1, 2]


def test_what_recovery_would_choose_stays_when_newer_ones_are_known_to_be_damaged(harness, catalog):
    store = save(catalog, "s", (1, 2, 3))
    harness.corrupt_state("s", f"{3:020d}")
    catalog.validate(depth="hashes")
    report = catalog.apply_retention([Retention((Last(1),))])
    assert lines(report)["s", 2] == (True, "the newest that recovery could choose and nobody found damaged")
    assert store.list_ids() == [2, 3]
    assert store.recover_latest_validated().chosen_id == 2


def test_a_pinned_checkpoint_stays_and_goes_when_its_pin_has_expired(harness, catalog):
    store = save(catalog, "s", (1, 2, 3))
    store.pin(1, "audit", until=harness.clock() + timedelta(days=1))
    policies = [Retention((Last(1),))]
    assert [one.checkpoint_id for one in catalog.apply_retention(policies).removed] == [2]
    harness.clock.advance(timedelta(days=2))
    assert [one.checkpoint_id for one in catalog.apply_retention(policies).removed] == [1]


def test_an_empty_policy_is_refused_and_the_last_one_goes_only_by_an_explicit_word(catalog):
    with pytest.raises(InvalidInputError, match="keeps nothing"):
        Retention(())
    store = save(catalog, "s", (1, 2))
    catalog.apply_retention([Retention((Last(0),))])
    assert store.list_ids() == [2]
    catalog.apply_retention([Retention((Last(0),), allow_empty=True)])
    assert store.list_ids() == []


def test_one_that_comes_while_manifests_are_read_is_not_part_of_the_plan(catalog):
    store = save(catalog, "s", (1, 2), metadata={"loss": 0.1})
    stream = catalog.stream("s")
    before = stream.history()
    store.save(CheckpointManifest.new(3, epoch=1, metadata={"loss": 0.9}))
    plan = prune._planner(stream, Retention((Best(1, "metadata.loss", lowest=True),)))(before, stream.clock())
    assert [int(key) for key in plan.trash] == [1]
    assert [int(key) for key in plan.keep] == [2]


@pytest.mark.parametrize(
    "details", [None, "", "no JSON", "[]", "{}", '{"depth": 5, "valid": "yes"}', '{"valid": true}']
)
def test_an_event_that_somebody_added_and_that_tells_nothing_stops_nobody(harness, catalog, details):
    save(catalog, "s", range(1, 4))
    catalog.validate(depth="hashes")
    odd = {"stream": "s", "event": "verified", "at": harness.clock(), "details": details}
    catalog.engine.append(Table.EVENTS, [arrow(Table.EVENTS, [{**odd, "checkpoint_key": f"{3:020d}"}])])
    report = catalog.apply_retention([Retention((LastValidated(),))], ["s"])
    assert [one.checkpoint_id for one in report.planned if one.keep] == [3]


def test_a_sink_that_is_out_for_long_empties_no_stream(harness, catalog):
    save(catalog, "s", range(1, 4), sink_commit_statuses={"warehouse": "Pending"})
    harness.clock.advance(timedelta(days=2))
    policies = [Retention((Within(timedelta(days=1)),))]
    report = catalog.apply_retention(policies, ["s"])
    assert lines(report)["s", 3] == (True, "the last one of its stream")
    assert catalog.store("s").list_ids() == [3]
    assert catalog.recover("s", allow_pending=True).chosen_id == 3
