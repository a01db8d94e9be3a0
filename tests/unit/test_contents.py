"""What a source's bytes become in the tables, without any I/O."""

import base64
import hashlib
import json

import pytest

from catalog import Layout, keys
from catalog.chunks import Stored
from catalog.manifest import CheckpointManifest, StateManifest
from catalog.moving import contents
from catalog.moving.layouts import Candidate, FileFacts
from tests import sources

ID, OTHER = "01900000-0000-7000-8000-000000000001", "01900000-0000-7000-8000-000000000002"
KEY = keys.integer_key(7)


def candidate(*parts, key=KEY):
    return Candidate(key, FileFacts("manifest", 1), {part: FileFacts(part, 1) for part in parts})


def read(raw, layout=Layout.OBJECTS, one=None, others=()):
    one = one or candidate()
    return contents.read(layout, one, raw, {other.key: other for other in (one, *others)}, "s")


class TestManifests:
    def test_canonical_bytes_are_all_that_is_kept(self):
        raw = CheckpointManifest.new(7, epoch=1).canonical().encode()
        found = read(raw)
        assert (found.text.encode(), found.keep_raw, found.problem) == (raw, False, None)

    @pytest.mark.parametrize(
        "raw",
        [
            sources.manifest(7),
            b'{"version":1,"checkpoint_id":7,"epoch":1,"timestamp_ms":1}',
            sources.manifest(7) + b"\n",
        ],
    )
    def test_other_bytes_of_a_manifest_are_kept_beside_its_canonical_text(self, raw):
        found = read(raw)
        assert (found.text, found.keep_raw) == (CheckpointManifest.from_json(raw).canonical(), True)

    @pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"version": 1}', sources.manifest(7, epoch=-1)])
    def test_text_that_is_no_manifest_is_kept_as_it_is_with_the_reason(self, raw):
        found = read(raw)
        assert (found.manifest, found.text.encode(), found.keep_raw) == (None, raw, False)
        assert found.sha256 == hashlib.sha256(raw).hexdigest()
        assert found.problem.startswith("manifest is unreadable: ")

    def test_bytes_that_are_no_text_are_kept_beside_an_empty_manifest(self):
        found = read(b'{"a": "\xff"}')
        assert (found.text, found.keep_raw) == (None, True)
        assert "not UTF-8: invalid start byte at byte 7" in found.problem

    def test_a_checksum_of_the_state_alone_is_completed_only_if_it_is_right(self):
        raw = sources.manifest(7, b"state", operator_states={"op": {"state_b64": "YQ=="}})
        for sha256, completed in ((sources.sha256(b"state"), True), (sources.sha256(b"else"), False)):
            stored = {"state.bin": Stored("state.bin", 5, sha256)}
            found, told = contents.with_whole_checksum(read(raw, one=candidate("state.bin")), stored, "mixed")
            assert ((found.manifest.state_checksum == "mixed"), bool(told)) == (completed, completed)


class TestPartitions:
    PART = "operators/agg/partition-0.snap"

    def entries(self, path, key=ID):
        return sources.manifest_v2(key, [("agg", 0, False, path, b"x")])

    @pytest.mark.parametrize("prefix", ["", f"{ID}/", f"checkpoints/{ID}", f"s3://bucket/a/{ID}/"])
    def test_paths_begin_with_the_checkpoint_whatever_they_began_with(self, prefix):
        raw = self.entries(prefix + self.PART)
        found = read(raw, Layout.PARTITIONS, candidate(self.PART, key=ID))
        assert list(found.parts) == [f"{ID}/{self.PART}"]
        assert found.manifest.operators["agg"].partitions[0].path == f"{ID}/{self.PART}"
        assert found.keep_raw

    def test_a_file_of_another_checkpoint_can_be_listed(self):
        other = candidate(self.PART, key=OTHER)
        found = read(self.entries(f"{OTHER}/{self.PART}"), Layout.PARTITIONS, candidate(key=ID), [other])
        assert found.parts[f"{OTHER}/{self.PART}"].file == other.parts[self.PART]

    def test_a_path_in_a_manifest_reaches_no_file_outside_of_the_source(self):
        found = read(self.entries("../../etc/passwd"), Layout.PARTITIONS, candidate(self.PART, key=ID))
        assert not found.parts
        assert [file.path for file in found.unlisted] == [self.PART]

    def test_files_beside_are_kept_for_the_way_back(self):
        found = read(self.entries(self.PART), Layout.PARTITIONS, candidate(self.PART, "offsets/kafka.json", key=ID))
        assert found.parts["source/offsets/kafka.json"].kind == "source"
        assert not found.unlisted

    def test_of_an_unreadable_manifest_all_files_are_kept_with_their_operators(self):
        found = read(b"{", Layout.PARTITIONS, candidate("operators/a b/partition-3.delta", key=ID))
        (part,) = found.parts.values()
        assert (part.kind, part.columns) == ("delta", {"operator": "a b", "partition": 3})


class TestStates:
    def test_bytes_ride_inline_as_they_are_in_whatever_order(self):
        raw = sources.state(7, order=None)
        found = read(raw, Layout.STATES)
        assert base64.b64decode(json.loads(found.text)["state_b64"]) == raw
        assert (found.keep_raw, dict(found.parts)) == (False, {})

    def test_unreadable_bytes_become_an_artifact_without_a_manifest(self):
        found = read(sources.state(7)[:-1], Layout.STATES)
        assert (found.manifest, found.text, list(found.parts)) == (None, None, [StateManifest.STATE_PATH])
        assert "at byte" in found.problem


def test_only_names_that_are_not_the_usual_ones_are_remembered():
    one = Candidate(
        KEY, FileFacts("manifests/manifest-7.json", 1), {"state.bin": FileFacts("checkpoints/state-000007.bin", 1)}
    )
    parts = {path: contents.Part(file, "state") for path, file in one.parts.items()}
    assert contents.named_files(Layout.OBJECTS, one, parts) == {"": "manifests/manifest-7.json"}
