"""Folding: a long delta chain becomes one snapshot, so that recovery reads one artifact instead of a hundred.

Folding deletes nothing. It takes the reason away for which retention has to keep what a chain stands on.
"""

import json
import logging
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import groupby
from typing import Any

from catalog import artifacts, chains, cutting, keys
from catalog.errors import (
    CatalogError,
    CheckpointNotFoundError,
    ClosedIdError,
    ConflictError,
    CorruptError,
    ReadOnlyError,
)
from catalog.folders import Folder, Link, check_folders, choose
from catalog.lifecycle import Checkpoint, Folded, History, Status
from catalog.manifest import CheckpointManifestV2, PartitionEntry, folded_path, parse_stored
from catalog.protocol import Stream
from catalog.reader import ROUNDS, StreamReader
from catalog.tables.port import Engine, Table
from catalog.tables.schema import arrow
from catalog.verify import Progress

log = logging.getLogger(__name__)

MIN_LINKS = 10
BYTES_PER_TASK = 64 << 20
CHAINS_PER_TASK = 16
SMALL_BYTES = cutting.CHUNK_BYTES
"""Links up to this are loaded together, as long as a task's chains have few bytes."""


@dataclass(frozen=True, slots=True)
class FoldedChain:
    """What folding does with one operator partition's chain."""

    stream: str
    checkpoint_id: str
    operator: str
    partition: int
    folded: bool
    """Whether it is folded, or would be."""
    reason: str
    """Why, or why not."""
    format: str | None
    links: int
    """How many artifacts the chain has; 0 if it is broken."""
    bytes: int
    """Their size."""
    folded_bytes: int = 0
    """Size of the snapshot that it became."""
    failed: bool = False
    """Whether it should have been folded, or is broken: not one that is left alone on purpose."""


@dataclass(frozen=True, slots=True)
class FoldReport:
    """What folding did, or would do."""

    chains: tuple[FoldedChain, ...]
    """One for each chain of the newest checkpoint of a line."""
    dry_run: bool
    seconds: float

    @property
    def folded(self) -> tuple[FoldedChain, ...]:
        """What is folded, or would be."""
        return tuple(one for one in self.chains if one.folded)

    @property
    def left(self) -> tuple[FoldedChain, ...]:
        """What is left as it is."""
        return tuple(one for one in self.chains if not one.folded)

    @property
    def failed(self) -> tuple[FoldedChain, ...]:
        """What is broken, or could not be folded."""
        return tuple(one for one in self.chains if one.failed)

    def explain(self) -> str:
        """Return the report as text for people, a line for each chain."""
        lines = [
            f"{'fold' if one.folded else 'leave'} {one.stream} {one.checkpoint_id} {one.operator!r} "
            f"partition {one.partition}: {one.reason}"
            for one in self.chains
        ]
        what = "would be folded" if self.dry_run else "folded"
        before, after = (sum(getattr(one, name) for one in self.folded) for name in ("bytes", "folded_bytes"))
        sizes = f"{before / (1 << 20):.1f} MiB" + ("" if self.dry_run else f" into {after / (1 << 20):.1f} MiB")
        lines.append(f"{len(self.folded)} of {len(self.chains)} chains {what}, {sizes}, in {self.seconds:.1f} s")
        return "\n".join(lines)


# -- the plan ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Candidate:
    """A chain, and what is planned for it."""

    row: FoldedChain
    told: object
    """The format that the manifest tells."""
    links: tuple[tuple[str, PartitionEntry], ...]

    def left(self, reason: str, *, failed: bool) -> FoldedChain:
        """Return the row of a chain that is not folded after all."""
        return replace(self.row, folded=False, reason=reason, failed=failed)


def tips(history: History) -> list[str]:
    """Return the committed checkpoints with chains on which no other committed one ever stood.

    They are what recovery reads. Those below them would be folded in vain: they go, or are reached by a fold already.
    """
    committed = [one for one in history.values() if one.status is Status.COMMITTED]
    stood_on: set[str] = set()
    for one in committed:
        at: Checkpoint | None = one
        # As they were saved: a fold makes nobody else the newest.
        while at and at.origin and at.origin.parent and at.origin.parent not in stood_on:
            stood_on.add(at.origin.parent)
            at = history.get(at.origin.parent)
    return [one.key for one in committed if one.parent and one.key not in stood_on]


def plan(
    stream: str, key: str, history: History, folders: Mapping[str, Folder], min_links: int = MIN_LINKS
) -> list[Candidate]:
    """Say of every chain of a checkpoint whether it is to be folded, and why. Pure.

    Args:
        stream: the stream's name.
        key: the checkpoint.
        history: it and what it stands on, with manifests.
        folders: by operator or pattern.
        min_links: how long a chain has to be.
    """

    def parse(one: Checkpoint) -> CheckpointManifestV2:
        return parse_stored(CheckpointManifestV2, one, stream)

    manifest = parse(history[key])
    line = [key, *chains.ancestors(history, key)]
    found = []
    for operator, partition in sorted(_open_chains(manifest)):
        told = (manifest.operators[operator].model_extra or {}).get("format")
        folder = choose(folders, operator, told)
        links: list[tuple[str, PartitionEntry]] = []
        reason = ""
        broken = False
        try:
            links = chains.links(line, history, parse, operator, partition)
        except CatalogError as error:
            reason, broken = str(error), True
        if not reason and len(links) < min_links:
            reason = f"{_count(len(links))}, fewer than {min_links}"
        elif not reason and isinstance(folder, str):
            reason = f"{_count(len(links))}, but {folder}"
        format = told if isinstance(told, str) else None
        row = FoldedChain(
            stream=stream,
            checkpoint_id=key,
            operator=operator,
            partition=partition,
            folded=not reason,
            reason=reason or f"{_count(len(links))}, at least {min_links}",
            format=folder.format if isinstance(folder, Folder) else format,
            links=len(links),
            bytes=sum(entry.size_bytes for _, entry in links),
            failed=broken,
        )
        found.append(Candidate(row, told, tuple(links)))
    return found


def _count(links: int) -> str:
    return "1 link" if links == 1 else f"{links} links"


def _open_chains(manifest: CheckpointManifestV2) -> set[tuple[str, int]]:
    """Return operator and partition of what has deltas but no snapshot of its own."""
    entries = [((name, entry.partition_id), entry.is_delta) for name, entry in manifest.entries()]
    return {part for part, is_delta in entries if is_delta} - {part for part, is_delta in entries if not is_delta}


# -- carrying it out ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Job:
    """The chains of one checkpoint that are folded under one attempt."""

    stream: Stream
    key: str
    attempt: str
    history: History
    """The checkpoint and what its chains run along, as it was read: the fold counts only if that is its head still."""
    chains: tuple[Candidate, ...]

    def tasks(self) -> Iterator[bytes]:
        """Yield pieces of work: chains of about equal size together."""
        some: list[Candidate] = []
        for one in self.chains:
            if some and (
                len(some) == CHAINS_PER_TASK or sum(other.row.bytes for other in some) + one.row.bytes > BYTES_PER_TASK
            ):
                yield self._task(some)
                some = []
            some.append(one)
        yield self._task(some)

    def _task(self, some: Sequence[Candidate]) -> bytes:
        work = [
            (one.row.operator, one.row.partition, one.told, [(key, e.path, e.size_bytes) for key, e in one.links])
            for one in some
        ]
        return pickle.dumps((self.stream.stream, self.key, self.attempt, self.stream.clock(), work))

    def insert(self, made: Sequence[Folded]) -> bool:
        """Make what was folded part of the checkpoint; False if that has changed since."""
        checkpoint = self.history[self.key]
        manifest = parse_stored(CheckpointManifestV2, checkpoint, self.stream.label)
        covered = {*checkpoint.folded, *((one.operator, one.partition) for one in made)}
        parent = checkpoint.parent if _open_chains(manifest) - covered else None
        return self.stream.add_fold(self.history, self.key, self.attempt, made, parent)


def fold_chains(
    engine: Engine,
    *,
    streams: Sequence[str] | None,
    folders: Mapping[str, Folder],
    min_links: int,
    dry_run: bool,
    progress: Callable[[Progress], None] | None,
    clock: Callable[[], datetime],
    actor: str,
) -> FoldReport:
    """Fold long chains where the workers are, and write down what was done; see CheckpointCatalog.fold_chains."""
    check_folders(folders)
    keys.u64(min_links, "min_links", minimum=2)
    began = time.monotonic()
    beside = engine.worker()  # a job for a few rows would take longer than folding them
    if not dry_run:
        engine.settle(Table.CHECKPOINTS)  # is refused where nothing can be written, before any work
        if not engine.workers_write:
            raise ReadOnlyError(f"workers may not write to {engine.place} beside Spark: fold with the native engine")
    waiting: list[tuple[str, list[str] | None]] = [(name, None) for name in _names(beside, streams)]
    rows: list[FoldedChain] = []
    lost: dict[tuple[str, str], _Job] = {}
    for _ in range(ROUNDS):
        jobs = []
        for name, only in waiting:
            reader = StreamReader(beside, name, clock=clock, actor=actor)
            stream = Stream(engine, name, clock=clock, actor=actor)
            for key, history in _lines(reader, only):
                found = plan(name, key, history, folders, min_links)
                rows += [one.row for one in found if dry_run or not one.row.folded]
                if not dry_run and any(one.row.folded for one in found):
                    chosen = tuple(one for one in found if one.row.folded)
                    jobs.append(_Job(stream, key, keys.new_uuid7(), history, chosen))
                lost.pop((name, key), None)
        for job in lost.values():
            rows += [one.left("it went meanwhile", failed=False) for one in job.chains]
        lost = {}
        for job, done in _run(engine, jobs, folders, progress):
            if done is None:
                lost[job.stream.label, job.key] = job
            else:
                rows += done
                _record(beside, job, done, clock(), actor)
        waiting = [(name, [key]) for name, key in lost]
        if not waiting:
            break
    for job in lost.values():
        changed = f"it changed {ROUNDS} times meanwhile; try again"
        rows += [one.left(changed, failed=True) for one in job.chains]
    rows.sort(key=lambda one: (one.stream, one.checkpoint_id, one.operator, one.partition))
    return FoldReport(tuple(rows), dry_run, time.monotonic() - began)


def _names(engine: Engine, streams: Sequence[str] | None) -> list[str]:
    """Return the names of streams that may have chains."""
    there = engine.scan(Table.CHECKPOINTS, [], ["stream", "format"]).to_pylist()
    formats = {keys.stream_label(row["stream"]): row["format"] for row in there}
    wanted = sorted(formats if streams is None else streams)
    if missing := [name for name in wanted if name not in formats]:
        raise CheckpointNotFoundError(f"there is no stream {missing[0]!r} to fold", stream=missing[0])
    with_chains = {keys.stream_label(row["stream"]) for row in there if row["format"] == CheckpointManifestV2.FORMAT}
    return [name for name in wanted if name in with_chains]


def _lines(reader: StreamReader, only: Sequence[str] | None) -> Iterator[tuple[str, History]]:
    """Yield the checkpoints whose chains may be folded, each with all that it stands on, manifests included."""
    history = reader.history()
    for key in tips(history) if only is None else only:
        if key in history and history[key].live:
            line = [key, *chains.ancestors(history, key)]
            # Of one read: it may have been folded, and what it stood on may have gone, since the first one.
            seen = reader.history(line, manifests=True)
            if key in seen and seen[key].live:
                yield key, seen


def _run(
    engine: Engine, jobs: Sequence[_Job], folders: Mapping[str, Folder], progress: Callable[[Progress], None] | None
) -> Iterator[tuple[_Job, list[FoldedChain] | None]]:
    """Fold where the workers are, and yield each job with what became of its chains; None if it has to start again."""
    tasks = [(number, task) for number, job in enumerate(jobs) for task in job.tasks()]
    answers = engine.spread([task for _, task in tasks], partial(fold_task, dict(folders)))
    sizes = [sum(one.row.bytes for one in job.chains) for job in jobs]
    by_job = groupby(zip((number for number, _ in tasks), answers, strict=True), key=lambda pair: pair[0])
    for number, some in by_job:
        results = [result for _, answer in some for result in pickle.loads(answer)]
        yield jobs[number], _finish(jobs[number], results)
        if progress:
            progress(Progress(number + 1, len(jobs), sum(sizes[: number + 1]), sum(sizes)))


def _finish(job: _Job, results: Sequence[Folded | str | None]) -> list[FoldedChain] | None:
    """Make what was folded count, and return what became of each chain; None if the job has to start again."""
    if None in results:
        return None
    made = [one for one in results if isinstance(one, Folded)]
    if made and not job.insert(made):
        return None
    return [
        replace(one.row, reason=f"{_count(one.row.links)} became one snapshot", folded_bytes=result.size_bytes)
        if isinstance(result, Folded)
        else one.left(f"{_count(one.row.links)}, but {result}", failed=True)
        for one, result in zip(job.chains, results, strict=True)
    ]


def _record(engine: Engine, job: _Job, done: Iterable[FoldedChain], at: datetime, actor: str) -> None:
    folded = [one for one in done if one.folded]
    if not folded:
        return
    details = {
        "attempt": job.attempt,
        "chains": len(folded),
        "links": sum(one.links for one in folded),
        "bytes": sum(one.bytes for one in folded),
        "folded_bytes": sum(one.folded_bytes for one in folded),
        "formats": sorted({one.format or "" for one in folded}),
    }
    row = {
        "stream": job.stream.stream, "checkpoint_key": job.key, "event": "folded", "at": at, "actor": actor,
        "details": json.dumps(details),
    }  # fmt: skip
    engine.append(Table.EVENTS, [arrow(Table.EVENTS, [row])])


# -- where the workers are ---------------------------------------------------------------------------------------------


def fold_task(folders: Mapping[str, Folder], engine: Engine, task: bytes) -> bytes:
    """Fold some chains of a checkpoint under an attempt, and verify them; runs where the workers are.

    Returns:
        For each chain what it became, or why it could not be folded, or None if it moved while it was read.
    """
    stream, key, attempt, staged_at, work = pickle.loads(task)
    reader = StreamReader(engine, keys.stream_label(stream), clock=datetime.now, actor="")
    small = _load_small(reader, [link for *_, links in work for link in links])
    shared = {
        "stream": stream, "checkpoint_key": key, "attempt": attempt, "kind": "snapshot", "scope": "exclusive",
        "staged_at": staged_at,
    }  # fmt: skip
    results: list[Folded | str | None] = []
    for operator, partition, told, links in work:
        columns = {
            **shared,
            "operator": operator,
            "partition": partition,
            "path": folded_path(key, operator, partition),
        }
        opened = [Link(partial(_open, reader, small, at, path)) for at, path, _ in links]
        try:
            results.append(_fold_one(engine, columns, choose(folders, operator, told), opened))
        except (ClosedIdError, ConflictError):
            results.append(None)
        except Exception as error:
            # Whatever goes wrong in one chain, also in a folder that is not ours, is told, and the others go on.
            log.exception("folding %r partition %d of checkpoint %s failed", operator, partition, key)
            results.append(f"it could not be folded: {error}")
    return pickle.dumps(results)


def _fold_one(engine: Engine, columns: Mapping[str, Any], folder: Folder | str, links: Sequence[Link]) -> Folded:
    if isinstance(folder, str):
        raise CorruptError(folder)
    stored = artifacts.write(engine, columns, iter(folder.fold(links)))
    place = columns["stream"], columns["checkpoint_key"], columns["attempt"], columns["path"]
    # The bytes as the table has them now, verified by their hashes, beside what the chain makes by itself.
    if difference := folder.difference(Link(partial(artifacts.read, engine, *place)), links):
        raise CorruptError(f"the folded snapshot is wrong: {difference}")
    return Folded(
        columns["operator"], columns["partition"], columns["path"], stored.size, stored.sha256, columns["attempt"]
    )


def _load_small(reader: StreamReader, links: Sequence[tuple[str, str, int]]) -> dict[str, bytes]:
    """Return small artifacts by path, from one read of each table; what cannot be had so is read by itself."""
    small = [(key, path) for key, path, size in links if size <= SMALL_BYTES]
    if sum(size for _, _, size in links) > BYTES_PER_TASK:
        return {}
    history = reader.history(sorted({key for key, _ in small}))
    wanted = {path: history[key].attempt_of(path) for key, path in small if key in history and history[key].unpurged}
    try:
        return artifacts.read_small(reader.engine, reader.stream, {path: one for path, one in wanted.items() if one})
    except CorruptError:
        return {}


def _open(reader: StreamReader, small: Mapping[str, bytes], key: str, path: str) -> Iterator[cutting.Buffer]:
    if path in small:
        return iter([small[path]])
    return reader.stream_chunks(key, path, from_trash=True)
