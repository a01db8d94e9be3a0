"""Way in and out: every layout byte for byte, every kind of damage told, and nothing overwritten; native engine."""

import asyncio
import json
import os
import threading
import tracemalloc
from datetime import UTC, datetime

import pytest

from catalog import (
    AppendLog,
    CatalogError,
    CheckpointCatalog,
    CheckpointedStateScope,
    CheckpointExistsError,
    CheckpointId,
    CheckpointManifest,
    CheckpointManifestV2,
    CheckpointNotFoundError,
    CheckpointState,
    CorruptError,
    InvalidInputError,
    Last,
    Retention,
    artifact_path,
    keys,
    new_uuid7,
)
from catalog.lifecycle import Status
from catalog.moving import layouts
from catalog.moving.finding import find_plan
from catalog.moving.storage import Storage
from catalog.testing.native import NativeHarness
from tests import sources
from tests.sources import put, taken

CORRUPT, IMPORTED, PRESENT, SKIPPED, EXPORTED = (
    "imported as corrupt",
    "imported",
    "already there",
    "skipped",
    "exported",
)


@pytest.fixture
def harness(tmp_path):
    return NativeHarness(tmp_path / "catalog", maintain_every=0)


@pytest.fixture
def catalog(harness):
    return harness.catalog


def outcomes(report):
    return {line.file if line.checkpoint_id is None else line.checkpoint_id: str(line.outcome) for line in report.lines}


def faulty_rules(catalog, stream="s", depth="hashes"):
    found = catalog.validate([stream], depth=depth, record=False).results
    return {result.checkpoint_id: {issue.rule for issue in result.failures} for _, result in found if not result.valid}


def status(catalog, key, stream="s"):
    return catalog.stream(stream).find(key).status


IDS = [new_uuid7() for _ in range(3)]
LAYOUTS = {
    "objects": (sources.objects([1, 2, 1_000_000]), [1, 2, 1_000_000]),
    "folders": (sources.folders([1, 2, 3]), [1, 2, 3]),
    "partitions": (sources.partitions(IDS), IDS),
    "partitions without the slash": (sources.partitions(IDS, slash="", prefix="checkpoints/"), IDS),
    "states": (
        {"a.bin": sources.state(0), "b.gz": sources.state(7, order=None), "deep/c": sources.state(2**64 - 1)},
        [0, 7, 2**64 - 1],
    ),
}


class TestEveryLayout:
    @pytest.mark.parametrize("name", LAYOUTS)
    def test_comes_in_whole_and_goes_out_with_the_same_names_and_bytes(self, catalog, tmp_path, name):
        files, ids = LAYOUTS[name]
        report = catalog.import_from(put(tmp_path / "in", files), "s")
        assert (outcomes(report), report.latest) == (dict.fromkeys(ids, IMPORTED), ids[-1])
        assert not report.faults
        assert report.layout == name.split()[0]
        assert not faulty_rules(catalog)
        assert catalog.recover("s").chosen_id == ids[-1]
        exported = catalog.export_to(tmp_path / "out", "s")
        assert outcomes(exported) == dict.fromkeys(ids, EXPORTED)
        assert taken(tmp_path / "out") == files

    def test_ids_statuses_checksums_and_times_stay(self, catalog, tmp_path):
        statuses = {"a": "Pending", "b": {"Failed": "full"}, "c": "Committed"}
        catalog.import_from(put(tmp_path / "in", sources.objects([5], sink_commit_statuses=statuses)), "s")
        store = catalog.store("s")
        found = store.load_by_id(5)
        assert json.loads(found.canonical())["sink_commit_statuses"] == statuses
        assert found.state_checksum == sources.sha256(b"state of 5")
        assert found.pipeline_hash == 0xDEADBEEFCAFE1234
        row = catalog.stream("s").find(keys.integer_key(5)).origin
        assert (row.sinks_pending, row.sinks_failed, row.sinks_committed) == (1, 1, 1)
        assert row.created_at == datetime.fromtimestamp(1_700_000_000.005, UTC)
        assert store.load_state_data(5) == b"state of 5"
        assert store.next_id() == 6

    def test_chains_are_followed_and_artifacts_load_by_their_paths(self, catalog, tmp_path):
        for stream, prefix in (("plain", ""), ("relative", "s3://bucket/ckpt/")):
            catalog.import_from(put(tmp_path / stream, sources.partitions(IDS, prefix=prefix)), stream)
            checkpointer = catalog.checkpointer(stream)
            links = asyncio.run(checkpointer.load_chain(IDS[2], "window.agg", 0))
            assert [link.data for link in links] == [b"bytes 0", b"bytes 1", b"bytes 2"]
            assert asyncio.run(checkpointer.load_artifact(links[1].path)) == b"bytes 1"

    def test_large_files_are_written_as_they_are_read(self, catalog, tmp_path):
        big = b"%d" + bytes(9 << 20)
        files = sources.objects([1], state=big) | sources.objects([2])
        catalog.import_from(put(tmp_path / "in", files), "s")
        assert not faulty_rules(catalog)
        catalog.export_to(tmp_path / "out", "s")
        assert taken(tmp_path / "out") == files

    def test_a_state_above_the_inline_limit_keeps_its_bytes_too(self, catalog, tmp_path):
        files = {"one": sources.state(1, size=3 << 20)}
        catalog.import_from(put(tmp_path / "in", files), "s")
        assert catalog.state_store().load("s", 1).operator_states["count"] == b"c" * (3 << 20)
        catalog.export_to(tmp_path / "out", "s")
        assert taken(tmp_path / "out") == files

    def test_a_checksum_of_the_state_file_alone_is_completed_where_inline_state_is_there_too(self, catalog, tmp_path):
        state = b"the rest"
        raw = sources.manifest(1, state, operator_states={"op": {"state_b64": "YQ=="}})
        files = {"checkpoints/checkpoint_000001/manifest.json": raw, "checkpoints/checkpoint_000001/state.bin": state}
        report = catalog.import_from(put(tmp_path / "in", files), "s")
        assert outcomes(report) == {1: IMPORTED}
        assert "of the state file alone" in report.lines[0].note
        assert not faulty_rules(catalog)
        catalog.export_to(tmp_path / "out", "s")
        assert taken(tmp_path / "out") == {**files, "checkpoints/latest.txt": b"checkpoint_000001"}


def without(files, *names):
    return {name: data for name, data in files.items() if name not in names}


FOUR = sources.objects([1, 2, 3, 4])
MANIFEST, STATE = "manifests/manifest-000004.json", "checkpoints/state-000004.bin"
DAMAGE = {
    "bad JSON": ({**FOUR, MANIFEST: b'{"version": 1'}, "manifest_unreadable"),
    "a manifest of no bytes": ({**FOUR, MANIFEST: b""}, "manifest_unreadable"),
    "a manifest that is no text": ({**FOUR, MANIFEST: b"\xff\xfe{}"}, "manifest_unreadable"),
    "text that would read well without its bad bytes": (
        {**FOUR, MANIFEST: FOUR[MANIFEST].replace(b"kafka", b"kafk\xff")},
        "manifest_unreadable",
    ),
    "a field of the wrong type": ({**FOUR, MANIFEST: sources.manifest(4, b"", epoch="4")}, "manifest_unreadable"),
    "another id than its name": ({**FOUR, MANIFEST: sources.manifest(3, b"state of 4")}, "id_mismatch"),
    "epoch 0": ({**FOUR, MANIFEST: sources.manifest(4, b"state of 4", epoch=0)}, "epoch_zero"),
    "a wrong checksum": ({**FOUR, MANIFEST: sources.manifest(4, b"else")}, "checksum_mismatch"),
    "no checksum": ({**FOUR, MANIFEST: sources.manifest(4)}, "checksum_missing"),
    "state that is missing": (without(FOUR, STATE), "state_missing"),
    "state that is truncated": ({**FOUR, STATE: b"state"}, "checksum_mismatch"),
    "state of no bytes": ({**FOUR, STATE: b""}, "checksum_mismatch"),
    "inline state beside a state file, and a checksum of neither": (
        {**FOUR, MANIFEST: sources.manifest(4, b"else", operator_states={"op": {"state_b64": "YQ=="}})},
        "checksum_mismatch",
    ),
    "inline state that is no base64": (
        {**FOUR, MANIFEST: sources.manifest(4, b"state of 4", operator_states={"op": {"state_b64": "%"}})},
        "inline_state_unreadable",
    ),
}


BROKEN = {
    "a link that leads nowhere": lambda file: file.symlink_to("nowhere"),
    "a link to itself": lambda file: file.symlink_to(file.name),
    "a pipe": os.mkfifo,
}


class TestDamage:
    @pytest.mark.parametrize("kind", DAMAGE)
    def test_comes_in_as_corrupt_is_found_by_validation_passed_by_recovery_and_goes_out_as_it_was(
        self, catalog, tmp_path, kind
    ):
        files, rule = DAMAGE[kind]
        report = catalog.import_from(put(tmp_path / "in", files), "s")
        assert outcomes(report) == {1: IMPORTED, 2: IMPORTED, 3: IMPORTED, 4: CORRUPT}
        assert report.lines[3].fault
        assert rule in faulty_rules(catalog)[4]
        assert catalog.store("s").list_ids() == [1, 2, 3, 4]
        recovered = catalog.recover("s")
        assert recovered.chosen_id == 3
        assert recovered.skipped[0] == (4, f"it was imported as corrupt: {report.lines[3].fault}")
        assert report.latest == catalog.store("s").load_latest().checkpoint_id == 3
        assert report.notes == ["manifests/latest.json says 4, but the latest is 3"]
        exported = catalog.export_to(tmp_path / "out", "s")
        assert [line.fault for line in exported.faults] == [report.lines[3].fault]
        assert taken(tmp_path / "out") == {**files, "manifests/latest.json": b'{"checkpoint_id":3}'}

    def test_retention_does_not_count_on_a_corrupt_one(self, catalog, tmp_path):
        catalog.import_from(put(tmp_path / "in", DAMAGE["bad JSON"][0]), "s")
        catalog.store("s").prune(1)
        assert catalog.recover("s").chosen_id == 3

    def test_everything_corrupt_is_a_fresh_start(self, catalog, tmp_path):
        report = catalog.import_from(put(tmp_path / "in", {MANIFEST: b"{"}), "s")
        assert (report.latest, catalog.recover("s").chosen_id) == (None, None)
        assert catalog.store("s").load_latest() is None
        catalog.export_to(tmp_path / "out", "s")
        assert taken(tmp_path / "out") == {MANIFEST: b"{"}

    @pytest.mark.parametrize(
        ("raw", "why"),
        [
            (b"", "it names no checkpoint"),
            (b'{"checkpoint_id": "x"}', "it names no checkpoint"),
            (b'{"checkpoint_id": 99}', "it names checkpoint 99, which is not there"),
        ],
    )
    def test_a_pointer_to_nothing_is_told_and_the_highest_valid_is_latest(self, catalog, tmp_path, raw, why):
        report = catalog.import_from(put(tmp_path / "in", {**FOUR, "manifests/latest.json": raw}), "s")
        assert [(line.file, line.fault) for line in report.faults] == [("manifests/latest.json", why)]
        assert report.latest == catalog.store("s").load_latest().checkpoint_id == 4

    def test_a_pointer_that_lags_is_told(self, catalog, tmp_path):
        files = {**FOUR, "manifests/latest.json": b'{"checkpoint_id": 2}'}
        report = catalog.import_from(put(tmp_path / "in", files), "s")
        assert report.notes == ["manifests/latest.json says 2, but the latest is 4"]
        assert not report.faults

    def test_strays_are_told_one_by_one_and_left(self, catalog, tmp_path):
        strays = {"README.md": b"x", "checkpoints/state-000009.bin": b"orphan", "manifests/manifest-x.json": b"{}"}
        report = catalog.import_from(put(tmp_path / "in", {**FOUR, **strays}), "s")
        assert {line.file: str(line.outcome) for line in report.faults} == dict.fromkeys(strays, SKIPPED)
        assert all(line.fault for line in report.faults)
        assert catalog.store("s").list_ids() == [1, 2, 3, 4]

    @pytest.mark.parametrize("files", [FOUR, {f"state-{n}": sources.state(n) for n in (1, 2, 3, 4)}])
    def test_what_a_killed_export_left_unfinished_is_told_and_is_no_checkpoint(self, catalog, tmp_path, files):
        unfinished = {".unfinished-export-5": sources.state(5), "deep/.unfinished-export-6": sources.state(6)[:-5]}
        report = catalog.import_from(put(tmp_path / "in", files | unfinished), "s")
        assert outcomes(report) == dict.fromkeys([1, 2, 3, 4], IMPORTED) | dict.fromkeys(unfinished, SKIPPED)
        assert {line.fault for line in report.faults} == {"an export that was killed left it unfinished"}

    def test_a_file_that_is_gone_when_it_is_read_is_told_and_the_others_come(self, catalog, tmp_path, monkeypatch):
        source, listing = put(tmp_path / "in", FOUR), Storage.list

        def list_then_lose(self):
            found = listing(self)
            (source / STATE).unlink()
            return found

        monkeypatch.setattr(Storage, "list", list_then_lose)
        report = catalog.import_from(source, "s")
        assert outcomes(report) == {1: IMPORTED, 2: IMPORTED, 3: IMPORTED, 4: SKIPPED}
        assert report.faults[0].fault.startswith(f"{STATE} could not be read")
        assert catalog.store("s").list_ids() == [1, 2, 3]

    @pytest.mark.parametrize("kind", BROKEN)
    def test_what_is_there_and_cannot_be_read_is_told_where_a_file_would_be(self, catalog, tmp_path, kind):
        broken = [MANIFEST, "checkpoints/state-000003.bin", "manifests/latest.json", "stray", "deep/er"]
        source = put(tmp_path / "in", without(FOUR, *broken))
        (source / "deep").mkdir()
        for name in broken:
            BROKEN[kind](source / name)
        report = catalog.import_from(source, "s")
        whole = {1: IMPORTED, 2: IMPORTED}
        assert outcomes(report) == whole | dict.fromkeys([3, 4, *broken[2:]], SKIPPED)
        why = {line.file: line.fault for line in report.faults}
        assert why.keys() == {"manifests/manifest-000003.json", MANIFEST, *broken[2:]}
        for name, file in ((MANIFEST, MANIFEST), ("manifests/manifest-000003.json", broken[1])):
            assert why[name].startswith(f"{file} could not be read: ")
        assert why["manifests/latest.json"].startswith("manifests/latest.json could not be read: ")
        assert outcomes(catalog.import_from(source, "s", dry_run=True)) == outcomes(report) | dict.fromkeys(
            whole, PRESENT
        )

    @pytest.mark.parametrize("kind", BROKEN)
    def test_a_state_that_is_there_and_cannot_be_read_is_told_by_its_number_or_its_name(self, catalog, tmp_path, kind):
        source = put(tmp_path / "in", {"state-1": sources.state(1)})
        for name in ("state-2", "stray"):
            BROKEN[kind](source / name)
        report = catalog.import_from(source, "s")
        assert outcomes(report) == {1: IMPORTED, 2: SKIPPED, "stray": SKIPPED}
        assert report.faults[0].fault.startswith("state-2 could not be read: ")


class TestLinks:
    IN_ITSELF = "it leads to a folder that it is in itself, and is not followed"

    def test_folders_that_are_links_are_followed_and_what_has_a_name_of_its_own_keeps_it(self, catalog, tmp_path):
        source = put(tmp_path / "in", sources.folders([1, 2, 3]))
        (source / "checkpoints").rename(tmp_path / "elsewhere")
        (source / "checkpoints").symlink_to("../elsewhere")
        (source / "latest").symlink_to("checkpoints/checkpoint_000003")
        report = catalog.import_from(source, "s")
        strays = dict.fromkeys(["latest/manifest.json", "latest/state.bin"], SKIPPED)
        assert outcomes(report) == dict.fromkeys([1, 2, 3], IMPORTED) | strays
        assert not faulty_rules(catalog)

    def test_links_that_lead_in_circles_are_told_and_nothing_is_listed_for_ever(self, catalog, tmp_path):
        source, elsewhere = put(tmp_path / "in", FOUR), put(tmp_path / "elsewhere", {"stray": b""})
        for link, folder in (("it", "."), ("again", "."), ("manifests/up", ".."), ("out", elsewhere)):
            (source / link).symlink_to(folder)
        (elsewhere / "back").symlink_to(source)
        report = catalog.import_from(source, "s")
        circles = ["again", "it", "manifests/up", "out/back"]
        assert outcomes(report) == dict.fromkeys([1, 2, 3, 4], IMPORTED) | dict.fromkeys(
            [*circles, "out/stray"], SKIPPED
        )
        assert [(line.file, line.fault) for line in report.faults[:-1]] == [(name, self.IN_ITSELF) for name in circles]

    def test_a_link_that_is_reached_through_others_is_followed_once_and_its_other_names_are_told(
        self, catalog, tmp_path
    ):
        """Links among a few folders, each to all others, would have more paths than anybody can list."""
        names = [f"folder{number}" for number in range(12)]
        source = put(tmp_path / "in", FOUR | {f"{name}/file": b"" for name in names})
        for name in names:
            for other in {*names} - {name}:
                (source / name / other).symlink_to(source / other)
        report = catalog.import_from(source, "s")
        told = {line.file: line.fault for line in report.faults}
        assert told["folder3/folder5/folder7"] == "it is the link that is followed as folder5/folder7"
        assert told["folder3/folder5/folder3"] == self.IN_ITSELF
        assert sum(name.endswith("/file") for name in told) == 12 * 12
        assert outcomes(report).items() >= dict.fromkeys([1, 2, 3, 4], IMPORTED).items()

    def test_a_target_with_a_link_in_circles_is_refused(self, catalog, tmp_path):
        catalog.import_from(put(tmp_path / "in", FOUR), "s")
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "it").symlink_to(".")
        with pytest.raises(InvalidInputError, match="holds it, which is no part of this export"):
            catalog.export_to(tmp_path / "out", "s")


def peak(work):
    """Return the most memory that Python held while this was done, and what it returned."""
    tracemalloc.start()
    try:
        done = work()
        return tracemalloc.get_traced_memory()[1], done
    finally:
        tracemalloc.stop()


class TestLarge:
    SIZE = 64 << 20

    def test_files_of_any_size_are_asked_for_states_without_being_kept_in_memory(self, tmp_path):
        large = sources.state(7, size=self.SIZE)
        source = put(tmp_path / "in", {"7": large, "8": large[:-1], "text": b"some words " * (self.SIZE // 11)})
        with (source / "zeros").open("wb") as file:
            file.truncate(self.SIZE)
        most, plan = peak(lambda: find_plan(Storage(source), None, 1))
        assert [one.key for one in plan.candidates] == [keys.integer_key(7), keys.integer_key(8)]
        assert plan.strays.keys() == {"text", "zeros"}
        assert most < self.SIZE // 4

    def test_a_wrong_folder_is_refused_without_its_files_being_read_as_a_whole(self, catalog, tmp_path):
        source = put(tmp_path / "in", {f"{name}.log": b"some words " * (self.SIZE // 11) for name in "ab"})

        def refused():
            with pytest.raises(InvalidInputError, match="no checkpoints are recognized among the 2 files"):
                catalog.import_from(source, "s")

        assert peak(refused)[0] < self.SIZE // 4


class TestDamagedPartitions:
    A, B, C = IDS
    ARTIFACT = "operators/window.agg/partition-0"

    def imported(self, catalog, tmp_path, files):
        report = catalog.import_from(put(tmp_path / "in", files), "s")
        corrupt = {id for id, outcome in outcomes(report).items() if outcome == CORRUPT}
        assert corrupt == faulty_rules(catalog).keys()
        catalog.export_to(tmp_path / "out", "s")
        assert without(taken(tmp_path / "out"), "_latest") == without(files, "_latest")
        return report

    def test_a_missing_snapshot_breaks_what_stands_on_it(self, catalog, tmp_path):
        files = without(sources.partitions(IDS), f"{self.A}/{self.ARTIFACT}.snap")
        self.imported(catalog, tmp_path, files)
        rules = faulty_rules(catalog)
        assert rules == {self.A: {"state_missing"}, self.B: {"chain_broken"}, self.C: {"chain_broken"}}

    def test_other_bytes_than_listed_are_a_mismatch(self, catalog, tmp_path):
        self.imported(catalog, tmp_path, {**sources.partitions(IDS), f"{self.C}/{self.ARTIFACT}.delta": b"wrong"})
        assert faulty_rules(catalog) == {self.C: {"artifact_mismatch"}}
        assert catalog.recover("s").chosen_id == self.B

    def test_an_unreadable_manifest_breaks_what_stands_on_it_and_keeps_its_files(self, catalog, tmp_path):
        self.imported(catalog, tmp_path, {**sources.partitions(IDS), f"{self.B}/manifest.json": b"{"})
        assert faulty_rules(catalog) == {self.B: {"manifest_unreadable"}, self.C: {"chain_broken"}}
        assert catalog.recover("s").chosen_id == self.A

    def test_a_parent_that_is_not_there_is_a_broken_chain_and_stops_no_clean_up(self, catalog, tmp_path):
        files = {name: data for name, data in sources.partitions(IDS).items() if not name.startswith(self.A)}
        report = self.imported(catalog, tmp_path, files)
        assert report.lines[0].fault == f"its deltas stand on {self.A}, which is not there"
        assert asyncio.run(catalog.checkpointer("s").cleanup_orphans()) == 0

    def test_a_parent_with_a_higher_id_comes_first_all_the_same(self, catalog, tmp_path):
        a, b = IDS[1], IDS[0]
        self.imported(catalog, tmp_path, sources.partitions([a, b]) | {"_latest": a.encode()})
        assert not faulty_rules(catalog)

    def test_two_that_stand_on_each_other_are_broken(self, catalog, tmp_path):
        files = sources.partitions([self.A, self.B])
        part = f"{self.A}/{self.ARTIFACT}.delta"
        raw = sources.manifest_v2(self.A, [("window.agg", 0, True, part, b"x")], parent=self.B)
        files = without(files, f"{self.A}/{self.ARTIFACT}.snap") | {part: b"x", f"{self.A}/manifest.json": raw}
        self.imported(catalog, tmp_path, files)
        assert faulty_rules(catalog).keys() == {self.A, self.B}

    def test_files_that_no_manifest_lists_are_told(self, catalog, tmp_path):
        files = sources.partitions(IDS) | {f"{self.C}/operators/else/partition-0.snap": b"x"}
        report = catalog.import_from(put(tmp_path / "in", files), "s")
        assert [(line.file, line.fault) for line in report.faults] == [
            (f"{self.C}/operators/else/partition-0.snap", "no manifest lists it")
        ]

    def test_a_file_that_two_manifests_list_goes_out_once_as_it_was_called(self, catalog, tmp_path):
        self.imported(catalog, tmp_path, self.sharing(slash=""))
        assert not faulty_rules(catalog)

    def test_of_two_contents_of_one_file_one_goes_out_and_the_other_is_told(self, catalog, tmp_path):
        catalog.import_from(put(tmp_path / "other", sources.partitions([self.A])), "s")
        files = self.sharing(data=b"other")
        assert outcomes(catalog.import_from(put(tmp_path / "in", files), "s")) == {self.A: SKIPPED, self.B: IMPORTED}
        for dry_run in (True, False):
            report = catalog.export_to(tmp_path / "out", "s", dry_run=dry_run)
            assert (outcomes(report), report.latest) == ({self.A: EXPORTED, self.B: SKIPPED}, self.A)
            assert report.faults[0].fault == f"checkpoint {self.A} has other bytes under the name of one of its files"
        assert taken(tmp_path / "out") == taken(tmp_path / "other")

    def sharing(self, slash="/", data=b"shared"):
        part = f"{self.A}{slash}{self.ARTIFACT}.snap"
        entries = [("window.agg", 0, False, part, data)]
        manifests = {f"{id}{slash}manifest.json": sources.manifest_v2(id, entries) for id in (self.A, self.B)}
        return {**manifests, part: data}

    def test_what_the_pointer_has_not_reached_is_prepared_until_it_has(self, catalog, tmp_path):
        files = {**sources.partitions(IDS), "_latest": self.B.encode()}
        report = catalog.import_from(put(tmp_path / "in", files), "s")
        assert outcomes(report) == dict.fromkeys(IDS, IMPORTED)
        assert (status(catalog, self.C), report.latest, catalog.recover("s").chosen_id) == (
            Status.PREPARED,
            self.B,
            self.B,
        )
        catalog.export_to(tmp_path / "out", "s")
        assert taken(tmp_path / "out") == files
        again = catalog.import_from(put(tmp_path / "in", {"_latest": self.C.encode()}), "s")
        assert outcomes(again) == dict.fromkeys(IDS, PRESENT)
        assert (status(catalog, self.C), again.latest) == (Status.COMMITTED, self.C)

    def test_a_parent_that_is_only_in_the_catalog_is_stood_upon(self, catalog, tmp_path):
        files = sources.partitions(IDS)
        catalog.import_from(
            put(tmp_path / "in", {n: d for n, d in files.items() if self.C not in n and n != "_latest"}), "s"
        )
        rest = {name: data for name, data in files.items() if name.startswith(self.C)}
        assert outcomes(catalog.import_from(put(tmp_path / "rest", rest), "s")) == {self.C: IMPORTED}
        links = asyncio.run(catalog.checkpointer("s").load_chain(self.C, "window.agg", 0))
        assert [link.data for link in links] == [b"bytes 0", b"bytes 1", b"bytes 2"]

    def test_a_delta_never_stands_on_other_content_of_its_parents_id(self, catalog, tmp_path):
        part = f"{self.A}/{self.ARTIFACT}.snap"
        other = {
            part: b"other",
            f"{self.A}/manifest.json": sources.manifest_v2(self.A, [("window.agg", 0, False, part, b"other")]),
        }
        catalog.import_from(put(tmp_path / "other", other), "s")
        report = catalog.import_from(put(tmp_path / "in", sources.partitions([self.A, self.B])), "s")
        assert outcomes(report) == {self.A: SKIPPED, self.B: CORRUPT}


class TestDamagedStates:
    def test_a_truncated_state_comes_in_as_corrupt_under_the_number_of_its_name(self, catalog, tmp_path):
        files = {"state-1": sources.state(1), "state-2": sources.state(2)[:-5], "state-3": b"", "junk": b"x"}
        report = catalog.import_from(put(tmp_path / "in", files), "s")
        assert outcomes(report) == {1: IMPORTED, 2: CORRUPT, 3: CORRUPT, "junk": SKIPPED}
        assert faulty_rules(catalog) == {2: {"manifest_unreadable"}, 3: {"manifest_unreadable"}}
        assert catalog.recover("s").chosen_id == 1
        assert catalog.state_store().latest("s").id.sequence == 1
        with pytest.raises(CorruptError):
            catalog.state_store().load("s", 2)
        catalog.export_to(tmp_path / "out", "s")
        assert taken(tmp_path / "out") == without(files, "junk")


class TestAgain:
    def test_a_second_run_finds_what_is_there_writes_nothing_and_takes_what_is_new(self, harness, catalog, tmp_path):
        catalog.import_from(put(tmp_path / "in", sources.objects([1, 2])), "s")
        before = harness.checkpoint_rows("s"), harness.artifact_rows("s")
        assert outcomes(catalog.import_from(tmp_path / "in", "s")) == {1: PRESENT, 2: PRESENT}
        assert (harness.checkpoint_rows("s"), harness.artifact_rows("s")) == before
        report = catalog.import_from(put(tmp_path / "in", sources.objects([3])), "s")
        assert (outcomes(report), report.latest) == ({1: PRESENT, 2: PRESENT, 3: IMPORTED}, 3)

    @pytest.mark.parametrize(
        "changed", [{STATE: b"statE of 4"}, {MANIFEST: sources.manifest(4, b"state of 4", epoch=9)}]
    )
    def test_other_content_under_an_id_is_told_and_never_overwritten(self, harness, catalog, tmp_path, changed):
        catalog.import_from(put(tmp_path / "in", FOUR), "s")
        before = harness.checkpoint_rows("s"), harness.artifact_rows("s")
        report = catalog.import_from(put(tmp_path / "in", changed), "s")
        assert outcomes(report) == {1: PRESENT, 2: PRESENT, 3: PRESENT, 4: SKIPPED}
        assert "already there with other content" in report.faults[0].fault
        assert (harness.checkpoint_rows("s"), harness.artifact_rows("s")) == before
        assert catalog.store("s").load_state_data(4) == b"state of 4"

    def test_what_a_producer_saved_itself_is_the_same_content(self, catalog, tmp_path):
        store = catalog.store("s")
        store.save_with_state(CheckpointManifest.from_json(FOUR[MANIFEST]), b"state of 4")
        report = catalog.import_from(put(tmp_path / "in", FOUR), "s")
        assert outcomes(report) == {1: IMPORTED, 2: IMPORTED, 3: IMPORTED, 4: PRESENT}

    def test_ids_in_the_trash_are_told_and_stay_there(self, catalog, tmp_path):
        catalog.import_from(put(tmp_path / "in", FOUR), "s")
        catalog.store("s").prune(3)
        report = catalog.import_from(tmp_path / "in", "s")
        assert outcomes(report) == {1: SKIPPED, 2: PRESENT, 3: PRESENT, 4: PRESENT}
        assert "is in the trash" in report.faults[0].fault
        assert catalog.store("s").list_ids() == [2, 3, 4]

    def test_two_imports_at_once_make_one_of_everything(self, catalog, tmp_path, monkeypatch):
        """The other run saves everything after this one has looked, and before it saves."""
        source, other = put(tmp_path / "in", FOUR), CheckpointCatalog.native(tmp_path / "catalog")
        stream = type(catalog.stream("s"))
        insert, ran = stream.insert, []

        def after_the_other(self, rows, unless=()):
            if not ran:
                ran.append(True)
                ran.append(other.import_from(source, "s"))
            return insert(self, rows, unless)

        monkeypatch.setattr(stream, "insert", after_the_other)
        report = catalog.import_from(source, "s")
        assert outcomes(ran[1]) == dict.fromkeys([1, 2, 3, 4], IMPORTED)
        assert outcomes(report) == dict.fromkeys([1, 2, 3, 4], PRESENT)
        assert not faulty_rules(catalog)

    def test_a_dry_run_says_the_same_and_writes_nothing(self, harness, catalog, tmp_path):
        source = put(tmp_path / "in", {**DAMAGE["a wrong checksum"][0], "stray": b""})
        planned = catalog.import_from(source, "s", dry_run=True)
        assert (catalog.streams(), harness.artifact_rows("s")) == ([], 0)
        done = catalog.import_from(source, "s")
        assert (planned.lines, planned.latest, planned.notes) == (done.lines, done.latest, done.notes)

    def test_several_are_read_at_a_time(self, catalog, tmp_path, monkeypatch):
        two, read = threading.Barrier(2), Storage.read

        def read_together(self, path):
            if path.startswith("manifests/manifest-"):
                two.wait(timeout=30)  # alone it would wait for ever
            return read(self, path)

        source = put(tmp_path / "in", FOUR)
        monkeypatch.setattr(Storage, "read", read_together)
        assert outcomes(catalog.import_from(source, "s", threads=2)) == dict.fromkeys([1, 2, 3, 4], IMPORTED)

    def test_progress_is_told_up_to_the_end(self, catalog, tmp_path):
        told = []
        catalog.import_from(put(tmp_path / "in", FOUR), "s", progress=told.append)
        assert [one.checkpoints for one in told] == [1, 2, 3, 4]
        assert told[-1].bytes == told[-1].of_bytes == sum(map(len, without(FOUR, "manifests/latest.json").values()))


class TestRefusals:
    def test_nothing_recognized_is_refused_with_what_is_expected(self, catalog, tmp_path):
        put(tmp_path / "in", {"a.txt": b"x", "b/c": b"y"})
        with pytest.raises(
            InvalidInputError, match=r"no checkpoints are recognized among the 2 files .*manifest-N\.json"
        ):
            catalog.import_from(tmp_path / "in", "s")
        assert catalog.streams() == []

    def test_a_folder_too_high_is_refused_with_the_one_to_pass(self, catalog, tmp_path):
        put(tmp_path / "in" / "nodes" / "7", FOUR)
        with pytest.raises(InvalidInputError, match=r"; pass .*/in/nodes/7:"):
            catalog.import_from(tmp_path / "in", "s")

    def test_a_place_that_is_not_there_or_of_an_unknown_kind_is_refused(self, catalog, tmp_path):
        with pytest.raises(InvalidInputError, match="there is nothing at"):
            catalog.import_from(tmp_path / "missing", "s")
        with pytest.raises(InvalidInputError, match="cannot be reached"):
            catalog.import_from("gopher://host/x", "s")
        with pytest.raises(InvalidInputError, match="layout must be one of"):
            catalog.import_from(tmp_path, "s", layout="tar")

    def test_a_stream_of_another_format_is_refused_and_nothing_written(self, harness, catalog, tmp_path):
        catalog.store("s").save(CheckpointManifest.new(1, epoch=1))
        with pytest.raises(InvalidInputError, match="use another stream"):
            catalog.import_from(put(tmp_path / "in", sources.partitions(IDS)), "s")
        assert harness.artifact_rows("s") == 0

    def test_of_two_layouts_in_one_place_each_can_be_chosen(self, catalog, tmp_path):
        put(tmp_path / "in", {**sources.objects([5]), **sources.folders([1])})
        with pytest.raises(InvalidInputError, match="several layouts"):
            catalog.import_from(tmp_path / "in", "s")
        assert catalog.import_from(tmp_path / "in", "s", layout="objects").latest == 5
        catalog.import_from(tmp_path / "in", "s", layout="folders")
        assert catalog.store("s").list_ids() == [1, 5]


async def save_chain(checkpointer, ids, operator="a/../b", parent=None):
    for number, id in enumerate(ids):
        data, delta = b"part %d;" % number, parent is not None
        sha = await (checkpointer.save_delta if delta else checkpointer.save_snapshot)(id, operator, 0, data)
        path = artifact_path(id, operator, 0, delta=delta)
        entry = {"partition_id": 0, "is_delta": delta, "path": path, "size_bytes": len(data), "sha256": sha}
        operators = {operator: {"partitions": [entry], "format": "append-log"}}
        await checkpointer.save_manifest(CheckpointManifestV2.new(id, epoch=1, parent_id=parent, operators=operators))
        await checkpointer.update_latest(id)
        parent = id


class TestExport:
    def saved(self, catalog):
        store = catalog.store("s")
        for number in (1, 2):
            store.save_with_state(CheckpointManifest.new(number, epoch=1), b"saved %d" % number)
        return store

    @pytest.mark.parametrize("layout", ["objects", "folders"])
    def test_what_was_saved_here_goes_to_another_catalog_with_the_same_manifests(self, catalog, tmp_path, layout):
        store = self.saved(catalog)
        report = catalog.export_to(tmp_path / "out", "s", layout=layout)
        assert (report.layout, report.latest) == (layout, 2)
        other = CheckpointCatalog.native(tmp_path / "other", create=True)
        assert outcomes(other.import_from(tmp_path / "out", "copy")) == {1: IMPORTED, 2: IMPORTED}
        there = other.store("copy")
        assert [there.load_by_id(n) for n in (1, 2)] == [store.load_by_id(n) for n in (1, 2)]
        assert there.load_state_data(2) == b"saved 2"

    def test_shared_chunks_are_written_out_and_operators_with_hostile_names_stay_inside(self, catalog, tmp_path):
        store = catalog.store("s")
        for number in (1, 2):
            store.save_with_state(CheckpointManifest.new(number, epoch=1), bytes(1 << 20))
        catalog.export_to(tmp_path / "out", "s")
        assert {len(data) for name, data in taken(tmp_path / "out").items() if name.endswith(".bin")} == {1 << 20}
        ids = [new_uuid7() for _ in range(3)]
        asyncio.run(save_chain(catalog.checkpointer("chain"), ids))
        catalog.export_to(tmp_path / "a" / "b" / "c", "chain")
        assert {file.parts[0] for file in (tmp_path / "a").rglob("*.snap")} == {tmp_path.parts[0]}
        assert all(name.startswith(("b/c/0", "b/c/_latest")) for name in taken(tmp_path / "a"))
        other = CheckpointCatalog.native(tmp_path / "other", create=True)
        other.import_from(tmp_path / "a" / "b" / "c", "chain")
        links = asyncio.run(other.checkpointer("chain").load_chain(ids[2], "a/../b", 0))
        assert b"".join(link.data for link in links) == b"part 0;part 1;part 2;"

    def test_no_two_go_out_under_one_name(self, catalog, tmp_path):
        """Three came with the usual names of others, and the last of those names is that of one that was saved here."""
        named = {n: f"checkpoint-{n:020}.bin" for n in (6, 7, 8, 9)}
        files = {named[n + 1]: sources.state(n) for n in (6, 7, 8)}
        catalog.import_from(put(tmp_path / "in", files), "s")
        catalog.export_to(tmp_path / "alone", "s")
        assert taken(tmp_path / "alone") == files
        catalog.state_store().save(saved := CheckpointState(CheckpointId("s", 9)))
        assert outcomes(catalog.export_to(tmp_path / "out", "s")) == dict.fromkeys(named, EXPORTED)
        usual = {named[n]: sources.state(n) for n in (6, 7, 8)}
        assert taken(tmp_path / "out") == {**usual, named[9]: saved.serialize()}

    def test_of_two_that_came_with_one_name_the_other_takes_its_usual_one(self, catalog, tmp_path):
        for number in (1, 2):
            catalog.import_from(put(tmp_path / f"in {number}", {"state": sources.state(number)}), "s")
        catalog.export_to(tmp_path / "out", "s")
        assert taken(tmp_path / "out") == {
            "state": sources.state(1), "checkpoint-00000000000000000002.bin": sources.state(2)
        }  # fmt: skip

    def test_a_manifest_that_was_updated_here_goes_out_as_it_is_now(self, catalog, tmp_path):
        files = sources.objects([1], sink_commit_statuses={"warehouse": "Pending"})
        catalog.import_from(put(tmp_path / "in", files), "s")
        store = catalog.store("s")
        store.update_manifest(store.load_by_id(1).with_sink_status("warehouse", "Committed"))
        catalog.export_to(tmp_path / "out", "s")
        out = taken(tmp_path / "out")
        assert json.loads(out["manifests/manifest-000001.json"])["sink_commit_statuses"] == {"warehouse": "Committed"}
        assert outcomes(catalog.import_from(tmp_path / "in", "s")) == {1: PRESENT}

    def test_a_target_that_holds_something_else_is_refused_and_untouched(self, catalog, tmp_path):
        self.saved(catalog)
        put(tmp_path / "out", {"manifests/manifest-000009.json": b"{}"})
        with pytest.raises(InvalidInputError, match=r"holds manifests/manifest-000009\.json, which is no part"):
            catalog.export_to(tmp_path / "out", "s")
        assert taken(tmp_path / "out") == {"manifests/manifest-000009.json": b"{}"}

    def test_a_target_with_another_content_of_an_id_is_refused_and_untouched(self, catalog, tmp_path):
        self.saved(catalog)
        other = {"manifests/manifest-000002.json": sources.manifest(2)}
        with pytest.raises(InvalidInputError, match=r"another manifests/manifest-000002\.json"):
            catalog.export_to(put(tmp_path / "out", other), "s")
        assert taken(tmp_path / "out") == other

    @pytest.mark.parametrize("raw", [b"precious", b"", b'{"checkpoint_id": 9}', b'{"checkpoint_id": "2"}'])
    def test_a_target_whose_pointer_names_nothing_of_the_stream_is_refused_and_untouched(self, catalog, tmp_path, raw):
        self.saved(catalog)
        other = {"manifests/latest.json": raw}
        for dry_run in (True, False):
            with pytest.raises(
                InvalidInputError, match=r"another manifests/latest\.json .* no checkpoint of stream 's'"
            ):
                catalog.export_to(put(tmp_path / "out", other), "s", dry_run=dry_run)
        assert taken(tmp_path / "out") == other

    @pytest.mark.parametrize("layout", ["objects", "folders"])
    def test_the_pointer_of_an_earlier_export_is_moved_on_though_what_it_names_is_gone(self, catalog, tmp_path, layout):
        store = self.saved(catalog)
        catalog.export_to(tmp_path / "out", "s", layout=layout)
        store.save_with_state(CheckpointManifest.new(3, epoch=1), b"saved 3")
        assert catalog.export_to(tmp_path / "out", "s", layout=layout).latest == 3
        assert taken(tmp_path / "out")[layouts.POINTERS[layout]] == layouts.write_pointer(layout, keys.integer_key(3))
        pointer = {layouts.POINTERS[layout]: layouts.write_pointer(layout, keys.integer_key(1))}
        store.prune(1)
        assert catalog.export_to(put(tmp_path / "more", pointer), "s", layout=layout).latest == 3

    def test_an_interrupted_export_goes_on_and_leftover_bytes_of_something_else_are_told(self, catalog, tmp_path):
        self.saved(catalog)
        catalog.export_to(tmp_path / "out", "s")
        whole = taken(tmp_path / "out")
        for lost in ("manifests/manifest-000002.json", "manifests/latest.json"):
            (tmp_path / "out" / lost).unlink()
        assert outcomes(catalog.export_to(tmp_path / "out", "s")) == {1: PRESENT, 2: EXPORTED}
        assert taken(tmp_path / "out") == whole
        (tmp_path / "out" / "manifests/manifest-000002.json").unlink()
        put(tmp_path / "out", {"checkpoints/state-000002.bin": b"other"})
        report = catalog.export_to(tmp_path / "out", "s")
        assert outcomes(report) == {1: PRESENT, 2: SKIPPED}
        assert "already there with other bytes" in report.faults[0].fault
        assert "manifests/manifest-000002.json" not in taken(tmp_path / "out")

    def test_bytes_come_before_the_manifest_its_parents_before_it_and_the_pointer_last(
        self, catalog, tmp_path, monkeypatch
    ):
        ids = [new_uuid7() for _ in range(3)]
        asyncio.run(save_chain(catalog.checkpointer("s"), ids, "op"))
        written, write = [], Storage.write
        monkeypatch.setattr(
            Storage, "write", lambda self, path, pieces: (write(self, path, pieces), written.append(path))[0]
        )
        catalog.export_to(tmp_path / "out", "s", threads=4)
        at = {path: number for number, path in enumerate(written)}
        for number, id in enumerate(ids):
            kind = "delta" if number else "snap"
            assert at[f"{id}/operators/op/partition-0.{kind}"] < at[f"{id}/manifest.json"]
            assert not number or at[f"{ids[number - 1]}/manifest.json"] < at[f"{id}/manifest.json"]
        assert written[-1] == "_latest"

    def test_one_that_is_interrupted_writes_no_checkpoint_that_it_has_not_begun(self, catalog, tmp_path, monkeypatch):
        interrupted, write = threading.Event(), Storage.write

        def interrupt(_):
            interrupted.set()
            raise KeyboardInterrupt

        def write_later(self, path, pieces):
            if "000002" in path:
                interrupted.wait(timeout=30)
            write(self, path, pieces)

        monkeypatch.setattr(Storage, "write", write_later)
        catalog.import_from(put(tmp_path / "in", sources.objects(range(1, 41))), "s")
        with pytest.raises(KeyboardInterrupt):
            catalog.export_to(tmp_path / "out", "s", threads=1, progress=interrupt)
        there = taken(tmp_path / "out").keys()
        assert "manifests/manifest-000001.json" in there
        assert there.isdisjoint({"manifests/manifest-000040.json", "manifests/latest.json"})
        monkeypatch.undo()
        assert not catalog.export_to(tmp_path / "out", "s").faults
        assert taken(tmp_path / "out") == taken(tmp_path / "in")

    def test_a_folded_chain_whose_parents_are_gone_goes_out_as_a_snapshot(self, catalog, tmp_path):
        ids = [new_uuid7() for _ in range(3)]
        checkpointer = catalog.checkpointer("s")
        asyncio.run(save_chain(checkpointer, ids, "op"))
        catalog.fold_chains(["s"], folders={"op": AppendLog()}, min_links=2)
        catalog.apply_retention([Retention((Last(1),))])
        assert asyncio.run(checkpointer.list_checkpoints()) == [ids[2]]
        report = catalog.export_to(tmp_path / "out", "s")
        assert "folded" in report.lines[0].note
        other = CheckpointCatalog.native(tmp_path / "other", create=True)
        assert outcomes(other.import_from(tmp_path / "out", "s")) == {ids[2]: IMPORTED}
        (link,) = asyncio.run(other.checkpointer("s").load_chain(ids[2], "op", 0))
        assert link.data == b"part 0;part 1;part 2;"

    def test_an_imported_chain_that_was_folded_goes_out_as_it_came_until_its_parents_are_gone(self, catalog, tmp_path):
        files = sources.partitions(IDS, slash="")
        catalog.import_from(put(tmp_path / "in", files), "s")
        catalog.fold_chains(["s"], folders={"*": AppendLog()}, min_links=2)
        catalog.export_to(tmp_path / "whole", "s")
        assert taken(tmp_path / "whole") == files
        catalog.apply_retention([Retention((Last(1),))])
        catalog.export_to(tmp_path / "folded", "s")
        other = CheckpointCatalog.native(tmp_path / "other", create=True)
        assert outcomes(other.import_from(tmp_path / "folded", "s")) == {IDS[2]: IMPORTED}
        (link,) = asyncio.run(other.checkpointer("s").load_chain(IDS[2], "window.agg", 0))
        assert link.data == b"bytes 0bytes 1bytes 2"

    def test_what_a_live_one_stands_on_goes_out_from_the_trash_too_and_is_told(self, catalog, tmp_path):
        """Restored and pinned, a delta is valid here: its export has to be a whole chain as well."""
        chain, last = sources.partitions(IDS), new_uuid7()
        for source in (chain, sources.partitions([last])):
            catalog.import_from(put(tmp_path / "in", source), "s")
        catalog.apply_retention([Retention((Last(1),))])
        asyncio.run(catalog.checkpointer("s").restore(IDS[2]))
        catalog.stream("s").pin(IDS[2], "a backup needs it")
        planned = catalog.export_to(tmp_path / "out", "s", dry_run=True)
        report = catalog.export_to(tmp_path / "out", "s", threads=4)
        assert (planned.lines, report.latest, report.faults) == (report.lines, last, [])
        assert outcomes(report) == dict.fromkeys([*IDS, last], EXPORTED)
        why = f"it is in the trash here, and goes out because {IDS[2]} stands on it"
        assert [line.note for line in report.lines] == [why, why, None, None]
        assert taken(tmp_path / "out") == taken(tmp_path / "in")
        assert outcomes(catalog.export_to(tmp_path / "out", "s")) == dict.fromkeys([*IDS, last], PRESENT)
        other = CheckpointCatalog.native(tmp_path / "other", create=True)
        assert outcomes(other.import_from(tmp_path / "out", "s")) == dict.fromkeys([*IDS, last], IMPORTED)
        links = asyncio.run(other.checkpointer("s").load_chain(IDS[2], "window.agg", 0))
        assert [link.data for link in links] == [b"bytes 0", b"bytes 1", b"bytes 2"]

    def test_what_goes_into_the_trash_under_an_export_and_is_stood_upon_goes_out(self, catalog, tmp_path, monkeypatch):
        ids, listing, checkpointer = [new_uuid7() for _ in range(2)], Storage.list, catalog.checkpointer("s")

        def prune_then_list(self, **options):
            catalog.apply_retention([Retention((Last(1),))])
            asyncio.run(checkpointer.restore(ids[1]))
            return listing(self, **options)

        asyncio.run(save_chain(checkpointer, ids, "op"))
        asyncio.run(save_chain(checkpointer, [last := new_uuid7()], "op"))
        monkeypatch.setattr(Storage, "list", prune_then_list)
        assert outcomes(catalog.export_to(tmp_path / "out", "s")) == dict.fromkeys([*ids, last], EXPORTED)
        assert status(catalog, ids[0]) is Status.TRASHED

    def test_what_is_stood_upon_in_the_trash_and_was_folded_goes_out_as_a_snapshot(self, catalog, tmp_path):
        ids, checkpointer = [new_uuid7() for _ in range(3)], catalog.checkpointer("s")
        asyncio.run(save_chain(checkpointer, ids[:2], "op"))
        catalog.fold_chains(["s"], folders={"op": AppendLog()}, min_links=2)
        asyncio.run(save_chain(checkpointer, ids[2:], "op", ids[1]))
        asyncio.run(save_chain(checkpointer, [last := new_uuid7()], "op"))
        catalog.apply_retention([Retention((Last(1),))])
        asyncio.run(checkpointer.restore(ids[2]))
        report = catalog.export_to(tmp_path / "out", "s")
        assert outcomes(report) == dict.fromkeys([ids[1], ids[2], last], EXPORTED)
        assert "folded into; it is in the trash" in report.lines[0].note
        other = CheckpointCatalog.native(tmp_path / "other", create=True)
        other.import_from(tmp_path / "out", "s")
        links = asyncio.run(other.checkpointer("s").load_chain(ids[2], "op", 0))
        assert [link.data for link in links] == [b"part 0;part 1;", b"part 0;"]

    def test_state_in_checkpoint_streams_is_told_because_the_layout_has_no_place_for_it(self, catalog, tmp_path):
        store = self.saved(catalog)
        factory = store.stream_factory(3, threshold=0)
        with factory.create_checkpoint_state_output_stream("exclusive") as stream:
            stream.write(b"in a stream")
            handle = stream.close_and_get_handle()
        store.save_with_handles(CheckpointManifest.new(3, epoch=1, operator_handles={"op": {"it": handle}}), factory)
        report = catalog.export_to(tmp_path / "out", "s")
        assert (outcomes(report), report.latest) == ({1: EXPORTED, 2: EXPORTED, 3: SKIPPED}, 2)
        assert "checkpoint streams" in report.faults[0].fault

    def test_what_is_damaged_in_the_catalog_is_told_and_never_written(self, harness, catalog, tmp_path):
        self.saved(catalog)
        harness.corrupt_state("s", keys.integer_key(2))
        report = catalog.export_to(tmp_path / "out", "s")
        assert (outcomes(report), report.latest) == ({1: EXPORTED, 2: SKIPPED}, 1)
        assert sorted(taken(tmp_path / "out")) == [
            "checkpoints/state-000001.bin", "manifests/latest.json", "manifests/manifest-000001.json",
        ]  # fmt: skip

    def test_a_moment_can_be_exported(self, catalog, tmp_path):
        self.saved(catalog)
        version = catalog.engine.versions()[-1].number
        catalog.store("s").prune(1)
        assert outcomes(catalog.as_of(version=version).export_to(tmp_path / "out", "s")) == {1: EXPORTED, 2: EXPORTED}

    def test_no_such_stream_and_a_layout_of_another_format_are_refused(self, catalog, tmp_path):
        self.saved(catalog)
        with pytest.raises(CheckpointNotFoundError, match="no stream 'x' to export"):
            catalog.export_to(tmp_path / "out", "x")
        with pytest.raises(InvalidInputError, match="has no place for"):
            catalog.export_to(tmp_path / "out", "s", layout="partitions")
        assert not (tmp_path / "out").exists()

    def test_a_dry_run_says_what_cannot_be_exported(self, catalog, tmp_path):
        store = catalog.store("streams")
        factory = store.stream_factory(1)
        with factory.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE) as stream:
            stream.write(b"state" * 10_000)
            handle = stream.close_and_get_handle()
        store.save_with_handles(CheckpointManifest.new(1, epoch=1, operator_handles={"op": {"it": handle}}), factory)
        planned = catalog.export_to(tmp_path / "out", "streams", dry_run=True)
        assert outcomes(planned) == {1: SKIPPED}
        assert outcomes(catalog.export_to(tmp_path / "out", "streams")) == {1: SKIPPED}
        assert "no place" in planned.explain()

    def test_a_dry_run_refuses_what_the_run_refuses(self, catalog, tmp_path):
        self.saved(catalog)
        other = {"manifests/manifest-000002.json": sources.manifest(2)}
        with pytest.raises(InvalidInputError, match=r"another manifests/manifest-000002\.json"):
            catalog.export_to(put(tmp_path / "out", other), "s", dry_run=True)
        assert taken(tmp_path / "out") == other

    def test_a_dry_run_says_of_other_bytes_in_the_target_and_of_damage_here_what_the_run_says(
        self, harness, catalog, tmp_path
    ):
        self.saved(catalog).save_with_state(CheckpointManifest.new(3, epoch=1), b"saved 3")
        harness.corrupt_state("s", keys.integer_key(2))
        other = {"checkpoints/state-000001.bin": b"other", ".unfinished-export-1": b"left by a kill"}
        planned = catalog.export_to(put(tmp_path / "out", other), "s", dry_run=True)
        assert outcomes(planned) == {1: SKIPPED, 2: SKIPPED, 3: EXPORTED}
        assert taken(tmp_path / "out") == other
        done = catalog.export_to(tmp_path / "out", "s")
        assert (planned.lines, planned.latest) == (done.lines, done.latest)

    @pytest.mark.parametrize("kind", BROKEN)
    def test_a_target_whose_manifest_cannot_be_read_is_refused_and_other_files_told(self, catalog, tmp_path, kind):
        self.saved(catalog)
        state, manifest = tmp_path / "out/checkpoints/state-000001.bin", tmp_path / "out/manifests/manifest-000002.json"
        for file in (state, manifest):
            file.parent.mkdir(parents=True)
            BROKEN[kind](file)
        for dry_run in (True, False):
            with pytest.raises(CatalogError, match=r"manifests/manifest-000002\.json could not be read"):
                catalog.export_to(tmp_path / "out", "s", dry_run=dry_run)
        manifest.unlink()
        for dry_run in (True, False):
            report = catalog.export_to(tmp_path / "out", "s", dry_run=dry_run)
            assert outcomes(report) == {1: SKIPPED, 2: EXPORTED}
            assert report.faults[0].fault.startswith("checkpoints/state-000001.bin could not be read")

    def test_a_dry_run_writes_nothing(self, catalog, tmp_path):
        self.saved(catalog)
        assert outcomes(catalog.export_to(tmp_path / "out", "s", dry_run=True)) == {1: EXPORTED, 2: EXPORTED}
        assert not (tmp_path / "out").exists()


def test_a_save_after_an_import_takes_the_next_id_and_shares_what_was_imported(catalog, tmp_path):
    catalog.import_from(put(tmp_path / "in", sources.objects([7], state=b"%d" + bytes(1 << 20))), "s")
    store = catalog.store("s")
    with pytest.raises(CheckpointExistsError):
        store.save_with_state(CheckpointManifest.new(7, epoch=1), b"else")
    store.save_with_state(CheckpointManifest.new(store.next_id(), epoch=2), b"7" + bytes(1 << 20))
    assert store.list_ids() == [7, 8]
    assert catalog.stream("s").find(keys.integer_key(8)).origin.shared_bytes == (1 << 20) + 1


def test_on_s3_every_layout_comes_in_and_goes_out_byte_for_byte(catalog, s3_options):
    for name, (files, ids) in LAYOUTS.items():
        place = f"s3://bucket/{new_uuid7()}"
        source = Storage(f"{place}/in", s3_options)
        for path, data in files.items():
            source.write(path, [data])
        report = catalog.import_from(f"{place}/in", name, storage_options=s3_options)
        assert outcomes(report) == dict.fromkeys(ids, IMPORTED)
        catalog.export_to(f"{place}/out", name, storage_options=s3_options)
        target = Storage(f"{place}/out", s3_options)
        assert {file.path: target.read(file.path) for file in target.list()} == files
        assert set(outcomes(catalog.export_to(f"{place}/out", name, storage_options=s3_options)).values()) == {PRESENT}


def test_a_catalog_on_s3_imports_from_s3(s3_options):
    place = f"s3://bucket/{new_uuid7()}"
    source = Storage(f"{place}/in", s3_options)
    for path, data in FOUR.items():
        source.write(path, [data])
    with CheckpointCatalog.native(f"{place}/catalog", create=True, storage_options=s3_options) as catalog:
        assert outcomes(catalog.import_from(f"{place}/in", "s", storage_options=s3_options)) == dict.fromkeys(
            range(1, 5), IMPORTED
        )
        assert catalog.recover("s").chosen_id == 4


@pytest.mark.parametrize("pieces", [3, 40])
def test_a_write_that_fails_leaves_no_file_behind(tmp_path, s3_options, pieces):
    def failing():
        yield from [b"piece"] * pieces
        raise CorruptError("the bytes are not what was saved")

    for storage in (Storage(tmp_path / "out"), Storage(f"s3://bucket/{new_uuid7()}", s3_options)):
        with pytest.raises(CorruptError):
            storage.write("a/file", failing())
        assert storage.list(missing_ok=True) == []


def test_the_views_say_of_what_was_imported_what_validation_and_recovery_say(spark, tmp_path):
    """One stream for each kind of damage, and each layout's own."""
    streams = {f"kind {number}": files for number, (files, _) in enumerate(DAMAGE.values())}
    streams["whole"] = LAYOUTS["partitions"][0]
    streams["chain"] = {**sources.partitions(IDS), f"{IDS[1]}/manifest.json": b"{"}
    streams["gone"] = {name: data for name, data in sources.partitions(IDS).items() if IDS[0] not in name}
    streams["states"] = {"state-1": sources.state(1), "state-2": sources.state(2)[:-5]}
    with CheckpointCatalog.native(tmp_path / "catalog", create=True) as native:
        for stream, files in streams.items():
            native.import_from(put(tmp_path / stream, files), stream)
        shown, faulty = (
            {(stream, str(id)) for stream in streams for id in faulty_rules(native, stream, depth)}
            for depth in ("metadata", "hashes")
        )
        why = {(stream, str(id)): reason for stream in streams for id, reason in native.recover(stream).skipped}
    catalog = CheckpointCatalog.for_path(spark, tmp_path / "catalog")
    issues = catalog.view("validation_issues").where("severity = 'integrity'").collect()
    assert {(row.stream, row.checkpoint_id) for row in issues} == shown
    candidates = {(row.stream, row.checkpoint_id): row for row in catalog.view("recovery_candidates").collect()}
    assert why
    assert {one: candidates[one].reason for one in why} == why
    assert all(row.eligible is (one not in faulty) for one, row in candidates.items())
