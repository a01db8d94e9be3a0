"""CheckpointId, CheckpointState and its bytes."""

import copy
import dataclasses
import struct
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from catalog import state as state_module
from catalog.errors import CatalogError, DeserializationError, InvalidInputError
from catalog.keys import U64_MAX as MAX_U64
from catalog.state import CheckpointId, CheckpointState

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
HEADER = struct.pack("<QQQ", 7, 8, 9)
NONE = struct.pack("<I", 0)
HUGE = struct.pack("<I", 2**32 - 1)


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def text(name: bytes) -> bytes:
    return u32(len(name)) + name


def new_state(sequence: int = 7) -> CheckpointState:
    return CheckpointState.new(CheckpointId("orders", sequence, NOON))


def full_state() -> CheckpointState:
    state = new_state()
    state.watermark_ns, state.event_count = 8, 9
    state.set_operator_state("map", b"\x01\x02\x03")
    state.set_operator_state("join", b"")
    state.set_source_offset("kafka", 2**63)
    state.set_source_offset("für", 0)
    return state


# HEADER | 24 count | 28 length, 32 "join", 36 length | 40 length, 44 "map", 47 length, 51 state | 54 count
# | 58 length, 62 "für", 66 offset | 74 length, 78 "kafka", 83 offset | 91 end
GOLDEN = (
    HEADER
    + u32(2)
    + (text(b"join") + u32(0))
    + (text(b"map") + u32(3) + b"\x01\x02\x03")
    + u32(2)
    + (text(b"f\xc3\xbcr") + struct.pack("<Q", 0))
    + (text(b"kafka") + struct.pack("<Q", 2**63))
)


class TestCheckpointId:
    def test_created_at_is_no_part_of_equality_or_hash(self) -> None:
        one, other = CheckpointId("orders", 1, NOON), CheckpointId("orders", 1, NOON + timedelta(days=1))
        assert one == other
        assert hash(one) == hash(other)

    @pytest.mark.parametrize("other", [CheckpointId("orders", 2, NOON), CheckpointId("clicks", 1, NOON)])
    def test_stream_and_sequence_are_the_identity(self, other: CheckpointId) -> None:
        assert CheckpointId("orders", 1, NOON) != other

    def test_it_is_frozen_and_slotted(self) -> None:
        checkpoint_id = CheckpointId("orders", 1, NOON)
        with pytest.raises(dataclasses.FrozenInstanceError):
            checkpoint_id.sequence = 2  # type: ignore[misc]
        assert not hasattr(checkpoint_id, "__dict__")

    def test_created_at_is_now_unless_given(self) -> None:
        before = datetime.now(UTC)
        assert before <= CheckpointId("orders", 1).created_at <= datetime.now(UTC)
        assert CheckpointId("orders", 1, NOON).created_at == NOON

    def test_created_at_is_kept_in_utc(self) -> None:
        elsewhere = NOON.astimezone(timezone(timedelta(hours=5)))
        created_at = CheckpointId("orders", 1, elsewhere).created_at
        assert (created_at, created_at.tzinfo) == (NOON, UTC)

    @pytest.mark.parametrize("created_at", [datetime(2024, 5, 1), "2024-05-01", None])
    def test_a_time_without_a_zone_is_refused(self, created_at: Any) -> None:
        with pytest.raises(InvalidInputError, match="time zone"):
            CheckpointId("orders", 1, created_at)

    @pytest.mark.parametrize("last", [datetime.min, datetime.max])
    def test_a_time_that_utc_cannot_hold_is_refused(self, last: datetime) -> None:
        assert CheckpointId("orders", 1, last.replace(tzinfo=UTC)).created_at == last.replace(tzinfo=UTC)
        beyond = timezone(timedelta(hours=5 if last == datetime.min else -5))
        with pytest.raises(InvalidInputError, match="created_at must be in the years 1 to 9999"):
            CheckpointId("orders", 1, last.replace(tzinfo=beyond))

    @pytest.mark.parametrize("sequence", [0, MAX_U64])
    def test_every_u64_is_a_sequence(self, sequence: int) -> None:
        assert CheckpointId("orders", sequence).sequence == sequence

    @pytest.mark.parametrize("sequence", [-1, MAX_U64 + 1, True, 1.0, "1", None])
    def test_a_sequence_that_is_no_u64_is_refused(self, sequence: Any) -> None:
        with pytest.raises(InvalidInputError, match="sequence"):
            CheckpointId("orders", sequence)

    @pytest.mark.parametrize("stream_id", [b"orders", None, "\ud800", "x" * 513])
    def test_a_stream_id_that_is_no_name_is_refused(self, stream_id: Any) -> None:
        with pytest.raises(InvalidInputError, match="stream id"):
            CheckpointId(stream_id, 1)


class TestFields:
    def test_a_new_state_is_empty(self) -> None:
        state = new_state()
        assert state.id == CheckpointId("orders", 7)
        assert (state.operator_states, state.source_offsets, state.metadata) == ({}, {}, {})
        assert (state.watermark_ns, state.event_count) == (0, 0)

    def test_two_new_states_share_nothing(self) -> None:
        one, other = new_state(), new_state()
        one.set_operator_state("map", b"x")
        one.set_source_offset("kafka", 1)
        one.metadata["k"] = "v"
        assert other == new_state()

    def test_setting_again_replaces(self) -> None:
        state = new_state()
        state.set_operator_state("map", b"old")
        state.set_operator_state("map", b"new")
        state.set_source_offset("kafka", 1)
        state.set_source_offset("kafka", 2)
        assert (state.operator_states, state.source_offsets) == ({"map": b"new"}, {"kafka": 2})

    @pytest.mark.parametrize("wrap", [bytearray, memoryview, lambda raw: memoryview(bytearray(raw))])
    def test_bytes_like_state_is_stored_as_bytes_of_its_own(self, wrap: Callable[[bytes], Any]) -> None:
        given, state = wrap(b"abc"), new_state()
        state.set_operator_state("map", given)
        if not memoryview(given).readonly:
            given[0] = 0
        assert type(state.operator_states["map"]) is bytes
        assert state.operator_states == {"map": b"abc"}

    def test_bytes_are_kept_without_a_copy(self) -> None:
        given, state = bytes(1000), new_state()
        state.set_operator_state("map", given)
        assert state.operator_states["map"] is given

    def test_a_subclass_of_bytes_is_stored_as_bytes(self) -> None:
        state = new_state()
        state.set_operator_state("map", type("Sub", (bytes,), {})(b"abc"))
        assert type(state.operator_states["map"]) is bytes

    def test_a_view_with_steps_or_wider_items_is_stored_by_its_content(self) -> None:
        state = new_state()
        state.set_operator_state("stepped", memoryview(b"abcd")[::2])
        state.set_operator_state("wide", memoryview(b"abcd").cast("H"))
        assert state.operator_states == {"stepped": b"ac", "wide": b"abcd"}


@pytest.mark.parametrize("duplicate", [CheckpointState.copy, copy.copy, copy.deepcopy])
class TestCopy:
    def test_a_copy_is_equal_down_to_the_time_of_creation(
        self, duplicate: Callable[[CheckpointState], CheckpointState]
    ) -> None:
        state = full_state()
        state.metadata["k"] = "v"
        other = duplicate(state)
        assert other == state
        assert other.id.created_at == NOON

    def test_changing_the_copy_leaves_the_original_alone(
        self, duplicate: Callable[[CheckpointState], CheckpointState]
    ) -> None:
        state = full_state()
        other = duplicate(state)
        other.set_operator_state("map", b"changed")
        other.set_source_offset("kafka", 1)
        other.metadata["k"] = "v"
        other.event_count = 0
        assert state == full_state()


class TestBytes:
    def test_the_bytes_are_the_documented_ones(self) -> None:
        assert full_state().serialize() == GOLDEN

    def test_the_documented_bytes_are_read(self) -> None:
        assert CheckpointState.deserialize("orders", GOLDEN) == full_state()

    def test_an_empty_state_is_a_header_and_two_zero_counts(self) -> None:
        assert new_state(0).serialize() == bytes(24) + NONE + NONE

    def test_the_largest_u64_round_trips_everywhere(self) -> None:
        state = new_state(MAX_U64)
        state.watermark_ns = state.event_count = MAX_U64
        state.set_source_offset("kafka", MAX_U64)
        assert CheckpointState.deserialize("orders", state.serialize()) == state

    def test_names_are_written_in_the_order_of_their_utf8_bytes(self) -> None:
        # "\uffff" comes before "\U00010000" in UTF-8 and after it in UTF-16.
        names, state = ["", "B", "a", "aa", "ä", "\uffff", "\U00010000"], new_state()
        for name in reversed(names):
            state.set_operator_state(name, b"")
            state.set_source_offset(name, 0)
        read = CheckpointState.deserialize("orders", state.serialize())
        assert list(read.operator_states) == names
        assert list(read.source_offsets) == names

    def test_names_are_read_in_any_order(self) -> None:
        operators = text(b"b") + text(b"2") + text(b"a") + text(b"1")
        sources = text(b"d") + struct.pack("<Q", 4) + text(b"c") + struct.pack("<Q", 3)
        state = CheckpointState.deserialize("orders", HEADER + u32(2) + operators + u32(2) + sources)
        assert state.operator_states == {"a": b"1", "b": b"2"}
        assert state.source_offsets == {"c": 3, "d": 4}

    def test_an_operator_and_a_source_may_have_the_same_name(self) -> None:
        state = new_state()
        state.set_operator_state("same", b"x")
        state.set_source_offset("same", 1)
        assert CheckpointState.deserialize("orders", state.serialize()) == state

    def test_an_absent_source_section_means_no_sources(self) -> None:
        state = CheckpointState.deserialize("orders", HEADER + u32(1) + text(b"map") + text(b"abc"))
        assert state.operator_states == {"map": b"abc"}
        assert state.source_offsets == {}

    def test_stream_time_and_metadata_are_not_in_the_bytes(self) -> None:
        state = full_state()
        state.metadata["k"] = "v"
        before = datetime.now(UTC)
        read = CheckpointState.deserialize("other", state.serialize())
        assert state.serialize() == GOLDEN
        assert read.id == CheckpointId("other", 7)
        assert read.id.created_at >= before
        assert read.metadata == {}

    @pytest.mark.parametrize(
        "wrap",
        [bytearray, memoryview, lambda raw: memoryview(bytes(b for byte in raw for b in (byte, 0)))[::2]],
        ids=["bytearray", "memoryview", "stepped"],
    )
    def test_any_bytes_like_data_is_read(self, wrap: Callable[[bytes], Any]) -> None:
        read = CheckpointState.deserialize("orders", wrap(GOLDEN))
        assert read == full_state()
        assert {type(state) for state in read.operator_states.values()} == {bytes}

    def test_data_of_wider_items_or_more_dimensions_is_read_by_its_bytes(self) -> None:
        data = memoryview(bytes(24) + NONE + NONE)
        assert CheckpointState.deserialize("orders", data.cast("I")) == new_state(0)
        assert CheckpointState.deserialize("orders", data.cast("B", (4, 8))) == new_state(0)

    def test_a_read_state_does_not_hold_on_to_the_data(self) -> None:
        data = bytearray(GOLDEN)
        read = CheckpointState.deserialize("orders", data)
        data.clear()  # a BufferError if a view were still open
        assert read == full_state()

    @pytest.mark.parametrize("data", ["text", None, 5, [1, 2], object()])
    def test_data_that_is_not_bytes_like_is_refused(self, data: Any) -> None:
        with pytest.raises(InvalidInputError, match="data must be bytes-like"):
            CheckpointState.deserialize("orders", data)

    def test_a_bad_stream_id_is_refused_on_read(self) -> None:
        with pytest.raises(InvalidInputError, match="stream id"):
            CheckpointState.deserialize(None, GOLDEN)  # type: ignore[arg-type]


def put_operator(state: CheckpointState, name: Any, value: Any) -> None:
    state.operator_states[name] = value


def put_source(state: CheckpointState, name: Any, value: Any) -> None:
    state.source_offsets[name] = value


BAD_NAMES = [None, 5, b"map", ("map",), "\ud800", "a\udfff", "x" * 513]
BAD_STATES = [None, "text", 5, [1, 2], object()]
BAD_NUMBERS = [None, -1, MAX_U64 + 1, 10**5000, True, False, 1.0, "1"]


def kind(value: object) -> str:
    return type(value).__name__


class TestRefusals:
    @pytest.mark.parametrize("name", BAD_NAMES, ids=kind)
    def test_a_bad_name_is_refused_by_the_setters(self, name: Any) -> None:
        state = new_state()
        with pytest.raises(InvalidInputError, match="operator name"):
            state.set_operator_state(name, b"x")
        with pytest.raises(InvalidInputError, match="source name"):
            state.set_source_offset(name, 1)
        assert state == new_state()

    @pytest.mark.parametrize("name", BAD_NAMES, ids=kind)
    def test_a_bad_name_put_past_the_setters_is_refused_by_serialize(self, name: Any) -> None:
        state, other = full_state(), full_state()
        put_operator(state, name, b"x")
        put_source(other, name, 1)
        with pytest.raises(InvalidInputError, match="operator name"):
            state.serialize()
        with pytest.raises(InvalidInputError, match="source name"):
            other.serialize()

    def test_a_name_of_no_hashable_type_is_refused_as_a_name(self) -> None:
        with pytest.raises(InvalidInputError, match="operator name must be text, not list"):
            new_state().set_operator_state([], b"x")  # type: ignore[arg-type]

    @pytest.mark.parametrize("name", ["", "x" * 512, "\U0001f600" * 512], ids=["empty", "ascii", "four bytes each"])
    def test_names_of_up_to_512_characters_round_trip(self, name: str) -> None:
        state = new_state()
        state.set_operator_state(name, b"x")
        state.set_source_offset(name, 1)
        assert CheckpointState.deserialize("orders", state.serialize()) == state

    @pytest.mark.parametrize("value", BAD_STATES, ids=kind)
    def test_state_that_is_not_bytes_like_is_refused(self, value: Any) -> None:
        state = new_state()
        with pytest.raises(InvalidInputError, match="state of operator 'map' must be bytes-like"):
            state.set_operator_state("map", value)
        assert state == new_state()
        put_operator(state, "map", value)
        with pytest.raises(InvalidInputError, match="state of operator 'map' must be bytes-like"):
            state.serialize()

    def test_bytes_like_state_put_past_the_setter_is_written_as_bytes(self) -> None:
        state = full_state()
        put_operator(state, "map", bytearray(b"\x01\x02\x03"))
        put_operator(state, "join", memoryview(b""))
        assert state.serialize() == GOLDEN

    @pytest.mark.parametrize("value", BAD_NUMBERS, ids=kind)
    def test_an_offset_that_is_no_u64_is_refused(self, value: Any) -> None:
        state = new_state()
        with pytest.raises(InvalidInputError, match="offset of source 'kafka'"):
            state.set_source_offset("kafka", value)
        assert state == new_state()
        put_source(state, "kafka", value)
        with pytest.raises(InvalidInputError, match="offset of source 'kafka'"):
            state.serialize()

    @pytest.mark.parametrize("field", ["watermark_ns", "event_count"])
    @pytest.mark.parametrize("value", BAD_NUMBERS, ids=kind)
    def test_a_number_that_is_no_u64_is_refused_by_serialize(self, field: str, value: Any) -> None:
        state = new_state()
        setattr(state, field, value)
        with pytest.raises(InvalidInputError, match=field) as caught:
            state.serialize()
        assert vars(caught.value)["value"] is value

    @pytest.mark.parametrize("value", BAD_NUMBERS, ids=kind)
    def test_a_sequence_forced_to_be_no_u64_is_refused_by_serialize(self, value: Any) -> None:
        state = new_state()
        object.__setattr__(state.id, "sequence", value)
        with pytest.raises(InvalidInputError, match="sequence"):
            state.serialize()

    def test_state_beyond_the_length_field_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(state_module, "MAX_U32", 8)
        state = new_state()
        state.set_operator_state("map", bytes(8))
        assert CheckpointState.deserialize("orders", state.serialize()) == state
        for too_long in (bytes(9), bytearray(9), memoryview(bytes(16)).cast("Q")[:2]):
            with pytest.raises(InvalidInputError, match=r"state of operator 'map'.*limit of 8"):
                state.set_operator_state("map", too_long)
        put_operator(state, "map", bytes(9))
        with pytest.raises(InvalidInputError, match=r"state of operator 'map'.*limit of 8"):
            state.serialize()

    def test_state_beyond_the_length_field_is_refused_before_it_is_copied(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(state_module, "MAX_U32", 8)
        large, state = bytearray(1 << 20), new_state()
        assert peak_bytes(lambda: state.set_operator_state("map", large)) < 50_000
        assert state == new_state()

    def test_a_name_beyond_the_length_field_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(state_module, "MAX_U32", 8)
        state, other = new_state(), new_state()
        state.set_operator_state("x" * 9, b"")
        other.set_source_offset("x" * 9, 0)
        with pytest.raises(InvalidInputError, match="operator name of 9 is above"):
            state.serialize()
        with pytest.raises(InvalidInputError, match="source name of 9 is above"):
            other.serialize()

    def test_more_entries_than_the_count_field_holds_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(state_module, "MAX_U32", 1)
        state, other = new_state(), new_state()
        for name in "ab":
            state.set_operator_state(name, b"")
            other.set_source_offset(name, 0)
        with pytest.raises(InvalidInputError, match="operator count of 2"):
            state.serialize()
        with pytest.raises(InvalidInputError, match="source count of 2"):
            other.serialize()


def failure(data: bytes) -> tuple[str, int]:
    """Give what the reader complained about, and where, after checking that the message says so too."""
    with pytest.raises(DeserializationError) as caught:
        CheckpointState.deserialize("orders", data)
    facts = vars(caught.value)
    assert f"stream 'orders': {facts['what']} at byte {facts['offset']}: " in str(caught.value)
    assert facts["stream_id"] == "orders"
    return facts["what"], facts["offset"]


def peak_bytes(call: Callable[[], object]) -> int:
    """Give the most memory that Python held at one time during a call that ends in a CatalogError."""
    tracemalloc.start()
    try:
        with pytest.raises(CatalogError):
            call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class TestMalformed:
    @pytest.mark.parametrize("size", range(24))
    def test_less_than_a_header_is_refused(self, size: int) -> None:
        assert failure(GOLDEN[:size]) == ("header", 0)

    @pytest.mark.parametrize("size", range(24, 28))
    def test_a_truncated_operator_count_is_refused(self, size: int) -> None:
        assert failure(GOLDEN[:size]) == ("operator count", 24)

    # Behind a count, what is cut off shows at the count until its entries could fit, then at the field itself.
    @pytest.mark.parametrize(
        ("sizes", "expected"),
        [
            (range(28, 44), ("operator count", 24)),
            (range(44, 47), ("operator name", 44)),
            (range(47, 51), ("operator state length", 47)),
            (range(51, 54), ("operator state", 51)),
            (range(55, 58), ("source count", 54)),
            (range(58, 82), ("source count", 54)),
            (range(82, 83), ("source name", 78)),
            (range(83, 91), ("source offset", 83)),
        ],
    )
    def test_a_state_cut_off_anywhere_is_refused_where_it_breaks(self, sizes: range, expected: tuple[str, int]) -> None:
        assert {failure(GOLDEN[:size]) for size in sizes} == {expected}

    @pytest.mark.parametrize("size", range(4))
    def test_a_truncated_operator_name_length_is_refused(self, size: int) -> None:
        first = text(b"a long first name") + NONE
        assert failure(HEADER + u32(2) + first + bytes(size)) == ("operator name length", 28 + len(first))

    @pytest.mark.parametrize("size", range(4))
    def test_a_truncated_source_name_length_is_refused(self, size: int) -> None:
        first = text(b"a long first name") + bytes(8)
        assert failure(HEADER + NONE + u32(2) + first + bytes(size)) == ("source name length", 32 + len(first))

    @pytest.mark.parametrize("size", [1, 2, 3])
    def test_a_partial_source_count_is_not_taken_for_no_sources(self, size: int) -> None:
        assert failure(HEADER + NONE + bytes(size)) == ("source count", 28)

    @pytest.mark.parametrize("extra", [b"\0", b"\0\0\0", bytes(100)])
    def test_trailing_bytes_are_refused(self, extra: bytes) -> None:
        assert failure(GOLDEN + extra) == ("trailing bytes", 91)

    @pytest.mark.parametrize(
        ("data", "expected"),
        [
            (HEADER + u32(1) + HUGE + bytes(8), ("operator name", 32)),
            (HEADER + u32(1) + text(b"map") + HUGE + bytes(8), ("operator state", 39)),
            (HEADER + NONE + u32(1) + HUGE + bytes(12), ("source name", 36)),
            (HEADER + u32(1) + text(b"map") + u32(9) + bytes(8), ("operator state", 39)),
        ],
    )
    def test_a_length_that_runs_past_the_end_is_refused(self, data: bytes, expected: tuple[str, int]) -> None:
        assert failure(data) == expected

    @pytest.mark.parametrize(
        ("data", "expected"),
        [
            (HEADER + HUGE, ("operator count", 24)),
            (HEADER + u32(3) + bytes(23), ("operator count", 24)),
            (HEADER + NONE + HUGE, ("source count", 28)),
            (HEADER + NONE + u32(2) + bytes(23), ("source count", 28)),
        ],
    )
    def test_a_count_that_runs_past_the_end_is_refused(self, data: bytes, expected: tuple[str, int]) -> None:
        assert failure(data) == expected

    def test_the_smallest_entries_fill_their_count_exactly(self) -> None:
        state = CheckpointState.deserialize("orders", HEADER + u32(1) + bytes(8) + u32(1) + bytes(12))
        assert (state.operator_states, state.source_offsets) == ({"": b""}, {"": 0})

    def test_a_huge_count_allocates_nothing_even_before_valid_entries(self) -> None:
        names = [text(b"%d" % number) for number in range(20_000)]
        operators = HEADER + HUGE + b"".join(name + NONE for name in names)
        sources = HEADER + NONE + HUGE + b"".join(name + bytes(8) for name in names)
        for data in (operators, sources):
            assert peak_bytes(lambda data=data: CheckpointState.deserialize("orders", data)) < 50_000  # type: ignore[misc]

    def test_a_huge_length_allocates_nothing(self) -> None:
        large = bytes(1 << 20)
        for start in (HEADER + u32(1) + HUGE, HEADER + u32(1) + NONE + HUGE, HEADER + NONE + u32(1) + HUGE):
            data = start + large
            assert peak_bytes(lambda data=data: CheckpointState.deserialize("orders", data)) < 50_000  # type: ignore[misc]

    @pytest.mark.parametrize(
        ("name", "bad_byte"),
        [(b"\xff", 0), (b"ab\xc3", 2), (b"a\xed\xa0\x80", 1), (b"abc\xc0\xaf", 3)],
        ids=["no start byte", "cut off", "surrogate", "overlong"],
    )
    def test_invalid_utf8_is_refused_at_the_bad_byte(self, name: bytes, bad_byte: int) -> None:
        assert failure(HEADER + u32(1) + text(name) + NONE) == ("operator name", 32 + bad_byte)
        assert failure(HEADER + NONE + u32(1) + text(name) + bytes(8)) == ("source name", 36 + bad_byte)

    def test_a_name_twice_in_a_section_is_refused_at_the_second(self) -> None:
        operator, source = text(b"map") + NONE, text(b"kafka") + bytes(8)
        assert failure(HEADER + u32(2) + operator * 2) == ("operator name", 43)
        assert failure(HEADER + NONE + u32(2) + source * 2) == ("source name", 53)

    @pytest.mark.parametrize("character", [b"x", "\U0001f600".encode()], ids=["ascii", "four bytes each"])
    def test_a_name_that_could_not_be_written_again_is_refused(self, character: bytes) -> None:
        assert failure(HEADER + u32(1) + text(character * 513) + NONE) == ("operator name", 32)
        assert failure(HEADER + NONE + u32(1) + text(character * 513) + bytes(8)) == ("source name", 36)
