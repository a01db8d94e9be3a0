"""Formats: what a chain of artifacts makes, and that a wrong fold is noticed."""

import io
import json

import pyarrow as pa
import pytest

from catalog import AppendLog, Folder, InvalidInputError, JsonMergePatch, KeyedTable, Link
from catalog.folders import READY, check_folders, choose, merge_patch


def link(data, piece=7):
    """Return bytes as a link that comes in small pieces."""
    return Link(lambda: iter([data[at : at + piece] for at in range(0, len(data), piece)]))


def folded(folder, *chain):
    """Return what a chain is folded into, once it is verified."""
    links = [link(one) for one in chain]
    found = b"".join(folder.fold(links))
    assert folder.difference(link(found), links) is None
    return found


class TestAppendLog:
    def test_a_chain_is_its_links_in_order(self):
        assert folded(AppendLog(), b"base ", b"", b"one ", b"two") == b"base one two"
        assert AppendLog().apply(b"a", b"b") == b"ab"

    @pytest.mark.parametrize("wrong", [b"", b"base two one ", b"base one two!", b"base one tw"])
    def test_a_wrong_fold_is_noticed(self, wrong):
        assert AppendLog().difference(link(wrong), [link(b"base "), link(b"one "), link(b"two")])


RFC_7396_APPENDIX_A = [
    ('{"a":"b"}', '{"a":"c"}', '{"a":"c"}'),
    ('{"a":"b"}', '{"b":"c"}', '{"a":"b","b":"c"}'),
    ('{"a":"b"}', '{"a":null}', "{}"),
    ('{"a":"b","b":"c"}', '{"a":null}', '{"b":"c"}'),
    ('{"a":["b"]}', '{"a":"c"}', '{"a":"c"}'),
    ('{"a":"c"}', '{"a":["b"]}', '{"a":["b"]}'),
    ('{"a":{"b":"c"}}', '{"a":{"b":"d","c":null}}', '{"a":{"b":"d"}}'),
    ('{"a":[{"b":"c"}]}', '{"a":[1]}', '{"a":[1]}'),
    ('["a","b"]', '["c","d"]', '["c","d"]'),
    ('{"a":"b"}', '["c"]', '["c"]'),
    ('{"a":"foo"}', "null", "null"),
    ('{"a":"foo"}', '"bar"', '"bar"'),
    ('{"e":null}', '{"a":1}', '{"e":null,"a":1}'),
    ("[1,2]", '{"a":"b","c":null}', '{"a":"b"}'),
    ("{}", '{"a":{"bb":{"ccc":null}}}', '{"a":{"bb":{}}}'),
]


class TestJsonMergePatch:
    @pytest.mark.parametrize(("original", "patch", "result"), RFC_7396_APPENDIX_A)
    def test_the_examples_of_rfc_7396(self, original, patch, result):
        assert JsonMergePatch().apply(original.encode(), patch.encode()) == result.encode()
        assert folded(JsonMergePatch(), original.encode(), patch.encode()) == result.encode()

    def test_the_example_of_section_3_of_rfc_7396(self):
        document = {
            "title": "Goodbye!",
            "author": {"givenName": "John", "familyName": "Doe"},
            "tags": ["example", "sample"],
            "content": "This will be unchanged",
        }
        patch = {
            "title": "Hello!",
            "phoneNumber": "+01-123-456-7890",
            "author": {"familyName": None},
            "tags": ["example"],
        }
        before = json.dumps(document)
        assert merge_patch(document, patch) == {
            "title": "Hello!",
            "author": {"givenName": "John"},
            "tags": ["example"],
            "content": "This will be unchanged",
            "phoneNumber": "+01-123-456-7890",
        }
        assert json.dumps(document) == before, "the target is not changed in place"

    def test_patches_are_applied_in_order(self):
        chain = [b'{"a":1}', b'{"a":null,"b":{"x":1}}', b'{"a":2,"b":{"y":2}}', b'{"b":{"x":null}}']
        assert folded(JsonMergePatch(), *chain) == b'{"b":{"y":2},"a":2}'

    @pytest.mark.parametrize(
        "number", ["1.10", "1e400", "-0.0", "0.12345678901234567890123", "18446744073709551616", "9" * 5000, "1E+2"]
    )
    def test_numbers_stay_as_they_are_written(self, number):
        found = folded(JsonMergePatch(), b'{"n":%s}' % number.encode(), b'{"m":[%s]}' % number.encode())
        assert found == b'{"n":%s,"m":[%s]}' % (number.encode(), number.encode())

    def test_a_number_is_not_the_text_of_it(self):
        assert JsonMergePatch().difference(link(b'{"n":"1"}'), [link(b'{"n":1}'), link(b"{}")])
        assert JsonMergePatch().difference(link(b'{"n":true}'), [link(b'{"n":1}'), link(b"{}")])

    def test_any_text_survives(self):
        text = json.dumps({"é\u2028🚀": '\ud800 \x00 \\ / "'}).encode()
        assert json.loads(folded(JsonMergePatch(), text, b"{}")) == json.loads(text)

    @pytest.mark.parametrize("data", [b"", b"{", b"\xff", b'{"a":NaN}', b'{"a":1,"a":2}', b"[" * 100_000, b"{} {}"])
    def test_what_is_no_json_is_refused(self, data):
        with pytest.raises(InvalidInputError, match="not JSON"):
            JsonMergePatch().apply(b"{}", data)


def table(rows, schema=None, **metadata):
    """Return rows as an Arrow IPC stream, in batches of two."""
    made = pa.Table.from_pylist(rows, schema=schema)
    made = made.replace_schema_metadata(metadata or None)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, made.schema) as writer:
        writer.write_table(made, max_chunksize=2)
    return sink.getvalue()


def rows_of(data):
    return pa.ipc.open_stream(data).read_all().to_pylist()


SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
DELTA = SCHEMA.append(pa.field("_deleted", pa.bool_()))


def row(id, name=None):
    return {"id": id, "name": name}


def gone(id):
    return {"id": id, "name": None, "_deleted": True}


class TestKeyedTable:
    def test_upserts_replace_and_tombstones_remove_and_the_last_row_of_a_key_counts(self):
        base = table([row(1, "a"), row(2, "b"), row(3, "c"), row(4, "d")], SCHEMA)
        deltas = [
            table([row(2, "B"), row(5, "e")], SCHEMA),
            table([gone(3), gone(5), row(6, "f"), gone(6), gone(99)], DELTA),
            table([row(5, "again"), row(7, "x"), row(7, "y")], DELTA),
        ]
        found = folded(KeyedTable(["id"]), base, *deltas)
        assert rows_of(found) == [row(1, "a"), row(4, "d"), row(2, "B"), row(5, "again"), row(7, "y")]
        assert pa.ipc.open_stream(found).schema == SCHEMA

    def test_one_delta_after_the_other_makes_the_same(self):
        folder = KeyedTable(["id"])
        base = table([row(n, f"{n}") for n in range(50)], SCHEMA)
        deltas = [table([row(n, f"{n}.{step}") for n in range(step, 60, 7)], SCHEMA) for step in range(9)]
        deltas.append(table([gone(n) for n in range(0, 60, 5)], DELTA))
        state = base
        for delta in deltas:
            state = folder.apply(state, delta)
        assert rows_of(state) == rows_of(folded(folder, base, *deltas))

    def test_keys_may_be_several_columns_of_any_type_and_null(self):
        schema = pa.schema([("a", pa.string()), ("b", pa.binary()), ("v", pa.float64())])
        base = [{"a": "x", "b": b"1", "v": 1.0}, {"a": None, "b": b"1", "v": 2.0}, {"a": "x", "b": None, "v": 3.0}]
        changed = [{"a": None, "b": b"1", "v": 20.0}, {"a": "y", "b": b"1", "v": float("nan")}]
        found = rows_of(folded(KeyedTable(["a", "b"]), table(base, schema), table(changed, schema)))
        assert [(one["a"], one["b"]) for one in found] == [("x", b"1"), ("x", None), (None, b"1"), ("y", b"1")]

    def test_the_snapshot_may_tell_its_key_and_columns_come_in_any_order(self):
        base = table([row(1, "a")], SCHEMA, **{"checkpoint_catalog.key": '["id"]'})
        delta = table([{"name": "b", "id": 1}], pa.schema([("name", pa.string()), ("id", pa.int64())]))
        found = folded(READY["keyed-arrow"], base, delta)
        assert rows_of(found) == [row(1, "b")]
        assert pa.ipc.open_stream(found).schema.metadata == {b"checkpoint_catalog.key": b'["id"]'}

    def test_columns_that_may_not_be_null_may_be_left_out_by_a_tombstone(self):
        strict = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string(), nullable=False)])
        found = folded(KeyedTable(["id"]), table([row(1, "a"), row(2, "b")], strict), table([gone(1)], DELTA))
        assert rows_of(found) == [row(2, "b")]
        assert pa.ipc.open_stream(found).schema == strict

    def test_a_large_snapshot_is_read_and_written_in_parts(self):
        base = pa.table({"id": pa.array(range(200_000)), "name": pa.array(["n"] * 200_000)})
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, base.schema) as writer:
            writer.write_table(base, max_chunksize=10_000)
        chain = [link(sink.getvalue(), 1 << 16), link(table([row(5, "five"), gone(7)], DELTA))]
        pieces = list(KeyedTable(["id"]).fold(chain))
        assert max(len(one) for one in pieces) < len(sink.getvalue()) / 2
        whole = b"".join(pieces)
        assert KeyedTable(["id"]).difference(link(whole, 1 << 16), chain) is None
        assert pa.ipc.open_stream(whole).read_all().num_rows == 199_999

    @pytest.mark.parametrize(
        ("wrong", "why"),
        [
            ([row(1, "a"), row(2, "b")], "rows of deltas"),
            ([row(2, "B"), row(1, "a")], "no delta touched"),
            ([row(1, "a"), row(2, "B"), row(3, "c")], "rows of deltas"),
            ([row(1, "A"), row(2, "B")], "no delta touched"),
        ],
    )
    def test_a_wrong_fold_is_noticed(self, wrong, why):
        chain = [link(table([row(1, "a"), row(2, "b")], SCHEMA)), link(table([row(2, "B")], SCHEMA))]
        assert why in KeyedTable(["id"]).difference(link(table(wrong, SCHEMA)), chain)

    def test_other_columns_are_noticed(self):
        chain = [link(table([row(1, "a")], SCHEMA))] * 2
        other = table([{"id": 1}], pa.schema([("id", pa.int64())]))
        assert "columns" in KeyedTable(["id"]).difference(link(other), chain)

    @pytest.mark.parametrize(
        ("folder", "base", "delta", "why"),
        [
            (KeyedTable(), table([row(1)], SCHEMA), table([row(1)], SCHEMA), "key columns are not known"),
            (KeyedTable(["no"]), table([row(1)], SCHEMA), table([row(1)], SCHEMA), "no key column 'no'"),
            (KeyedTable(["id"]), b"bytes", table([row(1)], SCHEMA), "not an Arrow IPC stream"),
            (KeyedTable(["id"]), table([row(1)], SCHEMA), b"", "not an Arrow IPC stream"),
            (KeyedTable(["id"]), table([row(1)], SCHEMA), table([{"id": 1}]), "a delta has the columns"),
            (KeyedTable(["id"]), table([row(1)], SCHEMA), table([{"id": "1", "name": "a"}]), "a delta has the columns"),
        ],
    )
    def test_what_is_no_keyed_table_is_refused(self, folder, base, delta, why):
        with pytest.raises(InvalidInputError, match=why):
            folder.apply(base, delta)

    @pytest.mark.parametrize("key", ["id", [1]])
    def test_a_key_that_is_no_list_of_names_is_refused(self, key):
        with pytest.raises(InvalidInputError, match="key must be"):
            KeyedTable(key)


class Reversed(Folder):
    """A format of somebody else: a delta goes before."""

    format = "reversed"

    def apply(self, state, delta):
        return delta + state


class TestChoice:
    def test_a_format_of_ones_own_needs_one_method(self):
        assert folded(Reversed(), b"a", b"b", b"c") == b"cba"
        assert Reversed().difference(link(b"abc"), [link(b"a"), link(b"b"), link(b"c")])

    def test_the_folder_given_for_an_operator_counts_the_name_before_patterns(self):
        mine, other = Reversed(), AppendLog()
        assert choose({"*": other, "a[b]": mine}, "a[b]", None) is mine
        assert choose({"win*": other, "*": mine}, "window", None) is other

    def test_without_one_the_format_that_the_manifest_tells_counts(self):
        assert choose({}, "op", "append-log") is READY["append-log"]
        assert choose({"other": Reversed()}, "op", "json-merge-patch") is READY["json-merge-patch"]

    @pytest.mark.parametrize(
        ("folders", "told", "why"),
        [
            ({}, None, "not known"),
            ({}, "protobuf", "its format 'protobuf' is not known"),
            ({}, ["append-log"], "no text"),
            ({"op": Reversed()}, "append-log", "tells the format 'append-log'"),
        ],
    )
    def test_an_unknown_or_contradicted_format_is_told(self, folders, told, why):
        assert why in choose(folders, "op", told)

    @pytest.mark.parametrize(
        "folders", [None, [AppendLog()], {"op": AppendLog}, {1: AppendLog()}, {"op": "append-log"}]
    )
    def test_what_are_no_folders_is_refused(self, folders):
        with pytest.raises(InvalidInputError, match="folders must be"):
            check_folders(folders)
