"""The contract of the checkpoint store of seed 004, as tests that any catalog can run.

    class TestMyStore(CheckpointStoreSuite):
        @pytest.fixture(scope="class")
        @classmethod
        def harness(cls) -> Harness:
            return MyHarness(...)

Every test has a stream of its own, so the tests of a class share one catalog and need no order.
"""

import asyncio
import hashlib
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from catalog import keys
from catalog.cutting import SharedFile
from catalog.errors import (
    AbandonedError,
    ArtifactNotFoundError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    CorruptError,
    InvalidInputError,
    PurgedError,
    TrashedError,
)
from catalog.handles import CheckpointedStateScope
from catalog.manifest import CheckpointManifest, CheckpointManifestV2, ConnectorCheckpoint, OperatorCheckpoint
from catalog.protocol import Draft, Stream
from catalog.retention import Plan, Planner
from catalog.store import CheckpointStore
from catalog.testing.harness import Harness, Held

Call = Callable[[], object]

AT_ONCE = timedelta(0)
A_TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
EXTERNAL = {"join": OperatorCheckpoint(external=True, external_length=3)}


def manifest(checkpoint_id: int, *, epoch: int = 1, **fields: Any) -> CheckpointManifest:
    """Return a new manifest."""
    return CheckpointManifest.new(checkpoint_id, epoch, **fields)


def with_sinks(checkpoint_id: int, **statuses: Any) -> CheckpointManifest:
    """Return a new manifest whose sinks have these statuses."""
    return manifest(checkpoint_id, sink_commit_statuses=statuses)


def sha256(data: bytes) -> str:
    """Return a hash as manifests write it."""
    return hashlib.sha256(data).hexdigest()


class CheckpointStoreSuite:
    """Subclass it with a class-scoped fixture `harness`."""

    @pytest.fixture
    def stream(self) -> str:
        """A stream that nobody else uses, with a name that quoting has to get right."""
        return f"{uuid.uuid4()} a/../b 'c' \"d\" `e` \\f g=h 50%25 \t\u2028\u2029\x85🚰é/"

    @pytest.fixture
    def store(self, harness: Harness, stream: str) -> CheckpointStore:
        """The store of that stream."""
        return harness.catalog.store(stream)

    # -- saving and loading ----------------------------------------------------------------------------------------

    def test_an_empty_stream_has_nothing_and_starts_fresh(self, store: CheckpointStore) -> None:
        assert store.load_latest() is None
        assert store.load_by_id(1) is None
        assert store.load_state_data(1) is None
        assert (store.list_ids(), store.list()) == ([], [])
        assert (store.next_id(), store.vnode_count()) == (1, 256)
        assert (store.prune(1), store.cleanup_orphans(AT_ONCE)) == (0, 0)
        report = store.recover_latest_validated()
        assert (report.chosen_id, report.skipped, report.examined) == (None, (), 0)
        missing = store.validate_checkpoint(1)
        assert [(missing.valid, issue.rule) for issue in missing.issues] == [(False, "manifest_missing")]
        assert "not found" in str(missing.issues[0])

    def test_the_highest_id_is_latest_whatever_the_order_of_saves(self, store: CheckpointStore) -> None:
        for checkpoint_id in (1, 10, 5):
            store.save(manifest(checkpoint_id, epoch=100 + checkpoint_id))
        latest, five = store.load_latest(), store.load_by_id(5)
        assert latest is not None
        assert five is not None
        assert (latest.checkpoint_id, five.epoch) == (10, 105)
        assert store.list() == [(1, 101), (5, 105), (10, 110)]
        assert store.list_ids() == [1, 5, 10]
        assert store.load_by_id(7) is None

    def test_a_full_manifest_and_a_bare_one_round_trip(self, store: CheckpointStore) -> None:
        position = ConnectorCheckpoint(offsets={"partition-0": "1234"}, epoch=7, metadata={"topic": "a 'b' \\"})
        full = manifest(
            1,
            epoch=keys.U64_MAX,
            timestamp_ms=keys.U64_MAX,
            source_offsets={"kafka": position},
            sink_epochs={"delta": keys.U64_MAX},
            sink_commit_statuses={"delta": "Committed", "pg": "Pending", "s3": {"Failed": "no 'space'\nleft"}},
            table_offsets={"dim": {"offsets": {"lsn": "0/1234ABCD"}, "epoch": 1}},
            operator_states={"window": OperatorCheckpoint.from_bytes(b"\0\xff"), "map": {"state_b64": ""}, **EXTERNAL},
            table_store_checkpoint_path="s3://b/k=1/ö",
            watermark=-(2**63),
            source_watermarks={"kafka": 2**63 - 1},
            source_names=["pg", "kafka"],
            sink_names=["s3", "delta", "pg"],
            pipeline_hash=0xDEADBEEFCAFE1234,
            vnode_count=65535,
            of_a_later_version={"deep": [1, None, "🚰"]},
        )
        store.save_with_state(full, b"abc")
        bare = CheckpointManifest.from_json('{"version":0,"checkpoint_id":2,"epoch":0,"timestamp_ms":0}')
        store.save(bare)
        loaded = store.load_by_id(1)
        assert loaded is not None
        assert loaded.model_copy(update={"state_checksum": None}) == full
        assert loaded.source_names == ["kafka", "pg"]
        assert loaded.canonical().count("of_a_later_version") == 1
        assert store.load_by_id(2) == bare
        assert bare.vnode_count == 0

    def test_state_comes_back_in_order_from_pieces_and_from_a_file_and_wrong_bytes_never_do(
        self, harness: Harness, store: CheckpointStore, stream: str, tmp_path: Path
    ) -> None:
        state = bytes(range(256)) * (9 << 12) + b"the end"  # 9 MiB and a bit: three chunks

        def pieces() -> Iterator[bytes]:
            for start in range(0, len(state), 1_000_003):
                yield state[start : start + 1_000_003]

        file = tmp_path / "state of 'stream' 🚰"
        file.write_bytes(b"from a file")
        store.save_with_state(manifest(1), pieces())
        store.save_with_state(manifest(2), file)
        chunks = list(store.iter_state_data(1))
        assert b"".join(chunks) == state
        assert max(map(len, chunks)) <= 4 << 20
        assert store.load_state_data(2) == b"from a file"
        harness.corrupt_state(stream, keys.integer_key(1))
        with pytest.raises(CorruptError):
            next(store.iter_state_data(1))

    def test_no_state_and_zero_bytes_and_some_bytes_are_three_things(
        self, harness: Harness, store: CheckpointStore, stream: str
    ) -> None:
        given: list[Any] = [None, [], [b"ab", b"", bytearray(b"c")]]
        for checkpoint_id, state in enumerate(given, start=1):
            store.save_with_state(manifest(checkpoint_id), state)
        assert [store.load_state_data(checkpoint_id) for checkpoint_id in (1, 2, 3)] == [None, b"", b"abc"]
        sums = [loaded.state_checksum for one in (1, 2, 3) if (loaded := store.load_by_id(one))]
        assert sums == [None, sha256(b""), sha256(b"abc")]
        assert [store.validate_checkpoint(one).issues for one in (1, 2)] == [(), ()]
        assert harness.artifact_rows(stream) == 2
        with pytest.raises(ArtifactNotFoundError):
            next(store.iter_state_data(1))

    def test_state_without_a_manifest_is_invisible_until_a_manifest_takes_it(
        self, harness: Harness, store: CheckpointStore, stream: str
    ) -> None:
        store.save_state_data(1, [b"first", b" try"])
        store.save_state_data(1, b"abc")
        assert (store.list_ids(), store.load_latest(), store.load_by_id(1)) == ([], None, None)
        other = harness.catalog.store(stream)
        assert other.load_state_data(1) == b"abc"
        store.save(manifest(1))
        other.save_state_data(2, b"xyz")
        store.save(manifest(2, operator_states=EXTERNAL))  # staged by one process, saved by another
        with pytest.raises(CheckpointExistsError):
            other.save_state_data(1, b"too late")
        assert store.cleanup_orphans(AT_ONCE) == 1, "the first try, and nothing that was taken over"
        assert [other.load_state_data(1), other.load_state_data(2)] == [b"abc", b"xyz"]
        assert store.validate_checkpoint(2).issues == ()

    def test_a_checksum_chooses_among_the_states_that_were_staged(
        self, harness: Harness, store: CheckpointStore, stream: str
    ) -> None:
        harness.catalog.store(stream).save_state_data(1, b"meant")
        harness.clock.advance(timedelta(seconds=1))
        harness.catalog.store(stream).save_state_data(1, b"of somebody else")
        store.save(manifest(1, state_checksum=sha256(b"meant")))
        assert store.load_state_data(1) == b"meant"
        assert store.validate_checkpoint(1).valid

    @pytest.mark.parametrize("inline", [{}, {"op": OperatorCheckpoint.from_bytes(b"inline")}])
    def test_a_checksum_of_another_state_is_refused_before_anything_goes(
        self, harness: Harness, stream: str, inline: dict[str, OperatorCheckpoint]
    ) -> None:
        store = harness.catalog.store(stream, max_retained=1)
        store.save_with_state(manifest(1, operator_states=inline), b"one")
        newest = store.load_latest()
        assert newest is not None
        store.save_state_data(2, b"two")
        for checksum in (newest.state_checksum, sha256(b"three"), "nonsense"):
            with pytest.raises(InvalidInputError, match="leave state_checksum None"):
                store.save(newest.model_copy(update={"checkpoint_id": 2, "epoch": 2, "state_checksum": checksum}))
        assert (store.list_ids(), store.recover_latest_validated().chosen_id) == ([1], 1)
        store.save(newest.model_copy(update={"checkpoint_id": 2, "epoch": 2, "state_checksum": None}))
        assert (store.list_ids(), store.load_state_data(2)) == ([2], b"two")
        assert store.validate_checkpoint(2).valid

    def test_a_yes_or_no_that_is_neither_is_refused_before_anything_goes(
        self, harness: Harness, store: CheckpointStore, stream: str
    ) -> None:
        store.save(with_sinks(1, delta="Pending"))
        unclear: Any = "no"
        for call in (
            later(store.prune, 0, allow_empty=unclear),
            later(store.recover_latest_validated, allow_pending=unclear),
            later(store.recover_latest_validated, lenient=unclear),
            later(harness.catalog.recover, stream, allow_pending=unclear),
            later(store.save_with_state, manifest(2), b"state", share=unclear),
            later(store.stream_factory, 2, share=unclear),
            later(harness.catalog.apply_retention, [], [stream], dry_run=unclear),
            later(harness.catalog.clean_up, [stream], dry_run=None),
            later(harness.catalog.compact, dry_run=0),
        ):
            with pytest.raises(InvalidInputError, match="must be true or false"):
                call()
        assert store.list_ids() == [1]

    def test_state_that_was_let_go_is_an_error_and_no_fresh_start(self, store: CheckpointStore) -> None:
        for checkpoint_id in (1, 2):
            store.save_with_state(manifest(checkpoint_id), b"state")
        store.prune(1)
        assert (store.load_by_id(1), store.load_state_data(3)) == (None, None)
        with pytest.raises(TrashedError):
            store.load_state_data(1)

    def test_a_checksum_that_inline_state_does_not_have_is_refused(self, store: CheckpointStore) -> None:
        inline = manifest(1, operator_states={"op": OperatorCheckpoint.from_bytes(b"inline")})
        with pytest.raises(InvalidInputError, match="leave state_checksum None"):
            store.save(inline.model_copy(update={"state_checksum": sha256(b"other")}))
        assert store.list_ids() == []
        store.save(inline.model_copy(update={"state_checksum": inline.inline_hash()}))
        assert store.validate_checkpoint(1).valid

    def test_one_that_has_handles_and_no_state_is_healthy(
        self, harness: Harness, store: CheckpointStore, stream: str
    ) -> None:
        factory = store.stream_factory(1, threshold=0)
        with factory.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE) as output:
            output.write(b"of a handle")
            handle = output.close_and_get_handle()
        assert handle is not None
        store.save_with_handles(manifest(1, operator_handles={"op": {"state": handle}}), factory)
        assert store.validate_checkpoint(1).issues == ()
        assert store.load_state_data(1) is None
        with pytest.raises(ArtifactNotFoundError):
            list(store.iter_state_data(1))
        harness.corrupt_manifest(stream, keys.integer_key(1))
        with pytest.raises(CorruptError):  # nobody can tell any more that it had none
            store.load_state_data(1)

    def test_nothing_goes_because_of_one_whose_state_nobody_has_staged(self, harness: Harness, stream: str) -> None:
        store = harness.catalog.store(stream, max_retained=1)
        store.save_with_state(manifest(1), b"one")
        newest = store.load_latest()
        assert newest is not None
        store.save(newest.model_copy(update={"checkpoint_id": 2, "epoch": 2}))
        assert (store.list_ids(), store.recover_latest_validated().chosen_id) == ([1, 2], 1)

    @pytest.mark.parametrize("ends", ["before the save", "after it"])
    def test_of_two_writes_of_a_state_the_one_that_began_last_counts_whichever_ends_last(
        self, harness: Harness, store: CheckpointStore, stream: str, ends: str
    ) -> None:
        saved, older = manifest(1), Held(b"older")
        with ThreadPoolExecutor(1) as pool:
            given_up = pool.submit(store.save_state_data, 1, older)
            older.wait_until_begun()
            store.save_state_data(1, b"newer")
            if ends == "before the save":
                older.go_on()
                given_up.result()
            store.save(saved)
            older.go_on()
            given_up.result()
        store.save(saved)
        assert store.load_state_data(1) == harness.catalog.store(stream).load_state_data(1) == b"newer"
        assert store.validate_checkpoint(1).issues == ()

    def test_a_write_that_fails_leaves_the_one_before_it(self, store: CheckpointStore) -> None:
        def failing() -> Iterator[bytes]:
            yield b"newer"
            raise OSError("no state")

        store.save_state_data(1, b"older")
        with pytest.raises(OSError, match="no state"):
            store.save_state_data(1, failing())
        store.save(manifest(1))
        assert store.load_state_data(1) == b"older"

    def test_beside_handles_the_state_staged_here_is_meant_and_a_checksum_chooses_another(
        self, harness: Harness, store: CheckpointStore, stream: str
    ) -> None:
        for checkpoint_id, checksum in ((1, None), (2, sha256(b"theirs"))):
            factory = store.stream_factory(checkpoint_id, threshold=0)
            with factory.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE) as output:
                output.write(b"of a handle")
                handle = output.close_and_get_handle()
            assert handle is not None
            store.save_state_data(checkpoint_id, b"ours")
            harness.clock.advance(timedelta(seconds=1))
            harness.catalog.store(stream).save_state_data(checkpoint_id, b"theirs")
            named = {"op": {"state": handle}}
            store.save(
                manifest(checkpoint_id, operator_handles=named, operator_states=EXTERNAL, state_checksum=checksum)
            )
            with store.open_handle(handle, of=checkpoint_id) as opened:
                assert opened.read() == b"of a handle"
            assert store.validate_checkpoint(checkpoint_id).issues == ()
        assert [store.load_state_data(1), store.load_state_data(2)] == [b"ours", b"theirs"]

    # -- the fence -------------------------------------------------------------------------------------------------

    def test_saving_the_same_content_again_succeeds_and_changes_nothing(
        self, harness: Harness, store: CheckpointStore, stream: str
    ) -> None:
        plain, heavy = with_sinks(1, delta="Pending"), manifest(2)
        store.save_with_state(heavy, b"abc")
        store.save(plain)
        store.update_manifest(plain.with_sink_status("delta", "Committed"))
        before = harness.checkpoint_rows(stream)
        again = harness.catalog.store(stream)
        again.save(plain)
        again.save_with_state(heavy, [b"a", b"bc"])
        assert harness.checkpoint_rows(stream) == before
        one = again.load_by_id(1)
        assert one is not None
        assert one.sink_commit_statuses == {"delta": "Committed"}

    def test_saving_staged_content_again_succeeds(self, store: CheckpointStore) -> None:
        staged = manifest(1)
        store.save_state_data(1, b"abc")
        store.save(staged)
        store.save(staged)
        assert store.load_state_data(1) == b"abc"

    def test_wrong_1_different_content_is_refused_and_a_loser_cannot_touch_the_winners_state(
        self, harness: Harness, store: CheckpointStore, stream: str
    ) -> None:
        loser = harness.catalog.store(stream)
        loser.save_state_data(1, b"loser")
        store.save_with_state(manifest(1, epoch=5), b"winner")
        with pytest.raises(CheckpointExistsError, match="different content"):
            loser.save(manifest(1, epoch=6))
        with pytest.raises(CheckpointExistsError, match="different content"):
            loser.save_with_state(manifest(1, epoch=5, timestamp_ms=1), b"winner")
        assert loser.load_state_data(1) == b"winner"
        assert store.cleanup_orphans(AT_ONCE) == 2
        assert (store.list(), store.load_state_data(1)) == ([(1, 5)], b"winner")

    def test_of_two_savers_at_once_exactly_one_wins_and_the_other_is_told(
        self, harness: Harness, store: CheckpointStore, stream: str
    ) -> None:
        def save(name: str) -> str | None:
            try:
                harness.catalog.store(stream).save_with_state(
                    manifest(1, table_store_checkpoint_path=name), [name.encode()]
                )
            except CheckpointExistsError:
                return None
            return name

        with ThreadPoolExecutor(2) as pool:
            winners = [name for name in pool.map(save, ["left", "right"]) if name]
        assert len(winners) == 1
        saved = store.load_latest()
        assert saved is not None
        assert saved.table_store_checkpoint_path == winners[0]
        assert store.load_state_data(1) == winners[0].encode()

    # -- updates ---------------------------------------------------------------------------------------------------

    def test_wrong_2_an_update_never_touches_integrity_data(self, store: CheckpointStore) -> None:
        inline = {"map": OperatorCheckpoint.from_bytes(b"abc")}
        saved = manifest(1, operator_states=inline, sink_commit_statuses={"delta": "Pending"})
        store.save_with_state(saved, b"state")
        before = store.load_by_id(1)
        assert before is not None
        store.update_manifest(saved.with_sink_status("delta", "Committed"))  # it never had the checksum
        after = store.load_by_id(1)
        assert after is not None
        assert after == before.with_sink_status("delta", "Committed")
        assert after.state_checksum
        assert store.validate_checkpoint(1).issues == ()
        for field, value in {"operator_states": {}, "state_checksum": sha256(b"other")}.items():
            with pytest.raises(InvalidInputError, match="cannot change"):
                store.update_manifest(after.model_copy(update={field: value}))
        with pytest.raises(CheckpointNotFoundError):
            store.update_manifest(after.model_copy(update={"checkpoint_id": 2}))
        assert store.load_latest() == after

    def test_update_commits_a_sink_for_good_and_latest_does_not_move(self, store: CheckpointStore) -> None:
        pending = with_sinks(1, delta="Pending", pg="Pending")
        store.save(pending)
        store.save(manifest(2))
        store.update_manifest(pending.with_sink_status("pg", "Failed", error="disk full"))
        store.update_manifest(pending.with_sink_status("delta", "Committed"))  # knows nothing of pg's failure
        store.update_manifest(pending)
        updated, latest = store.load_by_id(1), store.load_latest()
        assert updated is not None
        assert updated.model_dump()["sink_commit_statuses"] == {"delta": "Committed", "pg": {"Failed": "disk full"}}
        assert latest is not None
        assert latest.checkpoint_id == 2
        assert store.list_ids() == [1, 2]

    def test_updates_at_once_lose_no_sinks_status(self, harness: Harness, store: CheckpointStore, stream: str) -> None:
        pending = with_sinks(1, delta="Pending", pg="Pending")
        store.save(pending)

        def commit(sink: str) -> None:
            harness.catalog.store(stream).update_manifest(pending.with_sink_status(sink, "Committed"))

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(commit, ["delta", "pg"]))
        updated = store.load_by_id(1)
        assert updated is not None
        assert updated.sink_commit_statuses == {"delta": "Committed", "pg": "Committed"}
        assert store.recover_latest_validated().chosen_id == 1

    # -- validation and recovery -----------------------------------------------------------------------------------

    def test_after_recovery_damaged_bytes_are_written_anew_and_never_borrowed(
        self, harness: Harness, stream: str
    ) -> None:
        state = bytes(range(256)) * 1024  # a chunk that is shared
        writer = harness.catalog.store(stream)
        writer.save_with_state(manifest(1), b"good")
        writer.save_with_state(manifest(2), state)
        harness.corrupt_state(stream, keys.integer_key(2))
        for number, store in ((3, writer), (4, harness.catalog.store(stream))):
            assert store.recover_latest_validated().chosen_id in (1, 3)
            store.save_with_state(manifest(number), state)
            assert store.validate_checkpoint(number).valid
            assert store.load_state_data(number) == state
        harness.lose_state(stream, keys.integer_key(3))
        harness.corrupt_state(stream, keys.integer_key(1))
        assert store.recover_latest_validated().chosen_id is None, "4 has the bytes of 3"
        store.save_with_state(manifest(5), state)
        assert store.recover_latest_validated().chosen_id == 5

    def test_wrong_3_an_unreadable_newest_manifest_is_an_error_never_nothing(
        self, harness: Harness, store: CheckpointStore, stream: str
    ) -> None:
        store.save(manifest(1))
        store.save(manifest(2))
        harness.corrupt_manifest(stream, keys.integer_key(2))
        with pytest.raises(CorruptError):
            store.load_latest()
        with pytest.raises(CorruptError):
            store.load_by_id(2)
        assert (store.list_ids(), store.list()) == ([1, 2], [(1, 1)])
        assert [issue.rule for issue in store.validate_checkpoint(2).failures] == ["manifest_unreadable"]
        report = store.recover_latest_validated()
        assert (report.chosen_id, [one for one, _ in report.skipped], report.examined) == (1, [2], 2)
        harness.corrupt_manifest(stream, keys.integer_key(1))
        report = store.recover_latest_validated(allow_pending=True, lenient=True)
        assert (report.chosen_id, [one for one, _ in report.skipped], report.examined) == (None, [2, 1], 2)

    def test_changed_or_lost_state_is_found_and_recovery_falls_back(
        self, harness: Harness, store: CheckpointStore, stream: str
    ) -> None:
        store.save(manifest(1))
        for checkpoint_id in (2, 3):
            store.save_with_state(manifest(checkpoint_id), [b"state"])
        harness.corrupt_state(stream, keys.integer_key(2))
        harness.lose_state(stream, keys.integer_key(3))
        found = [[issue.rule for issue in store.validate_checkpoint(one).failures] for one in (2, 3)]
        assert found == [["checksum_mismatch"], ["state_missing"]]
        for checkpoint_id in (2, 3):
            with pytest.raises(CorruptError):
                store.load_state_data(checkpoint_id)
        strict = store.recover_latest_validated()
        assert (strict.chosen_id, [one for one, _ in strict.skipped], strict.examined) == (1, [3, 2], 3)
        assert all(reason for _, reason in strict.skipped)
        lenient = store.recover_latest_validated(lenient=True)
        assert (lenient.chosen_id, lenient.examined) == (3, 1)
        assert [issue.rule for issue in lenient.issues] == ["state_missing"]
        assert lenient.issues[0].message in lenient.explain()

    def test_wrong_4_external_state_without_a_checksum_is_an_integrity_failure(self, store: CheckpointStore) -> None:
        store.save(manifest(1, operator_states=EXTERNAL))
        result = store.validate_checkpoint(1)
        assert not result.valid
        assert store.recover_latest_validated().chosen_id is None

    def test_the_checksum_covers_inline_and_external_state(self, store: CheckpointStore) -> None:
        inline = {"b": OperatorCheckpoint.from_bytes(b"two"), "a": OperatorCheckpoint.from_bytes(b"")}
        inline_hash = sha256(b"a\0\0b\0dHdv\0")
        mixed = inline | EXTERNAL
        store.save(manifest(1, operator_states=inline))
        store.save_with_state(manifest(2, operator_states=mixed), [b"a", b"bc"])
        store.save_state_data(3, b"abc")
        store.save(manifest(3, operator_states=mixed))
        sums = [loaded.state_checksum for one in (1, 2, 3) if (loaded := store.load_by_id(one))]
        assert sums == [inline_hash, sha256(inline_hash.encode() + b"abc"), sha256(inline_hash.encode() + b"abc")]
        assert [store.validate_checkpoint(one).issues for one in (1, 2)] == [(), ()]

    def test_oddities_are_warnings_and_epoch_zero_is_a_failure(self, store: CheckpointStore) -> None:
        odd = CheckpointManifest.from_dict(
            {
                "version": 0,
                "checkpoint_id": 1,
                "epoch": 1,
                "timestamp_ms": 0,
                "sink_epochs": {"a": 1, "b": 1},
                "sink_commit_statuses": {"a": "Committed"},
                "source_names": ["kafka"],
                "source_offsets": {"pg": {"offsets": {}, "epoch": 1}},
            }
        )
        store.save(odd)
        store.save(manifest(2, epoch=0, vnode_count=128))
        result = store.validate_checkpoint(1)
        assert result.valid
        assert {issue.rule for issue in result.warnings} == {
            "version_zero", "timestamp_zero", "sink_without_status", "source_unknown", "vnode_count_legacy",
        }  # fmt: skip
        zero = store.validate_checkpoint(2)
        assert [issue.rule for issue in zero.failures] == ["epoch_zero"]
        assert [issue.rule for issue in zero.warnings] == ["vnode_count_mismatch"]
        assert store.with_vnode_count(128).validate_checkpoint(2).warnings == ()
        assert store.recover_latest_validated().chosen_id == 1

    def test_wrong_7_recovery_passes_over_pending_and_failed_sinks_unless_told(self, store: CheckpointStore) -> None:
        store.save(with_sinks(2, delta="Committed", pg="Pending"))
        pending = store.recover_latest_validated()
        assert (pending.chosen_id, pending.examined) == (None, 1), "all pending is a fresh start"
        store.save(with_sinks(1, delta="Committed", pg="Committed"))
        store.save(with_sinks(3, delta={"Failed": "no"}))
        report = store.recover_latest_validated()
        assert (report.chosen_id, report.examined) == (1, 3)
        assert [one for one, _ in report.skipped] == [3, 2]
        assert ["failed" in report.skipped[0][1], "pending" in report.skipped[1][1]] == [True, True]
        assert store.recover_latest_validated(allow_pending=True).chosen_id == 3

    # -- ids -------------------------------------------------------------------------------------------------------

    def test_wrong_8_ids_up_to_the_largest_sort_by_number(self, store: CheckpointStore) -> None:
        ids = [999_999, 1_000_000, 2**63, keys.U64_MAX]
        for checkpoint_id in (keys.U64_MAX, 1_000_000, 2**63, 999_999):
            store.save(manifest(checkpoint_id))
        assert store.list_ids() == ids
        latest, million = store.load_latest(), store.load_by_id(1_000_000)
        assert latest is not None
        assert million is not None
        assert (latest.checkpoint_id, million.checkpoint_id) == (keys.U64_MAX, 1_000_000)
        assert store.prune(2) == 2
        assert store.list_ids() == ids[2:]
        with pytest.raises(InvalidInputError):
            store.next_id()

    def test_wrong_9_the_next_id_is_above_all_that_was_ever_stored(self, store: CheckpointStore) -> None:
        store.save(manifest(1))
        store.save(with_sinks(2, delta="Pending"))
        assert (store.recover_latest_validated().chosen_id, store.next_id()) == (1, 3)
        assert store.prune(0, allow_empty=True) == 2
        assert (store.list_ids(), store.next_id()) == ([], 3)
        store.save_state_data(7, b"given up")
        assert store.cleanup_orphans(AT_ONCE) == 1
        assert store.next_id() == 8

    # -- letting go ------------------------------------------------------------------------------------------------

    def test_prune_removes_all_but_the_newest_and_can_be_undone(self, store: CheckpointStore) -> None:
        store.save_with_state(manifest(1), b"one")
        for checkpoint_id in (2, 3, 4, 5):
            store.save(manifest(checkpoint_id))
        assert store.prune(5) == 0
        assert store.prune(2) == 3
        assert store.list_ids() == [4, 5]
        assert store.load_by_id(1) is None
        assert "not found" in str(store.validate_checkpoint(1).issues[0])
        with pytest.raises(TrashedError, match=f"in the trash until {A_TIME}: restore"):
            store.save(manifest(1))
        store.restore(1)
        assert store.list_ids() == [1, 4, 5]
        assert store.load_state_data(1) == b"one"
        assert store.validate_checkpoint(1).issues == ()
        with pytest.raises(CheckpointNotFoundError):
            store.restore(9)

    def test_auto_prune_leaves_the_newest_and_never_trashes_the_one_being_saved(
        self, harness: Harness, stream: str
    ) -> None:
        store = harness.catalog.store(stream, max_retained=2)
        for checkpoint_id in (3, 4, 5):
            store.save(manifest(checkpoint_id))
        assert store.list_ids() == [4, 5]
        store.save(manifest(1))
        assert store.list_ids() == [1, 4, 5]
        store.restore(3)
        assert store.list_ids() == [1, 3, 4, 5]

    def test_auto_prune_that_fails_never_fails_the_save(self, harness: Harness, stream: str) -> None:
        def broken(_history: object, _now: datetime) -> Plan:
            raise ZeroDivisionError

        class BrokenPlans(Stream):
            def save(self, draft: Draft, prune: Planner | None = None) -> None:
                super().save(draft, broken if prune else None)

        store = CheckpointStore(
            BrokenPlans(harness.catalog.engine, stream, clock=harness.clock, actor="suite"), max_retained=1
        )
        store.save(manifest(1))
        store.save_with_state(manifest(2), b"two")
        assert store.list_ids() == [1, 2]
        assert store.load_state_data(2) == b"two"

    def test_wrong_6_prune_keeps_the_newest_that_recovery_could_choose(self, store: CheckpointStore) -> None:
        store.save(with_sinks(1, delta="Committed"))
        store.save(with_sinks(2, delta="Pending"))
        store.save(manifest(3, epoch=0))
        assert store.prune(1) == 1
        assert store.list_ids() == [1, 3]
        assert store.recover_latest_validated().chosen_id == 1

    def test_prune_to_nothing_must_be_meant_spares_pins_and_recovery_names_what_can_be_undone(
        self, harness: Harness, store: CheckpointStore
    ) -> None:
        for checkpoint_id in (1, 2, 3):
            store.save(manifest(checkpoint_id))
        window = timedelta(hours=2)
        store.pin(1, "audit")
        store.pin(2, "drill", until=harness.clock() + timedelta(hours=1))
        with pytest.raises(InvalidInputError, match="allow_empty"):
            store.prune(0)
        assert store.prune(0, allow_empty=True, undo_for=window) == 1
        assert store.list_ids() == [1, 2]
        three_until = harness.clock() + window
        harness.clock.advance(timedelta(hours=1))
        store.unpin(1)
        assert store.prune(0, allow_empty=True, undo_for=window) == 2
        assert (store.list_ids(), store.load_latest()) == ([], None)
        report = store.recover_latest_validated()
        until = harness.clock() + window
        assert (report.chosen_id, report.examined) == (None, 0)
        assert report.undoable == ((3, three_until), (2, until), (1, until))

    def test_a_pin_never_shortens_another(self, harness: Harness, store: CheckpointStore) -> None:
        for checkpoint_id in (1, 2):
            store.save(manifest(checkpoint_id))
        store.pin(1, "legal hold")
        store.pin(1, "copying", until=harness.clock() + timedelta(hours=1))
        with pytest.raises(InvalidInputError, match="'legal hold', 'copying'"):
            store.unpin(1)
        harness.clock.advance(timedelta(hours=1))
        assert store.prune(1) == 0
        with pytest.raises(InvalidInputError, match="no pin 'copy'"):
            store.unpin(1, "copy")
        store.unpin(1, "legal hold")
        store.unpin(1)
        store.unpin(1)
        assert store.prune(1) == 1

    def test_after_the_undo_window_bytes_go_and_the_id_is_closed_for_ever(
        self, harness: Harness, store: CheckpointStore, stream: str
    ) -> None:
        first = manifest(1)
        store.save_with_state(first, b"one")
        store.save(manifest(2))
        assert store.prune(1, undo_for=timedelta(hours=2)) == 1
        harness.clock.advance(timedelta(hours=1))
        assert store.cleanup_orphans(AT_ONCE) == 0
        assert harness.artifact_rows(stream) == 1
        harness.clock.advance(timedelta(hours=2))
        store.cleanup_orphans(AT_ONCE)
        assert harness.artifact_rows(stream) == 0
        assert [row["change"] for row in harness.checkpoint_rows(stream)] == ["purged", "saved"]
        with pytest.raises(PurgedError, match=f"was purged at {A_TIME}: take the next id"):
            store.save(first)
        with pytest.raises(PurgedError):
            store.restore(1)
        assert (store.list_ids(), store.load_by_id(1), store.next_id()) == ([2], None, 3)

    def test_orphaned_state_is_cleaned_up_once_and_its_id_is_closed(
        self, harness: Harness, store: CheckpointStore, stream: str
    ) -> None:
        store.save_with_state(manifest(1), b"live")
        store.save_state_data(2, b"orphan")
        assert store.cleanup_orphans(AT_ONCE) == 1
        assert store.cleanup_orphans(AT_ONCE) == 0
        assert (harness.artifact_rows(stream), store.load_state_data(1)) == (1, b"live")
        with pytest.raises(AbandonedError, match=f"was given up at {A_TIME} before"):
            store.save(manifest(2))
        with pytest.raises(AbandonedError):
            store.save_state_data(2, b"again")
        assert store.list_ids() == [1]

    def test_wrong_5_state_of_a_save_in_progress_is_left_alone_within_the_grace(
        self, harness: Harness, store: CheckpointStore, stream: str
    ) -> None:
        store.save_state_data(1, b"abc")
        sweeper = harness.catalog.store(stream)
        harness.clock.advance(timedelta(minutes=59))
        assert sweeper.cleanup_orphans() == 0
        store.save(manifest(1))
        harness.clock.advance(timedelta(days=2))
        assert sweeper.cleanup_orphans(AT_ONCE) == 0
        assert store.load_state_data(1) == b"abc"

    # -- boundaries ------------------------------------------------------------------------------------------------

    def test_streams_are_apart_even_if_only_a_slash_or_everything_is_missing(
        self, harness: Harness, stream: str
    ) -> None:
        stores = {name: harness.catalog.store(name) for name in (stream, stream.removesuffix("/"), "")}
        checkpoint_id = stores[""].next_id()
        for name, store in stores.items():
            store.save_with_state(manifest(checkpoint_id), name.encode())
        assert stores[stream].prune(0, allow_empty=True) == 1
        assert [store.list_ids()[-1:] for store in stores.values()] == [[], [checkpoint_id], [checkpoint_id]]
        stores[stream].restore(checkpoint_id)
        assert {name: store.load_state_data(checkpoint_id) for name, store in stores.items()} == {
            name: name.encode() for name in stores
        }
        assert set(stores) <= set(harness.catalog.streams())

    def test_a_stream_holds_one_kind_of_ids(self, harness: Harness, store: CheckpointStore, stream: str) -> None:
        theirs = stream + " by UUID"
        new = CheckpointManifestV2.new(keys.new_uuid7(), 1)
        store.save(manifest(1))
        asyncio.run(harness.catalog.checkpointer(theirs).save_manifest(new))
        before = [harness.checkpoint_rows(name) for name in (stream, theirs)]
        ours, misplaced = harness.catalog.checkpointer(stream), harness.catalog.store(theirs)
        with pytest.raises(InvalidInputError, match="another stream"):
            asyncio.run(ours.save_manifest(new))
        with pytest.raises(InvalidInputError, match="another stream"):
            asyncio.run(ours.save_snapshot(new.checkpoint_id, "map", 0, b"abc"))
        with pytest.raises(InvalidInputError, match="another stream"):
            misplaced.save(manifest(1))
        with pytest.raises(InvalidInputError, match="another stream"):
            misplaced.save_with_state(manifest(1), b"abc")
        assert [harness.checkpoint_rows(name) for name in (stream, theirs)] == before
        assert [harness.artifact_rows(name) for name in (stream, theirs)] == [0, 0]

    def test_a_stream_of_the_other_kind_is_neither_read_as_empty_nor_pruned(
        self, harness: Harness, store: CheckpointStore, stream: str
    ) -> None:
        for checkpoint_id in (keys.new_uuid7(), keys.new_uuid7()):
            theirs = CheckpointManifestV2.new(checkpoint_id, 1)
            asyncio.run(harness.catalog.checkpointer(stream).save_manifest(theirs))
        before = harness.checkpoint_rows(stream)
        calls: list[Call] = [
            store.load_latest, store.list, store.list_ids, store.next_id, store.recover_latest_validated,
            lambda: store.prune(1),
        ]  # fmt: skip
        assert _not_refused(calls) == []
        assert harness.checkpoint_rows(stream) == before

    def test_bad_input_is_refused_before_anything_is_written(
        self, harness: Harness, store: CheckpointStore, stream: str, tmp_path: Path
    ) -> None:
        good = manifest(1)

        def saving(**changes: Any) -> Call:
            return lambda: store.save(good.model_copy(update=changes))

        calls: list[Call] = []
        for bad_id in (0, -1, keys.U64_MAX + 1, "1", True, 1.0, None):
            calls += [saving(checkpoint_id=bad_id), later(store.save_state_data, bad_id, b"abc")]
            calls += [later(store.load_by_id, bad_id), later(store.load_state_data, bad_id)]
        for bad_state in ("text", 5, [b"a", "b"], (b"a", None), tmp_path / "absent", SharedFile(tmp_path)):
            calls += [later(store.save_with_state, good, bad_state), later(store.save_state_data, 1, bad_state)]
        for bad_manifest in (None, {}, "{}", good.model_dump(), CheckpointManifestV2.new(keys.new_uuid7(), 1)):
            calls += [later(store.save, bad_manifest), later(store.save_with_state, bad_manifest, b"abc")]
            calls += [later(store.update_manifest, bad_manifest)]
        for bad_count in (-1, "2", 1.5, True, None):
            calls += [later(store.prune, bad_count), later(harness.catalog.store, stream, max_retained=bad_count)]
        for bad_name in ("n" * 513, "\ud800"):
            calls += [later(harness.catalog.store, bad_name), saving(sink_epochs={bad_name: 1})]
            calls += [saving(source_names=[bad_name]), saving(operator_states={bad_name: OperatorCheckpoint()})]
        calls += [saving(epoch=-1), saving(watermark=2**63), saving(vnode_count=65536), saving(extra=object())]
        calls += [saving(operator_states={"map": OperatorCheckpoint(state_b64="%")})]
        calls += [saving(sink_commit_statuses={"delta": "Done"})]
        calls += [later(store.cleanup_orphans, grace) for grace in (timedelta(-1), 5)]
        assert _not_refused(calls) == []
        assert harness.checkpoint_rows(stream) == []
        assert harness.artifact_rows(stream) == 0

    @pytest.mark.parametrize("size", [1, 300_000], ids=["small", "large"])
    def test_a_previous_checkpoint_that_is_not_there_is_refused_before_anything_is_written(
        self, harness: Harness, store: CheckpointStore, stream: str, size: int
    ) -> None:
        store.save(manifest(1))
        store.save(manifest(2))
        store.prune(1)
        before = harness.checkpoint_rows(stream)
        for previous, kind in ((999, CheckpointNotFoundError), (1, TrashedError)):
            for share in (True, False):
                with pytest.raises(kind):
                    store.save_with_state(manifest(3), b"x" * size, previous=previous, share=share)
            with pytest.raises(kind):
                store.stream_factory(3, previous=previous)
        assert (harness.checkpoint_rows(stream), harness.artifact_rows(stream)) == (before, 0)

    def test_bad_input_about_a_saved_checkpoint_is_refused_and_changes_nothing(
        self, harness: Harness, store: CheckpointStore, stream: str
    ) -> None:
        store.save(manifest(1))
        store.save(manifest(2))
        before = harness.checkpoint_rows(stream)
        calls: list[Call] = [later(store.pin, 1, bad) for bad in (5, "\ud800")]
        beyond_utc = datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))
        for until in ("tomorrow", datetime(2999, 1, 1), beyond_utc, harness.clock()):
            calls.append(later(store.pin, 1, "audit", until))
        calls += [later(store.prune, 1, undo_for=bad) for bad in (5, timedelta(-1), timedelta.max)]
        assert _not_refused(calls) == []
        assert harness.checkpoint_rows(stream) == before


def later(function: Callable[..., object], *args: Any, **named: Any) -> Call:
    """Return a call with arguments of any types, for calls that must be refused."""
    return lambda: function(*args, **named)


def _not_refused(calls: list[Call]) -> list[tuple[int, str]]:
    """Return place and outcome of the calls that did not end in InvalidInputError."""
    wrong = []
    for place, call in enumerate(calls):
        try:
            wrong.append((place, f"returned {call()!r}"))
        except InvalidInputError:
            continue
        except Exception as error:  # noqa: BLE001  any other error is the finding
            wrong.append((place, repr(error)))
    return wrong
