"""Artifacts cut into chunk rows: the same rows however the bytes arrive, and hashes that are right."""

import array
import hashlib
import pickle
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalog import artifacts, cutting
from catalog.artifacts import file_chunks
from catalog.chunks import Stored, links, totals
from catalog.cutting import CHUNK_BYTES, SharedFile, Writing, check_source, chunk_rows
from catalog.errors import InvalidInputError

COLUMNS = {"stream": "s", "checkpoint_key": "k", "attempt": "a", "path": "state.bin"}


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of 8 bytes, so that a few bytes are many chunks."""
    monkeypatch.setattr(cutting, "CHUNK_BYTES", 8)


def rows(*pieces, also=None):
    """Return the rows with their bytes copied."""
    return [{**row, "data": bytes(row["data"])} for row in chunk_rows(COLUMNS, pieces, Writing(also=also))]


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def test_a_chunk_has_four_mebibytes():
    assert CHUNK_BYTES == 4 << 20
    whole = bytes(CHUNK_BYTES) + b"x"
    assert [row["chunk_size"] for row in chunk_rows(COLUMNS, [whole])] == [CHUNK_BYTES, 1]
    assert [row["chunk_size"] for row in chunk_rows(COLUMNS, [whole[:-1]])] == [CHUNK_BYTES]


def test_zero_bytes_are_one_empty_chunk_with_totals():
    empty = {
        **COLUMNS,
        "chunk_no": 0,
        "chunk_size": 0,
        "chunk_sha256": sha256(b""),
        "chunk_count": 1,
        "artifact_size": 0,
        "artifact_sha256": sha256(b""),
        "data": b"",
    }
    assert rows() == rows(b"") == rows(b"", b"", memoryview(b"")) == [empty]


@pytest.mark.usefixtures("small_chunks")
class TestCutting:
    def test_totals_are_on_the_last_chunk_only(self):
        found = rows(b"0123456789abcdefXY")
        assert [(row["chunk_count"], row["artifact_size"]) for row in found] == [(None, None), (None, None), (3, 18)]
        assert [row["artifact_sha256"] for row in found] == [None, None, sha256(b"0123456789abcdefXY")]

    @pytest.mark.parametrize(("size", "chunks"), [(1, 1), (7, 1), (8, 1), (9, 2), (16, 2), (17, 3)])
    def test_an_artifact_has_no_empty_chunk_at_its_end(self, size, chunks):
        found = rows(bytes(size))
        assert [row["chunk_no"] for row in found] == list(range(chunks))
        assert all(row["chunk_size"] == len(row["data"]) > 0 for row in found)

    def test_every_row_has_the_shared_columns(self):
        assert all(row.items() >= COLUMNS.items() for row in rows(bytes(20)))

    def test_every_chunk_has_the_hash_of_its_own_bytes(self):
        assert [row["chunk_sha256"] for row in rows(b"0123456789")] == [sha256(b"01234567"), sha256(b"89")]

    def test_the_second_hash_is_fed_with_every_byte_in_order(self):
        also = hashlib.sha256(b"before ")
        rows(b"0123456789", b"", b"abcdefghijk", also=also)
        assert also.hexdigest() == sha256(b"before 0123456789abcdefghijk")

    @pytest.mark.parametrize(
        "piece",
        [
            bytearray(b"0123456789"),
            memoryview(b"0123456789"),
            memoryview(b"0x1x2x3x4x5x6x7x8x9x")[::2],
            memoryview(array.array("H", b"0123456789")),
            memoryview(b"0123456789").cast("B", (2, 5)),
        ],
        ids=["bytearray", "view", "every second byte", "16-bit items", "two dimensions"],
    )
    def test_any_buffer_is_its_bytes(self, piece):
        assert rows(piece) == rows(b"0123456789")

    def test_rows_come_as_the_pieces_come(self):
        def endless():
            while True:
                yield bytes(5)

        stream = chunk_rows(COLUMNS, endless())
        assert [next(stream)["chunk_no"] for _ in range(50)] == list(range(50))

    @pytest.mark.parametrize("piece", ["text", 5, None, [1], object()], ids=lambda piece: type(piece).__name__)
    def test_a_piece_that_is_no_bytes_is_refused(self, piece):
        with pytest.raises(InvalidInputError, match="must be bytes"):
            rows(b"good", piece)

    def test_a_caller_may_fill_the_same_buffer_again_for_the_next_piece(self):
        # As with readinto; the hash is over what was handed over, so a mix-up would never be noticed later.
        def refilled():
            buffer = bytearray(8)
            for letter in b"abc":
                buffer[:] = bytes([letter]) * 8
                yield buffer

        found = [bytes(row["data"]) for row in chunk_rows(COLUMNS, refilled())]
        assert found == [b"aaaaaaaa", b"bbbbbbbb", b"cccccccc"]

    @pytest.mark.parametrize("given", [memoryview, lambda data: [data]], ids=["whole", "in a list"])
    def test_what_is_written_has_its_hash_though_the_caller_goes_on_changing_it(self, given):
        """As an event loop does while a thread writes the state: it would be told saved, and never load."""
        state = bytearray(b"0123456789abcdefXY")
        written = []

        class Engine:
            def append(self, _, parts):
                for part in parts:
                    state[:] = bytes(len(state))
                    written.extend(part.select(["chunk_sha256", "data"]).to_pylist())

        artifacts.write(Engine(), {**COLUMNS, "kind": "state", "staged_at": datetime.now(UTC)}, given(state))
        assert [row["chunk_sha256"] for row in written] == [sha256(row["data"]) for row in written]

    def test_a_caller_may_fill_a_buffer_again_while_rows_wait_for_their_batch(self):
        def refilled():
            buffer = bytearray(12)
            for letter in b"abc":
                buffer[:] = bytes([letter]) * 12
                yield memoryview(buffer)

        batch = list(chunk_rows(COLUMNS, refilled()))
        assert b"".join(row["data"] for row in batch) == b"a" * 12 + b"b" * 12 + b"c" * 12
        assert all(row["chunk_sha256"] == sha256(row["data"]) for row in batch)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=30), max_size=8), st.integers(1, 9))
def test_pieces_of_any_sizes_give_the_rows_of_one_buffer(pieces, chunk_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "CHUNK_BYTES", chunk_bytes)
        whole = b"".join(pieces)
        found = rows(*pieces)
        assert found == rows(whole)
        assert [row["data"] for row in found] == [
            whole[at : at + chunk_bytes] for at in range(0, max(len(whole), 1), chunk_bytes)
        ]
        assert totals(found) == {"state.bin": Stored("state.bin", len(whole), sha256(whole))}


class TestCheckSource:
    @pytest.mark.parametrize(
        "source",
        [b"", bytearray(b"x"), memoryview(b"x"), [], [b"a", bytearray(b"b")], (memoryview(b"a"),), iter([b"a"])],
        ids=lambda source: type(source).__name__,
    )
    def test_bytes_and_pieces_of_bytes_are_taken(self, source):
        assert check_source(source) is None

    def test_an_iterator_is_not_used_up(self):
        pieces = iter([b"a", b"b"])
        check_source(pieces)
        assert list(pieces) == [b"a", b"b"]

    @pytest.mark.parametrize(
        "source",
        ["text", "", 5, None, 1.5, object(), ["text"], [b"a", "b"], (1,), [None]],
        ids=lambda one: str(one)[:9],
    )
    def test_what_is_no_bytes_is_refused_before_anything_is_written(self, source):
        with pytest.raises(InvalidInputError, match="state must be bytes"):
            check_source(source)

    @pytest.mark.parametrize(
        "wrap", [Path, SharedFile, lambda path: SharedFile(str(path))], ids=["path", "shared", "text"]
    )
    def test_a_file_is_taken_and_a_missing_one_or_a_folder_refused(self, tmp_path, wrap):
        (tmp_path / "file").write_bytes(b"x")
        assert check_source(wrap(tmp_path / "file")) is None
        for wrong in ("missing", "."):
            with pytest.raises(InvalidInputError, match="does not exist"):
                check_source(wrap(tmp_path / wrong))

    @pytest.mark.parametrize("path", [None, 5, b"file"], ids=repr)
    def test_a_shared_file_without_a_path_is_refused(self, path):
        with pytest.raises(InvalidInputError):
            check_source(SharedFile(path))


class TestLinks:
    NOT_HELD = dict.fromkeys(("held_key", "held_attempt", "held_no", "via"))
    OWN = {**COLUMNS, "chunk_no": 3, "chunk_sha256": "ab", **NOT_HELD, "data": b"x"}  # noqa: RUF012
    HELD = {"held_key": "k0", "held_attempt": "a0", "held_no": 7, "via": "k1"}  # noqa: RUF012
    BORROWED = {**OWN, "chunk_no": 1, **HELD, "data": None}  # noqa: RUF012

    def test_a_link_to_own_bytes_is_held_where_they_are(self):
        assert links([self.OWN], "new") == [
            {**self.OWN, "attempt": "new", "held_key": "k", "held_attempt": "a", "held_no": 3, "data": None}
        ]

    def test_a_link_to_a_borrowed_chunk_is_held_where_its_bytes_are_and_keeps_via(self):
        assert links([self.BORROWED], "new") == [{**self.BORROWED, "attempt": "new"}]

    def test_a_link_of_another_checkpoint_says_through_which_one_it_came(self):
        found = links([self.OWN], "new", checkpoint_key="k9", path="other", via="k")
        assert [(one["checkpoint_key"], one["path"], one["via"], one["held_key"]) for one in found] == [
            ("k9", "other", "k", "k")
        ]


def test_totals_are_those_of_artifacts_whose_last_chunk_is_there():
    last = {"chunk_no": 1, "chunk_count": 2, "artifact_size": 9, "artifact_sha256": "ab"}
    first = {"chunk_no": 0, "chunk_count": None, "artifact_size": None, "artifact_sha256": None}
    found = totals([{"path": "whole", **first}, {"path": "whole", **last}, {"path": "half", **first}])
    assert found == {"whole": Stored("whole", 9, "ab")}
    assert totals([]) == {}


@pytest.mark.usefixtures("small_chunks")
def test_executors_make_the_same_rows_from_a_file(tmp_path):
    file = tmp_path / "state"
    file.write_bytes(b"0123456789abcdefXY")
    columns = {**COLUMNS, "kind": "state", "scope": "exclusive", "staged_at": datetime(2024, 5, 1, tzinfo=UTC)}
    found = [row for batch in file_chunks(pickle.dumps((str(file), columns, None))) for row in batch.to_pylist()]
    expected = list(chunk_rows(columns, [file.read_bytes()]))
    assert [{name: row[name] for name in expected[0]} for row in found] == expected
    file.write_bytes(b"")
    assert [batch.num_rows for batch in file_chunks(pickle.dumps((str(file), columns, None)))] == [1]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()], ids=str)
def test_bytes_are_read_from_arrow_without_a_copy_whatever_its_slices(kind):
    values = pa.array([b"a", None, b"", b"xyz", b"q"], kind)
    column = pa.chunked_array([values.slice(1, 3), values.slice(4), values.slice(0, 0)])
    views = list(artifacts._views(column))
    assert [None if view is None else bytes(view) for view in views] == [None, b"", b"xyz", b"q"]
    assert all(view is None or isinstance(view.obj, pa.Buffer) for view in views)
