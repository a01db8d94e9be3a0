"""Which checkpoint to restore from: newest to oldest, each with the reason why it was passed over. Pure."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from catalog import keys
from catalog.errors import InvalidInputError
from catalog.lifecycle import Checkpoint, History
from catalog.manifest import Positions
from catalog.validation import Issue, ValidationResult

_NUMBER = re.compile(r"-?[0-9]{1,38}")


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What recovery chose, and why not something newer."""

    chosen_id: int | str | None
    """None is a fresh start: nothing was fit to restore from."""
    skipped: tuple[tuple[int | str, str], ...]
    """What was passed over, newest first, each with the reason."""
    examined: int
    """How many ids were looked at, the chosen one included."""
    elapsed: timedelta
    issues: tuple[Issue, ...] = ()
    """What validation of the chosen one found and recovery accepted."""
    undoable: tuple[tuple[int | str, datetime], ...] = ()
    """Checkpoints in the trash that can still be restored, each with the end of its undo window."""
    required: tuple[str, ...] = ()
    """What the caller required besides."""

    def explain(self) -> str:
        """Return the report as text for people."""
        lines = [f"passed over {one}: {reason}" for one, reason in _summed_up(self.skipped)]
        if self.chosen_id is None:
            lines.append("fresh start: no checkpoint is fit to restore from")
            lines += [
                f"in the trash, can be restored until {until:%Y-%m-%d %H:%M:%S} UTC: {one}"
                for one, until in self.undoable
            ]
        else:
            why = ", ".join(["the newest that is eligible and valid", *self.required])
            lines.append(f"chosen {self.chosen_id}: {why}")
            lines += [f"  {issue.severity}: {issue}" for issue in self.issues]
        elapsed_s = self.elapsed.total_seconds()
        return "\n".join([*lines, f"examined {self.examined} in {elapsed_s:.2f} s"])


def _summed_up(skipped: Sequence[tuple[int | str, str]], most: int = 20) -> list[tuple[str, str]]:
    """Return what was passed over, a long list cut in the middle."""
    lines = [(str(one), reason) for one, reason in skipped]
    if len(lines) <= most:
        return lines
    half = most // 2
    return [*lines[:half], (f"{len(lines) - most} more", "see `skipped` of the report"), *lines[-half:]]


@dataclass(frozen=True, slots=True)
class Requirement:
    """A condition that a checkpoint has to meet besides being eligible and valid."""

    text: str
    """What is required, to be read after a comma."""
    objection: Callable[[Checkpoint], str | None]
    """Why a checkpoint does not meet it, None if it does."""


def pipeline(pipeline_hash: int) -> Requirement:
    """Require the identity of the pipeline."""

    def objection(checkpoint: Checkpoint) -> str | None:
        found = checkpoint.content and checkpoint.content.pipeline_hash
        if found is None:
            return "it has no pipeline hash"
        return None if found == pipeline_hash else f"its pipeline hash is {found}, not {pipeline_hash}"

    return Requirement(f"of pipeline {pipeline_hash}", objection)


def vnodes(vnode_count: int) -> Requirement:
    """Require the number of virtual nodes."""

    def objection(checkpoint: Checkpoint) -> str | None:
        found = checkpoint.content and checkpoint.content.vnode_count
        return None if found == vnode_count else f"its vnode count is {found}, not {vnode_count}"

    return Requirement(f"with {vnode_count} vnodes", objection)


def at_or_before_watermark(watermark: int) -> Requirement:
    """Require an event-time watermark that is not above this one."""
    return _at_most("watermark", watermark, lambda one: one.content and one.content.watermark)


def at_or_before_event_count(event_count: int) -> Requirement:
    """Require that not more events than these were processed."""
    return _at_most("event count", event_count, lambda one: one.content and one.content.event_count)


def at_or_before_time(moment: datetime) -> Requirement:
    """Require that it was made at this moment or before, by its producer's clock, else by when it was saved."""
    moment = keys.utc(moment, "at_time")

    def made_at(checkpoint: Checkpoint) -> datetime | None:
        told = checkpoint.content.created_at if checkpoint.content else None
        return told or (checkpoint.origin.at if checkpoint.origin else None)

    return _at_most("time", moment, made_at)


def at_or_before_offset(
    source: str, offset: int, position: str | None, positions: Callable[[Checkpoint], Positions]
) -> Requirement:
    """Require that a source was not read beyond an offset.

    Args:
        source: the source's name.
        offset: the highest offset that is wanted.
        position: what it is an offset of, such as a partition; None where the source has one only.
        positions: gives where a checkpoint's sources stand.
    """
    where = f"{source}/{position}" if position else source

    def found(checkpoint: Checkpoint) -> int | None:
        told = positions(checkpoint)
        texts = [text for (name, at), text in told.items() if name == source and position in (None, at)]
        if len(texts) > 1:
            several = sorted(at for name, at in told if name == source)
            raise InvalidInputError(f"source {source!r} has offsets of {', '.join(several)}: say which one")
        # As the view source_positions has it; Python's int takes 12_345 for a number too.
        return int(texts[0]) if texts and _NUMBER.fullmatch(texts[0]) else None

    return _at_most(f"offset of {where}", offset, found)


def _at_most(what: str, limit: object, value: Callable[[Checkpoint], object]) -> Requirement:
    def objection(checkpoint: Checkpoint) -> str | None:
        found = value(checkpoint)
        if found is None:
            return f"it has no {what} to compare"
        return f"its {what} is {found}, after {limit}" if found > limit else None  # type: ignore[operator]

    return Requirement(f"{what} at most {limit}", objection)


def recover(
    history: History,
    validate: Callable[[Checkpoint], ValidationResult],
    clock: Callable[[], datetime],
    *,
    allow_pending: bool = False,
    lenient: bool = False,
    require: Sequence[Requirement] = (),
) -> RecoveryReport:
    """Return the newest checkpoint that is eligible and valid.

    Args:
        history: the stream's checkpoints.
        validate: reads one and says what is wrong with it.
        clock: for the time it took and the undo windows.
        allow_pending: also take one whose sinks are pending or failed: what they did not commit is lost to them.
        lenient: also take one whose state is missing; the report says so.
        require: what it has to meet besides.
    """
    started = clock()
    skipped: list[tuple[int | str, str]] = []
    chosen: int | str | None = None
    issues: tuple[Issue, ...] = ()
    for checkpoint in reversed([one for one in history.values() if one.live]):
        because = checkpoint.unfit or (None if allow_pending else checkpoint.open_sinks)
        because = because or next(filter(None, (one.objection(checkpoint) for one in require)), None)
        if because:
            skipped.append((checkpoint.id, because))
            continue
        result = validate(checkpoint)
        accepted = all(issue.rule == "state_missing" for issue in result.failures) if lenient else result.valid
        if accepted:
            chosen, issues = checkpoint.id, result.issues
            break
        skipped.append((checkpoint.id, "; ".join(str(issue) for issue in result.failures)))
    now = clock()
    undoable = tuple(
        (one.id, one.undo_until) for one in reversed(list(history.values())) if one.undoable(now) and one.undo_until
    )
    examined = len(skipped) + (chosen is not None)
    return RecoveryReport(
        chosen,
        tuple(skipped),
        examined,
        now - started,
        issues,
        undoable if chosen is None else (),
        tuple(one.text for one in require),
    )
