"""What may go: plans with a reason for every checkpoint. Pure: rows in, a plan out; protocol.py executes it."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType

from catalog import chains
from catalog.errors import CheckpointInUseError
from catalog.lifecycle import Checkpoint, History, Status, live_keys
from catalog.policies import Candidates, Last, Policy

PURGE_MARGIN = timedelta(minutes=5)
"""How long after the end of its undo window a trashed checkpoint is purged at the earliest."""
PROMOTION_GRACE = timedelta(hours=1)
"""How long a checkpoint that is not promoted is kept for that."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Which checkpoints stay and which go, and why."""

    trash: dict[str, str]
    """Reason by key of what goes."""
    keep: dict[str, str]
    """Reason by key of what stays."""
    counts_on: Checkpoint | None = None
    """The kept checkpoint that recovery would choose, or the newest kept: the plan holds only while it is unchanged."""


def plan(
    history: History,
    policies: Sequence[Policy],
    now: datetime,
    *,
    sound: Mapping[str, bool] = MappingProxyType({}),
    allow_empty: bool = False,
) -> Plan:
    """Plan to keep what any policy keeps, and besides what is pinned, stood upon, needed to recover, or the last one.

    A checkpoint that waits to be promoted stays for a while, and then goes; policies do not count it.

    Args:
        history: the stream's checkpoints.
        policies: what to keep.
        now: decides what is old, and which pins have expired.
        sound: by key, what validation found of those that it has looked at.
        allow_empty: let even the newest that recovery could choose go, and the last one.
    """
    live = live_keys(history)
    promoted = [history[key] for key in live if history[key].status is not Status.PREPARED]
    candidates = Candidates(promoted, now, frozenset(key for key, found in sound.items() if found))
    reasons: dict[str, list[str]] = defaultdict(list)
    for policy in policies:
        for key, reason in policy.keeps(candidates).items():
            reasons[key].append(reason)
    keep = {key: "; ".join(reasons[key]) for key in live if key in reasons}
    eligible = [key for key in reversed(live) if history[key].eligible]
    # Recovery would pass over one that is damaged.
    undamaged = [key for key in eligible if sound.get(key, True)]
    if eligible and not allow_empty:
        keep.setdefault(eligible[0], "the newest that recovery could choose")
    if undamaged and not allow_empty:
        keep.setdefault(undamaged[0], "the newest that recovery could choose and nobody found damaged")
    keep |= {key: "it may still be promoted" for key in live if _may_be_promoted(history[key], now)}
    keep |= {key: "pinned" for key in live if key not in keep and history[key].pinned(now)}
    if promoted and not allow_empty and not any(one.key in keep for one in promoted):
        keep[promoted[-1].key] = "the last one of its stream"
    for needed, child in chains.needed_by(history, keep).items():
        if needed in live:
            keep.setdefault(needed, f"{history[child].id} stands on it")
    why = "; ".join(policy.otherwise for policy in policies)
    trash = {
        key: "it was never promoted" if history[key].status is Status.PREPARED else why
        for key in live
        if key not in keep
    }
    newest = reversed([one.key for one in promoted if one.key in keep])
    counts_on = next((history[key] for key in (*undamaged[:1], *eligible[:1], *newest) if key in keep), None)
    return Plan(trash, keep, counts_on)


def _may_be_promoted(checkpoint: Checkpoint, now: datetime) -> bool:
    saved = checkpoint.origin.at if checkpoint.origin else now
    return checkpoint.status is Status.PREPARED and saved + PROMOTION_GRACE > now


def keep_newest(history: History, keep_count: int, now: datetime, *, allow_empty: bool = False) -> Plan:
    """Plan to keep the newest checkpoints, and never to lose the newest one that recovery could choose.

    Args:
        history: the stream's checkpoints.
        keep_count: how many of the newest stay.
        now: decides which pins have expired.
        allow_empty: with keep_count 0, let even the recoverable one go.
    """
    return plan(history, [Last(keep_count)], now, allow_empty=allow_empty and keep_count == 0)


def drop(history: History, doomed: Iterable[str], reason: str, now: datetime) -> Plan:
    """Plan to let these checkpoints go.

    Raises:
        CheckpointInUseError: one is pinned, or a live checkpoint outside the plan stands on it.
    """
    doomed = [key for key in doomed if key in history and history[key].live]
    keep = {key: "not asked for" for key in live_keys(history) if key not in doomed}
    needed = chains.needed_by(history, keep)
    for key in doomed:
        if history[key].pinned(now):
            raise CheckpointInUseError(f"checkpoint {history[key].id} is pinned: unpin it first")
        if key in needed:
            child = history[needed[key]].id
            raise CheckpointInUseError(
                f"checkpoint {history[key].id} is needed by the deltas of {child}: delete that first"
            )
    return Plan(dict.fromkeys(doomed, reason), keep, None)


def expired(history: History, now: datetime) -> dict[str, str]:
    """Return the trashed checkpoints that may be purged, with the reason, leaving what an unpurged chain needs."""
    unpurged = [key for key, one in history.items() if one.unpurged]
    due = {
        key
        for key in unpurged
        if history[key].status is Status.TRASHED and (until := history[key].undo_until) and until <= now - PURGE_MARGIN
    }
    needed = chains.needed_by(history, [key for key in unpurged if key not in due])
    why = {key: one.trash.reason for key, one in history.items() if one.trash}
    return {key: f"undo window ended: {why[key]}" for key in sorted(due) if key not in needed}


Planner = Callable[[History, datetime], Plan]
