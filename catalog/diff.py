"""What changed between two checkpoints of a stream. Pure: manifests and chunk hashes in, differences out."""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Literal

from catalog.chunks import Kept
from catalog.handles import ArtifactHandle
from catalog.manifest import CheckpointManifest, CheckpointManifestV2, Manifest, Positions
from catalog.state import CheckpointState

What = Literal["added", "removed", "changed", "same"]


@dataclass(frozen=True, slots=True)
class PartChange:
    """What became of one operator partition's state, of that under one handle, or of the sidecar state."""

    operator: str | None
    """None for the sidecar."""
    partition: int | None
    what: What
    bytes_before: int
    bytes_after: int
    changed_bytes: int
    """In chunks that its operator did not have before."""
    name: str | None = None
    """The handle's, such as `partition-1` or that of a file; None where it has none."""


@dataclass(frozen=True, slots=True)
class PositionMove:
    """A source that stands elsewhere."""

    source: str
    position: str
    before: str | None
    after: str | None

    @property
    def moved_by(self) -> int | None:
        """By how much, if both are numbers."""
        try:
            return int(self.after or "") - int(self.before or "")
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class CheckpointDiff:
    """The differences between two checkpoints."""

    before_id: int | str
    after_id: int | str
    parts: tuple[PartChange, ...]
    """Every operator partition and handle of either, those that are the same included."""
    positions: tuple[PositionMove, ...]
    """Only what moved."""

    @property
    def changed_bytes(self) -> int:
        """Bytes in chunks that were not there before."""
        return sum(part.changed_bytes for part in self.parts)

    def explain(self) -> str:
        """Return the differences as text for people."""
        lines = [
            f"{part.what}: {_name(part)}: {part.bytes_before} -> {part.bytes_after} bytes, {part.changed_bytes} changed"
            for part in self.parts
            if part.what != "same"
        ]
        same = sum(part.what == "same" for part in self.parts)
        if same:
            lines.append(f"same: {same} part{'s' if same > 1 else ''}")
        for move in self.positions:
            where = f"{move.source}/{move.position}" if move.position else move.source
            if move.before is None or move.after is None:
                lines.append(f"new: {where}: {move.after}" if move.before is None else f"gone: {where}: {move.before}")
                continue
            by = f" ({move.moved_by:+d})" if move.moved_by is not None else ""
            lines.append(f"moved: {where}: {move.before} -> {move.after}{by}")
        return "\n".join(lines or [f"{self.before_id} and {self.after_id} hold the same"])


def _name(part: PartChange) -> str:
    if part.operator is None:
        return "state"
    if part.name is not None:
        return f"{part.operator} {part.name}"
    return part.operator if part.partition is None else f"{part.operator} partition {part.partition}"


Chunks = tuple[tuple[int, str], ...]
"""Size and hash of each chunk, in order."""
Part = tuple[str | None, int | None, str | None]
"""Operator, partition and handle, as far as it has them."""
Contents = Mapping[Part, Chunks]
"""What each part of a state consists of."""


def contents(manifest: Manifest, kept: Mapping[str, Kept], state: CheckpointState | None = None) -> Contents:
    """Return the parts of a checkpoint's state.

    Args:
        manifest: its manifest.
        kept: its artifacts by path.
        state: the state itself, where the manifest does not tell its operators (state-v1).
    """
    found: dict[Part, Chunks] = {}
    if isinstance(manifest, CheckpointManifestV2):
        for operator, entry in manifest.entries():
            part = operator, entry.partition_id, None
            # A partition may have a snapshot and deltas on top of it.
            more = kept[entry.path].chunks if entry.path in kept else ((entry.size_bytes, entry.sha256 or ""),)
            found[part] = (*found.get(part, ()), *more)
    elif isinstance(manifest, CheckpointManifest):
        for operator, inline in manifest.operator_states.items():
            data = inline.inline_state(operator)
            if data is not None:
                found[operator, None, None] = (_chunk(data),)
        for operator, handles in manifest.operator_handles.items():
            for name, handle in handles.items():
                stored = kept.get(handle.path) if isinstance(handle, ArtifactHandle) else None
                found[operator, None, name] = stored.chunks if stored else ((handle.size_bytes, handle.sha256),)
        if manifest.STATE_PATH in kept:
            found[None, None, None] = kept[manifest.STATE_PATH].chunks
    elif state is not None:
        found = {(operator, None, None): (_chunk(data),) for operator, data in state.operator_states.items()}
    return found


def _chunk(data: bytes) -> tuple[int, str]:
    return len(data), hashlib.sha256(data).hexdigest()


def compare(
    ids: tuple[int | str, int | str], parts: tuple[Contents, Contents], positions: tuple[Positions, Positions]
) -> CheckpointDiff:
    """Return what differs between a checkpoint and a later one."""
    both = sorted({*parts[0], *parts[1]}, key=str)
    there: dict[str | None, set[str]] = defaultdict(set)
    for (operator, _, _), chunks in parts[0].items():
        there[operator].update(sha for _, sha in chunks)
    changes = [_change(part, parts[0].get(part), parts[1].get(part), there[part[0]]) for part in both]
    moves = [
        PositionMove(*at, positions[0].get(at), positions[1].get(at))
        for at in sorted({*positions[0], *positions[1]})
        if positions[0].get(at) != positions[1].get(at)
    ]
    return CheckpointDiff(*ids, tuple(changes), tuple(moves))


def _change(part: Part, before: Chunks | None, after: Chunks | None, there: Set[str]) -> PartChange:
    sizes = [sum(size for size, _ in chunks or ()) for chunks in (before, after)]
    if before is None or after is None:
        what: What = "added" if before is None else "removed"
    else:
        what = "same" if before == after else "changed"
    new = {sha: size for size, sha in after or () if sha not in there}
    operator, partition, name = part
    return PartChange(operator, partition, what, sizes[0], sizes[1], sum(new.values()), name)
