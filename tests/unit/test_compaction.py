"""Which data files become one, and what the report says."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from catalog.tables.compaction import (
    FEWEST_TO_MERGE,
    MERGED_FILE,
    MIB,
    SMALL_FILE,
    CompactedTable,
    CompactionReport,
    merges,
)
from catalog.tables.port import Table


def file(number, size=1000, stream="s", key=None):
    return {"path": f"part-{number}", "size_bytes": size, "partition.stream": stream, "min.checkpoint_key": key}


def test_few_files_are_left_alone_and_enough_become_one():
    assert merges([file(number) for number in range(FEWEST_TO_MERGE - 1)]) == []
    (group,) = merges([file(number) for number in range(FEWEST_TO_MERGE)])
    assert len(group) == FEWEST_TO_MERGE


def test_files_become_neighbours_by_key_also_where_some_have_none():
    files = [file(number, key=key) for number, key in enumerate("hgfedcba")] + [file(9)]
    (group,) = merges(files)
    assert [one["min.checkpoint_key"] for one in group] == [None, *"abcdefgh"]


def test_a_file_that_would_be_alone_is_not_written_again():
    files = [file(number, size=SMALL_FILE - 1) for number in range(9)]
    assert [len(group) for group in merges(files)] == [4, 4]


files = st.lists(
    st.builds(
        file,
        st.integers(0, 10**6),
        st.integers(0, 2 * SMALL_FILE),
        st.sampled_from("abc"),
        st.none() | st.text("0123456789", max_size=3),
    ),
    max_size=60,
    unique_by=lambda one: one["path"],
)


@given(files, st.integers(1, SMALL_FILE))
def test_only_small_files_of_one_stream_become_one_of_at_most_the_right_size_and_none_twice(some, below):
    groups = merges(some, below)
    paths = [one["path"] for group in groups for one in group]
    assert len(paths) == len(set(paths))
    for group in groups:
        assert len(group) > 1
        assert len({one["partition.stream"] for one in group}) == 1
        assert all(one["size_bytes"] < below for one in group)
        assert sum(one["size_bytes"] for one in group) <= MERGED_FILE
    for stream in "abc":
        keys = [
            one["min.checkpoint_key"] or "" for group in groups for one in group if one["partition.stream"] == stream
        ]
        assert all(first <= second for first, second in pairwise(keys))


@given(files)
def test_a_second_run_leaves_fewer_files_than_it_takes_to_merge_and_those_that_do_not_fit_together(some):
    merged = {one["path"] for group in merges(some) for one in group}
    small = [one for one in some if one["size_bytes"] < SMALL_FILE and one["path"] not in merged]
    for stream in "abc":
        left = [one for one in small if one["partition.stream"] == stream]
        assert len(left) < FEWEST_TO_MERGE


def test_the_report_says_what_was_done_or_would_be_and_what_was_left():
    done = CompactedTable(Table.EVENTS, 12, 1, 5 * MIB, 4 * MIB, 40, 10, 3, 2 * MIB, MIB, ("events, stream 's': gone",))
    report = CompactionReport((done,), dry_run=False, seconds=1.0)
    assert report.explain().splitlines() == [
        "events: 12 -> 1 files of 4.0 MiB, 40 -> 10 log entries, 3 files deleted, 2.0 MiB freed, 1.0 MiB wait",
        "left as it is: events, stream 's': gone",
        "2.0 MiB freed in 1.0 s",
    ]
    assert "3 files would be deleted" in CompactionReport((done,), dry_run=True, seconds=1.0).explain()
