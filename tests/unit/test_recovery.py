"""Which checkpoint recovery chooses, and what its report says about the others."""

from datetime import UTC, datetime, timedelta

import pytest

from catalog.lifecycle import Revision, fold
from catalog.recovery import RecoveryReport, recover
from catalog.validation import Issue, ValidationResult, failure

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=1)
MISSING = failure("state_missing", "state data is missing")
MISMATCH = failure("checksum_mismatch", "checksum mismatch")
ODD = Issue("warning", "vnode_count_mismatch", "vnode_count is 1")


def history(**checkpoints):
    """Return a history of `k<number>=(change, …, {columns of revision 0})`."""
    found = []
    for name, facts in checkpoints.items():
        columns = facts[-1] if isinstance(facts[-1], dict) else {}
        for revision, change in enumerate(one for one in facts if not isinstance(one, dict)):
            change_name, own = change if isinstance(change, tuple) else (change, {})
            base = {"stream": "s", "format": "manifest-v1", "insert_id": "i", "at": NOON}
            place = {"checkpoint_key": f"{int(name[1:]):020d}", "revision": revision, "change": change_name}
            found.append(Revision(**{**base, **place, **(columns if revision == 0 else {}), **own}))
    return fold(found)


class Validator:
    """Knows the issues of some ids, and remembers which ids it was asked about."""

    def __init__(self, **issues):
        self.issues = {int(name[1:]): found for name, found in issues.items()}
        self.asked = []

    def __call__(self, checkpoint):
        self.asked.append(checkpoint.id)
        return ValidationResult(checkpoint.id, tuple(self.issues.get(checkpoint.id, ())))


def clock():
    return NOON


def run(some, validate=None, **options):
    return recover(some, validate or Validator(), clock, **options)


def test_the_newest_valid_one_is_chosen_and_older_ones_are_not_looked_at():
    validate = Validator()
    report = run(history(k1=["saved"], k2=["saved"], k1000000=["saved"], k999999=["saved"]), validate)
    assert (report.chosen_id, report.skipped, report.examined) == (1_000_000, (), 1)
    assert validate.asked == [1_000_000]


def test_a_corrupt_one_is_passed_over_with_every_failure_as_the_reason():
    validate = Validator(k2=[MISMATCH, ODD, MISSING])
    report = run(history(k1=["saved"], k2=["saved"]), validate)
    assert (report.chosen_id, report.examined) == (1, 2)
    assert report.skipped == ((2, "checksum mismatch; state data is missing"),)
    assert validate.asked == [2, 1]


def test_an_empty_stream_is_a_fresh_start_and_no_exception():
    report = run({})
    assert (report.chosen_id, report.skipped, report.examined, report.undoable) == (None, (), 0, ())


def test_all_corrupt_is_a_fresh_start_that_names_them_all_newest_first():
    report = run(history(k1=["saved"], k2=["saved"]), Validator(k1=[MISMATCH], k2=[MISSING]))
    assert (report.chosen_id, report.examined) == (None, 2)
    assert [one for one, _ in report.skipped] == [2, 1]


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (["saved", {"sinks_pending": 1}], "a sink is still pending"),
        (["saved", {"sinks_failed": 2}], "2 sinks failed"),
        (["prepared"], "it is prepared"),
        (["saved", {"epoch": 0}], "its epoch is 0"),
    ],
)
def test_an_ineligible_one_is_passed_over_without_reading_it(facts, why):
    validate = Validator()
    report = run(history(k1=["saved"], k2=facts), validate)
    assert (report.chosen_id, report.skipped, report.examined) == (1, ((2, why),), 2)
    assert validate.asked == [1]


def test_all_pending_is_a_fresh_start():
    pending = ["saved", {"sinks_pending": 1}]
    report = run(history(k1=pending, k2=pending))
    assert (report.chosen_id, report.examined) == (None, 2)


@pytest.mark.parametrize("sinks", [{"sinks_pending": 1}, {"sinks_failed": 1}], ids=str)
def test_a_pending_one_is_taken_when_the_caller_allows_it(sinks):
    some = history(k1=["saved"], k2=["saved", sinks])
    assert run(some, allow_pending=True).chosen_id == 2
    assert run(some, Validator(k2=[MISMATCH]), allow_pending=True).chosen_id == 1, "it still has to be valid"


def test_allowing_pending_sinks_does_not_allow_prepared_ones():
    assert run(history(k1=["prepared"]), allow_pending=True).chosen_id is None


def test_missing_state_is_refused_when_strict_and_reported_when_lenient():
    some = history(k1=["saved"], k2=["saved"])
    assert run(some, Validator(k2=[MISSING])).chosen_id == 1
    lenient = run(some, Validator(k2=[MISSING, ODD]), lenient=True)
    assert (lenient.chosen_id, lenient.issues, lenient.skipped) == (2, (MISSING, ODD), ())


def test_lenient_forgives_nothing_but_missing_state():
    some = history(k1=["saved"], k2=["saved"])
    report = run(some, Validator(k2=[MISSING, MISMATCH]), lenient=True)
    assert (report.chosen_id, [one for one, _ in report.skipped]) == (1, [2])


def test_warnings_do_not_stand_in_the_way_and_are_reported():
    report = run(history(k1=["saved"]), Validator(k1=[ODD]))
    assert (report.chosen_id, report.issues) == (1, (ODD,))


def test_the_issues_of_one_passed_over_are_not_those_of_the_chosen():
    report = run(history(k1=["saved"], k2=["saved"]), Validator(k2=[MISMATCH, ODD]))
    assert (report.chosen_id, report.issues) == (1, ())


def test_what_is_not_live_is_not_examined():
    some = history(
        k1=["saved"],
        k2=["saved", "trashed"],
        k3=["saved", "trashed", "purged"],
        k4=["abandoned"],
        k5=["saved", "trashed"],
    )
    report = run(some)
    assert (report.chosen_id, report.skipped, report.examined) == (1, (), 1)


def test_a_fresh_start_names_what_can_still_be_taken_out_of_the_trash_newest_first():
    open_, over = ("trashed", {"until": LATER}), ("trashed", {"until": NOON})
    some = history(
        k1=["saved", open_],
        k2=["saved", over],
        k3=["saved", open_],
        k4=["saved", open_, "purged"],
        k5=["saved", {"epoch": 0}],
    )
    report = run(some)
    assert (report.chosen_id, report.undoable) == (None, ((3, LATER), (1, LATER)))
    text = report.explain()
    assert "fresh start" in text
    assert "in the trash, can be restored until 2024-05-01 13:00:00 UTC: 3" in text


def test_undoable_ones_are_not_named_when_something_was_chosen():
    report = run(history(k1=["saved"], k2=["saved", ("trashed", {"until": LATER})]))
    assert (report.chosen_id, report.undoable) == (1, ())


def test_the_time_it_took_comes_from_the_clock():
    times = iter([NOON, NOON + timedelta(seconds=3)])
    report = recover({}, Validator(), lambda: next(times))
    assert report.elapsed == timedelta(seconds=3)
    assert report.explain().endswith("examined 0 in 3.00 s")


def test_the_explanation_says_what_was_chosen_and_why_nothing_newer():
    report = RecoveryReport(1, ((2, "checksum mismatch"),), 2, timedelta(0), (ODD,))
    assert report.explain().splitlines() == [
        "passed over 2: checksum mismatch",
        "chosen 1: the newest that is eligible and valid",
        "  warning: vnode_count is 1",
        "examined 2 in 0.00 s",
    ]
