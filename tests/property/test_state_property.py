"""What holds for every CheckpointState and for every string of bytes."""

import struct
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from catalog.errors import DeserializationError
from catalog.keys import NAME_MAX_CHARS as MAX_NAME_CHARS
from catalog.keys import U64_MAX as MAX_U64
from catalog.state import CheckpointId, CheckpointState

u64s = st.integers(0, MAX_U64)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.integers(0, MAX_NAME_CHARS).map("ü".__mul__)
states = st.builds(
    CheckpointState,
    id=st.builds(CheckpointId, st.just("orders"), u64s),
    operator_states=st.dictionaries(names, st.binary(max_size=40), max_size=6),
    source_offsets=st.dictionaries(names, u64s, max_size=6),
    watermark_ns=u64s,
    event_count=u64s,
)

# Bytes that look like a state for longer than random ones do: small numbers where counts and lengths are expected.
words = st.integers(0, 5).map(lambda number: struct.pack("<I", number))
near_states = st.lists(words | st.binary(max_size=9), max_size=12).map(lambda parts: bytes(24) + b"".join(parts))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """The bytes of a state after one to four changes: bytes replaced, cut out or put in, the end cut off."""
    data = bytearray(draw(states).serialize())
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        stop = draw(st.sampled_from([start, start + 1, start + 4, len(data)]))
        data[start:stop] = draw(st.binary(max_size=8))
    return bytes(data)


def read(data: bytes) -> CheckpointState | None:
    """Give the state, or None when the bytes are refused properly; every other error fails the test."""
    try:
        return CheckpointState.deserialize("orders", data)
    except DeserializationError as error:
        facts, message = vars(error), str(error)
    assert 0 <= facts["offset"] <= len(data)
    assert f"{facts['what']} at byte {facts['offset']}" in message
    return None


@settings(deadline=None)
@given(states)
def test_what_is_written_is_read_back(state: CheckpointState) -> None:
    assert CheckpointState.deserialize("orders", state.serialize()) == state


@settings(deadline=None)
@given(states, st.randoms(use_true_random=False))
def test_the_order_of_insertion_does_not_change_the_bytes(state: CheckpointState, random: Random) -> None:
    shuffled = state.copy()
    shuffled.operator_states = dict(random.sample(list(state.operator_states.items()), len(state.operator_states)))
    shuffled.source_offsets = dict(random.sample(list(state.source_offsets.items()), len(state.source_offsets)))
    assert shuffled.serialize() == state.serialize()


@settings(deadline=None)
@given(states, states)
def test_states_have_equal_bytes_exactly_when_they_are_equal(one: CheckpointState, other: CheckpointState) -> None:
    assert (one.serialize() == other.serialize()) == (one == other)
    assert one.copy().serialize() == one.serialize()


@settings(deadline=None, max_examples=30)  # each example reads as often as it has bytes
@given(states)
def test_only_the_absent_source_section_may_be_cut_off(state: CheckpointState) -> None:
    data = state.serialize()
    no_sources = state.copy()
    no_sources.source_offsets.clear()
    accepted = {size: found for size in range(len(data)) if (found := read(data[:size])) is not None}
    assert accepted == {len(no_sources.serialize()) - 4: no_sources}


@settings(deadline=None, max_examples=400)
@given(st.binary(max_size=200) | near_states | damaged())
def test_any_bytes_are_a_state_that_can_be_written_again_or_a_deserialization_error(data: bytes) -> None:
    state = read(data)
    if state is not None:
        # Equal up to the order of names and an absent source section.
        assert CheckpointState.deserialize("orders", state.serialize()) == state
        assert len(state.serialize()) - len(data) in (0, 4)
