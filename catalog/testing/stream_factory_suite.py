"""The contract of checkpoint streams (seed 001), as tests that any factory can run.

    class TestMyStreams(CheckpointStreamFactorySuite):
        @pytest.fixture
        def checkpoints(self) -> StreamCheckpoints:
            return MyCheckpoints(...)

`CatalogStreamFactorySuite` adds what only a catalog can show; it needs a class-scoped `harness`, as the other suites.
"""

import ctypes
import hashlib
import io
import pickle
import shutil
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any, BinaryIO, Protocol

import pyarrow as pa
import pytest

from catalog import cutting, keys, retention
from catalog.catalog import CheckpointCatalog
from catalog.errors import (
    AbandonedError,
    BasePurgedError,
    CatalogError,
    CheckpointExistsError,
    CheckpointStreamError,
    ConflictError,
    InvalidInputError,
    StreamClosedError,
    UnknownHandleError,
)
from catalog.handles import ArtifactHandle, CheckpointedStateScope, InlineHandle, StateHandle
from catalog.manifest import CheckpointManifest
from catalog.output_stream import PIECE_BYTES, CheckpointStateOutputStream
from catalog.protocol import Draft, Stream
from catalog.store import CheckpointStore
from catalog.stream_factory import STREAM_THRESHOLD_BYTES, CatalogStreamFactory, CheckpointStreamFactory
from catalog.sweep import sweep
from catalog.tables.port import Equals, Table
from catalog.testing.harness import Harness

EXCLUSIVE, SHARED = CheckpointedStateScope
AT_ONCE = timedelta(0)
SMALL = b"rides in its handle"
LARGE = bytes(range(256)) * 128  # 32 KiB: an artifact
HUGE = b"".join(hashlib.sha256(b"%d" % number).digest() * 1024 for number in range(300))  # 9.4 MiB: three chunks


class StreamCheckpoints(Protocol):
    """The checkpoints of one stream, empty at first: what the suite needs besides the factories."""

    def factory(self, checkpoint_id: int, **options: Any) -> CheckpointStreamFactory:
        """Return a factory for a checkpoint; `threshold` and `share` are options."""

    def save(self, factory: Any, handles: Iterable[StateHandle]) -> None:
        """Save the factory's checkpoint with these handles."""

    def delete(self, checkpoint_id: int) -> None:
        """Delete a saved checkpoint for good, with the state that nobody else uses."""

    def open(self, handle: StateHandle) -> BinaryIO:
        """Open a handle as a process would that has written nothing."""

    def artifacts(self) -> int:
        """Return how many pieces of state are stored, in whatever unit; 0 is none."""


class CatalogCheckpoints:
    """A stream of a catalog, as the suite needs it."""

    def __init__(self, harness: Harness, stream: str) -> None:
        """Make it.

        Args:
            harness: the catalog.
            stream: a new stream.
        """
        self.harness = harness
        self.name = stream
        self.store: CheckpointStore = harness.catalog.store(stream)
        self.stream: Stream = harness.catalog.stream(stream)

    def factory(self, checkpoint_id: int, **options: Any) -> CatalogStreamFactory:
        """See StreamCheckpoints."""
        return self.store.stream_factory(checkpoint_id, **options)

    def save(self, factory: CatalogStreamFactory, handles: Iterable[StateHandle]) -> None:
        """See StreamCheckpoints."""
        self.store.save_with_handles(self.manifest(int(factory.key), handles), factory)

    def manifest(self, checkpoint_id: int, handles: Iterable[StateHandle]) -> CheckpointManifest:
        """Return a manifest of an operator that has these handles."""
        named = {str(number): one for number, one in enumerate(handles)}
        return CheckpointManifest.new(checkpoint_id, 1, timestamp_ms=1, operator_handles={"op": named} if named else {})

    def delete(self, checkpoint_id: int) -> None:
        """See StreamCheckpoints."""
        self.purge(checkpoint_id)
        sweep(self.stream)

    def purge(self, *checkpoint_ids: int) -> None:
        """Trash and purge checkpoints, whatever recovery would choose."""
        wanted = [keys.integer_key(one) for one in checkpoint_ids]
        self.stream.trash(lambda history, now: retention.drop(history, wanted, "test", now), AT_ONCE)
        self.harness.clock.advance(timedelta(minutes=6))
        assert self.stream.purge() == wanted

    def open(self, handle: StateHandle) -> BinaryIO:
        """See StreamCheckpoints."""
        return self.harness.catalog.store(self.name).open_handle(handle)

    def artifacts(self) -> int:
        """See StreamCheckpoints; the unit is a row."""
        return self.harness.artifact_rows(self.name)

    def rows(self, checkpoint_id: int) -> list[dict[str, Any]]:
        """Return a checkpoint's artifact rows with their bytes."""
        where = [Equals("stream", self.stream.stream), Equals("checkpoint_key", keys.integer_key(checkpoint_id))]
        columns = ("path", "attempt", "chunk_no", "chunk_size", "held_key", "via", "operator", "scope", "data")
        found: list[dict[str, Any]] = self.harness.catalog.engine.scan(Table.ARTIFACTS, where, columns).to_pylist()
        return found


class Watched:
    """The real engine, which counts what is asked of it, and can be made to fail."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.calls: Counter[str] = Counter()
        self.before: dict[tuple[str, int], Callable[[], object]] = {}
        """What happens before the nth call, counted from 1, of a verb."""

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._engine, name)

        def call(*arguments: Any, **options: Any) -> Any:
            self.calls[name] += 1
            if happening := self.before.get((name, self.calls[name])):
                happening()
            return real(*arguments, **options)

        return call if callable(real) else real


def fails(error: BaseException) -> Callable[[], object]:
    """Return what raises an error."""

    def fail() -> None:
        raise error

    return fail


def write(
    factory: CheckpointStreamFactory, data: bytes, scope: CheckpointedStateScope = SHARED
) -> InlineHandle | ArtifactHandle:
    """Write data to a new stream and return its handle."""
    with factory.create_checkpoint_state_output_stream(scope) as stream:
        stream.write(data)
        handle = stream.close_and_get_handle()
    assert handle is not None
    return handle


def artifact(factory: CheckpointStreamFactory, data: bytes = LARGE) -> ArtifactHandle:
    """Write shared state that is an artifact."""
    handle = write(factory, data)
    assert isinstance(handle, ArtifactHandle)
    return handle


def read(file: BinaryIO) -> bytes:
    """Return all bytes and close the file."""
    with file:
        return file.read()


class CheckpointStreamFactorySuite:
    """Subclass it with a fixture `checkpoints`."""

    @pytest.fixture
    def factory(self, checkpoints: StreamCheckpoints) -> CheckpointStreamFactory:
        """A factory for the first checkpoint."""
        return checkpoints.factory(1)

    @pytest.fixture(params=[EXCLUSIVE, SHARED])
    def stream(
        self, request: pytest.FixtureRequest, factory: CheckpointStreamFactory
    ) -> Iterable[CheckpointStateOutputStream]:
        """An open stream of either scope."""
        with factory.create_checkpoint_state_output_stream(request.param) as stream:
            yield stream

    # -- output ----------------------------------------------------------------------------------------------------

    def test_nothing_written_has_no_handle_and_leaves_nothing(
        self, checkpoints: StreamCheckpoints, stream: CheckpointStateOutputStream
    ) -> None:
        stream.write(b"")
        assert stream.close_and_get_handle() is None
        assert checkpoints.artifacts() == 0

    @pytest.mark.parametrize("threshold", [0, 1, STREAM_THRESHOLD_BYTES, 1 << 20])
    def test_up_to_the_threshold_state_rides_in_its_handle_and_above_it_is_an_artifact(
        self, checkpoints: StreamCheckpoints, threshold: int
    ) -> None:
        options = {} if threshold == STREAM_THRESHOLD_BYTES else {"threshold": threshold}
        factory = checkpoints.factory(1, **options)
        if threshold:
            inline = write(factory, b"x" * threshold)
            assert (type(inline), inline.size_bytes) == (InlineHandle, threshold)
            assert read(factory.open(inline)) == b"x" * threshold
        assert checkpoints.artifacts() == 0
        above = write(factory, b"y" * (threshold + 1))
        assert (type(above), above.size_bytes) == (ArtifactHandle, threshold + 1)
        assert read(factory.open(above)) == b"y" * (threshold + 1)
        assert checkpoints.artifacts() > 0

    @pytest.mark.parametrize("threshold", [-1, (1 << 20) + 1, True, None, 1.0, "1"])
    def test_another_threshold_is_refused(self, checkpoints: StreamCheckpoints, threshold: object) -> None:
        with pytest.raises(InvalidInputError, match="threshold"):
            checkpoints.factory(1, threshold=threshold)

    @pytest.mark.parametrize("data", [SMALL, LARGE], ids=["inline", "artifact"])
    def test_a_handle_is_asked_for_once(
        self, checkpoints: StreamCheckpoints, stream: CheckpointStateOutputStream, data: bytes
    ) -> None:
        stream.write(data)
        handle = stream.close_and_get_handle()
        with pytest.raises(StreamClosedError):
            stream.close_and_get_handle()
        stream.close()
        assert handle is not None
        assert read(checkpoints.open(handle)) == data, "neither takes it back"

    @pytest.mark.parametrize("size", [len(SMALL), len(LARGE), PIECE_BYTES], ids=["inline", "artifact", "on its way"])
    def test_close_discards_and_may_be_called_again(
        self, checkpoints: StreamCheckpoints, stream: CheckpointStateOutputStream, size: int
    ) -> None:
        stream.write(b"x" * size)
        stream.close()
        stream.close()
        assert stream.closed
        assert checkpoints.artifacts() == 0
        with pytest.raises(StreamClosedError):
            stream.close_and_get_handle()

    @pytest.mark.parametrize("ending", ["close", "close_and_get_handle"])
    @pytest.mark.parametrize("error", [OSError, ValueError])
    def test_a_closed_stream_cannot_be_written_but_flushed_and_synced_at_any_time(
        self, stream: CheckpointStateOutputStream, ending: str, error: type[Exception]
    ) -> None:
        for _ in range(2):
            stream.flush()
            stream.sync()
            assert stream.get_pos() == 0
        assert stream.write(b"12") == 2
        stream.flush()
        stream.sync()
        assert stream.write(bytearray(b"345")) == 3
        assert (stream.get_pos(), stream.tell()) == (5, 5)
        getattr(stream, ending)()
        stream.flush()
        stream.sync()
        for late in (lambda: stream.write(b"6"), lambda: stream.writelines([b"6"]), lambda: stream.writelines([])):
            with pytest.raises(error):
                late()
        assert stream.get_pos() == 5

    def test_a_stream_is_written_in_lines_too_and_not_read(
        self, checkpoints: StreamCheckpoints, stream: CheckpointStateOutputStream
    ) -> None:
        stream.writelines([b"one ", bytearray(b"two")])
        for reading in (stream.read, stream.readall, stream.readline, lambda: stream.readinto(bytearray(1))):
            with pytest.raises(io.UnsupportedOperation):
                reading()
        handle = stream.close_and_get_handle()
        assert handle is not None
        assert read(checkpoints.open(handle)) == b"one two"

    def test_an_array_without_elements_is_no_bytes(self, stream: CheckpointStateOutputStream) -> None:
        assert stream.write((ctypes.c_double * 3 * 0)()) == 0
        assert stream.close_and_get_handle() is None

    def test_a_buffer_may_be_filled_again_once_it_is_written(
        self, checkpoints: StreamCheckpoints, factory: CheckpointStreamFactory
    ) -> None:
        buffer, written = bytearray(40_000), hashlib.sha256()
        with factory.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
            for number in range(3):
                buffer[:] = bytes([number]) * len(buffer)
                stream.write(buffer)
                written.update(buffer)
            handle = stream.close_and_get_handle()
        assert handle is not None
        assert hashlib.sha256(read(checkpoints.open(handle))).hexdigest() == written.hexdigest()

    def test_streams_are_written_by_threads_at_once(
        self, checkpoints: StreamCheckpoints, factory: CheckpointStreamFactory
    ) -> None:
        found: dict[int, StateHandle] = {}

        def run(number: int) -> None:
            found[number] = write(factory, bytes([number]) * 30_000)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [read(checkpoints.open(found[number])) for number in range(4)] == [
            bytes([number]) * 30_000 for number in range(4)
        ]

    def test_a_scope_is_exclusive_or_shared(self, factory: CheckpointStreamFactory) -> None:
        for wrong in ("private", None):
            with pytest.raises(InvalidInputError, match="EXCLUSIVE or SHARED"):
                factory.create_checkpoint_state_output_stream(wrong)  # type: ignore[arg-type]

    def test_state_that_is_discarded_is_gone_and_other_state_is_not(
        self, checkpoints: StreamCheckpoints, factory: CheckpointStreamFactory
    ) -> None:
        kept, gone = artifact(factory), artifact(factory, LARGE + b"gone")
        factory.discard([gone, write(factory, SMALL)])
        assert read(factory.open(kept)) == LARGE
        with pytest.raises(OSError, match="not known"):
            factory.open(gone)
        with pytest.raises(UnknownHandleError):
            checkpoints.save(factory, [gone])
        checkpoints.save(factory, [kept])
        factory.discard([kept])
        assert read(checkpoints.open(kept)) == LARGE, "what is saved is not the factory's any more"

    def test_state_that_is_left_out_of_its_checkpoint_goes(
        self, checkpoints: StreamCheckpoints, factory: CheckpointStreamFactory
    ) -> None:
        kept, left, source = artifact(factory), artifact(factory, LARGE + b"left"), artifact(factory, LARGE + b"source")
        duplicates = factory.duplicate([source], SHARED)
        checkpoints.save(factory, [kept, *duplicates])
        with pytest.raises(OSError, match="not known"):
            checkpoints.open(left)
        assert [read(checkpoints.open(one)) for one in (kept, *duplicates)] == [LARGE, LARGE + b"source"]
        checkpoints.delete(1)
        assert checkpoints.artifacts() == 0

    def test_a_saved_checkpoint_is_not_written_any_more(
        self, checkpoints: StreamCheckpoints, factory: CheckpointStreamFactory
    ) -> None:
        kept = artifact(factory)
        late = factory.create_checkpoint_state_output_stream(SHARED)
        late.write(LARGE + b"late")
        checkpoints.save(factory, [kept])
        stored = checkpoints.artifacts()
        with pytest.raises(OSError, match="saved"):
            late.close_and_get_handle()
        assert checkpoints.artifacts() == stored, "what came too late would stay as long as the checkpoint"
        assert read(checkpoints.open(kept)) == LARGE
        for refused in (
            lambda: factory.create_checkpoint_state_output_stream(SHARED),
            lambda: factory.duplicate([], SHARED),
            lambda: factory.reuse_previous_state_handle([]),
        ):
            with pytest.raises(StreamClosedError):
                refused()
        checkpoints.delete(1)
        assert checkpoints.artifacts() == 0

    def test_an_id_is_saved_once(self, checkpoints: StreamCheckpoints) -> None:
        first, second = checkpoints.factory(1), checkpoints.factory(1)
        kept, late = artifact(first), artifact(second, LARGE + b"late")
        checkpoints.save(first, [kept])
        with pytest.raises(CheckpointExistsError):
            checkpoints.save(second, [late])
        assert read(checkpoints.open(kept)) == LARGE

    # -- input -----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("data", [SMALL, LARGE], ids=["inline", "artifact"])
    def test_a_handle_opens_any_number_of_times_as_a_seekable_file(
        self, checkpoints: StreamCheckpoints, factory: CheckpointStreamFactory, data: bytes
    ) -> None:
        handle = write(factory, data)
        with factory.open(handle) as one, checkpoints.open(handle) as other:
            assert one.read(5) == data[:5]
            assert other.read() == data
            assert one.seekable()
            assert one.seek(-3, io.SEEK_END) == len(data) - 3
            assert (one.read(), one.read()) == (data[-3:], b"")
            assert one.seek(2) == 2
            assert one.seek(3, io.SEEK_CUR) == 5
            assert (one.read(2), one.tell()) == (data[5:7], 7)
            one.seek(len(data) + 10)
            assert one.read() == b""
            with pytest.raises((OSError, ValueError)):
                one.seek(-1)
        with pytest.raises(ValueError, match="closed"):
            one.read()

    def test_handles_survive_json(self, checkpoints: StreamCheckpoints, factory: CheckpointStreamFactory) -> None:
        handles = [write(factory, SMALL), write(factory, LARGE)]
        checkpoints.save(factory, handles)
        again = [type(one).model_validate_json(one.model_dump_json()) for one in handles]
        assert again == handles
        assert [read(checkpoints.open(one)) for one in again] == [SMALL, LARGE]
        named = {"op": dict(zip("ab", handles, strict=True))}
        manifest = CheckpointManifest.new(1, 1, operator_handles=named)
        assert CheckpointManifest.from_json(manifest.canonical()).operator_handles == named

    @pytest.mark.parametrize(
        ("wrong", "says"),
        [({"state_b64": "AAAA"}, "checksum"), ({"state_b64": "!!!"}, "base64"), ({"size_bytes": 5}, "size")],
    )
    def test_an_inline_handle_whose_bytes_are_not_its_own_is_refused(
        self, factory: CheckpointStreamFactory, wrong: dict[str, object], says: str
    ) -> None:
        handle = write(factory, SMALL)
        with pytest.raises(OSError, match=says):
            factory.open(handle.model_copy(update=wrong))

    def test_an_unknown_handle_is_not_opened(self, factory: CheckpointStreamFactory) -> None:
        handle = artifact(factory)
        for wrong in ({"path": "elsewhere"}, {"sha256": "0" * 64}, {"stream": "another"}):
            with pytest.raises(UnknownHandleError):
                factory.open(handle.model_copy(update=wrong))

    # -- what others do with files ---------------------------------------------------------------------------------

    def test_libraries_take_the_streams_for_files(
        self, checkpoints: StreamCheckpoints, factory: CheckpointStreamFactory
    ) -> None:
        value = {"rows": list(range(20_000))}
        table = pa.table({"key": range(20_000)})

        def pickled(out: CheckpointStateOutputStream) -> None:
            pickle.dump(value, out)

        def arrow(out: CheckpointStateOutputStream) -> None:
            with pa.ipc.new_stream(out, table.schema) as writer:
                writer.write_table(table)

        def arrow_file(out: CheckpointStateOutputStream) -> None:
            with pa.ipc.new_file(out, table.schema) as writer:
                writer.write_table(table)

        def copied(out: CheckpointStateOutputStream) -> None:
            shutil.copyfileobj(io.BytesIO(LARGE), out)

        def text(out: CheckpointStateOutputStream) -> None:
            wrapper = io.TextIOWrapper(io.BufferedWriter(out), "utf-8")
            wrapper.write("ü" * 20_000)
            wrapper.detach().detach()  # closing a wrapper closes what it wraps

        def unpacked(file: BinaryIO) -> bytes:
            out = io.BytesIO()
            shutil.copyfileobj(file, out)
            return out.getvalue()

        cases: list[tuple[Callable[[CheckpointStateOutputStream], None], Callable[[BinaryIO], object], object]] = [
            (pickled, pickle.load, value),
            (arrow, lambda file: pa.ipc.open_stream(file).read_all(), table),
            (arrow_file, lambda file: pa.ipc.open_file(file).read_all(), table),
            (copied, unpacked, LARGE),
            (text, lambda file: io.TextIOWrapper(file, "utf-8").read(), "ü" * 20_000),
        ]
        for fill, load, expected in cases:
            stream = factory.create_checkpoint_state_output_stream(EXCLUSIVE)
            fill(stream)
            handle = stream.close_and_get_handle()
            assert isinstance(handle, ArtifactHandle)
            with checkpoints.open(handle) as file:
                assert load(file) == expected

    # -- duplicates ------------------------------------------------------------------------------------------------

    def test_duplicates_have_the_same_content_in_the_same_order(
        self, checkpoints: StreamCheckpoints, factory: CheckpointStreamFactory
    ) -> None:
        first, other = artifact(factory), artifact(factory, LARGE + b"other")
        inline = write(factory, SMALL)
        checkpoints.save(factory, [first, other, inline])
        later = checkpoints.factory(2)
        own = artifact(later, LARGE + b"own")
        handles: list[StateHandle] = [other, inline, own, first, other]
        assert all(later.can_fast_duplicate(one, SHARED) for one in handles)
        made = later.duplicate(handles, SHARED)
        assert [read(later.open(one)) for one in made] == [
            LARGE + b"other", SMALL, LARGE + b"own", LARGE, LARGE + b"other",
        ]  # fmt: skip
        named = [one for one in (*handles, *made) if isinstance(one, ArtifactHandle)]
        assert len({one.path for one in named}) == 7, "five duplicates less one inline, of three originals"
        checkpoints.save(later, made)
        checkpoints.delete(1)
        assert [read(checkpoints.open(one)) for one in made][3] == LARGE
        checkpoints.delete(2)
        assert checkpoints.artifacts() == 0

    def test_of_duplicates_all_or_none_are_made(self, checkpoints: StreamCheckpoints) -> None:
        factory = checkpoints.factory(1)
        handle = artifact(factory)
        before = checkpoints.artifacts()
        for wrong in ({"stream": "another"}, {"path": "unknown"}, {"sha256": "0" * 64}, {"attempt": "another"}):
            with pytest.raises(UnknownHandleError):
                factory.duplicate([handle, handle.model_copy(update=wrong)], SHARED)
        with pytest.raises(UnknownHandleError):
            factory.duplicate([handle, "no handle"], SHARED)  # type: ignore[list-item]
        assert checkpoints.artifacts() == before
        foreign = handle.model_copy(update={"stream": "another"})
        assert not factory.can_fast_duplicate(foreign, SHARED)
        assert not factory.can_fast_duplicate("no handle", SHARED)  # type: ignore[arg-type]

    def test_a_duplicate_outlives_the_original_that_is_discarded(
        self, checkpoints: StreamCheckpoints, factory: CheckpointStreamFactory
    ) -> None:
        original = artifact(factory)
        made = factory.duplicate([original], SHARED)
        for _ in range(2):  # again, as whoever cleans up does
            factory.discard([original])
        checkpoints.save(factory, made)
        assert read(checkpoints.open(made[0])) == LARGE

    def test_with_the_last_duplicate_goes_the_original_that_was_discarded(
        self, checkpoints: StreamCheckpoints, factory: CheckpointStreamFactory
    ) -> None:
        original = artifact(factory)
        made = factory.duplicate([original], SHARED)
        factory.discard([original])
        factory.discard(made)
        assert checkpoints.artifacts() == 0

    # -- reuse -----------------------------------------------------------------------------------------------------

    def test_reused_state_lives_exactly_as_long_as_a_checkpoint_that_uses_it(
        self, checkpoints: StreamCheckpoints
    ) -> None:
        first = checkpoints.factory(1)
        handle, dropped = artifact(first), artifact(first, LARGE + b"dropped")
        checkpoints.save(first, [handle, dropped])
        for later in (2, 3):
            factory = checkpoints.factory(later)
            factory.reuse_previous_state_handle([handle])
            checkpoints.save(factory, [handle])
            checkpoints.delete(later - 1)
            assert read(checkpoints.open(handle)) == LARGE
        with pytest.raises(OSError, match="not known"):
            checkpoints.open(dropped)
        checkpoints.delete(3)
        assert checkpoints.artifacts() == 0

    def test_unknown_other_and_exclusive_handles_cannot_be_reused(self, checkpoints: StreamCheckpoints) -> None:
        first = checkpoints.factory(1)
        handle, exclusive = artifact(first), write(first, LARGE, EXCLUSIVE)
        with pytest.raises(UnknownHandleError):
            checkpoints.factory(2).reuse_previous_state_handle([handle])  # not saved yet
        with pytest.raises(UnknownHandleError):
            first.reuse_previous_state_handle([handle])  # of this very checkpoint
        checkpoints.save(first, [handle, exclusive])
        factory = checkpoints.factory(2)
        wrong: list[StateHandle] = [
            exclusive,
            *(
                handle.model_copy(update=other)
                for other in (
                    {"path": "unknown"}, {"sha256": "0" * 64}, {"size_bytes": 5}, {"stream": "another"},
                )
            ),
        ]  # fmt: skip
        for one in wrong:
            with pytest.raises(UnknownHandleError):
                factory.reuse_previous_state_handle([one])
            assert not factory.could_reuse_state_handle(one)
            with pytest.raises(UnknownHandleError):
                checkpoints.save(factory, [one])
        with pytest.raises(UnknownHandleError):
            factory.reuse_previous_state_handle(["no handle"])  # type: ignore[list-item]
        assert factory.could_reuse_state_handle(handle)

    def test_the_pre_check_changes_nothing(self, checkpoints: StreamCheckpoints) -> None:
        first = checkpoints.factory(1)
        handle, inline = artifact(first), write(first, SMALL)
        checkpoints.save(first, [handle, inline])
        factory = checkpoints.factory(2)
        assert factory.could_reuse_state_handle(handle)
        assert factory.could_reuse_state_handle(inline)
        with pytest.raises(UnknownHandleError):
            checkpoints.save(factory, [handle])
        factory.reuse_previous_state_handle([handle, inline])
        assert factory.could_reuse_state_handle(handle)
        checkpoints.save(factory, [handle, inline])
        checkpoints.delete(1)
        assert read(checkpoints.open(handle)) == LARGE

    def test_a_handle_that_says_something_else_than_what_was_written_is_not_saved(
        self, checkpoints: StreamCheckpoints, factory: CheckpointStreamFactory
    ) -> None:
        handle = artifact(factory)
        for wrong in ({"sha256": "0" * 64}, {"size_bytes": 5}):
            with pytest.raises(UnknownHandleError):
                checkpoints.save(factory, [handle, handle.model_copy(update=wrong)])
            with pytest.raises(UnknownHandleError):
                checkpoints.save(factory, [handle.model_copy(update=wrong), handle])
        checkpoints.save(factory, [handle])

    def test_state_that_goes_between_reuse_and_save_is_never_saved(self, checkpoints: StreamCheckpoints) -> None:
        first = checkpoints.factory(1)
        handle = artifact(first)
        checkpoints.save(first, [handle])
        factory = checkpoints.factory(2)
        factory.reuse_previous_state_handle([handle])
        checkpoints.delete(1)
        with pytest.raises((UnknownHandleError, BasePurgedError)):
            checkpoints.save(factory, [handle])
        again = checkpoints.factory(2)
        checkpoints.save(again, [written := artifact(again)])
        assert read(checkpoints.open(written)) == LARGE

    def test_without_sharing_nothing_earlier_is_used(self, checkpoints: StreamCheckpoints) -> None:
        first = checkpoints.factory(1)
        handle = artifact(first)
        checkpoints.save(first, [handle])
        for number, alone in (
            (2, checkpoints.factory(2, share=False)),
            (3, checkpoints.factory(3).without_sharing()),
        ):
            assert not alone.can_fast_duplicate(handle, SHARED)
            assert not alone.could_reuse_state_handle(handle)
            with pytest.raises(UnknownHandleError, match="nothing earlier"):
                alone.duplicate([handle], SHARED)
            with pytest.raises(UnknownHandleError, match="nothing earlier"):
                alone.reuse_previous_state_handle([handle])
            own = artifact(alone, LARGE + b"%d" % number)
            assert read(alone.open(alone.duplicate([own], SHARED)[0])) == LARGE + b"%d" % number

    def test_state_of_a_savepoint_cannot_be_reused(self, checkpoints: StreamCheckpoints) -> None:
        factory = checkpoints.factory(1)
        handle = artifact(factory.without_sharing())
        checkpoints.save(factory, [handle])
        assert handle.scope == "exclusive"
        assert not checkpoints.factory(2).could_reuse_state_handle(handle)


class CatalogStreamFactorySuite(CheckpointStreamFactorySuite):
    """What only a catalog can show; subclass it with a class-scoped fixture `harness`."""

    @pytest.fixture
    def checkpoints(self, harness: Harness) -> CatalogCheckpoints:
        """A stream that nobody else uses, with a name that quoting has to get right."""
        return CatalogCheckpoints(harness, f"{uuid.uuid4()} a/../b 'c' \"d\" `e` \\f g=h 50%25 \t🚰é/")

    @pytest.fixture
    def engine(self, harness: Harness) -> Watched:
        """The engine of the fixture `store`."""
        return Watched(harness.catalog.engine)

    @pytest.fixture
    def store(self, harness: Harness, checkpoints: CatalogCheckpoints, engine: Watched) -> CheckpointStore:
        """A store whose engine is watched."""
        watched: Any = engine
        return CheckpointCatalog(watched, clock=harness.clock).store(checkpoints.name)

    # -- large state -----------------------------------------------------------------------------------------------

    def test_large_state_is_seekable_and_verified_across_chunks(self, checkpoints: CatalogCheckpoints) -> None:
        factory = checkpoints.factory(1)
        with factory.create_checkpoint_state_output_stream(SHARED) as stream:
            for at in range(0, len(HUGE), 1_000_003):
                stream.write(HUGE[at : at + 1_000_003])
            handle = stream.close_and_get_handle()
        assert handle is not None
        assert handle.sha256 == cutting.fingerprint([HUGE], "fixed")
        checkpoints.save(factory, [handle])
        with checkpoints.open(handle) as file:
            for at in (cutting.CHUNK_BYTES - 5, 2 * cutting.CHUNK_BYTES, 7, len(HUGE) - 4):
                file.seek(at)
                assert file.read(10) == HUGE[at : at + 10]
            file.seek(0)
            assert file.read() == HUGE

    def test_a_damaged_chunk_is_an_error_and_never_wrong_bytes(
        self, harness: Harness, checkpoints: CatalogCheckpoints
    ) -> None:
        factory = checkpoints.factory(1)
        handle = artifact(factory)
        checkpoints.save(factory, [handle])
        harness.corrupt_state(checkpoints.name, factory.key)
        with checkpoints.open(handle) as file, pytest.raises(OSError, match="checksum"):
            file.read()
        harness.lose_state(checkpoints.name, factory.key)
        with pytest.raises(UnknownHandleError):
            checkpoints.open(handle)

    def test_a_file_whose_checkpoint_is_purged_while_it_is_open_says_so(self, checkpoints: CatalogCheckpoints) -> None:
        factory = checkpoints.factory(1)
        handle = artifact(factory)
        checkpoints.save(factory, [handle])
        with checkpoints.open(handle) as file:
            checkpoints.delete(1)
            with pytest.raises(UnknownHandleError, match="purged"):
                file.read()

    def test_a_reader_that_the_tables_fail_raises_an_os_error(
        self, checkpoints: CatalogCheckpoints, store: CheckpointStore, engine: Watched
    ) -> None:
        factory = checkpoints.factory(1)
        handle = artifact(factory)
        checkpoints.save(factory, [handle])
        with store.open_handle(handle) as file:
            engine.before["scan", engine.calls["scan"] + 1] = fails(ConflictError("the network is down"))
            with pytest.raises(OSError, match="network"):
                file.read()

    # -- failures --------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("nth", [1, 2], ids=["first commit", "second commit"])
    @pytest.mark.parametrize("kind", [ConflictError, MemoryError, KeyboardInterrupt])
    def test_a_failure_while_storing_is_told_and_leaves_no_artifact_and_no_thread(
        self,
        checkpoints: CatalogCheckpoints,
        store: CheckpointStore,
        engine: Watched,
        monkeypatch: pytest.MonkeyPatch,
        nth: int,
        kind: type[BaseException],
    ) -> None:
        monkeypatch.setattr(cutting, "BATCH_CHUNKS", 1)
        monkeypatch.setattr(cutting, "PART_CHUNKS", 1)
        engine.before["append", nth] = fails(kind("the network is down"))
        before = set(threading.enumerate())
        stream = store.stream_factory(1).create_checkpoint_state_output_stream(SHARED)

        def fill() -> None:
            for at in range(0, len(HUGE), 1 << 20):
                stream.write(HUGE[at : at + (1 << 20)])
            stream.close_and_get_handle()

        with pytest.raises(OSError, match="network") as caught:
            fill()
        stream.close()
        assert checkpoints.artifacts() == 0
        left = {one.name for one in set(threading.enumerate()) - before}
        assert not [name for name in left if name.startswith(("checkpoint-stream", "ThreadPool"))], caught
        with pytest.raises(StreamClosedError):
            stream.close_and_get_handle()

    def test_after_a_write_that_failed_there_is_no_handle(
        self, checkpoints: CatalogCheckpoints, store: CheckpointStore, engine: Watched
    ) -> None:
        engine.before["append", 1] = fails(ConflictError("the network is down"))
        stream = store.stream_factory(1).create_checkpoint_state_output_stream(SHARED)
        with pytest.raises(OSError, match="network"):
            stream.write(HUGE * 4)  # more than waits to be stored
        with pytest.raises(CheckpointStreamError, match="network"):
            stream.close_and_get_handle()
        assert checkpoints.artifacts() == 0

    @pytest.mark.parametrize(
        "wrong", [{"hash_threads": 0}, {"hash_threads": 1.5}, {"max_amplification": "2"}, {"max_amplification": None}]
    )
    def test_numbers_that_are_none_are_refused(self, checkpoints: CatalogCheckpoints, wrong: dict[str, object]) -> None:
        with pytest.raises(InvalidInputError, match=next(iter(wrong))):
            checkpoints.factory(1, **wrong)

    def test_a_failure_of_small_state_while_closing_leaves_no_artifact(
        self, checkpoints: CatalogCheckpoints, store: CheckpointStore, engine: Watched
    ) -> None:
        engine.before["append", 1] = fails(ConflictError("the network is down"))
        stream = store.stream_factory(1).create_checkpoint_state_output_stream(SHARED)
        stream.write(LARGE)
        with pytest.raises(CheckpointStreamError, match="network"):
            stream.close_and_get_handle()
        assert checkpoints.artifacts() == 0

    @pytest.mark.parametrize("nth", [1, 2], ids=["first commit", "second commit"])
    def test_a_checkpoint_saved_while_a_stream_is_stored_has_nothing_of_it_and_nobody_borrows_it(
        self,
        checkpoints: CatalogCheckpoints,
        store: CheckpointStore,
        engine: Watched,
        monkeypatch: pytest.MonkeyPatch,
        nth: int,
    ) -> None:
        monkeypatch.setattr(cutting, "BATCH_CHUNKS", 1)
        monkeypatch.setattr(cutting, "PART_CHUNKS", 1)
        factory = store.stream_factory(1)
        kept = artifact(factory)
        borrowing: list[StateHandle] = []

        def save() -> None:
            checkpoints.save(factory, [kept])

        def borrow() -> None:
            if len(checkpoints.rows(1)) == 1:
                return
            # Some of it is there for a moment.
            other = checkpoints.harness.catalog.store(checkpoints.name)
            second = other.stream_factory(2)
            borrowing.append(artifact(second, HUGE))
            other.save_with_handles(checkpoints.manifest(2, borrowing), second)

        engine.before["append", 1 + nth] = save
        engine.before["delete", 1] = borrow
        with pytest.raises(OSError, match="saved"):
            artifact(factory, HUGE)
        assert [row["path"] for row in checkpoints.rows(1)] == [kept.path]
        assert [read(checkpoints.open(one)) for one in borrowing] == [HUGE] * (nth - 1)
        assert checkpoints.store.validate_checkpoint(1).valid
        for number in checkpoints.store.list_ids():
            checkpoints.delete(number)
        assert checkpoints.artifacts() == 0

    def test_close_never_raises_even_if_nothing_can_be_removed(
        self, checkpoints: CatalogCheckpoints, store: CheckpointStore, engine: Watched
    ) -> None:
        stream = store.stream_factory(1).create_checkpoint_state_output_stream(SHARED)
        stream.write(HUGE)
        engine.before["delete", 1] = fails(ConflictError("the network is down"))
        stream.close()
        stream.close()
        checkpoints.store.cleanup_orphans(AT_ONCE)
        assert checkpoints.artifacts() == 0

    def test_a_stream_that_nobody_closes_leaves_nothing_when_it_is_forgotten(
        self, checkpoints: CatalogCheckpoints
    ) -> None:
        before = set(threading.enumerate())
        stream = checkpoints.factory(1).create_checkpoint_state_output_stream(SHARED)
        stream.write(HUGE)
        assert any(one.name == "checkpoint-stream" for one in set(threading.enumerate()) - before)
        del stream
        assert not any(one.name == "checkpoint-stream" for one in set(threading.enumerate()) - before)
        assert checkpoints.artifacts() == 0

    def test_a_stream_closed_by_another_thread_ends_the_one_that_waits_to_write(
        self, checkpoints: CatalogCheckpoints, store: CheckpointStore, engine: Watched
    ) -> None:
        storing, closed = threading.Event(), threading.Event()

        def hang() -> None:
            storing.set()
            closed.wait()

        engine.before["append", 1] = hang
        stream = store.stream_factory(1).create_checkpoint_state_output_stream(SHARED)
        told: list[BaseException] = []

        def fill() -> None:
            try:
                for _ in range(8):
                    stream.write(HUGE)
            except OSError as error:
                told.append(error)
                closed.set()  # the writer was woken while the engine still hung

        writer = threading.Thread(target=fill)
        writer.start()
        storing.wait()
        stream.close()
        writer.join()
        assert [type(one) for one in told] == [StreamClosedError]
        assert checkpoints.artifacts() == 0

    def test_a_save_that_lost_a_race_can_be_tried_again(
        self, checkpoints: CatalogCheckpoints, store: CheckpointStore, engine: Watched
    ) -> None:
        first = checkpoints.factory(1)
        earlier = artifact(first)
        checkpoints.save(first, [earlier])
        factory = store.stream_factory(2)
        factory.reuse_previous_state_handle([earlier])
        handles = [earlier, artifact(factory, LARGE + b"own")]
        engine.before["insert_unless", 1] = fails(ConflictError("others were faster"))
        with pytest.raises(ConflictError):
            store.save_with_handles(checkpoints.manifest(2, handles), factory)
        store.save_with_handles(checkpoints.manifest(2, handles), factory)
        assert len(checkpoints.rows(2)) == 2, "nothing is linked twice"
        checkpoints.delete(1)
        assert [read(checkpoints.open(one)) for one in handles] == [LARGE, LARGE + b"own"]

    def test_an_abandoned_checkpoint_leaves_nothing(self, checkpoints: CatalogCheckpoints) -> None:
        factory = checkpoints.factory(1)
        handle = artifact(factory)
        factory.close()
        checkpoints.store.abandon(1, factory, "given up")
        with pytest.raises(AbandonedError):
            checkpoints.save(factory, [handle])
        with pytest.raises(StreamClosedError):
            factory.create_checkpoint_state_output_stream(SHARED)
        sweep(checkpoints.stream)
        assert checkpoints.artifacts() == 0
        assert checkpoints.store.next_id() == 2

    def test_a_factory_that_is_never_saved_leaves_orphans_that_the_sweep_takes(
        self, checkpoints: CatalogCheckpoints
    ) -> None:
        factory = checkpoints.factory(1)
        handle = artifact(factory)
        factory.duplicate([handle], SHARED)
        assert checkpoints.store.cleanup_orphans() == 0, "it may be saved yet"
        assert checkpoints.store.cleanup_orphans(AT_ONCE) == 1
        assert checkpoints.artifacts() == 0
        with pytest.raises(CatalogError):
            checkpoints.save(factory, [handle])

    # -- what it costs ---------------------------------------------------------------------------------------------

    def test_what_can_be_duplicated_is_told_without_a_look_at_the_tables(
        self, checkpoints: CatalogCheckpoints, store: CheckpointStore, engine: Watched
    ) -> None:
        first = checkpoints.factory(1)
        handle = artifact(first)
        checkpoints.save(first, [handle])
        factory = store.stream_factory(2)
        for scope in CheckpointedStateScope:
            assert factory.can_fast_duplicate(handle, scope)
            assert factory.can_fast_duplicate(write(factory, SMALL), scope)
            assert not factory.can_fast_duplicate(handle.model_copy(update={"stream": "other"}), scope)
        assert engine.calls == Counter()

    def test_small_state_costs_nothing_and_duplicates_one_commit_without_bytes(
        self, checkpoints: CatalogCheckpoints, store: CheckpointStore, engine: Watched
    ) -> None:
        first = checkpoints.factory(1)
        handles = [artifact(first), artifact(first, HUGE)]
        checkpoints.save(first, handles)
        factory = store.stream_factory(2)
        write(factory, SMALL)
        assert engine.calls == Counter()
        factory.duplicate(handles, SHARED)
        assert engine.calls["append"] == 1
        rows = checkpoints.rows(2)
        assert len(rows) == 4
        assert all(row["data"] is None for row in rows)

    def test_what_is_written_carries_its_scope_and_operator(self, checkpoints: CatalogCheckpoints) -> None:
        factory = checkpoints.factory(1)
        write(factory.of_operator("window"), LARGE, EXCLUSIVE)
        write(factory, LARGE)
        found = {(row["operator"], row["scope"]) for row in checkpoints.rows(1)}
        assert found == {("window", "exclusive"), (None, "shared")}
        with pytest.raises(InvalidInputError):
            factory.of_operator(None)  # type: ignore[arg-type]

    # -- reuse -----------------------------------------------------------------------------------------------------

    def test_reuse_is_advised_against_where_it_keeps_too_much_alive(self, checkpoints: CatalogCheckpoints) -> None:
        first = checkpoints.factory(1)
        small, large = artifact(first), artifact(first, LARGE * 4)
        checkpoints.save(first, [small, large])
        second = checkpoints.factory(2)
        assert second.could_reuse_state_handle(small), "all that is there is used"
        second.reuse_previous_state_handle([small])
        checkpoints.save(second, [small])
        assert not checkpoints.factory(3).could_reuse_state_handle(small), "five times what is used"
        assert checkpoints.factory(3, max_amplification=5).could_reuse_state_handle(small)
        assert not checkpoints.factory(3, max_amplification=4.9).could_reuse_state_handle(small)
        with pytest.raises(InvalidInputError, match="amplification"):
            checkpoints.factory(3, max_amplification=0.5)
        checkpoints.delete(1)
        assert checkpoints.factory(3).could_reuse_state_handle(small), "what nobody uses is gone"

    def test_what_is_written_anew_on_advice_is_really_written(self, checkpoints: CatalogCheckpoints) -> None:
        pieces = [HUGE[at : at + 600_000] for at in range(0, 3_000_000, 600_000)]
        first = checkpoints.factory(1)
        handles = [artifact(first, piece) for piece in pieces]
        checkpoints.save(first, handles)
        second = checkpoints.factory(2)
        second.reuse_previous_state_handle(handles[:1])
        checkpoints.save(second, handles[:1])
        third = checkpoints.factory(3)
        assert not third.could_reuse_state_handle(handles[0])
        anew = artifact(third, pieces[0])
        checkpoints.save(third, [anew])
        assert [row["held_key"] for row in checkpoints.rows(3)] == [None], "borrowed, it would keep as much alive"
        fourth = checkpoints.factory(4)
        assert fourth.could_reuse_state_handle(anew)
        checkpoints.save(fourth, [artifact(fourth, pieces[0])])
        assert [row["via"] for row in checkpoints.rows(4)] == [keys.integer_key(3)], "without such advice it is shared"
        for number in (1, 2):
            checkpoints.delete(number)
        assert sum(row["chunk_size"] for one in (1, 2, 3, 4) for row in checkpoints.rows(one) if row["data"]) == 600_000

    def test_equal_pieces_that_are_all_used_are_no_dead_space(self, checkpoints: CatalogCheckpoints) -> None:
        first = checkpoints.factory(1)
        handles = [artifact(first) for _ in range(3)]
        checkpoints.save(first, handles)
        for number in (2, 3):
            factory = checkpoints.factory(number)
            assert all(factory.could_reuse_state_handle(one) for one in handles)
            factory.reuse_previous_state_handle(handles)
            checkpoints.save(factory, handles)
        last = checkpoints.factory(4)
        last.reuse_previous_state_handle(handles[:1])
        checkpoints.save(last, handles[:1])
        assert not checkpoints.factory(5).could_reuse_state_handle(handles[0]), "two of three are dead"

    def test_a_handle_of_partly_borrowed_state_opens_after_its_creator_is_gone(
        self, checkpoints: CatalogCheckpoints
    ) -> None:
        first = checkpoints.factory(1)
        checkpoints.save(first, [artifact(first, HUGE)])
        second = checkpoints.factory(2)
        handle = artifact(second, HUGE[:-1] + b"!")  # its first chunks are the first one's
        checkpoints.save(second, [handle])
        assert [row["held_key"] is None for row in sorted(checkpoints.rows(2), key=lambda row: row["chunk_no"])] == [
            False, False, True,
        ]  # fmt: skip
        third = checkpoints.factory(3)
        third.reuse_previous_state_handle([handle])
        checkpoints.save(third, [handle])
        checkpoints.delete(1)
        checkpoints.delete(2)
        assert read(checkpoints.open(handle)) == HUGE[:-1] + b"!"
        fourth = checkpoints.factory(4)
        assert read(fourth.open(handle)) == HUGE[:-1] + b"!"
        fourth.reuse_previous_state_handle([handle])
        checkpoints.save(fourth, [handle])
        checkpoints.delete(3)
        assert read(checkpoints.store.open_handle(handle, of=4)) == HUGE[:-1] + b"!"
        assert checkpoints.store.validate_checkpoint(4).valid
        checkpoints.delete(4)
        assert checkpoints.artifacts() == 0

    def test_handles_go_from_process_to_process_in_the_manifest(
        self, harness: Harness, checkpoints: CatalogCheckpoints
    ) -> None:
        factory = checkpoints.factory(1)
        handle = artifact(factory)
        checkpoints.save(factory, [handle])
        other = harness.catalog.store(checkpoints.name)
        found = other.load_latest()
        assert found is not None
        assert found.operator_handles["op"]["0"] == handle
        later = other.stream_factory(2)
        later.reuse_previous_state_handle([found.operator_handles["op"]["0"]])
        other.save_with_handles(checkpoints.manifest(2, [handle]), later)
        checkpoints.delete(1)
        assert read(other.open_handle(handle, of=2)) == LARGE
        assert other.recover_latest_validated().chosen_id == 2

    @pytest.mark.parametrize("wrong", [{"state_b64": "!!!"}, {"size_bytes": 5}, {"sha256": "nope"}])
    def test_an_inline_handle_that_is_damaged_is_not_saved_and_is_found_by_validation(
        self, checkpoints: CatalogCheckpoints, wrong: dict[str, object]
    ) -> None:
        broken = InlineHandle.of(SMALL).model_copy(update=wrong)
        manifest = checkpoints.manifest(1, [broken])
        with pytest.raises(InvalidInputError, match="operator 'op', handle '0'"):
            checkpoints.store.save(manifest)
        with pytest.raises(InvalidInputError, match="operator 'op', handle '0'"):
            checkpoints.save(checkpoints.factory(1), [broken])
        assert checkpoints.store.next_id() == 1, "nothing was written"
        # As one that refused nothing would have saved it.
        draft = Draft(
            key=manifest.key, format=manifest.FORMAT, attempt="1", manifest=manifest.canonical(), facts={"epoch": 1}
        )
        checkpoints.stream.save(draft)
        (issue,) = checkpoints.store.validate_checkpoint(1).failures
        assert issue.rule == "inline_state_unreadable"
        assert checkpoints.store.recover_latest_validated().chosen_id is None
        with pytest.raises(OSError, match="state cannot be read"):
            checkpoints.store.open_handle(broken, of=1)

    def test_a_manifest_is_saved_by_the_factory_of_its_id_only(self, checkpoints: CatalogCheckpoints) -> None:
        factory = checkpoints.factory(1)
        handle = artifact(factory)
        with pytest.raises(InvalidInputError, match="made for checkpoint 1"):
            checkpoints.store.save_with_handles(checkpoints.manifest(2, [handle]), factory)
        with pytest.raises(UnknownHandleError), suppress(CheckpointExistsError):
            checkpoints.save(checkpoints.factory(2), [handle])
        assert checkpoints.store.list_ids() == []
        with pytest.raises(InvalidInputError, match="made for checkpoint 1"):
            checkpoints.store.abandon(2, factory, "given up")
        assert checkpoints.store.next_id() == 1

    def test_a_manifest_is_saved_by_a_factory_of_its_stream_only(
        self, harness: Harness, checkpoints: CatalogCheckpoints
    ) -> None:
        elsewhere = harness.catalog.store(str(uuid.uuid4())).stream_factory(1)
        handle = artifact(elsewhere)
        with pytest.raises(InvalidInputError, match="another stream"):
            checkpoints.save(elsewhere, [handle])
        with pytest.raises(InvalidInputError, match="another stream"):
            checkpoints.store.abandon(1, elsewhere, "given up")
        assert checkpoints.store.list_ids() == []
        assert checkpoints.store.next_id() == 1

    def test_a_duplicate_of_borrowed_state_stands_on_whom_it_is_borrowed_from(
        self, checkpoints: CatalogCheckpoints
    ) -> None:
        first = checkpoints.factory(1)
        checkpoints.save(first, [artifact(first, HUGE)])
        second = checkpoints.factory(2)
        made = second.duplicate([artifact(second, HUGE)], SHARED)
        with pytest.raises(UnknownHandleError, match="nothing earlier"):
            second.without_sharing().duplicate(made, SHARED)
        checkpoints.delete(1)
        with pytest.raises(BasePurgedError):
            checkpoints.save(second, made)
        assert checkpoints.store.list_ids() == []
