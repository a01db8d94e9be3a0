"""What a report tells: the rows of the three tables, brought together by stream. Pure: rows in, facts out."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from catalog import keys
from catalog.lifecycle import Checkpoint, History, Status
from catalog.prune import RetentionReport
from catalog.validation import INTEGRITY, WARNINGS, Issue, Severity
from catalog.verify import Depth, event_details

MIB = 1 << 20

Key = tuple[str, str]
"""Stream and checkpoint_key."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What a verification recorded about a checkpoint."""

    at: datetime
    depth: str
    valid: bool
    rules: tuple[str, ...]
    """The rules that it broke."""


@dataclass(frozen=True, slots=True)
class Drilled:
    """What a restore drill recorded."""

    stream: str
    checkpoint_id: int | str
    at: datetime
    restored: bool
    bytes: int
    seconds: float | None
    """Until its state was on the disk; None if it never was."""
    error: str | None

    @property
    def mib_per_second(self) -> float | None:
        """How fast it was; None if it failed, or there was nothing to measure."""
        return self.bytes / MIB / self.seconds if self.restored and self.seconds and self.bytes else None


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is wrong with a checkpoint, or odd."""

    severity: Severity
    rule: str
    message: str
    recorded_at: datetime | None = None
    """When a verification by hash recorded it; None if its rows show it now."""


@dataclass(frozen=True, slots=True)
class OperatorSize:
    """What a checkpoint has of one operator."""

    bytes: int
    new_bytes: int
    """Of these, what was written for this checkpoint."""


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """One checkpoint that is live or in the trash."""

    stream: str
    checkpoint: Checkpoint
    faults: tuple[Fault, ...] = ()
    verified: Verified | None = None
    """The last verification, at whatever depth."""
    hashed: Verified | None = None
    """The last one by hash."""
    drill: Drilled | None = None
    """The last one."""
    operators: Mapping[str, OperatorSize] = field(default_factory=dict)

    @property
    def id(self) -> int | str:
        """The id that people see."""
        return self.checkpoint.id

    @property
    def saved_at(self) -> datetime:
        """When it was saved."""
        return (self.checkpoint.origin or self.checkpoint.head).at

    @property
    def bytes(self) -> int:
        """Size of its artifacts as its producer wrote them."""
        return int((self.checkpoint.origin and self.checkpoint.origin.artifact_bytes) or 0)

    @property
    def new_bytes(self) -> int:
        """Of these, what was written for it; an earlier checkpoint already held the others."""
        return self.bytes - int((self.checkpoint.origin and self.checkpoint.origin.shared_bytes) or 0)

    @property
    def broken(self) -> tuple[Fault, ...]:
        """The integrity failures."""
        return tuple(one for one in self.faults if one.severity == "integrity")

    @property
    def proven(self) -> bool:
        """Whether its last drill restored it."""
        return self.drill is not None and self.drill.restored


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """One stream."""

    name: str
    checkpoints: tuple[CheckpointFacts, ...]
    """Live and trashed, oldest first."""
    drills: tuple[Drilled, ...] = ()
    """Oldest first, of checkpoints that are gone too."""
    stored_bytes: int | None = None
    """What its artifacts take in the table, each chunk once, whoever needs it; None if that cannot be read."""

    @property
    def live(self) -> list[CheckpointFacts]:
        """Committed, or waiting to be promoted."""
        return [one for one in self.checkpoints if one.checkpoint.live]

    @property
    def committed(self) -> list[CheckpointFacts]:
        """Those that recovery may look at."""
        return [one for one in self.checkpoints if one.checkpoint.status is Status.COMMITTED]

    @property
    def prepared(self) -> list[CheckpointFacts]:
        """Those that wait to be promoted."""
        return [one for one in self.checkpoints if one.checkpoint.status is Status.PREPARED]

    @property
    def trashed(self) -> list[CheckpointFacts]:
        """Those in the trash."""
        return [one for one in self.checkpoints if one.checkpoint.status is Status.TRASHED]

    @property
    def latest(self) -> CheckpointFacts | None:
        """The newest committed one."""
        return self.committed[-1] if self.committed else None

    @property
    def choice(self) -> CheckpointFacts | None:
        """What recovery would choose, as far as is known without reading bytes."""
        return next((one for one in reversed(self.live) if one.checkpoint.eligible and not one.broken), None)

    @property
    def broken(self) -> list[CheckpointFacts]:
        """Live ones with an integrity failure."""
        return [one for one in self.live if one.broken]

    @property
    def odd(self) -> list[CheckpointFacts]:
        """Live ones with a warning."""
        return [one for one in self.live if len(one.faults) > len(one.broken)]

    @property
    def unproven(self) -> list[CheckpointFacts]:
        """Committed ones that no drill has restored, or the last one could not; oldest first."""
        return [one for one in self.committed if not one.proven]

    @property
    def bytes(self) -> int:
        """Size of the artifacts of live checkpoints, shared ones counted for each."""
        return sum(one.checkpoint.bytes for one in self.live)

    @property
    def usual_interval(self) -> timedelta | None:
        """How long it usually was from one of the newest checkpoints to the next; None if there are too few."""
        times = [one.saved_at for one in self.checkpoints][-21:]
        if len(times) < 5:
            return None
        return timedelta(seconds=statistics.median((after - at).total_seconds() for at, after in pairwise(times)))


@dataclass(frozen=True, slots=True)
class Report:
    """All that a page shows."""

    place: str
    made_at: datetime
    streams: tuple[StreamFacts, ...]
    retention: RetentionReport | None = None
    """What the policies would do; None if none were given."""
    unplanned: Mapping[str, str] = field(default_factory=dict)
    """Why there is no plan, by stream for which it could not be made."""
    unreadable: tuple[str, ...] = ()
    """What could not be read, and is therefore not in the report."""

    @property
    def checkpoints(self) -> list[CheckpointFacts]:
        """All that are live or in the trash."""
        return [one for stream in self.streams for one in stream.checkpoints]

    @property
    def oldest_unproven(self) -> CheckpointFacts | None:
        """The committed checkpoint that has waited longest to be restored by a drill."""
        waiting = [one for stream in self.streams for one in stream.unproven]
        return min(waiting, key=lambda one: one.saved_at, default=None)


def bring_together(
    histories: Mapping[str, History],
    *,
    issues: Mapping[Key, Sequence[Issue]],
    events: Iterable[Mapping[str, Any]],
    operators: Mapping[Key, Mapping[str, OperatorSize]],
    stored_bytes: Mapping[str, int],
) -> tuple[StreamFacts, ...]:
    """Return the facts of each stream, by name.

    Args:
        histories: all checkpoints, by the names of their streams.
        issues: what validation finds now.
        events: rows of `events`, streams as they are stored.
        operators: sizes by checkpoint.
        stored_bytes: by stream, which may have no checkpoint yet.
    """
    verified, drills = _events(events)
    by_stream = defaultdict[str, list[Drilled]](list)
    for (name, _), some in drills.items():
        by_stream[name] += some
    return tuple(
        StreamFacts(
            name,
            tuple(
                _checkpoint(name, one, issues.get((name, key), ()), verified.get((name, key), []), drills, operators)
                for key, one in histories.get(name, {}).items()
                if one.unpurged
            ),
            tuple(sorted(by_stream[name], key=lambda one: one.at)),
            stored_bytes.get(name),
        )
        for name in sorted({*histories, *stored_bytes, *by_stream})
    )


def _checkpoint(
    stream: str,
    checkpoint: Checkpoint,
    issues: Sequence[Issue],
    verified: Sequence[Verified],
    drills: Mapping[Key, Sequence[Drilled]],
    operators: Mapping[Key, Mapping[str, OperatorSize]],
) -> CheckpointFacts:
    key = stream, checkpoint.key
    found = [Fault(one.severity, one.rule, one.message) for one in issues]
    hashed = next((one for one in reversed(verified) if one.depth == Depth.HASHES), None)
    if hashed and not hashed.valid:  # a look at metadata does not take back what reading the bytes has shown
        unseen = sorted(set(hashed.rules) - WARNINGS.keys() - {one.rule for one in issues})
        found += [Fault("integrity", rule, INTEGRITY.get(rule, "not known here"), hashed.at) for rule in unseen]
    return CheckpointFacts(
        stream,
        checkpoint,
        tuple(found),
        verified[-1] if verified else None,
        hashed,
        drills[key][-1] if key in drills else None,
        operators.get(key, {}),
    )


def _events(rows: Iterable[Mapping[str, Any]]) -> tuple[dict[Key, list[Verified]], dict[Key, list[Drilled]]]:
    """Return verifications and drills by checkpoint, oldest first; what is no such event is passed over."""
    verified, drills = defaultdict[Key, list[Verified]](list), defaultdict[Key, list[Drilled]](list)
    for row in sorted(rows, key=lambda row: row["at"]):
        stream, key = keys.stream_label(row["stream"]), row["checkpoint_key"]
        try:
            told = event_details(row["details"])
            match row["event"]:
                case "verified":
                    one = Verified(row["at"], told["depth"], told["valid"], tuple(told["rules"]))
                    verified[stream, key].append(one)
                case "drilled":
                    times = told["seconds"], told["error"]
                    drill = Drilled(stream, keys.checkpoint_id(key), row["at"], told["restored"], told["bytes"], *times)
                    drills[stream, key].append(drill)
        except (KeyError, TypeError):
            continue  # anybody may append to an audit trail
    return dict(verified), dict(drills)
