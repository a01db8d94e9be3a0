"""`ckpt sql`: a query on the views through Spark; and commands that are told to use Spark say that they start it."""

import json

import pytest

from catalog import CheckpointCatalog, CheckpointManifest
from catalog.cli.starting import STARTING
from catalog.views import VIEWS

TOLD = f"{STARTING}\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("sql") / "catalog"
    with CheckpointCatalog.native(place, create=True) as catalog:
        store = catalog.store("orders")
        for number in (1, 2, 3):
            store.save_with_state(CheckpointManifest.new(number, epoch=1, pipeline_hash=2**64 - 1), b"x" * number)
    return place


def test_the_views_are_listed_without_spark(here, place):
    code, shown, told = here("sql", place, "--output", "json")
    assert (code, told) == (0, "")
    assert [one["view"] for one in json.loads(shown)] == list(VIEWS)
    assert "checkpoint_list" in here("sql", place)[1]


def test_the_views_are_listed_of_a_folder_by_any_name(here, place, monkeypatch):
    for name in ("from", "my catalog"):
        (place.parent / name).symlink_to(place)
    monkeypatch.chdir(place.parent)
    for name in ("from", "my catalog", "./from"):
        code, _, told = here("sql", name)
        assert (code, told) == (0, ""), name


@pytest.mark.parametrize("query", ["SELECT 1", "DROP TABLE x", "SELECT a/b FROM t", "WITH " + "x" * 300, "(SELECT 1)"])
def test_a_query_without_a_path_is_refused_and_not_taken_for_the_path(here, monkeypatch, query):
    monkeypatch.delenv("CKPT_CATALOG", raising=False)
    code, shown, told = here("sql", query, "--output", "json")
    assert (code, shown, len(told.splitlines())) == (2, "", 1)
    assert "PATH is missing" in told


def test_no_views_are_listed_of_a_place_without_a_catalog(here, place):
    for path in (place.parent / "no such", place.parent):
        code, shown, told = here("sql", path)
        assert (code, shown) == (10, "")
        assert told.startswith("ckpt: no checkpoint catalog at ")


def test_a_query_gets_rows_of_views_and_tables_in_its_order(spark, here, place, monkeypatch):
    monkeypatch.chdir(place.parent)
    query = """
        SELECT l.stream, l.checkpoint_id, l.bytes, c.pipeline_hash, 1.5 AS ratio, c.at, named_struct('a', X'00ff') AS s
        FROM checkpoint_list l JOIN Checkpoints c USING (checkpoint_key) ORDER BY checkpoint_id DESC; """
    code, shown, told = here("sql", "catalog", query, "--output", "json")
    rows = json.loads(shown)
    assert (code, told) == (0, TOLD)
    assert [(row["stream"], row["checkpoint_id"], row["bytes"]) for row in rows] == [
        ("orders", "3", 3), ("orders", "2", 2), ("orders", "1", 1)
    ]  # fmt: skip
    assert (rows[0]["pipeline_hash"], rows[0]["ratio"], rows[0]["s"]) == (2**64 - 1, 1.5, {"a": "00ff"})
    with CheckpointCatalog.native(place) as catalog:
        saved = catalog.histories()["orders"].popitem()[1].origin.at
    assert rows[0]["at"] == saved.isoformat()

    code, shown, told = here("sql", place, query, "--limit", 2)
    assert (code, told) == (0, f"{TOLD}only the first 2 rows are shown: --limit N shows more\n")
    assert [line.split()[1] for line in shown.splitlines()] == ["checkpoint_id", "3", "2"]
    assert here("sql", place, "SELECT stream FROM events") == (0, "", f"{TOLD}no rows\n")
    assert spark.range(3).count() == 3  # the session is not the command's to stop


@pytest.mark.parametrize(
    "query", ["DELETE FROM checkpoints", "DROP TABLE checkpoints", "SELEKT", "", " -- SELECT\nDROP TABLE x"]
)
def test_what_is_no_query_is_refused_in_one_sentence_before_spark_is_started(here, place, query):
    code, shown, told = here("sql", place, query)
    assert (code, shown) == (2, "")
    assert told.startswith("ckpt: only queries are taken, which begin with SELECT or WITH, not ")
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize("query", ["  (select 1)", " -- why\n/* and how */ WITH a AS (SELECT 1 AS n) SELECT n FROM a"])
def test_a_query_may_begin_with_comments_and_brackets(spark, here, place, query):  # noqa: ARG001
    assert here("sql", place, query, "--output", "json")[0] == 0


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1) UNION ALL SELECT * FROM (SELECT 2; DROP TABLE checkpoints",
        "SELECT nothing FROM checkpoint_list",
        "SELECT 1 AS a, 2 AS a",
    ],
)
def test_what_is_not_a_query_is_refused_in_one_sentence_and_does_nothing(spark, here, place, query):  # noqa: ARG001
    code, shown, told = here("sql", place, query)
    assert (code, shown) == (2, "")
    assert told.startswith(TOLD)
    assert len(told.splitlines()) == 2
    with CheckpointCatalog.native(place) as catalog:
        assert catalog.store("orders").list_ids() == [1, 2, 3]


def test_commands_use_spark_where_they_are_told_to_and_say_so(spark, here, place):  # noqa: ARG001
    code, shown, told = here("validate", place, "--engine", "spark", "--dry-run", "--output", "json")
    assert (code, json.loads(shown)["checked"], told) == (0, 3, TOLD)


def test_a_schema_is_asked_by_its_name_and_gets_no_views_by_it(spark, here):
    catalog = CheckpointCatalog.create(spark, "cli_by_name")
    catalog.store("orders").save(CheckpointManifest.new(1, epoch=1))
    code, shown, _ = here("sql", "cli_by_name", "SELECT checkpoint_id FROM latest_checkpoints", "--output", "json")
    assert (code, json.loads(shown)) == (0, [{"checkpoint_id": "1"}])
    assert spark.sql("SHOW VIEWS IN cli_by_name").where("NOT isTemporary").count() == 0
    assert here("sql", "no_such_schema", "SELECT 1 FROM checkpoints")[0] == 10
