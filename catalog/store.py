"""The checkpoint store of seed 004: manifests with integer ids, and one state artifact per checkpoint."""

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from catalog import artifacts, keys, restore, retention
from catalog.chunks import Base, Stored
from catalog.cutting import Cutting, SharedFile, Source, Writing, check_source
from catalog.errors import (
    ArtifactNotFoundError,
    BasePurgedError,
    CheckpointExistsError,
    CorruptError,
    InvalidInputError,
)
from catalog.handles import StateHandle
from catalog.lifecycle import Change, Checkpoint, live_keys
from catalog.manifest import (
    DEFAULT_VNODE_COUNT,
    CheckpointManifest,
    FailedSink,
    SinkStatus,
    created_at,
    parse_stored,
    sha256_text,
)
from catalog.policies import check_flag
from catalog.protocol import DELETED, PRUNE_UNDO, Draft, Stream
from catalog.recovery import RecoveryReport
from catalog.retention import Planner
from catalog.stream_factory import (
    MAX_AMPLIFICATION,
    STREAM_THRESHOLD_BYTES,
    CatalogStreamFactory,
    open_handle,
)
from catalog.sweep import ORPHAN_GRACE, clean_up
from catalog.validation import ValidationResult, failure, is_inline
from catalog.verify import Verifier

STATE_PATH = CheckpointManifest.STATE_PATH


class CheckpointStore:
    """Saves, loads, lists, validates, recovers and prunes the checkpoints of one stream; safe to share by threads.

    Of two writers of one id exactly one wins; the other is told, and harms nothing, because each writes its bytes
    under an attempt of its own and the winner's row names the winner's.
    """

    def __init__(self, stream: Stream, *, max_retained: int = 0, vnode_count: int = DEFAULT_VNODE_COUNT) -> None:
        """Make a store; `CheckpointCatalog.store` is the usual way.

        Args:
            stream: the stream's rows.
            max_retained: how many checkpoints auto-prune leaves at every save; 0 switches it off.
            vnode_count: what manifests are expected to have; a mismatch is a warning.
        """
        self._stream = stream
        self._max_retained = keys.u64(max_retained, "max_retained")
        self._vnode_count = keys.u64(vnode_count, "vnode_count")
        if vnode_count > 2**16 - 1:
            raise InvalidInputError(f"vnode_count must be at most 65535, not {vnode_count}")
        self._staged: dict[str, list[tuple[str, Stored]]] = {}
        """By key, attempt and totals of the state that was staged, if it is; the list is empty until a write ends."""
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"CheckpointStore({self._stream})"

    def with_vnode_count(self, vnode_count: int) -> "CheckpointStore":
        """Return a store that expects another vnode count."""
        return CheckpointStore(self._stream, max_retained=self._max_retained, vnode_count=vnode_count)

    def vnode_count(self) -> int:
        """Return the vnode count that manifests are expected to have."""
        return self._vnode_count

    def next_id(self) -> int:
        """Return an id above every id that was ever stored, pruned and abandoned ones included."""
        return keys.u64(self._stream.highest_id() + 1, "the next id")

    # -- saving ----------------------------------------------------------------------------------------------------

    def save(self, manifest: CheckpointManifest) -> None:
        """Save a manifest; state that this store staged for its id by save_state_data becomes part of it.

        State that another process staged does too if the manifest expects it, by external operators or a checksum.
        Saving the same content again is a success. With max_retained, older checkpoints are trashed in the same
        commit.

        Raises:
            CheckpointExistsError: the id is taken by other content, which stays as it is.
            TrashedError, PurgedError, AbandonedError: the id was used before.
            InvalidInputError: the manifest is not one, or the stream holds another kind.
        """
        manifest, key = self._checked(manifest)
        attempt, stored = self._own(key) or (keys.new_uuid7(), None)
        if manifest.artifact_handles() or (stored is None and manifest.expects_state):
            self._save_adopting(manifest, key, attempt)
            return
        try:
            self._save_staged(manifest, key, attempt, {STATE_PATH: stored} if stored else {})
        except CheckpointExistsError:
            if stored is not None:
                raise
            # It may be the same content: what was staged for the first save is not known here any more.
            self._save_adopting(manifest, key, attempt)

    def save_with_state(
        self,
        manifest: CheckpointManifest,
        state: Source | None,
        *,
        previous: int | None = None,
        share: bool = True,
        cutting: Cutting | str = Cutting.FIXED,
    ) -> None:
        """Save a manifest with its state: the state becomes durable first, then the manifest with its checksum.

        Chunks that an earlier checkpoint already has are not written again; they live as long as anyone needs them.

        Args:
            manifest: its state_checksum is computed here.
            state: bytes, pieces of bytes in order, a file (pathlib.Path), or a SharedFile; None is the same as save.
            previous: the checkpoint to share chunks with, by default the latest.
            share: False writes all bytes.
            cutting: "fixed" for state that changes in place, "content" for state in which bytes are inserted.

        Raises:
            CheckpointNotFoundError, ClosedIdError: there is no such previous checkpoint.
            BasePurgedError: the checkpoint it shares with was purged meanwhile, and an iterator cannot be read again.
        """
        if state is None:
            self.save(manifest)
            return
        manifest, key = self._checked(manifest)
        check_source(state)
        self._stream.check_format()
        base = self._base(previous, share)
        try:
            self._save_state(manifest, key, state, base, _cutting(cutting))
        except BasePurgedError:
            if not isinstance(state, bytes | bytearray | memoryview | Path | SharedFile | list | tuple):
                raise
            self._save_state(manifest, key, state, lambda: None, _cutting(cutting))

    def _save_state(
        self,
        manifest: CheckpointManifest,
        key: str,
        state: Source,
        base: Callable[[], Base | None],
        cutting: Cutting,
    ) -> None:
        attempt = keys.new_uuid7()
        inline = manifest.inline_hash()
        mixed = hashlib.sha256(inline.encode()) if inline else None
        how = Writing(also=mixed, base=base, cutting=cutting)
        stored = self._stream.stage(key, attempt, STATE_PATH, "state", state, how)
        checksum = mixed.hexdigest() if mixed else stored.sha256
        self._save(manifest.model_copy(update={"state_checksum": checksum}), key, attempt, {STATE_PATH: stored})

    def _base(self, previous: int | None, share: bool) -> Callable[[], Base | None]:
        check_flag(share, "share")
        key = self._live_key(previous)
        return partial(self._stream.base, key) if share else lambda: None

    def _live_key(self, previous: int | None) -> str | None:
        """Return the key of the checkpoint to share with; refuse one that is not there, whatever there is to share."""
        if previous is None:
            return None
        key = keys.integer_key(previous, "previous")
        return self._stream.require_live(key, self._stream.find(key, manifest=False)).key

    # -- checkpoint streams ----------------------------------------------------------------------------------------

    def stream_factory(
        self,
        checkpoint_id: int,
        *,
        previous: int | None = None,
        share: bool = True,
        threshold: int = STREAM_THRESHOLD_BYTES,
        max_amplification: float = MAX_AMPLIFICATION,
        cutting: Cutting | str = Cutting.FIXED,
        hash_threads: int | None = None,
    ) -> CatalogStreamFactory:
        """Return a factory of output streams for the state of a checkpoint (seed 001).

        Args:
            checkpoint_id: the checkpoint; `save_with_handles` saves it.
            previous: the checkpoint to share state with, by default the latest.
            share: False if the checkpoint must depend on nothing old.
            threshold: state of at most so many bytes rides in its handle; 0 to 1 MiB.
            max_amplification: reuse is advised against if it keeps more than so many times the used space alive.
            cutting: "fixed" for state that changes in place, "content" for state in which bytes are inserted.
            hash_threads: how many threads hash a stream; by default all cores but one, which is left for processing.

        Raises:
            CheckpointNotFoundError, ClosedIdError: there is no such previous checkpoint.
        """
        return CatalogStreamFactory(
            self._stream,
            keys.integer_key(checkpoint_id),
            previous=self._live_key(previous),
            share=check_flag(share, "share"),
            threshold=threshold,
            max_amplification=max_amplification,
            cutting=_cutting(cutting),
            hash_threads=hash_threads,
        )

    def save_with_handles(
        self, manifest: CheckpointManifest, factory: CatalogStreamFactory, *, pin: str | None = None
    ) -> None:
        """Save a manifest whose operator_handles were written, duplicated or reused through this factory.

        Args:
            manifest: the manifest.
            factory: made for its id.
            pin: why it is pinned in the same commit, so that nobody can let it go before; None does not pin it.

        Raises:
            UnknownHandleError: a handle is from elsewhere; nothing was saved.
            BasePurgedError: state that it shares was purged meanwhile; nothing was saved, take the checkpoint again.
        """
        manifest, key = self._checked(manifest)
        self._check_made_for(factory, key)
        handles = [handle for named in manifest.operator_handles.values() for handle in named.values()]
        pin = None if pin is None else keys.text(pin, "pin")
        self._save_staged(manifest, key, factory.attempt, factory.finish(handles), pin=pin)

    def open_handle(self, handle: StateHandle, *, of: int | None = None) -> BinaryIO:
        """Return a seekable file with the state of a handle; every byte is verified.

        Args:
            handle: from a manifest or a stream.
            of: the saved checkpoint whose manifest it is from.
        """
        return open_handle(self._stream, handle, through=None if of is None else keys.integer_key(of))

    def abandon(self, checkpoint_id: int, factory: CatalogStreamFactory, reason: str) -> None:
        """Close an id that will not be saved: what was staged for it is garbage at once, and the sweep takes it.

        Raises:
            CheckpointExistsError: somebody has saved it.
        """
        key = keys.integer_key(checkpoint_id)
        self._check_made_for(factory, key)
        self._stream.abandon(key, factory.attempt, reason)

    def save_state_data(self, checkpoint_id: int, state: Source) -> None:
        """Stage state for an id: durable and loadable at once, part of a checkpoint when its manifest is saved.

        Of several writes for one id the one that began last counts, also if an earlier one, perhaps given up by its
        caller, comes to its end after it.
        """
        key = keys.integer_key(checkpoint_id)
        check_source(state)
        attempt = keys.new_uuid7()
        with self._lock:
            staged = self._staged.setdefault(key, [])  # a write that ends after the save finds it taken away
        self._stream.check_open(key)
        stored = self._stream.stage(key, attempt, STATE_PATH, "state", state)
        with self._lock:
            staged[:] = [max([*staged, (attempt, stored)], key=lambda one: one[0])]  # attempts rise

    def update_manifest(self, manifest: CheckpointManifest) -> None:
        """Change a saved manifest, for sink status transitions; latest does not move.

        Concurrent updates merge sink by sink: Pending < Failed < Committed, and a status never goes back. The id,
        the operator states and the checksum cannot change.

        Raises:
            CheckpointNotFoundError: the id was never saved.
        """
        manifest, key = self._checked(manifest)

        def decide(checkpoint: Checkpoint) -> dict[str, Any] | None:
            stored = self._parse(checkpoint)
            merged = _merge(stored, manifest)
            if merged == stored:
                return None
            text = merged.canonical()
            facts = manifest_columns(merged)
            return {"change": Change.UPDATED, "manifest": text, "manifest_sha256": sha256_text(text), **facts}

        self._stream.change(key, decide)

    # -- loading ---------------------------------------------------------------------------------------------------

    def load_latest(self) -> CheckpointManifest | None:
        """Return the newest committed manifest, None if there is none; an unreadable one is an error, never None."""
        newest = self._stream.latest()
        return self._parse(newest) if newest else None

    def load_by_id(self, checkpoint_id: int) -> CheckpointManifest | None:
        """Return a manifest, None if the id has no live checkpoint."""
        found = self._stream.find(keys.integer_key(checkpoint_id))
        return self._parse(found) if found and found.live else None

    def list_ids(self) -> list[int]:
        """Return all ids ascending, those with an unreadable manifest included."""
        return [int(key) for key in live_keys(self._stream.history())]

    def list(self) -> list[tuple[int, int]]:
        """Return (id, epoch) of all readable checkpoints, ascending."""
        readable = []
        for checkpoint in self._stream.history(manifests=True).values():
            if checkpoint.live:
                try:
                    readable.append((int(checkpoint.key), self._parse(checkpoint).epoch))
                except CorruptError:
                    continue  # list_ids and validate_checkpoint show it
        return readable

    def load_state_data(self, checkpoint_id: int) -> bytes | None:
        """Return a checkpoint's state, verified; large states are better streamed.

        None is an answer: it has no state, or was never saved. Where it had some that cannot be had, that is an error:
        whoever lists ids and then loads must not take what somebody let go meanwhile for a fresh start.

        Raises:
            TrashedError, PurgedError: it was let go; `load_by_id` says None of it.
            CorruptError: its state is not what was saved.
        """
        key = keys.integer_key(checkpoint_id)
        try:
            return self._stream.read(key, STATE_PATH, own_attempt=self._own_attempt(key))
        except ArtifactNotFoundError:
            return None

    def iter_state_data(self, checkpoint_id: int) -> Iterator[bytes]:
        """Yield a checkpoint's state in verified chunks of at most 4 MiB, in bounded memory.

        Raises:
            ArtifactNotFoundError: it has no state.
        """
        key = keys.integer_key(checkpoint_id)
        for chunk in self._stream.stream_chunks(key, STATE_PATH, own_attempt=self._own_attempt(key)):
            yield bytes(chunk)

    # -- trusting --------------------------------------------------------------------------------------------------

    def validate_checkpoint(self, checkpoint_id: int) -> ValidationResult:
        """Return what is wrong with a checkpoint, after reading all of it."""
        found = self._verifier().check(keys.integer_key(checkpoint_id))
        missing = failure("manifest_missing", f"manifest not found for checkpoint {checkpoint_id}")
        return found or ValidationResult(checkpoint_id, (missing,))

    def recover_latest_validated(self, *, allow_pending: bool = False, lenient: bool = False) -> RecoveryReport:
        """Return the newest checkpoint that is eligible and valid, and why newer ones were passed over.

        `CheckpointCatalog.recover` can require more: a pipeline, an offset, a time.

        Args:
            allow_pending: also take one whose sinks are pending or failed.
            lenient: also take one whose state is missing; the report says so.
        """
        return restore.recover(
            self._stream, allow_pending=allow_pending, lenient=lenient, vnode_count=self._vnode_count
        )

    def go_on_from(self, checkpoint_id: int) -> None:
        """Share state with this checkpoint instead of the latest, until one is saved here: for who has restored it."""
        self._stream.go_on_from(keys.integer_key(checkpoint_id))

    # -- letting go ------------------------------------------------------------------------------------------------

    def prune(self, keep_count: int, *, allow_empty: bool = False, undo_for: timedelta = PRUNE_UNDO) -> int:
        """Trash all but the newest checkpoints and return how many went; `restore` undoes it.

        The newest one that recovery could choose stays, whatever keep_count says; so do pinned ones.

        Args:
            keep_count: how many of the newest stay.
            allow_empty: needed for keep_count 0, which leaves nothing but pinned ones.
            undo_for: how long it can be undone.
        """
        keys.u64(keep_count, "keep_count")
        check_flag(allow_empty, "allow_empty")
        if keep_count == 0 and not allow_empty:
            raise InvalidInputError("prune(0) would leave no checkpoint: pass allow_empty=True if that is meant")
        return len(self._stream.trash(self._keep(keep_count, allow_empty), undo_for).trash)

    def delete_checkpoint(self, checkpoint_id: int, reason: str = DELETED, *, undo_for: timedelta = PRUNE_UNDO) -> None:
        """Trash one checkpoint, such as a damaged one that prune would keep; `restore` undoes it.

        Raises:
            CheckpointNotFoundError: it was never saved.
            CheckpointInUseError: it is pinned.
        """
        self._stream.delete([keys.integer_key(checkpoint_id)], reason, undo_for)

    def restore(self, checkpoint_id: int) -> None:
        """Take a checkpoint out of the trash; within its undo window this always works."""
        self._stream.restore(keys.integer_key(checkpoint_id))

    def undo_update(self, checkpoint_id: int) -> None:
        """Take the last update of a manifest back: the one before it becomes the current one, sink statuses included.

        Raises:
            InvalidInputError: it was never updated.
            ConflictError: it was updated meanwhile, and nothing was taken back: look again.
        """
        self._stream.undo_update(keys.integer_key(checkpoint_id))

    def pin(self, checkpoint_id: int, reason: str, until: datetime | None = None, *, name: str | None = None) -> None:
        """Protect a checkpoint from being pruned, for ever or until a time.

        Args:
            checkpoint_id: which one; it stays as long as any of its pins holds it.
            reason: why, for whoever wants to let it go.
            until: when the pin ends by itself.
            name: what it is taken back by, by default the reason; an earlier pin of that name is replaced.
        """
        self._stream.pin(keys.integer_key(checkpoint_id), reason, until, name)

    def unpin(self, checkpoint_id: int, name: str | None = None, *, missing_ok: bool = False) -> None:
        """Take a pin back, by default the only one.

        Args:
            checkpoint_id: which one.
            name: the pin's.
            missing_ok: leave the others alone if there is none of that name, instead of refusing it.

        Raises:
            InvalidInputError: there are several, or none of that name.
        """
        self._stream.unpin(keys.integer_key(checkpoint_id), name, missing_ok=missing_ok)

    def cleanup_orphans(self, grace: timedelta = ORPHAN_GRACE) -> int:
        """Delete state that no manifest names and return how much there was; also what purged checkpoints left.

        Args:
            grace: state staged less than this ago is left alone: its save may be in progress. Ids whose state is
                cleaned up before they are saved are closed.
        """
        return clean_up(self._stream, grace)

    # -- within ----------------------------------------------------------------------------------------------------

    def _checked(self, manifest: object) -> tuple[CheckpointManifest, str]:
        if not isinstance(manifest, CheckpointManifest):
            raise InvalidInputError(f"a manifest must be a CheckpointManifest, not {type(manifest).__name__}")
        manifest = manifest.checked()
        key = keys.integer_key(manifest.checkpoint_id)
        for _, _, read in manifest.inline_parts():
            read()
        return manifest, key

    def _check_made_for(self, factory: CatalogStreamFactory, key: str) -> None:
        if not factory.writes_to(self._stream):
            raise InvalidInputError(f"the factory was made for another stream or catalog than {self._stream.label!r}")
        if key != factory.key:
            made_for = keys.checkpoint_id(factory.key)
            raise InvalidInputError(f"the factory was made for checkpoint {made_for}, not {keys.checkpoint_id(key)}")

    def _save_adopting(self, manifest: CheckpointManifest, key: str, attempt: str) -> None:
        """Save with state that was staged under another attempt."""
        wanted: dict[str, str | None] = {path: one.sha256 for path, (_, _, one) in manifest.artifact_handles().items()}
        if manifest.expects_state or not wanted:
            wanted[STATE_PATH] = manifest.state_checksum if not manifest.inline_hash() else None
        attempt, found = self._stream.adopt(key, attempt, wanted)
        if lost := sorted(wanted.keys() - found.keys() - {STATE_PATH}):
            raise InvalidInputError(
                f"checkpoint {manifest.checkpoint_id}: the state of handle {lost[0]!r} was not staged for it: use "
                "save_with_handles, with the factory through which it was written or reused"
            )
        self._save_staged(manifest, key, attempt, found)

    def _save_staged(
        self,
        manifest: CheckpointManifest,
        key: str,
        attempt: str,
        staged: Mapping[str, Stored],
        *,
        pin: str | None = None,
    ) -> None:
        self._save(self._with_checksum(manifest, key, attempt, staged.get(STATE_PATH)), key, attempt, staged, pin=pin)

    def _with_checksum(
        self, manifest: CheckpointManifest, key: str, attempt: str, stored: Stored | None
    ) -> CheckpointManifest:
        """Return a manifest with the checksum of its state; refuse one that has another: nobody could restore it.

        Where state is expected and nobody has staged it, there is nothing to compare with.
        """
        inline = manifest.inline_hash()
        checksum = stored.sha256 if stored and not inline else inline
        if stored and inline:
            mixed = hashlib.sha256(inline.encode())
            for chunk in artifacts.read(self._stream.engine, self._stream.stream, key, attempt, STATE_PATH):
                mixed.update(chunk)
            checksum = mixed.hexdigest()
        if manifest.state_checksum in (None, checksum):
            return manifest.model_copy(update={"state_checksum": checksum})
        if stored or is_inline(manifest):
            self._stream.check_open(key)  # what became of the id is told first
            raise InvalidInputError(
                f"checkpoint {manifest.checkpoint_id} of stream {self._stream.label!r}: its state_checksum is "
                f"{manifest.state_checksum!r}, but its state has {checksum}; nothing was saved: leave state_checksum "
                "None, as CheckpointManifest.new does, and it is computed here"
            )
        return manifest

    def _save(
        self,
        manifest: CheckpointManifest,
        key: str,
        attempt: str,
        staged: Mapping[str, Stored],
        *,
        pin: str | None = None,
    ) -> None:
        draft = Draft(
            key=key,
            format=manifest.FORMAT,
            attempt=attempt,
            manifest=manifest.canonical(),
            artifacts=staged,
            pin=pin,
            facts=manifest_columns(manifest),
        )
        # Nothing goes because of one whose state nobody has staged: recovery will pass it over.
        prunes = self._max_retained and (STATE_PATH in staged or not manifest.expects_state)
        self._stream.save(draft, self._keep(self._max_retained, False) if prunes else None)
        with self._lock:
            self._staged.pop(key, None)

    def _keep(self, keep_count: int, allow_empty: bool) -> Planner:
        return lambda history, now: retention.keep_newest(history, keep_count, now, allow_empty=allow_empty)

    def _own(self, key: str) -> tuple[str, Stored] | None:
        """Return attempt and totals of the state that this store has staged for an id."""
        with self._lock:
            return next(iter(self._staged.get(key, ())), None)

    def _own_attempt(self, key: str) -> str | None:
        own = self._own(key)
        return own[0] if own else None

    def _parse(self, checkpoint: Checkpoint) -> CheckpointManifest:
        return parse_stored(CheckpointManifest, checkpoint, self._stream.label)

    def _verifier(self) -> Verifier:
        return Verifier(self._stream, vnode_count=self._vnode_count)


def _cutting(value: object) -> Cutting:
    try:
        return Cutting(str(value))
    except ValueError as error:
        raise InvalidInputError(f"cutting must be one of {', '.join(Cutting)}, not {value!r}") from error


def manifest_columns(manifest: CheckpointManifest) -> dict[str, Any]:
    """Return the columns that queries and pruning need of a manifest."""
    statuses = list(manifest.sink_commit_statuses.values())
    return {
        "epoch": manifest.epoch,
        "created_at": created_at(manifest.timestamp_ms),
        "watermark": manifest.watermark,
        "pipeline_hash": manifest.pipeline_hash,
        "vnode_count": manifest.vnode_count,
        "sinks_committed": statuses.count("Committed"),
        "sinks_pending": statuses.count("Pending"),
        "sinks_failed": sum(isinstance(status, FailedSink) for status in statuses),
    }


def _merge(stored: CheckpointManifest, given: CheckpointManifest) -> CheckpointManifest:
    """Return the manifest after an update: sink by sink the further status, and nothing that must not change."""
    if (given.operator_states, given.operator_handles) != (stored.operator_states, stored.operator_handles):
        raise InvalidInputError(f"checkpoint {stored.checkpoint_id}: operator states cannot change after the save")
    if given.state_checksum not in (None, stored.state_checksum):
        raise InvalidInputError(f"checkpoint {stored.checkpoint_id}: the state checksum cannot change after the save")
    statuses = dict(stored.sink_commit_statuses)
    for sink, status in given.sink_commit_statuses.items():
        if sink not in statuses or _rank(status) >= _rank(statuses[sink]):
            statuses[sink] = status
    epochs = dict(stored.sink_epochs)
    for sink, epoch in given.sink_epochs.items():
        epochs[sink] = max(epoch, epochs.get(sink, 0))
    changed = {"sink_commit_statuses": statuses, "sink_epochs": epochs, "state_checksum": stored.state_checksum}
    return CheckpointManifest.from_dict({**stored.model_dump(), **given.model_copy(update=changed).model_dump()})


def _rank(status: SinkStatus) -> int:
    return 1 if isinstance(status, FailedSink) else {"Pending": 0, "Committed": 2}[status]
