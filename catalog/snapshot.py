"""Snapshot strategies (seed 000): prepare quickly in the processing thread, write in the background.

A strategy holds nothing about a single checkpoint: several call it at once. What the earlier checkpoint wrote comes
with the options, so that unchanged state can be used again.
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, BinaryIO, Generic, TypeVar

from catalog import keys
from catalog.errors import InvalidInputError, SnapshotCancelledError
from catalog.handles import CheckpointedStateScope, StateHandle
from catalog.output_stream import CheckpointStateOutputStream
from catalog.stream_factory import CheckpointStreamFactory

log = logging.getLogger(__name__)


class SnapshotResources(ABC):
    """What the synchronous part of a snapshot holds for the asynchronous one."""

    @abstractmethod
    def release(self) -> None:
        """Give back what is held; called exactly once."""


R = TypeVar("R", bound=SnapshotResources)


class SnapshotType(StrEnum):
    """What a snapshot is for."""

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    """Complete and self-contained: it can be restored with every other checkpoint gone."""


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """How to perform a checkpoint."""

    snapshot_type: SnapshotType = SnapshotType.CHECKPOINT
    previous: Mapping[str, StateHandle] = field(default_factory=dict)
    """What the operator's last completed checkpoint wrote, by name."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "snapshot_type", one_of(SnapshotType, self.snapshot_type, "snapshot_type"))
        a_mapping(self.previous, "previous")


@dataclass(frozen=True, slots=True)
class SnapshotResult:
    """What a snapshot wrote."""

    handles: Mapping[str, StateHandle] = field(default_factory=dict)
    """Where each named piece of state is; none is "no state", which is not a failure."""

    @classmethod
    def empty(cls) -> "SnapshotResult":
        """Return the result of an operator that has no state."""
        return cls()

    @property
    def size_bytes(self) -> int:
        """Bytes of all state, shared or not."""
        return sum(handle.size_bytes for handle in self.handles.values())


SnapshotResultSupplier = Callable[[], SnapshotResult]
"""Does the writing; runs in the background."""


class SnapshotStrategy(ABC, Generic[R]):
    """How an operator's state is written; safe to call for several checkpoints at once."""

    @abstractmethod
    def sync_prepare_resources(self, checkpoint_id: int) -> R:
        """Take hold of the state as it is now, in the caller's thread: processing waits for it."""

    @abstractmethod
    def async_snapshot(
        self,
        resources: R,
        checkpoint_id: int,
        timestamp: int,
        stream_factory: CheckpointStreamFactory,
        options: CheckpointOptions,
    ) -> SnapshotResultSupplier:
        """Return what writes the state to streams of the factory; nothing is written yet.

        Args:
            resources: of sync_prepare_resources; whoever runs the snapshot releases them.
            checkpoint_id: the checkpoint.
            timestamp: when it was triggered, in milliseconds since 1970.
            stream_factory: where to write.
            options: how.
        """


class SavepointSnapshotStrategy(SnapshotStrategy[R]):
    """Writes what another strategy writes, complete and self-contained: nothing is shared with any checkpoint."""

    def __init__(self, strategy: SnapshotStrategy[R]) -> None:
        """Make it.

        Args:
            strategy: says what to write.
        """
        self._strategy = given(strategy, "strategy")

    def sync_prepare_resources(self, checkpoint_id: int) -> R:
        """See SnapshotStrategy."""
        return self._strategy.sync_prepare_resources(checkpoint_id)

    def async_snapshot(
        self,
        resources: R,
        checkpoint_id: int,
        timestamp: int,
        stream_factory: CheckpointStreamFactory,
        options: CheckpointOptions,
    ) -> SnapshotResultSupplier:
        """See SnapshotStrategy."""
        alone = replace(options, snapshot_type=SnapshotType.SAVEPOINT, previous={})
        return self._strategy.async_snapshot(
            resources, checkpoint_id, timestamp, stream_factory.without_sharing(), alone
        )


class ExecutionType(StrEnum):
    """Where the writing happens."""

    SYNCHRONOUS = "synchronous"
    """In the caller's thread, before `snapshot` returns."""
    ASYNCHRONOUS = "asynchronous"
    """Wherever somebody runs the task."""


class SnapshotStrategyRunner(Generic[R]):
    """Executes a strategy, and releases its resources exactly once, whatever happens."""

    def __init__(
        self,
        description: str,
        strategy: SnapshotStrategy[R],
        execution_type: ExecutionType = ExecutionType.ASYNCHRONOUS,
    ) -> None:
        """Make a runner.

        Args:
            description: what is snapshotted, for the log.
            strategy: how.
            execution_type: whether `snapshot` also does the writing.
        """
        self._description = given(description, "description")
        self._strategy = given(strategy, "strategy")
        self._execution_type = one_of(ExecutionType, execution_type, "execution_type")

    def snapshot(
        self,
        checkpoint_id: int,
        timestamp: int,
        stream_factory: CheckpointStreamFactory,
        options: CheckpointOptions,
    ) -> "SnapshotTask":
        """Do the synchronous part, and return the task that does the rest; see SnapshotStrategy.async_snapshot."""
        keys.u64(checkpoint_id, "checkpoint_id")
        keys.u64(timestamp, "timestamp")
        tracked = _TrackedFactory(given(stream_factory, "stream_factory"))
        given(options, "options")
        resources = given(self._strategy.sync_prepare_resources(checkpoint_id), "what sync_prepare_resources returns")
        what = f"{self._description}, checkpoint {checkpoint_id}"
        try:
            supplier = self._strategy.async_snapshot(resources, checkpoint_id, timestamp, tracked, options)
            given(supplier, "the supplier that async_snapshot returns")
        except BaseException as error:
            # A task that fails at once: undone, released, and the cause kept.
            SnapshotTask(what, _raising(error), resources.release, tracked.undo).run()
            raise
        task = SnapshotTask(what, supplier, resources.release, tracked.undo)
        if self._execution_type is ExecutionType.SYNCHRONOUS:
            task.run()
        return task


class SnapshotTask:
    """The writing part of a snapshot: run it in any thread, cancel it from any thread."""

    def __init__(
        self,
        what: str,
        supplier: SnapshotResultSupplier,
        release: Callable[[], None],
        undo: Callable[[], None],
    ) -> None:
        """Make a task.

        Args:
            what: for the log.
            supplier: does the writing.
            release: gives the resources back.
            undo: closes all streams and removes what was written; called again it removes what came since.
        """
        self._what = what
        self._supplier = supplier
        self._release = release
        self._undo = undo
        self._future: Future[SnapshotResult] = Future()
        self._lock = threading.Lock()
        self._begun = self._cancelled = self._finished = False

    def run(self) -> None:
        """Do the writing, once; does nothing if the task was cancelled before."""
        with self._lock:
            if self._begun or self._cancelled:
                return
            self._begun = True
        try:
            result = given(self._supplier(), "the result of a snapshot")
            told = f"{self._what}: {result.size_bytes} bytes in {len(result.handles)} handles"
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise  # such as an interrupt by a person
            return
        with self._lock:
            self._finished = not self._cancelled
        if not self._finished:
            self._fail(self._cancellation())
            return
        log.info(told)
        self._end(result, None)

    def cancel(self) -> bool:
        """Stop the snapshot, and leave nothing that it wrote; False if it had ended before."""
        with self._lock:
            if self._cancelled or self._finished or self._future.done():
                return self._cancelled
            self._cancelled = True
            running = self._begun
        if running:
            self._undo_quietly()  # writing to a closed stream fails, and `run` does the rest
        else:
            self._fail(self._cancellation())
        return True

    def result(self, timeout: float | None = None) -> SnapshotResult:
        """Wait for the result.

        Raises:
            SnapshotCancelledError: it was cancelled.
            TimeoutError: it takes longer than this many seconds.
        """
        return self._future.result(timeout)

    def done(self) -> bool:
        """Say whether it has ended, in whatever way."""
        return self._future.done()

    def _fail(self, error: BaseException) -> None:
        self._undo_quietly()
        self._end(None, self._cancellation() if self._cancelled else error)

    def _end(self, result: SnapshotResult | None, error: BaseException | None) -> None:
        """Release the resources, then tell."""
        try:
            self._release()
        except BaseException as failed:  # noqa: BLE001 - told in place of the result, unless there is worse to tell
            if error is None:
                self._undo_quietly()
            error = error or failed
        if error is not None:
            self._future.set_exception(error)
        elif result is not None:
            self._future.set_result(result)

    def _cancellation(self) -> SnapshotCancelledError:
        return SnapshotCancelledError(f"{self._what}: cancelled")

    def _undo_quietly(self) -> None:
        try:
            self._undo()
        except Exception:
            log.exception("%s: what was written could not be removed; the sweep takes it", self._what)


class _TrackedFactory(CheckpointStreamFactory):
    """A factory that can take back what was made through it."""

    def __init__(self, factory: CheckpointStreamFactory, made: "_Made | None" = None) -> None:
        self._factory = factory
        self._made = made or _Made()

    def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> CheckpointStateOutputStream:
        stream = self._factory.create_checkpoint_state_output_stream(scope)
        with self._made.lock:
            self._made.streams.append(stream)
            undone = self._made.undone
        if undone:
            stream.close()
        return stream

    def duplicate(self, handles: Sequence[StateHandle], scope: CheckpointedStateScope) -> list[StateHandle]:
        made = self._factory.duplicate(handles, scope)
        with self._made.lock:
            self._made.duplicates += made
        return made

    def can_fast_duplicate(self, handle: StateHandle, scope: CheckpointedStateScope) -> bool:
        return self._factory.can_fast_duplicate(handle, scope)

    def reuse_previous_state_handle(self, handles: Iterable[StateHandle]) -> None:
        self._factory.reuse_previous_state_handle(handles)

    def could_reuse_state_handle(self, handle: StateHandle) -> bool:
        return self._factory.could_reuse_state_handle(handle)

    def open(self, handle: StateHandle) -> BinaryIO:
        return self._factory.open(handle)

    def discard(self, handles: Iterable[StateHandle]) -> None:
        self._factory.discard(handles)

    def of_operator(self, operator: str) -> "_TrackedFactory":
        return _TrackedFactory(self._factory.of_operator(operator), self._made)

    def without_sharing(self) -> "_TrackedFactory":
        return _TrackedFactory(self._factory.without_sharing(), self._made)

    def undo(self) -> None:
        """Close all streams, and discard what was written; streams made from now on are closed at once."""
        with self._made.lock:
            self._made.undone = True
            streams, duplicates = list(self._made.streams), list(self._made.duplicates)
            self._made.duplicates.clear()
        for stream in streams:
            stream.close()
        handles = [handle for stream in streams if (handle := stream.take_handle()) is not None]
        self._factory.discard([*handles, *duplicates])


@dataclass(slots=True)
class _Made:
    lock: threading.Lock = field(default_factory=threading.Lock)
    streams: list[CheckpointStateOutputStream] = field(default_factory=list)
    duplicates: list[StateHandle] = field(default_factory=list)
    undone: bool = False


T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
M = TypeVar("M", bound=Mapping[Any, Any])


def _raising(error: BaseException) -> SnapshotResultSupplier:
    def fail() -> SnapshotResult:
        raise error

    return fail


def one_of(kind: type[E], value: Any, what: str) -> E:
    """Return the member of an enumeration that a value is or says."""
    try:
        return kind(value)
    except ValueError as error:
        raise InvalidInputError(f"{what} must be one of {', '.join(kind)}, not {value!r}") from error


def given(value: T | None, what: str) -> T:
    """Return a value, but not None."""
    if value is None:
        raise InvalidInputError(f"{what} is required, not None")
    return value


def a_mapping(value: M, what: str) -> M:
    """Return a value if it is a mapping."""
    if not isinstance(value, Mapping):
        raise InvalidInputError(f"{what} must be a mapping, not {value!r}")
    return value
