"""Prune, sweep and compaction beside running writers and readers, killed at any point, with either engine."""

import json
import random
import threading
from collections import Counter
from contextlib import ExitStack
from datetime import timedelta

import pytest

from catalog import CheckpointCatalog, CheckpointManifest, ClosedIdError
from catalog.lifecycle import Status
from catalog.tables.port import Equals, Table
from tests.faults.test_processes import state_of, worker

KEPT = 5
"""Checkpoints that the worker's upkeep leaves."""
POINTS = (
    "after engine.insert_unless",
    "before engine.delete",
    "after engine.delete",
    "before table.swap",
    "after table.swap",
    "before upkeep.shorten_log",
    "after files.delete",
)


class Listening:
    """Keeps what a process tells, while it runs."""

    def __init__(self, process):
        self.process = process
        self.told = []
        self._ended = False
        self._more = threading.Condition()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self):
        for line in self.process.stdout:
            with self._more:
                self.told.append(json.loads(line))
                self._more.notify_all()
        with self._more:
            self._ended = True
            self._more.notify_all()

    def wait_for(self, lines):
        with self._more:
            self._more.wait_for(lambda: self._ended or len(self.told) >= lines)
        assert len(self.told) >= lines, "it ended before it had done enough"

    def end(self):
        self.process.stdin.close()
        self._thread.join()
        return self.process.wait()


def read_all(catalog, done, most=None):
    """Load whatever is listed, or so many of it by chance: it is whole, or has been let go meanwhile."""
    store = catalog.store("s")
    listed = store.list_ids()
    for one in listed if most is None else sorted(random.sample(listed, min(most, len(listed)))):
        try:
            assert store.load_state_data(one) == state_of(one, "writer")
        except ClosedIdError:
            done["told as gone"] += 1
        else:
            done["loaded"] += 1


def check_end(catalog, place, acknowledged):
    """All that was acknowledged is there, or was let go by the policy, and what is left is sound."""
    history = catalog.stream("s").history(marks=True)
    assert {f"{one:020d}" for one in acknowledged} <= history.keys(), "an acknowledged checkpoint is lost"
    store = catalog.store("s")
    assert set(sorted(acknowledged)[-KEPT:]) <= set(store.list_ids()), "one that the policy keeps has gone"
    report = CheckpointCatalog.native(place).validate(depth="hashes")
    assert report.results == (), report.explain()


def race(catalog, place, writer, keepers, rounds, most=None):
    """Read over and over while one process saves and others let go, sweep and compact."""
    done = Counter()
    with ExitStack() as stack:
        saving = Listening(stack.enter_context(worker(writer, "grow", place, "s", "writer", 0)))
        saving.wait_for(1)
        keeping = [Listening(stack.enter_context(worker(one, "upkeep", place, "s", "none", 0))) for one in keepers]
        for one in keeping:
            one.wait_for(1)
        for _ in range(rounds):
            read_all(catalog, done, most)
            done["rounds"] += 1
        codes = [one.end() for one in (*keeping, saving)]
    assert codes == [0] * len(codes), "a writer failed, or upkeep did"
    for one in keeping:
        assert all(line["problems"] == [] for line in one.told)
        for what in ("trashed", "purged", "swept", "merged", "deleted"):
            done[what] += sum(line[what] for line in one.told)
    acknowledged = [line["acknowledged"] for line in saving.told]
    check_end(catalog, place, acknowledged)
    done["saved"] = len(acknowledged)
    assert all(done[what] for what in ("loaded", "trashed", "purged", "swept", "merged", "deleted")), dict(done)
    return done


def test_prune_sweep_and_compaction_beside_a_writer_and_a_reader_harm_nobody(tmp_path):
    place = tmp_path / "catalog"
    catalog = CheckpointCatalog.native(place, create=True, maintain_every=0)
    race(catalog, place, "native", ["native"], rounds=60)


@pytest.mark.prove
@pytest.mark.parametrize(
    ("reader", "writer", "keepers", "rounds"),
    [
        ("native", "native", ["native", "native"], 1500),
        ("native", "spark", ["native", "native"], 1500),
        ("spark", "native", ["spark"], 8),
        ("native", "spark", ["spark", "native"], 1000),
    ],
)
def test_two_keepers_at_once_beside_writers_and_readers_of_either_engine(
    spark, tmp_path, reader, writer, keepers, rounds
):
    place = tmp_path / "catalog"
    catalog = CheckpointCatalog.create(spark, place)
    if reader == "native":
        catalog = CheckpointCatalog.native(place, maintain_every=0)
    # A native writer is so much faster than a Spark reader and keeper that all of a round would be hundreds.
    done = race(catalog, place, writer, keepers, rounds, most=25 if reader == "spark" else None)
    print(f"\na {reader} reader beside a {writer} writer and keepers {keepers}: {dict(done)}")


def save(catalog, count):
    store = catalog.store("s")
    for one in range(store.next_id(), store.next_id() + count):
        store.save_with_state(CheckpointManifest.new(one, epoch=one), [state_of(one, "writer")])


def finish(catalog, place, engine):
    """Run upkeep to its end, and look: only what is kept has bytes, in the table and on the disk."""
    with worker(engine, "upkeep", place, "s", "none", 0) as process:
        keeping = Listening(process)
        for rounds in range(3, 1000):
            keeping.wait_for(rounds)
            # Those that were killed had clocks that were ahead, the further the longer they lived.
            if not any(one.status is Status.TRASHED for one in catalog.stream("s").history().values()):
                break
        assert keeping.end() == 0
    left = catalog.store("s").list_ids()
    assert len(left) == KEPT
    rows = catalog.engine.scan(Table.ARTIFACTS, [Equals("stream", "s")], ["checkpoint_key"])
    assert sorted({int(key) for key in rows.column("checkpoint_key").to_pylist()}) == left


@pytest.mark.parametrize("engine", ["native", pytest.param("spark", marks=pytest.mark.prove)])
def test_upkeep_killed_at_any_point_harms_nothing_and_the_next_run_ends_what_it_began(spark, tmp_path, engine):
    place = tmp_path / "catalog"
    CheckpointCatalog.create(spark, place)
    catalog = CheckpointCatalog.native(place, maintain_every=0)
    for point in POINTS:
        save(catalog, 10)
        with worker(engine, "upkeep", place, "s", point, 0) as process:
            process.stdout.read()  # its input stays open, or it would end after one round
        assert process.returncode == -9, f"it was not killed {point}"
        read_all(catalog, Counter())
        check_end(catalog, place, range(1, catalog.store("s").next_id()))
    finish(catalog, place, engine)


@pytest.mark.prove
@pytest.mark.parametrize(("engine", "kills", "longest_s"), [("native", 60, 3), ("spark", 10, 25)])
def test_upkeep_killed_at_random_beside_a_writer_harms_nothing(spark, tmp_path, engine, kills, longest_s):
    place = tmp_path / "catalog"
    CheckpointCatalog.create(spark, place)
    catalog, dice, done = CheckpointCatalog.native(place, maintain_every=0), random.Random(), Counter()
    with worker("native", "grow", place, "s", "writer", 0) as process:
        saving = Listening(process)
        saving.wait_for(1)
        for _ in range(kills):
            delay_s = dice.uniform(longest_s / 10, longest_s)
            with worker(engine, "upkeep", place, "s", "none", delay_s) as killed:
                while killed.poll() is None:
                    read_all(catalog, done)
            assert killed.returncode == -9
        assert saving.end() == 0, "the writer failed"
    acknowledged = [line["acknowledged"] for line in saving.told]
    check_end(catalog, place, acknowledged)
    finish(catalog, place, engine)
    print(f"\n{kills} kills of {engine} upkeep beside {len(acknowledged)} saves: {dict(done)}")
    assert catalog.clean_up(grace=timedelta(0))[0].swept.orphans == 0
