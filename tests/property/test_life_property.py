"""The whole life of a stream on the real native engine, beside a plain dict: whatever is done, in whatever order."""

import random
import shutil
import tempfile
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from catalog import CheckpointCatalog, CheckpointManifest, Last, PurgedError, Retention, TrashedError, cutting
from catalog.retention import PURGE_MARGIN
from catalog.sweep import sweep
from catalog.tables.port import Table
from catalog.testing import FakeClock

SMALL = {"CHUNK_BYTES": 1024, "SHARED_FROM_BYTES": 64, "BATCH_ROWS": 8, "PART_ROWS": 3}
"""Chunks of which a few kilobytes are many."""
WEEK = timedelta(days=7)
spans = st.sampled_from([timedelta(0), timedelta(hours=1), timedelta(days=2)])
edits = st.tuples(st.integers(0, 6000), st.integers(0, 2500), st.integers(0, 5), st.integers(0, 3000))
picks = st.integers(0, 99)


@dataclass
class Expected:
    """What the model knows of a checkpoint."""

    state: bytes
    sink: str
    pinned: bool = False
    undo_until: datetime | None = None
    """It is in the trash."""


class Life(RuleBasedStateMachine):
    """Everything that may happen to a stream, and what must hold after it."""

    @initialize()
    def begin(self):
        self.folder = Path(tempfile.mkdtemp())
        self.small = patch.multiple(cutting, **SMALL)
        self.small.start()
        self.clock = FakeClock()
        self.kept: dict[int, Expected] = {}
        self.purged: set[int] = set()
        self.state = random.Random(1).randbytes(5000)
        self.highest = 0
        self.staged: set[int] = set()
        """Ids that a save which came to nothing has written bytes for."""
        self.open(create=True)

    def open(self, **options):
        self.catalog = CheckpointCatalog.native(
            self.folder / "catalog", clock=self.clock, durable=False, maintain_every=11, keep_versions=30, **options
        )
        self.store = self.catalog.store("s")

    # -- the model -------------------------------------------------------------------------------------------------

    @property
    def live(self):
        return {number: one for number, one in self.kept.items() if one.undo_until is None}

    @property
    def trashed(self):
        return {number: one for number, one in self.kept.items() if one.undo_until is not None}

    def expected_after_prune(self, keep):
        """Say which live ones stay: the newest, the pinned, and the newest that recovery could choose."""
        live = sorted(self.live)
        recoverable = [number for number in live if self.kept[number].sink == "Committed"]
        return {*live[-keep:], *recoverable[-1:], *(one for one in live if self.kept[one].pinned)}

    # -- what may happen -------------------------------------------------------------------------------------------

    @rule(edit=edits, sink=st.sampled_from(["Committed", "Pending"]), how=st.sampled_from(["share", "alone"]))
    def save(self, edit, sink, how):
        self.save_as(edit, sink, share=how == "share")

    @precondition(lambda self: self.live)
    @rule(edit=edits, pick=picks)
    def save_from_an_earlier_one(self, edit, pick):
        self.save_as(edit, "Committed", previous=sorted(self.live)[pick % len(self.live)])

    def save_as(self, edit, sink, **how):
        at, length, seed, size = edit
        self.state = self.state[:at] + random.Random(seed).randbytes(size) + self.state[at + length :]
        number = self.store.next_id()
        assert number == self.highest + 1
        manifest = CheckpointManifest.new(number, epoch=1, sink_commit_statuses={"out": sink})
        self.store.save_with_state(manifest, self.state, **how)
        self.kept[number] = Expected(self.state, sink)
        self.highest = number

    @rule(edit=edits)
    def crash_in_the_middle_of_a_save(self, edit):
        at, length, seed, size = edit
        number = self.store.next_id()
        doomed = self.state[:at] + random.Random(seed).randbytes(size) + self.state[at + length :]
        self.catalog.store("s").save_state_data(number, doomed)
        self.staged.add(number)

    @precondition(lambda self: self.live)
    @rule(pick=picks)
    def update(self, pick):
        number = sorted(self.live)[pick % len(self.live)]
        stored = self.store.load_by_id(number)
        self.store.update_manifest(stored.model_copy(update={"sink_commit_statuses": {"out": "Committed"}}))
        self.kept[number].sink = "Committed"

    @precondition(lambda self: self.live)
    @rule(pick=picks)
    def pin(self, pick):
        number = sorted(self.live)[pick % len(self.live)]
        self.store.pin(number, "held")
        self.kept[number].pinned = True

    @precondition(lambda self: self.live)
    @rule(pick=picks)
    def unpin(self, pick):
        number = sorted(self.live)[pick % len(self.live)]
        self.store.unpin(number)
        self.kept[number].pinned = False

    @rule(keep=st.integers(1, 4), undo_for=spans)
    def prune_by_policy(self, keep, undo_for):
        stays = self.expected_after_prune(keep)
        report = self.catalog.apply_retention([Retention((Last(keep),), undo_for=undo_for)])
        assert {one.checkpoint_id for one in report.removed} == self.live.keys() - stays
        for number in self.live.keys() - stays:
            self.kept[number].undo_until = self.clock() + undo_for

    @precondition(lambda self: self.trashed)
    @rule(pick=picks)
    def undo(self, pick):
        number = sorted(self.trashed)[pick % len(self.trashed)]
        self.store.restore(number)
        self.kept[number].undo_until = None

    @rule()
    def purge(self):
        due = {number for number, one in self.trashed.items() if one.undo_until + PURGE_MARGIN <= self.clock()}
        assert {int(key) for key in self.catalog.stream("s").purge()} == due
        self.purged |= due
        for number in due:
            del self.kept[number]

    @rule()
    def sweep(self):
        sweep(self.catalog.stream("s"), timedelta(0))
        self.highest = max([self.highest, *self.staged])  # an id whose bytes went is closed
        self.staged.clear()
        self.look_at_everything()

    @rule(keep_removed=st.sampled_from([None, timedelta(0)]))
    def compact(self, keep_removed):
        report = self.catalog.compact(keep_removed=keep_removed)
        assert report.problems == ()
        self.look_at_everything()

    @rule()
    def reopen(self):
        self.catalog.close()
        self.open()

    @rule(by=st.sampled_from([timedelta(minutes=10), timedelta(hours=30), timedelta(days=4)]))
    def wait(self, by):
        self.clock.advance(by)

    # -- what must hold --------------------------------------------------------------------------------------------

    @invariant()
    def what_is_listed_is_what_was_saved_and_not_let_go(self):
        assert self.store.list_ids() == sorted(self.live)
        newest = self.store.load_latest()
        assert (newest and newest.checkpoint_id) == max(self.live, default=None)

    def look_at_everything(self):
        for number, one in self.live.items():
            assert self.store.load_state_data(number) == one.state
            assert self.store.load_by_id(number).sink_commit_statuses == {"out": one.sink}
        for number in self.trashed:
            with pytest.raises(TrashedError):
                self.store.load_state_data(number)
        for number in self.purged:
            with pytest.raises(PurgedError):
                self.store.load_state_data(number)

    def teardown(self):
        """At the end everything loads; and when all is let go, nothing is left, not even on the disk."""
        if not hasattr(self, "folder"):
            return
        try:
            self.look_at_everything()
            for number in list(self.trashed):
                self.store.restore(number)
                self.kept[number].undo_until = None
            self.look_at_everything()
            for number in self.live:
                self.store.unpin(number)
            self.store.prune(0, allow_empty=True, undo_for=timedelta(0))
            self.clock.advance(timedelta(hours=1))
            self.catalog.clean_up(grace=timedelta(0))
            self.catalog.compact()
            self.clock.advance(WEEK)
            self.catalog.compact()
            assert self.catalog.engine.scan(Table.ARTIFACTS, [], ["chunk_no"]).num_rows == 0
            assert list((self.folder / "catalog" / Table.ARTIFACTS).rglob("*.parquet")) == [
                *(self.folder / "catalog" / Table.ARTIFACTS / "_delta_log").glob("*.parquet")
            ]
        finally:
            self.catalog.close()
            self.small.stop()
            shutil.rmtree(self.folder)


def live_on(examples, steps):
    ruled = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Life, settings=ruled)


def test_whatever_happens_to_a_stream_it_is_what_a_plain_dict_says():
    live_on(12, 25)


@pytest.mark.prove
def test_whatever_happens_to_a_stream_for_long_it_is_what_a_plain_dict_says():
    live_on(300, 60)
