"""The lock around commits on a local disk, and what is on the disk when it is released."""

import errno
import fcntl
import json
import os
import shutil
import signal
import stat
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from catalog.errors import ConflictError, LockTimeoutError, NotACatalogError, ReadOnlyError, UnknownOutcomeError
from catalog.tables import locks
from catalog.tables.locks import LOCK_FILE, CommitLock, fsync_commits, log_entry, newest_version

# From Python 3.12 on; the forked processes here touch nothing that other threads could hold.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

NOBODY = 65534
SHORT_S, LONG_S = 0.05, 30.0


@contextmanager
def other_process(work):
    """Run work(ready) in a forked process that is killed at the end; begins when it has called ready()."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            work(lambda: os.write(writer, b"!"))
        finally:
            os._exit(1)
    os.close(writer)
    try:
        assert os.read(reader, 1) == b"!", "the other process died before it was ready"
        yield pid
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def holder(folder):
    """Return work that takes the lock and keeps it until it is killed."""

    def work(ready):
        with CommitLock(folder, timeout_s=LONG_S).held():
            ready()
            signal.pause()

    return work


def in_child(work):
    """Return the exit code of work() in a forked process without root's powers."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def is_locked(folder):
    """Whether somebody has the lock, asked of the kernel through another open file."""
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def commit(table, version, *data_files):
    """Write a Delta commit as an engine does: data files with names by their encoded paths, then the log entry."""
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    actions = [{"commitInfo": {"operation": "MERGE"}}]
    for encoded, name in data_files:
        file = table / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"data")
        actions.append({"add": {"path": encoded, "size": 4, "dataChange": True}})
    actions.append({"remove": {"path": "gone.parquet", "dataChange": True}})
    lines = [json.dumps(action, ensure_ascii=False) for action in actions]
    (log / f"{version:020d}.json").write_text("\n".join(lines) + "\n", "utf-8")


@pytest.fixture
def synced(monkeypatch, tmp_path):
    """The paths, relative to the folder, of everything that is fsynced, each with whether the lock was held."""
    found = []

    def record(descriptor):
        path = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
        found.append((os.path.relpath(path, tmp_path), is_locked(tmp_path)))

    monkeypatch.setattr(os, "fsync", record)
    return found


class TestAcrossProcesses:
    def test_a_lock_held_by_another_process_is_a_timeout_and_nothing_runs(self, tmp_path):
        entered = False
        with other_process(holder(tmp_path)):
            with pytest.raises(LockTimeoutError, match="nothing was written, try again") as caught:  # noqa: SIM117
                with CommitLock(tmp_path, timeout_s=SHORT_S).held():
                    entered = True
            assert is_locked(tmp_path), "the holder still has it"
        assert not entered
        assert isinstance(caught.value, ConflictError)
        assert caught.value.path == str(tmp_path / LOCK_FILE)

    def test_a_killed_holder_blocks_nobody(self, tmp_path):
        with other_process(holder(tmp_path)) as pid:
            assert is_locked(tmp_path)
            os.kill(pid, signal.SIGKILL)
            with CommitLock(tmp_path, timeout_s=LONG_S).held():
                assert is_locked(tmp_path)

    def test_a_lock_that_timed_out_can_be_taken_later(self, tmp_path):
        lock = CommitLock(tmp_path, timeout_s=SHORT_S)
        with other_process(holder(tmp_path)), pytest.raises(LockTimeoutError), lock.held():
            pytest.fail("entered")
        with lock.held():
            assert is_locked(tmp_path)

    def test_a_waiting_process_goes_on_when_the_holder_is_done(self, tmp_path):
        def holds_until_told(ready):
            with CommitLock(tmp_path).held():
                ready()
                signal.sigwait([signal.SIGUSR1])
            ready()
            signal.pause()

        old = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])  # inherited: no signal can come too early
        try:
            with other_process(holds_until_told) as pid:
                waiting = threading.Thread(target=lambda: os.kill(pid, signal.SIGUSR1))
                waiting.start()
                with CommitLock(tmp_path, timeout_s=LONG_S).held():
                    assert is_locked(tmp_path)
                waiting.join()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, old)

    def test_a_folder_that_is_gone_is_told_and_not_made(self, tmp_path):
        with pytest.raises(NotACatalogError, match="was removed"), CommitLock(tmp_path / "gone").held():
            pytest.fail("entered")
        assert not (tmp_path / "gone").exists()

    def test_folders_do_not_disturb_each_other(self, tmp_path):
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
        with other_process(holder(tmp_path / "one")), CommitLock(tmp_path / "other", timeout_s=SHORT_S).held():
            assert is_locked(tmp_path / "other")


class TestWithinAProcess:
    @pytest.mark.parametrize("shared", [True, False], ids=["one lock", "two locks of one folder"])
    def test_threads_take_turns(self, tmp_path, shared):
        first = CommitLock(tmp_path, timeout_s=LONG_S)
        second = first if shared else CommitLock(tmp_path, timeout_s=LONG_S)
        entered, go_on, order = threading.Event(), threading.Event(), []

        def long_one():
            with first.held():
                order.append("first in")
                entered.set()
                go_on.wait(LONG_S)
                order.append("first out")

        def short_one():
            with second.held():
                order.append("second in")

        threads = [threading.Thread(target=long_one), threading.Thread(target=short_one)]
        threads[0].start()
        assert entered.wait(LONG_S)
        threads[1].start()
        threads[1].join(timeout=SHORT_S * 4)  # without the lock it would be through by now
        go_on.set()
        for thread in threads:
            thread.join(LONG_S)
        assert order == ["first in", "first out", "second in"]

    def test_many_threads_never_meet_inside(self, tmp_path):
        lock, inside, seen = CommitLock(tmp_path, timeout_s=LONG_S), [], []
        start = threading.Barrier(4)

        def work(number):
            start.wait()
            for _ in range(5):
                with lock.held():
                    inside.append(number)
                    os.listdir(tmp_path)  # noqa: PTH208 - lets go of the interpreter
                    seen.append(list(inside))
                    inside.remove(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG_S)
        assert len(seen) == 20
        assert all(len(one) == 1 for one in seen)

    @staticmethod
    def waiting_times(lock, count, work=lambda: None):
        """Let so many threads take a lock at once; return what they were told, and how long the slowest waited."""
        told, start = [], threading.Barrier(count)

        def take():
            start.wait()
            try:
                with lock.held():
                    work()
            except LockTimeoutError as error:
                told.append(str(error))

        threads = [threading.Thread(target=take) for _ in range(count)]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG_S)
        return told, time.monotonic() - began

    def test_a_commit_that_hangs_ends_the_wait_of_the_threads_behind_it(self, tmp_path):
        lock, hangs, go_on = CommitLock(tmp_path, timeout_s=SHORT_S), threading.Event(), threading.Event()

        def hang():
            with lock.held():
                hangs.set()
                go_on.wait(LONG_S)

        hanging = threading.Thread(target=hang)
        hanging.start()
        assert hangs.wait(LONG_S)
        told, _ = self.waiting_times(lock, 3)
        assert hanging.is_alive()
        go_on.set()
        hanging.join(LONG_S)
        assert len(told) == 3
        assert all("another thread of this process" in one and "nothing was written, try again" in one for one in told)
        assert self.waiting_times(lock, 3)[0] == []

    def test_threads_behind_another_process_wait_together_and_not_one_after_the_other(self, tmp_path):
        with other_process(holder(tmp_path)):
            told, longest_s = self.waiting_times(CommitLock(tmp_path, timeout_s=0.5), 10)
        assert len(told) == 10
        assert longest_s < 0.5 * 10 / 2

    def test_a_thread_waits_on_as_long_as_commits_before_it_get_done(self, tmp_path):
        done = []

        def work():
            threading.Event().wait(0.4)
            done.append(1)

        assert self.waiting_times(CommitLock(tmp_path, timeout_s=1), 5, work)[0] == []
        assert len(done) == 5

    def test_a_timeout_below_zero_is_none(self, tmp_path):
        lock = CommitLock(tmp_path, timeout_s=-1)
        assert self.waiting_times(lock, 2, lambda: threading.Event().wait(SHORT_S))[0] == []

    def test_the_lock_file_stays_and_is_the_same_for_the_next(self, tmp_path):
        lock = CommitLock(tmp_path)
        with lock.held():
            inode = (tmp_path / LOCK_FILE).stat().st_ino
        assert (tmp_path / LOCK_FILE).stat().st_ino == inode
        with lock.held():
            assert (tmp_path / LOCK_FILE).stat().st_ino == inode
        assert not is_locked(tmp_path)
        assert LOCK_FILE.startswith("_"), "Delta ignores such names"

    def test_it_is_released_when_the_commit_fails_and_the_error_is_the_commits(self, tmp_path):
        with pytest.raises(ZeroDivisionError), CommitLock(tmp_path).held():
            raise ZeroDivisionError
        assert not is_locked(tmp_path)


class TestReadOnly:
    @pytest.fixture
    def folder(self):
        """A folder that every user can reach; pytest's own cannot be entered by others."""
        made = Path(tempfile.mkdtemp(prefix="locks-"))
        yield made
        made.chmod(stat.S_IRWXU)
        shutil.rmtree(made)

    @staticmethod
    def attempt(folder):
        """Return 0 for a commit, 1 for ReadOnlyError with its facts, 2 for anything else."""

        def work():
            assert list(folder.iterdir()) is not None  # it can be read
            try:
                with CommitLock(folder, timeout_s=SHORT_S).held():
                    return 0
            except ReadOnlyError as error:
                told = "cannot write in" in str(error) and error.path == str(folder)
                return 1 if told and isinstance(error, PermissionError) else 2

        return in_child(work)

    def test_a_folder_that_cannot_be_written_is_told_as_such(self, folder):
        folder.chmod(0o555)
        assert self.attempt(folder) == 1
        assert list(folder.iterdir()) == []

    def test_so_is_a_lock_file_that_cannot_be_written(self, folder):
        folder.chmod(0o777)
        (folder / LOCK_FILE).touch()
        (folder / LOCK_FILE).chmod(0o444)
        assert self.attempt(folder) == 1

    def test_the_same_folder_with_permission_can_be_written(self, folder):
        folder.chmod(0o777)
        assert self.attempt(folder) == 0


class TestDurability:
    def test_data_then_log_entry_then_folders_while_the_lock_is_held(self, tmp_path, synced):
        commit(tmp_path, 0, ("old.parquet", "old.parquet"))
        with CommitLock(tmp_path).held():
            assert synced == []
            commit(
                tmp_path,
                1,
                ("a%20b/part%25-%C3%BC.parquet", "a b/part%-ü.parquet"),
                ("plain.parquet", "plain.parquet"),
            )
        data, entry, *paths = [path for path, _ in synced]
        assert (data, entry) == ("old.parquet", f"_delta_log/{0:020d}.json"), "its writer may have been killed"
        assert sorted(paths[:2]) == ["a b/part%-ü.parquet", "plain.parquet"]
        assert paths[2] == f"_delta_log/{1:020d}.json"
        assert sorted(paths[3:]) == [".", "_delta_log", "a b"]
        assert all(locked for _, locked in synced)
        assert not is_locked(tmp_path)

    def test_a_line_of_the_log_ends_only_where_json_cannot_go_on(self, tmp_path, synced):
        name = "stream=a\u2028b\u2029c\x85d/part.parquet"
        with CommitLock(tmp_path).held():
            commit(tmp_path, 0, (name, name))
        assert name in [path for path, _ in synced]

    def test_the_last_commits_of_others_go_along_as_their_writers_may_have_been_killed(self, tmp_path, synced):
        for version in range(9):
            commit(tmp_path, version, (f"{version}.parquet", f"{version}.parquet"))
        with CommitLock(tmp_path).held():
            commit(tmp_path, 9)
        told = [path for path, _ in synced if path.endswith(".parquet")]
        assert told == ["7.parquet", "8.parquet"]

    def test_what_this_process_put_on_the_disk_is_not_put_there_again(self, tmp_path, synced):
        lock = CommitLock(tmp_path)

        def entries_synced_by_a_commit(version):
            synced.clear()
            with lock.held():
                commit(tmp_path, version)
            return [int(path[-25:-5]) for path, _ in synced if path.endswith(".json")]

        assert entries_synced_by_a_commit(0) == [0]
        assert entries_synced_by_a_commit(1) == [1]
        commit(tmp_path, 2)
        commit(tmp_path, 3)
        assert entries_synced_by_a_commit(4) == [2, 3, 4]
        for version in (2, 3, 4):
            log_entry(tmp_path, version).unlink()  # as when a folder is put back from a backup
        commit(tmp_path, 2)
        assert entries_synced_by_a_commit(3) == [1, 2, 3]

    def test_every_commit_made_while_it_was_held_is_durable(self, tmp_path, synced):
        with CommitLock(tmp_path).held():
            commit(tmp_path, 0, ("x/0.parquet", "x/0.parquet"))
            commit(tmp_path, 1, ("y/1.parquet", "y/1.parquet"))
            commit(tmp_path, 2)
        paths = [path for path, _ in synced]
        for version, data in ((0, "x/0.parquet"), (1, "y/1.parquet")):
            assert paths.index(data) < paths.index(f"_delta_log/{version:020d}.json")
        folders = {".", "_delta_log", "x", "y"}
        assert set(paths[-4:]) == folders
        assert f"_delta_log/{2:020d}.json" in paths
        assert len(paths) == len(set(paths)) == 2 + 3 + 4

    def test_a_commit_is_durable_also_when_an_error_came_after_it(self, tmp_path, synced):
        def commit_and_fail():
            with CommitLock(tmp_path).held():
                commit(tmp_path, 0, ("x.parquet", "x.parquet"))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            commit_and_fail()
        assert [path for path, _ in synced][:2] == ["x.parquet", f"_delta_log/{0:020d}.json"]

    def test_without_a_commit_nothing_is_synced(self, tmp_path, synced):
        commit(tmp_path, 0, ("x.parquet", "x.parquet"))
        with CommitLock(tmp_path).held():
            assert is_locked(tmp_path)
        assert synced == []

    def test_durable_switched_off_does_none_of_it(self, tmp_path, synced):
        with CommitLock(tmp_path, durable=False).held():
            commit(tmp_path, 0, ("x.parquet", "x.parquet"))
            assert is_locked(tmp_path)
        assert synced == []

    @pytest.mark.parametrize("fails", ["x.parquet", ".json", "_delta_log"])
    def test_a_disk_that_fails_makes_the_outcome_unknown(self, tmp_path, monkeypatch, fails):
        def fsync(descriptor):
            if os.readlink(f"/proc/self/fd/{descriptor}").endswith(fails):  # noqa: PTH115
                raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(os, "fsync", fsync)
        with pytest.raises(UnknownOutcomeError, match="Input/output error") as caught, CommitLock(tmp_path).held():
            commit(tmp_path, 0, ("x.parquet", "x.parquet"))
        assert "look before trying again" in str(caught.value)
        assert caught.value.path == str(tmp_path)
        assert isinstance(caught.value.__cause__, OSError)
        assert not is_locked(tmp_path)

    def test_a_data_file_that_is_gone_makes_the_outcome_unknown(self, tmp_path):
        commit(tmp_path, 0, ("x.parquet", "x.parquet"))
        (tmp_path / "x.parquet").unlink()
        with pytest.raises(UnknownOutcomeError), CommitLock(tmp_path).held():
            (tmp_path / "_delta_log" / f"{0:020d}.json").rename(tmp_path / "_delta_log" / f"{1:020d}.json")

    def test_no_descriptor_is_left_open(self, tmp_path):
        commit(tmp_path, 0, ("x.parquet", "x.parquet"))
        before = len(list(Path("/proc/self/fd").iterdir()))
        fsync_commits(tmp_path, after=-1)
        with CommitLock(tmp_path).held():
            commit(tmp_path, 1)
        assert len(list(Path("/proc/self/fd").iterdir())) == before


class TestNewestVersion:
    def test_there_is_none_without_a_log(self, tmp_path):
        assert newest_version(tmp_path) == newest_version(tmp_path / "missing") == -1
        (tmp_path / "_delta_log").mkdir()
        assert newest_version(tmp_path) == -1

    def test_only_log_entries_count(self, tmp_path):
        commit(tmp_path, 9)
        commit(tmp_path, 10)
        for name in (
            f"{11:020d}.checkpoint.parquet",
            f"{12:020d}.crc",
            f".{13:020d}.json.crc",
            f".{14:020d}.json.0d9c.tmp",
            f"{15:020d}.json.tmp",
            f"{16:020d}.{17:020d}.compacted.json",
            f"{18:020d}.checkpoint.0d9c.json",
            "_last_checkpoint",
        ):
            (tmp_path / "_delta_log" / name).touch()
        (tmp_path / "_delta_log" / "_sidecars").mkdir()
        assert newest_version(tmp_path) == 10

    def test_the_highest_number_counts_and_not_the_last_name(self, tmp_path):
        for version in (999_999, 1_000_000, 2):
            commit(tmp_path, version)
        assert newest_version(tmp_path) == 1_000_000


def test_the_lock_waits_half_a_minute_unless_told_otherwise():
    assert locks.LOCK_TIMEOUT_S == 30.0
