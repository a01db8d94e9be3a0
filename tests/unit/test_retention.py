"""Plans: what stays, what goes, and the reason for each."""

from datetime import UTC, datetime, timedelta

import pytest

from catalog import retention
from catalog.errors import CheckpointInUseError
from catalog.lifecycle import Revision, fold
from catalog.policies import Last, Within
from catalog.retention import PURGE_MARGIN, drop, expired, keep_newest

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
BEFORE, AFTER = NOON - timedelta(hours=1), NOON + timedelta(hours=1)


def key(number):
    return f"{number:020d}"


def checkpoint(number, *changes, parent=None, **columns):
    """Return the revisions of a checkpoint: saved, then the changes, each a name or a name with its columns."""
    found = []
    for revision, change in enumerate(("saved", *changes) if "prepared" not in changes else changes):
        name, own = change if isinstance(change, tuple) else (change, {})
        shared = {"parent": parent and key(parent), **columns} if revision == 0 else {}
        base = {"stream": "s", "format": "manifest-v1", "insert_id": "i", "at": NOON}
        found.append(
            Revision(**{**base, "checkpoint_key": key(number), "revision": revision, "change": name, **shared, **own})
        )
    return found


def history(*checkpoints):
    return fold([row for rows in checkpoints for row in rows])


def ids(keys):
    return sorted(int(one) for one in keys)


PENDING = {"sinks_pending": 1}
TRASHED = ("trashed", {"until": BEFORE - PURGE_MARGIN, "reason": "not one of the newest 2"})


class TestKeepNewest:
    def test_the_newest_stay_and_the_others_go_each_with_a_reason(self):
        plan = keep_newest(history(*(checkpoint(number) for number in (1, 2, 3, 4, 5))), 2, NOON)
        assert plan.keep == {key(4): "one of the newest 2", key(5): "one of the newest 2"}
        assert plan.trash == dict.fromkeys((key(1), key(2), key(3)), "not one of the newest 2")
        assert plan.counts_on.id == 5

    @pytest.mark.parametrize("keep_count", [3, 4, 2**64 - 1])
    def test_nothing_goes_at_or_below_the_limit(self, keep_count):
        plan = keep_newest(history(*(checkpoint(number) for number in (1, 2, 3))), keep_count, NOON)
        assert (ids(plan.keep), plan.trash) == ([1, 2, 3], {})

    @pytest.mark.parametrize("keep_count", [0, 1])
    def test_an_empty_stream_has_an_empty_plan(self, keep_count):
        plan = keep_newest({}, keep_count, NOON)
        assert (plan.keep, plan.trash, plan.counts_on) == ({}, {}, None)

    def test_newest_is_by_id_also_beyond_six_digits_and_2_to_the_63(self):
        numbers = (999_999, 1_000_000, 2**63 - 1, 2**63)
        assert ids(keep_newest(history(*map(checkpoint, numbers)), 2, NOON).keep) == [2**63 - 1, 2**63]

    def test_the_newest_that_recovery_could_choose_stays_whatever_the_count(self):
        some = history(checkpoint(1), checkpoint(2), checkpoint(3, **PENDING), checkpoint(4, sinks_failed=1))
        plan = keep_newest(some, 1, NOON)
        assert plan.keep == {key(4): "one of the newest 1", key(2): "the newest that recovery could choose"}
        assert ids(plan.trash) == [1, 3]
        assert plan.counts_on.id == 2

    def test_one_that_is_known_to_be_damaged_does_not_stand_for_what_recovery_could_choose(self):
        some = history(*(checkpoint(number) for number in (1, 2, 3, 4)))
        damaged = {key(4): False, key(3): False, key(1): True}
        plan = retention.plan(some, [Last(1)], NOON, sound=damaged)
        assert plan.keep == {
            key(4): "one of the newest 1",
            key(2): "the newest that recovery could choose and nobody found damaged",
        }
        assert plan.counts_on.id == 2
        everything = dict.fromkeys(map(key, (1, 2, 3, 4)), False)
        plan = retention.plan(some, [Last(1)], NOON, sound=everything)
        assert (ids(plan.keep), plan.counts_on.id) == ([4], 4)
        plan = retention.plan(some, [Last(0)], NOON, sound=damaged, allow_empty=True)
        assert (ids(plan.keep), plan.counts_on) == ([], None)

    def test_prepared_and_epoch_0_are_not_what_recovery_could_choose(self):
        plan = keep_newest(history(checkpoint(1), checkpoint(2, epoch=0), checkpoint(3, "prepared")), 1, NOON)
        assert plan.keep == {
            key(1): "the newest that recovery could choose",
            key(2): "one of the newest 1",
            key(3): "it may still be promoted",
        }

    def test_with_nothing_eligible_it_counts_on_the_newest_that_stays(self):
        plan = keep_newest(history(checkpoint(1, **PENDING), checkpoint(2, **PENDING)), 1, NOON)
        assert (ids(plan.keep), ids(plan.trash), plan.counts_on.id) == ([2], [1], 2)

    @pytest.mark.parametrize("policies", [[Last(0)], [Within(timedelta(hours=1))], []])
    def test_a_stream_is_never_emptied_without_that_being_said_also_if_nothing_is_eligible(self, policies):
        old = [checkpoint(1, **PENDING), checkpoint(2, sinks_failed=1), checkpoint(3, "prepared")]
        plan = retention.plan(history(*old), policies, NOON + timedelta(days=9))
        assert plan.keep == {key(2): "the last one of its stream"}
        assert plan.counts_on.id == 2
        assert not retention.plan(history(*old), policies, NOON + timedelta(days=9), allow_empty=True).keep

    def test_pinned_ones_stay_and_do_not_count(self):
        some = history(checkpoint(1, "pinned"), checkpoint(2), checkpoint(3), checkpoint(4))
        plan = keep_newest(some, 2, NOON)
        assert ids(plan.keep) == [1, 3, 4]
        assert plan.keep[key(1)] == "pinned"

    def test_an_expired_pin_holds_nothing(self):
        some = history(
            checkpoint(1, ("pinned", {"until": NOON})), checkpoint(2, ("pinned", {"until": AFTER})), checkpoint(3)
        )
        assert ids(keep_newest(some, 1, NOON).keep) == [2, 3]

    def test_parents_of_what_stays_stay_all_the_way_down(self):
        some = history(checkpoint(1), checkpoint(2, parent=1), checkpoint(3), checkpoint(4, parent=2))
        plan = keep_newest(some, 1, NOON)
        assert plan.keep == {key(4): "one of the newest 1", key(2): "4 stands on it", key(1): "4 stands on it"}
        assert ids(plan.trash) == [3]

    def test_parents_of_pinned_and_of_eligible_ones_stay_too(self):
        some = history(
            checkpoint(1),
            checkpoint(2, "pinned", parent=1),
            checkpoint(3),
            checkpoint(4, parent=3),
            checkpoint(5, **PENDING),
        )
        assert ids(keep_newest(some, 1, NOON).keep) == [1, 2, 3, 4, 5]

    def test_what_is_not_live_is_no_part_of_the_plan_and_does_not_count(self):
        some = history(
            checkpoint(1),
            checkpoint(2),
            checkpoint(3, "trashed"),
            checkpoint(4, "trashed", "purged"),
            checkpoint(5, "trashed"),
        )
        plan = keep_newest(some, 1, NOON)
        assert (ids(plan.keep), ids(plan.trash)) == ([2], [1])

    @pytest.mark.parametrize("parent", [checkpoint(1, "trashed"), []], ids=["in the trash", "not there"])
    def test_a_parent_that_is_not_live_is_no_part_of_the_plan(self, parent):
        plan = keep_newest(history(parent, checkpoint(2, parent=1)), 1, NOON)
        assert ids(plan.keep) == [2]

    def test_prune_to_0_keeps_what_recovery_could_choose_unless_allowed(self):
        some = history(checkpoint(1), checkpoint(2), checkpoint(3, **PENDING))
        kept = keep_newest(some, 0, NOON)
        assert (ids(kept.keep), ids(kept.trash)) == ([2], [1, 3])
        emptied = keep_newest(some, 0, NOON, allow_empty=True)
        assert (ids(emptied.keep), ids(emptied.trash), emptied.counts_on) == ([], [1, 2, 3], None)

    def test_allow_empty_spares_pinned_ones_and_their_parents(self):
        some = history(checkpoint(1), checkpoint(2, "pinned", parent=1), checkpoint(3))
        assert ids(keep_newest(some, 0, NOON, allow_empty=True).keep) == [1, 2]

    def test_allow_empty_changes_nothing_above_0(self):
        some = history(checkpoint(1), checkpoint(2, **PENDING))
        assert ids(keep_newest(some, 1, NOON, allow_empty=True).keep) == [1, 2]


class TestDrop:
    def test_what_was_asked_for_goes_with_the_callers_reason(self):
        plan = drop(history(*(checkpoint(number) for number in (1, 2, 3))), iter([key(1), key(3)]), "old", NOON)
        assert plan.trash == {key(1): "old", key(3): "old"}
        assert plan.keep == {key(2): "not asked for"}

    def test_what_is_not_live_or_not_there_is_left_alone(self):
        some = history(checkpoint(1, "trashed"), checkpoint(2, "trashed", "purged"), checkpoint(3))
        assert drop(some, [key(1), key(2), key(9)], "old", NOON).trash == {}

    def test_a_pinned_one_is_refused(self):
        with pytest.raises(CheckpointInUseError, match="checkpoint 1 is pinned"):
            drop(history(checkpoint(1, "pinned"), checkpoint(2)), [key(1), key(2)], "old", NOON)

    def test_an_expired_pin_refuses_nothing(self):
        some = history(checkpoint(1, ("pinned", {"until": BEFORE})))
        assert ids(drop(some, [key(1)], "old", NOON).trash) == [1]

    @pytest.mark.parametrize("doomed", [1, 2])
    def test_one_that_a_live_chain_needs_is_refused_and_the_child_is_named(self, doomed):
        some = history(checkpoint(1), checkpoint(2, parent=1), checkpoint(3, "prepared", parent=2))
        with pytest.raises(CheckpointInUseError, match=f"checkpoint {doomed} is needed by the deltas of 3"):
            drop(some, [key(doomed)], "old", NOON)

    def test_a_parent_goes_together_with_its_children(self):
        some = history(checkpoint(1), checkpoint(2, parent=1), checkpoint(3, parent=2), checkpoint(4))
        assert ids(drop(some, [key(1), key(2), key(3)], "old", NOON).trash) == [1, 2, 3]

    def test_a_child_goes_without_its_parent(self):
        assert ids(drop(history(checkpoint(1), checkpoint(2, parent=1)), [key(2)], "old", NOON).trash) == [2]

    def test_a_child_in_the_trash_does_not_hold_its_parent(self):
        some = history(checkpoint(1), checkpoint(2, "trashed", parent=1))
        assert ids(drop(some, [key(1)], "old", NOON).trash) == [1]


class TestExpired:
    @pytest.mark.parametrize(
        ("until", "due"),
        [
            (NOON - PURGE_MARGIN, True),
            (NOON - PURGE_MARGIN + timedelta(microseconds=1), False),
            (NOON, False),
            (AFTER, False),
            (None, False),
        ],
    )
    def test_trash_is_due_a_margin_after_its_undo_window(self, until, due):
        some = history(checkpoint(1, ("trashed", {"until": until})))
        assert (list(expired(some, NOON)) == [key(1)]) is due

    def test_the_margin_is_five_minutes(self):
        assert timedelta(minutes=5) == PURGE_MARGIN

    def test_the_reason_says_why_it_was_trashed(self):
        assert expired(history(checkpoint(1, TRASHED)), NOON) == {key(1): "undo window ended: not one of the newest 2"}

    def test_only_what_is_in_the_trash_is_due(self):
        old = {"until": BEFORE}
        some = history(
            checkpoint(1, ("pinned", old)), checkpoint(2, TRASHED, "restored"), checkpoint(3, TRASHED, ("purged", old))
        )
        assert expired(some, NOON) == {}

    @pytest.mark.parametrize("child", [[], [("trashed", {"until": AFTER})]], ids=["live", "in its undo window"])
    def test_what_an_unpurged_chain_needs_is_left(self, child):
        some = history(checkpoint(1, TRASHED), checkpoint(2, TRASHED, parent=1), checkpoint(3, *child, parent=2))
        assert expired(some, NOON) == {}

    def test_a_whole_chain_past_its_window_goes_together(self):
        some = history(checkpoint(1, TRASHED), checkpoint(2, TRASHED, parent=1), checkpoint(3, TRASHED, parent=2))
        assert ids(expired(some, NOON)) == [1, 2, 3]

    def test_a_purged_child_needs_nothing(self):
        some = history(checkpoint(1, TRASHED), checkpoint(2, TRASHED, "purged", parent=1))
        assert ids(expired(some, NOON)) == [1]

    def test_trash_with_an_attempt_abandoned_since_is_due_all_the_same(self):
        # Else what the sweep has touched stays in the trash for ever.
        some = history(checkpoint(1, TRASHED, ("abandoned", {"attempt": "loser", "reason": "orphaned"})))
        assert expired(some, NOON) == {key(1): "undo window ended: not one of the newest 2"}
