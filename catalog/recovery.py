"""Which checkpoint to restore from: newest to oldest, each with the reason why it was passed over. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from catalog.lifecycle import Checkpoint, History
from catalog.validation import Issue, ValidationResult


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

    def explain(self) -> str:
        """Return the report as text for people."""
        lines = [f"passed over {one}: {reason}" for one, reason in self.skipped]
        if self.chosen_id is None:
            lines.append("fresh start: no checkpoint is fit to restore from")
            lines += [
                f"in the trash, can be restored until {until:%Y-%m-%d %H:%M:%S} UTC: {one}"
                for one, until in self.undoable
            ]
        else:
            lines.append(f"chosen {self.chosen_id}: the newest that is eligible and valid")
            lines += [f"  {issue.severity}: {issue}" for issue in self.issues]
        elapsed_s = self.elapsed.total_seconds()
        return "\n".join([*lines, f"examined {self.examined} in {elapsed_s:.2f} s"])


def recover(
    history: History,
    validate: Callable[[Checkpoint], ValidationResult],
    clock: Callable[[], datetime],
    *,
    allow_pending: bool = False,
    lenient: bool = False,
) -> RecoveryReport:
    """Return the newest checkpoint that is eligible and valid.

    Args:
        history: the stream's checkpoints.
        validate: reads one and says what is wrong with it.
        clock: for the time it took and the undo windows.
        allow_pending: also take one whose sinks are pending or failed: what they did not commit is lost to them.
        lenient: also take one whose state is missing; the report says so.
    """
    started = clock()
    skipped: list[tuple[int | str, str]] = []
    chosen: int | str | None = None
    issues: tuple[Issue, ...] = ()
    for checkpoint in reversed([one for one in history.values() if one.live]):
        because = checkpoint.unfit or (None if allow_pending else checkpoint.open_sinks)
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
    return RecoveryReport(chosen, tuple(skipped), examined, now - started, issues, undoable if chosen is None else ())
