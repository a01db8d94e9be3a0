"""What lives, goes and comes back: `ckpt streams`, `latest`, `pin`, `prune`, `undo`, `history` and `diff`."""

import asyncio
import json
import subprocess
from datetime import UTC, datetime, timedelta

import pytest

from catalog import CheckpointCatalog, CheckpointManifest, CheckpointManifestV2, ConflictError, keys, new_uuid7
from catalog.cli.changing import shell_word
from catalog.testing.native import NativeHarness

HOSTILE = "[red]x[/] 'q\"\n\x1b[31m\u00a0🦆\\"
UUIDS = sorted(new_uuid7() for _ in range(3))


@pytest.fixture
def harness(tmp_path):
    return NativeHarness(tmp_path / "catalog", durable=False)


@pytest.fixture
def place(harness, tmp_path):
    save(harness.catalog, "orders", range(1, 6))
    return tmp_path / "catalog"


def save(catalog, stream, numbers, **fields):
    store = catalog.store(stream)
    for number in numbers:
        store.save_with_state(CheckpointManifest.new(number, epoch=number, **fields), b"x" * 1000 * number)
    return store


def live(place, stream="orders"):
    with CheckpointCatalog.native(place) as catalog:
        return catalog.store(stream).list_ids()


# -- streams -----------------------------------------------------------------------------------------------------------


def test_streams_tell_the_health_of_each_in_one_line(ckpt, harness, place):
    catalog = harness.catalog
    catalog.store("orders").prune(3)
    save(catalog, "pending", [1, 2], sink_commit_statuses={"warehouse": "Pending"})
    save(catalog, HOSTILE, [1])
    save(catalog, "damaged", [1, 2])
    harness.corrupt_state("damaged", keys.integer_key(1))
    catalog.validate(depth="hashes")
    asyncio.run(catalog.checkpointer("prepared").save_manifest(CheckpointManifestV2.new(UUIDS[0], epoch=1)))
    done = ckpt("streams", place)
    assert (done.returncode, done.stderr) == (0, "")
    lines = {line[: len("prepared")].strip(): line for line in done.stdout.splitlines()}
    assert len(lines) == 1 + 5
    words = lines["orders"].split()
    assert words[1] == "5"
    assert words[-1] == "ok"
    assert " 3        2  0/0" in lines["orders"]
    assert lines["pending"].rstrip().endswith("nothing to recover from; a sink is still pending")
    assert lines["damaged"].rstrip().endswith("damaged: 1")
    assert lines["prepared"].rstrip().endswith("nothing committed")
    assert "\x1b" not in done.stdout


def test_streams_as_json_have_the_names_of_the_view(here, harness, place):
    harness.catalog.store("orders").prune(3)
    code, shown, told = here("streams", place, "--output", "json")
    (row,) = json.loads(shown)
    assert (code, told) == (0, "")
    assert 0 <= row.pop("latest_age_seconds") < 3600
    assert row == {
        "stream": "orders", "checkpoint_id": 5, "sinks_pending": 0, "sinks_failed": 0, "committed": 3, "prepared": 0,
        "trashed": 2, "bytes": 12_000, "trashed_bytes": 3000, "last_verified_at": None, "damaged": [], "problems": [],
    }  # fmt: skip


def test_a_damaged_checkpoint_that_went_or_was_found_sound_since_is_no_problem_any_more(here, harness, place):
    harness.corrupt_state("orders", keys.integer_key(1))
    harness.catalog.validate(depth="hashes")
    assert "damaged: 1" in here("streams", place)[1]
    harness.catalog.validate(depth="metadata")
    assert "damaged: 1" in here("streams", place)[1], "a look at the rows takes nothing back"
    harness.catalog.store("orders").prune(2)
    assert "damaged" not in here("streams", place)[1]


def test_no_streams_are_a_note_and_no_error(here, harness, tmp_path):  # noqa: ARG001 - makes the catalog
    assert here("streams", tmp_path / "catalog") == (0, "", "no streams\n")
    assert here("streams", tmp_path / "catalog", "--output", "json")[:2] == (0, "[]\n")


def test_latest_prints_the_id_and_nothing_else_and_says_by_its_code_that_there_is_none(here, harness, place):
    assert here("latest", place, "orders") == (0, "5\n", "")
    assert json.loads(here("latest", place, "orders", "--output", "json")[1])["epoch"] == 5
    asyncio.run(harness.catalog.checkpointer("new").save_manifest(CheckpointManifestV2.new(UUIDS[0], epoch=1)))
    assert here("latest", place, "new") == (3, "", "stream 'new' has no committed checkpoint\n")
    assert here("latest", place, "new", "--output", "json")[:2] == (3, "null\n")
    code, shown, told = here("latest", place, "order")
    assert (code, shown) == (1, "")
    assert told == "ckpt: there is no stream 'order': perhaps 'orders' is meant; `ckpt streams` shows all\n"


# -- prune and undo ----------------------------------------------------------------------------------------------------


def test_prune_shows_its_plan_and_the_very_command_that_undoes_it(ckpt, place):
    done = ckpt("prune", place, "orders", "--keep", "2")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert [line.split()[1:3] for line in lines[1:6]] == [
        ["1", "remove"], ["2", "remove"], ["3", "remove"], ["4", "keep"], ["5", "keep"]
    ]  # fmt: skip
    assert lines[1].endswith("1.0 KiB  1.0 KiB  not one of the newest 2")
    assert lines[5].endswith("4.9 KiB           one of the newest 2")
    assert lines[7] == "3 of 5 checkpoints went to the trash, 5.9 KiB once swept"
    until = datetime.fromisoformat(lines[8].removeprefix("orders: until ").split(" UTC")[0]).replace(tzinfo=UTC)
    assert timedelta(days=6, hours=23) < until - datetime.now(UTC) <= timedelta(days=7)
    assert lines[9] == f"ckpt undo {place} orders 1 2 3"
    assert live(place) == [4, 5]
    undone = ckpt(*lines[9].split()[1:])
    assert (undone.returncode, undone.stderr) == (0, "")
    assert undone.stdout.splitlines() == [f"{number}: taken out of the trash" for number in (1, 2, 3)]
    assert live(place) == [1, 2, 3, 4, 5]


def test_a_dry_prune_says_the_same_and_does_nothing(here, place):
    code, shown, told = here("prune", place, "orders", "--keep", 2, "--dry-run")
    assert (code, told) == (0, "")
    assert "3 of 5 checkpoints would go to the trash, 5.9 KiB once swept" in shown
    assert "ckpt undo" not in shown
    assert live(place) == [1, 2, 3, 4, 5]


def test_prune_as_json_has_the_plan_the_reasons_and_the_commands(here, place):
    code, shown, _ = here("prune", place, "orders", "--keep", 4, "--undo-for", "2h", "--output", "json")
    found = json.loads(shown)
    assert (code, found["undo"], found["errors"]) == (0, [f"ckpt undo {place} orders 1"], {})
    assert found["planned"][0] == {
        "stream": "orders", "checkpoint_id": 1, "keep": False, "reason": "not one of the newest 4", "bytes": 1000,
        "freed_bytes": 1000,
    }  # fmt: skip
    until = datetime.fromisoformat(found["undo_until"]["orders"])
    assert timedelta(hours=1) < until - datetime.now(UTC) <= timedelta(hours=2)


def test_prune_by_policies_is_for_all_streams_or_for_one(here, harness, place, tmp_path):
    save(harness.catalog, "other", range(1, 4))
    file = tmp_path / "retention.toml"
    file.write_text('[[retention]]\nstreams = "o*"\nlast = 1\n')
    assert here("prune", place, "other", "--policies", file)[0] == 0
    assert (live(place), live(place, "other")) == ([1, 2, 3, 4, 5], [3])
    code, shown, _ = here("prune", place, "--policies", file, "--output", "json")
    assert (code, json.loads(shown)["undo"]) == (0, [f"ckpt undo {place} orders 1 2 3 4"])
    file.write_text('[[retention]]\nstreams = "zzz"\nlast = 1\n')
    assert here("prune", place, "--policies", file)[1].startswith("no live checkpoints that a policy is for\n")


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["orders"],
        ["--keep", "1"],
        ["orders", "--keep", "0"],
        ["orders", "--keep", "-1"],
        ["orders", "--keep", "x"],
        ["orders", "--keep", "1", "--policies", "file"],
        ["orders", "--policies", "no such file"],
        ["orders", "--policies", "file", "--undo-for", "1d"],
        ["orders", "--keep", "1", "--undo-for", "soon"],
    ],
)
def test_prune_without_a_clear_policy_is_a_usage_error_and_does_nothing(here, place, options):
    code, shown, told = here("prune", place, *options)
    assert (code, shown) == (2, "")
    assert told
    assert live(place) == [1, 2, 3, 4, 5]


def test_a_stream_that_cannot_be_pruned_is_told_and_the_others_are(here, harness, place, tmp_path, monkeypatch):
    save(harness.catalog, "broken", [1, 2])
    file = tmp_path / "retention.toml"
    file.write_text("[[retention]]\nlast = 1\n")
    apply = CheckpointCatalog.apply_retention

    def fail_for_one(self, policies, streams, **options):
        if streams == ["broken"]:
            raise ConflictError("somebody else is faster")
        return apply(self, policies, streams, **options)

    monkeypatch.setattr(CheckpointCatalog, "apply_retention", fail_for_one)
    code, shown, told = here("prune", place, "--policies", file)
    assert (code, told) == (3, "")
    assert shown.splitlines()[-1] == "left alone: broken: somebody else is faster"
    assert (live(place), live(place, "broken")) == ([5], [1, 2])
    code, shown, _ = here("prune", place, "broken", "--keep", 1)
    assert (code, shown) == (3, "left alone: broken: somebody else is faster\n")


def test_undo_tells_of_each_and_its_code_says_whether_all_some_or_none(here, place):
    assert here("prune", place, "orders", "--keep", 2)[0] == 0
    code, shown, told = here("undo", place, "orders", 1, 1, 5, 9)
    assert (code, told) == (3, "")
    assert shown.splitlines() == [
        "1: taken out of the trash", "5: was not in the trash", "9: stream 'orders' has no checkpoint 9"
    ]  # fmt: skip
    code, shown, told = here("undo", place, "orders", 9)
    assert (code, shown) == (1, "")
    assert told == "ckpt: 9: stream 'orders' has no checkpoint 9\n"
    assert here("undo", place, "orders", "x")[0] == 2
    assert here("undo", place, "orders")[0] == 2
    assert here("undo", place, "order", 2)[0] == 1
    assert live(place) == [1, 4, 5]


def test_undo_takes_a_wrong_update_back(here, harness, place):
    store = harness.catalog.store("orders")
    right = store.load_by_id(5).with_sink_status("warehouse", "Pending")
    store.update_manifest(right)
    store.update_manifest(right.with_sink_status("warehouse", "Committed"))
    code, shown, _ = here("undo", place, "orders", 5, "--update")
    assert (code, shown) == (0, "5: its last update was taken back\n")
    assert harness.catalog.store("orders").load_by_id(5) == right
    assert here("undo", place, "orders", 1, "--update")[0] == 1


def test_streams_of_uuids_are_pruned_and_undone_too(here, harness, tmp_path):
    checkpointer = harness.catalog.checkpointer("clicks")

    async def fill():
        for id in UUIDS:
            await checkpointer.save_manifest(CheckpointManifestV2.new(id, epoch=1))
            await checkpointer.update_latest(id)

    asyncio.run(fill())
    place = tmp_path / "catalog"
    code, shown, _ = here("prune", place, "clicks", "--keep", 1, "--output", "json")
    (command,) = json.loads(shown)["undo"]
    assert (code, command) == (0, f"ckpt undo {place} clicks {UUIDS[0]} {UUIDS[1]}")
    assert here(*command.split()[1:])[0] == 0
    assert asyncio.run(checkpointer.list_checkpoints()) == UUIDS


@pytest.mark.parametrize("stream", ["", "-dash", "with space", "it's", HOSTILE])
def test_the_undo_command_can_be_pasted_into_a_shell_whatever_the_stream_is_called(here, harness, tmp_path, stream):
    save(harness.catalog, stream, (1, 2))
    code, shown, _ = here("prune", "--keep", 1, "--", tmp_path / "catalog", stream)
    assert code == 0
    command = shown.splitlines()[-1]
    assert command.isprintable()
    split = subprocess.run(
        ["bash", "-c", f'ckpt() {{ printf "%s\\0" "$@"; }}; {command}'], capture_output=True, check=True
    )
    assert here(*split.stdout.decode().split("\0")[:-1])[0] == 0
    assert live(tmp_path / "catalog", stream) == [1, 2]


def test_a_word_for_the_shell_is_quoted_only_if_it_must_be():
    assert [shell_word(one) for one in ("a/b-1", "a b", "")] == ["a/b-1", "'a b'", "''"]


def test_list_shows_the_trash_and_how_long(here, place):
    assert here("list", place, "--trash") == (0, "", "nothing in the trash\n")
    here("prune", place, "orders", "--keep", 4)
    code, shown, _ = here("list", place, "--trash", "--output", "json")
    (row,) = json.loads(shown)
    assert (code, row["checkpoint_id"], row["status"]) == (0, 1, "trashed")
    assert datetime.fromisoformat(row["undo_until"]) > datetime.now(UTC) + timedelta(days=6)
    assert "undo until (UTC)" in here("list", place, "--trash")[1]
    assert "undo until" not in here("list", place)[1]


# -- pins --------------------------------------------------------------------------------------------------------------


def test_a_pinned_checkpoint_stays_until_it_is_unpinned(here, place):
    assert here("pin", place, "orders", 1, "--reason", "audit") == (0, "pinned checkpoint 1 for ever\n", "")
    assert here("prune", place, "orders", "--keep", 1)[0] == 0
    assert live(place) == [1, 5]
    code, shown, _ = here("unpin", place, "orders", 1, "--output", "json")
    assert (code, json.loads(shown)["was_pinned"]) == (0, True)
    assert here("unpin", place, "orders", 1) == (0, "checkpoint 1 was not pinned\n", "")
    assert here("prune", place, "orders", "--keep", 1)[0] == 0
    assert live(place) == [5]
    assert here("pin", place, "orders", 1, "--reason", "late")[0] == 1


def test_a_pin_ends_when_it_says_and_not_in_the_past(here, place):
    code, shown, _ = here("pin", place, "orders", 1, "--reason", "audit", "--until", "2100-01-01")
    assert (code, shown) == (0, "pinned checkpoint 1 until 2100-01-01 00:00:00 UTC\n")
    for options in (["--until", "2001-01-01"], ["--until", "x"]):
        assert here("pin", place, "orders", 2, "--reason", "audit", *options)[:2] == (2, "")
    assert here("pin", place, "orders", 2)[:2] == (2, "")
    with CheckpointCatalog.native(place) as catalog:
        assert [one.id for one in catalog.histories()["orders"].values() if one.pins] == [1]


def test_of_several_pins_each_holds_by_itself_and_is_taken_back_by_its_name(here, place):
    for reason, *options in (("legal hold",), ("copying", "--until", "2100-01-01"), ("drill", "--name", "weekly")):
        assert here("pin", place, "orders", 1, "--reason", reason, *options)[0] == 0
    code, shown, _ = here("show", place, "orders", 1)
    assert code == 0
    assert "legal hold; until 2100-01-01" in shown
    assert "drill (weekly)" in shown
    code, shown, error = here("unpin", place, "orders", 1)
    assert (code, shown) == (2, "")
    assert "has 3 pins: name one of 'legal hold', 'copying', 'weekly'" in error
    assert here("unpin", place, "orders", 1, "--name", "drill")[:2] == (2, "")
    assert here("unpin", place, "orders", 1, "--name", "copying")[0] == 0
    code, shown, _ = here("unpin", place, "orders", 1, "--name", "weekly")
    assert (code, shown) == (0, "unpinned checkpoint 1; it is still pinned: legal hold\n")
    assert here("unpin", place, "orders", 1) == (0, "unpinned checkpoint 1\n", "")
    assert here("pin", place, "orders", 1, "--reason", " ")[:2] == (2, "")
    assert here("unpin", place, "orders", 1) == (0, "checkpoint 1 was not pinned\n", "")


# -- show --------------------------------------------------------------------------------------------------------------


def test_show_tells_what_validation_has_found_so_far(here, harness, place):
    def verified():
        (line,) = [line for line in here("show", place, "orders", 5)[1].splitlines() if line.startswith("verified")]
        return line.split(maxsplit=1)[1]

    assert verified() == "never"
    harness.catalog.validate(["orders"], depth="metadata")
    assert verified().endswith("UTC: only its rows")
    assert here("validate", place)[0] == 0
    assert verified().endswith("UTC: sound")
    harness.corrupt_state("orders", keys.integer_key(5))
    assert here("validate", place)[0] == 3
    assert verified().endswith("UTC: damaged, `ckpt validate` tells what")


# -- delete ------------------------------------------------------------------------------------------------------------


def test_a_certain_one_is_deleted_and_taken_out_again(here, place):
    code, shown, _ = here("delete", place, "orders", 5, 2, 5, "--reason", "damaged", "--undo-for", "2h")
    undo = f"ckpt undo {place} orders 5 2"
    assert (code, shown) == (0, f"2 checkpoints went to the trash\nfor 2 h this takes them out again:\n{undo}\n")
    assert live(place) == [1, 3, 4]
    with CheckpointCatalog.native(place) as catalog:
        assert {one.trash.reason for one in catalog.histories()["orders"].values() if one.trash} == {"damaged"}
    assert here("delete", place, "orders", 5) == (0, "0 checkpoints went to the trash\ngone already: 5\n", "")
    assert here("undo", place, "orders", 2, 5)[0] == 0
    assert live(place) == [1, 2, 3, 4, 5]


def test_what_may_not_be_deleted_is_refused_and_nothing_goes(here, place):
    assert here("pin", place, "orders", 1, "--reason", "audit")[0] == 0
    code, shown, told = here("delete", place, "orders", 2, 1)
    assert (code, shown, "checkpoint 1 is pinned" in told) == (1, "", True)
    assert here("delete", place, "orders", 2, 99)[:2] == (1, "")
    assert here("delete", place, "orders", "x")[0] == 2
    assert here("delete", place, "order", 2)[0] == 1
    assert live(place) == [1, 2, 3, 4, 5]


# -- history and diff --------------------------------------------------------------------------------------------------


def test_history_tells_who_did_what_and_why_newest_last(here, harness, place):
    harness.catalog.store(HOSTILE).save(CheckpointManifest.new(1, epoch=1))
    here("pin", place, "orders", 1, "--reason", "audit")
    here("validate", place, "--stream", "orders")
    here("prune", place, "orders", "--keep", 4)
    here("unpin", place, "orders", 1)
    code, shown, told = here("history", place, "orders", 1)
    assert (code, told) == (0, "")
    lines = shown.splitlines()[1:]
    assert [line.split()[4] for line in lines] == ["saved", "pinned", "verified", "unpinned"]
    assert lines[1].rstrip().endswith("audit")
    assert lines[2].rstrip().endswith("depth hashes, valid true, bytes 1.0 KiB")
    rows = json.loads(here("history", place, "--output", "json")[1])
    assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)
    assert {row["stream"] for row in rows} == {"orders", HOSTILE}
    assert rows[-1]["event"] == "unpinned"
    assert next(row for row in rows if row["event"] == "verified")["details"]["depth"] == "hashes"
    assert len(json.loads(here("history", place, "--last", 2, "--output", "json")[1])) == 2
    assert "\x1b" not in here("history", place)[1]


def test_history_of_nothing_is_a_note_and_of_a_mistyped_stream_an_error(here, place):
    code, _, told = here("history", place, "orders", 77)
    assert (code, told) == (1, "ckpt: stream 'orders' has no checkpoint 77: `ckpt list` shows all\n")
    assert here("history", place, "order")[0] == 1
    assert here("history", place, "orders", "x")[0] == 2


def test_diff_tells_what_changed_as_text_and_as_json(here, place):
    code, shown, told = here("diff", place, "orders", 1, 2)
    assert (code, shown, told) == (0, "changed: state: 1000 -> 2000 bytes, 2000 changed\n", "")
    found = json.loads(here("diff", place, "orders", 1, 2, "--output", "json")[1])
    assert (found["before_id"], found["after_id"], found["changed_bytes"], found["positions"]) == (1, 2, 2000, [])
    assert found["parts"][0]["what"] == "changed"
    assert here("diff", place, "orders", 1, 99)[0] == 1
    assert here("diff", place, "orders", 1)[0] == 2
