"""Which files make which checkpoints, by their names alone."""

import pytest

from catalog import InvalidInputError, Layout, keys
from catalog.moving import layouts
from catalog.moving.layouts import FileFacts
from tests import sources

FIRST, SECOND = "01900000-0000-7000-8000-000000000001", "01900000-0000-7000-8000-000000000002"
FILES = {
    Layout.OBJECTS: sources.objects([1, 2]),
    Layout.FOLDERS: sources.folders([1, 2]),
    Layout.PARTITIONS: sources.partitions([FIRST, SECOND]),
}


def listed(names):
    return [FileFacts(name, 1) for name in names]


def key(number):
    return keys.integer_key(number, minimum=0)


class TestDetection:
    @pytest.mark.parametrize("layout", FILES)
    def test_every_layout_is_recognized_by_any_of_its_files_and_no_other_one_is(self, layout):
        for name in FILES[layout]:
            assert layouts.detect(listed([name, "README.md"])) is layout

    def test_files_of_none_are_of_no_layout(self):
        assert layouts.detect(listed(["a", "manifests/x.json", "checkpoints/7/manifest.json"])) is None

    def test_files_of_two_layouts_are_refused_with_both_names(self):
        with pytest.raises(InvalidInputError, match="objects and folders"):
            layouts.detect(listed([*FILES[Layout.OBJECTS], *FILES[Layout.FOLDERS]]))

    def test_who_gave_a_folder_too_high_is_told_which_ones_hold_checkpoints(self):
        files = listed([f"nodes/{node}/{name}" for node in "ab" for name in FILES[Layout.OBJECTS]])
        assert layouts.places(files) == ["nodes/a", "nodes/b"]
        assert layouts.places(listed([f"ckpt/{name}" for name in FILES[Layout.PARTITIONS]])) == ["ckpt"]


class TestNames:
    @pytest.mark.parametrize("number", [0, 7, 999_999, 1_000_000, 2**64 - 1])
    @pytest.mark.parametrize("layout", [Layout.OBJECTS, Layout.FOLDERS])
    def test_what_is_named_is_found_again_with_its_id(self, layout, number):
        names = [layouts.file_name(layout, key(number)), layouts.file_name(layout, key(number), "state.bin")]
        (found,) = layouts.plan(layout, listed(names)).candidates
        assert (found.key, found.manifest.path, found.parts["state.bin"].path) == (key(number), *names)

    def test_ids_are_padded_to_six_digits_as_the_seeds_show(self):
        assert layouts.file_name(Layout.OBJECTS, key(7)) == "manifests/manifest-000007.json"
        assert layouts.file_name(Layout.OBJECTS, key(7), "state.bin") == "checkpoints/state-000007.bin"
        assert layouts.file_name(Layout.FOLDERS, key(7)) == "checkpoints/checkpoint_000007/manifest.json"
        assert layouts.file_name(Layout.FOLDERS, key(7), "state.bin") == "checkpoints/checkpoint_000007/state.bin"
        assert layouts.file_name(Layout.PARTITIONS, FIRST) == f"{FIRST}/manifest.json"

    def test_checkpoints_come_in_the_order_of_their_ids_not_of_their_names(self):
        found = layouts.plan(Layout.OBJECTS, listed(sources.objects([1_000_000, 999_999, 3])))
        assert [one.key for one in found.candidates] == [key(3), key(999_999), key(1_000_000)]

    def test_a_path_in_a_manifest_may_be_relative_or_have_any_prefix_or_lack_its_slash(self):
        part = "operators/agg/partition-0.snap"
        for path in (part, f"/{part}", f"{FIRST}/{part}", f"s3://b/ckpt/{FIRST}/{part}", f"checkpoints/{FIRST}{part}"):
            assert layouts.within(FIRST, path) == (FIRST, part)
        assert layouts.within(SECOND, f"{FIRST}/{part}") == (FIRST, part)


class TestStrays:
    def why(self, layout, *names):
        found = layouts.plan(layout, listed([*FILES[layout], *names]))
        assert len(found.candidates) == 2
        return [found.strays[name] for name in names]

    @pytest.mark.parametrize("layout", FILES)
    def test_a_file_of_another_kind_is_told(self, layout):
        assert (
            self.why(layout, "notes.txt", "manifests/manifest-1.json.tmp") == [f"not a file of the layout {layout}"] * 2
        )

    def test_state_without_a_manifest_is_a_save_that_never_ended(self):
        (why,) = self.why(Layout.OBJECTS, "checkpoints/state-000009.bin")
        assert why == "checkpoint 9 has no manifest: its save never ended"

    def test_of_two_manifests_of_one_id_the_usual_name_counts(self):
        (why,) = self.why(Layout.OBJECTS, "manifests/manifest-1.json")
        assert why == "the same of checkpoint 1 as manifests/manifest-000001.json"

    def test_a_number_that_is_no_id_is_told(self):
        (why,) = self.why(Layout.OBJECTS, f"manifests/manifest-{2**64}.json")
        assert "2^64-1" in why
        assert self.why(Layout.FOLDERS, f"checkpoints/checkpoint_{'9' * 5000}/manifest.json")

    def test_a_uuid_that_does_not_sort_by_age_is_told(self):
        (why,) = self.why(Layout.PARTITIONS, "7f1f1c2e-0000-4000-8000-000000000000/manifest.json")
        assert "UUID version 7" in why


class TestStates:
    def plan(self, **sequences):
        return layouts.plan_states(listed(sequences), lambda file: sequences[file.path])

    def test_the_sequence_in_the_bytes_counts_not_the_name(self):
        assert [(one.key, one.manifest.path) for one in self.plan(a9=3, b=1).candidates] == [
            (key(1), "b"),
            (key(3), "a9"),
        ]

    def test_an_unreadable_file_has_the_number_of_its_name(self):
        found = self.plan(good=1, bad_2024_7=None)
        assert [one.key for one in found.candidates] == [key(1), key(7)]
        assert not found.strays

    def test_an_unreadable_file_without_a_number_or_with_a_taken_one_is_told(self):
        found = self.plan(good=7, bad=None, bad7=None, same=7)
        assert [one.manifest.path for one in found.candidates] == ["good"]
        assert found.strays == {
            "bad": "not a CheckpointState, and its name has no number",
            "bad7": "not a CheckpointState, and good has the sequence 7 of its name",
            "same": "it has the sequence 7, as good has",
        }

    def test_an_unreadable_file_is_no_damaged_state_if_it_is_too_large_to_be_read_as_a_whole(self):
        files = [FileFacts("bad7", 256 << 20), FileFacts("video8.mp4", 5 << 30)]
        found = layouts.plan_states(files, lambda _: None)
        assert [one.key for one in found.candidates] == [key(7)]
        why = "not a CheckpointState, and it has 5120 MiB: a damaged one is imported up to 256 MiB"
        assert found.strays == {"video8.mp4": why}


class TestPointers:
    @pytest.mark.parametrize(
        ("layout", "named"), [(Layout.OBJECTS, key(2)), (Layout.FOLDERS, key(2)), (Layout.PARTITIONS, SECOND)]
    )
    def test_what_is_written_is_read_again_and_is_what_the_store_writes(self, layout, named):
        raw = layouts.write_pointer(layout, named)
        assert raw == FILES[layout][layouts.POINTERS[layout]]
        assert layouts.read_pointer(layout, raw) == named

    @pytest.mark.parametrize("layout", FILES)
    @pytest.mark.parametrize("raw", [b"", b"\xff", b"{}", b"[1]", b'{"checkpoint_id": "2"}', b"checkpoint_x", b"null"])
    def test_anything_else_names_nothing(self, layout, raw):
        assert layouts.read_pointer(layout, raw) is None
