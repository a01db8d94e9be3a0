"""Folding beside everybody else: interleavings forced on real tables, kills in the middle, races of processes.

The numbers are those of the protocol's list of rules.
"""

import asyncio
import random
import threading
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from catalog import AppendLog, CheckpointCatalog, ClosedIdError, Last, Retention, TrashedError, retention
from catalog.lifecycle import Change
from catalog.sweep import sweep
from catalog.tables.port import Equals, Table
from tests.faults import test_processes
from tests.faults.fold_worker import LINKS, delta, log_of, save
from tests.faults.test_processes import told, worker
from tests.faults.test_protocol_rules import NOW, Interleaved, World

LOG = {"log": AppendLog()}
FOLD_WORKER = Path(__file__).with_name("fold_worker.py")


@pytest.fixture(scope="module", params=["native", pytest.param("spark", marks=pytest.mark.prove)])
def engine(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("folding") / "catalog"
    if request.param == "native":
        return CheckpointCatalog.native(folder, create=True).engine
    return CheckpointCatalog.create(request.getfixturevalue("spark"), folder).engine


class Folding(World):
    """A chain, and two actors: the slow one folds."""

    def __init__(self, engine, links=4):
        super().__init__(engine)
        self.ids = [None]
        for number in range(links):
            self.ids.append(save(self.catalog, self.name, self.ids[-1], delta(number)))
        self.ids = self.ids[1:]
        self.tip = self.ids[-1]
        self.expected = log_of(links)

    def fold(self, catalog=None):
        return (catalog or self.slow).fold_chains([self.name], folders=LOG, min_links=2)

    def links(self, id=None, catalog=None):
        reading = (catalog or self.catalog).checkpointer(self.name)
        return asyncio.run(reading.load_chain(id or self.tip, "log", 0))

    def state(self, id=None, catalog=None):
        return b"".join(link.data for link in self.links(id, catalog))

    def attempts(self):
        rows = self.catalog.engine.scan(Table.ARTIFACTS, [Equals("stream", self.name)], ["checkpoint_key", "attempt"])
        return {(row["checkpoint_key"], row["attempt"]) for row in rows.to_pylist()}

    def changes(self, id=None):
        key = id or self.tip
        return [row.change for row in sorted(self.stream.revisions([key]), key=lambda row: row.revision)]

    def let_go(self):
        """Trash, purge and sweep all that the newest does not stand on."""
        self.catalog.apply_retention([Retention((Last(1),), undo_for=NOW)], [self.name])
        self.clock.now += timedelta(minutes=6)
        self.catalog.clean_up([self.name], grace=NOW)


@pytest.fixture
def world(engine):
    return Folding(engine)


def test_rule_10_a_sweeper_abandons_a_fold_in_progress_and_rule_11_it_starts_again_with_a_new_attempt(world):
    world.engine.before["insert_unless"] = lambda: sweep(world.stream, NOW)
    assert len(world.fold().folded) == 1
    assert world.changes() == ["prepared", "promoted", "abandoned", "folded"]
    found = world.stream.find(world.tip)
    (given_up,) = found.abandoned_attempts
    assert given_up not in found.attempts
    assert (world.tip, given_up) not in world.attempts()
    assert [link.is_delta for link in world.links()] == [False]
    assert world.state() == world.expected
    sweep(world.stream, NOW)
    assert world.state() == world.expected


def test_rule_10_a_fold_that_commits_before_the_mark_keeps_its_bytes(world):
    """The sweeper has taken its attempt for an orphan when it is committed."""
    staged = threading.Event()

    def folds():
        world.fold(world.catalog)
        staged.set()

    world.engine.after["scan", Table.CHECKPOINTS] = folds
    sweep(world.slow_stream, NOW)
    assert staged.is_set()
    sweep(world.stream, NOW)
    assert world.state() == world.expected
    assert len(world.links()) == 1
    assert world.catalog.validate([world.name], depth="hashes").results == ()


@pytest.mark.parametrize("change", ["pin", "update"])
def test_rule_11_a_fold_that_loses_its_revision_starts_again_and_its_bytes_are_swept(world, change):
    def other():
        if change == "pin":
            world.stream.pin(world.tip, "audit")
        else:
            row = world.stream.find(world.tip).content
            same = {"manifest": row.manifest, "manifest_sha256": row.manifest_sha256, "epoch": row.epoch}
            world.stream.change(world.tip, lambda _: {"change": Change.UPDATED, **same})

    world.engine.before["insert_unless"] = other
    report = world.fold()
    assert len(report.folded) == 1
    assert world.changes()[2:] == ["pinned" if change == "pin" else "updated", "folded"]
    lost = [attempt for key, attempt in world.attempts() if key == world.tip]
    assert len(lost) == 3, "the save, the fold that lost, the fold that counts"
    assert sweep(world.stream, NOW).orphans == 1
    assert len([attempt for key, attempt in world.attempts() if key == world.tip]) == 2
    assert world.state() == world.expected
    assert bool(world.stream.find(world.tip).pins) == (change == "pin")


def test_a_checkpoint_that_is_trashed_meanwhile_is_left_and_restored_as_it_was(world):
    def trash():
        world.stream.trash(lambda history, now: retention.drop(history, [world.tip], "test", now))

    world.engine.before["insert_unless"] = trash
    report = world.fold()
    assert [(one.folded, one.reason) for one in report.chains] == [(False, "it went meanwhile")]
    world.stream.restore(world.tip)
    assert len(world.links()) == 4
    assert sweep(world.stream, NOW).orphans == 1
    assert world.state() == world.expected


def test_a_checkpoint_that_is_purged_meanwhile_is_left_and_nothing_of_the_fold_stays(world):
    def purge():
        world.stream.trash(lambda history, now: retention.drop(history, world.ids, "test", now), NOW)
        world.clock.now += timedelta(minutes=6)
        assert world.stream.purge() == world.ids

    world.engine.before["insert_unless"] = purge
    assert world.fold().folded == ()
    sweep(world.stream, NOW)
    assert world.attempts() == set()


def test_of_two_who_fold_one_checkpoint_one_wins_and_the_other_finds_it_done(world):
    world.engine.before["insert_unless"] = lambda: world.fold(world.catalog)
    report = world.fold()
    assert [one.reason for one in report.chains] == ["1 link, fewer than 2"]
    assert world.changes() == ["prepared", "promoted", "folded"]
    assert world.state() == world.expected


@pytest.mark.parametrize("table", [Table.CHECKPOINTS, Table.ARTIFACTS])
def test_rule_12_a_reader_in_the_middle_of_a_chain_that_is_folded_away_asks_again_for_the_whole_chain(world, table):
    grandchild = save(world.catalog, world.name, world.tip, delta(4))

    def folded_away():
        assert world.fold(world.catalog).folded
        world.let_go()
        assert {key for key, _ in world.attempts()} == {grandchild}

    # After its line is known: the first links are read, and then all of them are gone but the last.
    reads = iter(range(100))
    real = world.engine._engine.scan

    def scan(which, *arguments, **more):
        result = real(which, *arguments, **more)
        if which is table and next(reads) == 4:
            folded_away()
        return result

    class Slow(Interleaved):
        def lookup(self):
            return self

        def __getattr__(self, name):
            return scan if name == "scan" else getattr(self._engine, name)

    slow = CheckpointCatalog(Slow(world.catalog.engine), clock=world.clock)
    assert world.state(grandchild, slow) == log_of(5)
    assert next(reads) > 4, "the fold never happened"


def test_a_delta_that_is_saved_while_its_parent_is_folded_and_the_old_links_go_is_whole(world):
    saved = []

    def child():
        saved.append(save(world.catalog, world.name, world.tip, delta(4)))

    world.engine.before["insert_unless"] = child
    assert world.fold().folded
    world.let_go()
    assert world.state(saved[0]) == log_of(5)
    assert {key for key, _ in world.attempts()} == {world.tip, saved[0]}
    assert world.catalog.validate([world.name], depth="hashes").results == ()


def test_a_sweeper_that_read_before_the_fold_keeps_the_old_links_for_the_next_one(world):
    world.engine.after["scan", Table.CHECKPOINTS] = lambda: world.fold(world.catalog)
    sweep(world.slow_stream, NOW)
    for id in world.ids:
        assert world.state(id) == log_of(world.ids.index(id) + 1)


# -- processes ---------------------------------------------------------------------------------------------------------


def in_another_process(monkeypatch, *arguments):
    monkeypatch.setattr(test_processes, "WORKER", FOLD_WORKER)
    return worker(*arguments)


POINTS = ("staged", "verified", "inserted")


def run_kills(catalog, place, engine, kills, monkeypatch):
    """Kill a process that folds again and again, each time on a new chain, and look at what is left."""
    landed = Counter()
    for number, (point, delay_s) in enumerate(kills):
        stream = f"killed {number}"
        ids = [None]
        for link in range(LINKS):
            ids.append(save(catalog, stream, ids[-1], delta(link)))
        with in_another_process(monkeypatch, engine, "fold", place, stream, point, delay_s) as process:
            lines = told(process)
        done = bool(lines) and "done" in lines[-1]
        assert process.returncode == -9 or (done and process.returncode == 0)  # a kill may come after the reply too
        folded = bool(catalog.stream(stream).find(ids[-1]).folds)
        assert folded or not done, "it said that it had folded"
        landed[f"{(lines or [{'reached': 'start'}])[-1]}, {'folded' if folded else 'not folded'}"] += 1

        def state(stream=stream, id=ids[-1]):
            return b"".join(one.data for one in asyncio.run(catalog.checkpointer(stream).load_chain(id, "log", 0)))

        assert state() == log_of(LINKS)
        catalog.clean_up([stream], grace=timedelta(0))
        assert state() == log_of(LINKS), "a clean-up after the kill took something"
        catalog.fold_chains([stream], folders=LOG, min_links=2)
        assert len(catalog.stream(stream).find(ids[-1]).folds) == 1, "it cannot be folded after the kill"
        assert state() == log_of(LINKS)
    assert catalog.validate(depth="hashes").results == ()
    return landed


def test_a_kill_at_any_point_of_a_fold_leaves_the_chain_or_the_fold(tmp_path, monkeypatch):
    place = tmp_path / "catalog"
    catalog = CheckpointCatalog.native(place, create=True)
    landed = run_kills(catalog, place, "native", [(point, 0) for point in POINTS], monkeypatch)
    assert sum(landed.values()) == 3
    assert sum(count for where, count in landed.items() if where.endswith(", folded")) == 1


@pytest.mark.prove
@pytest.mark.parametrize(("engine", "random_ones", "longest_s"), [("native", 20, 1.5), ("spark", 4, 25)])
def test_many_kills_in_the_middle_of_folds(tmp_path, monkeypatch, engine, random_ones, longest_s):
    place = tmp_path / "catalog"
    catalog = CheckpointCatalog.native(place, create=True)
    dice = random.Random()
    kills = [(point, 0) for point in POINTS] + [("none", dice.uniform(0.3, longest_s)) for _ in range(random_ones)]
    print(f"\nkills of folding with {engine} landed: {dict(run_kills(catalog, place, engine, kills, monkeypatch))}")


def race(catalog, place, engine, rounds, monkeypatch, keep=10):
    """Read and recover over and over while one process saves deltas, and another folds, prunes to `keep` and sweeps."""
    done = Counter()
    with (
        in_another_process(monkeypatch, "native", "write", place, "raced", "writer", 0) as writer,
        in_another_process(monkeypatch, engine, "maintain", place, "raced", "folder", keep) as folding,
    ):
        for process in (writer, folding):
            assert process.stdout.readline()
        while done["reads"] < rounds:
            chosen = catalog.recover("raced").chosen_id
            assert chosen is not None
            try:
                links = asyncio.run(catalog.checkpointer("raced").load_chain(chosen, "log", 0))
            except ClosedIdError:
                done["told as gone"] += 1  # many were saved since it was chosen
                continue
            state = b"".join(one.data for one in links)
            assert state == log_of(state.count(b";")), "wrong bytes"
            done["reads"] += 1
            done["folded"] += links[0].path.endswith(".fold")
            assert writer.poll() is None
            assert folding.poll() is None
        for process in (writer, folding):
            process.stdin.close()
        saved, lines = told(writer), told(folding)
    assert (writer.returncode, folding.returncode) == (0, 0)
    newest = asyncio.run(catalog.checkpointer("raced").read_latest())
    state = b"".join(one.data for one in asyncio.run(catalog.checkpointer("raced").load_chain(newest, "log", 0)))
    assert state == log_of(saved[-1]["saved"]), "an acknowledged delta is lost"
    assert catalog.validate(["raced"], depth="hashes").results == ()
    return done + Counter(saves=saved[-1]["saved"], folds=sum(line["folded"] for line in lines))


def test_readers_and_a_writer_beside_one_who_folds_prunes_and_sweeps(tmp_path, monkeypatch):
    place = tmp_path / "catalog"
    done = race(CheckpointCatalog.native(place, create=True), place, "native", 25, monkeypatch)
    assert done["folds"], "nothing was folded meanwhile"


@pytest.mark.prove
@pytest.mark.parametrize(
    ("reader", "folder", "rounds"), [("native", "native", 200), ("native", "spark", 150), ("spark", "native", 12)]
)
def test_long_races_of_folding_against_writers_readers_and_clean_up(
    spark, tmp_path, monkeypatch, reader, folder, rounds
):
    place = tmp_path / "catalog"
    catalog = CheckpointCatalog.native(place, create=True)
    keep = 10
    if reader == "spark":
        # A writer of dozens a second is ten ahead before Spark has opened what it chose: it would never read any.
        catalog, keep = CheckpointCatalog.for_path(spark, place), 300
    done = race(catalog, place, folder, rounds, monkeypatch, keep)
    print(f"\na {reader} reader beside folding with {folder}: {dict(done)}")
    assert done["folds"]


def trash(world, *ids):
    world.stream.trash(lambda history, now: retention.drop(history, ids, "test", now), NOW)
    world.clock.now += timedelta(minutes=6)


def check_live_on_purged(world, id, expected, purged, tmp_path):
    """What a live checkpoint stands on is kept and read, though it is marked as purged."""
    statuses = {key: one.status for key, one in world.stream.history().items()}
    assert statuses[id] == "committed"
    assert [key for key, status in statuses.items() if status == "purged"] == purged
    sweep(world.stream, NOW)
    assert world.state(id) == expected
    assert world.catalog.validate([world.name], depth="hashes").results == ()
    folder = world.catalog.restore_into(world.name, id, tmp_path / "restored")
    assert b"".join(file.read_bytes() for file in sorted((folder / "artifacts").iterdir())) == expected
    version = world.catalog.engine.versions()[-1].number
    assert world.state(id, world.catalog.as_of(version=version)) == expected
    copy = CheckpointCatalog.native(tmp_path / "copy", create=True)
    world.catalog.copy_to(copy, [world.name])
    assert world.state(id, copy) == expected


def test_i1_a_checkpoint_restored_while_its_chain_is_purged_is_read_on(world, tmp_path):
    """The window of all is over; purge has planned to take all when the newest is restored."""
    trash(world, *world.ids)
    world.engine.before["insert_unless"] = lambda: world.stream.restore(world.tip)
    assert world.slow_stream.purge() == world.ids[:-1]
    check_live_on_purged(world, world.tip, world.expected, world.ids[:-1], tmp_path)
    world.fold(world.catalog)
    world.catalog.clean_up([world.name], grace=NOW)
    assert {key for key, _ in world.attempts()} == {world.tip}
    assert world.state() == world.expected


def test_i1_a_delta_saved_between_a_purges_look_and_its_mark_is_read_on(world, tmp_path):
    """Its saver saw the parent live, and slept through the parent's undo window."""
    looked, goes_on = threading.Event(), threading.Event()
    children = []

    def sleep():
        looked.set()
        goes_on.wait()

    def saved():
        goes_on.set()
        saver.join()

    world.engine.before["insert_unless"] = sleep
    saver = threading.Thread(
        target=lambda: children.append(save(world.slow, world.name, world.tip, delta(len(world.ids))))
    )
    saver.start()
    looked.wait()
    trash(world, world.tip)
    purger = Interleaved(world.catalog.engine)
    purger.before["insert_unless"] = saved
    assert CheckpointCatalog(purger, clock=world.clock).stream(world.name).purge() == [world.tip]
    check_live_on_purged(world, *children, log_of(len(world.ids) + 1), [world.tip], tmp_path)


def test_a_checkpoint_that_goes_between_two_looks_at_its_chain_is_told_as_gone_not_as_broken(world, tmp_path):
    world.engine.after["scan", Table.CHECKPOINTS] = lambda: trash(world, world.tip)
    with pytest.raises(TrashedError):
        world.state(catalog=world.slow)
    world.stream.restore(world.tip)
    world.engine.after["scan", Table.CHECKPOINTS] = lambda: trash(world, world.tip)
    with pytest.raises(TrashedError):
        world.slow.restore_into(world.name, world.tip, tmp_path / "restored")
