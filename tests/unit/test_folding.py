"""Which chains are folded, and why: the plan, from rows alone."""

import json

import pytest

from catalog import AppendLog, CorruptError, artifact_path, chains, new_uuid7
from catalog.folding import FoldedChain, FoldReport, plan, tips
from catalog.lifecycle import Revision, fold
from catalog.manifest import CheckpointManifestV2, folded_path, sha256_text
from catalog.retention import keep_newest
from catalog.testing import FakeClock

LOG = {"log": AppendLog()}
CLOCK = FakeClock()


def checkpoint(key, parent, *changes, **columns):
    """Return the revisions of a checkpoint of one partition, a delta if it has a parent."""
    path = artifact_path(key, "log", 0, delta=parent is not None)
    entry = {"partition_id": 0, "is_delta": parent is not None, "path": path, "size_bytes": 10}
    manifest = CheckpointManifestV2.new(key, 1, operators={"log": {"partitions": [entry]}}, parent_id=parent)
    text = manifest.canonical()
    first = {"manifest": text, "manifest_sha256": sha256_text(text), "epoch": 1, "attempt": "a", "parent": parent}
    base = {"stream": "s", "checkpoint_key": key, "format": "manifest-v2", "insert_id": "i", "at": CLOCK()}
    return [
        Revision(**base, revision=number, change=change, **(first if number == 0 else columns))
        for number, change in enumerate(changes or ("prepared", "promoted"))
    ]


def folded(key, parent, *, details=None):
    one = {"operator": "log", "partition": 0, "path": folded_path(key, "log", 0), "size_bytes": 40, "sha256": "h"}
    told = json.dumps({"folds": [one]}) if details is None else details
    rows = checkpoint(key, parent)
    extra = checkpoint(key, parent, "prepared", "promoted", "folded", attempt="f", details=told)[2]
    return [*rows, extra]


def line(count):
    ids = [new_uuid7() for _ in range(count)]
    return ids, [checkpoint(key, parent) for key, parent in zip(ids, [None, *ids], strict=False)]


def history(rows):
    return fold([row for some in rows for row in some])


def test_the_newest_committed_of_each_line_is_folded_also_when_prepared_ones_stand_on_it():
    ids, rows = line(4)
    branch, prepared = new_uuid7(), new_uuid7()
    rows += [checkpoint(branch, ids[1]), checkpoint(prepared, ids[3], "prepared")]
    assert tips(history(rows)) == [ids[3], branch]


def test_a_snapshot_has_no_chain_and_what_is_below_a_fold_is_not_the_newest_of_a_line():
    ids, rows = line(4)
    assert tips(history(rows[:1])) == []
    rows[3] = folded(ids[3], ids[2])
    assert tips(history(rows)) == []
    following = new_uuid7()
    assert tips(history([*rows, checkpoint(following, ids[3])])) == [following]


def test_a_fold_ends_the_chain_and_frees_what_it_stood_on():
    ids, rows = line(5)
    rows[3] = folded(ids[3], ids[2])
    known = history(rows)
    (found,) = plan("s", ids[4], known, LOG, 2)
    assert [(key, entry.path) for key, entry in found.links] == [
        (ids[3], folded_path(ids[3], "log", 0)),
        (ids[4], artifact_path(ids[4], "log", 0, delta=True)),
    ]
    assert (found.row.links, found.row.bytes) == (2, 50)
    assert chains.needed_by(known, [ids[4]]) == {ids[3]: ids[4]}
    assert set(keep_newest(known, 1, CLOCK()).trash) == set(ids[:3])
    assert known[ids[3]].attempts == ("a", "f")
    assert known[ids[3]].attempt_of(folded_path(ids[3], "log", 0)) == "f"
    assert known[ids[3]].attempt_of("other") == "a"


def test_every_chain_has_a_reason():
    ids, rows = line(5)
    known = history(rows)
    reasons = [plan("s", ids[4], known, *arguments)[0].row for arguments in [(LOG, 5), (LOG, 6), ({}, 5)]]
    assert [(one.folded, one.reason) for one in reasons] == [
        (True, "5 links, at least 5"),
        (False, "5 links, fewer than 6"),
        (False, "5 links, but its format is not known: neither a manifest nor a folder tells it"),
    ]
    (broken,) = plan("s", ids[4], history([*rows[:2], *rows[3:]]), LOG, 2)
    assert (broken.row.folded, broken.row.failed, broken.row.links) == (False, True, 0)
    assert f"its parent {ids[2]} does not exist" in broken.row.reason


@pytest.mark.parametrize("details", ["", "{", "[]", '{"folds": [{"operator": "log"}]}', '{"folds": 1}'])
def test_a_fold_that_does_not_tell_what_was_folded_is_corrupt(details):
    key = new_uuid7()
    found = history([folded(key, new_uuid7(), details=details)])[key]
    with pytest.raises(CorruptError, match="unreadable"):
        assert found.folded
    assert found.attempts == ("a", "f"), "its bytes are kept all the same"


def test_the_report_says_what_was_done_and_what_was_left():
    one = FoldedChain("s", "k", "log", 0, True, "3 links became one snapshot", "append-log", 3, 3 << 20, 2 << 20)
    other = FoldedChain("s", "k", "odd", 1, False, "3 links, but its format is not known", None, 3, 9)
    report = FoldReport((one, other), False, 1.25)
    assert (report.folded, report.left) == ((one,), (other,))
    assert report.explain().splitlines() == [
        "fold s k 'log' partition 0: 3 links became one snapshot",
        "leave s k 'odd' partition 1: 3 links, but its format is not known",
        "1 of 2 chains folded, 3.0 MiB into 2.0 MiB, in 1.2 s",
    ]
    assert "1 of 2 chains would be folded, 3.0 MiB, in" in FoldReport((one, other), True, 0).explain()
