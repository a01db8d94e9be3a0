"""What can be wrong with a checkpoint: named rules, each a warning or an integrity failure. Pure.

The view validation_issues says the same of metadata in SQL; a test plants every fault once and holds both to it.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from functools import partial
from typing import Literal

from catalog import keys
from catalog.chunks import Kept
from catalog.errors import InvalidInputError
from catalog.lifecycle import Checkpoint
from catalog.manifest import (
    CheckpointManifest,
    CheckpointManifestV2,
    Manifest,
    StateManifest,
    content_sha256,
)
from catalog.stored_json import decode_base64

Severity = Literal["warning", "integrity"]

INTEGRITY = {
    "manifest_missing": "there is no live checkpoint of that id",
    "manifest_unreadable": "the manifest is not what was saved, or is no manifest",
    "id_mismatch": "the manifest is of another checkpoint",
    "id_zero": "checkpoint_id is 0",
    "epoch_zero": "epoch is 0",
    "inline_state_unreadable": "state that rides in the manifest is not base64, or not what its handle says",
    "state_missing": "an artifact that it needs is not there at all",
    "chunk_missing": "an artifact is not there as a whole",
    "holder_missing": "bytes that an earlier checkpoint holds for it are gone",
    "checksum_missing": "its state has no checksum",
    "checksum_mismatch": "bytes are not those that were saved",
    "artifact_mismatch": "an artifact is not the one that the manifest lists",
    "content_mismatch": "the manifest and the hashes of its artifacts are not those that were saved",
    "chain_broken": "a checkpoint that its deltas stand on is gone or has not what they need",
    "revision_gap": "a row of its life is gone",
    "state_unreadable": "a data file that has its artifacts is damaged or gone",
}
WARNINGS = {
    "version_zero": "version is 0",
    "timestamp_zero": "timestamp_ms is 0",
    "sink_without_status": "a sink has an epoch but no commit status",
    "source_unknown": "a source has offsets but is not in source_names",
    "vnode_count_legacy": "vnode_count is 0: a legacy manifest",
    "vnode_count_mismatch": "vnode_count is not the one that is expected",
    "never_written": "it lists artifacts that nobody wrote, and cannot be promoted",
}
RULES: Mapping[str, str] = {**INTEGRITY, **WARNINGS}
"""What each rule means."""


@dataclass(frozen=True, slots=True)
class Issue:
    """One finding."""

    severity: Severity
    rule: str
    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """What validation found; valid means no integrity failure."""

    checkpoint_id: int | str
    issues: tuple[Issue, ...] = ()

    @property
    def valid(self) -> bool:
        """Whether it can be restored from."""
        return not self.failures

    @property
    def failures(self) -> tuple[Issue, ...]:
        """The integrity failures."""
        return tuple(issue for issue in self.issues if issue.severity == "integrity")

    @property
    def warnings(self) -> tuple[Issue, ...]:
        """What is odd but harmless."""
        return tuple(issue for issue in self.issues if issue.severity == "warning")


def failure(rule: str, message: str) -> Issue:
    """Return an integrity failure."""
    return Issue("integrity", rule, message)


def manifest_issues(manifest: Manifest, vnode_count: int | None) -> list[Issue]:
    """Return what a manifest's own fields show."""
    warnings = [Issue("warning", rule, text) for rule, text in _warnings(manifest, vnode_count)]
    return list(_failures(manifest)) + warnings


def _failures(manifest: Manifest) -> Iterable[Issue]:
    if isinstance(manifest, CheckpointManifest) and manifest.checkpoint_id == 0:
        yield failure("id_zero", "checkpoint_id is 0")
    if not isinstance(manifest, StateManifest) and manifest.epoch == 0:
        yield failure("epoch_zero", "epoch is 0")
    inline: list[Callable[[], bytes]] = []
    if isinstance(manifest, CheckpointManifest):
        inline = [read for _, _, read in manifest.inline_parts()]
    elif isinstance(manifest, StateManifest):
        inline = [partial(decode_base64, manifest.state_b64 or "", "state_b64")]
    for read in inline:
        try:
            read()
        except InvalidInputError as error:
            yield failure("inline_state_unreadable", str(error))


def _warnings(manifest: Manifest, vnode_count: int | None) -> Iterable[tuple[str, str]]:
    if manifest.version == 0:
        yield "version_zero", "version is 0"
    if isinstance(manifest, StateManifest):
        return
    if manifest.timestamp_ms == 0:
        yield "timestamp_zero", "timestamp_ms is 0"
    if isinstance(manifest, CheckpointManifestV2):
        return
    if manifest.sink_commit_statuses:
        for sink in sorted(set(manifest.sink_epochs) - set(manifest.sink_commit_statuses)):
            yield "sink_without_status", f"sink {sink!r} has an epoch but no commit status"
    if manifest.source_names:
        for source in sorted(set(manifest.source_offsets) - set(manifest.source_names)):
            yield "source_unknown", f"source {source!r} has offsets but is not in source_names"
    if manifest.vnode_count == 0:
        yield "vnode_count_legacy", "vnode_count is 0: a legacy manifest"
    elif vnode_count not in (None, manifest.vnode_count):
        yield "vnode_count_mismatch", f"vnode_count is {manifest.vnode_count}, {vnode_count} is expected"


def never_written(checkpoint: Checkpoint) -> set[str]:
    """Return the paths that a checkpoint lists but that nobody had written when it was saved."""
    details = checkpoint.origin.details if checkpoint.origin else None
    return set(json.loads(details).get("missing", ())) if details else set()


def needed_paths(checkpoint: Checkpoint, manifest: Manifest) -> set[str]:
    """Return the paths of the artifacts without which a checkpoint cannot be restored."""
    match manifest:
        case CheckpointManifestV2():
            return {entry.path for _, entry in manifest.entries()} - never_written(checkpoint)
        case StateManifest():
            return {manifest.STATE_PATH} if manifest.state_b64 is None else set()
        case CheckpointManifest():
            needs_it = _has_state(checkpoint, manifest) or (manifest.expects_state and not is_inline(manifest))
            return {*manifest.artifact_handles(), *([manifest.STATE_PATH] if needs_it else [])}


def written_paths(checkpoint: Checkpoint, manifest: Manifest) -> set[str]:
    """Return the paths of the artifacts that it had when it was saved, and of what they were folded into."""
    own = needed_paths(checkpoint, manifest)
    if isinstance(manifest, CheckpointManifest) and not _has_state(checkpoint, manifest):
        own -= {manifest.STATE_PATH}  # expected, and never staged
    return own | {fold.path for fold in checkpoint.folded.values()}


def metadata_issues(
    checkpoint: Checkpoint,
    manifest: Manifest,
    kept: Mapping[str, Kept],
    *,
    holders: Set[tuple[str, str, str]] = frozenset(),
    vnode_count: int | None = None,
) -> list[Issue]:
    """Return what is wrong with a checkpoint, as far as its rows tell without the bytes.

    Args:
        checkpoint: with its manifests.
        manifest: its manifest.
        kept: the artifacts of its attempts, by path.
        holders: key, attempt and hash of the rows that hold borrowed chunks and are there.
        vnode_count: what is expected, if anything is.
    """
    issues = manifest_issues(manifest, vnode_count)
    if manifest.key != checkpoint.key:
        issues.append(failure("id_mismatch", f"the manifest is of checkpoint {keys.checkpoint_id(manifest.key)}"))
    issues += _artifact_issues(checkpoint, manifest, kept, holders)
    if not checkpoint.gapless:
        issues.append(failure("revision_gap", "a row of its life is gone"))
    if lost := sorted(never_written(checkpoint)):
        issues.append(Issue("warning", "never_written", f"it cannot be promoted: {lost[0]} was never written"))
    return issues


def _artifact_issues(
    checkpoint: Checkpoint, manifest: Manifest, kept: Mapping[str, Kept], holders: Set[tuple[str, str, str]]
) -> Iterable[Issue]:
    own = needed_paths(checkpoint, manifest)
    needed = own | {fold.path for fold in checkpoint.folded.values()}
    missing = sorted(needed - kept.keys())
    partial = sorted(path for path in needed & kept.keys() if not kept[path].complete)
    if missing:
        yield failure("state_missing", f"state data is missing: {missing[0]}")
    if partial:
        yield failure("chunk_missing", f"an artifact is incomplete: {partial[0]}")
    for path in sorted(needed & kept.keys()):
        if lost := sorted(kept[path].held - holders):
            yield failure("holder_missing", f"bytes that checkpoint {lost[0][0]} holds for {path} are gone")
    if isinstance(manifest, CheckpointManifest):
        yield from _checksum_issues(checkpoint, manifest, kept)
    folds = [(fold.operator, fold.path, fold.size_bytes, fold.sha256) for fold in checkpoint.folded.values()]
    for operator, path, size, sha256 in [*_listed(manifest), *folds]:
        found = kept.get(path)
        if found and found.complete and (size, sha256 or found.sha256) != (found.size, found.sha256):
            yield failure("artifact_mismatch", f"operator {operator!r}: {path} is not what the manifest lists")
    origin = checkpoint.origin
    if not missing and not partial and origin and origin.manifest is not None:
        hashes = {path: one.sha256 or "" for path, one in kept.items() if path in own}
        if content_sha256(origin.manifest, hashes) != origin.content_sha256:
            yield failure("content_mismatch", "the manifest and its artifacts' hashes are not those that were saved")


def _listed(manifest: Manifest) -> Iterable[tuple[str, str, int, str | None]]:
    """Yield operator, path, size and hash of the artifacts that a manifest lists."""
    if isinstance(manifest, CheckpointManifestV2):
        yield from ((name, entry.path, entry.size_bytes, entry.sha256) for name, entry in manifest.entries())
    elif isinstance(manifest, CheckpointManifest):
        handles = manifest.artifact_handles().items()
        yield from ((operator, path, one.size_bytes, one.sha256) for path, (operator, _, one) in handles)


def _checksum_issues(checkpoint: Checkpoint, manifest: CheckpointManifest, kept: Mapping[str, Kept]) -> Iterable[Issue]:
    staged = _has_state(checkpoint, manifest)
    state = kept.get(manifest.STATE_PATH)
    if staged and manifest.state_checksum is None:
        yield failure("checksum_missing", "the state has no checksum")
    elif not staged and manifest.expects_state and is_inline(manifest):
        yield failure("checksum_mismatch", "checksum mismatch: the inline state is not what was saved")
    elif state and state.complete and not manifest.inline_hash() and state.sha256 != manifest.state_checksum:
        problem = f"checksum mismatch: state is {state.sha256}, not {manifest.state_checksum}"
        yield failure("checksum_mismatch", problem)


def _has_state(checkpoint: Checkpoint, manifest: CheckpointManifest) -> bool:
    """Whether it was saved with a state artifact, besides those of its handles."""
    count = checkpoint.origin.artifact_count if checkpoint.origin else None
    return (count or 0) > len(manifest.artifact_handles())


def is_inline(manifest: CheckpointManifest) -> bool:
    """Whether all its state rides in the manifest."""
    return manifest.inline_hash() is not None and not any(one.external for one in manifest.operator_states.values())
