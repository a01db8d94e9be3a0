"""The protocol's rules, each with the interleaving that would break it, forced on real tables.

The numbers are those of the protocol's list of rules. A step of one actor is made to happen just before or after a
step of another, by an engine that calls back around the real one.
"""

import threading
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest

from catalog import (
    AbandonedError,
    BasePurgedError,
    BrokenChainError,
    CheckpointCatalog,
    CheckpointedStateScope,
    CheckpointExistsError,
    CheckpointManifest,
    ConflictError,
    CorruptError,
    PurgedError,
    TrashedError,
    cutting,
    keys,
    retention,
)
from catalog.lifecycle import Change
from catalog.protocol import Draft
from catalog.sweep import sweep
from catalog.tables.port import Equals, Table

numbers = count()
NOW = timedelta(0)
BIG = bytes(range(256)) * 1200
"""State of one chunk that is large enough to be shared."""


class Clock:
    def __init__(self):
        self.now = datetime.now(UTC)

    def __call__(self):
        self.now += timedelta(microseconds=1)
        return self.now


class Interleaved:
    """The real engine, with another actor's steps in between: each callback happens once."""

    def __init__(self, engine):
        self._engine = engine
        self.before = {}
        self.after = {}

    def lookup(self):
        beside = Interleaved(self._engine.lookup())
        beside.before, beside.after = self.before, self.after
        return beside

    def __getattr__(self, name):
        real = getattr(self._engine, name)

        def call(*arguments, **options):
            table = arguments[0] if arguments and isinstance(arguments[0], Table) else None
            for step in ((name, table), name):
                if happening := self.before.pop(step, None):
                    happening()
            result = real(*arguments, **options)
            for step in ((name, table), name):
                if happening := self.after.pop(step, None):
                    happening()
            return result

        return call if callable(real) else real


class World:
    """One catalog with a clock, and two actors on one stream: the second one's steps can be interleaved."""

    def __init__(self, engine):
        self.clock = Clock()
        self.engine = Interleaved(engine)
        self.name = f"rule {next(numbers)}"
        self.catalog = CheckpointCatalog(engine, clock=self.clock)
        self.slow = CheckpointCatalog(self.engine, clock=self.clock)
        self.store = self.catalog.store(self.name)
        self.stream = self.catalog.stream(self.name)
        self.slow_store = self.slow.store(self.name)
        self.slow_stream = self.slow.stream(self.name)

    def save(self, *ids, state=None, **fields):
        for one in ids:
            manifest = CheckpointManifest.new(one, epoch=one, timestamp_ms=1, **fields)
            self.store.save_with_state(manifest, state)

    def purge(self, *ids):
        """Trash and purge, whatever recovery would choose."""
        wanted = [f"{one:020d}" for one in ids]
        self.stream.trash(lambda history, now: retention.drop(history, wanted, "test", now), NOW)
        self.clock.now += timedelta(minutes=6)
        assert self.stream.purge() == wanted

    def artifact_keys(self):
        rows = self.catalog.engine.scan(Table.ARTIFACTS, [Equals("stream", self.name)], ["checkpoint_key"])
        return sorted({int(one) for one in rows.column("checkpoint_key").to_pylist()})

    def rows(self):
        """Return (checkpoint, whether it has bytes of its own) of all artifact rows."""
        found = self.catalog.engine.scan(Table.ARTIFACTS, [Equals("stream", self.name)], ["checkpoint_key", "data"])
        return sorted((int(row["checkpoint_key"]), row["data"] is not None) for row in found.to_pylist())

    def reusing(self, store, one, handle):
        """Save a checkpoint that uses the state of an earlier one's handle."""
        factory = store.stream_factory(one)
        factory.reuse_previous_state_handle([handle])
        manifest = CheckpointManifest.new(one, epoch=one, operator_handles={"op": {"state": handle}})
        store.save_with_handles(manifest, factory)

    def streamed(self, one, state=BIG):
        """Save a checkpoint whose state is shared, and return its handle."""
        factory = self.store.stream_factory(one)
        manifest, handle = staged(factory, one, state)
        self.store.save_with_handles(manifest, factory)
        return handle

    def delta(self, one, parent, state=b"delta"):
        """Save a checkpoint that stands on another, the way the checkpointer does."""
        return save_delta(self.stream, one, parent, state)


def staged(factory, one, state=BIG):
    """Write shared state through a factory and return a manifest that has its handle, and the handle."""
    with factory.create_checkpoint_state_output_stream(CheckpointedStateScope.SHARED) as stream:
        stream.write(state)
        handle = stream.close_and_get_handle()
    return CheckpointManifest.new(one, epoch=one, operator_handles={"op": {"state": handle}}), handle


def save_delta(stream, one, parent, state=b"delta"):
    key, attempt = f"{one:020d}", keys.new_uuid7()
    stored = stream.stage(key, attempt, "state.bin", "delta", state)
    text = CheckpointManifest.new(one, epoch=1, timestamp_ms=1, state_checksum=stored.sha256).canonical()
    stream.save(
        Draft(
            key=key,
            format=keys.Format.MANIFEST_V1,
            attempt=attempt,
            manifest=text,
            artifacts={"state.bin": stored},
            parent=f"{parent:020d}",
            facts={"epoch": 1},
        )
    )


@pytest.fixture(scope="module", params=["native", pytest.param("spark", marks=pytest.mark.prove)])
def engine(request, tmp_path_factory):
    """The rules live above the port: every change is held to them on the quick engine, `make prove` on both."""
    folder = tmp_path_factory.mktemp("rules") / "catalog"
    if request.param == "native":
        return CheckpointCatalog.native(folder, create=True).engine
    return CheckpointCatalog.create(request.getfixturevalue("spark"), folder).engine


@pytest.fixture
def world(engine):
    return World(engine)


def test_rule_1_a_pin_between_plan_and_trash_is_never_overrun(world):
    world.save(1, 2, 3)
    world.engine.before["insert_unless"] = lambda: world.store.pin(1, "audit")
    assert world.slow_store.prune(1) == 1
    assert world.store.list_ids() == [1, 3]


def test_rule_2_a_purged_id_is_not_saved_again_even_when_its_rows_are_swept(world):
    world.save(1, 2)
    world.purge(1)
    world.store.cleanup_orphans(NOW)
    with pytest.raises(PurgedError):
        world.save(1, sink_epochs={"zombie": 1})
    assert world.store.next_id() == 3


def test_rule_3_a_loser_never_touches_the_winners_bytes(world):
    world.engine.before["insert_unless"] = lambda: world.save(1, state=b"winner")
    with pytest.raises(CheckpointExistsError):
        world.slow_store.save_with_state(CheckpointManifest.new(1, epoch=2), b"loser")
    assert world.store.load_state_data(1) == b"winner"


def test_rule_5_a_delta_is_refused_when_its_parent_was_purged_after_it_was_read(world):
    world.save(1, 2, state=b"base")
    world.engine.before["insert_unless"] = lambda: world.purge(1)
    with pytest.raises(BrokenChainError, match="purged meanwhile"):
        save_delta(world.slow_stream, 3, parent=1)
    assert world.store.list_ids() == [2]


def test_rule_4_a_sweeper_that_read_checkpoints_before_a_borrower_came_and_its_base_went_keeps_the_bytes(world):
    world.save(1, state=BIG)

    def borrowed_and_purged():
        world.save(2, state=BIG)
        world.purge(1)

    world.engine.after["scan"] = borrowed_and_purged
    sweep(world.slow_stream, NOW)
    assert world.store.load_state_data(2) == BIG
    sweep(world.stream, NOW)
    assert world.rows() == [(1, True), (2, False)]
    assert world.store.validate_checkpoint(2).valid


def test_rule_4_a_sweeper_that_read_checkpoints_before_a_handle_was_reused_keeps_the_bytes(world):
    handle = world.streamed(1)

    def reused_and_purged():
        world.reusing(world.store, 2, handle)
        world.purge(1)

    world.engine.after["scan"] = reused_and_purged
    sweep(world.slow_stream, NOW)
    with world.store.open_handle(handle, of=2) as file:
        assert file.read() == BIG


@pytest.mark.parametrize("swept", [False, True])
def test_rule_5_bytes_whose_base_was_purged_before_the_commit_are_written_anew(world, swept):
    world.save(1, state=BIG)

    def gone():
        world.purge(1)
        if swept:
            sweep(world.stream)

    world.engine.before["insert_unless"] = gone
    world.slow_store.save_with_state(CheckpointManifest.new(2, epoch=2), BIG)
    assert world.store.list_ids() == [2]
    sweep(world.stream, NOW)
    assert world.rows() == [(2, True)], "neither the base nor the attempt that borrowed is left"
    assert world.store.load_state_data(2) == BIG
    assert world.store.validate_checkpoint(2).issues == ()


def test_rule_5_a_save_whose_own_auto_prune_marks_its_base_as_purged_keeps_the_bytes(world):
    """Its guard sees no mark that its own commit brings; what it borrows is needed all the same."""
    world.save(1, state=BIG)
    store = world.slow.store(world.name, max_retained=5)
    versions = []

    def base_trashed_and_due():
        world.stream.trash(lambda history, now: retention.drop(history, [f"{1:020d}"], "test", now), NOW)
        world.clock.now += timedelta(minutes=6)
        versions.append(world.catalog.engine.versions()[-1].number)

    world.engine.after["append", Table.ARTIFACTS] = base_trashed_and_due
    store.save_with_state(CheckpointManifest.new(2, epoch=2), BIG)
    versions.append(world.catalog.engine.versions()[-1].number)
    assert versions[1] == versions[0] + 1, "the save and the mark are one commit"
    assert world.stream.history(marks=True)[f"{1:020d}"].head.change == Change.PURGED
    assert world.rows() == [(1, True), (2, False)]
    for _ in range(2):
        sweep(world.stream, NOW)
        assert world.rows() == [(1, True), (2, False)]
    assert world.store.load_state_data(2) == BIG
    assert world.store.validate_checkpoint(2).issues == ()
    with pytest.raises(PurgedError):
        world.store.load_state_data(1)


def test_rule_5_an_iterator_whose_base_was_purged_before_the_commit_saves_nothing(world):
    world.save(1, state=BIG)
    world.engine.before["insert_unless"] = lambda: world.purge(1)
    with pytest.raises(BasePurgedError, match="write all bytes anew"):
        world.slow_store.save_with_state(CheckpointManifest.new(2, epoch=2), iter([BIG]))
    assert world.store.list_ids() == []
    world.slow_store.save_with_state(CheckpointManifest.new(2, epoch=2), iter([BIG]))
    sweep(world.stream, NOW)
    assert world.rows() == [(2, True)]
    assert world.store.load_state_data(2) == BIG


def test_rule_5_what_a_process_last_saved_may_be_gone_when_it_saves_again(world):
    world.save(1, state=BIG)
    other = world.catalog.stream(world.name)
    other.trash(lambda history, now: retention.drop(history, [f"{1:020d}"], "other", now), NOW)
    world.clock.now += timedelta(minutes=6)
    other.purge()
    sweep(other)
    world.save(2, state=BIG)
    assert world.store.load_state_data(2) == BIG
    world.save(3, state=BIG)
    sweep(world.stream, NOW)
    assert world.rows() == [(2, True), (3, False)]


@pytest.mark.parametrize("swept", [False, True])
def test_rule_5_a_reused_handle_whose_state_was_purged_before_the_commit_saves_nothing(world, swept):
    handle = world.streamed(1)

    def gone():
        world.purge(1)
        if swept:
            sweep(world.stream)

    world.engine.before["insert_unless"] = gone
    with pytest.raises(BasePurgedError):
        world.reusing(world.slow_store, 2, handle)
    assert world.store.list_ids() == []
    sweep(world.stream, NOW)
    assert world.rows() == []


def test_rule_5_a_base_in_the_trash_is_good_enough(world):
    world.save(1, 2, state=BIG)
    world.engine.before["insert_unless"] = lambda: world.store.prune(1, undo_for=NOW)
    world.slow_store.save_with_state(CheckpointManifest.new(3, epoch=3), BIG, previous=1)
    assert world.store.list_ids() == [2, 3]
    world.clock.now += timedelta(minutes=6)
    world.store.cleanup_orphans(NOW)
    assert world.store.load_state_data(3) == BIG


def test_rule_6_an_undo_between_plan_and_purge_wins(world):
    world.save(1, 2)
    world.store.prune(1, undo_for=NOW)
    world.clock.now += timedelta(minutes=6)
    world.engine.before["insert_unless"] = lambda: world.store.restore(1)
    assert world.slow_stream.purge() == []
    assert world.store.list_ids() == [1, 2]


def test_rule_7_a_late_update_of_a_purged_checkpoint_makes_no_ghost(world):
    world.save(1, 2, sink_commit_statuses={"a": "Pending"})
    late = world.store.load_by_id(1).with_sink_status("a", "Committed")
    world.engine.before["insert_unless"] = lambda: world.purge(1)
    with pytest.raises(PurgedError):
        world.slow_store.update_manifest(late)
    world.store.cleanup_orphans(NOW)
    assert world.store.list_ids() == [2]
    with pytest.raises(PurgedError):
        world.store.update_manifest(late)


def test_rule_8_marks_stay_and_the_highest_id_is_never_forgotten(world):
    world.save(1, 2, 3, state=b"x")
    world.purge(2, 3)
    world.store.cleanup_orphans(NOW)
    history = world.stream.history(marks=True)
    assert [(int(key), one.head.change) for key, one in history.items()][1:] == [(2, "purged"), (3, "purged")]
    assert world.store.next_id() == 4
    assert world.artifact_keys() == [1]


def test_rule_8_bytes_that_come_under_an_id_of_which_only_a_mark_is_left_are_garbage(world):
    world.save(1, 2, state=b"x")
    world.purge(1)
    world.store.cleanup_orphans(NOW)
    for one in (1, 3):
        world.stream.stage(f"{one:020d}", keys.new_uuid7(), "state.bin", "state", b"late")
    world.stream.abandon(f"{3:020d}", "another attempt", "closed before it was saved")
    assert world.artifact_keys() == [1, 2, 3]
    assert sweep(world.stream, timedelta(hours=1)).chunks == 2
    assert world.artifact_keys() == [2]


def test_rule_7_who_stands_on_one_that_is_marked_while_a_sweep_looks_keeps_its_bytes(world):
    def borrowed_purged_and_swept():
        world.save(1, 2, state=BIG)
        world.purge(1)
        world.store.cleanup_orphans(NOW)

    world.engine.after["scan", Table.CHECKPOINTS] = borrowed_purged_and_swept
    sweep(world.slow_stream, NOW)
    assert world.store.load_state_data(2) == BIG
    assert world.store.validate_checkpoint(2).issues == ()


def test_rule_9_what_is_in_the_trash_and_what_deltas_stand_on_is_kept(world):
    world.save(1, 2, state=b"whole")
    world.delta(3, parent=2)
    world.store.prune(1, undo_for=timedelta(hours=1))
    assert world.store.list_ids() == [2, 3], "the parent of a kept delta stays"
    world.store.cleanup_orphans(NOW)
    assert world.artifact_keys() == [1, 2, 3]
    world.store.restore(1)
    assert world.store.load_state_data(1) == b"whole"


def test_rule_9_borrowed_bytes_stay_when_their_holder_is_purged_and_go_with_the_last_who_needs_them(world):
    world.save(1, 2, 3, state=BIG)
    assert world.rows() == [(1, True), (2, False), (3, False)]
    world.purge(1, 2)
    sweep(world.stream, NOW)
    assert world.rows() == [(1, True), (3, False)]
    assert world.store.load_state_data(3) == BIG
    assert (sweep(world.stream, NOW).chunks, world.store.validate_checkpoint(3).issues) == (0, ())
    world.purge(3)
    sweep(world.stream, NOW)
    assert world.rows() == []


def test_rule_9_what_a_borrower_in_the_trash_needs_is_kept_for_its_undo(world):
    world.save(1, 2, state=BIG)
    world.save(3, state=b"other")
    world.store.prune(1, undo_for=timedelta(hours=1))
    world.store.restore(1)
    world.purge(1)
    sweep(world.stream, NOW)
    world.store.restore(2)
    assert world.store.load_state_data(2) == BIG


def test_rule_9_of_an_attempt_only_the_chunks_stay_that_somebody_needs(world, monkeypatch):
    monkeypatch.setattr(cutting, "CHUNK_BYTES", len(BIG))
    parts = [bytes([number]) + BIG[1:] for number in range(4)]
    world.save(1, state=b"".join(parts))
    world.save(2, state=parts[1] + b"and more")
    assert world.rows() == [(1, True)] * 4 + [(2, False), (2, True)]
    world.purge(1)
    assert sweep(world.stream, NOW).chunks == 3
    assert world.rows() == [(1, True), (2, False), (2, True)]
    assert world.store.load_state_data(2) == parts[1] + b"and more"


def test_rule_10_a_save_in_progress_that_borrows_finds_its_id_closed_and_the_base_whole(world):
    world.save(1, state=BIG)
    world.engine.before["insert_unless"] = lambda: world.store.cleanup_orphans(NOW)
    with pytest.raises(AbandonedError, match="take the next id"):
        world.slow_store.save_with_state(CheckpointManifest.new(2, epoch=2), BIG)
    assert world.rows() == [(1, True)]
    assert world.store.load_state_data(1) == BIG


def test_rule_10_a_save_in_progress_that_reuses_finds_its_id_closed_and_the_state_whole(world):
    handle = world.streamed(1)
    world.engine.before["insert_unless"] = lambda: world.store.cleanup_orphans(NOW)
    with pytest.raises(AbandonedError):
        world.reusing(world.slow_store, 2, handle)
    assert world.rows() == [(1, True)]
    world.reusing(world.store, 3, handle)
    world.purge(1)
    sweep(world.stream, NOW)
    with world.store.open_handle(handle, of=3) as file:
        assert file.read() == BIG


def test_rule_10_a_borrower_that_commits_before_the_mark_keeps_what_it_borrowed(world):
    """The sweeper takes its attempt for an orphan; the base is purged as soon as it is saved."""
    handle = world.streamed(1)
    factory = world.store.stream_factory(2)
    made = factory.duplicate([handle], CheckpointedStateScope.SHARED)

    def saved():
        manifest = CheckpointManifest.new(2, epoch=2, operator_handles={"op": {"state": made[0]}})
        world.store.save_with_handles(manifest, factory)
        world.purge(1)

    world.engine.before["insert_unless"] = saved
    sweep(world.slow_stream, NOW)
    sweep(world.stream, NOW)
    assert world.rows() == [(1, True), (2, False)]
    with world.store.open_handle(made[0], of=2) as file:
        assert file.read() == BIG


def test_rule_10_bytes_of_a_save_in_progress_go_only_after_its_id_is_closed(world):
    world.engine.before["insert_unless"] = lambda: world.store.cleanup_orphans(NOW)
    with pytest.raises(AbandonedError, match="take the next id"):
        world.slow_store.save_with_state(CheckpointManifest.new(1, epoch=1), b"slow")
    assert world.store.list_ids() == []
    assert world.artifact_keys() == []
    world.save(world.store.next_id(), state=b"goes on")
    assert world.store.list_ids() == [2]


def test_rule_10_a_save_that_commits_before_the_mark_keeps_its_bytes(world):
    store = world.store
    store.save_state_data(1, b"staged")
    world.engine.before["insert_unless"] = lambda: store.save(CheckpointManifest.new(1, epoch=1))
    assert world.slow_store.cleanup_orphans(NOW) == 0
    assert store.load_state_data(1) == b"staged"
    assert store.validate_checkpoint(1).issues == ()


def test_rule_10_of_two_orphans_of_one_id_the_second_is_not_abandoned_on_top_of_a_save(world):
    other = world.catalog.store(world.name)
    for store in (world.store, other):
        store.save_state_data(1, b"staged")
    world.engine.before["insert_unless"] = lambda: world.store.save(CheckpointManifest.new(1, epoch=1))
    world.slow_store.cleanup_orphans(NOW)
    assert world.store.load_state_data(1) == b"staged"
    assert world.store.cleanup_orphans(NOW) == 1
    assert world.store.validate_checkpoint(1).valid


@pytest.mark.parametrize("when", ["before", "between its two looks"])
def test_rule_10_what_another_process_saved_is_not_discarded_by_the_factory_that_wrote_it(world, when):
    factory = world.slow_store.stream_factory(1)
    manifest, handle = staged(factory, 1)
    if when == "before":
        world.store.save(manifest)
    else:
        world.engine.after["scan", Table.CHECKPOINTS] = lambda: world.store.save(manifest)
    factory.discard([handle])
    assert world.store.validate_checkpoint(1).issues == ()
    sweep(world.stream, NOW)
    assert world.store.validate_checkpoint(1).issues == ()


def test_rule_10_what_is_discarded_before_another_process_made_it_its_own_is_not_saved(world):
    factory = world.store.stream_factory(1)
    manifest, handle = staged(factory, 1)
    world.engine.before["append", Table.ARTIFACTS] = lambda: factory.discard([handle])
    with pytest.raises(ConflictError, match="discarded while"):
        world.slow_store.save(manifest)
    assert world.store.list_ids() == []
    world.save(1, state=BIG)
    assert world.store.load_state_data(1) == BIG


def test_rule_12_a_reader_whose_checkpoint_is_purged_under_it_is_told_so(world):
    world.save(1, 2, state=b"bytes")
    purged = threading.Event()

    def gone():
        world.purge(1)
        world.store.cleanup_orphans(NOW)
        purged.set()

    world.engine.after["scan", Table.CHECKPOINTS] = gone
    world.engine.before["scan", Table.ARTIFACTS] = lambda: purged.wait(timeout=60)
    with pytest.raises(PurgedError):
        world.slow_store.load_state_data(1)


@pytest.mark.parametrize(
    ("first", "second"), [(Table.ARTIFACTS, Table.CHECKPOINTS), (Table.CHECKPOINTS, Table.ARTIFACTS)]
)
def test_rule_12_a_purge_between_the_bytes_and_the_row_read_beside_them_is_told(world, first, second):
    world.save(1, 2, state=b"bytes")
    world.slow_store.list()  # from now on the attempt is known, and bytes are read beside the row
    done = threading.Event()

    def gone():
        assert done.wait(timeout=60), f"{first} and {second} were not read beside each other"
        world.purge(1)
        world.store.cleanup_orphans(NOW)

    world.engine.after["scan", first] = done.set
    world.engine.before["scan", second] = gone
    with pytest.raises(PurgedError):
        world.slow_store.load_state_data(1)


def test_rule_12_bytes_that_are_gone_without_a_reason_are_corrupt(world):
    world.save(1, state=b"bytes")
    world.catalog.engine.delete(Table.ARTIFACTS, [Equals("stream", world.name)])
    with pytest.raises(CorruptError, match="missing"):
        world.store.load_state_data(1)


def test_rule_13_same_content_is_not_acknowledged_when_the_stored_one_is_in_the_trash(world):
    world.save(1, 2)
    world.store.prune(1)
    with pytest.raises(TrashedError, match="restore it"):
        world.save(1)


def test_rule_14_two_prunes_never_take_each_others_survivor(world):
    world.save(1, 2)
    world.save(3, sink_commit_statuses={"a": "Pending"})

    def other_prune():
        doomed = [f"{2:020d}"]
        world.stream.trash(lambda history, now: retention.drop(history, doomed, "other", now), NOW)

    world.engine.before["insert_unless"] = other_prune
    world.slow_store.prune(1)
    assert world.store.list_ids() == [1, 3], "2 went meanwhile, so 1 is what recovery can choose"
    assert world.store.recover_latest_validated().chosen_id == 1


def test_undo_takes_back_the_update_that_was_the_last_when_it_looked_and_no_other(world):
    """The mistake is a's; b commits before the undo does, and nobody would commit b a second time."""
    world.save(1, sink_commit_statuses={"a": "Pending", "b": "Pending"})
    stored = world.store.load_by_id(1)
    mistaken = stored.with_sink_status("a", "Failed", error="by mistake")
    world.store.update_manifest(mistaken)
    commit = mistaken.with_sink_status("b", "Committed")
    world.engine.before["insert_unless"] = lambda: world.store.update_manifest(commit)
    with pytest.raises(ConflictError, match="was updated meanwhile, and nothing was taken back: look at it"):
        world.slow_store.undo_update(1)
    assert world.store.load_by_id(1) == commit
    world.engine.before["insert_unless"] = lambda: world.store.pin(1, "another change is no reason")
    world.slow_store.undo_update(1)
    assert world.store.load_by_id(1) == mistaken


def test_auto_prune_rides_in_the_commit_of_the_save_and_respects_a_pin_in_between(world):
    store = world.slow.store(world.name, max_retained=1)
    world.save(1, 2)
    world.engine.before["insert_unless"] = lambda: world.store.pin(1, "audit")
    before = world.stream.history()
    store.save(CheckpointManifest.new(3, epoch=3))
    after = world.stream.history()
    assert before[f"{1:020d}"].live
    assert world.store.list_ids() == [1, 3]
    assert after[f"{2:020d}"].head.change == Change.TRASHED


def test_auto_prune_that_fails_never_fails_the_save(world, caplog):
    world.save(1)

    def broken(_history, _now):
        raise RuntimeError("cannot decide")

    text = CheckpointManifest.new(2, epoch=1).canonical()
    draft = Draft(key=f"{2:020d}", format=keys.Format.MANIFEST_V1, attempt="a", manifest=text, facts={"epoch": 1})
    world.stream.save(draft, broken)
    assert world.store.list_ids() == [1, 2]
    assert "auto-prune" in caplog.text


def test_an_id_taken_meanwhile_lets_auto_prune_take_nothing(world):
    """The plan counts on the save: if the save does not happen, nothing goes."""
    world.save(1)
    pending = {"sink_commit_statuses": {"a": "Pending"}}
    world.engine.before["insert_unless"] = lambda: world.save(2, **pending)
    with pytest.raises(CheckpointExistsError):
        world.slow.store(world.name, max_retained=1).save(CheckpointManifest.new(2, epoch=2))
    assert world.store.list_ids() == [1, 2]


def test_a_row_stands_later_than_what_it_stands_on_even_when_the_clock_goes_back(world):
    world.save(1, state=b"x")
    world.clock.now -= timedelta(days=1)
    world.delta(2, parent=1)
    world.store.pin(2, "kept")
    history = world.stream.history()
    parent, child = history[f"{1:020d}"], history[f"{2:020d}"]
    assert child.origin.at > parent.head.at
    assert child.head.at > child.origin.at


def test_a_mark_of_a_sweeper_whose_clock_is_behind_stands_later_than_the_rows_before_it(world):
    """Else an earlier moment that rows tell would have the mark, and miss what came before it: a gap."""
    world.save(1, state=b"x")
    world.stream.stage(f"{1:020d}", keys.new_uuid7(), "orphan", "snapshot", b"x")
    world.clock.now += timedelta(days=1)
    world.store.pin(1, "kept")
    world.clock.now -= timedelta(hours=12)
    assert sweep(world.stream, NOW).orphans == 1
    rows = sorted(world.stream.revisions(), key=lambda row: row.revision)
    assert [row.change for row in rows] == ["saved", "pinned", "abandoned"]
    assert rows[2].at > rows[1].at
