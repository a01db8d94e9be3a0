"""The SQL views: what is there, what is wrong, what would be recovered; on one catalog with every fault planted."""

import copy
import json
import re
from datetime import UTC, datetime, timedelta

import pytest

from catalog import (
    CheckpointCatalog,
    InvalidInputError,
    OperatorCheckpoint,
    OutOfReachError,
    ReadOnlyError,
    SessionError,
    keys,
    recovery,
    retention,
    views,
)
from catalog.folders import READY
from catalog.moment import Moment, MomentEngine
from catalog.sweep import SweepReport, sweep
from catalog.tables.port import Table
from catalog.testing.harness import FakeClock
from catalog.validation import INTEGRITY, RULES
from catalog.verify import Depth
from tests.planted import Planted, World, v1

BY_API_ONLY = {"manifest_missing", "state_unreadable"}


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    world = Planted(tmp_path_factory.mktemp("views") / "catalog")
    store = world.save("life", 1, 2, 3, 4, source_offsets={"kafka": {"offsets": {"p-0": "41"}, "epoch": 1}})
    store.save(v1(5, sink_commit_statuses={"a": "Pending", "b": "Pending", "c": "Committed"}))
    store.update_manifest(store.load_by_id(5).with_sink_status("a", "Failed", error="no disk"))
    store.pin(2, "audit")
    store.prune(3)
    store.save_state_data(9, b"never saved")
    world.catalog.store("").save(v1(1))
    world.catalog.store("it's `a` %/{x} 🚀").save(v1(1))
    world.catalog.store("only staged").save_state_data(1, b"bytes")
    purge_under_a_child(world, "purged parent")
    return world


def purge_under_a_child(world, stream):
    """Purge a checkpoint just when another comes to stand on it: the purge has read before, and commits after."""
    clock = FakeClock(datetime.now(UTC) - timedelta(minutes=30))
    beside = copy.copy(world)
    beside.catalog = CheckpointCatalog.native(world.place, clock=clock)
    parent, rows = beside.snapshot(stream), beside.catalog.stream(stream)
    engine, marks = rows.engine, []
    real = engine.insert_unless

    def insert_unless(draft, unless=()):
        engine.insert_unless = real
        rows.trash(lambda history, now: retention.drop(history, [parent], "test", now), timedelta(0))
        clock.advance(timedelta(minutes=6))
        marks.extend(rows._purge_rows(rows.history(), clock()))
        return real(draft, unless)

    engine.insert_unless = insert_unless
    child = beside.snapshot(stream, b"more", parent=parent)
    rows.insert(marks)
    assert [one.status for one in rows.history().values()] == ["purged", "committed"]
    assert sweep(rows, timedelta(0)) == SweepReport(0, 0, 0)
    assert world.catalog.recover(stream).chosen_id == child


@pytest.fixture(scope="module")
def catalog(spark, planted):
    catalog = CheckpointCatalog.for_path(spark, planted.place)
    catalog.deploy_views()
    return catalog


@pytest.fixture(scope="module")
def sql(spark, catalog):
    """Runs a query on the views of the planted catalog."""
    assert catalog.moment is None
    return lambda query: [tuple(row) for row in spark.sql(query).collect()]


@pytest.mark.parametrize("name", views.VIEWS)
def test_every_view_has_the_columns_that_its_header_says_with_their_comments(spark, catalog, name):
    assert catalog.moment is None
    described = spark.table(name).schema
    assert described.names == [column for column, _ in views.view(name).columns]
    assert [field.metadata.get("comment") for field in described] == [
        comment for _, comment in views.view(name).columns
    ]
    assert described.names[:3] == ["stream", "checkpoint_id", "checkpoint_key"]
    assert views.view(name).grain.endswith(".")


def test_the_view_and_validation_find_every_planted_fault_and_nothing_else(sql, planted):
    shown, judged = {}, {}
    for stream, id, rule, severity in sql("SELECT stream, checkpoint_id, rule, severity FROM validation_issues"):
        assert severity == ("integrity" if rule in INTEGRITY else "warning")
        shown.setdefault((stream, id), set()).add(rule)
    for stream, result in planted.catalog.validate(depth=Depth.METADATA).results:
        judged[stream, str(result.checkpoint_id)] = {issue.rule for issue in result.issues}
    assert shown == planted.expected
    assert judged == planted.expected
    assert set().union(*planted.expected.values()) == set(RULES) - BY_API_ONLY, "a rule without a planted fault"


def test_checkpoint_list_shows_live_ones_with_their_numbers(sql):
    found = sql(
        """SELECT checkpoint_id, status, is_latest, epoch, sinks_committed, sinks_pending, sinks_failed, artifact_count,
        bytes, new_bytes, shared_bytes, pinned, pin_reason FROM checkpoint_list WHERE stream = 'life' ORDER BY 1""",
    )
    assert found == [
        ("2", "committed", False, 2, 0, 0, 0, 1, 5, 5, 0, True, "audit"),
        ("3", "committed", False, 3, 0, 0, 0, 1, 5, 5, 0, False, None),
        ("4", "committed", False, 4, 0, 0, 0, 1, 5, 5, 0, False, None),
        ("5", "committed", True, 5, 1, 1, 1, 0, 0, 0, 0, False, None),
    ]
    assert sql("SELECT count(*) FROM checkpoint_list WHERE age_seconds NOT BETWEEN 0 AND 3600") == [(0,)]


def test_the_latest_of_every_stream_is_the_highest_committed_one(sql, planted):
    found = dict(sql("SELECT stream, checkpoint_key FROM latest_checkpoints"))
    expected = {}
    for name in planted.catalog.streams():
        latest = planted.catalog.stream(name).latest()
        if latest:
            expected[keys.stream_key(name)] = latest.key
    assert found == expected


def test_health_knows_every_stream_also_one_that_never_committed(sql, planted):
    columns = (
        "stream, checkpoint_id, sinks_pending, sinks_failed, committed, prepared, trashed, faults, warnings, bytes"
    )
    found = {row[0]: row[1:] for row in sql(f"SELECT {columns} FROM stream_health")}
    assert found["life"] == ("5", 1, 1, 4, 0, 1, 0, 0, 15)
    assert found["only staged"] == (None, None, None, 0, 0, 0, 0, 0, 0)
    assert found["never_written"][3:5] == (0, 1)
    assert found["chain_broken"][6] == 2
    assert set(found) == {keys.stream_key(name) for name in [*planted.catalog.streams(), "only staged"]}


def test_recovery_candidates_agree_with_recovery(sql, planted):
    told = sql("SELECT stream, checkpoint_id, recovery_rank, reason FROM recovery_candidates")
    first = {stream: id for stream, id, rank, _ in told if rank == 1}
    for name in planted.catalog.streams():
        chosen = planted.catalog.recover(name).chosen_id
        assert first.get(keys.stream_key(name)) == (None if chosen is None else str(chosen)), name
    reasons = {id: reason for stream, id, _, reason in told if stream == "life"}
    assert reasons["5"] == "a sink failed"
    assert reasons["4"] == "recovery would choose it"
    assert reasons["2"] == "recovery would choose it if 2 newer were bad"


def test_positions_are_text_and_numbers_for_every_format(sql):
    columns = "checkpoint_id, kind, source, position, offset_text, offset_number"
    found = f"SELECT {columns} FROM source_positions WHERE stream = "
    assert sql(found + "'good state'") == [("0", "source", "mqtt", None, str(2**64 - 1), 2**64 - 1)]
    assert sql(found + "'good v2' LIMIT 1")[0][1:] == ("source", "kafka", "p-0", "7", 7)
    assert ("4", "source", "kafka", "p-0", "41", 41) in sql(found + "'life'")


@pytest.mark.parametrize("text", ["12_345", "1e3", "1.5", " 7", "", "٣", "9" * 39])
def test_an_offset_that_is_no_whole_number_is_none_to_the_view_and_to_recovery(spark, text):
    manifest = json.dumps({"source_offsets": {"log": {"offsets": {"p": text}}}}, ensure_ascii=False)
    one = "SELECT 's' AS stream, '1' AS checkpoint_id, '1' AS checkpoint_key, 'manifest-v1' AS format"
    manifests = f"({one}, parse_json('{manifest}') AS manifest)"
    found = spark.sql(views.view("source_positions").render(lambda _: manifests)).collect()
    assert [(row.offset_text, row.offset_number) for row in found] == [(text, None)]
    wanted = recovery.at_or_before_offset("log", 10**40, None, lambda _: {("log", "p"): text})
    assert wanted.objection(None) == "it has no offset of log to compare"


def test_sinks_tell_their_status_since_when_and_why(sql):
    found = sql("SELECT sink, status, error, since > '2020-01-01' FROM sink_statuses WHERE stream = 'life' ORDER BY 1")
    assert found == [("a", "Failed", "no disk", True), ("b", "Pending", None, True), ("c", "Committed", None, True)]


def test_chains_and_growth_and_the_inventory(sql):
    assert sql("SELECT depth, whole, bytes_to_read FROM delta_chains WHERE stream = 'good v2'") == [(2, True, 14)]
    assert sql("SELECT depth, whole FROM delta_chains WHERE stream = 'chain_broken'") == [(None, False)]
    grown = sql(
        "SELECT checkpoint_id, previous_id, growth_bytes FROM checkpoint_growth WHERE stream = 'good' ORDER BY 1"
    )
    assert grown == [("1", None, None), ("2", "1", 0)]
    kept = sql("SELECT path, kind, bytes, chunks, complete FROM artifact_inventory WHERE stream = 'life' LIMIT 1")
    assert kept == [("state.bin", "state", 5, 1, True)]


def test_a_parent_that_was_purged_under_its_child_is_whole_and_no_garbage(sql):
    of_stream = "WHERE stream = 'purged parent'"
    assert sql(f"SELECT depth, whole, bytes_to_read FROM delta_chains {of_stream}") == [(2, True, 14)]
    assert sql(f"SELECT status FROM artifact_inventory {of_stream} ORDER BY 1") == [("committed",), ("purged",)]
    assert sql(f"SELECT rule FROM validation_issues {of_stream}") == []
    assert sql(f"SELECT eligible FROM recovery_candidates {of_stream}") == [(True,)]
    assert sql(f"SELECT * FROM orphan_artifacts {of_stream}") == []


def test_the_trash_and_the_orphans_and_the_history(sql):
    trashed = sql("SELECT checkpoint_id, reason, undoable FROM trashed_checkpoints WHERE stream = 'life'")
    assert trashed == [("1", "not one of the newest 3", True)]
    orphans = sql("SELECT checkpoint_id, state, artifact_count, bytes FROM orphan_artifacts WHERE stream = 'life'")
    assert orphans == [("9", "orphan", 1, 11)]
    events = sql(
        "SELECT event FROM checkpoint_events WHERE stream = 'life' AND checkpoint_id = '2' ORDER BY revision NULLS LAST"
    )
    assert [event for (event,) in events][:2] == ["saved", "pinned"]


def test_manifest_content_is_reachable_as_variant(sql):
    query = """SELECT manifest:source_offsets.kafka.offsets['p-0']::string FROM checkpoint_manifests
    WHERE stream = 'life' AND checkpoint_id = '4'"""
    assert sql(query) == [("41",)]


def findings(report):
    return {(stream, str(one.checkpoint_id), issue.rule) for stream, one in report.results for issue in one.issues}


def test_the_executors_find_what_the_native_engine_finds(catalog, planted):
    shown = {(stream, id, rule) for (stream, id), rules in planted.expected.items() for rule in rules}
    found = findings(catalog.validate(depth="hashes"))
    assert found == findings(planted.catalog.validate(depth="hashes"))
    assert shown <= found
    deeper = {
        ("content_mismatch", "checksum_mismatch"),
        ("holder_missing", "state_missing"),
        ("handles", "state_missing"),
    }
    assert {(stream, rule) for stream, _, rule in found - shown} == deeper


def test_a_moment_has_its_own_stores_and_views(spark, tmp_path):
    catalog = CheckpointCatalog.create(spark, tmp_path / "moments")
    store = catalog.store("s")
    store.save_with_state(v1(1), b"bytes")
    version = catalog.engine.versions()[-1].number
    store.save(v1(2))
    store.prune(1, allow_empty=True)
    past = catalog.as_of(version=version)
    assert past.store("s").list_ids() == [1]
    assert past.store("s").load_state_data(1) == b"bytes"
    assert [row["checkpoint_id"] for row in past.view("latest_checkpoints").collect()] == ["1"]
    assert past.deploy_views(prefix="past_")[2] == "`past_latest_checkpoints`"
    assert [row["checkpoint_id"] for row in spark.table("past_checkpoint_list").collect()] == ["1"]
    assert catalog.as_of(timestamp=catalog.engine.versions()[-1].at).store("s").list_ids() == [2]
    with pytest.raises(OutOfReachError, match="reachable are versions 0 "):
        catalog.as_of(version=99)
    with pytest.raises(ReadOnlyError):
        past.store("s").save(v1(3))


@pytest.mark.prove
def test_the_views_of_a_moment_show_that_moment_whatever_was_done_since(spark, tmp_path):
    world = World(tmp_path / "catalog")
    harness, beside = world.harness, world.catalog
    store = world.save("s", 1, 2, 3)
    first = world.snapshot("v2")
    second = world.snapshot("v2", b"more", parent=first)
    beside.validate(["s"])
    verified = harness.clock()
    harness.clock.advance(timedelta(minutes=1))  # ahead of the clock of the commit: what counts is who names it
    world.save("s", 4)
    version = beside.engine.versions()[-1].number
    harness.clock.advance(timedelta(minutes=1))
    world.save("s", 5)
    world.save("later", 1)
    beside.store("staged").save_state_data(1, b"bytes")
    beside.validate()
    assert len(beside.fold_chains(["v2"], folders={"count": READY["append-log"]}, min_links=2).folded) == 1
    for stream, key in (("s", keys.integer_key(1)), ("v2", first)):
        rows = beside.stream(stream)
        rows.trash(lambda history, now, key=key: retention.drop(history, [key], "test", now), timedelta(0))
    harness.clock.advance(timedelta(minutes=6))
    assert [one.swept.purged for one in beside.clean_up(["s", "v2"])] == [1, 1]
    assert store.list_ids() == [2, 3, 4, 5]

    past = CheckpointCatalog.for_path(spark, tmp_path / "catalog").as_of(version=version)

    def shown(name, *columns):
        return sorted((tuple(row) for row in past.view(name).select(*columns).collect()), key=str)

    assert shown("validation_issues", "stream", "rule") == []
    assert shown("recovery_candidates", "checkpoint_id", "eligible", "reason", "recovery_rank") == sorted(
        [
            ("1", False, "it was purged since", None),
            *((str(one), True, recovery_reason(rank), rank + 1) for rank, one in enumerate((4, 3, 2))),
            (first, False, "it was purged since", None),
            (second, True, recovery_reason(0), 1),
        ],
        key=str,
    )
    assert (past.recover("s").chosen_id, past.recover("v2").chosen_id) == (4, second)
    assert shown("stream_health", "stream", "committed", "faults") == [("s", 4, 0), ("v2", 2, 0)]
    assert {at and at.astimezone(UTC) for (at,) in shown("checkpoint_list", "last_verified_at")} == {None, verified}
    kept = shown("artifact_inventory", "stream", "checkpoint_id", "folded")
    assert kept == [("s", one, False) for one in "234"] + [("v2", second, False), ("v2", second, True)]
    assert {stream for (stream,) in shown("checkpoint_events", "stream")} == {"s", "v2"}
    with pytest.raises(InvalidInputError, match="orphan_artifacts tells what is now, not what was at version"):
        past.view("orphan_artifacts")
    names = past.deploy_views(prefix="then_")
    told_by_rows = MomentEngine(past.engine.current, Moment(verified, None))
    assert CheckpointCatalog(told_by_rows).store("s").list_ids() == [1, 2, 3]
    assert set(views.VIEWS) - {name.strip("`").removeprefix("then_") for name in names} == {"orphan_artifacts"}


def recovery_reason(newer):
    return f"recovery would choose it if {newer} newer were bad" if newer else "recovery would choose it"


@pytest.mark.parametrize("name", views.VIEWS)
def test_no_view_breaks_on_what_is_broken(sql, planted, name):
    """All of it is read, whatever is wrong in some stream; a manifest that is no JSON among it."""
    assert planted.expected["manifest_unreadable", "1"] == {"manifest_unreadable"}
    assert len(sql(f"SELECT * FROM {name}")) > 0


@pytest.mark.prove
def test_inline_state_may_be_longer_than_sparks_json_takes_by_itself(spark, tmp_path):
    world = World(tmp_path / "catalog")
    state = OperatorCheckpoint.from_bytes(b"x" * 15_100_000, threshold=16 << 20)
    assert len(state.state_b64) > 20_000_000
    world.catalog.store("s").save(v1(1, operator_states={"op": state}))
    catalog = CheckpointCatalog.for_path(spark, tmp_path / "catalog")
    assert catalog.view("validation_issues").collect() == []
    assert [row["eligible"] for row in catalog.view("recovery_candidates").collect()] == [True]
    (told,) = catalog.view("checkpoint_manifests").select("readable", "manifest").collect()
    assert tuple(told) == (False, None)


def test_a_verified_checkpoint_says_when_and_how(sql, planted):
    planted.catalog.validate(["good"], depth="hashes")
    found = sql("SELECT last_verified_at IS NOT NULL, last_verified_depth FROM checkpoint_list WHERE stream = 'good'")
    assert found == [(True, "hashes")] * 2


@pytest.mark.parametrize("name", [name for name in views.VIEWS if name not in ("checkpoint_manifests",)])
def test_no_view_reads_bytes_and_listing_reads_no_manifest(catalog, name):
    plan = catalog.view(name)._jdf.queryExecution().executedPlan().toString()
    read = re.findall(r"FileScan parquet (?:delta\.)?\S*\[([^\]]*)\]", plan)
    assert read, plan
    columns = {column.split("#")[0].strip() for one in read for column in one.split(",")}
    assert "data" not in columns
    if name in (
        "checkpoint_list",
        "latest_checkpoints",
        "trashed_checkpoints",
        "artifact_inventory",
        "checkpoint_growth",
    ):
        assert "manifest" not in columns


def test_a_named_catalog_gets_persistent_views_and_deploying_again_changes_nothing(spark, sql):
    catalog = CheckpointCatalog.create(spark, "views_by_name")
    catalog.store("s").save(v1(1))
    names = catalog.deploy_views()
    assert catalog.deploy_views() == names
    assert "`views_by_name`.`checkpoint_list`" in names
    assert sql("SELECT stream, checkpoint_id FROM views_by_name.checkpoint_list") == [("s", "1")]
    made = {row["viewName"] for row in spark.sql("SHOW VIEWS IN views_by_name").collect() if not row["isTemporary"]}
    assert made == set(views.VIEWS)
    comment = {row["col_name"]: row["comment"] for row in spark.sql("DESCRIBE views_by_name.checkpoint_list").collect()}
    assert comment["epoch"] == "exactly-once epoch"


def test_views_need_spark_and_a_name_that_exists(planted, catalog):
    with pytest.raises(SessionError, match="views need Spark"):
        planted.catalog.view("checkpoint_list")
    with pytest.raises(InvalidInputError, match="choose one of all_checkpoints"):
        catalog.view("no_such_view")


def test_the_order_of_the_views_is_one_in_which_they_can_be_made():
    seen = set(Table)
    for name in views.VIEWS:
        wanted = set(re.findall(r"\{(?:\w+\.)?(\w+)\}", views.view(name).select)) - {"checkpoint_id"}
        assert wanted <= seen, name
        seen.add(name)
