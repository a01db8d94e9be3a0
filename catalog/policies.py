"""What to keep: small policies, any of which keeps a checkpoint, each with its reason. Pure."""

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

from catalog import keys
from catalog.errors import InvalidInputError
from catalog.lifecycle import Checkpoint

LONGEST_SPAN = timedelta(days=36_500)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True, slots=True)
class Candidates:
    """What policies choose among."""

    live: Sequence[Checkpoint]
    """Oldest first; with their manifests where a policy looks into them."""
    now: datetime
    verified: frozenset[str] = frozenset()
    """Keys of those that validation last found sound, all hashes read."""


class Policy(Protocol):
    """Keeps some checkpoints."""

    def keeps(self, candidates: Candidates) -> dict[str, str]:
        """Return the reason by key of those that it keeps."""

    @property
    def otherwise(self) -> str:
        """Why one that it does not keep may go, as far as this policy goes."""


@dataclass(frozen=True, slots=True)
class Last:
    """Keeps the newest ones."""

    count: int

    def __post_init__(self) -> None:
        keys.u64(self.count, "last")

    def keeps(self, candidates: Candidates) -> dict[str, str]:
        """See Policy."""
        newest = candidates.live[max(len(candidates.live) - self.count, 0) :]
        return {one.key: f"one of the newest {self.count}" for one in newest}

    @property
    def otherwise(self) -> str:
        """See Policy."""
        return f"not one of the newest {self.count}"


@dataclass(frozen=True, slots=True)
class Every:
    """Keeps every n-th: those whose id, or epoch where ids are UUIDs, can be divided by n."""

    nth: int

    def __post_init__(self) -> None:
        keys.u64(self.nth, "every", minimum=1)

    def keeps(self, candidates: Candidates) -> dict[str, str]:
        """See Policy."""
        return {
            one.key: f"its number can be divided by {self.nth}"
            for one in candidates.live
            if self._number(one) % self.nth == 0
        }

    @staticmethod
    def _number(checkpoint: Checkpoint) -> int:
        if isinstance(checkpoint.id, int):
            return checkpoint.id
        return int((checkpoint.origin and checkpoint.origin.epoch) or 0)

    @property
    def otherwise(self) -> str:
        """See Policy."""
        return f"its number cannot be divided by {self.nth}"


@dataclass(frozen=True, slots=True)
class Within:
    """Keeps those that were saved not longer ago than this."""

    span: timedelta

    def __post_init__(self) -> None:
        if not check_span(self.span, "within"):
            raise InvalidInputError("within must be a length of time above 0")

    def keeps(self, candidates: Candidates) -> dict[str, str]:
        """See Policy."""
        since = candidates.now - self.span
        return {
            one.key: f"saved within {_words(self.span)}"
            for one in candidates.live
            if (_saved_at(one) or since) >= since
        }

    @property
    def otherwise(self) -> str:
        """See Policy."""
        return f"saved longer than {_words(self.span)} ago"


class Period(StrEnum):
    """Calendar periods, in UTC; weeks begin on Monday."""

    HOURLY = "hourly"
    DAILY = "daily"
    WEEKLY = "weekly"
    MONTHLY = "monthly"

    def of(self, moment: datetime) -> str:
        """Return the period that a moment is in, as text that sorts by age."""
        if self is Period.WEEKLY:
            year, week, _ = moment.isocalendar()
            return f"{year:04d} week {week:02d}"
        formats = {Period.HOURLY: "%Y-%m-%d %H:00", Period.DAILY: "%Y-%m-%d", Period.MONTHLY: "%Y-%m"}
        return moment.strftime(formats[self])


@dataclass(frozen=True, slots=True)
class Newest:
    """Keeps the newest of each of the last so many hours, days, weeks or months that have any."""

    period: Period
    count: int

    def __post_init__(self) -> None:
        if self.period not in set(Period):
            raise InvalidInputError(f"a period is one of {', '.join(Period)}, not {self.period!r}")
        object.__setattr__(self, "period", Period(self.period))
        keys.u64(self.count, self.period, minimum=1)

    def keeps(self, candidates: Candidates) -> dict[str, str]:
        """See Policy."""
        newest = {self.period.of(at): one.key for one in candidates.live if (at := _saved_at(one))}
        return {newest[period]: f"{self.period}: newest of {period}" for period in sorted(newest)[-self.count :]}

    @property
    def otherwise(self) -> str:
        """See Policy."""
        return f"not the newest of one of the last {self.count}, {self.period}"


@dataclass(frozen=True, slots=True)
class Best:
    """Keeps those with the highest, or lowest, number at a place in the manifest, such as metadata.accuracy."""

    count: int
    by: str
    lowest: bool = False

    def __post_init__(self) -> None:
        keys.u64(self.count, "best", minimum=1)
        if not keys.text(self.by, "by"):
            raise InvalidInputError("best needs `by`, a place in the manifest such as metadata.accuracy")
        _flag(self.lowest, "lowest")

    def keeps(self, candidates: Candidates) -> dict[str, str]:
        """See Policy; of equal ones the newest."""
        numbers = [(number, one.key) for one in candidates.live if (number := self._number(one)) is not None]
        numbers.sort(key=lambda pair: (-pair[0] if self.lowest else pair[0], pair[1]), reverse=True)
        which = "lowest" if self.lowest else "highest"
        return {
            key: f"one of the {self.count} {which} by {self.by}: {number:g}" for number, key in numbers[: self.count]
        }

    def _number(self, checkpoint: Checkpoint) -> float | None:
        """Return the number, None where there is none or the manifest cannot be read."""
        try:
            found = json.loads((checkpoint.content and checkpoint.content.manifest) or "null")
        except ValueError:
            return None
        for name in self.by.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        if isinstance(found, bool) or not isinstance(found, int | float):
            return None
        try:
            number = float(found)
        except OverflowError:
            return None
        return number if math.isfinite(number) else None

    @property
    def otherwise(self) -> str:
        """See Policy."""
        return f"not one of the best {self.count} by {self.by}"


@dataclass(frozen=True, slots=True)
class LastCommitted:
    """Keeps the newest that all sinks have committed."""

    def keeps(self, candidates: Candidates) -> dict[str, str]:
        """See Policy."""
        newest = next((one for one in reversed(candidates.live) if one.eligible), None)
        return {newest.key: "the newest that all sinks have committed"} if newest else {}

    @property
    def otherwise(self) -> str:
        """See Policy."""
        return "not the newest that all sinks have committed"


@dataclass(frozen=True, slots=True)
class LastValidated:
    """Keeps the newest that validation has found sound, all hashes read."""

    def keeps(self, candidates: Candidates) -> dict[str, str]:
        """See Policy."""
        newest = next((one for one in reversed(candidates.live) if one.key in candidates.verified), None)
        return {newest.key: "the newest that was validated"} if newest else {}

    @property
    def otherwise(self) -> str:
        """See Policy."""
        return "not the newest that was validated"


def _words(span: timedelta) -> str:
    """Return a length of time for people, in the largest unit of which it is a whole number."""
    for name, unit in (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1)):
        number, rest = divmod(span, timedelta(seconds=unit))
        if not rest:
            return f"{number} {name}" if number == 1 else f"{number} {name}s"
    return f"{span.total_seconds()} seconds"


def _saved_at(checkpoint: Checkpoint) -> datetime | None:
    return checkpoint.origin.at if checkpoint.origin else None


# -- from a file -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Retention:
    """What is kept of the streams that a pattern names."""

    policies: tuple[Policy, ...]
    streams: str = "*"
    """A pattern as file names have it; the first that fits a stream counts."""
    undo_for: timedelta = timedelta(days=7)
    allow_empty: bool = False
    """Let even the last checkpoint that recovery could choose go."""

    def __post_init__(self) -> None:
        keys.text(self.streams, "streams")
        check_span(self.undo_for, "undo_for")
        _flag(self.allow_empty, "allow_empty")
        if not self.policies:
            raise InvalidInputError(
                f"the retention of streams {self.streams!r} keeps nothing: give at least one policy"
            )

    def fits(self, stream: str) -> bool:
        """Say whether it is meant for a stream."""
        return fnmatchcase(stream, self.streams)


@dataclass(frozen=True, slots=True)
class _Table:
    """What a [[retention]] of a TOML file may say."""

    streams: str = "*"
    last: int | None = None
    every: int | None = None
    within: str | None = None
    hourly: int | None = None
    daily: int | None = None
    weekly: int | None = None
    monthly: int | None = None
    best: list[Mapping[str, Any]] = field(default_factory=list)
    last_committed: bool = False
    last_validated: bool = False
    undo_for: str = "7d"
    allow_empty: bool = False


def read_policies(file: str | Path) -> list[Retention]:
    """Return what a TOML file says: one [[retention]] for each pattern of stream names.

    Raises:
        InvalidInputError: the file cannot be read, or says something that is no policy; it tells where.
    """
    try:
        parsed = tomllib.loads(Path(file).read_text("utf-8"))
    except OSError as error:
        raise InvalidInputError(f"{file}: {error.strerror or error}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidInputError(f"{file}: {error}") from error
    tables = parsed.pop("retention", None)
    if parsed or not isinstance(tables, list) or not all(isinstance(one, dict) for one in tables):
        raise InvalidInputError(f"{file}: it must have tables [[retention]], and nothing else")
    if not tables:
        raise InvalidInputError(f"{file}: it keeps nothing: give at least one [[retention]]")
    found = []
    for number, table in enumerate(tables, 1):
        try:
            found.append(_retention(table))
        except (InvalidInputError, TypeError, ValueError) as error:
            raise InvalidInputError(f"{file}: [[retention]] number {number}: {error}") from error
    return found


def _retention(table: Mapping[str, Any]) -> Retention:
    if unknown := sorted(table.keys() - {one.name for one in fields(_Table)}):
        known = ", ".join(one.name for one in fields(_Table))
        raise InvalidInputError(f"{unknown[0]!r} is not known; known are {known}")
    told = _Table(**table)
    policies: list[Policy] = []
    if told.last is not None:
        policies.append(Last(told.last))
    if told.every is not None:
        policies.append(Every(told.every))
    if told.within is not None:
        policies.append(Within(span(told.within)))
    policies += [Newest(one, count) for one in Period if (count := getattr(told, one)) is not None]
    policies += [Best(**one) for one in told.best]
    policies += [LastCommitted()] if _flag(told.last_committed, "last_committed") else []
    policies += [LastValidated()] if _flag(told.last_validated, "last_validated") else []
    return Retention(tuple(policies), told.streams, span(told.undo_for), told.allow_empty)


def span(text: str) -> timedelta:
    """Return a length of time such as 90s, 15m, 36h, 7d or 2w."""
    found = re.fullmatch(r"([0-9]{1,9})\s*([smhdw])", text) if isinstance(text, str) else None
    if not found:
        raise InvalidInputError(f"a length of time is a number with s, m, h, d or w, such as 36h, not {text!r}")
    unit = timedelta(**{_UNITS[found[2]]: 1})
    if int(found[1]) > LONGEST_SPAN / unit:
        raise InvalidInputError(f"a length of time is at most {LONGEST_SPAN.days}d, not {text!r}")
    return int(found[1]) * unit


def check_span(span: object, what: str, longest: timedelta = LONGEST_SPAN) -> timedelta:
    """Return a length of time; refuse what is none, or one that is too long, by default for any calendar to add."""
    if not isinstance(span, timedelta) or not timedelta(0) <= span <= longest:
        raise InvalidInputError(f"{what} must be a timedelta from 0 to {longest.days} days, not {span!r}")
    return span


def _flag(value: object, what: str) -> bool:
    """Return a yes or no; text that says "no" would count as yes."""
    if not isinstance(value, bool):
        raise InvalidInputError(f"{what} must be true or false, not {value!r}")
    return value
