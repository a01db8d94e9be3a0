"""What a CheckpointStateStore and its manager promise, as tests: the store around seed 003's CheckpointState.

Every test uses streams of its own. The bytes of a CheckpointState are not the matter here.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from catalog.errors import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    CorruptError,
    InvalidInputError,
    PurgedError,
)
from catalog.keys import U64_MAX, integer_key, new_uuid7
from catalog.manifest import INLINE_THRESHOLD_BYTES, CheckpointManifest, CheckpointManifestV2
from catalog.protocol import PRUNE_UNDO
from catalog.retention import PURGE_MARGIN
from catalog.state import CheckpointId, CheckpointState
from catalog.testing.harness import Harness

EMPTY_BYTES = len(CheckpointState.new(CheckpointId("", 0)).serialize()) + len(b"\0\0\0\0op\0\0\0\0")
"""Size of a serialized state whose operator `op` has no bytes."""


def state_of(stream: str, sequence: int, state: bytes = b"state", **fields: Any) -> CheckpointState:
    """Return a state with one operator."""
    return CheckpointState(CheckpointId(stream, sequence), {"op": state}, **fields)


class CheckpointStateStoreSuite:
    """Subclass it and provide a class-scoped fixture `harness`."""

    @pytest.fixture
    def stream(self, request: pytest.FixtureRequest) -> str:
        """A new stream, under a name that quoting gone wrong would stumble over."""
        return f'it\'s 100% "{request.node.name}"; a=b\\c:*?#[ü🎈]\u2028\u2029\x85/../{new_uuid7()}/'

    def test_the_highest_sequence_is_latest_in_whatever_order_they_were_saved(
        self, harness: Harness, stream: str
    ) -> None:
        store, other = harness.catalog.state_store(), stream + "2"
        assert store.latest(stream) is None
        assert store.load(stream, 0) is None
        assert store.list(stream) == []

        for sequence in (10, 0, 9):
            store.save(state_of(stream, sequence, bytes([sequence])))
        assert store.list(stream) == [0, 9, 10]
        assert store.latest(stream) == state_of(stream, 10, b"\x0a")
        assert store.load(stream, 0) == state_of(stream, 0, b"\0")
        assert store.load(stream, 1) is None

        # Another stream has its own sequences, the same numbers among them.
        store.save(state_of(other, 9, b"other"))
        assert store.list(stream) == [0, 9, 10]
        assert store.list(other) == [9]
        assert store.latest(other) == state_of(other, 9, b"other")

    def test_a_state_comes_back_whole_in_a_new_store_and_small_ones_need_no_artifact(
        self, harness: Harness, stream: str
    ) -> None:
        created_at = datetime(2024, 2, 29, 23, 59, 59, 123457, tzinfo=timezone(timedelta(hours=-9, minutes=-30)))
        state = CheckpointState(
            CheckpointId(stream, U64_MAX, created_at),
            {"": b"", "a/b": bytes(range(256)), "../🎈": b"\0" * 1000},
            {"kafka": U64_MAX, "ü": 2**63, "": 0},
            watermark_ns=U64_MAX,
            event_count=U64_MAX - 1,
            metadata={"": "", "host's": 'a "b"\n\\ 🎈\0', "x" * 2000: "y" * 2000},
        )
        harness.catalog.state_store().save(state)
        for loaded in (
            harness.catalog.state_store().latest(stream),
            harness.catalog.state_store().load(stream, U64_MAX),
        ):
            assert loaded == state
            assert loaded.id.created_at == created_at
        assert harness.artifact_rows(stream) == 0

    def test_a_state_above_one_mebibyte_is_an_artifact(self, harness: Harness, stream: str) -> None:
        store = harness.catalog.state_store()
        largest_inline = state_of(stream, 1, bytes(INLINE_THRESHOLD_BYTES - EMPTY_BYTES))
        assert len(largest_inline.serialize()) == INLINE_THRESHOLD_BYTES
        store.save(largest_inline)
        assert harness.artifact_rows(stream) == 0
        above = state_of(stream, 2, bytes(INLINE_THRESHOLD_BYTES - EMPTY_BYTES + 1), metadata={"size": "large"})
        store.save(above)
        assert harness.artifact_rows(stream) == 1
        assert store.load(stream, 1) == largest_inline
        assert harness.catalog.state_store().latest(stream) == above

        store.save(above)
        with pytest.raises(CheckpointExistsError):
            store.save(state_of(stream, 2, b"\1" * INLINE_THRESHOLD_BYTES))
        harness.catalog.state_store().cleanup_orphans(stream, timedelta(0))
        assert harness.artifact_rows(stream) == 1
        assert store.latest(stream) == above

        harness.corrupt_state(stream, integer_key(2))
        with pytest.raises(CorruptError):
            store.latest(stream)
        harness.lose_state(stream, integer_key(2))
        with pytest.raises(CorruptError):
            store.load(stream, 2)

    def test_the_same_content_again_is_a_success_and_other_content_is_refused(
        self, harness: Harness, stream: str
    ) -> None:
        store = harness.catalog.state_store()
        first = state_of(stream, 3, metadata={"host": "a"})
        store.save(first)
        later = replace(first, id=CheckpointId(stream, 3, first.id.created_at + timedelta(days=1)))
        harness.catalog.state_store().save(later)
        for other in (replace(first, watermark_ns=1), replace(first, metadata={"host": "b"})):
            with pytest.raises(CheckpointExistsError):
                store.save(other)
        loaded = store.latest(stream)
        assert loaded == first
        assert loaded.id.created_at == first.id.created_at

    def test_at_most_n_of_a_stream_stay_and_the_lowest_go_first(self, harness: Harness, stream: str) -> None:
        store, other = harness.catalog.state_store(max_per_stream=2), stream + "2"
        for sequence in (7, 5, 6):
            store.save(state_of(stream, sequence))
        assert store.list(stream) == [6, 7]
        store.save(state_of(other, 1))
        store.save(state_of(stream, 8))
        assert store.list(stream) == [7, 8]
        assert store.list(other) == [1]
        assert store.load(stream, 5) is None

        store.restore(stream, 5)
        assert store.load(stream, 5) == state_of(stream, 5)
        store.save(state_of(stream, 9))
        assert store.list(stream) == [8, 9]

    def test_delete_before_drops_what_is_below_and_can_be_undone(self, harness: Harness, stream: str) -> None:
        store, other = harness.catalog.state_store(), stream + "2"
        with ThreadPoolExecutor(4) as threads:
            saved = (state_of(stream, 0), state_of(stream, 1), state_of(stream, 2), state_of(other, 0))
            list(threads.map(store.save, saved))
        assert store.delete_before(stream, 0) == 0
        assert store.delete_before(stream, 2) == 2
        assert store.list(stream) == [2]
        assert store.load(stream, 1) is None
        assert store.delete_before(stream, 2) == 0

        store.restore(stream, 1)
        assert store.list(stream) == [1, 2]
        assert store.load(stream, 1) == state_of(stream, 1)
        assert store.delete_before(stream, U64_MAX) == 2
        assert store.latest(stream) is None
        assert store.list(other) == [0]
        with pytest.raises(CheckpointNotFoundError):
            store.restore(stream, 3)

    def test_a_deleted_state_goes_with_its_artifact_when_it_cannot_be_undone_any_more(
        self, harness: Harness, stream: str
    ) -> None:
        store = harness.catalog.state_store()
        large = state_of(stream, 1, bytes(INLINE_THRESHOLD_BYTES))
        store.save(large)
        store.delete_before(stream, 2)
        harness.clock.advance(PRUNE_UNDO - timedelta(seconds=1))
        harness.catalog.state_store().cleanup_orphans(stream)
        assert harness.artifact_rows(stream) == 1
        harness.clock.advance(PURGE_MARGIN + timedelta(seconds=1))
        harness.catalog.state_store().cleanup_orphans(stream)
        assert harness.artifact_rows(stream) == 0
        assert store.load(stream, 1) is None
        with pytest.raises(PurgedError):
            store.restore(stream, 1)
        with pytest.raises(PurgedError):
            store.save(state_of(stream, 1))

    def test_a_damaged_state_is_corrupt_and_the_others_are_not(self, harness: Harness, stream: str) -> None:
        store = harness.catalog.state_store()
        store.save(state_of(stream, 1))
        store.save(state_of(stream, 2))
        harness.corrupt_manifest(stream, integer_key(2))
        with pytest.raises(CorruptError):
            store.load(stream, 2)
        with pytest.raises(CorruptError):
            store.latest(stream)
        assert store.list(stream) == [1, 2]
        assert store.load(stream, 1) == state_of(stream, 1)

    def test_a_stream_of_another_format_is_refused(self, harness: Harness, stream: str) -> None:
        store, other = harness.catalog.state_store(), stream + "2"
        harness.catalog.store(stream).save(CheckpointManifest.new(1, 1))
        manifest = CheckpointManifestV2.new(new_uuid7(), 1)
        asyncio.run(harness.catalog.checkpointer(other).save_manifest(manifest))
        for taken, format in ((stream, "manifest-v1"), (other, "manifest-v2")):
            for state in (state_of(taken, 2), state_of(taken, 2, bytes(INLINE_THRESHOLD_BYTES))):
                with pytest.raises(InvalidInputError, match=format):
                    store.save(state)
            assert harness.artifact_rows(taken) == 0
            assert len(harness.checkpoint_rows(taken)) == 1
            with pytest.raises(InvalidInputError, match=format):
                store.list(taken)
            with pytest.raises(InvalidInputError, match=format):
                store.delete_before(taken, U64_MAX)
        with pytest.raises(InvalidInputError, match="manifest-v1"):
            store.load(stream, 1)

    def test_bad_input_is_refused_before_anything_is_written(self, harness: Harness, stream: str) -> None:
        catalog, store = harness.catalog, harness.catalog.state_store()
        no_state: Any
        for no_state in (None, b"", {}, state_of(stream, 1).serialize()):
            with pytest.raises(InvalidInputError):
                store.save(no_state)
        wrong: dict[str, Any]
        for wrong in (
            {"watermark_ns": -1},
            {"event_count": 2**64},
            {"source_offsets": {"kafka": True}},
            {"operator_states": {"x" * 513: b""}},
            {"operator_states": {"op": "text"}},
            {"metadata": {"attempts": 7}},
            {"metadata": {7: "attempts"}},
            {"metadata": {"text": "\ud800"}},
        ):
            with pytest.raises(InvalidInputError):
                store.save(replace(state_of(stream, 1), **wrong))
        sequence: Any
        for sequence in (-1, 2**64, True, "1", 1.0, None):
            with pytest.raises(InvalidInputError):
                store.load(stream, sequence)
            with pytest.raises(InvalidInputError):
                store.delete_before(stream, sequence)
            with pytest.raises(InvalidInputError):
                store.restore(stream, sequence)
        name: Any
        for name in (None, 7, "x" * 513, "\ud800"):
            with pytest.raises(InvalidInputError):
                store.latest(name)
        number: Any
        for number in (0, -1, True, 1.5, "1"):
            with pytest.raises(InvalidInputError):
                catalog.state_store(max_per_stream=number)
            with pytest.raises(InvalidInputError):
                catalog.state_manager(number)
        assert harness.checkpoint_rows(stream) == []
        assert harness.artifact_rows(stream) == 0

    def test_the_manager_counts_each_stream_by_itself_and_asks_for_a_state_only_when_due(
        self, harness: Harness, stream: str
    ) -> None:
        manager, other = harness.catalog.state_manager(3), stream + "2"
        asked = []

        def capture() -> CheckpointState:
            asked.append(stream)
            return state_of(stream, len(asked))

        def never() -> CheckpointState:
            raise AssertionError("no state of this stream is due")

        assert not manager.record(stream, capture)
        assert not manager.record(other, never, 2)
        assert not manager.record(stream, capture)
        assert asked == []
        assert manager.record(stream, capture)
        assert not manager.record(stream, capture, 0)
        assert manager.checkpoints_made == 1
        # Five more are one checkpoint and two events towards the next.
        assert manager.record(stream, capture, 5)
        assert manager.record(stream, capture)
        assert manager.checkpoints_made == len(asked) == 3
        assert manager.store.list(stream) == [1, 2, 3]
        assert manager.store.list(other) == []
        with pytest.raises(InvalidInputError):
            manager.record(stream, capture, -1)

    def test_a_save_of_the_manager_that_fails_stays_due(self, harness: Harness, stream: str) -> None:
        manager = harness.catalog.state_manager(2)
        manager.store.save(state_of(stream, 1, b"taken"))
        with pytest.raises(CheckpointExistsError):
            manager.record(stream, lambda: state_of(stream, 1), 2)
        assert manager.checkpoints_made == 0
        assert manager.record(stream, lambda: state_of(stream, 2), 0)
        assert not manager.record(stream, lambda: state_of(stream, 3), 1)
        assert manager.checkpoints_made == 1
        assert manager.store.list(stream) == [1, 2]
