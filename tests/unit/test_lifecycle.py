"""What a checkpoint's revisions say when they are folded."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import permutations

import pytest

from catalog import chains
from catalog.lifecycle import Change, Revision, Status, fold, latest, live_keys
from catalog.tables.port import Table
from catalog.tables.schema import SCHEMAS

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=1)


def key(number):
    return f"{number:020d}"


def rows(number, *changes, **columns):
    """Return revisions of one key from 0 on; a change is a name, or a name with its columns."""
    found = []
    for revision, change in enumerate(changes):
        name, own = change if isinstance(change, tuple) else (change, {})
        shared = columns if revision == 0 else {}
        base = {"stream": "s", "format": "manifest-v1", "insert_id": "i", "at": NOON + timedelta(seconds=revision)}
        found.append(
            Revision(**{**base, "checkpoint_key": key(number), "revision": revision, "change": name, **shared, **own})
        )
    return found


def one(*changes, **columns):
    """Return the checkpoint that these revisions make, whatever the order they are read in."""
    found = rows(7, *changes, **columns)
    orders = list(permutations(found))[:24]
    folded = {repr(fold(order)[key(7)]) for order in orders}
    assert len(folded) == 1, "the order of rows must not matter"
    return fold(found)[key(7)]


class TestFold:
    def test_a_saved_one_is_committed_at_once(self):
        made = one("saved")
        assert (made.status, made.live, made.unpurged, made.id) == (Status.COMMITTED, True, True, 7)

    def test_a_prepared_one_is_committed_by_promotion(self):
        assert one("prepared").status is Status.PREPARED
        assert one("prepared").live
        assert one("prepared", "promoted").status is Status.COMMITTED

    @pytest.mark.parametrize("change", ["updated", "pinned", "unpinned", "folded"])
    def test_updated_pinned_folded_do_not_change_visibility(self, change):
        assert one("saved", change).status is Status.COMMITTED
        assert one("prepared", change).status is Status.PREPARED
        assert one("saved", "trashed", change).status is Status.TRASHED

    def test_trashed_and_restored_toggle(self):
        changes = ["saved"]
        for _ in range(3):
            changes.append("trashed")
            found = one(*changes)
            assert (found.status, found.live, found.unpurged) == (Status.TRASHED, False, True)
            changes.append("restored")
            assert one(*changes).status is Status.COMMITTED

    def test_a_restored_one_is_prepared_if_it_was(self):
        assert one("prepared", "trashed", "restored").status is Status.PREPARED

    @pytest.mark.parametrize(
        "after", [[], ["restored"], ["promoted"], ["updated"], ["pinned", "unpinned"], ["trashed"]]
    )
    def test_purged_is_final(self, after):
        found = one("prepared", "trashed", "purged", *after)
        assert (found.status, found.live, found.unpurged) == (Status.PURGED, False, False)

    def test_the_purged_mark_alone_still_says_so(self):
        mark = rows(7, "saved", "trashed", "purged")[-1:]
        found = fold(mark)[key(7)]
        assert (found.status, found.origin, found.content, found.head) == (Status.PURGED, None, None, mark[0])
        assert (found.parent, found.eligible, found.open_sinks) == (None, False, None)

    def test_abandoned_at_revision_0_closes_the_id(self):
        found = one(("abandoned", {"attempt": "a"}))
        assert (found.status, found.live, found.unpurged) == (Status.ABANDONED, False, False)
        assert found.abandoned_attempts == {"a"}
        assert one(("abandoned", {"attempt": "a"}), ("abandoned", {"attempt": "b"})).status is Status.ABANDONED

    def test_abandoned_without_an_attempt_at_revision_0_closes_the_id_too(self):
        assert one("abandoned").status is Status.ABANDONED

    def test_abandoned_later_closes_only_the_attempt_it_names(self):
        found = one("saved", ("abandoned", {"attempt": "b"}), ("abandoned", {"attempt": "c"}), attempt="a")
        assert found.status is Status.COMMITTED
        assert found.origin.attempt == "a"
        assert found.abandoned_attempts == {"b", "c"}

    def test_a_save_counts_only_at_revision_0(self):
        assert one(("abandoned", {"attempt": "a"}), "saved").status is Status.ABANDONED

    def test_origin_is_revision_0_and_content_the_newest_manifest(self):
        found = one(
            "saved",
            ("updated", {"manifest": "second", "epoch": 1}),
            "pinned",
            ("updated", {"manifest": "third"}),
            "trashed",
            manifest="first",
            parent=key(3),
        )
        assert found.origin.manifest == "first"
        assert found.content.manifest == "third"
        assert found.head.change == "trashed"
        assert found.parent == key(3)

    def test_checkpoints_come_oldest_first_whatever_the_order_of_rows(self):
        found = fold(
            [*rows(1_000_000, "saved"), *rows(2**63, "saved"), *rows(999_999, "saved", "trashed"), *rows(2, "saved")]
        )
        assert [checkpoint.id for checkpoint in found.values()] == [2, 999_999, 1_000_000, 2**63]
        assert live_keys(found) == [key(2), key(1_000_000), key(2**63)]

    def test_no_rows_are_no_checkpoints(self):
        assert fold([]) == {}
        assert latest({}) is None

    def test_a_revision_has_the_columns_of_its_table(self):
        assert list(rows(7, "saved")[0].row()) == SCHEMAS[Table.CHECKPOINTS].names

    def test_every_change_of_the_protocol_has_a_name(self):
        assert {str(change) for change in Change} == {
            "saved", "prepared", "promoted", "updated", "pinned", "unpinned", "folded",
            "trashed", "restored", "purged", "abandoned",
        }  # fmt: skip


class TestLatest:
    @staticmethod
    def of(*checkpoints):
        found = latest(fold([row for number, *changes in checkpoints for row in rows(number, *changes)]))
        return found and found.id

    def test_it_is_the_highest_committed_key(self):
        assert self.of((10, "saved"), (5, "saved")) == 10
        assert self.of((999_999, "saved"), (1_000_000, "saved")) == 1_000_000

    def test_prepared_ones_do_not_count_until_they_are_promoted(self):
        assert self.of((1, "saved"), (2, "prepared")) == 1
        assert self.of((1, "saved"), (2, "prepared", "promoted")) == 2
        assert self.of((1, "prepared", "promoted"), (2, "prepared", "promoted"), (3, "prepared")) == 2

    def test_trashing_moves_it_back_and_restoring_brings_it_back(self):
        assert self.of((1, "saved"), (2, "saved", "trashed")) == 1
        assert self.of((1, "saved"), (2, "saved", "trashed", "restored")) == 2

    def test_marks_are_never_latest(self):
        assert self.of((1, "saved"), (2, "saved", "trashed", "purged"), (3, "abandoned")) == 1
        assert self.of((3, "abandoned")) is None

    def test_a_history_in_any_order_gives_the_same(self):
        history = fold([*rows(1, "saved"), *rows(2, "saved")])
        assert latest(dict(reversed(history.items()))).id == 2


class TestEligible:
    def test_a_committed_one_without_open_sinks_is(self):
        assert one("saved").eligible
        assert one("saved", epoch=1, sinks_pending=0, sinks_failed=0).eligible
        assert one("prepared", "promoted").eligible

    @pytest.mark.parametrize(
        "changes", [["prepared"], ["saved", "trashed"], ["saved", "trashed", "purged"], ["abandoned"]]
    )
    def test_one_that_is_not_committed_is_not_and_says_what_it_is(self, changes):
        found = one(*changes)
        assert not found.eligible
        assert found.unfit == f"it is {found.status}"

    @pytest.mark.parametrize(
        ("pending", "failed", "why"),
        [
            (1, 0, "a sink is still pending"),
            (2, 0, "2 sinks are still pending"),
            (0, 1, "a sink failed"),
            (3, 2, "2 sinks failed"),
        ],
    )
    def test_a_pending_or_failed_sink_makes_it_ineligible_but_not_unfit(self, pending, failed, why):
        found = one("saved", sinks_pending=pending, sinks_failed=failed)
        assert (found.eligible, found.unfit, found.open_sinks) == (False, None, why)

    def test_sinks_count_as_the_newest_manifest_has_them(self):
        assert one("saved", ("updated", {"sinks_pending": 0}), sinks_pending=1).eligible
        assert not one("saved", ("updated", {"sinks_failed": 1}), sinks_pending=1).eligible
        assert not one("saved", ("updated", {"sinks_pending": 1}), "pinned", sinks_pending=0).eligible

    @pytest.mark.parametrize("zero", [0, Decimal(0)])
    def test_epoch_0_is_unfit_except_for_states_that_have_no_epochs(self, zero):
        assert one("saved", epoch=zero).unfit == "its epoch is 0"
        assert one("saved", epoch=zero, format="state-v1").eligible


class TestPins:
    def test_a_pin_holds_until_it_is_taken_back(self):
        assert one("saved", "pinned").pinned(NOON)
        assert not one("saved").pinned(NOON)
        assert not one("saved", "pinned", "unpinned").pinned(NOON)
        assert one("saved", "pinned", "unpinned", "pinned").pinned(NOON)

    def test_a_pin_holds_until_it_expires(self):
        found = one("saved", ("pinned", {"until": LATER}))
        assert found.pinned(LATER - timedelta(microseconds=1))
        assert not found.pinned(LATER)

    def test_the_newest_pin_of_a_name_counts(self):
        assert one("saved", ("pinned", {"until": NOON}), ("pinned", {"until": LATER})).pinned(NOON)
        assert not one("saved", "pinned", ("pinned", {"until": NOON})).pinned(NOON)

    def test_pins_of_different_names_hold_each_by_itself(self):
        hold, copy = ("pinned", {"reason": "hold"}), ("pinned", {"reason": "copying", "until": NOON})
        taken = ("unpinned", {"details": '{"pin": "hold"}'})
        assert list(one("saved", hold, copy).held_by(NOON)) == ["hold"]
        assert list(one("saved", hold, copy, taken).pins) == ["copying"]
        assert not one("saved", hold, copy, taken).pinned(NOON)

    def test_a_name_may_differ_from_the_reason_and_without_one_all_are_taken_back(self):
        named = ("pinned", {"reason": "a new reason", "details": '{"pin": "hold"}'})
        both = one("saved", ("pinned", {"reason": "hold"}), ("pinned", {"reason": "other"}), named)
        assert {name: pin.reason for name, pin in both.pins.items()} == {"other": "other", "hold": "a new reason"}
        assert not one("saved", named, ("pinned", {"reason": "other"}), "unpinned").pins


class TestUndoWindow:
    def test_it_is_open_until_the_time_in_the_trash_row(self):
        found = one("saved", ("trashed", {"until": LATER}))
        assert found.undoable(LATER - timedelta(microseconds=1))
        assert not found.undoable(LATER)

    def test_only_what_is_in_the_trash_can_be_undone(self):
        assert not one("saved").undoable(NOON)
        assert not one("saved", ("trashed", {"until": LATER}), "restored").undoable(NOON)
        assert not one("saved", ("trashed", {"until": LATER}), ("purged", {"until": LATER})).undoable(NOON)
        assert not one("saved", ("pinned", {"until": LATER})).undoable(NOON)

    def test_abandoning_an_orphaned_attempt_of_a_trashed_one_does_not_close_its_window(self):
        # The sweep abandons a losing writer's attempt as the next revision of the key, in the trash or not.
        found = one("saved", ("trashed", {"until": LATER}), ("abandoned", {"attempt": "loser"}))
        assert found.status is Status.TRASHED
        assert found.undoable(NOON)


class TestChains:
    @staticmethod
    def history(**parents):
        """Return a history of the keys in `parents`, named k1, k2…, each standing on the number given."""
        found = []
        for name, parent in parents.items():
            found += rows(int(name[1:]), "saved", parent=parent and key(parent))
        return fold(found)

    def test_ancestors_come_nearest_first(self):
        history = self.history(k1=None, k2=1, k3=2, k4=None)
        assert chains.ancestors(history, key(3)) == [key(2), key(1)]
        assert chains.ancestors(history, key(4)) == chains.ancestors(history, key(9)) == []

    def test_a_chain_ends_at_a_parent_that_is_not_there_and_names_it(self):
        assert chains.ancestors(self.history(k3=2), key(3)) == [key(2)]

    def test_a_circle_ends(self):
        history = self.history(k1=3, k2=1, k3=2, k4=4)
        assert chains.ancestors(history, key(3)) == [key(2), key(1)]
        assert chains.ancestors(history, key(4)) == []

    def test_needed_by_names_who_needs_it(self):
        history = self.history(k1=None, k2=1, k3=2, k4=None)
        assert chains.needed_by(history, [key(3), key(4)]) == {key(2): key(3), key(1): key(3)}
        assert chains.needed_by(history, [key(1), key(4)]) == {}
