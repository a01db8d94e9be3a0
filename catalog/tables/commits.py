"""What both engines say about a commit: what became of each row, and when it is run again."""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential

from catalog.errors import ConflictError, UnknownOutcomeError
from catalog.tables.port import Outcome, Unless

log = logging.getLogger(__name__)
T = TypeVar("T")

UNKNOWN_ATTEMPTS = 3
JUDGED_BY = ("checkpoint_key", "revision", "change", "format", "insert_id")
"""The columns of a stored row that `judge` looks at."""


class Again(Exception):
    """The commit must be decided anew: what it stood on has changed."""


def judge(
    wanted: Sequence[Mapping[str, Any]], stored: Iterable[Mapping[str, Any]], unless: Sequence[Unless]
) -> list[Outcome | None]:
    """Say what the rows of a stream mean for those that want to go in; None where nothing is in the way."""
    by_key: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in stored:
        by_key[row["checkpoint_key"]].append(row)
    refused = any(_meets(row, guard) for rows in by_key.values() for row in rows for guard in unless)

    def verdict(row: Mapping[str, Any]) -> Outcome | None:
        rivals = [one["insert_id"] for one in by_key[row["checkpoint_key"]] if one["revision"] >= row["revision"]]
        if row["insert_id"] in rivals:
            return Outcome.INSERTED
        if rivals:
            return Outcome.EXISTED
        return Outcome.REFUSED if refused else None

    return [verdict(row) for row in wanted]


def _meets(row: Mapping[str, Any], guard: Unless) -> bool:
    return (
        (guard.key is None or row["checkpoint_key"] == guard.key)
        and (guard.change is None or row["change"] == guard.change)
        and (guard.revision_above is None or row["revision"] > guard.revision_above)
        and (guard.format_other_than is None or row["format"] not in (guard.format_other_than, ""))
    )


class Commits:
    """Runs commits, again when another writer was faster or when their outcome is unknown, and says what happened.

    Running one again is safe: inserts are fenced and recognize their own rows, deletes find nothing left.
    """

    def __init__(
        self,
        is_conflict: Callable[[BaseException], bool],
        is_unknown: Callable[[BaseException], bool],
        *,
        attempts: int,
        first_wait_s: float,
    ) -> None:
        """Make a runner for one engine.

        Args:
            is_conflict: nothing happened, because another writer was faster.
            is_unknown: it may or may not have happened.
            attempts: how often a commit may lose before it is given up.
            first_wait_s: about how long to wait before the second attempt; the wait doubles, with jitter.
        """
        self.conflicts = 0
        self.attempts = attempts
        self._is_conflict = is_conflict
        self._is_unknown = is_unknown
        self._first_wait_s = first_wait_s

    def run(self, attempt: Callable[[], T], what: str) -> T:
        """Run a commit until it is done, or its failure is certain or has lasted.

        Raises:
            ConflictError: other writers were faster every time; nothing was written.
            UnknownOutcomeError: an attempt may have happened, and none after it could tell.
        """
        lost = unknown = 0

        def again(error: BaseException) -> bool:
            nonlocal lost, unknown
            lost += self._lost(error)
            unknown += not self._lost(error) and self._is_unknown(error)
            return self._lost(error) or self._is_unknown(error)

        def note(state: RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            self.conflicts += self._lost(error)
            log.info("%s runs again after attempt %d: %s", what, state.attempt_number, first_line(error))

        retrying = Retrying(
            stop=lambda _: lost >= self.attempts or unknown >= UNKNOWN_ATTEMPTS,
            wait=wait_random_exponential(multiplier=self._first_wait_s, max=3),
            retry=retry_if_exception(again),
            before_sleep=note,
            reraise=True,
        )
        try:
            return retrying(attempt)
        except Exception as error:
            if unknown:  # whatever an attempt after it met says nothing about it
                raise UnknownOutcomeError(
                    f"{what} failed and may or may not have happened: {first_line(error)}; look before trying again"
                ) from error
            if self._lost(error):
                raise ConflictError(
                    f"{what} lost to other writers {self.attempts} times; nothing was written, try again"
                ) from error
            raise

    def _lost(self, error: BaseException | None) -> bool:
        return isinstance(error, Again) or (error is not None and self._is_conflict(error))


def first_line(error: BaseException | None) -> str:
    """Return what an error says, in one line."""
    lines = (str(error).strip() or type(error).__name__).splitlines()
    # Py4J says only where a call failed; what failed is on its next line.
    said = lines[1].lstrip(": ") if lines[0].startswith("An error occurred while calling") and lines[1:] else lines[0]
    return said[:300]
