"""When a commit is run again, and what is said when it is given up."""

import pytest

from catalog import CatalogError, ConflictError, LockTimeoutError, ReadOnlyError, UnknownOutcomeError
from catalog.tables.commits import Again, Commits, judge
from catalog.tables.port import Outcome, Unless

LOST, UNKNOWN, BUSY = KeyError("lost"), OSError("no answer"), LockTimeoutError("busy; nothing was written")
READ_ONLY = ReadOnlyError("cannot write")


def run(*failures, attempts=5):
    """Run a commit that fails in these ways and then succeeds; return how often it was tried."""
    left = list(failures)
    tried = 0

    def attempt():
        nonlocal tried
        tried += 1
        if left:
            raise left.pop(0)
        return tried

    commits = Commits(
        lambda error: isinstance(error, KeyError),
        lambda error: isinstance(error, OSError) and not isinstance(error, CatalogError),
        attempts=attempts,
        first_wait_s=0,
    )
    return commits.run(attempt, "the test")


def test_lost_races_and_unknown_outcomes_are_run_again_and_counted_apart():
    assert run(LOST, Again(), LOST, UNKNOWN, LOST, UNKNOWN) == 7


def test_a_commit_that_always_loses_is_given_up_and_nothing_was_written():
    with pytest.raises(ConflictError, match="lost to other writers 3 times; nothing was written"):
        run(*[LOST] * 9, attempts=3)


@pytest.mark.parametrize(
    "last",
    [[UNKNOWN, UNKNOWN], [BUSY], [LOST] * 5, [READ_ONLY], [LOST, ValueError("refused")]],
    ids=["unknown", "busy", "lost", "read-only", "refused"],
)
def test_after_an_unknown_outcome_nobody_is_told_that_nothing_was_written(last):
    with pytest.raises(UnknownOutcomeError, match="may or may not have happened"):
        run(UNKNOWN, *last)


def test_a_busy_lock_is_told_as_it_is():
    with pytest.raises(LockTimeoutError, match="nothing was written"):
        run(LOST, BUSY)


@pytest.mark.parametrize("error", [READ_ONLY, ValueError("refused")], ids=["read-only", "refused"])
def test_an_error_that_says_what_is_so_is_told_as_it_is_if_nothing_can_have_happened(error):
    with pytest.raises(type(error), match=str(error)):
        run(LOST, error)


def row(key, revision, insert_id, change="saved", format="manifest-v1"):
    return {"checkpoint_key": key, "revision": revision, "insert_id": insert_id, "change": change, "format": format}


def test_rivals_are_told_before_guards_and_own_rows_count_as_inserted():
    stored = [row("1", 0, "mine"), row("2", 3, "other", change="purged")]
    wanted = [row("1", 0, "mine"), row("1", 0, "late"), row("2", 2, "x"), row("2", 4, "y"), row("9", 0, "z")]
    expected = [Outcome.INSERTED, Outcome.EXISTED, Outcome.EXISTED, None, None]
    assert judge(wanted, stored, [Unless(key="2", revision_above=3)]) == expected
    refused = [*expected[:3], Outcome.REFUSED, Outcome.REFUSED]
    for guard in (Unless(key="2", change="purged"), Unless(format_other_than="manifest-v2"), Unless(revision_above=2)):
        assert judge(wanted, stored, [guard]) == refused
