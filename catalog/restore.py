"""Getting back to a good state: find the checkpoint, and hand its state out verified, or write it into a folder."""

import errno
import hashlib
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from catalog import chains, keys, recovery
from catalog.errors import CatalogError, ConflictError, CorruptError, InvalidInputError, ReadOnlyError
from catalog.handles import ArtifactHandle
from catalog.lifecycle import Checkpoint, History
from catalog.manifest import (
    CheckpointManifest,
    CheckpointManifestV2,
    Manifest,
    Positions,
    StateManifest,
    parse_any,
    parse_stored,
)
from catalog.policies import check_flag
from catalog.protocol import Stream
from catalog.reader import ROUNDS
from catalog.recovery import RecoveryReport, Requirement
from catalog.stored_json import decode_base64
from catalog.validation import ValidationResult, failure, needed_paths
from catalog.verify import Depth, Verifier

MANIFEST_FILE = "manifest.json"
RESTORE_FILE = "restore.json"


class Manifests:
    """The manifests of a stream's checkpoints, read newest first as they are asked for, in growing batches."""

    def __init__(self, stream: Stream, history: History) -> None:
        self._stream = stream
        self._waiting = [key for key in sorted(history, reverse=True) if history[key].live]
        self._loaded: dict[str, Checkpoint] = {}

    def positions(self, checkpoint: Checkpoint) -> Positions:
        """Return where a checkpoint's sources stand; nowhere if its manifest cannot be read."""
        if checkpoint.key not in self._loaded:
            older = [key for key in self._waiting if key < checkpoint.key]
            wanted = [checkpoint.key, *older][: 2 * len(self._loaded) or 1]
            self._loaded |= self._stream.history(wanted, manifests=True)
        found = self._loaded.get(checkpoint.key)
        try:
            return parse_any(found, self._stream.label).positions() if found else {}
        except CatalogError:
            return {}


def recover(
    stream: Stream,
    *,
    allow_pending: bool = False,
    lenient: bool = False,
    require: Sequence[Requirement] = (),
    history: History | None = None,
    vnode_count: int | None = None,
) -> RecoveryReport:
    """Return the newest checkpoint that is eligible and valid, reading only what has to be read to know.

    Args:
        stream: the stream.
        allow_pending: also take one whose sinks are pending or failed.
        lenient: also take one whose state is missing; the report says so.
        require: what it has to meet besides.
        history: the stream's checkpoints, if they are known already.
        vnode_count: what manifests are expected to have; another one is a warning.
    """
    check_flag(allow_pending, "allow_pending")
    check_flag(lenient, "lenient")
    verifier = Verifier(stream, vnode_count=vnode_count)
    went: list[str] = []
    faulty: set[int | str] = set()

    def validate(checkpoint: Checkpoint) -> ValidationResult:
        result = verifier.check(checkpoint.key, Depth.HASHES, along_chain=True)
        if result is None:
            went.append(checkpoint.key)
        elif not result.valid:
            faulty.add(checkpoint.id)
        gone = failure("manifest_missing", "it was deleted meanwhile")
        return result or ValidationResult(checkpoint.id, (gone,))

    began = time.monotonic()
    known = stream.history() if history is None else history
    for _ in range(ROUNDS):
        went.clear()
        report = recovery.recover(
            known, validate, stream.clock, allow_pending=allow_pending, lenient=lenient, require=require
        )
        if not went:
            break
        # Whoever prunes has newer ones: an older one, or none, would be the answer to yesterday's question.
        before, known = known, stream.history()
        if all(known.get(key) == before[key] for key in went):
            break  # a moment does not change
    else:
        if report.chosen_id is None:
            raise ConflictError(
                f"the checkpoints of stream {stream.label!r} went {ROUNDS} times while they were examined; try again"
            )
    if faulty:
        good = report.chosen_id is not None and report.chosen_id not in faulty
        stream.go_on_from(keys.any_key(report.chosen_id) if good else None)
    # A catalog's clock may stand still, as that of a moment does.
    return replace(report, elapsed=timedelta(seconds=time.monotonic() - began))


@dataclass(frozen=True, slots=True)
class StatePart:
    """One piece of a restored state, an artifact or what rides in the manifest."""

    path: str | None
    """The artifact; None for what rides in the manifest."""
    key: str
    """The checkpoint that it belongs to: this one, or one that its deltas stand on."""
    operator: str | None
    """None for the state that a checkpoint has as a whole: `state.bin`, or a CheckpointState as it is serialized."""
    partition: int | None
    is_delta: bool
    name: str | None = None
    """The name of its handle, such as `partition-1` or that of a file; None where it has none."""
    inline: bytes | None = field(default=None, repr=False)
    """The state itself, where it rides in the manifest."""


def parts(stream: Stream, key: str) -> list[StatePart]:
    """Return what to restore a live checkpoint from, in the order to apply it."""
    return stream.along_chain(key, lambda line, seen: _parts(stream, line, seen)[2])


def _parts(stream: Stream, line: Sequence[str], history: History) -> tuple[Manifest, str, list[StatePart]]:
    """Return a checkpoint's manifest, its text, and what to restore it from, in the order to apply it."""
    key, checkpoint = line[0], history[line[0]]
    manifest = parse_any(checkpoint, stream.label)
    text = (checkpoint.content and checkpoint.content.manifest) or ""
    if not isinstance(manifest, CheckpointManifestV2):
        try:
            return manifest, text, _parts_at_once(checkpoint, manifest)
        except InvalidInputError as error:
            where = f"checkpoint {checkpoint.id} of stream {stream.label!r}"
            raise CorruptError(f"{where} is damaged: {error}", stream=stream.label, key=key) from error
    found = []
    for operator, partition in sorted({(name, entry.partition_id) for name, entry in manifest.entries()}):
        for at, entry in chains.links(
            line, history, lambda one: parse_stored(CheckpointManifestV2, one, stream.label), operator, partition
        ):
            found.append(StatePart(entry.path, at, operator, partition, entry.is_delta))
    return manifest, text, found


def _parts_at_once(checkpoint: Checkpoint, manifest: CheckpointManifest | StateManifest) -> list[StatePart]:
    """Return what a checkpoint that stands on no other is restored from: what it has as a whole, then by operator."""
    key = checkpoint.key
    found = []
    if manifest.STATE_PATH in needed_paths(checkpoint, manifest):
        found.append(StatePart(manifest.STATE_PATH, key, None, None, False))
    if isinstance(manifest, StateManifest):
        if manifest.state_b64 is not None:
            state = decode_base64(manifest.state_b64, "state_b64")
            found.append(StatePart(None, key, None, None, False, inline=state))
        return found
    named = [
        StatePart(None, key, operator, None, False, name, read()) for operator, name, read in manifest.inline_parts()
    ]
    # By handle, not by path: two handles may be of one artifact.
    for operator, handles in manifest.operator_handles.items():
        for name, handle in handles.items():
            if isinstance(handle, ArtifactHandle):
                named.append(StatePart(handle.path, key, operator, None, False, name))
    return found + sorted(named, key=lambda part: (part.operator or "", part.name or ""))


def open_part(stream: Stream, part: StatePart) -> Iterator[bytes]:
    """Yield the verified chunks of a piece of state."""
    if part.path is None:
        yield part.inline or b""
        return
    for chunk in stream.stream_chunks(part.key, part.path, from_trash=True):
        yield bytes(chunk)


def new_folder(folder: str | os.PathLike[str]) -> Path:
    """Return a folder that a state can be written into; refuse one that holds something, and what can be none."""
    if not isinstance(folder, str | os.PathLike) or not isinstance(text := os.fspath(folder), str) or "\0" in text:
        raise InvalidInputError(f"a folder must be a path, not {folder!r}: pass a new or empty folder")
    target = Path(os.path.abspath(text))  # noqa: PTH100 - Path keeps "..", which has no place beside it
    with _told_of(target), suppress(FileNotFoundError):
        target.lstat()  # a link that leads nowhere is there too
        if not target.is_dir() or any(target.iterdir()):
            raise InvalidInputError(f"{target} is there already: pass a new or empty folder")
    return target


@contextmanager
def _told_of(target: Path) -> Iterator[None]:
    """Say of which folder it is that it cannot be written into."""
    try:
        yield
    except CatalogError:
        raise
    except OSError as error:
        kind = ReadOnlyError if isinstance(error, PermissionError) or error.errno == errno.EROFS else InvalidInputError
        raise kind(f"{target} cannot be written into: {error}; pass another new or empty folder") from error


@contextmanager
def writing(target: Path) -> Iterator[Path]:
    """Give a hidden folder to write into; what it holds is in the target at the end, or goes without a trace.

    It is within a target that is there, which may be a mount point or somebody's current folder and so must stay, and
    else beside it.
    """
    there = target.is_dir()
    scratch = (target if there else target.parent) / f".{target.name[:40]}.{uuid.uuid4().hex}"
    made = [folder for folder in scratch.parents if not folder.exists()]
    try:
        with _told_of(target):
            scratch.mkdir(parents=True)
        yield scratch
        with _told_of(target):
            if there:
                _move_up(scratch, target)
            else:
                scratch.rename(target)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
        raise


def _move_up(scratch: Path, target: Path) -> None:
    """Move all that a folder holds into the one that it is in, or nothing."""
    if any(one != scratch for one in target.iterdir()):
        raise InvalidInputError(f"{target} is not empty any more: pass a new or empty folder")
    entries = list(scratch.iterdir())
    try:
        for one in entries:
            one.rename(target / one.name)
    except BaseException:
        for one in entries:
            with suppress(OSError):
                (target / one.name).rename(one)
        raise
    scratch.rmdir()


def materialize(stream: Stream, key: str, folder: str | os.PathLike[str]) -> Path:
    """Write a checkpoint's state into a new folder, verified, all of it or nothing; see CheckpointCatalog."""
    target = new_folder(folder)
    return stream.along_chain(key, lambda line, seen: _materialize(stream, *_parts(stream, line, seen), target))


def _materialize(stream: Stream, manifest: Manifest, text: str, found: Sequence[StatePart], target: Path) -> Path:
    with writing(target) as beside:
        (beside / MANIFEST_FILE).write_text(text, "utf-8")
        files = []
        for number, part in enumerate(found):
            file = beside / "artifacts" / _file_name(number, part)
            file.parent.mkdir(parents=True, exist_ok=True)
            sha256 = hashlib.sha256()
            with file.open("wb") as out:
                for chunk in open_part(stream, part):
                    out.write(chunk)
                    sha256.update(chunk)
                out.flush()
                os.fsync(out.fileno())
            files.append(
                {
                    "file": str(file.relative_to(beside)),
                    "bytes": file.stat().st_size,
                    "sha256": sha256.hexdigest(),
                    "path": part.path,
                    "checkpoint_key": part.key,
                    "operator": part.operator,
                    "partition": part.partition,
                    "name": part.name,
                    "is_delta": part.is_delta,
                }
            )
        about = {"stream": stream.label, "checkpoint_key": manifest.key, "apply_in_this_order": files}
        (beside / RESTORE_FILE).write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", "utf-8")
    return target


def _file_name(number: int, part: StatePart) -> str:
    """Return a file's name that sorts in the order to apply, whatever an operator is called.

    A handle's name is not in it: it may be a path. It is in restore.json.
    """
    if part.operator is None:
        return part.path or StateManifest.STATE_PATH  # of one size or another, a CheckpointState is under one name
    operator = re.sub(r"[^A-Za-z0-9_-]+", "_", part.operator)[:60]
    return f"{number:05d}-{operator}-{part.partition}.{'delta' if part.is_delta else 'snap'}"
