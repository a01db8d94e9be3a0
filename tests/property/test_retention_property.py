"""What must hold for every plan to keep the newest, whatever the stream has been through."""

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from catalog import chains
from catalog.lifecycle import Change, Revision, fold, live_keys
from catalog.retention import PURGE_MARGIN, expired, keep_newest

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
SETTINGS = settings(deadline=None, max_examples=80)

times = st.sampled_from([None, NOON - timedelta(days=1), NOON - PURGE_MARGIN, NOON, NOON + timedelta(days=1)])
later_changes = st.lists(
    st.tuples(
        st.sampled_from(
            [Change.PROMOTED, Change.UPDATED, Change.PINNED, Change.UNPINNED, Change.TRASHED, Change.RESTORED]
        ),
        times,
        st.integers(0, 1),
    ),
    max_size=4,
)


@st.composite
def revisions(draw):
    """Rows of a stream of up to six checkpoints: any state, deltas on any older one, on missing ones too."""
    rows = []
    for number in draw(st.lists(st.integers(1, 12), unique=True, max_size=6)):
        first = draw(st.sampled_from([Change.SAVED, Change.SAVED, Change.PREPARED, Change.ABANDONED]))
        parent = draw(st.none() | st.integers(0, number - 1)) if number > 1 else None
        changes = [] if first is Change.ABANDONED else draw(later_changes)
        if changes and draw(st.integers(0, 5)) == 0:
            changes.append((Change.PURGED, None, 0))
        for revision, (change, until, pending) in enumerate([(first, None, draw(st.integers(0, 1))), *changes]):
            rows.append(
                Revision(
                    stream="s",
                    checkpoint_key=f"{number:020d}",
                    revision=revision,
                    change=change,
                    format="manifest-v1",
                    insert_id="i",
                    at=NOON,
                    until=until,
                    parent=f"{parent:020d}" if parent is not None and revision == 0 else None,
                    epoch=draw(st.integers(0, 3)),
                    sinks_pending=pending,
                )
            )
    return draw(st.permutations(rows))


counts = st.integers(0, 9)


def trashed(rows, plan):
    """Return the rows after the plan was carried out."""
    history = fold(rows)
    marks = [
        Revision(
            stream="s",
            checkpoint_key=key,
            revision=history[key].head.revision + 1,
            change=Change.TRASHED,
            format="manifest-v1",
            insert_id="i",
            at=NOON,
            until=NOON + timedelta(days=7),
            reason=reason,
        )
        for key, reason in plan.trash.items()
    ]
    return [*rows, *marks]


@SETTINGS
@given(revisions(), counts, st.booleans())
def test_every_live_checkpoint_either_stays_or_goes_and_has_a_reason(rows, keep_count, allow_empty):
    history = fold(rows)
    plan = keep_newest(history, keep_count, NOON, allow_empty=allow_empty)
    assert sorted([*plan.keep, *plan.trash]) == live_keys(history)
    assert all(reason for reason in (*plan.keep.values(), *plan.trash.values()))


@SETTINGS
@given(revisions(), counts, st.booleans())
def test_the_newest_eligible_one_stays_unless_the_caller_empties_the_stream(rows, keep_count, allow_empty):
    history = fold(rows)
    plan = keep_newest(history, keep_count, NOON, allow_empty=allow_empty)
    eligible = [key for key, one in history.items() if one.eligible]
    if eligible and not (allow_empty and keep_count == 0):
        assert eligible[-1] in plan.keep
        assert plan.counts_on is history[eligible[-1]]
    elif plan.counts_on is not None:
        assert plan.counts_on.key in plan.keep
    assert all(key in plan.keep for key in live_keys(history)[-keep_count:] if keep_count)


@SETTINGS
@given(revisions(), counts, st.booleans())
def test_nothing_that_a_kept_delta_stands_on_and_nothing_pinned_goes(rows, keep_count, allow_empty):
    history = fold(rows)
    plan = keep_newest(history, keep_count, NOON, allow_empty=allow_empty)
    for key in plan.keep:
        assert plan.trash.keys().isdisjoint(chains.ancestors(history, key))
    assert not [key for key in plan.trash if history[key].pinned(NOON)]


@SETTINGS
@given(revisions(), counts, st.booleans())
def test_planning_again_after_the_plan_was_carried_out_trashes_nothing_more(rows, keep_count, allow_empty):
    plan = keep_newest(fold(rows), keep_count, NOON, allow_empty=allow_empty)
    after = fold(trashed(rows, plan))
    assert keep_newest(after, keep_count, NOON, allow_empty=allow_empty).trash == {}
    assert sum(one.live for one in after.values()) == len(live_keys(fold(rows))) - len(plan.trash)


@SETTINGS
@given(revisions(), counts, counts)
def test_a_smaller_count_never_keeps_what_a_larger_one_trashes(rows, one, other):
    history = fold(rows)
    fewer, more = (keep_newest(history, count, NOON) for count in sorted([one, other]))
    assert more.trash.keys() <= fewer.trash.keys()


@SETTINGS
@given(revisions())
def test_what_is_purged_was_in_the_trash_and_nothing_unpurged_stands_on_it(rows):
    history = fold(rows)
    gone = expired(history, NOON)
    assert all(not history[key].live and history[key].unpurged for key in gone)
    remaining = [key for key, one in history.items() if one.unpurged and key not in gone]
    assert gone.keys().isdisjoint(chains.needed_by(history, remaining))
