"""Whatever is cut, shared, purged and swept: every live checkpoint comes back as it was, and nothing else is left."""

import random
import tempfile
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalog import CheckpointManifest, cutting
from catalog.cutting import Cutting, chunk_rows
from catalog.sweep import sweep
from catalog.testing import FakeClock
from catalog.testing.native import NativeHarness
from catalog.testing.stream_factory_suite import AT_ONCE, CatalogCheckpoints

SMALL = {
    "CHUNK_BYTES": 1024,
    "SHARED_FROM_BYTES": 64,
    "CDC_MIN_BYTES": 64,
    "CDC_AVERAGE_BYTES": 256,
    "CDC_MAX_BYTES": 1024,
    "_CDC_WINDOW_BYTES": 4096,
    "BATCH_ROWS": 8,
    "PART_ROWS": 3,
}
"""Chunks of which a few kilobytes are many."""
COLUMNS = {"stream": "s", "checkpoint_key": "k", "attempt": "a", "path": "state.bin"}


@contextmanager
def small_chunks():
    with patch.multiple(cutting, **SMALL):
        yield


@st.composite
def states(draw):
    """Bytes that look random, with runs and repetitions in them."""
    parts = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6000), st.booleans()), max_size=4))
    return b"".join(bytes([seed]) * size if run else random.Random(seed).randbytes(size) for seed, size, run in parts)


def cut(state, at, cutting):
    """Return the chunks of a state that arrives in these pieces."""
    bounds = [0, *sorted(one % (len(state) + 1) for one in at), len(state)]
    pieces = [state[begin:end] for begin, end in pairwise(bounds)]
    return [bytes(row["data"]) for row in chunk_rows({**COLUMNS, "cutting": cutting}, pieces)]


@given(state=states(), at=st.lists(st.integers(0, 30_000), max_size=8), cutting=st.sampled_from(Cutting))
def test_chunks_are_the_same_however_the_pieces_arrive_and_make_up_the_whole(state, at, cutting):
    with small_chunks():
        chunks = cut(state, at, cutting)
        assert b"".join(chunks) == state
        assert chunks == cut(state, [], cutting)
        assert all(len(one) <= 1024 for one in chunks)


@given(seed=st.integers(0, 9), size=st.integers(9000, 20_000), front=st.binary(min_size=1, max_size=3000))
def test_bytes_inserted_at_the_front_move_the_cuts_by_content_only_there(seed, size, front):
    state = random.Random(seed).randbytes(size)
    with small_chunks():
        before, after = cut(state, [], Cutting.CONTENT), cut(front + state, [], Cutting.CONTENT)
    new = sum(len(one) for one in set(after) - set(before))
    assert new <= len(front) + 6 * 1024


@st.composite
def edits(draw):
    """A change of a state: bytes put in the place of others."""
    return draw(st.integers(0, 9000)), draw(st.integers(0, 3000)), draw(states())


steps = st.one_of(
    st.tuples(st.just("save"), edits(), st.sampled_from(Cutting), st.sampled_from(["share", "alone", "other process"])),
    st.tuples(st.just("save from"), edits(), st.sampled_from(Cutting), st.integers(0, 5)),
    st.tuples(st.just("purge"), st.integers(0, 5)),
    st.tuples(st.just("sweep")),
)


@pytest.fixture(scope="module")
def harness(tmp_path_factory):
    return NativeHarness(tmp_path_factory.mktemp("sharing") / "catalog", FakeClock(), durable=False, maintain_every=9)


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
@given(steps=st.lists(steps, min_size=3, max_size=9))
def test_every_live_checkpoint_loads_whatever_went_before_and_in_the_end_nothing_is_left(harness, steps):
    with small_chunks(), tempfile.TemporaryDirectory() as unique:
        job = CatalogCheckpoints(harness, Path(unique).name)
        state, live = random.Random(1).randbytes(5000), {}
        for step in steps:
            if step[0] == "purge" and live:
                gone = sorted(live)[step[1] % len(live)]
                job.purge(gone)
                del live[gone]
            elif step[0] == "sweep":
                sweep(job.stream, AT_ONCE)
            elif step[0].startswith("save"):
                _, (at, length, new), cutting, how = step
                state = state[:at] + new + state[at + length :]
                store = harness.catalog.store(job.name) if how == "other process" else job.store
                options = {"previous": sorted(live)[how % len(live)] if live else None} if how in range(6) else {}
                number = store.next_id()
                manifest = CheckpointManifest.new(number, 1)
                store.save_with_state(manifest, state, share=how != "alone", cutting=cutting, **options)
                live[number] = state
            if step[0] == "sweep":
                assert {number: job.store.load_state_data(number) for number in live} == live
        for number, expected in live.items():
            assert b"".join(job.store.iter_state_data(number)) == expected
        if live:
            job.purge(*sorted(live))
        sweep(job.stream, AT_ONCE)
        assert job.artifacts() == 0
