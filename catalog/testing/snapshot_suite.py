"""The contract of snapshot strategies and their runner (seed 000), as tests over any checkpoint streams.

class TestMySnapshots(SnapshotStrategySuite):
    @pytest.fixture
    def checkpoints(self) -> StreamCheckpoints:
        return MyCheckpoints(...)
"""

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from catalog.errors import InvalidInputError, SnapshotCancelledError
from catalog.handles import InlineHandle, StateHandle
from catalog.snapshot import (
    CheckpointOptions,
    ExecutionType,
    SavepointSnapshotStrategy,
    SnapshotResources,
    SnapshotResult,
    SnapshotResultSupplier,
    SnapshotStrategy,
    SnapshotStrategyRunner,
    SnapshotTask,
)
from catalog.strategies import (
    DirectorySnapshotStrategy,
    FilesSnapshotStrategy,
    MappingSnapshotStrategy,
    PartitionSnapshotStrategy,
)
from catalog.stream_factory import CheckpointStreamFactory
from catalog.testing.stream_factory_suite import LARGE, SHARED, StreamCheckpoints, read, write

OPTIONS = CheckpointOptions()


class Recorded(SnapshotResources):
    """Resources that say when they are released."""

    def __init__(self, told: list[str], name: str = "release", error: BaseException | None = None) -> None:
        self._told = told
        self._name = name
        self._error = error

    def release(self) -> None:
        """See SnapshotResources."""
        self._told.append(self._name)
        if self._error:
            raise self._error


class Scripted(SnapshotStrategy[Recorded]):
    """A strategy that does what a test says, and tells in which order."""

    def __init__(
        self,
        work: Callable[[CheckpointStreamFactory], SnapshotResult] = lambda _: SnapshotResult.empty(),
        *,
        begin: Callable[[CheckpointStreamFactory], object] = lambda _: None,
        release_error: BaseException | None = None,
    ) -> None:
        """Make it.

        Args:
            work: what the supplier does.
            begin: what async_snapshot does.
            release_error: what releasing raises.
        """
        self.told: list[str] = []
        self._work = work
        self._begin = begin
        self._release_error = release_error

    def sync_prepare_resources(self, checkpoint_id: int) -> Recorded:
        """See SnapshotStrategy."""
        self.told.append(f"prepare {checkpoint_id}")
        return Recorded(self.told, f"release {checkpoint_id}", self._release_error)

    def async_snapshot(
        self,
        resources: Recorded,  # noqa: ARG002 - the interface
        checkpoint_id: int,
        timestamp: int,  # noqa: ARG002 - the interface
        stream_factory: CheckpointStreamFactory,
        options: CheckpointOptions,  # noqa: ARG002 - the interface
    ) -> SnapshotResultSupplier:
        """See SnapshotStrategy."""
        self._begin(stream_factory)

        def call() -> SnapshotResult:
            self.told.append(f"call {checkpoint_id}")
            return self._work(stream_factory)

        return call


def writes(factory: CheckpointStreamFactory) -> SnapshotResult:
    """Write one piece of state."""
    return SnapshotResult({"state": write(factory, LARGE)})


def leaves_much_open(factory: CheckpointStreamFactory) -> None:
    """Write, duplicate, and leave a stream open."""
    factory.duplicate([write(factory, LARGE)], SHARED)
    factory.create_checkpoint_state_output_stream(SHARED).write(LARGE)


class SnapshotStrategySuite:
    """Subclass it with a fixture `checkpoints`."""

    @pytest.fixture
    def factory(self, checkpoints: StreamCheckpoints) -> CheckpointStreamFactory:
        """A factory for the first checkpoint."""
        return checkpoints.factory(1)

    @staticmethod
    def started(
        strategy: SnapshotStrategy[Any],
        factory: CheckpointStreamFactory,
        options: CheckpointOptions = OPTIONS,
        how: ExecutionType = ExecutionType.ASYNCHRONOUS,
        checkpoint_id: int = 1,
    ) -> SnapshotTask:
        """Do the synchronous part."""
        return SnapshotStrategyRunner("op", strategy, how).snapshot(checkpoint_id, 0, factory, options)

    # -- order -----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("how", ExecutionType)
    def test_success_is_called_logged_and_then_released(
        self, factory: CheckpointStreamFactory, caplog: pytest.LogCaptureFixture, how: ExecutionType
    ) -> None:
        strategy = Scripted(writes)

        class Telling(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                strategy.told.append(record.getMessage())

        logger, telling = logging.getLogger("catalog.snapshot"), Telling()
        logger.addHandler(telling)
        with caplog.at_level(logging.INFO, "catalog.snapshot"):
            task = self.started(strategy, factory, how=how)
            if how is ExecutionType.ASYNCHRONOUS:
                assert (task.done(), strategy.told) == (False, ["prepare 1"])
                task.run()
            task.run()
        logger.removeHandler(telling)
        logged = f"op, checkpoint 1: {len(LARGE)} bytes in 1 handles"
        assert strategy.told == ["prepare 1", "call 1", logged, "release 1"], "once, even if it is run again"
        assert task.done()
        assert read(factory.open(task.result().handles["state"])) == LARGE
        assert not task.cancel(), "it has ended before"
        assert strategy.told.count("release 1") == 1

    def test_no_state_is_not_a_failure(self, checkpoints: StreamCheckpoints, factory: CheckpointStreamFactory) -> None:
        task = self.started(Scripted(), factory, how=ExecutionType.SYNCHRONOUS)
        assert (task.result().handles, task.result().size_bytes) == ({}, 0)
        checkpoints.save(factory, [])

    # -- failure ---------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("error", [ValueError("of the operator"), OSError("of the operator")])
    @pytest.mark.parametrize("release_error", [None, RuntimeError("of the release")])
    @pytest.mark.parametrize("how", ExecutionType)
    def test_a_failure_keeps_its_cause_releases_once_and_leaves_nothing(
        self,
        checkpoints: StreamCheckpoints,
        factory: CheckpointStreamFactory,
        caplog: pytest.LogCaptureFixture,
        error: Exception,
        release_error: Exception | None,
        how: ExecutionType,
    ) -> None:
        def fail(tracked: CheckpointStreamFactory) -> SnapshotResult:
            leaves_much_open(tracked)
            raise error

        strategy = Scripted(fail, release_error=release_error)
        with caplog.at_level(logging.INFO, "catalog.snapshot"):
            task = self.started(strategy, factory, how=how)
            task.run()
        with pytest.raises(type(error), match="of the operator") as caught:
            task.result()
        assert caught.value is error
        assert strategy.told == ["prepare 1", "call 1", "release 1"]
        assert checkpoints.artifacts() == 0
        assert "bytes in" not in caplog.text

    @pytest.mark.parametrize("release_error", [None, RuntimeError("of the release")])
    def test_an_async_part_that_raises_keeps_its_cause_releases_once_and_leaves_nothing(
        self,
        checkpoints: StreamCheckpoints,
        factory: CheckpointStreamFactory,
        release_error: Exception | None,
    ) -> None:
        def fail(tracked: CheckpointStreamFactory) -> None:
            leaves_much_open(tracked)
            raise ValueError("of the operator")

        strategy = Scripted(begin=fail, release_error=release_error)
        with pytest.raises(ValueError, match="of the operator"):
            self.started(strategy, factory)
        assert strategy.told == ["prepare 1", "release 1"]
        assert checkpoints.artifacts() == 0

    def test_resources_that_cannot_be_released_are_told_and_nothing_is_left(
        self, checkpoints: StreamCheckpoints, factory: CheckpointStreamFactory
    ) -> None:
        strategy = Scripted(writes, release_error=RuntimeError("of the release"))
        task = self.started(strategy, factory, how=ExecutionType.SYNCHRONOUS)
        with pytest.raises(RuntimeError, match="of the release"):
            task.result()
        assert strategy.told.count("release 1") == 1
        assert checkpoints.artifacts() == 0

    def test_an_interrupt_goes_through_and_releases_too(
        self, checkpoints: StreamCheckpoints, factory: CheckpointStreamFactory
    ) -> None:
        def interrupted(tracked: CheckpointStreamFactory) -> SnapshotResult:
            leaves_much_open(tracked)
            raise KeyboardInterrupt

        strategy = Scripted(interrupted)
        task = self.started(strategy, factory)
        with pytest.raises(KeyboardInterrupt):
            task.run()
        with pytest.raises(KeyboardInterrupt):
            task.result()
        assert strategy.told.count("release 1") == 1
        assert checkpoints.artifacts() == 0

    @pytest.mark.parametrize("what", ["nothing", "a file", "a link to a folder", "a link to nowhere", "no access"])
    def test_a_directory_is_saved_whole_or_not_at_all(
        self, factory: CheckpointStreamFactory, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        state = tmp_path / "state"
        if what == "a file":
            state.write_bytes(LARGE)
        elif what != "nothing":
            (state / "folder").mkdir(parents=True)
            (state / "file").write_bytes(LARGE)
        if what.startswith("a link"):
            (state / "link").symlink_to("folder" if what == "a link to a folder" else "nowhere")
        if what == "no access":  # as root would be let in
            listed = os.scandir

            def refuse(folder: object) -> object:
                if str(folder).endswith("folder"):
                    raise PermissionError(f"no access to {folder}")
                return listed(folder)  # type: ignore[call-overload]

            monkeypatch.setattr(os, "scandir", refuse)
        told = "no access" if what == "no access" else "is not a f"
        with pytest.raises(OSError if what == "no access" else InvalidInputError, match=told):
            self.started(DirectorySnapshotStrategy(state), factory)
        monkeypatch.undo()
        assert [one.name for one in tmp_path.iterdir() if one != state] == [], "no links are left"

    def test_a_link_in_a_directory_is_the_file_that_it_leads_to(
        self, checkpoints: StreamCheckpoints, factory: CheckpointStreamFactory, tmp_path: Path
    ) -> None:
        folder = tmp_path / "state" / "folder"
        folder.mkdir(parents=True)
        (tmp_path / "state" / "file").write_bytes(LARGE)
        (folder / "link").symlink_to("../file")
        strategy = DirectorySnapshotStrategy(tmp_path / "state")
        result = self.started(strategy, factory, how=ExecutionType.SYNCHRONOUS).result()
        checkpoints.save(factory, result.handles.values())
        assert sorted(result.handles) == ["file", "folder/link"]
        assert read(checkpoints.open(result.handles["folder/link"])) == LARGE

    @pytest.mark.parametrize("ending", ["failure", "cancel before", "async_snapshot"])
    def test_resources_are_released_even_if_what_was_written_cannot_be_removed(
        self, factory: CheckpointStreamFactory, monkeypatch: pytest.MonkeyPatch, ending: str
    ) -> None:
        def fail(_: object) -> SnapshotResult:
            raise RuntimeError("of the work")

        def cannot(_: object) -> None:
            raise RuntimeError("of the removal")

        monkeypatch.setattr(factory, "discard", cannot)
        strategy = Scripted(fail, begin=fail if ending == "async_snapshot" else lambda _: None)
        if ending == "async_snapshot":
            with pytest.raises(RuntimeError, match="of the work"):
                self.started(strategy, factory)
        else:
            task = self.started(strategy, factory)
            task.cancel() if ending == "cancel before" else task.run()
            assert task.done()
            with pytest.raises(SnapshotCancelledError if ending == "cancel before" else RuntimeError):
                task.result()
        assert strategy.told[-1] == "release 1"
        assert strategy.told.count("release 1") == 1

    def test_resources_are_required(self, factory: CheckpointStreamFactory, monkeypatch: pytest.MonkeyPatch) -> None:
        strategy = Scripted()
        monkeypatch.setattr(strategy, "sync_prepare_resources", lambda _: None)
        with pytest.raises(InvalidInputError, match="sync_prepare_resources"):
            self.started(strategy, factory)

    def test_nothing_is_not_a_result(self, checkpoints: StreamCheckpoints, factory: CheckpointStreamFactory) -> None:
        def forgets(tracked: CheckpointStreamFactory) -> SnapshotResult:
            writes(tracked)
            return None  # type: ignore[return-value]

        strategy = Scripted(forgets)
        task = self.started(strategy, factory, how=ExecutionType.SYNCHRONOUS)
        with pytest.raises(InvalidInputError, match="result"):
            task.result()
        assert strategy.told.count("release 1") == 1
        assert checkpoints.artifacts() == 0

    def test_an_execution_type_that_there_is_not_is_refused_with_those_there_are(self) -> None:
        with pytest.raises(InvalidInputError, match="must be one of synchronous, asynchronous, not 'bogus'"):
            SnapshotStrategyRunner("op", Scripted(), "bogus")  # type: ignore[arg-type]

    def test_none_is_refused_before_anything_is_prepared(self, factory: CheckpointStreamFactory) -> None:
        strategy = Scripted()
        runner = SnapshotStrategyRunner("op", strategy)
        nothing: Any = None
        for arguments in ((nothing, 0, factory, OPTIONS), (1, nothing, factory, OPTIONS), (-1, 0, factory, OPTIONS)):
            with pytest.raises(InvalidInputError):
                runner.snapshot(*arguments)
        for missing in ((nothing, OPTIONS), (factory, nothing)):
            with pytest.raises(InvalidInputError, match="required"):
                runner.snapshot(1, 0, *missing)
        with pytest.raises(InvalidInputError, match="strategy"):
            SnapshotStrategyRunner("op", nothing)
        assert strategy.told == []

    @pytest.mark.parametrize(
        ("make", "says"),
        [
            (lambda nothing: SnapshotStrategyRunner(nothing, Scripted()), "description"),
            (lambda nothing: SavepointSnapshotStrategy(nothing), "strategy"),
            (lambda nothing: PartitionSnapshotStrategy(nothing), "state"),
            (lambda nothing: MappingSnapshotStrategy(nothing, pa.int64(), pa.int64()), "mapping"),
            (lambda nothing: FilesSnapshotStrategy(nothing), "files"),
            (lambda nothing: CheckpointOptions(snapshot_type=nothing), "snapshot_type"),
            (lambda nothing: CheckpointOptions(previous=nothing), "previous"),
            (lambda _: CheckpointOptions("bogus"), "must be one of checkpoint, savepoint, not 'bogus'"),  # type: ignore[arg-type]
        ],
    )
    def test_none_is_refused_when_something_is_made_of_it(self, make: Callable[[Any], object], says: str) -> None:
        with pytest.raises(InvalidInputError, match=says):
            make(None)

    # -- cancel ----------------------------------------------------------------------------------------------------

    def test_cancelled_before_it_runs_it_is_never_called_and_released_once(
        self, checkpoints: StreamCheckpoints, factory: CheckpointStreamFactory
    ) -> None:
        strategy = Scripted(writes, begin=leaves_much_open)
        task = self.started(strategy, factory)
        assert task.cancel()
        assert task.cancel(), "again"
        task.run()
        with pytest.raises(SnapshotCancelledError):
            task.result()
        assert strategy.told == ["prepare 1", "release 1"]
        assert checkpoints.artifacts() == 0

    @pytest.mark.parametrize("then", ["writes", "ends", "fails", "duplicates", "begins another"])
    def test_cancelled_while_it_runs_it_leaves_nothing_whatever_it_does_then(
        self,
        checkpoints: StreamCheckpoints,
        factory: CheckpointStreamFactory,
        caplog: pytest.LogCaptureFixture,
        then: str,
    ) -> None:
        running, cancelled = threading.Event(), threading.Event()

        def work(tracked: CheckpointStreamFactory) -> SnapshotResult:
            stream = tracked.create_checkpoint_state_output_stream(SHARED)
            stream.write(LARGE)
            done = write(tracked, LARGE + b"done")
            running.set()
            cancelled.wait()
            if then == "writes":
                stream.write(b"more")
            elif then == "fails":
                raise ValueError("another reason")
            elif then == "duplicates":
                tracked.duplicate([done], SHARED)
            elif then == "begins another":
                write(tracked, LARGE)
            return SnapshotResult({"done": done})

        strategy = Scripted(work)
        with caplog.at_level(logging.INFO, "catalog.snapshot"):
            task = self.started(strategy, factory)
            thread = threading.Thread(target=task.run)
            thread.start()
            running.wait()
            assert task.cancel()
            assert not task.done(), "its thread still uses the resources"
            assert strategy.told == ["prepare 1", "call 1"]
            cancelled.set()
            thread.join()
        with pytest.raises(SnapshotCancelledError):
            task.result()
        assert strategy.told == ["prepare 1", "call 1", "release 1"]
        assert checkpoints.artifacts() == 0
        assert "bytes in" not in caplog.text

    def test_of_cancel_and_end_at_once_one_wins_and_the_other_knows(
        self, checkpoints: StreamCheckpoints, factory: CheckpointStreamFactory
    ) -> None:
        for _ in range(50):
            strategy = Scripted(lambda _: SnapshotResult({"small": InlineHandle.of(b"x")}))
            task = self.started(strategy, factory)
            gate = threading.Barrier(2)

            def run(task: SnapshotTask = task, gate: threading.Barrier = gate) -> None:
                gate.wait()
                task.run()

            thread = threading.Thread(target=run)
            thread.start()
            gate.wait()
            cancelled = task.cancel()
            thread.join()
            assert strategy.told.count("release 1") == 1
            if cancelled:
                with pytest.raises(SnapshotCancelledError):
                    task.result()
            else:
                assert task.result().size_bytes == 1
        assert checkpoints.artifacts() == 0

    # -- several at once -------------------------------------------------------------------------------------------

    def test_several_checkpoints_use_one_strategy_at_once(self, checkpoints: StreamCheckpoints) -> None:
        together = threading.Barrier(3)

        def work(tracked: CheckpointStreamFactory) -> SnapshotResult:
            together.wait()
            return writes(tracked)

        strategy = Scripted(work)
        factories = [checkpoints.factory(number) for number in (1, 2, 3)]
        tasks = [self.started(strategy, one, checkpoint_id=number) for number, one in enumerate(factories, 1)]
        threads = [threading.Thread(target=task.run) for task in tasks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for factory, task in zip(factories, tasks, strict=True):
            checkpoints.save(factory, task.result().handles.values())
        for number, task in enumerate(tasks, 1):
            assert strategy.told.count(f"release {number}") == 1
            assert read(checkpoints.open(task.result().handles["state"])) == LARGE

    # -- the ready strategies --------------------------------------------------------------------------------------

    def taken(
        self,
        checkpoints: StreamCheckpoints,
        strategy: SnapshotStrategy[Any],
        checkpoint_id: int = 1,
        previous: Mapping[str, StateHandle] | None = None,
    ) -> SnapshotResult:
        """Take and save a checkpoint."""
        factory = checkpoints.factory(checkpoint_id)
        options = CheckpointOptions(previous=previous or {})
        result = self.started(strategy, factory, options, ExecutionType.SYNCHRONOUS, checkpoint_id).result()
        checkpoints.save(factory, result.handles.values())
        return result

    @staticmethod
    def opened(checkpoints: StreamCheckpoints, result: SnapshotResult) -> dict[str, Any]:
        """Return the files of a result."""
        return {name: checkpoints.open(handle) for name, handle in result.handles.items()}

    def test_partitions_come_back(self, checkpoints: StreamCheckpoints) -> None:
        state: dict[int, bytes | memoryview] = {0: b"small", 7: memoryview(LARGE), 12: b""}
        result = self.taken(checkpoints, PartitionSnapshotStrategy(lambda: state))
        found = PartitionSnapshotStrategy.restore(self.opened(checkpoints, result))
        assert found == {0: b"small", 7: LARGE}
        assert self.taken(checkpoints, PartitionSnapshotStrategy(dict), 2).handles == {}

    def test_a_mapping_comes_back_as_it_was_when_it_was_prepared(self, checkpoints: StreamCheckpoints) -> None:
        mapping = {f"key {number}": number for number in range(70_000)}
        expected = dict(mapping)
        strategy = MappingSnapshotStrategy(mapping, pa.string(), pa.int64())
        factory = checkpoints.factory(1)
        task = self.started(strategy, factory)
        mapping.clear()
        task.run()
        checkpoints.save(factory, task.result().handles.values())
        assert MappingSnapshotStrategy.restore(self.opened(checkpoints, task.result())) == expected
        empty = self.taken(checkpoints, strategy, 2)
        assert empty.handles == {}
        assert MappingSnapshotStrategy.restore({}) == {}

    def test_a_directory_comes_back_and_unchanged_files_are_used_on(
        self, checkpoints: StreamCheckpoints, tmp_path: Path
    ) -> None:
        folder = tmp_path / "db"
        (folder / "deep" / "er").mkdir(parents=True)
        (folder / "deep" / "er" / "1.sst").write_bytes(LARGE)
        (folder / "2.sst").write_bytes(LARGE + b"2")
        (folder / "empty").write_bytes(b"")
        (folder / "small ü").write_bytes(b"small")
        strategy = DirectorySnapshotStrategy(folder)
        first = self.taken(checkpoints, strategy)
        assert sorted(first.handles) == ["2.sst", "deep/er/1.sst", "empty", "small ü"]
        (folder / "2.sst").unlink()
        (folder / "small ü").write_bytes(b"other")  # the same size
        (folder / "3.sst").write_bytes(LARGE + b"3")
        second = self.taken(checkpoints, strategy, 2, first.handles)
        assert second.handles["deep/er/1.sst"] == first.handles["deep/er/1.sst"], "used on"
        checkpoints.delete(1)
        DirectorySnapshotStrategy.restore(self.opened(checkpoints, second), tmp_path / "restored")
        found = {
            one.relative_to(tmp_path / "restored").as_posix(): one.read_bytes()
            for one in (tmp_path / "restored").rglob("*")
            if one.is_file()
        }
        assert found == {"3.sst": LARGE + b"3", "deep/er/1.sst": LARGE, "empty": b"", "small ü": b"other"}
        checkpoints.delete(2)
        assert checkpoints.artifacts() == 0

    def test_files_may_be_removed_while_they_are_written_and_no_link_is_left(
        self, checkpoints: StreamCheckpoints, tmp_path: Path
    ) -> None:
        folder = tmp_path / "db"
        folder.mkdir()
        (folder / "1.sst").write_bytes(LARGE)
        factory = checkpoints.factory(1)
        task = self.started(DirectorySnapshotStrategy(folder), factory)
        (folder / "1.sst").unlink()
        task.run()
        assert read(factory.open(task.result().handles["1.sst"])) == LARGE
        assert [one.name for one in tmp_path.iterdir()] == ["db"]

    def test_links_that_a_killed_run_left_go_and_those_in_use_stay(
        self, checkpoints: StreamCheckpoints, tmp_path: Path
    ) -> None:
        folder = tmp_path / "db"
        folder.mkdir()
        (folder / "1.sst").write_bytes(LARGE)
        (tmp_path / ".db.links-mine").write_text("a file of somebody else")
        code = (
            "import os, signal, sys; from catalog.strategies import DirectorySnapshotStrategy\n"
            "links = DirectorySnapshotStrategy(sys.argv[1]).sync_prepare_resources(1)\n"
            "os.kill(os.getpid(), signal.SIGKILL)"
        )
        killed = subprocess.run([sys.executable, "-c", code, str(folder)], check=False)
        assert killed.returncode == -signal.SIGKILL
        assert (folder / "1.sst").stat().st_nlink == 2, "the run was killed before it made links"
        factory = checkpoints.factory(1)
        task = self.started(DirectorySnapshotStrategy(folder), factory)
        assert (folder / "1.sst").stat().st_nlink == 2
        DirectorySnapshotStrategy(folder)
        task.run()
        assert read(factory.open(task.result().handles["1.sst"])) == LARGE, "links in use were removed"
        assert sorted(one.name for one in tmp_path.iterdir()) == [".db.links-mine", "db"]
        assert (folder / "1.sst").stat().st_nlink == 1

    def test_a_directory_is_restored_into_an_empty_folder_only_and_never_outside(self, tmp_path: Path) -> None:
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "file").touch()
        with pytest.raises(InvalidInputError, match="empty"):
            DirectorySnapshotStrategy.restore({}, tmp_path / "full")
        for name in ("../out", "/out", "a/../../out"):
            with pytest.raises(InvalidInputError, match="out of the folder"):
                DirectorySnapshotStrategy.restore({name: None}, tmp_path / "new")  # type: ignore[dict-item]
        assert not (tmp_path / "out").exists()

    def test_a_savepoint_is_restorable_with_everything_else_gone(
        self, checkpoints: StreamCheckpoints, tmp_path: Path
    ) -> None:
        folder = tmp_path / "db"
        folder.mkdir()
        (folder / "1.sst").write_bytes(LARGE * 20)
        strategy = DirectorySnapshotStrategy(folder)
        first = self.taken(checkpoints, strategy)
        savepoint = self.taken(checkpoints, SavepointSnapshotStrategy(strategy), 2, first.handles)
        assert savepoint.handles["1.sst"] != first.handles["1.sst"]
        later = self.taken(checkpoints, strategy, 3, first.handles)
        assert later.handles == first.handles
        checkpoints.delete(1)
        checkpoints.delete(3)
        assert read(checkpoints.open(savepoint.handles["1.sst"])) == LARGE * 20
        checkpoints.delete(2)
        assert checkpoints.artifacts() == 0
