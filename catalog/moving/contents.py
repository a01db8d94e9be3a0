"""What a source's files say, and how the tables hold it. Pure: bytes in, content and faults out.

Tables hold canonical JSON. A manifest whose bytes are not canonical is kept beside it, byte for byte, as an artifact of
kind `source`; so are files of a checkpoint that its manifest does not list. What cannot be read is kept as it is.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from catalog.checkpointer import manifest_columns as columns_v2
from catalog.chunks import Kept, Stored
from catalog.errors import DeserializationError, InvalidInputError
from catalog.lifecycle import Checkpoint
from catalog.manifest import (
    INLINE_THRESHOLD_BYTES,
    CheckpointManifest,
    CheckpointManifestV2,
    Manifest,
    StateManifest,
    sha256_text,
)
from catalog.moving import layouts
from catalog.moving.layouts import Candidate, FileFacts, Layout
from catalog.state import CheckpointId, CheckpointState
from catalog.state_store import manifest_columns as columns_of_state
from catalog.state_store import manifest_of
from catalog.store import manifest_columns as columns_v1
from catalog.validation import metadata_issues

SOURCE = "source"
"""The kind of artifacts that are kept for the way back alone."""
SOURCE_TEXT = "source/manifest.json"
"""The artifact that has a manifest's own bytes."""


@dataclass(frozen=True, slots=True)
class Part:
    """A file that becomes an artifact."""

    file: FileFacts
    kind: str
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Content:
    """What the tables will hold of a checkpoint, before its artifacts are read."""

    manifest: Manifest | None
    """None if it is unreadable."""
    text: str | None
    """The manifest as it is stored; None if its bytes are no text."""
    sha256: str
    """Of the text; of the bytes, if they are no text."""
    columns: Mapping[str, Any]
    parts: Mapping[str, Part]
    """By the path that an artifact gets."""
    problem: str | None = None
    """Why the manifest is unreadable."""
    keep_raw: bool = False
    """Whether its bytes have to be kept beside it."""
    unlisted: Sequence[FileFacts] = ()
    """Files of the checkpoint that the manifest does not list."""

    @property
    def parent(self) -> str | None:
        """The checkpoint that its deltas stand on."""
        return parent_of(self.manifest)


def parent_of(manifest: Manifest | None) -> str | None:
    """Return the checkpoint that a manifest's deltas stand on."""
    return manifest.parent_id if isinstance(manifest, CheckpointManifestV2) and manifest.stands_on_parent else None


def read(layout: Layout, candidate: Candidate, raw: bytes, others: Mapping[str, Candidate], stream: str) -> Content:
    """Return what a checkpoint's manifest, or its state, says.

    Args:
        layout: the layout.
        candidate: its files.
        raw: the manifest's bytes, or the state's.
        others: all checkpoints by key, because a manifest may list a file of another one.
        stream: the stream's name.
    """
    match layout:
        case Layout.STATES:
            return _state(candidate, raw, stream)
        case Layout.PARTITIONS:
            return _partitions(candidate, raw, others)
    parts = {path: Part(file, "state") for path, file in candidate.parts.items()}
    try:
        manifest = CheckpointManifest.from_json(_text(raw))
        return _readable(manifest, raw, columns_v1(manifest), parts)
    except InvalidInputError as error:
        return _unreadable(candidate, raw, parts, str(error))


def _partitions(candidate: Candidate, raw: bytes, others: Mapping[str, Candidate]) -> Content:
    beside = {
        f"{SOURCE}/{part}": Part(file, SOURCE) for part, file in candidate.parts.items() if part.startswith("offsets/")
    }
    own = {part: file for part, file in candidate.parts.items() if f"{SOURCE}/{part}" not in beside}
    try:
        manifest = CheckpointManifestV2.from_json(_text(raw))
        text = manifest.canonical()
        parts, listed = _listed(candidate, manifest, others)
        known = _readable(_with_paths(manifest, candidate.key), raw, columns_v2(manifest), {**parts, **beside})
        unlisted = tuple(file for part, file in own.items() if file not in listed)
        return replace(known, unlisted=unlisted, keep_raw=known.keep_raw or text != known.text)
    except InvalidInputError as error:
        parts = {}
        for part, file in own.items():
            operator, partition, is_delta = layouts.operator_part(part) or (None, None, False)
            kind = "delta" if is_delta else "snapshot"
            parts[f"{candidate.key}/{part}"] = Part(file, kind, {"operator": operator, "partition": partition})
        return _unreadable(candidate, raw, {**parts, **beside}, str(error))


def _listed(
    candidate: Candidate, manifest: CheckpointManifestV2, others: Mapping[str, Candidate]
) -> tuple[dict[str, Part], list[FileFacts]]:
    """Return the artifacts that a manifest lists and whose files are there, and those files."""
    parts = {}
    for operator, entry in manifest.entries():
        key, part = layouts.within(candidate.key, entry.path)
        owner = candidate if key == candidate.key else others.get(key)
        if owner and part in owner.parts:
            kind = "delta" if entry.is_delta else "snapshot"
            columns = {"operator": operator, "partition": entry.partition_id}
            parts[f"{key}/{part}"] = Part(owner.parts[part], kind, columns)
    return parts, [part.file for part in parts.values()]


def _with_paths(manifest: CheckpointManifestV2, key: str) -> CheckpointManifestV2:
    """Return a manifest whose paths begin with the checkpoint, as those of the catalog do."""
    operators = {}
    for name, operator in manifest.operators.items():
        paths = ["/".join(layouts.within(key, entry.path)) for entry in operator.partitions]
        moved = [
            entry.model_copy(update={"path": path}) for entry, path in zip(operator.partitions, paths, strict=True)
        ]
        operators[name] = operator.model_copy(update={"partitions": moved})
    return manifest.model_copy(update={"operators": operators}).checked()


def _state(candidate: Candidate, raw: bytes, stream: str) -> Content:
    whole = {StateManifest.STATE_PATH: Part(candidate.manifest, "state")}
    try:
        state = CheckpointState.deserialize(stream, raw)
    except DeserializationError as error:
        # Without a manifest, because one with these bytes in it would be sound.
        unreadable = _unreadable(candidate, raw, whole, str(error))
        return replace(unreadable, text=None, keep_raw=False)
    if candidate.manifest.modified:  # the bytes do not carry it
        state.id = CheckpointId(stream, state.id.sequence, candidate.manifest.modified)
    inline = len(raw) <= INLINE_THRESHOLD_BYTES
    manifest = manifest_of(state, raw if inline else None)
    # The bytes are kept as they are: maps may come in any order.
    known = _readable(manifest, raw, columns_of_state(state), {} if inline else whole)
    return replace(known, keep_raw=False)


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"not UTF-8: {error.reason} at byte {error.start}") from error


def _readable(manifest: Manifest, raw: bytes, columns: Mapping[str, Any], parts: Mapping[str, Part]) -> Content:
    text = manifest.canonical()
    return Content(manifest, text, sha256_text(text), columns, parts, keep_raw=text.encode() != raw)


def _unreadable(candidate: Candidate, raw: bytes, parts: Mapping[str, Part], problem: str) -> Content:
    try:
        text: str | None = raw.decode()
    except UnicodeDecodeError:
        text = None
    columns = {"created_at": candidate.manifest.modified}
    told = f"{candidate.manifest.path} is unreadable: {problem}"
    sha256 = hashlib.sha256(raw).hexdigest()
    return Content(None, text, sha256, columns, parts, told, keep_raw=text is None)


def with_whole_checksum(
    content: Content, stored: Mapping[str, Stored], mixed: str | None
) -> tuple[Content, str | None]:
    """Return content whose checksum covers inline state too, and why, where an older store wrote it of the rest alone.

    Args:
        content: the content.
        stored: its artifacts by path.
        mixed: the checksum of its inline state and its state artifact together, if it has both.
    """
    manifest, state = content.manifest, stored.get(CheckpointManifest.STATE_PATH)
    if (
        not isinstance(manifest, CheckpointManifest)
        or not state
        or not mixed
        or manifest.state_checksum != state.sha256
    ):
        return content, None
    manifest = manifest.model_copy(update={"state_checksum": mixed})
    text = manifest.canonical()
    told = "its checksum was of the state file alone, and is now of the inline state too"
    return replace(content, manifest=manifest, text=text, sha256=sha256_text(text), keep_raw=True), told


def fault(checkpoint: Checkpoint, content: Content, stored: Mapping[str, Stored], mixed: str | None) -> str | None:
    """Return why validation will not accept a checkpoint, None if it will, chains apart.

    Args:
        checkpoint: as its row would tell it.
        content: its content.
        stored: its artifacts by path.
        mixed: the checksum of its inline state and its state artifact together, if it has both.
    """
    if content.problem or content.manifest is None:
        return content.problem
    kept = {path: as_kept(one) for path, one in stored.items()}
    found = [
        str(issue) for issue in metadata_issues(checkpoint, content.manifest, kept) if issue.severity == "integrity"
    ]
    expected = content.manifest.state_checksum if isinstance(content.manifest, CheckpointManifest) else None
    if mixed and expected and mixed != expected:
        found.append(f"checksum mismatch: state is {mixed}, not {expected}")
    return "; ".join(found) or None


def as_kept(stored: Stored) -> Kept:
    """Return a whole artifact as validation sees it."""
    return Kept(((stored.size, stored.sha256),), True, stored.sha256, frozenset())


def named_files(layout: Layout, candidate: Candidate, parts: Mapping[str, Part]) -> dict[str, str]:
    """Return the files of a checkpoint that are not called as usual, by artifact; the manifest as ''."""
    named = {"": candidate.manifest.path, **{path: part.file.path for path, part in parts.items()}}
    return {path: file for path, file in named.items() if file != usual_file(layout, candidate.key, path)}


def usual_file(layout: Layout, key: str, path: str) -> str:
    """Return what the file of an artifact is usually called; '' is the manifest."""
    if layout is Layout.PARTITIONS and path:
        inner = path.removeprefix(f"{SOURCE}/")
        return f"{key}/{inner}" if inner != path else path
    return layouts.file_name(layout, key, path or None)
