"""The example job, killed at random moments while it checkpoints: every record counts exactly once."""

import hashlib
import json
import random
import re
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import timedelta

import numpy as np
import pytest

from catalog import CheckpointCatalog
from catalog.examples.counting import KEYS, SEGMENT_KEYS, source
from catalog.tables.port import Equals, Table

RECORDS = 64 << 20
CHECKPOINT_RECORDS = 1 << 20


@pytest.fixture(scope="module")
def undisturbed():
    """What counting without any checkpoint gives: the hash of all counts."""
    counts = np.zeros(KEYS, np.int64)
    for offset in range(0, RECORDS, 1 << 20):
        counts += np.bincount(source(offset, 1 << 20).astype(np.int64), minlength=KEYS)
    assert counts.sum() == RECORDS
    assert counts.nbytes > 100 << 20
    assert counts[-SEGMENT_KEYS:].any(), "the state never reaches its full size"
    return hashlib.sha256(counts.data).hexdigest()


def run_job(place, stream, kill):
    """Run the job, kill it unless it ends before, and return what it told at its beginning and its end.

    A kill is so many seconds after so many checkpoints.
    """
    command = [sys.executable, "-m", "catalog.examples.counting", str(place), "--stream", stream]
    command += ["--records", str(RECORDS), "--checkpoint-records", str(CHECKPOINT_RECORDS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as job:
        restored = json.loads(job.stdout.readline())
        lines = []
        if kill is not None:
            checkpoints, delay_s = kill
            lines += [line for line in (job.stdout.readline() for _ in range(checkpoints)) if line]
            with suppress(subprocess.TimeoutExpired):
                job.wait(delay_s)
            job.send_signal(signal.SIGKILL)
        lines += job.stdout.read().splitlines()
    killed = job.returncode == -signal.SIGKILL
    assert killed or job.returncode == 0
    return restored, None if killed else json.loads(lines[-1])


def count_with_kills(place, kills, undisturbed, seed=4711):
    chance = random.Random(seed)
    made, streams, offsets = 0, 0, []
    while True:
        stream = f"counting {streams}"
        done, newest, before = None, None, 0
        while done is None:
            # Each gets a little further than the one before, at least now and then.
            kill = (1 if made == 0 else chance.randrange(3), chance.uniform(0, 1)) if made < kills else None
            restored, done = run_job(place, stream, kill)
            assert restored["offset"] >= before, "it began before a place where it had been"
            newest, before = restored["restored_from"], restored["offset"]
            offsets.append(restored["offset"])
            made += done is None
        assert (done["records"], done["sha256"]) == (RECORDS, undisturbed)
        assert done["state_mib"] > 100
        streams += 1
        if made >= kills:
            break
    catalog = CheckpointCatalog.native(place)
    store = catalog.store("counting 0")
    assert catalog.validate(depth="hashes").results == ()
    # What the killed ones left goes, and what is needed stays.
    store.cleanup_orphans(timedelta(0))
    assert catalog.validate(depth="hashes").results == ()
    attempts = {one.origin.attempt for one in catalog.stream("counting 0").history().values() if one.origin}
    rows = catalog.engine.scan(Table.ARTIFACTS, [Equals("stream", "counting 0")], ["attempt"])
    assert set(rows.column("attempt").to_pylist()) <= attempts
    return made, streams, offsets, newest


def test_a_job_that_is_killed_and_started_again_counts_every_record_exactly_once(tmp_path, undisturbed):
    made, _, offsets, newest = count_with_kills(tmp_path / "catalog", 3, undisturbed)
    assert made == 3
    assert newest is not None
    assert offsets[-1] > 0, "no restart ever began from a checkpoint"


def test_a_job_that_a_person_interrupts_says_where_in_one_line(tmp_path):
    command = [sys.executable, "-m", "catalog.examples.counting", str(tmp_path / "catalog")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        job.stdout.readline()
        job.send_signal(signal.SIGINT)
        _, told = job.communicate()
    assert job.returncode == 130
    assert re.fullmatch(r"interrupted at record \d+; run it again to go on\n", told)


@pytest.mark.prove
def test_twenty_five_kills_of_a_job_change_no_count(tmp_path, undisturbed):
    made, streams, offsets, _ = count_with_kills(tmp_path / "catalog", 25, undisturbed)
    print(f"\n{made} kills in {streams} runs; restarts began at millions of records: {[at >> 20 for at in offsets]}")
    assert made == 25
