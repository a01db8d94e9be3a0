"""Delta chains: which checkpoints stand on which. Pure."""

from collections.abc import Callable, Iterable, Sequence

from catalog.errors import ArtifactNotFoundError, BrokenChainError
from catalog.lifecycle import Checkpoint, Folded, History
from catalog.manifest import CheckpointManifestV2, PartitionEntry


def ancestors(history: History, key: str) -> list[str]:
    """Return the keys that a checkpoint's deltas stand on, nearest first; stops at one that is not there."""
    found = {key: None}
    checkpoint = history.get(key)
    while checkpoint and checkpoint.parent and checkpoint.parent not in found:
        found[checkpoint.parent] = None
        checkpoint = history.get(checkpoint.parent)
    return list(found)[1:]


def needed_by(history: History, keys: Iterable[str]) -> dict[str, str]:
    """Return every key that some of these keys stand on, with the one that needs it."""
    found: dict[str, str] = {}
    for key in reversed(list(keys)):
        for ancestor in ancestors(history, key):
            if ancestor in found:
                break  # and so is all that it stands on
            found[ancestor] = key
    return found


def links(
    line: Sequence[str],
    history: History,
    parse: Callable[[Checkpoint], CheckpointManifestV2],
    operator: str,
    partition: int,
) -> list[tuple[str, PartitionEntry]]:
    """Return a partition's artifacts in the order to apply them: the snapshot, then the deltas, each with its key.

    What a chain up to a checkpoint was folded into stands for all of that.

    Args:
        line: the checkpoint, and what it stands on, nearest first.
        history: those checkpoints, as far as they are there.
        parse: gives the manifest of one.
        operator: the operator.
        partition: its partition.

    Raises:
        ArtifactNotFoundError: the checkpoint has nothing of that partition.
        BrokenChainError: a parent is missing, or does not hold what a delta stands on.
    """
    broken = f"the chain of {operator!r} partition {partition} of checkpoint {line[0]} is broken:"
    found: list[tuple[str, PartitionEntry]] = []
    for key in line:
        checkpoint = history.get(key)
        if checkpoint is None or not (checkpoint.live if key == line[0] else checkpoint.there):
            what = f"is {checkpoint.status}" if checkpoint else "does not exist"
            raise BrokenChainError(f"{broken} its parent {key} {what}")
        if fold := checkpoint.folded.get((operator, partition)):
            return [(key, folded_entry(fold)), *found]
        entries = parse(checkpoint).partition(operator, partition)
        if not entries:
            if key == line[0]:
                raise ArtifactNotFoundError(f"checkpoint {key} has no artifact of {operator!r} partition {partition}")
            raise BrokenChainError(f"{broken} its parent {key} has nothing of that partition")
        found = [(key, entry) for entry in entries] + found
        if not entries[0].is_delta:
            return found
    raise BrokenChainError(f"{broken} it has no snapshot")


def folded_entry(fold: Folded) -> PartitionEntry:
    """Return a folded snapshot as a manifest would list it."""
    return PartitionEntry(
        partition_id=fold.partition, is_delta=False, path=fold.path, size_bytes=fold.size_bytes, sha256=fold.sha256
    )
