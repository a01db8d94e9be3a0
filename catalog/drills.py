"""Restore drills: whether checkpoints can be restored, and how long that takes, found out before it matters.

Some checkpoints are written into scratch space, every hash is checked, the time is taken and recorded, and all of it is
thrown away again. Nothing is pinned for it: a checkpoint that goes meanwhile is left out, and nothing is lost.
"""

import hashlib
import json
import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from catalog import keys, lifecycle, restore
from catalog.errors import CatalogError, ClosedIdError, ConflictError, CorruptError, InvalidInputError
from catalog.lifecycle import Checkpoint, History, Status
from catalog.protocol import Stream
from catalog.reader import ROUNDS
from catalog.tables.port import Condition, Engine, Equals, In, Table
from catalog.verify import Depth, Progress, Sample, Verifier, event, record_events

DRILLED = "drilled"
SCRATCH_PREFIX = "ckpt-drill-"
RESULTS_PER_EVENT_COMMIT = 20
"""Fewer than those of a validation: each may have taken minutes, which a kill should not cost."""
_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Drill:
    """One checkpoint that was restored, or could not be."""

    stream: str
    checkpoint_id: int | str
    reason: str
    """Why it was chosen."""
    bytes: int
    """What was restored, of the checkpoints that its deltas stand on too; else the size of its own artifacts."""
    seconds: float | None = None
    """How long it took until its state was on the disk; None if it never was."""
    error: str | None = None
    """Why it could not be restored."""


@dataclass(frozen=True, slots=True)
class DrillReport:
    """What drills found, or would look at."""

    drills: tuple[Drill, ...]
    of_checkpoints: int
    """How many are committed in these streams."""
    gone: int
    """How many were chosen, but went to the trash or were purged before they were restored."""
    seconds: float
    dry_run: bool = False

    @property
    def failed(self) -> tuple[Drill, ...]:
        """Those that could not be restored."""
        return tuple(one for one in self.drills if one.error is not None)

    def explain(self) -> str:
        """Return the report as text for people, a line for each checkpoint."""
        lines = [
            f"{_verdict(one)} {keys.shown(one.stream)} {one.checkpoint_id} ({one.reason}){_told(one)}"
            for one in self.drills
        ]
        total = f"{len(self.drills)} of {self.of_checkpoints} checkpoints"
        if self.dry_run:
            return "\n".join([*lines, f"{total} would be restored"])
        gone = f", {self.gone} went meanwhile" if self.gone else ""
        good = len(self.drills) - len(self.failed)
        lines.append(f"drilled {total}: {good} restored, {len(self.failed)} failed{gone}, in {self.seconds:.1f} s")
        return "\n".join(lines)


def _verdict(one: Drill) -> str:
    return "failed" if one.error is not None else "would restore" if one.seconds is None else "restored"


def _told(one: Drill) -> str:
    if one.error is not None:
        return f": {one.error}"
    size = f": {one.bytes / (1 << 20):.1f} MiB"
    return size if one.seconds is None else f"{size} in {one.seconds:.3f} s"


def choose(
    histories: Mapping[str, History], drilled: Mapping[tuple[str, str], datetime], sample: Sample | None
) -> Iterator[tuple[str, Drill]]:
    """Yield key and drill of committed checkpoints to restore, each with its reason. Pure.

    Without a sample these are the latest of each stream, which is what one would restore, and the one whose last drill,
    whatever came of it, is the longest ago: so every checkpoint has its turn, and one that fails takes it not always.

    Args:
        histories: the checkpoints by stream.
        drilled: when each (stream, key) was last drilled.
        sample: choose these at random instead.
    """
    if sample:
        sizes = [(name, key, _size(one)) for name, some in histories.items() for key, one in _committed(some).items()]
        for name, key, size in sample.choose(sizes):
            yield key, Drill(name, keys.checkpoint_id(key), "sample", size)
        return
    for name, history in histories.items():
        committed = _committed(history)
        newest = lifecycle.latest(history)
        if newest is None:
            continue
        yield newest.key, Drill(name, newest.id, "the latest", _size(newest))
        if others := sorted(committed.keys() - {newest.key}):
            last = {key: drilled.get((name, key), _NEVER) for key in others}
            key = min(others, key=lambda one: (last[one], one))
            reason = "never drilled" if last[key] is _NEVER else f"last drilled {last[key]:%Y-%m-%d}"
            yield key, Drill(name, committed[key].id, reason, _size(committed[key]))


def _committed(history: History) -> dict[str, Checkpoint]:
    return {key: one for key, one in history.items() if one.status is Status.COMMITTED}


def _size(checkpoint: Checkpoint) -> int:
    return int((checkpoint.origin.artifact_bytes if checkpoint.origin else 0) or 0)


def run(
    engine: Engine,
    histories: Mapping[str, History],
    *,
    sample: Sample | None,
    scratch: Path | None,
    dry_run: bool,
    progress: Callable[[Progress], None] | None,
    clock: Callable[[], datetime],
    actor: str,
    record: bool,
) -> DrillReport:
    """Restore checkpoints where the workers are, and write down how it went; see CheckpointCatalog.run_drills."""
    began = time.monotonic()
    beside = engine.worker()
    chosen = list(choose(histories, _last_drills(beside, histories), sample))
    committed = sum(len(_committed(history)) for history in histories.values())
    if dry_run:
        planned = tuple(drill for _, drill in chosen)
        return DrillReport(planned, committed, 0, time.monotonic() - began, dry_run=True)
    total = sum(drill.bytes for _, drill in chosen)
    tasks = [pickle.dumps((key, drill, scratch)) for key, drill in chosen]
    done: list[Drill] = []
    looked_at = size = 0
    unrecorded = []
    try:
        for (key, planned_drill), answer in zip(chosen, engine.spread(tasks, drill_task), strict=True):
            found = pickle.loads(answer)
            if isinstance(found, CatalogError):
                raise found
            looked_at += 1
            size += planned_drill.bytes
            if found is not None:
                done.append(found)
                unrecorded.append(_event(found, key, clock(), actor))
            if record and len(unrecorded) >= RESULTS_PER_EVENT_COMMIT:
                record_events(beside, unrecorded)
            if progress:
                progress(Progress(looked_at, len(chosen), size, total))
    finally:
        if record and unrecorded:
            record_events(beside, unrecorded)
    return DrillReport(tuple(done), committed, looked_at - len(done), time.monotonic() - began)


def _last_drills(engine: Engine, histories: Mapping[str, History]) -> dict[tuple[str, str], datetime]:
    """Return when each (stream, key) was last drilled."""
    where: list[Condition] = [Equals("event", DRILLED), In("stream", tuple(map(keys.stream_key, histories)))]
    rows = engine.scan(Table.EVENTS, where, ["stream", "checkpoint_key", "at"]).to_pylist() if histories else []
    last: dict[tuple[str, str], datetime] = {}
    for row in rows:
        one = keys.stream_label(row["stream"]), row["checkpoint_key"]
        last[one] = max(row["at"], last.get(one, _NEVER))
    return last


def _event(drill: Drill, key: str, at: datetime, actor: str) -> dict[str, object]:
    details = {"restored": drill.error is None, "bytes": drill.bytes, "seconds": drill.seconds, "error": drill.error}
    return event(keys.stream_key(drill.stream), key, DRILLED, at, actor, details)


# -- where the workers are ---------------------------------------------------------------------------------------------


def drill_task(engine: Engine, task: bytes) -> bytes:
    """Restore one checkpoint into scratch space and throw it away; runs where the workers are.

    Returns:
        The drill; None if the checkpoint is gone; or the error that no checkpoint is to blame for.
    """
    key, drill, scratch = pickle.loads(task)
    try:
        folder = TemporaryDirectory(prefix=SCRATCH_PREFIX, dir=scratch)
    except OSError as error:
        return pickle.dumps(InvalidInputError(f"there is no scratch space to restore into: {error}"))
    stream = Stream(engine, drill.stream, clock=datetime.now, actor="")
    with folder:
        return pickle.dumps(_restored(stream, key, drill, Path(folder.name)))


def _restored(stream: Stream, key: str, drill: Drill, scratch: Path) -> Drill | None:
    told = ""
    for number in range(ROUNDS):
        try:
            began = time.monotonic()
            folder = restore.materialize(stream, key, scratch / str(number))
            seconds = time.monotonic() - began
            size = _check_files(folder)
            # What was restored is what the rows say; whether these are what was saved, they tell without the bytes.
            result = Verifier(stream).check(key, Depth.METADATA)
        except (ClosedIdError, ConflictError) as error:  # it, or what it stands on, changed meanwhile
            found = stream.find(key, manifest=False)
            if found is None or not found.live:
                return None
            told = str(error)
        except Exception as error:  # noqa: BLE001 - whatever keeps a checkpoint from being restored is what drills are for
            return replace(drill, error=str(error) if isinstance(error, CatalogError | OSError) else repr(error))
        else:
            if result is None:
                return None
            if not result.valid:
                return replace(drill, error="; ".join(map(str, result.failures)))
            return replace(drill, bytes=size, seconds=seconds)
    return replace(drill, error=told)


def _check_files(folder: Path) -> int:
    """Read back what was restored, and return how many bytes it is."""
    files = json.loads((folder / restore.RESTORE_FILE).read_text("utf-8"))["apply_in_this_order"]
    for one in files:
        with (folder / one["file"]).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != one["sha256"]:
                raise CorruptError(f"{one['file']} is not on the disk as it was read: look at the scratch space's disk")
    return sum(one["bytes"] for one in files)
