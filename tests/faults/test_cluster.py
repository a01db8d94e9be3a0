"""Jobs on a Spark standalone cluster, by spark-submit from the wheel: spread over both workers, and one killed."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import psutil
import pyspark
import pytest

from catalog import AppendLog, CheckpointCatalog, CheckpointManifest, keys
from catalog.session import jar_settings
from catalog.tables.port import Equals, Table
from catalog.testing.native import NativeHarness
from tests.faults.fold_worker import LINKS, delta, log_of, save

pytestmark = pytest.mark.prove

CHECKOUT = Path(__file__).parents[2]
SPARK_BIN = Path(pyspark.__file__).parent / "bin"
STREAMS = 12
PER_STREAM = 8


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """An environment that has the wheel, and nothing of the checkout, besides what the wheel needs."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, CHECKOUT], cwd=folder, check=True)
    (wheel,) = folder.glob("*.whl")
    environment = folder / "environment"
    venv.create(environment, with_pip=False)
    (packages,) = environment.glob("lib/python*/site-packages")
    # A path file of another environment is not followed, so that its link to the checkout is not there.
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = environment / "bin" / "python"
    subprocess.run(
        [*pip, "--python", python, "install", "--quiet", "--no-deps", "--ignore-installed", wheel],
        cwd=folder, check=True,
    )  # fmt: skip
    return environment


@contextmanager
def process(*command, log, env):
    """A process in a session of its own; at the end all that is left of the session is killed."""
    with log.open("wb") as out:
        started = subprocess.Popen(
            [str(one) for one in command], stdout=out, stderr=subprocess.STDOUT, env=env, cwd=log.parent,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield started
    finally:
        kill_session(started.pid)
        started.wait()


def of_session(leader):
    """Return the processes of a session; Spark's Python workers leave the process group, but not the session."""
    found = []
    for one in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError, PermissionError):
            if os.getsid(one.pid) == leader:
                found.append(one)
    return found


def kill_session(leader):
    """Kill a process and all that it started, as a lost machine would."""
    while left := [one for one in of_session(leader) if one.status() != psutil.STATUS_ZOMBIE]:
        for one in left:
            with suppress(psutil.Error):
                one.send_signal(signal.SIGKILL)
        psutil.wait_procs(left, timeout=1)


def wait_for(found, alive, what):
    """Wait until something is found; it fails when the process that should bring it is no more."""
    while True:
        if result := found():
            return result
        assert alive(), f"ended before {what}"
        time.sleep(0.05)


@dataclass
class Cluster:
    url: str
    workers: list
    folder: Path
    env: dict


@pytest.fixture
def cluster(environment, tmp_path):
    """One master and two workers of one core each."""
    python = str(environment / "bin" / "python")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARK", "PYSPARK"))}
    env = {**kept, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}

    def started(stack, name, role, *arguments, ready):
        log = tmp_path / f"{name}.log"
        command = [SPARK_BIN / "spark-class", f"org.apache.spark.deploy.{role}", "--host", "127.0.0.1"]
        one = stack.enter_context(process(*command, "--webui-port", "0", *arguments, log=log, env=env))
        match = wait_for(lambda: re.search(ready, log.read_text()), lambda: one.poll() is None, f"{name} was ready")
        return one, match

    with ExitStack() as stack:
        _, match = started(
            stack, "master", "master.Master", "--port", "0", ready=r"Starting Spark master at (spark:\S+)"
        )
        workers = [
            started(
                stack, name, "worker.Worker", "--cores", "1", "--memory", "1g", "--work-dir", tmp_path / name, match[1],
                ready="Successfully registered with master",
            )[0]
            for name in ("anna", "berta")
        ]  # fmt: skip
        yield Cluster(match[1], workers, tmp_path, env)


@dataclass
class Submitted:
    process: subprocess.Popen
    out: Path
    log: Path
    events: Path

    def result(self):
        """Wait for the end, and return exit code and result."""
        self.process.wait()
        shown = self.out.read_text()
        assert shown, self.log.read_text()[-4000:]
        return self.process.returncode, json.loads(shown)

    def entries(self):
        """Return the entries of Spark's event log."""
        (file,) = self.events.iterdir()
        return [json.loads(line) for line in file.read_text().splitlines()]

    def python_tasks(self):
        """Return, by executor, how many tasks that ran Python ended well, and the reasons why others did not."""
        of_python, done, failed = set(), Counter(), Counter()
        for one in self.entries():
            if one["Event"] == "SparkListenerStageSubmitted" and "InArrow" in json.dumps(one["Stage Info"]):
                of_python.add(one["Stage Info"]["Stage ID"])
            if one["Event"] == "SparkListenerTaskEnd" and one["Stage ID"] in of_python:
                if one["Task End Reason"]["Reason"] == "Success":
                    done[one["Task Info"]["Executor ID"]] += 1
                else:
                    failed[one["Task End Reason"]["Reason"]] += 1
        return done, failed


@pytest.fixture
def submit(cluster, environment):
    """Start a job of the wheel by spark-submit, with both workers' executors there before it begins."""
    (packages,) = environment.glob("lib/python*/site-packages")
    with ExitStack() as stack:

        def submit(job, *arguments):
            events = cluster.folder / f"events of {job}"
            events.mkdir()
            settings = {
                **jar_settings(),
                "spark.executor.cores": "1",
                "spark.executor.memory": "600m",
                "spark.driver.memory": "1g",
                "spark.scheduler.minRegisteredResourcesRatio": "1.0",
                "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
                "spark.eventLog.enabled": "true",
                "spark.eventLog.dir": events.as_uri(),
                "spark.eventLog.compress": "false",
                "spark.eventLog.rolling.enabled": "false",
            }
            confs = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
            out, log = cluster.folder / f"{job}.out", cluster.folder / f"{job}.log"
            command = [SPARK_BIN / "spark-submit", "--master", cluster.url, *confs, packages / "jobs" / f"{job}.py"]
            # The result alone goes to stdout.
            words = ["sh", "-c", 'exec "$@" >"$0"', out, *command, *arguments, "--output", "json"]
            return Submitted(stack.enter_context(process(*words, log=log, env=cluster.env)), out, log, events)

        yield submit


def kill_a_worker_at_work(cluster, submitted):
    """Kill a worker with its executor while that has a task of ours, which loads deltalake; the first to do so."""

    def at_work():
        for worker in cluster.workers:
            for one in of_session(worker.pid):
                with suppress(psutil.Error):
                    if any("deltalake" in mapped.path for mapped in one.memory_maps()):
                        return worker
        return None

    worker = wait_for(at_work, lambda: submitted.process.poll() is None, "any work was done on the workers")
    kill_session(worker.pid)


@pytest.fixture
def harness(tmp_path):
    """A catalog of several streams, each of which is a task of its own."""
    harness = NativeHarness(tmp_path / "catalog", durable=False)
    for stream in range(STREAMS):
        store = harness.catalog.store(f"stream {stream:02d}")
        for number in range(1, PER_STREAM + 1):
            store.save_with_state(CheckpointManifest.new(number, epoch=1), os.urandom(200_000))
    return harness


def the_job_survived(submitted, killed):
    done, failed = submitted.python_tasks()
    if killed:
        assert "ExecutorLostFailure" in failed, "the worker was not killed in the middle of a task"
        assert any(one["Event"] == "SparkListenerExecutorRemoved" for one in submitted.entries())
    else:
        assert failed == {}
        assert len(done) == 2, f"the work was not spread: {done}"
    print(f"\ntasks by executor: {dict(done)}, failed: {dict(failed)}")
    return sum(done.values())


@pytest.mark.parametrize("killed", [False, True], ids=["both live", "one killed"])
def test_verification_is_spread_over_the_workers_and_survives_the_loss_of_one(cluster, submit, harness, killed):
    harness.corrupt_state("stream 03", keys.integer_key(5))
    submitted = submit("verify_checkpoints", harness.catalog.engine.place.path)
    if killed:
        kill_a_worker_at_work(cluster, submitted)
    code, found = submitted.result()
    assert (code, found["checked"], found["bytes"]) == (3, STREAMS * PER_STREAM, STREAMS * PER_STREAM * 200_000)
    (issue,) = found["issues"]
    assert (issue["stream"], issue["checkpoint_id"], issue["rule"]) == ("stream 03", 5, "checksum_mismatch")
    assert the_job_survived(submitted, killed) >= STREAMS
    verified = harness.catalog.engine.scan(Table.EVENTS, [Equals("event", "verified")], ["stream", "checkpoint_key"])
    assert len({tuple(row.values()) for row in verified.to_pylist()}) == verified.num_rows == STREAMS * PER_STREAM


@pytest.mark.parametrize("killed", [False, True], ids=["both live", "one killed"])
def test_folding_is_spread_over_the_workers_and_survives_the_loss_of_one(cluster, submit, tmp_path, killed):
    catalog = CheckpointCatalog.native(tmp_path / "catalog", create=True, durable=False)
    tips = {}
    for stream in (f"stream {number:02d}" for number in range(STREAMS)):
        for link in range(LINKS):
            tips[stream] = save(catalog, stream, tips.get(stream), delta(link), format=AppendLog.format)
    submitted = submit("fold_chains", tmp_path / "catalog", "--min-links", "3")
    if killed:
        kill_a_worker_at_work(cluster, submitted)
    code, found = submitted.result()
    assert code == 0
    assert {(one["stream"], one["folded"], one["links"]) for one in found["chains"]} == {
        (stream, True, LINKS) for stream in tips
    }
    the_job_survived(submitted, killed)
    for stream, tip in tips.items():
        links = asyncio.run(catalog.checkpointer(stream).load_chain(tip, "log", 0))
        assert [(link.is_delta, link.data) for link in links] == [(False, log_of(LINKS))]
        # What a lost worker had begun is an orphan, and nothing else goes.
        catalog.clean_up([stream], grace=timedelta(0))
    assert catalog.validate(depth="hashes").results == ()


@pytest.mark.parametrize("killed", [False, True], ids=["both live", "one killed"])
def test_compaction_is_spread_over_the_workers_and_survives_the_loss_of_one(cluster, submit, harness, killed):
    engine = harness.catalog.engine

    def rows():
        columns = ["stream", "checkpoint_key", "attempt", "path", "chunk_no", "chunk_sha256", "data"]
        return sorted(engine.scan(Table.ARTIFACTS, [], columns).to_pylist(), key=repr)

    before = rows()
    submitted = submit("compact_catalog", engine.place.path)
    if killed:
        kill_a_worker_at_work(cluster, submitted)
    code, found = submitted.result()
    merged = next(one for one in found["tables"] if one["table"] == Table.ARTIFACTS)
    assert (code, merged["problems"]) == (0, [])
    assert (merged["files_before"], merged["files_after"]) == (STREAMS * PER_STREAM, STREAMS)
    assert the_job_survived(submitted, killed) >= STREAMS
    assert rows() == before
    assert harness.catalog.validate(depth="hashes").results == ()


def test_the_job_ran_from_the_wheel(environment):
    code = "import catalog, jobs; print(catalog.__file__, jobs.__file__)"
    shown = subprocess.run(
        [environment / "bin" / "python", "-c", code], cwd="/", env={"PATH": os.environ["PATH"]}, check=True,
        capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert all(Path(file).is_relative_to(environment) for file in shown.split())
