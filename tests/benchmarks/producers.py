"""How little checkpoints cost a producer: processing beside them, and bytes and time when little has changed."""

import os
import random
import sys
import time
from collections import defaultdict
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from catalog import CheckpointCatalog, CheckpointedStateScope, CheckpointStore
from catalog.cutting import CHUNK_BYTES
from catalog.examples.counting import BATCH_RECORDS, KEYS, SEGMENT_KEYS, SWITCH_INTERVAL_S, CountingJob
from tests.benchmarks.lines import MIB, Line, manifest, percentile

ALONE_S = 0.5


def processing(folder: Path, rounds: int) -> tuple[list[Line], dict[str, Any]]:
    """The example job's throughput and latency while a checkpoint is written, beside its own without one."""

    sys.setswitchinterval(SWITCH_INTERVAL_S)  # as the example's main does
    with CheckpointCatalog.native(folder / "job", create=True) as catalog:
        job = CountingJob(catalog.store("job", max_retained=3), checkpoint_records=1 << 62)
        for number in range(KEYS // SEGMENT_KEYS):
            job.counts.segments[number] = np.random.default_rng(number).integers(0, 1 << 40, SEGMENT_KEYS)
        job.checkpoint().result()
        alone, beside = _phases(job, rounds, all_changed=False)
        alone_too, beside_all = _phases(job, rounds, all_changed=True)
        job.coordinator.close()
    facts = {
        # A record is through when its batch is, and all batches have as many: so this is the p99 of records too.
        f"p99_ms_of_a_record_in_a_batch_of_{BATCH_RECORDS}": {
            "alone": round(percentile(alone, 99) * 1e3, 1),
            "while_a_checkpoint_is_written": round(percentile(beside, 99) * 1e3, 1),
            "while_all_120_MiB_are_written": round(percentile(beside_all, 99) * 1e3, 1),
        },
    }
    lines = [
        _throughput("job while a checkpoint is written", beside, alone, 0.8),
        _throughput("job while all its 120 MiB are written", beside_all, alone_too, None),
    ]
    return lines, {"example_job": facts}


def _phases(job: CountingJob, rounds: int, *, all_changed: bool) -> tuple[list[float], list[float]]:
    """Return the seconds of batches without and with a checkpoint on its way, in turn."""
    alone: list[float] = []
    beside: list[float] = []
    for _ in range(rounds):
        until = time.perf_counter() + ALONE_S
        while time.perf_counter() < until:
            alone.append(_batch(job))
        if all_changed:
            for number, segment in job.counts.segments.items():
                job.counts.segments[number] = segment + 1
                job.counts.frozen.discard(number)
        pending = job.checkpoint()
        while not pending.done():
            beside.append(_batch(job))
        pending.result()
    return alone, beside


def _batch(job: CountingJob) -> float:
    began = time.perf_counter()
    job.step()
    return time.perf_counter() - began


def _throughput(what: str, ours: list[float], theirs: list[float], aim: float | None) -> Line:
    speeds = [len(times) * BATCH_RECORDS / sum(times) for times in (ours, theirs)]
    told = [f"{speed / 1e6:.2f} M rec/s" for speed in speeds]
    ratio = speeds[0] / speeds[1]
    p99 = f"{percentile(ours, 99) * 1e3:.1f} ms"
    holds = aim is None or ratio >= aim
    return Line(what, told[0], p99, "without one", told[1], ratio, f"≥ {aim}" if aim else "-", holds)


def sharing(folder: Path, size_mib: int, rounds: int) -> list[Line]:
    """A large state of which little has changed, beside a save of all of it."""
    with CheckpointCatalog.native(folder / "sharing", create=True) as catalog:
        return _in_place(catalog.store("in place"), size_mib, rounds) + _shifted(catalog.store("shifted"), size_mib)


def _in_place(store: CheckpointStore, size_mib: int, rounds: int) -> list[Line]:
    state = bytearray(os.urandom(size_mib * MIB))
    numbers, chance = count(1), random.Random(1)
    written: list[float] = []

    def save_stream(share: bool) -> None:
        factory = store.stream_factory(next(numbers), share=share, hash_threads=os.cpu_count())
        with factory.create_checkpoint_state_output_stream(CheckpointedStateScope.SHARED) as stream:
            stream.write(memoryview(state))
            handle = stream.close_and_get_handle()
        handles = {"operator": {"state": handle}}
        store.save_with_handles(manifest(int(factory.key)).model_copy(update={"operator_handles": handles}), factory)

    def save_state(share: bool) -> None:
        store.save_with_state(manifest(next(numbers)), memoryview(state), share=share)

    def change() -> None:
        part = len(state) // 300  # 1 % in three places
        for _ in range(3):
            at = chance.randrange(len(state) - part)
            state[at : at + part] = os.urandom(part)

    times: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for name, save in (("stream", save_stream), ("state", save_state)):
            for share in (False, True):
                change()
                began = time.perf_counter()
                save(share)
                times[f"{name} {share}"].append(time.perf_counter() - began)
                if share:
                    written.append(_written(store))
    name = f"{size_mib} MiB, 1 % changed in place"
    most = max(written)
    return [
        Line.slower(f"{name}, stream", times["stream True"], "all of it", times["stream False"], 1 / 5),
        Line.slower(f"{name}, save_with_state", times["state True"], "all of it", times["state False"], None),
        Line(f"{name}: bytes", f"{most:.1%}", "-", "all of it", "100%", most, "≤ 0.03", most <= 0.03),
    ]


def _shifted(store: CheckpointStore, size_mib: int) -> list[Line]:
    state = os.urandom(size_mib * MIB)
    store.save_with_state(manifest(1), state, cutting="content")
    store.save_with_state(manifest(2), [b"a few", state], cutting="content")
    share = _written(store)
    name = f"{size_mib} MiB, 5 bytes inserted in front: bytes"
    return [Line(name, f"{share:.1%}", "-", "all of it", "100%", share, "≤ 0.05", share <= 0.05)]


def _written(store: CheckpointStore) -> float:
    """Return which part of the latest checkpoint's bytes was written."""
    latest = store._stream.latest()
    assert latest is not None
    assert latest.origin is not None
    size, shared = int(latest.origin.artifact_bytes or 0), int(latest.origin.shared_bytes or 0)
    return (size - shared) / size


def run(folder: Path, *, rounds: int, size_mib: int) -> tuple[list[Line], dict[str, Any]]:
    """Measure everything; the second result is what does not fit into a line."""
    assert size_mib * MIB > 30 * CHUNK_BYTES
    lines, facts = processing(folder, 3 * rounds)  # a checkpoint is short, and so is what it costs
    return lines + sharing(folder, size_mib, min(rounds, 3)), facts


if __name__ == "__main__":
    import tempfile

    from tests.benchmarks.lines import show

    with tempfile.TemporaryDirectory() as name:
        lines, facts = run(Path(name), rounds=7, size_mib=1024)
    print(show(lines), facts, sep="\n")
