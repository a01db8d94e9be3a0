"""The checkpointer of seed 002: UUIDv7 ids, artifacts per operator partition, and a separate step to become latest."""

import asyncio
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from catalog import chains, cutting, keys, lifecycle
from catalog.chunks import Stored
from catalog.cutting import Source, Writing
from catalog.errors import (
    ArtifactNotFoundError,
    BrokenChainError,
    ClosedIdError,
    CorruptError,
    InvalidInputError,
)
from catalog.lifecycle import Change, Checkpoint, History, Status
from catalog.manifest import CheckpointManifestV2, artifact_path, created_at, parse_stored, path_checkpoint
from catalog.protocol import DELETED, PRUNE_UNDO, Draft, Stream
from catalog.sweep import ORPHAN_GRACE, clean_up
from catalog.validation import never_written


@dataclass(frozen=True, slots=True)
class ChainLink:
    """One artifact of a partition's chain: the snapshot, or a delta to be applied on top of those before it."""

    checkpoint_id: str
    path: str
    is_delta: bool
    data: bytes


@dataclass(slots=True)
class _Staging:
    """What this checkpointer has staged for an id that is not saved yet."""

    attempt: str = field(default_factory=keys.new_uuid7)
    begun: set[str] = field(default_factory=set)
    """Paths under the attempt, written or being written: a second write of one goes under a new attempt."""
    stored: dict[str, tuple[str, Stored]] = field(default_factory=dict)
    """Attempt and totals by path of what is written, of a path's writes the one that began last."""


class Checkpointer:
    """Saves and loads the checkpoints of one stream without blocking the event loop; safe to share by threads.

    save_manifest makes a checkpoint that is listed and loadable; update_latest commits it. Ids come from
    `catalog.new_uuid7()`.
    """

    def __init__(self, stream: Stream) -> None:
        """Make a checkpointer; `CheckpointCatalog.checkpointer` is the usual way."""
        self._stream = stream
        self._staging: dict[str, _Staging] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Checkpointer({self._stream})"

    async def save_snapshot(self, id: str | UUID, operator: str, partition: int, data: Source) -> str:
        """Write a partition's complete state and return its SHA-256; it is loadable by its path at once.

        Of several writes of one artifact the one that began last counts, also if an earlier one, perhaps cancelled
        by its caller, comes to its end after it.

        Raises:
            CheckpointExistsError: the id has a manifest already.
        """
        return await asyncio.to_thread(self._stage, id, operator, partition, data, delta=False)

    async def save_delta(self, id: str | UUID, operator: str, partition: int, data: Source) -> str:
        """Write a partition's changes since the parent checkpoint and return their SHA-256; see save_snapshot."""
        return await asyncio.to_thread(self._stage, id, operator, partition, data, delta=True)

    async def save_manifest(self, manifest: CheckpointManifestV2) -> None:
        """Save a manifest with the artifacts it lists; saving the same content again is a success.

        Raises:
            CheckpointExistsError: the id is taken by other content, which stays as it is.
            BrokenChainError: it has deltas, and its parent is not there.
            InvalidInputError: it lists a hash or a size that is not the artifact's, or deltas without a parent.
        """
        await asyncio.to_thread(self._save_manifest, manifest)

    async def load_manifest(self, id: str | UUID) -> CheckpointManifestV2:
        """Return a manifest; absent is an error."""
        return await asyncio.to_thread(self._load_manifest, id)

    async def load_artifact(self, path: str) -> bytes:
        """Return an artifact's bytes, verified; absent is an error."""
        return await asyncio.to_thread(self._load_artifact, path)

    async def load_chain(self, id: str | UUID, operator: str, partition: int) -> list[ChainLink]:
        """Return a partition's snapshot and the deltas after it, in the order to apply them, along parent_id.

        Where the chain has been folded, its snapshot is what it was folded into.

        Raises:
            ArtifactNotFoundError: the checkpoint has nothing of that partition.
            BrokenChainError: a parent is missing, or does not hold what a delta stands on.
        """
        return await asyncio.to_thread(self._load_chain, id, operator, partition)

    async def update_latest(self, id: str | UUID) -> None:
        """Commit a checkpoint; latest is the highest committed id, so an older one never moves it back.

        Raises:
            CheckpointNotFoundError: the id has no manifest.
            ArtifactNotFoundError: artifacts that its manifest lists were never written.
        """
        await asyncio.to_thread(self._update_latest, id)

    async def read_latest(self) -> str | None:
        """Return the highest committed id, None when there is none."""
        newest = await asyncio.to_thread(lambda: lifecycle.latest(self._stream.history()))
        return newest.key if newest else None

    async def list_checkpoints(self) -> list[str]:
        """Return all ids, oldest first, those not yet committed included."""
        return await asyncio.to_thread(lambda: lifecycle.live_keys(self._stream.history()))

    async def delete_checkpoint(self, id: str | UUID, *, undo_for: timedelta = PRUNE_UNDO) -> None:
        """Delete a checkpoint with all its artifacts, undoable by `restore` for a while.

        It is invisible at once; its bytes go when the undo window is over, with the next clean-up.

        Raises:
            CheckpointNotFoundError: there never was one.
            CheckpointInUseError: a live checkpoint's deltas stand on it, or it is pinned.
        """
        await asyncio.to_thread(self._stream.delete, [keys.uuid7(id)], DELETED, undo_for)

    async def restore(self, id: str | UUID) -> None:
        """Take a deleted checkpoint back; within its undo window this always works."""
        await asyncio.to_thread(self._stream.restore, keys.uuid7(id))

    async def cleanup_orphans(self, grace: timedelta = ORPHAN_GRACE) -> int:
        """Delete artifacts that no manifest names, and those of checkpoints deleted for good; see CheckpointStore."""
        return await asyncio.to_thread(clean_up, self._stream, grace)

    def _stage(self, id: str | UUID, operator: str, partition: int, data: Source, *, delta: bool) -> str:
        key = keys.uuid7(id)
        keys.text(operator, "operator name")
        if keys.u64(partition, "partition") > 2**32 - 1:
            raise InvalidInputError(f"partition must be at most {2**32 - 1}, not {partition}")
        cutting.check_source(data)
        path = artifact_path(key, operator, partition, delta=delta)
        with self._lock:
            staging = self._staging.setdefault(key, _Staging())
            if path in staging.begun:
                staging.attempt, staging.begun = keys.new_uuid7(), set()
            staging.begun.add(path)
            attempt = staging.attempt
        self._stream.check_open(key)
        kind = "delta" if delta else "snapshot"
        how = Writing(base=self._stream.base)
        stored = self._stream.stage(key, attempt, path, kind, data, how, operator=operator, partition=partition)
        with self._lock:
            # The write that began last counts, whichever ends last; attempts rise.
            if path not in staging.stored or staging.stored[path][0] < attempt:
                staging.stored[path] = (attempt, stored)
        return stored.sha256

    def _save_manifest(self, manifest: CheckpointManifestV2) -> None:
        if not isinstance(manifest, CheckpointManifestV2):
            raise InvalidInputError(f"a manifest must be a CheckpointManifestV2, not {type(manifest).__name__}")
        manifest = manifest.checked()
        key = manifest.checkpoint_id
        if manifest.stands_on_parent and manifest.parent_id is None:
            raise InvalidInputError(f"checkpoint {key} has deltas without a snapshot: it needs a parent_id")
        with self._lock:
            staging = self._staging.get(key, _Staging())
            attempt, begun, staged = staging.attempt, set(staging.begun), dict(staging.stored)
        _check_entries(manifest, {path: stored for path, (_, stored) in staged.items()})
        listed = {entry.path: entry.sha256 for _, entry in manifest.entries()}
        found = {path: stored for path, (under, stored) in staged.items() if under == attempt and path in listed}
        if listed.keys() - found.keys():
            if listed.keys() & begun - found.keys():
                attempt = keys.new_uuid7()  # bytes of a write that has not come to its end may still come under it
            wanted = {path: staged[path][1].sha256 if path in staged else sha for path, sha in listed.items()}
            attempt, found = self._stream.adopt(key, attempt, wanted, partial(_check_entries, manifest))
        lost = sorted(listed.keys() - found.keys())
        draft = Draft(
            key=key,
            format=manifest.FORMAT,
            attempt=attempt,
            manifest=manifest.canonical(),
            artifacts=found,
            prepared=True,
            parent=manifest.parent_id if manifest.stands_on_parent else None,
            facts={**manifest_columns(manifest), "details": json.dumps({"missing": lost}) if lost else None},
        )
        self._stream.save(draft)
        with self._lock:
            self._staging.pop(key, None)

    def _load_manifest(self, id: str | UUID) -> CheckpointManifestV2:
        key = keys.uuid7(id)
        return self._parse(self._stream.require_live(key, self._stream.find(key)))

    def _load_artifact(self, path: str) -> bytes:
        key = path_checkpoint(path)
        with self._lock:
            own = self._staging[key].stored.get(path) if key in self._staging else None
        return self._stream.read(key, path, own_attempt=own[0] if own else None)

    def _load_chain(self, id: str | UUID, operator: str, partition: int) -> list[ChainLink]:
        key = keys.uuid7(id)
        keys.text(operator, "operator name")
        keys.u64(partition, "partition")

        def read(line: Sequence[str], seen: History) -> list[ChainLink]:
            broken = f"the chain of {operator!r} partition {partition} of checkpoint {key} is broken:"
            try:
                found = chains.links(line, seen, self._parse, operator, partition)
            except (ClosedIdError, CorruptError) as error:
                raise BrokenChainError(f"{broken} {error}") from error
            try:
                return [
                    ChainLink(at, entry.path, entry.is_delta, self._stream.read(at, entry.path, from_trash=at != key))
                    for at, entry in found
                ]
            except (ArtifactNotFoundError, ClosedIdError, CorruptError) as error:  # it may list what nobody wrote
                raise BrokenChainError(f"{broken} {error}") from error

        return self._stream.along_chain(key, read)

    def _update_latest(self, id: str | UUID) -> None:
        key = keys.uuid7(id)

        def decide(checkpoint: Checkpoint) -> dict[str, Any] | None:
            if checkpoint.status is Status.COMMITTED:
                return None
            if lost := sorted(never_written(checkpoint)):
                raise ArtifactNotFoundError(f"checkpoint {key} cannot become latest: {lost[0]} was never written")
            return {"change": Change.PROMOTED}

        self._stream.change(key, decide)

    def _parse(self, checkpoint: Checkpoint) -> CheckpointManifestV2:
        return parse_stored(CheckpointManifestV2, checkpoint, self._stream.label)


def _check_entries(manifest: CheckpointManifestV2, stored: dict[str, Stored]) -> None:
    """Refuse a manifest that says of an artifact what it is not, or lists one twice."""
    listed: set[str] = set()
    for operator, entry in manifest.entries():
        found = stored.get(entry.path)
        where = f"operator {operator!r} partition {entry.partition_id}: {entry.path}"
        if entry.path in listed:
            raise InvalidInputError(f"{where} is listed twice: list every artifact once")
        listed.add(entry.path)
        if found and (what := _what(found)) not in (None, (entry.is_delta, operator, entry.partition_id)):
            kind = "delta" if what[0] else "snapshot"
            raise InvalidInputError(
                f"{where} was written as the {kind} of operator {what[1]!r} partition {what[2]}, and is listed as a "
                f"{'delta' if entry.is_delta else 'snapshot'}: list what save_snapshot and save_delta wrote, as it is"
            )
        if found and (entry.sha256 not in (None, found.sha256) or entry.size_bytes != found.size):
            raise InvalidInputError(
                f"{where} has {found.size} bytes with SHA-256 {found.sha256}, "
                f"the manifest says {entry.size_bytes} bytes with {entry.sha256}"
            )


def _what(stored: Stored) -> tuple[bool, str, int] | None:
    """Return whether an artifact is a delta, its operator and its partition, as it was staged; None if nobody knows."""
    row = next(iter(stored.rows), None)
    return (row["kind"] == "delta", row["operator"], row["partition"]) if row and row.get("operator") else None


def manifest_columns(manifest: CheckpointManifestV2) -> dict[str, Any]:
    """Return the columns that queries and pruning need of a manifest."""
    return {
        "epoch": manifest.epoch,
        "created_at": created_at(manifest.timestamp_ms),
        "watermark": manifest.watermark,
    }
