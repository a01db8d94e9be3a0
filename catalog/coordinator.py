"""Checkpoints of a whole job: every operator's state, the sources' positions and the sinks' statuses, in one commit."""

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, BinaryIO

from catalog import keys
from catalog.errors import (
    CheckpointAbortedError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    ClosedIdError,
    InvalidInputError,
)
from catalog.handles import StateHandle
from catalog.manifest import CheckpointManifest
from catalog.recovery import RecoveryReport
from catalog.snapshot import (
    CheckpointOptions,
    SavepointSnapshotStrategy,
    SnapshotResult,
    SnapshotStrategy,
    SnapshotStrategyRunner,
    SnapshotTask,
    SnapshotType,
    given,
    one_of,
)
from catalog.store import CheckpointStore
from catalog.stored_json import plain
from catalog.stream_factory import CatalogStreamFactory

log = logging.getLogger(__name__)

TIMEOUT_S = 600.0
BACKGROUND_NICE = 10
CLOSING_S = 5.0
"""How long closing waits for operators that were given up to notice, and to release what they hold."""
SAVEPOINT_PIN = "savepoint"
NO_CLAIM_PIN = "restored from without claim"


class RestoreMode(StrEnum):
    """Who owns the checkpoint that a job is restored from."""

    CLAIM = "claim"
    """The job: new checkpoints share its state, and retention may let it go; a person's pin stays."""
    NO_CLAIM = "no_claim"
    """Somebody else: it is pinned, and the first checkpoint afterwards depends on nothing old."""


@dataclass(frozen=True, slots=True)
class CompletedCheckpoint:
    """A checkpoint that was saved."""

    checkpoint_id: int
    manifest: CheckpointManifest
    results: Mapping[str, SnapshotResult]
    """By operator."""
    seconds: float
    """From the trigger to the commit."""


@dataclass(frozen=True, slots=True)
class RestoredCheckpoint:
    """A checkpoint to go on from."""

    checkpoint_id: int
    manifest: CheckpointManifest
    report: RecoveryReport | None
    """Why this one, if it was not asked for by id."""
    _store: CheckpointStore = field(repr=False)

    def open(self, operator: str) -> dict[str, BinaryIO]:
        """Return an operator's state as seekable files by name, verified as they are read; none if it had no state."""
        handles = self.manifest.operator_handles.get(operator, {})
        return {name: self._store.open_handle(one, of=self.checkpoint_id) for name, one in handles.items()}


class PendingCheckpoint:
    """A checkpoint on its way."""

    def __init__(self, checkpoint_id: int, factory: CatalogStreamFactory, tasks: Mapping[str, SnapshotTask]) -> None:
        """Make it; CheckpointCoordinator.trigger does."""
        self.checkpoint_id = checkpoint_id
        self._factory = factory
        self._tasks = tasks
        self._future: Future[CompletedCheckpoint] = Future()

    def result(self, timeout: float | None = None) -> CompletedCheckpoint:
        """Wait until it is saved.

        Raises:
            CheckpointAbortedError: an operator failed, it took too long, or it was cancelled; its id is closed.
            CatalogError: it could not be saved.
            TimeoutError: it takes longer than this many seconds, and goes on.
        """
        return self._future.result(timeout)

    def done(self) -> bool:
        """Say whether it has ended, in whatever way."""
        return self._future.done()

    def cancel(self) -> None:
        """Give it up, unless all operators have written their state already."""
        for task in self._tasks.values():
            task.cancel()


class CheckpointCoordinator:
    """Takes checkpoints of a job's operators and restores them; safe to share by threads.

    `trigger` runs the quick synchronous part of every operator's strategy in the caller's thread, so that it sees one
    consistent state, and returns; the state is written in the background.
    """

    def __init__(
        self,
        store: CheckpointStore,
        operators: Mapping[str, SnapshotStrategy[Any]],
        *,
        timeout_s: float = TIMEOUT_S,
        parallelism: int | None = None,
        **factory_options: Any,
    ) -> None:
        """Make a coordinator.

        Args:
            store: where checkpoints are saved; its max_retained keeps only so many.
            operators: how each operator's state is written, by name.
            timeout_s: a checkpoint that takes longer is given up.
            parallelism: how many operators are written at once; by default all.
            factory_options: see CheckpointStore.stream_factory: threshold, max_amplification, cutting.
        """
        for name, strategy in given(operators, "operators").items():
            keys.text(name, "operator name")
            given(strategy, f"the strategy of operator {name!r}")
        if not isinstance(timeout_s, int | float) or not timeout_s > 0:
            raise InvalidInputError(f"timeout_s must be a number above 0, not {timeout_s!r}")
        if parallelism is not None:
            keys.u64(parallelism, "parallelism", minimum=1)
        given(store, "store").stream_factory(1, **factory_options)  # refuses them now, not at every trigger
        self._store = store
        self._operators = dict(operators)
        self._timeout_s = timeout_s
        self._factory_options = factory_options
        self._writers = _Writers(parallelism or max(len(operators), 1))
        self._completing = ThreadPoolExecutor(thread_name_prefix="checkpoint")
        self._lock = threading.Lock()
        self._next_id = 1
        self._asks_for_id = True
        self._previous: CheckpointManifest | None = None
        """The last completed checkpoint, for what operators can use again."""
        self._shares = True
        self._restores = 0
        """How often something was restored: a checkpoint begun before is nothing to go on from afterwards."""

    def trigger(
        self,
        *,
        epoch: int,
        source_offsets: Mapping[str, Any] | None = None,
        sinks: Iterable[str] = (),
        snapshot_type: SnapshotType = SnapshotType.CHECKPOINT,
        checkpoint_id: int | None = None,
        **fields: Any,
    ) -> PendingCheckpoint:
        """Begin a checkpoint.

        Args:
            epoch: the exactly-once epoch, counted from 1.
            source_offsets: where the sources stand, as in CheckpointManifest.
            sinks: are pending until `sink_committed`; recovery passes over a checkpoint with pending sinks.
            snapshot_type: a savepoint shares nothing, and is pinned.
            checkpoint_id: by default the next one.
            fields: further fields of the manifest, such as watermark or pipeline_hash.

        Raises:
            InvalidInputError: it was refused, and no id is used up.
            CheckpointAbortedError: an operator's synchronous part failed; the id is closed.
        """
        began = time.monotonic()
        snapshot_type = one_of(SnapshotType, snapshot_type, "snapshot_type")
        if isinstance(sinks, str) or not isinstance(sinks, Iterable):
            raise InvalidInputError(f"sinks must be a list of names, not {sinks!r}")
        if epoch == 0:
            raise InvalidInputError("epoch must be at least 1, not 0, which recovery passes over: count epochs from 1")
        statuses = dict.fromkeys(sinks, "Pending")
        manifest = CheckpointManifest.new(  # of any id: what it refuses uses up none
            1, epoch, source_offsets=source_offsets or {}, sink_commit_statuses=statuses, **fields
        )
        id = self._take_id(checkpoint_id)
        manifest = manifest.model_copy(update={"checkpoint_id": id})
        with self._lock:
            previous, shares, restores = self._previous, self._shares, self._restores
        factory = self._store.stream_factory(id, share=shares, **self._factory_options)
        tasks: dict[str, SnapshotTask] = {}
        name = ""
        try:
            for name, strategy in self._operators.items():
                handles = previous.operator_handles.get(name, {}) if previous and shares else {}
                tasks[name] = self._prepare(name, strategy, factory, manifest, snapshot_type, handles)
            name = ""
            pending = PendingCheckpoint(id, factory, tasks)
            writing = {name: self._writers.submit(task) for name, task in tasks.items()}
            self._completing.submit(self._complete, pending, manifest, writing, snapshot_type, began, restores)
        except BaseException as error:
            aborted = self._abort(id, factory, tasks, f"operator {name!r} failed: {error}" if name else str(error))
            if not isinstance(error, Exception):
                raise  # such as an interrupt by a person
            raise aborted from error
        return pending

    def sink_committed(self, checkpoint_id: int, sink: str) -> None:
        """Write down that a sink has committed a checkpoint; statuses never go back."""
        manifest = self._load_with(sink, checkpoint_id)
        committed = manifest.with_sink_status(sink, "Committed")
        epochs = {**manifest.sink_epochs, sink: manifest.epoch}
        self._store.update_manifest(committed.model_copy(update={"sink_epochs": epochs}))

    def sink_failed(self, checkpoint_id: int, sink: str, error: str) -> None:
        """Write down that a sink could not commit a checkpoint, and why."""
        manifest = self._load_with(sink, checkpoint_id)
        self._store.update_manifest(manifest.with_sink_status(sink, "Failed", error=error))

    def restore(
        self, checkpoint_id: int | None = None, *, mode: RestoreMode = RestoreMode.CLAIM, allow_pending: bool = False
    ) -> RestoredCheckpoint | None:
        """Return the checkpoint to go on from, None for a fresh start.

        Args:
            checkpoint_id: by default the newest that is eligible and valid.
            mode: who owns it.
            allow_pending: also take one whose sinks are pending or failed: what they did not commit is lost to them.

        Raises:
            InvalidInputError: the one asked for has such sinks.
        """
        mode = one_of(RestoreMode, mode, "mode")
        report = None
        if checkpoint_id is None:
            report = self._store.recover_latest_validated(allow_pending=allow_pending)
            if report.chosen_id is None:
                return None
            checkpoint_id = int(report.chosen_id)
        manifest = self._load(checkpoint_id)
        open_sinks = sorted(sink for sink, status in manifest.sink_commit_statuses.items() if status != "Committed")
        if open_sinks and not allow_pending:
            raise InvalidInputError(
                f"checkpoint {checkpoint_id} was not committed by {', '.join(map(repr, open_sinks))}: what they miss "
                "would be lost to them; tell sink_committed if they have it, else pass allow_pending=True"
            )
        if mode is RestoreMode.NO_CLAIM:
            self._store.pin(checkpoint_id, NO_CLAIM_PIN)
        else:
            for name in (SAVEPOINT_PIN, NO_CLAIM_PIN):
                self._store.unpin(checkpoint_id, name, missing_ok=True)
        self._store.go_on_from(checkpoint_id)
        with self._lock:
            self._restores += 1
            self._shares = mode is RestoreMode.CLAIM
            self._previous = manifest if self._shares else None
        return RestoredCheckpoint(checkpoint_id, manifest, report, self._store)

    def close(self) -> None:
        """Wait for checkpoints that are on their way, but not for an operator that hangs."""
        self._writers.close()
        self._completing.shutdown()
        self._writers.join(CLOSING_S)

    def __enter__(self) -> "CheckpointCoordinator":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take_id(self, wanted: int | None) -> int:
        """Return an id that nothing was stored under when the table was asked, or the one given.

        The table is asked the first time, and after a checkpoint has failed: somebody else may have taken ids.
        """
        with self._lock:
            if self._asks_for_id:
                self._next_id = max(self._next_id, self._store.next_id())
                self._asks_for_id = False
            taken = self._next_id if wanted is None else keys.u64(wanted, "checkpoint_id", minimum=1)
            self._next_id = max(self._next_id, taken + 1)
            return taken

    def _prepare(
        self,
        name: str,
        strategy: SnapshotStrategy[Any],
        factory: CatalogStreamFactory,
        manifest: CheckpointManifest,
        snapshot_type: SnapshotType,
        previous: Mapping[str, StateHandle],
    ) -> SnapshotTask:
        savepoint = snapshot_type is SnapshotType.SAVEPOINT
        runner = SnapshotStrategyRunner(
            f"operator {name!r}", SavepointSnapshotStrategy(strategy) if savepoint else strategy
        )
        options = CheckpointOptions(snapshot_type, previous)
        return runner.snapshot(manifest.checkpoint_id, manifest.timestamp_ms, factory.of_operator(name), options)

    def _complete(
        self,
        pending: PendingCheckpoint,
        manifest: CheckpointManifest,
        writing: Mapping[str, Future[SnapshotResult]],
        snapshot_type: SnapshotType,
        began: float,
        restores: int,
    ) -> None:
        """Wait for all operators, then save; one that fails or is too slow ends the checkpoint."""
        try:
            results = self._collect(pending, writing, began)
            savepoint = snapshot_type is SnapshotType.SAVEPOINT
            manifest = self._save(pending, manifest, results, savepoint=savepoint)
            with self._lock:
                if not savepoint and restores == self._restores and self._newest(manifest):
                    self._previous, self._shares = manifest, True
            completed = CompletedCheckpoint(pending.checkpoint_id, manifest, results, time.monotonic() - began)
        except BaseException as error:  # noqa: BLE001 - told to whoever asks for the result, and waits
            with self._lock:
                self._asks_for_id = True
            pending._future.set_exception(error)
        else:
            pending._future.set_result(completed)

    def _save(
        self,
        pending: PendingCheckpoint,
        manifest: CheckpointManifest,
        results: Mapping[str, SnapshotResult],
        *,
        savepoint: bool,
    ) -> CheckpointManifest:
        """Save what the operators have written; what keeps it from being saved closes the id."""
        handles = {name: dict(one.handles) for name, one in results.items() if one.handles}
        try:
            manifest = CheckpointManifest.from_dict({**manifest.model_dump(), "operator_handles": plain(handles)})
            self._store.save_with_handles(manifest, pending._factory, pin=SAVEPOINT_PIN if savepoint else None)
        except (CheckpointExistsError, ClosedIdError):
            raise  # the id is somebody else's
        except BaseException as error:
            self._close_id(pending.checkpoint_id, pending._factory, f"it could not be saved: {error}")
            raise
        return manifest

    def _newest(self, manifest: CheckpointManifest) -> bool:
        return self._previous is None or self._previous.checkpoint_id < manifest.checkpoint_id

    def _collect(
        self, pending: PendingCheckpoint, writing: Mapping[str, Future[SnapshotResult]], began: float
    ) -> dict[str, SnapshotResult]:
        left_s = max(self._timeout_s - (time.monotonic() - began), 0)
        _, waiting = wait(writing.values(), min(left_s, threading.TIMEOUT_MAX), FIRST_EXCEPTION)
        failed = {name: error for name, one in writing.items() if one.done() and (error := one.exception())}
        id, factory, tasks = pending.checkpoint_id, pending._factory, pending._tasks
        if failed:
            name, error = next(iter(failed.items()))
            raise self._abort(id, factory, tasks, f"operator {name!r} failed: {error}") from error
        if waiting:
            slow = ", ".join(repr(name) for name, one in writing.items() if one in waiting)
            raise self._abort(id, factory, tasks, f"it took longer than {self._timeout_s:g} s; still writing: {slow}")
        return {name: one.result() for name, one in writing.items()}

    def _abort(
        self, id: int, factory: CatalogStreamFactory, tasks: Mapping[str, SnapshotTask], why: str
    ) -> CheckpointAbortedError:
        """Close the id, so that all that was written for it is garbage, and stop who is still writing."""
        factory.close()
        for task in tasks.values():
            task.cancel()
            self._writers.make_room(task)
        self._close_id(id, factory, why)
        return CheckpointAbortedError(f"checkpoint {id} was given up: {why}", checkpoint_id=id)

    def _close_id(self, id: int, factory: CatalogStreamFactory, why: str) -> None:
        factory.close()
        try:
            # It may tell of a file's name that is not UTF-8, which no table takes.
            self._store.abandon(id, factory, why.encode(errors="backslashreplace").decode())
        except Exception:
            log.exception("checkpoint %d could not be closed; what was written for it is left to the sweep", id)

    def _load_with(self, sink: str, checkpoint_id: int) -> CheckpointManifest:
        manifest = self._load(checkpoint_id)
        if sink not in manifest.sink_commit_statuses:
            has = ", ".join(map(repr, sorted(manifest.sink_commit_statuses))) or "none"
            raise InvalidInputError(
                f"checkpoint {checkpoint_id} has no sink {sink!r}: nothing was changed; sinks that it has: {has}"
            )
        return manifest

    def _load(self, checkpoint_id: int) -> CheckpointManifest:
        manifest = self._store.load_by_id(checkpoint_id)
        if manifest is None:
            raise CheckpointNotFoundError(f"there is no checkpoint {checkpoint_id}", key=checkpoint_id)
        return manifest


class _Writers:
    """Threads that run tasks, first come, first served; one that was given up while it runs holds up no other."""

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._free = count
        self._waiting: deque[tuple[SnapshotTask, Future[SnapshotResult]]] = deque()
        self._running: set[SnapshotTask] = set()
        self._threads: list[threading.Thread] = []
        self._closed = False

    def submit(self, task: SnapshotTask) -> Future[SnapshotResult]:
        told: Future[SnapshotResult] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the coordinator was closed before")
            self._waiting.append((task, told))
            self._start()
        return told

    def make_room(self, task: SnapshotTask) -> None:
        """Let the next one run beside this one, if it runs."""
        with self._lock:
            if task in self._running:
                self._running.remove(task)
                self._free += 1
                self._start()

    def close(self) -> None:
        with self._lock:
            self._closed = True

    def join(self, timeout_s: float) -> None:
        """Wait for threads, but not longer than this: one may hang."""
        until = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0))

    def _start(self) -> None:
        while self._free and self._waiting:
            task, told = self._waiting.popleft()
            # A daemon, so that one that hangs does not keep the interpreter from ending.
            thread = threading.Thread(target=self._run, args=(task, told), name="snapshot", daemon=True)
            thread.start()
            self._free -= 1
            self._running.add(task)
            self._threads = [*(one for one in self._threads if one.is_alive()), thread]

    def _run(self, task: SnapshotTask, told: Future[SnapshotResult]) -> None:
        _yield_to_processing()
        try:
            task.run()
            result = task.result()
        except BaseException as error:  # noqa: BLE001 - told to whoever waits for all operators
            told.set_exception(error)
        else:
            told.set_result(result)
        self.make_room(task)


def _yield_to_processing() -> None:
    """Let processing go first where there are too few cores; threads that this one starts do so too."""
    if sys.platform == "linux":  # elsewhere this would be the whole process
        thread = threading.get_native_id()
        with suppress(OSError):  # a sandbox may refuse it, and it is no more than a courtesy
            # Never above what a person gave the process: that takes a privilege, and is not wanted.
            nice = max(os.getpriority(os.PRIO_PROCESS, thread), BACKGROUND_NICE)
            os.setpriority(os.PRIO_PROCESS, thread, nice)
