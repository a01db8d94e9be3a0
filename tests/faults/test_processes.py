"""Several processes on one catalog, with either engine: races for ids, SIGKILLs, and a reader among writers."""

import json
import random
import subprocess
import sys
import uuid
from collections import Counter
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from catalog import CheckpointCatalog, CheckpointManifest, ClosedIdError, ConflictError, PurgedError
from catalog.lifecycle import Status
from catalog.tables.port import Equals, Table

WORKER = Path(__file__).with_name("worker.py")
POINTS = ("before artifacts", "between the commits", "after the manifest")


@contextmanager
def worker(*arguments):
    """A writer process in a process group of its own, so that a kill takes its JVM along."""
    process = subprocess.Popen(
        [sys.executable, str(WORKER), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    with process:
        yield process


def told(process):
    return [json.loads(line) for line in process.stdout.read().splitlines()]


def state_of(checkpoint_id, writer):
    return f"{writer} wrote {checkpoint_id} ".encode() * 5000


def artifact_rows(catalog, stream):
    return catalog.engine.scan(Table.ARTIFACTS, [Equals("stream", stream)], ["checkpoint_key"]).num_rows


SPARKS = {"anna": "spark", "berta": "spark", "clara": "spark"}
MIXED = {"anna": "spark", "berta": "native", "clara": "native"}


def run_race(catalog, place, writers, ids):
    bystander = catalog.store("bystander")
    bystander.save_with_state(CheckpointManifest.new(1, epoch=1), [b"untouched"])
    numbers = ",".join(map(str, ids))
    with ExitStack() as stack:
        processes = {
            name: stack.enter_context(worker(engine, "race", place, "race", name, numbers))
            for name, engine in writers.items()
        }
        for process in processes.values():
            assert json.loads(process.stdout.readline()).keys() == {"ready"}
        for process in processes.values():
            process.stdin.write(b"go\n")
            process.stdin.flush()
        results = {name: told(process) for name, process in processes.items()}
    assert {process.returncode for process in processes.values()} == {0}

    winners = {}
    for name, lines in results.items():
        assert sorted(line["id"] for line in lines) == ids, f"{name} was not told about every id"
        for line in lines:
            if line["won"]:
                assert line["id"] not in winners, f"{line['id']} was won by {winners[line['id']]} and {name}"
                winners[line["id"]] = name
            else:
                assert line["error"] == "CheckpointExistsError"
    assert sorted(winners) == ids

    store = catalog.store("race")
    assert store.list_ids() == ids
    for one in ids:
        assert store.load_state_data(one) == state_of(one, winners[one])
        assert list(store.load_by_id(one).source_offsets) == [winners[one]]
        assert store.validate_checkpoint(one).issues == ()
    assert store.cleanup_orphans(timedelta(0)) == (len(writers) - 1) * len(ids)
    assert artifact_rows(catalog, "race") == len(ids)
    assert store.validate_checkpoint(ids[0]).valid
    assert bystander.load_state_data(1) == b"untouched"
    assert catalog.streams() == ["bystander", "race"]
    return Counter(winners.values())


def test_of_three_processes_with_both_engines_racing_for_an_id_exactly_one_wins(spark, tmp_path):
    place = tmp_path / "catalog"
    run_race(CheckpointCatalog.create(spark, place), place, MIXED, list(range(1, 7)))


@pytest.mark.prove
@pytest.mark.parametrize("writers", [SPARKS, MIXED], ids=["three Sparks", "a Spark and two native"])
def test_of_three_processes_racing_for_thirty_ids_exactly_one_wins_each(spark, tmp_path, writers):
    place = tmp_path / "catalog"
    winners = run_race(CheckpointCatalog.create(spark, place), place, writers, list(range(1, 31)))
    print("\nwinners:", {f"{name} ({engine})": winners[name] for name, engine in writers.items()})


@pytest.mark.prove
def test_of_four_native_processes_racing_for_three_hundred_ids_exactly_one_wins_each(tmp_path):
    place, writers = tmp_path / "catalog", dict.fromkeys(("anna", "berta", "clara", "dora"), "native")
    catalog = CheckpointCatalog.native(place, create=True)
    print("\nwinners:", dict(run_race(catalog, place, writers, list(range(1, 301)))))


def test_of_three_native_processes_on_s3_without_any_lock_exactly_one_wins_each(s3_options, monkeypatch):
    for name, value in s3_options.items():
        monkeypatch.setenv(name, value)
    place = f"s3://bucket/{uuid.uuid4()}"
    catalog = CheckpointCatalog.native(place, create=True)
    run_race(catalog, place, dict.fromkeys(("anna", "berta", "clara"), "native"), list(range(1, 9)))


def run_kills(catalog, place, engine, kills):
    """Kill a writer again and again, and look at what is left; kills are (point, delay in seconds)."""
    landed = Counter()
    acknowledged = set()
    for point, delay_s in kills:
        with worker(engine, "save", place, "killed", point, delay_s) as process:
            lines = told(process)
        assert process.returncode == -9, "the writer was not killed"
        acknowledged |= {line["acknowledged"] for line in lines if "acknowledged" in line}
        landed[where_it_landed(lines)] += 1

    store = catalog.store("killed")
    ids = store.list_ids()
    assert acknowledged <= set(ids), "an acknowledged checkpoint is lost"
    # All of them without Spark, which would take a second for each, and the last ones as the catalog at hand sees them.
    for looking, some in ((CheckpointCatalog.native(place).store("killed"), ids), (store, ids[-5:])):
        for one in some:
            assert looking.validate_checkpoint(one).issues == (), "something half-saved is visible"
            assert looking.load_state_data(one) == state_of(one, "killed")
    following = store.next_id()
    store.save_with_state(CheckpointManifest.new(following, epoch=1), [b"goes on"])
    assert store.load_latest().checkpoint_id == following
    orphans = store.cleanup_orphans(timedelta(0))
    assert artifact_rows(catalog, "killed") == len(ids) + 1
    assert store.validate_checkpoint(following).valid
    return landed, len(acknowledged), orphans


def where_it_landed(lines):
    """Say how far the save that was killed had come, from the last thing the writer told."""
    last = lines[-1] if lines else {}
    if "acknowledged" in last:
        return "after the reply"
    reached = last.get("reached", "before artifacts")
    return "during the artifacts" if reached == "before artifacts" and len(lines) > 1 else reached


@pytest.mark.parametrize("engine", ["spark", "native"])
def test_a_kill_at_any_point_of_a_save_loses_nothing_and_shows_nothing_half_saved(spark, tmp_path, engine):
    place = tmp_path / "catalog"
    landed, _, orphans = run_kills(CheckpointCatalog.create(spark, place), place, engine, [(one, 0) for one in POINTS])
    assert sum(landed.values()) == 3
    assert orphans == 1, "the artifacts of the save killed between its commits"


@pytest.mark.prove
@pytest.mark.parametrize(("engine", "chosen", "random_ones", "longest_s"), [("spark", 4, 15, 12), ("native", 4, 60, 1)])
def test_many_kills_at_random_and_chosen_points(spark, tmp_path, engine, chosen, random_ones, longest_s):
    dice = random.Random()
    kills = [(point, 0) for point in POINTS for _ in range(chosen)]
    kills += [("none", dice.uniform(longest_s / 60, longest_s)) for _ in range(random_ones)]
    place = tmp_path / "catalog"
    landed, acknowledged, orphans = run_kills(CheckpointCatalog.create(spark, place), place, engine, kills)
    told = f"{dict(landed)}; {acknowledged} acknowledged saves, {orphans} orphans cleaned"
    print(f"\n{len(kills)} kills of a {engine} writer landed: {told}")
    assert landed["between the commits"] >= 3
    assert landed["after the manifest"] >= 3
    assert landed["before artifacts"] + landed["during the artifacts"] >= 3


def open_for(reader, spark, place):
    if reader == "spark":
        return CheckpointCatalog.create(spark, place)
    return CheckpointCatalog.native(place, create=True, keep_versions=100_000)


def read_among_writers(catalog, place, engine, saves, reads):
    """Read the latest over and over while another process saves; it must be valid and never go back."""
    ids = list(range(1, saves + 1))
    seen, count, changes = 0, 0, 0
    store = catalog.store("read")
    with worker(engine, "write", place, "read", "writer", ",".join(map(str, ids))) as process:
        process.stdout.readline()
        process.stdin.write(b"go\n")
        process.stdin.flush()
        while process.poll() is None or count < reads:
            latest = store.load_latest()
            count += 1
            if latest is None:
                continue
            assert latest.checkpoint_id >= seen, "the latest went backwards"
            changes += latest.checkpoint_id > seen
            seen = latest.checkpoint_id
            result = store.validate_checkpoint(seen)
            assert result.issues == (), f"the latest is invalid: {result}"
        assert all(line["won"] for line in told(process))
    assert seen == saves
    return count, changes


@pytest.mark.prove
@pytest.mark.parametrize(("reader", "writer"), [("spark", "spark"), ("native", "spark"), ("native", "native")])
def test_a_reader_among_fifty_saves_never_sees_an_invalid_latest_or_an_older_one(spark, tmp_path, reader, writer):
    place = tmp_path / "catalog"
    count, changes = read_among_writers(open_for(reader, spark, place), place, writer, saves=50, reads=200)
    print(f"\n{count} reads by {reader}, the latest by {writer} changed {changes} times")
    assert count >= 200
    assert changes > 10, "the reader saw too little of the writer"


class Traveller:
    """Goes back while another process saves, prunes, purges and sweeps, and checks that all it sees fits together."""

    def __init__(self, catalog, folder):
        self.catalog = catalog
        self.store = catalog.store("busy")
        self.folder = folder
        self.recovered = 0
        self.moments = {}
        self.rescued = set()
        self.done = Counter()

    def look_back(self, **when):
        """Return the ids of a moment, each of which loads or is told as purged."""
        past = self.catalog.as_of(**when)
        store = past.store("busy")
        ids = store.list_ids()
        assert ids == store.list_ids(), "a moment changed while it was looked at"
        assert (latest := store.load_latest()) is None or latest.checkpoint_id == ids[-1]
        for one in random.sample(ids, min(len(ids), 4)):
            self.loads(store, one, PurgedError)
        self.done["moments"] += 1
        return ids

    def loads(self, store, one, error):
        """Load a state, which is whole, unless it is told by this error that it went."""
        try:
            assert store.load_state_data(one) == state_of(one, "writer")
        except error:
            self.done["told as gone"] += 1
        else:
            self.done["loaded"] += 1

    def purged(self):
        past = self.catalog.stream("busy").history(marks=True).values()
        return sum(one.status is Status.PURGED for one in past)

    def travel(self):
        versions = self.catalog.engine.versions()
        for when in ({"version": versions[-1].number}, {"timestamp": versions[-2].at}):
            ids = self.look_back(**when)
            self.moments[next(iter(when.values()))] = (when, ids)
            assert self.look_back(**when) == ids, "a moment is not the same twice"

    def recover(self):
        try:
            report = self.catalog.recover("busy")
        except ConflictError:  # a Spark reader may be slower than a native writer that keeps little
            self.done["recoveries to be tried again"] += 1
            return
        assert report.chosen_id is not None, report.explain()
        assert report.chosen_id >= self.recovered, "recovery went back behind an earlier answer"
        self.recovered = report.chosen_id
        self.loads(self.store, report.chosen_id, ClosedIdError)
        self.done["recoveries"] += 1

    def undo(self):
        """Take the newest out of the trash that is there, and hold it."""
        history = self.catalog.stream("busy").history()
        # A reader quicker than the writer would save every one, and leave nothing to purge.
        trashed = [one.id for one in history.values() if one.undo_until and one.id % 2]
        for one in reversed(trashed[-2:]):
            try:
                self.store.restore(one)
                self.store.pin(one, "rescued")
            except ClosedIdError:
                self.done["undone too late"] += 1
            else:
                self.rescued.add(one)

    def copy(self):
        past = self.catalog.as_of(version=self.catalog.engine.versions()[-1].number)
        copy = CheckpointCatalog.native(self.folder / str(uuid.uuid4()), create=True)
        try:
            past.copy_to(copy, ["busy"])
        except PurgedError:
            self.done["copies told as purged"] += 1
            assert copy.streams() == []
            return
        assert copy.store("busy").list_ids() == past.store("busy").list_ids()
        assert copy.validate(depth="hashes").results == ()
        self.done["copies"] += 1


def go_back_among_writers(catalog, place, engine, keep, rounds, folder):
    """Look at moments, recover, undo and copy, over and over, while another process lets go of what it saved."""
    traveller = Traveller(catalog, folder)
    with worker(engine, "churn", place, "busy", "writer", keep) as process:
        for _ in range(keep + 3):
            assert process.stdout.readline()
        already = traveller.purged()
        # A writer may be slow: it has to have purged something meanwhile.
        while rounds > 0 or traveller.purged() == already:
            rounds -= 1
            traveller.travel()
            traveller.recover()
            traveller.undo()
            traveller.copy()
            assert process.poll() is None, "the writer gave up: nothing was tried"
        process.stdin.close()
        lines = told(process)
    assert process.returncode == 0
    for when, ids in traveller.moments.values():
        assert traveller.look_back(**when) == ids, "a moment is not the same later on"
    for one in traveller.rescued:
        assert traveller.store.load_state_data(one) == state_of(one, "writer"), "what was undone and held is gone"
    assert catalog.validate(["busy"], depth="hashes").results == ()
    return traveller.done + Counter(saved=lines[-1]["saved"], purged=sum(line["purged"] for line in lines))


def test_what_is_seen_going_back_fits_together_while_another_process_saves_prunes_and_purges(tmp_path):
    place = tmp_path / "catalog"
    done = go_back_among_writers(open_for("native", None, place), place, "native", 3, 8, tmp_path)
    assert done["purged"], "nothing was purged meanwhile"
    assert done["told as gone"]
    assert done["loaded"]


@pytest.mark.prove
@pytest.mark.parametrize(
    ("reader", "writer", "keep", "rounds"),
    # A native writer that keeps little is done with a checkpoint before a Spark reader has found it.
    [("native", "native", 3, 30), ("spark", "spark", 3, 2), ("spark", "native", 200, 2), ("native", "spark", 3, 6)],
)
def test_going_back_over_and_over_among_writers_of_either_engine(spark, tmp_path, reader, writer, keep, rounds):
    place = tmp_path / "catalog"
    done = go_back_among_writers(open_for(reader, spark, place), place, writer, keep, rounds, tmp_path)
    print(f"\na {reader} reader beside a {writer} writer: {dict(done)}")
    assert done["purged"]
    assert done["loaded"]
