"""Whether checkpoints can be trusted: the rules of `validation` applied to what the tables hold, at two depths.

A fault is told only after everything it rests on was read again: a clean-up may have moved it meanwhile.
"""

import hashlib
import json
import pickle
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from catalog import artifacts, chains, chunks, keys, lifecycle
from catalog.artifacts import ChunkFault
from catalog.chunks import Kept
from catalog.errors import (
    ArtifactNotFoundError,
    BrokenChainError,
    CatalogError,
    CheckpointNotFoundError,
    ClosedIdError,
    CorruptError,
    InvalidInputError,
    NotACatalogError,
)
from catalog.lifecycle import Checkpoint, History
from catalog.manifest import (
    CheckpointManifest,
    CheckpointManifestV2,
    Manifest,
    PartitionEntry,
    parse_any,
    parse_stored,
)
from catalog.reader import ROUNDS, StreamReader, heads
from catalog.tables.port import Condition, Engine, Equals, In, Table
from catalog.tables.schema import arrow
from catalog.validation import Issue, ValidationResult, failure, metadata_issues, needed_paths, never_written

KEYS_PER_TASK = 50
BYTES_PER_TASK = 256 << 20
RESULTS_PER_EVENT_COMMIT = 1000


class Depth(StrEnum):
    """How thoroughly checkpoints are looked at."""

    METADATA = "metadata"
    """Manifests and rows, no bytes of artifacts."""
    HASHES = "hashes"
    """Every chunk and artifact is read and hashed too."""


Attempts = Mapping[tuple[str, str], Mapping[str, Kept]]
"""Artifacts by path of each (key, attempt)."""


class Verifier:
    """Looks at checkpoints of one stream."""

    def __init__(self, stream: StreamReader, *, vnode_count: int | None = None) -> None:
        """Make a verifier.

        Args:
            stream: the stream's rows.
            vnode_count: what manifests are expected to have, if anything.
        """
        self._stream = stream
        self._vnode_count = vnode_count

    def check(self, key: str, depth: Depth = Depth.HASHES, *, along_chain: bool = False) -> ValidationResult | None:
        """Return what is wrong with a checkpoint, None if it is not live (any more), or was purged since that moment.

        Args:
            key: the checkpoint.
            depth: how thoroughly.
            along_chain: hash what it is restored from: what its deltas stand on too, or only what that was folded into.
        """
        for _ in range(ROUNDS):
            (line,) = self._lines([key])
            loaded = self._stream.history(line, manifests=True)
            closed = False
            try:
                result = self._examine(line, loaded, self._facts(line), depth, along_chain=along_chain)
            except ClosedIdError:
                result, closed = None, True
            except CorruptError as error:
                result = ValidationResult(keys.checkpoint_id(key), (failure("state_unreadable", str(error)),))
            faulty = closed or (result is not None and not result.valid)
            if faulty and (now := self._stream.now(key)) and not now.unpurged:
                return None  # perhaps since the moment that is looked at, which does not change
            if not faulty or heads(self._stream.history(line)) == heads(loaded):
                return result
        return result

    def check_many(self, wanted: Sequence[str], depth: Depth) -> Iterator[tuple[str, ValidationResult | None]]:
        """Yield key and result of each of these checkpoints, with few reads for all; None if it is not live."""
        lines = self._lines(wanted)
        everything = sorted({key for line in lines for key in line})
        loaded = self._stream.history(everything, manifests=True)
        try:
            kept = self._facts(everything)
        except CorruptError:  # a damaged data file concerns some of them: look at each by itself
            yield from ((key, self.check(key, depth)) for key in wanted)
            return
        for line in lines:
            try:
                result = self._examine(line, loaded, kept, depth, along_chain=False)
            except ClosedIdError:
                result = None
            yield line[0], result if result is None or result.valid else self.check(line[0], depth)

    def _lines(self, wanted: Sequence[str]) -> list[list[str]]:
        """Return each key with what it stands on."""
        history = self._stream.history(wanted)
        if any(one.parent for one in history.values()):
            history = self._stream.history()
        return [[key, *chains.ancestors(history, key)] for key in wanted]

    def _facts(self, wanted: Sequence[str]) -> Attempts:
        """Return the artifacts of all attempts of these keys, and of those that hold bytes for them."""
        found = _by_attempt(self._rows(wanted))
        held = {key for kept in found.values() for one in kept.values() for key, _, _ in one.held} - set(wanted)
        return {**found, **_by_attempt(self._rows(sorted(held)))} if held else found

    def _rows(self, wanted: Sequence[str]) -> list[dict[str, Any]]:
        return artifacts.facts(self._stream.engine, self._stream.stream, [In("checkpoint_key", tuple(wanted))])

    def _examine(
        self, line: Sequence[str], loaded: History, kept: Attempts, depth: Depth, *, along_chain: bool
    ) -> ValidationResult | None:
        checkpoint = loaded.get(line[0])
        if checkpoint is None or not checkpoint.live:
            return None
        try:
            manifest = parse_any(checkpoint, self._stream.label)
        except CatalogError as error:
            return ValidationResult(checkpoint.id, (failure("manifest_unreadable", str(error)),))
        own = _own(kept, checkpoint)
        holders = {(key, attempt, sha) for (key, attempt), one in kept.items() for sha in _hashes(one)}
        issues = metadata_issues(checkpoint, manifest, own, holders=holders, vnode_count=self._vnode_count)
        issues += chain_issues(line, loaded, kept, manifest, self._stream.label)
        if depth is Depth.HASHES:
            needed = needed_paths(checkpoint, manifest) | {fold.path for fold in checkpoint.folded.values()}
            wanted = {(line[0], path) for path in needed}
            if along_chain and isinstance(manifest, CheckpointManifestV2):
                # A broken chain is a finding already.
                with suppress(BrokenChainError, CorruptError):
                    restored_from = chain_links(line, loaded, manifest, self._stream.label)
                    links = {(key, entry.path) for key, entry in restored_from}
                    wanted = links - {(line[0], path) for path in never_written(checkpoint)}
            for key, path in sorted(wanted):
                found = _own(kept, loaded[key]).get(path)
                if found is not None and found.complete:
                    issues += self._hash_one(loaded[key], path, manifest)
        return ValidationResult(checkpoint.id, tuple(issues))

    def _hash_one(self, checkpoint: Checkpoint, path: str, manifest: Manifest) -> Iterable[Issue]:
        inline = manifest.inline_hash() if isinstance(manifest, CheckpointManifest) else None
        prefix = inline.encode() if inline else b""
        expected = manifest.state_checksum if isinstance(manifest, CheckpointManifest) and inline else None
        key, attempt = checkpoint.key, checkpoint.attempt_of(path) or ""
        whole = hashlib.sha256(prefix)
        try:
            try:
                for chunk in artifacts.read(self._stream.engine, self._stream.stream, key, attempt, path):
                    if expected:
                        whole.update(chunk)
                found = whole.hexdigest()
            except ChunkFault:  # ask again before it is called a fault
                found = self._stream.hash_of(key, path, prefix, from_trash=True)
        except (ClosedIdError, NotACatalogError):
            raise
        except ArtifactNotFoundError:
            yield failure("state_missing", f"state data is missing: {path}")
        except CatalogError as error:
            rule = "state_missing" if getattr(error, "missing", False) else "checksum_mismatch"
            yield failure(rule, str(error))
        else:
            if expected and found != expected:
                yield failure("checksum_mismatch", f"checksum mismatch: state is {found}, not {expected}")


def chain_links(
    line: Sequence[str], loaded: History, manifest: CheckpointManifestV2, stream: str
) -> Iterator[tuple[str, PartitionEntry]]:
    """Yield the artifacts that a checkpoint is restored from, each with its key; pure."""

    def parse(checkpoint: Checkpoint) -> CheckpointManifestV2:
        return parse_stored(CheckpointManifestV2, checkpoint, stream)

    for operator, partition in sorted({(name, entry.partition_id) for name, entry in manifest.entries()}):
        yield from chains.links(line, loaded, parse, operator, partition)


def chain_issues(line: Sequence[str], loaded: History, kept: Attempts, manifest: Manifest, stream: str) -> list[Issue]:
    """Return what is wrong with the chains of a checkpoint's deltas; pure.

    Args:
        line: the checkpoint, and what it stands on, nearest first.
        loaded: those checkpoints with their manifests, as far as they are there.
        kept: their artifacts, by key and attempt.
        manifest: the checkpoint's manifest.
        stream: the stream's name, for messages.
    """
    if not isinstance(manifest, CheckpointManifestV2) or not manifest.stands_on_parent:
        return []
    try:
        for key, entry in chain_links(line, loaded, manifest, stream):
            found = _own(kept, loaded[key]).get(entry.path)
            if key != line[0] and (found is None or not found.complete):
                raise BrokenChainError(f"{entry.path} is not there")
    except CatalogError as error:
        return [failure("chain_broken", str(error))]
    return []


def _own(kept: Attempts, checkpoint: Checkpoint) -> dict[str, Kept]:
    """Return a checkpoint's artifacts by path, what was folded included."""
    return {
        path: one for attempt in checkpoint.attempts for path, one in kept.get((checkpoint.key, attempt), {}).items()
    }


def _hashes(kept: Mapping[str, Kept]) -> set[str]:
    return {sha for one in kept.values() for _, sha in one.chunks}


def _by_attempt(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], dict[str, Kept]]:
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        found[row["checkpoint_key"], row["attempt"]].append(row)
    return {attempt: chunks.inventory(some) for attempt, some in found.items()}


# -- a whole catalog ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """How many checkpoints to look at, chosen at random; whichever limit is reached first."""

    checkpoints: int | None = None
    percent: float | None = None
    bytes: int | None = None
    seed: int | None = None
    """The same seed chooses the same among the same."""

    def __post_init__(self) -> None:
        counts = {"checkpoints": self.checkpoints, "bytes": self.bytes}
        given = [keys.u64(count, what, minimum=1) for what, count in counts.items() if count is not None]
        if self.percent is None and not given:
            raise InvalidInputError("a sample needs checkpoints, percent or bytes")
        if self.percent is not None and not (isinstance(self.percent, int | float) and 0 < self.percent <= 100):
            raise InvalidInputError(f"percent must be above 0 and at most 100, not {self.percent!r}")

    def choose(self, candidates: Sequence[tuple[str, str, int]]) -> list[tuple[str, str, int]]:
        """Return some of these (stream, key, bytes), at least one if there is any."""
        most = len(candidates) if self.checkpoints is None else self.checkpoints
        if self.percent is not None:
            most = min(most, -int(-len(candidates) * self.percent // 100))
        chosen: list[tuple[str, str, int]] = []
        size = 0
        for one in random.Random(self.seed).sample(candidates, min(most, len(candidates))):
            if chosen and self.bytes is not None and size + one[2] > self.bytes:
                break
            chosen.append(one)
            size += one[2]
        return sorted(chosen)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a validation or a drill has come."""

    checkpoints: int
    of_checkpoints: int
    bytes: int
    of_bytes: int


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """What a validation of many checkpoints found."""

    depth: Depth
    checked: int
    of_checkpoints: int
    bytes: int
    """Size of the artifacts of the checkpoints that were looked at; they were read only at the depth of hashes."""
    seconds: float
    results: tuple[tuple[str, ValidationResult], ...]
    """Stream and findings of each checkpoint that has any."""
    unreadable: tuple[tuple[str, str], ...] = ()
    """Stream and reason of each whose rows cannot be read, so that nobody knows what it has."""

    @property
    def valid(self) -> bool:
        """Whether no integrity failure was found, in rows that could be read."""
        return not self.unreadable and all(result.valid for _, result in self.results)

    def explain(self) -> str:
        """Return the report as text for people."""
        lines = [
            f"{issue.severity}: {keys.shown(stream)} {result.checkpoint_id}: {issue} [{issue.rule}]"
            for stream, result in self.results
            for issue in result.issues
        ]
        lines += [f"integrity: {why}" for _, why in self.unreadable]
        told = f"{self.checked} of {self.of_checkpoints} checkpoints, {self.bytes / (1 << 20):.1f} MiB"
        faulty = sum(not result.valid for _, result in self.results)
        verdict = f"integrity failures in {faulty}, having looked at" if faulty else "no integrity failure in"
        if self.unreadable:
            verdict = f"{len(self.unreadable)} streams cannot be read; {verdict}"
        return "\n".join([*lines, f"{verdict} {told}, depth {self.depth}, in {self.seconds:.1f} s"])


def validate(
    engine: Engine,
    *,
    streams: Sequence[str] | None,
    depth: Depth,
    sample: Sample | None,
    progress: Callable[[Progress], None] | None,
    clock: Callable[[], datetime],
    actor: str,
    record: bool,
) -> ValidationReport:
    """Look at live checkpoints where the workers are, and write down what was found; see CheckpointCatalog.validate."""
    began = time.monotonic()
    beside = engine.worker()  # a job for a few rows would take as long as hashing hundreds of MiB
    candidates, vnodes, unreadable = _live(beside, streams, clock, actor)
    chosen = sample.choose(candidates) if sample else candidates
    sizes = {(stream, key): size for stream, key, size in chosen}
    tasks = [pickle.dumps((stream, some, depth, vnodes[stream])) for stream, some in _tasks(chosen, depth)]
    total = sum(sizes.values())
    done: list[tuple[str, str, ValidationResult]] = []
    size = looked_at = 0
    unrecorded: list[dict[str, Any]] = []
    for answer in engine.spread(tasks, check_task):
        stream, results, why = pickle.loads(answer)
        if why:
            unreadable[keys.stream_label(stream)] = why
        for key, result in results:
            looked_at += 1
            size += sizes[stream, key]
            if result is not None:
                done.append((stream, key, result))
                unrecorded.append(_event(stream, key, result, depth, sizes[stream, key], clock(), actor))
        if record and len(unrecorded) >= RESULTS_PER_EVENT_COMMIT:
            record_events(beside, unrecorded)
        if progress:
            progress(Progress(looked_at, len(chosen), size, total))
    if record and unrecorded:
        record_events(beside, unrecorded)
    found = tuple((keys.stream_label(stream), result) for stream, _, result in done if result.issues)
    seconds = time.monotonic() - began
    return ValidationReport(depth, len(done), len(candidates), size, seconds, found, tuple(sorted(unreadable.items())))


def check_task(engine: Engine, task: bytes) -> bytes:
    """Look at some checkpoints of a stream; runs where the workers are."""
    stream, wanted, depth, vnode_count = pickle.loads(task)
    reader = StreamReader(engine, keys.stream_label(stream), clock=datetime.now, actor="")
    try:
        results, why = list(Verifier(reader, vnode_count=vnode_count).check_many(wanted, depth)), None
    except CorruptError as error:  # of its rows: what is wrong with artifacts is a finding
        results, why = [], str(error)
    return pickle.dumps((stream, results, why))


def _live(
    engine: Engine, streams: Sequence[str] | None, clock: Callable[[], datetime], actor: str
) -> tuple[list[tuple[str, str, int]], dict[str, int | None], dict[str, str]]:
    """Return (stream, key, bytes) of live checkpoints, vnode counts by stream, and why streams cannot be read."""
    if streams is None:
        found = engine.scan(Table.CHECKPOINTS, [], ["stream"]).column("stream").unique().to_pylist()
        streams = [keys.stream_label(one) for one in found]
    candidates, vnodes, unreadable = list[tuple[str, str, int]](), dict[str, int | None](), dict[str, str]()
    for name in sorted(streams):
        reader = StreamReader(engine, name, clock=clock, actor=actor)
        try:
            history = reader.history()
        except CorruptError as error:
            unreadable[name] = str(error)
            continue
        if not history and reader.highest_key() is None:
            raise CheckpointNotFoundError(f"there is no stream {name!r} to validate", stream=name)
        newest = lifecycle.latest(history)
        vnodes[reader.stream] = newest.content.vnode_count if newest and newest.content else None
        candidates += [(reader.stream, key, one.bytes) for key, one in history.items() if one.live]
    return candidates, vnodes, unreadable


def _tasks(chosen: Iterable[tuple[str, str, int]], depth: Depth) -> Iterator[tuple[str, list[str]]]:
    """Yield stream and keys of pieces of work, about equal ones."""
    stream, some, size = "", list[str](), 0
    for name, key, more in chosen:
        full = len(some) == KEYS_PER_TASK or (depth is Depth.HASHES and size + more > BYTES_PER_TASK)
        if some and (name != stream or full):
            yield stream, some
            some, size = [], 0
        stream, size = name, size + more
        some.append(key)
    if some:
        yield stream, some


def _event(
    stream: str, key: str, result: ValidationResult, depth: Depth, size: int, at: datetime, actor: str
) -> dict[str, Any]:
    rules = sorted({issue.rule for issue in result.issues})
    details = {"depth": depth, "valid": result.valid, "rules": rules, "bytes": size}
    return event(stream, key, "verified", at, actor, details)


def event(stream: str, key: str, what: str, at: datetime, actor: str, details: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of `events`."""
    return {
        "stream": stream, "checkpoint_key": key, "event": what, "at": at, "actor": actor,
        "details": json.dumps(details),
    }  # fmt: skip


def event_details(text: str | None) -> dict[str, Any]:
    """Return what an event tells, nothing if that is no JSON object: anybody may append to an audit trail."""
    try:
        told = json.loads(text or "")
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What validations have found of a checkpoint so far."""

    at: datetime
    """Of the last one."""
    sound: bool | None
    """None where only rows were looked at; once it was found damaged, only reading all bytes takes that back."""


def last_verdicts(engine: Engine, where: Iterable[Condition] = ()) -> dict[tuple[str, str], Verdict]:
    """Return what is known of the checkpoints that were ever validated, by stored stream and key."""
    columns = ["stream", "checkpoint_key", "at", "details"]
    rows = engine.scan(Table.EVENTS, [Equals("event", "verified"), *where], columns).to_pylist()
    found: dict[tuple[str, str], Verdict] = {}
    for row in sorted(rows, key=lambda row: row["at"]):
        match event_details(row["details"]):
            case {"depth": str(depth), "valid": bool(valid)}:
                one = row["stream"], row["checkpoint_key"]
                known = found[one].sound if one in found else None
                found[one] = Verdict(row["at"], valid if depth == Depth.HASHES or not valid else known)
    return found


def record_events(engine: Engine, events: list[dict[str, Any]]) -> None:
    """Add rows to `events` in one commit, and empty the list."""
    by_stream = defaultdict(list)
    for one in events:
        by_stream[one["stream"]].append(one)
    engine.append(Table.EVENTS, (arrow(Table.EVENTS, some) for some in by_stream.values()))
    events.clear()
