"""Checkpoints of a whole job: all operators in one commit, or nothing; and restoring them."""

import os
import sys
import threading
import uuid

import pytest

from catalog import (
    CatalogError,
    CheckpointAbortedError,
    CheckpointCoordinator,
    CheckpointExistsError,
    CheckpointManifest,
    CheckpointNotFoundError,
    InvalidInputError,
    RestoreMode,
    SnapshotType,
)
from catalog.keys import integer_key
from catalog.snapshot import SnapshotResult
from catalog.strategies import DirectorySnapshotStrategy, PartitionSnapshotStrategy
from catalog.sweep import sweep
from catalog.testing import FakeClock
from catalog.testing.native import NativeHarness
from catalog.testing.snapshot_suite import Scripted, leaves_much_open, writes
from catalog.testing.stream_factory_suite import AT_ONCE, HUGE, LARGE, CatalogCheckpoints, fails, read

OFFSETS = {"kafka": {"offsets": {"partition-0": "7"}, "epoch": 1}}


@pytest.fixture(scope="module")
def harness(tmp_path_factory):
    return NativeHarness(tmp_path_factory.mktemp("coordinator") / "catalog", FakeClock(), durable=False)


@pytest.fixture
def job(harness):
    """A stream of its own."""
    return CatalogCheckpoints(harness, str(uuid.uuid4()))


def coordinator(job, **operators):
    return CheckpointCoordinator(job.harness.catalog.store(job.name), operators)


def partitions(state):
    return PartitionSnapshotStrategy(lambda: dict(state))


def restored(found, operator):
    return PartitionSnapshotStrategy.restore(found.open(operator))


def failing(_factory):
    raise ValueError("no space")


# -- one commit ----------------------------------------------------------------------------------------------------


def test_all_operators_positions_and_sinks_are_in_one_commit(job):
    with coordinator(job, window=partitions({0: LARGE, 1: b"small"}), join=partitions({3: HUGE}), map=Scripted()) as it:
        done = it.trigger(epoch=9, source_offsets=OFFSETS, sinks=["delta"], watermark=5).result()
    (row,) = job.harness.checkpoint_rows(job.name)
    assert (row["revision"], row["epoch"], row["watermark"], row["sinks_pending"]) == (0, 9, 5, 1)
    manifest = job.store.load_latest()
    assert manifest == done.manifest
    assert manifest.sink_commit_statuses == {"delta": "Pending"}
    assert manifest.source_offsets["kafka"].offsets == {"partition-0": "7"}
    assert sorted(manifest.operator_handles) == ["join", "window"], "an operator without state has no handles"
    assert done.results["map"].handles == {}
    assert {one["operator"] for one in job.rows(1)} == {"join", "window"}
    assert job.store.validate_checkpoint(1).issues == ()


def test_a_job_without_operators_saves_its_positions(job):
    with coordinator(job) as it:
        assert it.trigger(epoch=1, source_offsets=OFFSETS).result().checkpoint_id == 1
    assert job.store.list_ids() == [1]


def test_several_checkpoints_are_on_their_way_at_once(job):
    gates = [threading.Event() for _ in range(3)]
    waiting = iter(gates)
    state = {0: LARGE}

    class Slow(PartitionSnapshotStrategy):
        def async_snapshot(self, *arguments):
            write, gate = super().async_snapshot(*arguments), next(waiting)

            def wait_and_write():
                gate.wait()
                return write()

            return wait_and_write

    it = CheckpointCoordinator(job.harness.catalog.store(job.name), {"op": Slow(lambda: dict(state))}, parallelism=3)
    with it:
        pending = []
        for number in range(3):
            state[0] = LARGE + b"%d" % number
            pending.append(it.trigger(epoch=1))
        assert not any(one.done() for one in pending)
        for gate, one in zip(reversed(gates), reversed(pending), strict=True):
            gate.set()
            one.result()
    assert job.store.list_ids() == [1, 2, 3]
    for number in range(3):
        assert restored(it.restore(number + 1), "op") == {0: LARGE + b"%d" % number}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no priority of its own")
@pytest.mark.parametrize(("given", "told"), [(0, 10), (15, 15)])
def test_operators_are_written_with_less_priority_than_processing_and_never_with_more(job, monkeypatch, given, told):
    found = []
    monkeypatch.setattr(os, "getpriority", lambda *_: given)
    monkeypatch.setattr(os, "setpriority", lambda *wanted: found.append(wanted[2]))
    with coordinator(job, op=Scripted(writes)) as it:
        it.trigger(epoch=1).result()
    assert set(found) == {told}


def test_where_priorities_are_refused_operators_are_written_all_the_same(job, monkeypatch):
    monkeypatch.setattr(os, "setpriority", lambda *_: fails(PermissionError("sandbox"))())
    with coordinator(job, op=Scripted(writes)) as it:
        assert it.trigger(epoch=1).result(60).checkpoint_id == 1


# -- giving up -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["prepare", "async_snapshot", "writing"])
@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_an_operator_that_fails_ends_the_checkpoint_and_leaves_nothing(job, where, kind):
    other = Scripted(writes)
    error = kind("no space")

    def fail(factory):
        leaves_much_open(factory)
        raise error

    bad = Scripted(**{"async_snapshot": {"begin": fail}, "writing": {"work": fail}}.get(where, {}))
    if where == "prepare":
        bad.sync_prepare_resources = lambda _id: fails(error)()

    told = CheckpointAbortedError if kind is ValueError or where == "writing" else kind
    with coordinator(job, good=other, bad=bad, never=Scripted(writes)) as it:
        with pytest.raises(told, match="no space") as caught:
            it.trigger(epoch=1).result()
        if told is CheckpointAbortedError:
            assert (caught.value.checkpoint_id, caught.value.__cause__) == (1, error)
        (row,) = job.harness.checkpoint_rows(job.name)
        assert (row["change"], row["checkpoint_key"]) == ("abandoned", f"{1:020d}")
    assert other.told.count("release 1") == 1
    assert job.store.list_ids() == []
    assert job.store.next_id() == 2
    sweep(job.stream)
    assert job.artifacts() == 0


def test_an_operator_that_is_too_slow_ends_the_checkpoint_and_leaves_nothing(job):
    go_on, wrote = threading.Event(), threading.Event()

    def slow(factory):
        leaves_much_open(factory)
        wrote.set()
        go_on.wait()
        return writes(factory)

    strategy = Scripted(slow)
    began = Scripted(begin=lambda _: None)
    it = CheckpointCoordinator(job.harness.catalog.store(job.name), {"slow": strategy, "ok": began}, timeout_s=1e-9)
    with it:
        pending = it.trigger(epoch=1)
        with pytest.raises(CheckpointAbortedError, match=r"took longer than 1e-09 s; still writing: .*'slow'"):
            pending.result()
        assert strategy.told.count("release 1") == 0 or not wrote.is_set(), "its thread still uses them"
        go_on.set()
    assert strategy.told.count("release 1") == 1
    assert (job.store.list_ids(), job.store.next_id()) == ([], 2)
    sweep(job.stream)
    assert job.artifacts() == 0


def test_an_operator_that_hangs_holds_up_neither_later_checkpoints_nor_the_end(job, monkeypatch):
    monkeypatch.setattr("catalog.coordinator.CLOSING_S", 0)
    go_on, over = threading.Event(), threading.Event()
    work = [lambda _: SnapshotResult.empty(), lambda _: go_on.wait(60)]

    def hangs_once(factory):
        return work.pop()(factory)

    it = CheckpointCoordinator(job.store, {"op": Scripted(hangs_once)}, timeout_s=1)
    with pytest.raises(CheckpointAbortedError, match="still writing: 'op'"):
        it.trigger(epoch=1).result()
    assert it.trigger(epoch=1).result().checkpoint_id == 2
    closing = threading.Thread(target=lambda: (it.close(), over.set()), daemon=True)
    closing.start()
    closed = over.wait(10)
    go_on.set()
    assert closed


@pytest.mark.parametrize("name", ["n" * 513, "not utf-8 \udcff"])
def test_a_checkpoint_that_cannot_be_saved_when_its_operators_have_written_is_given_up(job, name):
    bad = Scripted(lambda factory: SnapshotResult({name: writes(factory).handles["state"]}))
    with coordinator(job, good=Scripted(writes), bad=bad) as it, pytest.raises(InvalidInputError, match="name"):
        it.trigger(epoch=1).result()
    (row,) = job.harness.checkpoint_rows(job.name)
    assert (row["change"], row["checkpoint_key"]) == ("abandoned", f"{1:020d}")
    assert "could not be saved" in row["reason"]
    sweep(job.stream)
    assert (job.artifacts(), job.store.next_id()) == (0, 2)


def test_a_cancelled_checkpoint_is_given_up(job):
    running, go_on = threading.Event(), threading.Event()

    def work(factory):
        running.set()
        go_on.wait()
        return writes(factory)

    strategy = Scripted(work)
    with coordinator(job, op=strategy) as it:
        pending = it.trigger(epoch=1)
        running.wait()
        pending.cancel()
        go_on.set()
        with pytest.raises(CheckpointAbortedError, match="cancelled"):
            pending.result()
        pending.cancel()
    assert strategy.told.count("release 1") == 1
    sweep(job.stream)
    assert (job.artifacts(), job.store.next_id()) == (0, 2)


def test_after_a_failure_the_next_checkpoint_has_the_next_id_and_uses_the_last_good_state(job, tmp_path):
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "1.sst").write_bytes(LARGE)
    work = [lambda _: SnapshotResult.empty(), failing, lambda _: SnapshotResult.empty()]
    flaky = Scripted(lambda factory: work.pop(0)(factory))
    with coordinator(job, db=DirectorySnapshotStrategy(tmp_path / "db"), flaky=flaky) as it:
        first = it.trigger(epoch=1).result()
        with pytest.raises(CheckpointAbortedError):
            it.trigger(epoch=1).result()
        third = it.trigger(epoch=1).result()
    assert third.checkpoint_id == 3
    assert third.results["db"].handles == first.results["db"].handles
    assert job.store.list_ids() == [1, 3]
    assert [one.name for one in tmp_path.iterdir()] == ["db"], "no links are left"


def test_a_closed_coordinator_prepares_nothing_it_does_not_release(job):
    strategy = Scripted(writes)
    it = coordinator(job, op=strategy)
    it.close()
    with pytest.raises(CheckpointAbortedError, match="closed"):
        it.trigger(epoch=1)
    assert strategy.told.count("prepare 1") == strategy.told.count("release 1")


def test_an_id_that_was_given_moves_the_next_one_forward_only(job):
    with coordinator(job) as it:
        assert it.trigger(epoch=1, checkpoint_id=10).result().checkpoint_id == 10
        assert it.trigger(epoch=1, checkpoint_id=5).result().checkpoint_id == 5
        assert it.trigger(epoch=1).result().checkpoint_id == 11
    with coordinator(job) as later:
        assert later.trigger(epoch=1, checkpoint_id=6).result().checkpoint_id == 6
        assert later.trigger(epoch=1).result().checkpoint_id == 12
        with pytest.raises(InvalidInputError):
            later.trigger(epoch=1, checkpoint_id=0)


def test_names_and_times_are_checked(job):
    for timeout_s in (0, None, "1"):
        with pytest.raises(InvalidInputError, match="timeout"):
            CheckpointCoordinator(job.store, {}, timeout_s=timeout_s)
    with pytest.raises(InvalidInputError, match="parallelism"):
        CheckpointCoordinator(job.store, {}, parallelism=0)
    with pytest.raises(InvalidInputError, match="operator name"):
        CheckpointCoordinator(job.store, {7: Scripted()})
    with coordinator(job, op=Scripted()) as it:
        with pytest.raises(InvalidInputError, match="snapshot_type"):
            it.trigger(epoch=1, snapshot_type="another")
        for sinks in ("warehouse", None):
            with pytest.raises(InvalidInputError, match="sinks must be a list of names"):
                it.trigger(epoch=1, sinks=sinks)
        with pytest.raises(InvalidInputError, match="mode must be one of claim, no_claim, not 'bogus'"):
            it.restore(mode="bogus")
        assert job.harness.checkpoint_rows(job.name) == [], "nothing is written for what is refused"


def test_what_cannot_be_a_checkpoint_is_refused_before_an_id_is_used_up(job):
    with coordinator(job, op=Scripted(writes)) as it:
        with pytest.raises(InvalidInputError, match="count epochs from 1"):
            it.trigger(epoch=0)
        with pytest.raises(InvalidInputError, match="epoch"):
            it.trigger(epoch=None)
        with pytest.raises(InvalidInputError, match="source_offsets"):
            it.trigger(epoch=1, source_offsets={"kafka": "7"})
        assert it.trigger(epoch=1).result().checkpoint_id == 1


def test_none_and_what_no_factory_takes_are_refused_when_a_coordinator_is_made(job):
    for wrong in ({"store": None}, {"operators": None}, {"operators": {"op": None}}, {"threshold": -1}):
        with pytest.raises(InvalidInputError, match=r"store|operators|'op'|threshold"):
            CheckpointCoordinator(**{"store": job.store, "operators": {}, **wrong})


def test_a_checkpoint_may_take_for_ever(job):
    with CheckpointCoordinator(job.store, {"op": Scripted(writes)}, timeout_s=float("inf")) as it:
        assert it.trigger(epoch=1).result().checkpoint_id == 1


# -- sinks ---------------------------------------------------------------------------------------------------------


def test_sinks_say_what_became_of_a_checkpoint_and_recovery_heeds_it(job):
    with coordinator(job, op=partitions({0: LARGE})) as it:
        for _ in range(3):
            it.trigger(epoch=4, sinks=["a", "b"]).result()
        for sink in "ab":
            it.sink_committed(1, sink)
        it.sink_committed(2, "a")
        it.sink_failed(2, "b", "no space")
        it.sink_failed(1, "a", "too late")
        first, second = job.store.load_by_id(1), job.store.load_by_id(2)
        assert first.sink_commit_statuses == {"a": "Committed", "b": "Committed"}, "statuses never go back"
        assert first.sink_epochs == {"a": 4, "b": 4}
        assert second.model_dump()["sink_commit_statuses"] == {"a": "Committed", "b": {"Failed": "no space"}}
        found = it.restore()
        assert found.checkpoint_id == 1
        assert [one for one, _ in found.report.skipped] == [3, 2]
        assert restored(found, "op") == {0: LARGE}
        assert it.restore(allow_pending=True).checkpoint_id == 3
        for number, sinks in ((2, "'b'"), (3, "'a', 'b'")):
            with pytest.raises(InvalidInputError, match=f"not committed by {sinks}: .*allow_pending=True"):
                it.restore(number)
            assert it.restore(number, allow_pending=True).checkpoint_id == number
        assert it.restore(1).checkpoint_id == 1
        assert it.trigger(epoch=5).result().checkpoint_id == 4, "an id is never used again"
        with pytest.raises(CheckpointNotFoundError):
            it.sink_committed(9, "a")
        with pytest.raises(CheckpointNotFoundError):
            it.restore(9)


def test_a_sink_that_a_checkpoint_does_not_have_changes_nothing(job):
    with coordinator(job) as it:
        it.trigger(epoch=1, sinks=["a", "b"]).result()
        for tell in (lambda: it.sink_committed(1, "typo"), lambda: it.sink_failed(1, "typo", "no space")):
            with pytest.raises(InvalidInputError, match=r"no sink 'typo'.*sinks that it has: 'a', 'b'"):
                tell()
    assert job.store.load_by_id(1).sink_commit_statuses == {"a": "Pending", "b": "Pending"}


# -- restoring -----------------------------------------------------------------------------------------------------


def test_an_empty_stream_is_a_fresh_start(job):
    with coordinator(job) as it:
        assert it.restore() is None


def state_files(tmp_path):
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "1.sst").write_bytes(HUGE)
    (tmp_path / "db" / "2.sst").write_bytes(LARGE)
    return DirectorySnapshotStrategy(tmp_path / "db")


def test_claimed_state_is_used_on_and_may_go(job, tmp_path):
    strategy = state_files(tmp_path)
    with coordinator(job, db=strategy) as it:
        it.trigger(epoch=1).result()
    with coordinator(job, db=strategy) as it:
        found = it.restore(mode=RestoreMode.CLAIM)
        assert found.report.chosen_id == 1
        second = it.trigger(epoch=1).result()
    assert second.manifest.operator_handles == found.manifest.operator_handles
    assert all(row["data"] is None for row in job.rows(2)), "nothing is written again"
    job.delete(1)
    found = it.restore()
    assert {name: read(file) for name, file in found.open("db").items()} == {"1.sst": HUGE, "2.sst": LARGE}
    assert found.open("another") == {}


def test_without_claim_the_checkpoint_is_pinned_and_the_first_one_afterwards_depends_on_nothing_old(job, tmp_path):
    strategy = state_files(tmp_path)
    with coordinator(job, db=strategy) as it:
        it.trigger(epoch=1).result()
        it.trigger(epoch=1).result()
    with coordinator(job, db=strategy) as it:
        assert it.restore(mode=RestoreMode.NO_CLAIM).checkpoint_id == 2
        assert job.store.prune(1) == 1, "the pinned one stays beside the newest that recovery could choose"
        both = [it.trigger(epoch=1), it.trigger(epoch=1)]
        ids = [one.result().checkpoint_id for one in both]
        it.trigger(epoch=1).result()
    assert ids == [3, 4]
    assert job.store.prune(1) == 2
    assert job.store.list_ids() == [2, 5]
    for row in (*job.rows(3), *job.rows(4)):
        assert (row["held_key"], row["via"]) == (None, None)
    assert all(row["data"] is None for row in job.rows(5)), "from then on state is shared again"
    job.store.unpin(2)
    for trashed in (1, 3, 4):
        job.store.restore(trashed)
    for old, left in (((1, 2), (3, 4, 5)), ((3, 4), (5,))):
        job.purge(*old)
        sweep(job.stream, AT_ONCE)
        for one in left:
            found = it.restore(one)
            assert {name: read(file) for name, file in found.open("db").items()} == {"1.sst": HUGE, "2.sst": LARGE}


def test_a_checkpoint_begun_before_a_restore_is_nothing_to_share_with_afterwards(job, tmp_path):
    strategy = state_files(tmp_path)
    go_on = threading.Event()
    gates = [lambda: None, go_on.wait, lambda: None]

    def gated(_factory):
        gates.pop(0)()
        return SnapshotResult.empty()

    with coordinator(job, db=strategy, slow=Scripted(gated)) as it:
        it.trigger(epoch=1).result()
        late = it.trigger(epoch=1)
        it.restore(1, mode=RestoreMode.NO_CLAIM)
        go_on.set()
        late.result()
        it.trigger(epoch=1).result()
    assert all(row["data"] is not None for row in job.rows(3))


def test_a_savepoint_is_pinned_complete_and_restorable_with_everything_else_gone(job, tmp_path):
    strategy = state_files(tmp_path)
    with coordinator(job, db=strategy) as it:
        it.trigger(epoch=1).result()
        it.trigger(epoch=1, snapshot_type=SnapshotType.SAVEPOINT).result()
        third = it.trigger(epoch=1).result()
    assert third.checkpoint_id == 3
    assert all((row["held_key"], row["scope"]) == (None, "exclusive") for row in job.rows(2))
    assert job.store.prune(1) == 1
    assert job.store.list_ids() == [2, 3], "a savepoint is pinned"
    job.store.restore(1)
    job.purge(1, 3)
    sweep(job.stream, AT_ONCE)
    found = it.restore()
    assert found.checkpoint_id == 2
    assert {name: read(file) for name, file in found.open("db").items()} == {"1.sst": HUGE, "2.sst": LARGE}


@pytest.mark.parametrize("pinned_by", ["the savepoint", "no claim", "a person too"])
def test_a_claimed_savepoint_may_go_unless_a_person_pinned_it(job, pinned_by):
    with coordinator(job, op=partitions({0: LARGE})) as it:
        it.trigger(epoch=1, snapshot_type=SnapshotType.SAVEPOINT).result()
        if pinned_by == "no claim":
            it.restore(1, mode=RestoreMode.NO_CLAIM)
        if pinned_by == "a person too":
            job.store.pin(1, "for the audit")
        it.restore(1, mode=RestoreMode.CLAIM)
        for _ in range(3):
            it.trigger(epoch=1).result()
    job.store.prune(1)
    assert job.store.list_ids() == ([1, 4] if pinned_by == "a person too" else [4])


def test_a_savepoint_is_pinned_by_the_commit_that_saves_it(job):
    with coordinator(job, op=partitions({0: LARGE})) as it:
        before = len(job.harness.catalog.engine.versions())
        it.trigger(epoch=1, snapshot_type=SnapshotType.SAVEPOINT).result()
    assert len(job.harness.catalog.engine.versions()) == before + 1
    rows = job.harness.checkpoint_rows(job.name)
    assert [(row["revision"], row["change"], row["reason"]) for row in rows] == [
        (0, "saved", None),
        (1, "pinned", "savepoint"),
    ]
    assert rows[0]["at"] < rows[1]["at"]


def test_a_savepoint_whose_id_somebody_else_took_pins_nothing(job):
    other = job.harness.catalog.store(job.name)
    factory = job.store.stream_factory(1)
    other.save(CheckpointManifest.new(1, epoch=7))
    with pytest.raises(CheckpointExistsError):
        job.store.save_with_handles(CheckpointManifest.new(1, epoch=1), factory, pin="savepoint")
    assert [row["change"] for row in job.harness.checkpoint_rows(job.name)] == ["saved"]


def test_after_somebody_else_took_ids_only_one_checkpoint_fails(job):
    with coordinator(job, window=partitions({0: LARGE})) as it:
        assert it.trigger(epoch=1).result().checkpoint_id == 1
        other = job.harness.catalog.store(job.name)
        for taken in (2, 3, 4):
            other.save(CheckpointManifest.new(taken, epoch=1))
        with pytest.raises(CatalogError):
            it.trigger(epoch=1).result()
        assert it.trigger(epoch=1).result().checkpoint_id == 5


def test_a_restored_job_shares_nothing_with_newer_checkpoints_that_may_be_damaged(job):
    state = {0: b"good"}
    with coordinator(job, window=partitions(state)) as it:
        it.trigger(epoch=1).result()
        state[0] = HUGE
        it.trigger(epoch=1).result()
    job.harness.corrupt_state(job.name, integer_key(2))
    with coordinator(job, window=partitions(state)) as it:
        assert restored(it.restore(1), "window") == {0: b"good"}
        assert it.trigger(epoch=1).result().checkpoint_id == 3
    assert job.store.validate_checkpoint(3).valid
