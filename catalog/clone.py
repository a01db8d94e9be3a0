"""A copy of a catalog, or of one moment of it, in another catalog: rows as they were, bytes verified on the way.

`checkpoints` is read first, `artifacts` after. A stream appears in the copy by one commit, after all its bytes.
Borrowed chunks become the copy's own bytes, so that nothing depends on what was left behind. Attempts stay as they
were, because handles name them; so a copy that died is taken up again, and what it has written is not written twice.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from catalog import artifacts, chains, cutting, lifecycle
from catalog.errors import CheckpointExistsError, CorruptError
from catalog.lifecycle import Checkpoint
from catalog.protocol import Stream
from catalog.tables.port import Condition, Equals, In, Outcome, Table, Unless


@dataclass(frozen=True, slots=True)
class CopiedStream:
    """What was copied of a stream."""

    stream: str
    checkpoints: int
    """Live or in the trash."""
    bytes: int


_Place = tuple[str, str, int, str]
"""Attempt, path and number of a chunk, and its hash."""


def copy_stream(source: Stream, target: Stream) -> CopiedStream:
    """Copy a stream's checkpoints with all revisions, and the bytes of those that are live or in the trash.

    Args:
        source: the stream, as it is now or was at a moment.
        target: the stream of the same name in the other catalog, which must not have any row.

    Raises:
        CheckpointExistsError: the target has rows already, perhaps since a clean-up took this copy for given up.
        CorruptError: bytes are not what was saved; nothing appears in the copy.
        PurgedError: bytes have been purged since that moment.
    """
    revisions = source.revisions()
    history = lifecycle.fold(revisions)  # of one read: what is purged meanwhile must fail, not come without bytes
    if target.highest_key() is not None:
        raise CheckpointExistsError(
            f"the other catalog already has checkpoints of stream {source.label!r}: copy into a new catalog",
            stream=source.label,
        )
    kept = {key for key, one in history.items() if one.unpurged}
    # One that was purged just when another came to stand on it is still needed.
    needed = kept | {key for key in chains.needed_by(history, kept) if key in history}
    there = {_place(row) for row in artifacts.facts(target.engine, target.stream, [])}
    size = sum(_copy_artifacts(source, target, history[key], there) for key in sorted(needed))
    # The copy holds all its bytes itself.
    own = [replace(one, shared_bytes=0) if one.shared_bytes else one for one in revisions]
    # All of it or nothing: a clean-up of the other catalog may have closed an id whose bytes waited for too long.
    for outcome in target.insert(own, [Unless(revision_above=-1)]):
        if outcome is not Outcome.INSERTED:
            raise CheckpointExistsError(
                f"somebody else wrote stream {source.label!r} into the other catalog meanwhile, or cleaned it up: "
                "nothing of it was copied, copy into a new catalog",
                stream=source.label,
            )
    return CopiedStream(source.label, len(kept), size)


def _copy_artifacts(source: Stream, target: Stream, checkpoint: Checkpoint, there: Set[_Place]) -> int:
    """Copy the artifacts of a checkpoint under the same attempts, and return their size."""
    if not checkpoint.attempts:
        source.refuse_purged_since(checkpoint.key)
        return 0
    of_attempts: list[Condition] = [Equals("checkpoint_key", checkpoint.key), In("attempt", checkpoint.attempts)]
    rows = artifacts.facts(source.engine, source.stream, of_attempts)
    paths = sorted({row["path"] for row in rows})
    if len(paths) < sum(row.artifact_count or 0 for row in (checkpoint.origin, *checkpoint.folds) if row):
        present = source.now(checkpoint.key)
        if present is not None and not present.unpurged:
            raise source.closed(present)
        raise CorruptError(f"stream {source.label!r}: checkpoint {checkpoint.id} lacks artifacts", stream=source.label)
    return sum(_copy_artifact(source, target, checkpoint, path, rows, there) for path in paths)


def _copy_artifact(
    source: Stream,
    target: Stream,
    checkpoint: Checkpoint,
    path: str,
    facts: Sequence[dict[str, Any]],
    there: Set[_Place],
) -> int:
    # The copy's clock: to its clean-up bytes that were staged long ago are left of a save that was given up.
    here = {"held_key": None, "held_attempt": None, "held_no": None, "via": None, "staged_at": target.clock()}
    by_number = {row["chunk_no"]: row for row in facts if row["path"] == path}
    size = 0
    batch: list[dict[str, Any]] = []
    for number, chunk in zip(count(), source.stream_chunks(checkpoint.key, path, from_trash=True), strict=False):
        size += len(chunk)
        if _place(by_number[number]) in there:
            continue
        batch.append({**by_number[number], **here, "data": chunk})
        if len(batch) == cutting.BATCH_CHUNKS:
            target.engine.append(Table.ARTIFACTS, [artifacts.as_table(batch)])
            batch = []
    if batch:
        target.engine.append(Table.ARTIFACTS, [artifacts.as_table(batch)])
    return size


def _place(row: Mapping[str, Any]) -> _Place:
    return row["attempt"], row["path"], row["chunk_no"], row["chunk_sha256"]
