"""Delta chains: which checkpoints stand on which. Pure."""

from collections.abc import Iterable

from catalog.lifecycle import History


def ancestors(history: History, key: str) -> list[str]:
    """Return the keys that a checkpoint's deltas stand on, nearest first; stops at one that is not there."""
    found: list[str] = []
    checkpoint = history.get(key)
    while checkpoint and checkpoint.parent and checkpoint.parent not in (key, *found):
        found.append(checkpoint.parent)
        checkpoint = history.get(checkpoint.parent)
    return found


def needed_by(history: History, keys: Iterable[str]) -> dict[str, str]:
    """Return every key that some of these keys stand on, with the one that needs it."""
    return {ancestor: key for key in keys for ancestor in ancestors(history, key)}
