"""A small stateful stream processor that counts records per key, and survives being killed at any moment.

It reads a generated source from an offset on, keeps a count per key, and takes a checkpoint every so many records
while it goes on processing: the counts and the offset are one consistent moment, because `trigger` runs between two
batches. Started again at the same place it restores the newest good checkpoint and goes on from its offset, so every
record counts exactly once.

    python -m catalog.examples.counting /tmp/counting-job
"""

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from catalog import (
    CheckpointCatalog,
    CheckpointCoordinator,
    CheckpointedStateScope,
    CheckpointOptions,
    CheckpointStore,
    CheckpointStreamFactory,
    PendingCheckpoint,
    SnapshotResources,
    SnapshotResult,
    SnapshotStrategy,
)
from catalog.cutting import CHUNK_BYTES

Keys = npt.NDArray[np.uint64]
Segment = npt.NDArray[np.int64]

SEGMENT_KEYS = CHUNK_BYTES // 8
"""Counts are kept in pieces of a chunk's size, so that those that did not change are not written again."""
KEYS = 30 * SEGMENT_KEYS
"""120 MiB of counts when every key has been seen."""
HOT_KEYS = 2 * SEGMENT_KEYS
RECORDS = 64 << 20
BATCH_RECORDS = 1 << 16
CHECKPOINT_RECORDS = 4 << 20
SWITCH_INTERVAL_S = 0.0001
"""Python's threads take turns; the one that processes should not wait long for those that write checkpoints."""
NAME = "counts"


def source(offset: int, count: int) -> Keys:
    """Return the keys of records from an offset on, always the same ones: popular keys move on as time goes by."""
    at = np.arange(offset, offset + count, dtype=np.uint64)
    mixed = at * np.uint64(0x9E3779B97F4A7C15)  # wraps, as hashes do
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    popular = (at >> np.uint64(21)) * np.uint64(SEGMENT_KEYS)
    return (popular + mixed % np.uint64(HOT_KEYS)) % np.uint64(KEYS)


@dataclass(slots=True)
class Counts:
    """How often each key was seen; a snapshot is taken in no time, because segments are copied when they change."""

    segments: dict[int, Segment] = field(default_factory=dict)
    frozen: set[int] = field(default_factory=set)
    """Segments that a snapshot holds too."""

    def add(self, keys: Keys) -> None:
        """Count records."""
        seen, times = np.unique(keys, return_counts=True)
        numbers, starts = np.unique(seen // np.uint64(SEGMENT_KEYS), return_index=True)
        for number, begin, end in zip(numbers.tolist(), starts, [*starts[1:], len(seen)], strict=True):
            segment = self._own(number)
            segment[seen[begin:end] - np.uint64(number * SEGMENT_KEYS)] += times[begin:end]

    def freeze(self) -> list[Segment]:
        """Return all segments as they are now, up to the last one that has a count."""
        self.frozen.update(self.segments)
        zeros = np.zeros(SEGMENT_KEYS, np.int64)
        return [self.segments.get(number, zeros) for number in range(max(self.segments, default=-1) + 1)]

    def sha256(self) -> str:
        """Return the hash of all counts."""
        whole = hashlib.sha256()
        for segment in self.freeze():
            whole.update(segment.data)
        return whole.hexdigest()

    def _own(self, number: int) -> Segment:
        if number not in self.segments:
            self.segments[number] = np.zeros(SEGMENT_KEYS, np.int64)
        elif number in self.frozen:
            self.segments[number] = self.segments[number].copy()
        self.frozen.discard(number)
        return self.segments[number]


@dataclass(frozen=True, slots=True)
class FrozenCounts(SnapshotResources):
    """Counts as they were."""

    segments: list[Segment]

    def release(self) -> None:
        """Let the segments go."""
        self.segments.clear()


class CountsStrategy(SnapshotStrategy[FrozenCounts]):
    """Writes all counts to one stream."""

    def __init__(self, counts: Counts) -> None:
        """Make it for an operator's counts."""
        self._counts = counts

    def sync_prepare_resources(self, checkpoint_id: int) -> FrozenCounts:  # noqa: ARG002 - the interface
        """See SnapshotStrategy."""
        return FrozenCounts(self._counts.freeze())

    def async_snapshot(
        self,
        resources: FrozenCounts,
        checkpoint_id: int,  # noqa: ARG002 - the interface
        timestamp: int,  # noqa: ARG002 - the interface
        stream_factory: CheckpointStreamFactory,
        options: CheckpointOptions,  # noqa: ARG002 - the interface
    ) -> Callable[[], SnapshotResult]:
        """See SnapshotStrategy."""

        def write() -> SnapshotResult:
            with stream_factory.create_checkpoint_state_output_stream(CheckpointedStateScope.SHARED) as stream:
                for segment in resources.segments:
                    stream.write_frozen(segment.data)
                handle = stream.close_and_get_handle()
            return SnapshotResult({NAME: handle}) if handle else SnapshotResult.empty()

        return write

    def restore(self, files: dict[str, BinaryIO]) -> None:
        """Read the counts back."""
        for number, data in enumerate(_segments(files[NAME]) if NAME in files else ()):
            segment = np.frombuffer(data, np.int64)
            if segment.any():
                self._counts.segments[number] = segment
                self._counts.frozen.add(number)  # what was read cannot be written to


def _segments(file: BinaryIO) -> Iterator[bytes]:
    while data := file.read(CHUNK_BYTES):
        yield data


class CountingJob:
    """The stream processor."""

    def __init__(self, store: CheckpointStore, *, checkpoint_records: int = CHECKPOINT_RECORDS) -> None:
        """Begin where the newest good checkpoint ends, or anew.

        Args:
            store: the checkpoints.
            checkpoint_records: a checkpoint is begun after so many records, unless one is still on its way.
        """
        self.counts = Counts()
        self.offset = 0
        self.checkpoints = 0
        self.completed: int | None = None
        """The last checkpoint that is known to be saved."""
        self._every = checkpoint_records
        strategy = CountsStrategy(self.counts)
        self.coordinator = CheckpointCoordinator(store, {NAME: strategy})
        self._pending: PendingCheckpoint | None = None
        restored = self.coordinator.restore()
        self.restored_from = restored.checkpoint_id if restored else None
        if restored:
            strategy.restore(restored.open(NAME))
            self.offset = int(restored.manifest.source_offsets["generated"].offsets["offset"])
        self._last_checkpoint = self.offset

    def step(self, records: int = BATCH_RECORDS) -> None:
        """Process a batch, and begin a checkpoint if it is time for one."""
        self.counts.add(source(self.offset, records))
        self.offset += records
        if self.offset - self._last_checkpoint >= self._every and not self.checkpointing:
            self.checkpoint()

    @property
    def checkpointing(self) -> bool:
        """Whether a checkpoint is on its way; one that failed is told here."""
        if self._pending is not None and self._pending.done():
            self.completed = self._pending.result().checkpoint_id
            self._pending = None
        return self._pending is not None

    def checkpoint(self) -> PendingCheckpoint:
        """Begin a checkpoint of what was processed so far."""
        position = {"offsets": {"offset": str(self.offset)}, "epoch": 1}
        self._pending = self.coordinator.trigger(epoch=1, source_offsets={"generated": position})
        self._last_checkpoint = self.offset
        self.checkpoints += 1
        return self._pending

    def finish(self) -> None:
        """Take a last checkpoint and wait for it."""
        if self._pending is not None:
            self._pending.result()
        self.checkpoint().result()
        self.coordinator.close()


def main() -> None:
    """Process records up to a number, and say what was counted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("place", help="where the catalog is, or is to be")
    parser.add_argument("--stream", default="counting")
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--checkpoint-records", type=int, default=CHECKPOINT_RECORDS)
    options = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    job: CountingJob | None = None
    try:
        with CheckpointCatalog.native(options.place, create=True) as catalog:
            store = catalog.store(options.stream, max_retained=3)
            job = CountingJob(store, checkpoint_records=options.checkpoint_records)
            print(json.dumps({"restored_from": job.restored_from, "offset": job.offset}), flush=True)
            began, first = time.monotonic(), job.offset
            while job.offset < options.records:
                before = job.completed
                job.step(min(BATCH_RECORDS, options.records - job.offset))
                if job.completed != before:
                    print(json.dumps({"checkpoint": job.completed, "records": job.offset}), flush=True)
            seconds = time.monotonic() - began
            job.finish()
            done = {
                "records": job.offset,
                "records_per_second": round((job.offset - first) / seconds) if seconds else 0,
                "checkpoints": job.checkpoints,
                "state_mib": round(len(job.counts.segments) * CHUNK_BYTES / (1 << 20)),
                "sha256": job.counts.sha256(),
            }
            print(json.dumps(done), flush=True)
    except KeyboardInterrupt:
        at = f"at record {job.offset}" if job else "before the first record"
        print(f"interrupted {at}; run it again to go on", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
