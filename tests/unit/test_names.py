"""Where a catalog is, and how its tables' names get into SQL."""

import re
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from catalog.errors import InvalidInputError
from catalog.tables.names import Place, TableName, any_place, name_place, path_place
from catalog.tables.port import Table
from catalog.tables.schema import create_statement


def parsed(sql):
    """Return the parts of a back-quoted name as SQL's grammar reads them; anything beside them is an error."""
    token = r"`((?:[^`]|``)*)`"
    assert re.fullmatch(rf"{token}(?:\.{token})*", sql, re.DOTALL), sql
    return tuple(part.replace("``", "`") for part in re.findall(token, sql, re.DOTALL))


class TestPaths:
    def test_a_local_path_is_absolute_and_a_folder_of_this_machine(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        place = Place(path=str(tmp_path.resolve() / "catalog"))
        for same in (
            tmp_path / "catalog",
            str(tmp_path / "catalog"),
            "catalog",
            "./catalog",
            "x/../catalog/",
            PurePosixPath("catalog"),
            f"file:{tmp_path}/catalog",
            f"file://{tmp_path}/catalog/",
        ):
            assert path_place(same) == place
        assert place.local_folder == tmp_path.resolve() / "catalog"
        assert place.table(Table.CHECKPOINTS).parts == ("delta", f"{tmp_path.resolve()}/catalog/checkpoints")

    def test_the_home_folder_can_be_abbreviated(self, monkeypatch, tmp_path):
        monkeypatch.setenv("HOME", str(tmp_path))
        assert path_place("~/catalog").path == str(tmp_path.resolve() / "catalog")

    @pytest.mark.parametrize(
        "address", ["abfss://c@account.dfs.core.windows.net/x", "s3a://bucket/x", "dbfs:/x", "hdfs://h:9/x"]
    )
    def test_an_address_is_left_as_it_is_and_is_no_local_folder(self, address):
        place = path_place(address + "/")
        assert (place.path, place.local_folder, str(place)) == (address, None, address)
        assert place.table(Table.EVENTS).sql == f"`delta`.`{address}/events`"

    @pytest.mark.parametrize("path", ["", "  ", None, 5, b"/tmp/x", ["x"]], ids=repr)
    def test_what_is_no_path_is_refused(self, path):
        with pytest.raises(InvalidInputError, match="path"):
            path_place(path)

    @pytest.mark.parametrize("path", ["/tmp/a\0b", "~no such user/x", "/tmp/\ud800"], ids=ascii)
    def test_a_path_that_no_file_system_can_have_is_refused(self, path):
        with pytest.raises(InvalidInputError):
            path_place(path)


class TestSchemaNames:
    @pytest.mark.parametrize(
        ("name", "parts"),
        [
            ("jobs", ("jobs",)),
            ("main.jobs", ("main", "jobs")),
            ("a.b.c", ("a", "b", "c")),
            ("`main`.jobs", ("main", "jobs")),
            ("`a.b`.`c d`", ("a.b", "c d")),
            ("`a``b`", ("a`b",)),
            ("````", ("`",)),
            ("`a.``b`.c", ("a.`b", "c")),
            (" main . jobs ", ("main", "jobs")),
            ("my-jobs.ünï", ("my-jobs", "ünï")),
        ],
    )
    def test_a_name_has_one_to_three_parts_that_may_be_back_quoted(self, name, parts):
        place = name_place(name)
        assert place == Place(schema=parts)
        assert place.table(Table.ARTIFACTS).parts == (*parts, "artifacts")
        assert place.local_folder is None
        assert name_place(str(place)) == place

    @pytest.mark.parametrize(
        "name",
        [
            "", " ", ".", "a..b", ".a", "a. .b", "a.b.c.d", "`a", "a`", "a`b", "`a`b", "``", "`a``", "a.``", "`a`.`b",
            None, 5, b"a", ["a"],
        ],
        ids=repr,
    )  # fmt: skip
    def test_what_is_no_such_name_is_refused(self, name):
        with pytest.raises(InvalidInputError):
            name_place(name)

    @pytest.mark.parametrize("name", ["a.", "`a`.", "a.b.", "a.b.c."])
    def test_a_name_that_ends_in_a_dot_is_refused(self, name):
        with pytest.raises(InvalidInputError):
            name_place(name)


class TestAnyPlace:
    @pytest.mark.parametrize("place", ["/tmp/x", "./x", "x/y", ".", "..", "~", "s3://b/x", Path("x")], ids=str)
    def test_what_has_a_slash_or_is_a_path_is_a_folder(self, place):
        assert any_place(place) == path_place(place)
        assert any_place(place).path

    @pytest.mark.parametrize("place", ["jobs", "main.jobs", "`a b`"])
    def test_all_other_text_is_a_schema(self, place):
        assert any_place(place) == name_place(place)

    @pytest.mark.parametrize("place", [None, 5, b"jobs", ""], ids=repr)
    def test_anything_else_is_refused(self, place):
        with pytest.raises(InvalidInputError):
            any_place(place)


ODD = [
    "a`; DROP TABLE x; --",
    "`",
    "``",
    "a``b",
    "'",
    '"',
    "\\`",
    "\n",
    "a.b",
    "-- c",
    "/* c */",
    "🚀",
    " ",
    "%2F",
]


@pytest.mark.parametrize("place", ["/data/${env:HOME}", "main.`${spark.app.name}`"])
def test_what_spark_would_replace_in_sql_text_is_refused(place):
    with pytest.raises(InvalidInputError, match="Spark replaces"):
        any_place(place)


class TestSqlText:
    @pytest.mark.parametrize("part", ODD, ids=ascii)
    def test_no_part_can_break_out_of_its_quotes(self, part):
        assert parsed(TableName(("main", part, "checkpoints")).sql) == ("main", part, "checkpoints")

    @settings(deadline=None)
    @given(st.lists(st.text(st.sampled_from("`.ab' \\\n"), min_size=1) | st.text(min_size=1), min_size=1, max_size=3))
    def test_any_parts_come_back_from_sql_text_and_from_a_name(self, parts):
        assume("${" not in "".join(parts))
        name = TableName(tuple(parts))
        assert parsed(name.sql) == tuple(parts)
        assert name_place(name.sql).schema == tuple(parts)

    @pytest.mark.parametrize("odd", [odd for odd in ODD if "/" not in odd], ids=ascii)
    def test_a_folders_name_cannot_break_out_either(self, odd, tmp_path):
        assert parsed(path_place(tmp_path / odd).table(Table.EVENTS).sql)[1].endswith(f"/{odd}/events")

    @pytest.mark.parametrize("table", Table)
    @pytest.mark.parametrize("odd", ["plain", "{format}", "{table}", "{}", "{0}", "%s", "\\1", "`", "🚀"], ids=ascii)
    def test_a_name_gets_into_the_create_statement_unchanged(self, table, odd):
        quoted = TableName(("main", odd, str(table))).sql
        statement = create_statement(table, quoted)
        assert f"CREATE TABLE IF NOT EXISTS {quoted} (" in statement
        assert "'checkpoint_catalog.format' = '1'" in statement or table is not Table.CHECKPOINTS
