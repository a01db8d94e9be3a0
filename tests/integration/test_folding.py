"""Folding on real tables: the same state before and after, from one artifact, and old links that go by retention."""

import asyncio
import json
from datetime import timedelta

import pytest

from catalog import (
    AppendLog,
    CheckpointCatalog,
    CheckpointManifestV2,
    CheckpointNotFoundError,
    InvalidInputError,
    JsonMergePatch,
    Last,
    PurgedError,
    ReadOnlyError,
    Retention,
    artifact_path,
    new_uuid7,
)
from catalog.folders import READY
from catalog.manifest import folded_path
from catalog.tables.port import Equals, Table
from catalog.testing import FakeClock
from catalog.testing.native import NativeHarness

AT_ONCE = timedelta(0)
LOG = {"log": AppendLog()}


@pytest.fixture
def harness(tmp_path):
    return NativeHarness(tmp_path / "catalog", FakeClock(), durable=False)


def save(catalog, stream, parts, *, parent=None, formats=None):
    """Save and promote a checkpoint of {(operator, partition): bytes}, deltas if it has a parent."""
    checkpointer, id = catalog.checkpointer(stream), new_uuid7()

    async def run():
        operators = {}
        for (operator, partition), data in parts.items():
            write = checkpointer.save_delta if parent else checkpointer.save_snapshot
            sha256 = await write(id, operator, partition, data)
            path = artifact_path(id, operator, partition, delta=parent is not None)
            entry = {"partition_id": partition, "is_delta": parent is not None, "path": path}
            told = {"format": formats[operator]} if operator in (formats or {}) else {}
            operators.setdefault(operator, {"partitions": [], **told})["partitions"].append(
                {**entry, "size_bytes": len(data), "sha256": sha256}
            )
        await checkpointer.save_manifest(CheckpointManifestV2.new(id, 1, operators=operators, parent_id=parent))
        await checkpointer.update_latest(id)

    asyncio.run(run())
    return id


def save_chain(catalog, stream, links, operators=("log",), **more):
    """Save a snapshot and deltas on it, and return their ids, oldest first."""
    ids = [None]
    for number in range(links):
        parts = {(operator, 0): f"{operator} {number};".encode() for operator in operators}
        ids.append(save(catalog, stream, parts, parent=ids[-1], **more))
    return ids[1:]


def chain(catalog, stream, id, operator="log"):
    return asyncio.run(catalog.checkpointer(stream).load_chain(id, operator, 0))


def state(catalog, stream, id, operator="log"):
    """Return what applying the chain makes."""
    return b"".join(link.data for link in chain(catalog, stream, id, operator))


def log_of(links, operator="log"):
    return "".join(f"{operator} {number};" for number in range(links)).encode()


def artifact_keys(catalog, stream):
    rows = catalog.engine.scan(Table.ARTIFACTS, [Equals("stream", stream)], ["checkpoint_key"])
    return set(rows.column("checkpoint_key").to_pylist())


def events(catalog, stream):
    rows = catalog.engine.scan(Table.EVENTS, [Equals("stream", stream), Equals("event", "folded")], ["details"])
    return [json.loads(one) for one in rows.column("details").to_pylist()]


class Counting:
    """The real engine, counting which artifacts' bytes are read."""

    def __init__(self, engine):
        self._engine = engine
        self.paths = set()

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def scan(self, table, where, columns, **more):
        where = list(where)
        if table is Table.ARTIFACTS and "data" in columns:
            self.paths |= {one.value for one in where if isinstance(one, Equals) and one.column == "path"}
        return self._engine.scan(table, where, columns, **more)


def check_folding(catalog, clock, stream):
    """Fold a chain of twelve, let the old links go for good, and look at everything on the way."""
    ids = save_chain(catalog, stream, 12)
    tip, before = ids[-1], state(catalog, stream, ids[-1])
    assert before == log_of(12)
    moment = catalog.engine.versions()[-1].number

    told = catalog.fold_chains([stream], folders=LOG, dry_run=True)
    assert [(one.checkpoint_id, one.folded, one.links, one.format) for one in told.chains] == [
        (tip, True, 12, "append-log")
    ]
    assert len(chain(catalog, stream, tip)) == 12, "a dry run changes nothing"

    steps = []
    report = catalog.fold_chains([stream], folders=LOG, progress=steps.append)
    assert [one.reason for one in report.folded] == ["12 links became one snapshot"]
    assert report.folded[0].folded_bytes == len(before)
    assert (steps[-1].checkpoints, steps[-1].of_checkpoints) == (1, 1)
    (link,) = chain(catalog, stream, tip)
    assert (link.path, link.is_delta, link.data) == (folded_path(tip, "log", 0), False, before)
    assert events(catalog, stream) == [
        {
            "attempt": catalog.stream(stream).find(tip).folds[0].attempt, "chains": 1, "links": 12,
            "bytes": len(before), "folded_bytes": len(before), "formats": ["append-log"],
        }
    ]  # fmt: skip
    assert len(chain(catalog, stream, ids[-2])) == 11, "the links below are as they were"
    again = catalog.fold_chains([stream], folders=LOG)
    assert again.chains == (), "what is folded is not folded again, nor what is below it"

    counting = Counting(catalog.engine)
    reading = CheckpointCatalog(counting, clock=clock)
    assert reading.recover(stream).chosen_id == tip
    assert b"".join(b"".join(pieces) for _, pieces in reading.open_state(stream, tip)) == before
    assert counting.paths == {folded_path(tip, "log", 0)}, "recovery reads one artifact"

    following = save(catalog, stream, {("log", 0): b"more"}, parent=tip)
    assert len(chain(catalog, stream, following)) == 2
    removed = catalog.apply_retention([Retention((Last(1),), undo_for=AT_ONCE)], [stream]).removed
    assert [one.checkpoint_id for one in removed] == ids[:-1], "what stood on the old links has let go of them"
    clock.advance(timedelta(hours=1))
    catalog.clean_up([stream], grace=AT_ONCE)
    assert artifact_keys(catalog, stream) == {tip, following}
    assert state(catalog, stream, following) == before + b"more"
    assert state(catalog, stream, tip) == before
    assert catalog.validate([stream], depth="hashes").results == ()
    past = catalog.as_of(version=moment)
    assert state(past, stream, tip) == before, "a moment before the fold is read through what is there now"
    with pytest.raises(PurgedError):
        asyncio.run(past.checkpointer(stream).load_artifact(artifact_path(ids[0], "log", 0, delta=False)))
    return tip, following


def test_a_folded_chain_restores_the_same_from_one_artifact_and_its_old_links_go_by_retention(harness, tmp_path):
    tip, following = check_folding(harness.catalog, harness.clock, "s")
    target = harness.catalog.restore_into("s", following, tmp_path / "restored")
    listed = json.loads((target / "restore.json").read_text())["apply_in_this_order"]
    assert [one["path"] for one in listed] == [
        folded_path(tip, "log", 0),
        artifact_path(following, "log", 0, delta=True),
    ]
    copy = CheckpointCatalog.native(tmp_path / "copy", create=True)
    harness.catalog.copy_to(copy)
    assert state(copy, "s", following) == log_of(12) + b"more"
    assert copy.validate(depth="hashes").results == ()


def test_on_spark_the_executors_fold(spark, tmp_path):
    place, clock = tmp_path / "catalog", FakeClock()
    native = CheckpointCatalog.native(place, create=True, clock=clock)
    catalog = CheckpointCatalog.for_path(spark, place, clock=clock)
    ids = save_chain(native, "s", 12, ("log", "doc"))
    catalog.deploy_views("fold_")

    def shown(query):
        return [tuple(row) for row in spark.sql(query).collect()]

    report = catalog.fold_chains(folders=LOG)
    assert [(one.operator, one.folded) for one in report.chains] == [("doc", False), ("log", True)]
    assert state(catalog, "s", ids[-1]) == log_of(12)
    assert len(chain(native, "s", ids[-1])) == 1
    assert len(chain(native, "s", ids[-1], "doc")) == 12
    deepest = f"SELECT operator, max(depth) FROM fold_delta_chains WHERE checkpoint_key = '{ids[-1]}' GROUP BY 1"
    assert shown(deepest) == [("doc", 12)]
    assert shown("SELECT * FROM fold_validation_issues") == []
    assert shown("SELECT * FROM fold_orphan_artifacts") == []
    assert shown("SELECT count(*), max(operator) FROM fold_artifact_inventory WHERE folded") == [(1, "log")]
    assert shown(f"SELECT parent_key FROM fold_checkpoint_list WHERE checkpoint_key = '{ids[-1]}'") == [(ids[-2],)]
    following = save(native, "s", {("log", 0): b"more", ("doc", 0): b"more"}, parent=ids[-1])
    deepest = (
        f"SELECT operator, depth, whole, bytes_to_read FROM fold_delta_chains WHERE checkpoint_key = '{following}'"
    )
    assert sorted(shown(deepest)) == [
        ("doc", 13, True, len(log_of(12, "doc")) + 4),
        ("log", 2, True, len(log_of(12)) + 4),
    ]
    grown = shown("SELECT max(bytes) FROM fold_checkpoint_growth WHERE operator = 'log'")
    assert grown == [(7,)], "growth is about what producers write"


@pytest.mark.prove
def test_on_spark_everything_from_the_chain_to_the_purge(spark, tmp_path):
    clock = FakeClock()
    check_folding(CheckpointCatalog.create(spark, tmp_path / "catalog", clock=clock), clock, "s")


def test_an_unknown_format_is_left_alone_and_told_and_a_manifest_may_tell_it(harness):
    catalog = harness.catalog
    operators = ("log", "doc", "odd", "none")
    formats = {"log": "append-log", "doc": "json-merge-patch", "odd": "protobuf"}
    ids = save_chain(catalog, "s", 10, operators, formats=formats)
    report = catalog.fold_chains()
    told = {one.operator: (one.folded, one.reason) for one in report.chains}
    assert told["log"] == (True, "10 links became one snapshot")
    assert told["odd"] == (False, "10 links, but its format 'protobuf' is not known")
    assert told["none"][1].startswith("10 links, but its format is not known")
    assert told["doc"][1].startswith("10 links, but it could not be folded: it is not JSON")
    assert "leave s" in report.explain()
    assert "1 of 4 chains folded" in report.explain()
    assert len(chain(catalog, "s", ids[-1], "odd")) == 10
    tip = catalog.stream("s").find(ids[-1])
    assert tip.parent == ids[-2], "chains that are left still stand on the parent"
    removed = catalog.apply_retention([Retention((Last(1),))]).removed
    assert removed == ()
    assert catalog.validate(depth="hashes").results == ()
    later = catalog.fold_chains(folders={operator: AppendLog() for operator in ("none", "odd")})
    assert {one.operator: one.folded for one in later.chains} == {
        "log": False, "doc": False, "odd": False, "none": True,
    }  # fmt: skip
    assert len(catalog.stream("s").find(ids[-1]).folds) == 2
    assert [len(chain(catalog, "s", ids[-1], one)) for one in operators] == [1, 10, 10, 1]


def test_short_chains_and_those_below_the_newest_are_left(harness):
    catalog = harness.catalog
    ids = save_chain(catalog, "s", 9)
    report = catalog.fold_chains(folders=LOG)
    assert [(one.checkpoint_id, one.reason) for one in report.chains] == [(ids[-1], "9 links, fewer than 10")]
    branch = save(catalog, "s", {("log", 0): b"b"}, parent=ids[3])
    report = catalog.fold_chains(folders=LOG, min_links=5)
    assert {one.checkpoint_id: one.links for one in report.folded} == {ids[-1]: 9, branch: 5}


def test_a_wrong_fold_never_counts(harness):
    class Wrong(AppendLog):
        def fold(self, chain):
            return [b"wrong", *super().fold(chain)]

    ids = save_chain(harness.catalog, "s", 10)
    report = harness.catalog.fold_chains(folders={"log": Wrong()})
    assert report.folded == ()
    assert "the folded snapshot is wrong: it has" in report.chains[0].reason
    assert len(chain(harness.catalog, "s", ids[-1])) == 10
    assert harness.catalog.clean_up(grace=AT_ONCE)[0].swept.orphans == 1


def test_a_broken_chain_is_left_and_told(harness):
    ids = save_chain(harness.catalog, "s", 10)
    harness.lose_state("s", ids[4])
    report = harness.catalog.fold_chains(folders=LOG)
    assert "it could not be folded" in report.left[0].reason
    assert ids[4] in report.left[0].reason


def test_lost_and_damaged_folds_are_found(harness):
    ids = save_chain(harness.catalog, "s", 10)
    harness.catalog.fold_chains(folders=LOG)
    attempt = harness.catalog.stream("s").find(ids[-1]).folds[0].attempt
    harness.catalog.engine.delete(Table.ARTIFACTS, [Equals("stream", "s"), Equals("attempt", attempt)])
    (found,) = harness.catalog.validate().results
    assert {issue.rule for issue in found[1].issues} == {"state_missing"}
    assert harness.catalog.recover("s").chosen_id == ids[-2]


def test_large_artifacts_of_several_chunks_are_folded(harness, monkeypatch):
    monkeypatch.setattr("catalog.folding.BYTES_PER_TASK", 1000)
    catalog, big = harness.catalog, bytes(range(256)) * (9 << 12)
    first = save(catalog, "s", {("log", 0): big, ("log", 1): b"small"})
    second = save(catalog, "s", {("log", 0): big[:100], ("log", 1): b"!"}, parent=first)
    report = catalog.fold_chains(folders=LOG, min_links=2)
    assert len(report.folded) == 2
    assert state(catalog, "s", second) == big + big[:100]


def test_bad_input_is_refused_and_nothing_is_written(harness):
    catalog = harness.catalog
    save_chain(catalog, "s", 2)
    before = harness.checkpoint_rows("s")
    for bad in ({"min_links": 1}, {"min_links": "2"}, {"folders": ["log"]}, {"folders": {"log": JsonMergePatch}}):
        with pytest.raises(InvalidInputError):
            catalog.fold_chains(**bad)
    with pytest.raises(InvalidInputError, match="list of names"):
        catalog.fold_chains("s")
    with pytest.raises(CheckpointNotFoundError, match="'t'"):
        catalog.fold_chains(["s", "t"])
    past = catalog.as_of(version=catalog.engine.versions()[-1].number)
    assert past.fold_chains(folders=LOG, min_links=2, dry_run=True).folded
    with pytest.raises(ReadOnlyError):
        past.fold_chains(folders=LOG, min_links=2)
    assert harness.checkpoint_rows("s") == before


def test_every_ready_format_has_a_name_of_its_own():
    assert sorted(READY) == ["append-log", "json-merge-patch", "keyed-arrow"]
