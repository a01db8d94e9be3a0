"""Great Expectations over a catalog: one that is sound, and then the same one with faults planted."""

import asyncio
import contextlib
import io
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from catalog import (
    CheckpointCatalog,
    CheckpointManifest,
    CheckpointManifestV2,
    SessionError,
    artifact_path,
    keys,
    new_uuid7,
    quality,
)
from catalog.artifacts import facts
from catalog.cutting import CHUNK_BYTES
from catalog.lifecycle import Change
from catalog.quality import Finding, QualityReport, check_quality
from catalog.tables.port import Table
from catalog.tables.schema import CHECKPOINT_FACTS, arrow, definition
from catalog.testing.native import NativeHarness
from catalog.validation import INTEGRITY, WARNINGS

EXPECTED = [
    one for table in Table for one in quality._of_rows(lambda *_, **arguments: {"column": "", **arguments}, table)
]
"""The arguments of all expectations of rows."""


@dataclass
class Checked:
    """The reports of the sound and of the damaged catalog, and what was seen beside."""

    sound: QualityReport
    damaged: QualityReport
    issues: list[Any]
    """What the view shows of the damaged one."""
    frames: list[Any]
    """All that Great Expectations was given."""
    read_meanwhile: list[Any]
    """All rows of checkpoints, read by others after a save in the middle of a check."""
    printed: str
    surroundings: tuple[Any, Any]
    """Settings, environment and cache, before and after a check."""

    def broken(self, suite, table, *columns):
        """Return how many rows break an expectation, and examples; None if it is met."""
        about = suite, table, ", ".join(columns) or None
        found = [one for one in self.damaged.failed if (one.suite, one.table, one.column) == about]
        assert len(found) < 2
        return (found[0].unexpected, *found[0].examples) if found else None


async def save_chain(catalog):
    """Save a snapshot whose bytes another writer staged, so that they are borrowed, and a delta on it."""
    first, second = new_uuid7(), new_uuid7()
    for id, parent in (first, None), (second, first):
        writer, saver = catalog.checkpointer("clicks"), catalog.checkpointer("clicks")
        write = writer.save_delta if parent else writer.save_snapshot
        sha256 = await write(id, "count", 0, b"bytes")
        path = artifact_path(id, "count", 0, delta=bool(parent))
        entry = {"partition_id": 0, "is_delta": bool(parent), "path": path, "size_bytes": 5, "sha256": sha256}
        operators = {"count": {"partitions": [entry]}}
        await saver.save_manifest(CheckpointManifestV2.new(id, epoch=1, operators=operators, parent_id=parent))
        await saver.update_latest(id)


def make_sound(place):
    """Make a catalog in which nothing is wrong and one checkpoint is odd."""
    harness = NativeHarness(place)
    store = harness.catalog.store("orders")
    for number in (1, 2, 3, 4):
        store.save_with_state(CheckpointManifest.new(number, epoch=1), b"state")
    store.pin(1, "audit")
    odd = CheckpointManifest.new(1, epoch=1, timestamp_ms=0)
    harness.catalog.store("").save_with_state(odd, b"x" * (CHUNK_BYTES + 1))
    asyncio.run(save_chain(harness.catalog))
    harness.catalog.validate(["orders"])
    assert [row for row in facts(harness.catalog.engine, "clicks", []) if row["held_key"]]
    return harness


def damage(spark, place, harness):
    """Plant faults past the code under test."""
    harness.corrupt_manifest("orders", keys.integer_key(2))
    harness.lose_state("orders", keys.integer_key(3))
    harness.corrupt_state("orders", keys.integer_key(4))
    row = harness.checkpoint_rows("orders")[0]

    def made(**columns):
        return {**row, "stream": "odd", "insert_id": new_uuid7(), **columns}

    rows = [
        made(checkpoint_key=keys.integer_key(1), insert_id=row["insert_id"]),
        made(checkpoint_key=keys.integer_key(1)),
        made(checkpoint_key="17"),
        made(checkpoint_key=keys.integer_key(2), change="exploded"),
        made(checkpoint_key=keys.integer_key(5), attempt="mine"),
        made(checkpoint_key=keys.integer_key(6), revision=-1),
        made(checkpoint_key=keys.integer_key(8), parent=keys.integer_key(99)),
        made(checkpoint_key=keys.integer_key(9), parent=keys.integer_key(98)),
        made(checkpoint_key=keys.integer_key(9), parent=None, revision=1, change="purged"),
    ]
    harness.catalog.engine.append(Table.CHECKPOINTS, [arrow(Table.CHECKPOINTS, rows)])
    chunk = facts(harness.catalog.engine, "orders", [])[0]
    chunks = [
        {**chunk, "stream": "odd", **columns}
        for columns in (
            {"chunk_no": 1},
            {"chunk_size": CHUNK_BYTES + 1},
            {"chunk_sha256": "short"},
            {"kind": "picture"},
            {"held_attempt": new_uuid7()},
        )
    ]
    harness.catalog.engine.append(Table.ARTIFACTS, [arrow(Table.ARTIFACTS, chunks)])
    spark.sql(f"ALTER TABLE delta.`{place}/artifacts` ADD COLUMN colour INT")
    spark.sql(f"ALTER TABLE delta.`{place}/events` ALTER COLUMN event DROP NOT NULL")
    spark.sql(f"INSERT INTO delta.`{place}/events` (stream, at) VALUES ('odd', current_timestamp())")


def surroundings(spark):
    cached = not spark._jsparkSession.sharedState().cacheManager().isEmpty()
    return dict(spark.conf.getAll), dict(os.environ), cached


@pytest.fixture(scope="module")
def checked(spark, tmp_path_factory):
    place = tmp_path_factory.mktemp("quality")
    harness = make_sound(place / "catalog")
    catalog = CheckpointCatalog.for_path(spark, place / "catalog")
    (place / "docs").mkdir()
    (place / "docs" / "notes.txt").write_text("not ours")
    frames, read_meanwhile, printed, before = [], [], io.StringIO(), surroundings(spark)
    run = quality._Checks.run

    def spy(self, table, part, rows, expectations):
        frames.append(rows)
        run(self, table, part, rows, expectations)
        if (table, part) == ("checkpoints", "rows") and not read_meanwhile:
            harness.catalog.store("late").save(CheckpointManifest.new(1, epoch=1))
            read_meanwhile.extend(catalog.engine.scan(Table.CHECKPOINTS, [], CHECKPOINT_FACTS).to_pylist())

    silent = contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed)
    with pytest.MonkeyPatch.context() as patch, silent[0], silent[1]:
        patch.setattr(quality._Checks, "run", spy)
        sound = check_quality(catalog, data_docs=place / "docs")
        after = surroundings(spark)
        damage(spark, place / "catalog", harness)
        damaged = check_quality(catalog)
    return Checked(
        sound,
        damaged,
        catalog.view("validation_issues").collect(),
        frames,
        read_meanwhile,
        printed.getvalue(),
        (before, after),
    )


def test_a_sound_catalog_meets_every_expectation_and_warnings_do_not_fail_it(checked):
    assert checked.sound.success, checked.sound.explain()
    assert (checked.sound.failed, checked.sound.rules) == ((), ())
    assert checked.sound.warnings == (Finding("timestamp_zero", "", 1),)
    assert checked.sound.expectations > 100
    told = checked.sound.explain().splitlines()
    assert told[0] == f"warning: timestamp_zero, 1 checkpoint: {WARNINGS['timestamp_zero']}"
    assert told[1].startswith(f"{checked.sound.expectations} of {checked.sound.expectations} met in ")


def test_the_rules_reported_are_exactly_those_that_the_view_shows(checked):
    for severity, found in ("integrity", checked.damaged.rules), ("warning", checked.damaged.warnings):
        shown = {(one.rule, one.stream, one.checkpoint_id) for one in checked.issues if one.severity == severity}
        assert shown
        assert {(one.rule, keys.stream_key(one.stream), str(one.checkpoint_id)) for one in found} == shown
        assert len(set(found)) == len(found)
    expected = {Finding("manifest_unreadable", "orders", 2), Finding("state_missing", "orders", 3)}
    assert expected <= set(checked.damaged.rules)


def test_every_rule_that_is_broken_fails_one_expectation_with_its_meaning(checked):
    broken = Counter(one.rule for one in checked.issues if one.severity == "integrity")
    failed = [one for one in checked.damaged.failed if one.suite == "rules"]
    expected = {f"no checkpoint may break {rule} ({INTEGRITY[rule]})": count for rule, count in broken.items()}
    assert {one.message.split(": ")[1]: one.unexpected for one in failed} == expected
    assert {one.table for one in failed} == {"validation_issues"}


def test_a_report_of_a_damaged_catalog_fails_and_says_what_where_and_how_often(checked):
    assert not checked.damaged.success
    told = checked.damaged.explain().splitlines()
    assert (
        "failed: checkpoints: checkpoint_key must be 20 digits or a UUIDv7: not so in 1 row, "
        "such as stream odd, checkpoint_key 17"
    ) in told
    met = checked.damaged.expectations - len(checked.damaged.failed)
    assert told[-1].startswith(f"{met} of {checked.sound.expectations} met in ")


def test_columns_that_the_definition_does_not_have_are_found(checked):
    (failed,) = [one for one in checked.damaged.failed if one.column is None]
    assert failed.suite == "schema"
    assert failed.message == "artifacts: the columns must be those of sql/tables: found {'unexpected': ['colour']}"


def test_a_required_column_that_may_be_null_and_is_one_is_found(checked):
    assert checked.broken("schema", "events", "event") == (1, "stream odd, checkpoint_key None, event None")


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("checkpoints", "change", "exploded"),
        ("checkpoints", "attempt", "mine"),
        ("artifacts", "chunk_sha256", "short"),
        ("artifacts", "kind", "picture"),
    ],
)
def test_names_ids_and_hashes_have_their_form(checked, table, column, value):
    count, example = checked.broken("keys", table, column)
    assert (count, example.rpartition(", ")[2]) == (1, f"{column} {value}")


def test_keys_are_20_digits_or_a_uuid7(checked):
    assert checked.broken("keys", "checkpoints", "checkpoint_key") == (1, "stream odd, checkpoint_key 17")


def test_a_revision_is_there_once_and_so_is_an_insert_id(checked):
    example = f"stream odd, checkpoint_key {keys.integer_key(1)}, revision 0"
    assert checked.broken("keys", "checkpoints", "stream", "checkpoint_key", "revision") == (2, example)
    count, *examples = checked.broken("keys", "checkpoints", "insert_id")
    assert (count, len(examples)) == (2, 2)


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("checkpoints", "revision", -1),
        ("artifacts", "chunk_size", CHUNK_BYTES + 1),
    ],
)
def test_numbers_are_within_their_bounds(checked, table, column, value):
    count, example = checked.broken("ranges", table, column)
    assert (count, example.rpartition(", ")[2]) == (1, f"{column} {value}")


def test_a_chunk_number_is_below_the_number_of_chunks(checked):
    count, example = checked.broken("ranges", "artifacts", "chunk_count", "chunk_no")
    assert (count, example.endswith("chunk_count 1, chunk_no 1")) == (1, True)


def test_a_parent_has_a_row_unless_its_child_is_purged(checked):
    example = f"stream odd, checkpoint_key {keys.integer_key(8)}, missing_parent {keys.integer_key(99)}"
    assert checked.broken("references", "checkpoints", "missing_parent") == (1, example)


def test_a_borrowed_chunk_names_its_holder(checked):
    count, example = checked.broken("references", "artifacts", "held_key")
    assert (count, example.endswith("held_key None")) == (1, True)


@pytest.mark.parametrize(
    ("column", "sound", "odd"),
    [
        ("checkpoint_key", "0" * 19 + "7", "7"),
        ("parent", "0198c2a5-3b5e-7cc1-8d6f-0123456789ab", "0198c2a5-3b5e-4cc1-8d6f-0123456789ab"),
        ("held_key", "0" * 20, "0" * 21),
        ("attempt", "0198c2a5-3b5e-7cc1-8d6f-0123456789ab", "0198C2A5-3B5E-7CC1-8D6F-0123456789AB"),
        ("chunk_sha256", "af" * 32, "AF" * 32),
        ("artifact_sha256", "0" * 64, "0" * 63),
        ("manifest_sha256", "0" * 64, "g" * 64),
        ("content_sha256", "0" * 64, "0" * 65),
    ],
)
def test_every_form_takes_what_it_should_and_nothing_else(column, sound, odd):
    (regex,) = {kind["regex"] for kind in EXPECTED if kind["column"] == column and "regex" in kind}
    assert re.search(regex, sound)
    assert not re.search(regex, odd)


def test_every_number_and_every_closed_set_of_names_is_bounded():
    bounds = {one["column"]: (one["min_value"], one["max_value"]) for one in EXPECTED if "min_value" in one}
    assert bounds.pop("chunk_size") == (0, CHUNK_BYTES)
    assert bounds.pop("chunk_count") == (1, None)
    assert set(bounds.values()) == {(0, None)}
    numbers = {
        column.name for table in Table for column in definition(table).columns if column.sql_type[0] in "IBD"
    } - {"data", "chunk_size", "chunk_count", "watermark"}
    assert bounds.keys() == numbers
    names = {one["column"]: set(one["value_set"]) for one in EXPECTED if "value_set" in one}
    assert names.keys() == {"change", "format", "kind", "scope"}
    assert names["change"] == set(Change)
    assert names["format"] == {*keys.Format, ""}


def test_bytes_of_artifacts_are_not_read(checked):
    assert Finding("checksum_mismatch", "orders", 4) not in checked.damaged.rules
    wide = [one for one in checked.frames if {"data", "manifest"} & set(one.columns)]
    assert len(wide) == 4
    assert all(one.isEmpty() for one in wide)


def test_data_docs_are_written_where_they_are_wanted_and_nothing_there_is_lost(checked):
    index = checked.sound.data_docs
    assert index.name == "index.html"
    assert "validation_issues: rules" in index.read_text()
    assert list(index.parent.glob("validations/**/*.html"))
    assert (index.parent / "notes.txt").read_text() == "not ours"
    assert checked.damaged.data_docs is None


def test_nothing_is_printed_and_no_setting_variable_or_cache_is_left_behind(checked, spark):
    before, after = checked.surroundings
    assert before == after
    assert checked.printed == ""
    assert spark.range(3).count() == 3


def test_what_others_save_during_a_check_is_seen_by_all_readers_of_the_session(checked):
    assert {row["stream"] for row in checked.read_meanwhile} == {keys.EMPTY_STREAM, "orders", "clicks", "late"}


def test_an_expectation_that_cannot_be_checked_fails_with_the_reason(spark):
    checks = quality._Checks()
    missing = checks.expect("schema", "ColumnValuesToNotBeNull", "colour must not be null", column="colour")
    checks.run("events", "rows", spark.range(1), [missing])
    (failed,) = checks.failed
    assert failed.unexpected is None
    assert failed.message.startswith("events: colour must not be null: it could not be checked: ")
    assert "colour" in failed.message.rpartition("checked: ")[2]


def test_a_catalog_without_spark_is_refused(tmp_path):
    with pytest.raises(SessionError, match="need Spark"):
        check_quality(CheckpointCatalog.native(tmp_path, create=True))


def run_python(*arguments):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True).stdout.strip()


def test_great_expectations_is_imported_only_when_it_is_needed():
    assert run_python("-c", "import sys, catalog.quality; print('great_expectations' in sys.modules)") == "False"


def test_a_program_that_is_no_file_is_told_so_and_does_not_end_as_a_success():
    program = """
from catalog.errors import SessionError
from catalog.quality import _great_expectations
try:
    print(_great_expectations().__name__)
except SessionError as error:
    print(error)
"""
    assert run_python("-c", program).startswith(("Great Expectations cannot be imported by `python -c`", "great_exp"))
