"""The two manifest generations, field by field, and their canonical JSON."""

import array
import base64
import hashlib
import json
from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from catalog import manifest as manifest_module
from catalog.errors import ArtifactNotFoundError, CorruptError, InvalidInputError
from catalog.keys import U64_MAX
from catalog.lifecycle import Change, Revision, fold
from catalog.manifest import (
    INLINE_THRESHOLD_BYTES,
    INLINE_THRESHOLD_MAX_BYTES,
    CheckpointManifest,
    CheckpointManifestV2,
    ConnectorCheckpoint,
    FailedSink,
    OperatorCheckpoint,
    OperatorEntry,
    PartitionEntry,
    SourceOffsetEntry,
    artifact_path,
    created_at,
    parse_stored,
    path_checkpoint,
    sha256_text,
)

ID = "0190163d-8694-739b-aea5-966c26f8ad91"
PARENT = "0190163d-8694-739b-aea5-966c26f8ad90"
REQUIRED = {"version": 1, "checkpoint_id": 7, "epoch": 8, "timestamp_ms": 9}
REQUIRED_V2 = {"version": 2, "checkpoint_id": ID, "epoch": 8, "timestamp_ms": 9}
I64_MIN, I64_MAX = -(2**63), 2**63 - 1
HUGE = 10**5000

FULL = {
    **REQUIRED,
    "source_offsets": {
        "kafka": {"offsets": {"partition-0": "1234"}, "epoch": 5, "metadata": {"topic": "orders"}},
        "pg": {"offsets": {"lsn": "0/1234ABCD"}, "epoch": 0, "metadata": {}},
    },
    "sink_epochs": {"delta": 4, "mail": 0},
    "sink_commit_statuses": {"delta": "Committed", "jdbc": "Pending", "mail": {"Failed": "no route"}},
    "table_offsets": {"rates": {"offsets": {"version": "42"}, "epoch": 1, "metadata": {}}},
    "operator_states": {
        "join": {"state_b64": "YQ==", "external": False, "external_offset": 0, "external_length": 0},
        "window": {"state_b64": None, "external": True, "external_offset": 2**63, "external_length": U64_MAX},
    },
    "table_store_checkpoint_path": "tables/7",
    "watermark": -5,
    "source_watermarks": {"kafka": I64_MIN, "pg": I64_MAX},
    "source_names": ["kafka", "pg"],
    "sink_names": ["delta", "jdbc", "mail"],
    "pipeline_hash": 0xDEADBEEFCAFE1234,
    "vnode_count": 65535,
    "state_checksum": "ab" * 32,
}
FULL_V2 = {
    **REQUIRED_V2,
    "operators": {
        "join": {
            "partitions": [
                {"partition_id": 0, "is_delta": False, "path": "p", "size_bytes": U64_MAX, "sha256": "cd" * 32},
                {"partition_id": 2**32 - 1, "is_delta": True, "path": "q", "size_bytes": 0, "sha256": None},
            ],
            "total_bytes": U64_MAX,
        }
    },
    "source_offsets": {"kafka": {"source_type": "kafka", "offsets": {"0": "12"}, "epoch": U64_MAX}},
    "parent_id": PARENT,
    "watermark": I64_MIN,
    "total_size_bytes": U64_MAX,
}


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def v1(**fields):
    return CheckpointManifest.from_dict({**REQUIRED, **fields})


def v2(**fields):
    return CheckpointManifestV2.from_dict({**REQUIRED_V2, **fields})


class TestFieldsOfVersion1:
    def test_a_new_manifest_has_version_1_this_moment_and_256_vnodes(self, monkeypatch):
        monkeypatch.setattr(manifest_module.keys, "now_ms", lambda: 1234)
        assert CheckpointManifest.new(7, 8).model_dump() == {
            "version": 1,
            "checkpoint_id": 7,
            "epoch": 8,
            "timestamp_ms": 1234,
            "source_offsets": {},
            "sink_epochs": {},
            "sink_commit_statuses": {},
            "table_offsets": {},
            "operator_states": {},
            "table_store_checkpoint_path": None,
            "watermark": None,
            "source_watermarks": {},
            "source_names": [],
            "sink_names": [],
            "pipeline_hash": None,
            "vnode_count": 256,
            "state_checksum": None,
        }

    def test_absent_in_json_a_field_is_empty_and_the_vnode_count_is_0(self):
        new = CheckpointManifest.new(7, 8, timestamp_ms=9)
        read = CheckpointManifest.from_json(json.dumps(REQUIRED))
        assert read.vnode_count == 0
        assert read == new.model_copy(update={"vnode_count": 0})

    def test_a_new_manifest_takes_its_time_and_vnodes_from_the_caller(self):
        made = CheckpointManifest.new(7, 8, timestamp_ms=0, vnode_count=0)
        assert (made.timestamp_ms, made.vnode_count) == (0, 0)

    def test_a_new_manifest_takes_models_and_plain_values_alike(self):
        models = CheckpointManifest.new(
            1,
            1,
            timestamp_ms=1,
            source_offsets={"a": ConnectorCheckpoint(offsets={"0": "1"}, epoch=2)},
            operator_states={"op": OperatorCheckpoint.from_bytes(b"x")},
            sink_commit_statuses={"s": FailedSink(Failed="why")},
        )
        plain = CheckpointManifest.new(
            1,
            1,
            timestamp_ms=1,
            source_offsets={"a": {"offsets": {"0": "1"}, "epoch": 2}},
            operator_states={"op": {"state_b64": "eA=="}},
            sink_commit_statuses={"s": {"Failed": "why"}},
        )
        assert models == plain

    @pytest.mark.parametrize("field", sorted(REQUIRED))
    def test_each_of_the_first_four_fields_is_required(self, field):
        fields = {name: value for name, value in FULL.items() if name != field}
        with pytest.raises(InvalidInputError, match=f"{field}: Field required"):
            CheckpointManifest.from_json(json.dumps(fields))

    @pytest.mark.parametrize("field", sorted(set(FULL) - set(REQUIRED)))
    def test_every_other_field_may_be_absent(self, field):
        fields = {name: value for name, value in FULL.items() if name != field}
        dumped = CheckpointManifest.from_json(json.dumps(fields)).model_dump()
        assert not dumped.pop(field)
        assert dumped == fields

    def test_a_full_manifest_comes_back_as_it_was(self):
        text = CheckpointManifest.from_json(json.dumps(FULL)).canonical()
        assert json.loads(text) == FULL
        assert CheckpointManifest.from_json(text).canonical() == text

    @pytest.mark.parametrize("field", ["checkpoint_id", "epoch", "timestamp_ms", "pipeline_hash"])
    @pytest.mark.parametrize("value", [0, 2**63, 0xDEADBEEFCAFE1234, U64_MAX])
    def test_u64_fields_do_not_wrap(self, field, value):
        assert json.loads(v1(**{field: value}).checked().canonical())[field] == value

    @pytest.mark.parametrize(
        ("field", "maximum"),
        [
            ("version", 2**32 - 1),
            ("checkpoint_id", U64_MAX),
            ("epoch", U64_MAX),
            ("timestamp_ms", U64_MAX),
            ("pipeline_hash", U64_MAX),
            ("vnode_count", 2**16 - 1),
        ],
    )
    def test_unsigned_fields_have_exactly_their_range(self, field, maximum):
        assert getattr(v1(**{field: maximum}), field) == maximum
        for wrong in (maximum + 1, -1, HUGE, True, 1.0, "1", [1]):
            with pytest.raises(InvalidInputError, match=field):
                v1(**{field: wrong})

    @pytest.mark.parametrize("field", ["watermark", "source_watermarks"])
    def test_watermarks_are_i64(self, field):
        def with_watermark(value):
            return v1(**{field: value if field == "watermark" else {"kafka": value}})

        for good in (I64_MIN, 0, I64_MAX):
            assert with_watermark(good).checked() == with_watermark(good)
        for wrong in (I64_MIN - 1, I64_MAX + 1, 0.5, "1", True):
            with pytest.raises(InvalidInputError, match=field):
                with_watermark(wrong)

    @pytest.mark.parametrize(
        "fields",
        [
            {"source_offsets": []},
            {"source_offsets": {"a": None}},
            {"source_offsets": {"a": {"epoch": 1}}},
            {"source_offsets": {"a": {"offsets": {}}}},
            {"source_offsets": {"a": {"offsets": {"0": 1}, "epoch": 1}}},
            {"source_offsets": {"a": {"offsets": {}, "epoch": -1}}},
            {"source_offsets": {"a": {"offsets": {}, "epoch": 1, "metadata": {"k": 1}}}},
            {"table_offsets": {"a": {"offsets": {}}}},
            {"sink_epochs": {"a": -1}},
            {"sink_epochs": {"a": 2**64}},
            {"sink_epochs": {"a" * 513: 1}},
            {"sink_commit_statuses": {"a": "pending"}},
            {"sink_commit_statuses": {"a": "Failed"}},
            {"sink_commit_statuses": {"a": {"Failed": 1}}},
            {"sink_commit_statuses": {"a": {"Failed": "x", "Committed": True}}},
            {"sink_commit_statuses": {"a": {}}},
            {"sink_commit_statuses": {"a": None}},
            {"operator_states": {"a": {"external": 1}}},
            {"operator_states": {"a": {"external_offset": 2**64}}},
            {"operator_states": {"a": {"external_length": -1}}},
            {"operator_states": {"a": {"state_b64": 1}}},
            {"operator_states": {"\ud800": {}}},
            {"table_store_checkpoint_path": 1},
            {"source_names": "kafka"},
            {"source_names": [1]},
            {"source_names": ["a" * 513]},
            {"sink_names": None},
            {"state_checksum": 1},
            {"vnode_count": None},
        ],
        ids=lambda fields: ascii(fields)[:60],
    )
    def test_a_value_of_the_wrong_type_is_refused_and_named(self, fields):
        with pytest.raises(InvalidInputError, match=next(iter(fields))):
            v1(**fields)

    def test_topology_names_are_sorted(self):
        made = v1(source_names=["b", "a", "ä"], sink_names=["z", "Z"])
        assert (made.source_names, made.sink_names) == (["a", "b", "ä"], ["Z", "z"])

    def test_statuses_have_the_json_shape_of_the_seed(self):
        made = v1(sink_commit_statuses=FULL["sink_commit_statuses"])
        assert json.loads(made.canonical())["sink_commit_statuses"] == FULL["sink_commit_statuses"]
        assert made.sink_commit_statuses["mail"] == FailedSink(Failed="no route")

    @pytest.mark.parametrize(
        ("status", "stored"),
        [
            ("Pending", "Pending"),
            ("Committed", "Committed"),
            ("Failed", {"Failed": "why"}),
            (FailedSink(Failed="x"), {"Failed": "x"}),
        ],
        ids=str,
    )
    def test_a_sink_status_is_changed_in_a_copy_and_the_others_stay(self, status, stored):
        before = v1(sink_commit_statuses={"a": "Pending", "b": {"Failed": "old"}}, unknown=1)
        after = before.with_sink_status("a", status, error="why")
        assert json.loads(after.canonical())["sink_commit_statuses"] == {"a": stored, "b": {"Failed": "old"}}
        assert before.sink_commit_statuses["a"] == "Pending"
        assert after.model_copy(update={"sink_commit_statuses": before.sink_commit_statuses}) == before

    @pytest.mark.parametrize(
        ("sink", "status"), [("a", "Done"), ("a", None), ("a", []), (5, "Pending"), ("a" * 513, "Pending")]
    )
    def test_a_status_or_sink_that_is_none_is_refused(self, sink, status):
        with pytest.raises(InvalidInputError, match="sink_commit_statuses"):
            v1().with_sink_status(sink, status)

    def test_a_manifest_cannot_be_changed_in_place(self):
        with pytest.raises(ValidationError, match="frozen"):
            v1().epoch = 9


class TestFieldsOfVersion2:
    def test_a_new_manifest_has_version_2_and_everything_else_empty(self, monkeypatch):
        monkeypatch.setattr(manifest_module.keys, "now_ms", lambda: 1234)
        assert CheckpointManifestV2.new(ID, 8).model_dump() == {
            "version": 2,
            "checkpoint_id": ID,
            "epoch": 8,
            "timestamp_ms": 1234,
            "operators": {},
            "source_offsets": {},
            "parent_id": None,
            "watermark": None,
            "total_size_bytes": 0,
        }

    @pytest.mark.parametrize("field", sorted(REQUIRED_V2))
    def test_each_of_the_first_four_fields_is_required(self, field):
        with pytest.raises(InvalidInputError, match=f"{field}: Field required"):
            CheckpointManifestV2.from_dict({name: value for name, value in FULL_V2.items() if name != field})

    @pytest.mark.parametrize("field", sorted(set(FULL_V2) - set(REQUIRED_V2)))
    def test_every_other_field_may_be_absent(self, field):
        fields = {name: value for name, value in FULL_V2.items() if name != field}
        dumped = CheckpointManifestV2.from_json(json.dumps(fields)).model_dump()
        assert not dumped.pop(field)
        assert dumped == fields

    def test_a_full_manifest_comes_back_as_it_was(self):
        assert json.loads(CheckpointManifestV2.from_json(json.dumps(FULL_V2)).canonical()) == FULL_V2

    def test_empty_defaults_inside_operators_and_sources(self):
        made = v2(operators={"a": {}}, source_offsets={"k": {"source_type": "kafka"}})
        assert made.operators["a"] == OperatorEntry(partitions=[], total_bytes=0)
        assert made.source_offsets["k"] == SourceOffsetEntry(source_type="kafka", offsets={}, epoch=0)

    @pytest.mark.parametrize("field", ["checkpoint_id", "parent_id"])
    def test_ids_are_uuid7_and_made_canonical(self, field):
        assert getattr(v2(**{field: ID.upper()}), field) == ID
        for wrong in ("7d444840-9dc0-41d1-b245-5ffdce74fad2", "latest", "", 7, "../x"):
            with pytest.raises(InvalidInputError, match=field):
                v2(**{field: wrong})

    def test_an_id_too_long_to_print_is_refused_like_any_other(self):
        with pytest.raises(InvalidInputError):
            CheckpointManifestV2.new(HUGE, 1)

    @pytest.mark.parametrize(
        "fields",
        [
            {"operators": {"a": {"partitions": {}}}},
            {"operators": {"a": {"total_bytes": -1}}},
            {"operators": {"a" * 513: {}}},
            {"operators": {"a": {"partitions": [{"partition_id": 0, "is_delta": False, "path": "p"}]}}},
            {"source_offsets": {"k": {}}},
            {"source_offsets": {"k": {"source_type": "kafka", "epoch": 2**64}}},
            {"watermark": I64_MAX + 1},
            {"total_size_bytes": 2**64},
        ],
        ids=lambda fields: str(fields)[:60],
    )
    def test_a_value_of_the_wrong_type_is_refused_and_named(self, fields):
        with pytest.raises(InvalidInputError, match=next(iter(fields))):
            v2(**fields)

    @pytest.mark.parametrize("partition", [-1, 2**32, 1.0, True, "0"])
    def test_a_partition_is_u32(self, partition):
        with pytest.raises(InvalidInputError, match="partition_id"):
            PartitionEntry.from_dict({"partition_id": partition, "is_delta": False, "path": "p", "size_bytes": 1})


class TestUnknownKeys:
    LEVELS = {  # noqa: RUF012
        "the manifest": (CheckpointManifest, {**FULL, "x-new": {"deep": [1, None, "ü"]}}),
        "a source": (CheckpointManifest, {**REQUIRED, "source_offsets": {"a": {"offsets": {}, "epoch": 1, "x": 1}}}),
        "a table": (CheckpointManifest, {**REQUIRED, "table_offsets": {"a": {"offsets": {}, "epoch": 1, "x": 1}}}),
        "an operator": (CheckpointManifest, {**REQUIRED, "operator_states": {"a": {"codec": "zstd"}}}),
        "manifest 2": (CheckpointManifestV2, {**FULL_V2, "x": False}),
        "an operator of 2": (CheckpointManifestV2, {**REQUIRED_V2, "operators": {"a": {"x": [1.5]}}}),
        "a partition": (
            CheckpointManifestV2,
            {
                **REQUIRED_V2,
                "operators": {
                    "a": {"partitions": [{"partition_id": 0, "is_delta": True, "path": "", "size_bytes": 0, "x": {}}]}
                },
            },
        ),
        "a source of 2": (CheckpointManifestV2, {**REQUIRED_V2, "source_offsets": {"a": {"source_type": "", "x": ""}}}),
    }

    @pytest.mark.parametrize("level", LEVELS)
    def test_they_survive_a_load_and_a_save_in(self, level):
        model, fields = self.LEVELS[level]

        def contains(whole, part):
            if isinstance(part, dict):
                return all(name in whole and contains(whole[name], value) for name, value in part.items())
            if isinstance(part, list):
                return len(whole) == len(part) and all(map(contains, whole, part))
            return whole == part

        saved = json.loads(model.from_json(json.dumps(fields)).checked().canonical())
        assert contains(saved, fields)

    def test_keys_named_like_methods_are_only_data(self):
        odd = {"canonical": 1, "checked": 2, "from_json": 3, "model_dump": 4, "model_config": 5, "__class__": 6}
        saved = json.loads(v1(**odd).checked().canonical())
        assert {name: saved[name] for name in odd} == odd

    def test_they_do_not_make_different_manifests_equal(self):
        assert v1(x=1) != v1(x=2)


class TestCanonicalJson:
    def test_it_is_sorted_without_spaces_and_in_utf8(self):
        made = v1(sink_names=["ü", "a"], zeta=1, alpha={"b": 1, "a": 2})
        text = made.canonical()
        assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert '"ü"' in text
        assert ", " not in text

    def test_it_does_not_depend_on_the_order_of_keys(self):
        backwards = dict(reversed(FULL.items()))
        backwards["operator_states"] = dict(reversed(FULL["operator_states"].items()))
        assert CheckpointManifest.from_dict(backwards).canonical() == CheckpointManifest.from_dict(FULL).canonical()

    def test_the_bytes_of_a_manifest_never_change(self):
        # A stored hash covers these bytes: a change of this text breaks every catalog there is.
        assert CheckpointManifest.from_dict(REQUIRED).canonical() == (
            '{"checkpoint_id":7,"epoch":8,"operator_states":{},"pipeline_hash":null,"sink_commit_statuses":{},'
            '"sink_epochs":{},"sink_names":[],"source_names":[],"source_offsets":{},"source_watermarks":{},'
            '"state_checksum":null,"table_offsets":{},"table_store_checkpoint_path":null,"timestamp_ms":9,'
            '"version":1,"vnode_count":0,"watermark":null}'
        )

    def test_the_bytes_of_a_manifest_of_version_2_never_change(self):
        assert CheckpointManifestV2.from_dict(REQUIRED_V2).canonical() == (
            f'{{"checkpoint_id":"{ID}","epoch":8,"operators":{{}},"parent_id":null,"source_offsets":{{}},'
            '"timestamp_ms":9,"total_size_bytes":0,"version":2,"watermark":null}'
        )

    def test_its_hash_is_over_the_utf8_bytes(self):
        assert sha256_text("ü") == hashlib.sha256(b"\xc3\xbc").hexdigest()

    @pytest.mark.parametrize(
        ("given", "meant"), [("source_offset", "source_offsets"), ("sinks_commit_statuses", "sink_commit_statuses")]
    )
    def test_a_misspelled_field_of_a_new_manifest_is_refused_and_any_other_key_is_kept(self, given, meant):
        with pytest.raises(InvalidInputError, match=f"no field '{given}': perhaps '{meant}' is meant"):
            CheckpointManifest.new(1, epoch=1, **{given: {}})
        assert CheckpointManifest.new(1, epoch=1, metadata={"loss": 1}).model_dump()["metadata"] == {"loss": 1}

    @pytest.mark.parametrize(
        "value",
        [float("nan"), float("inf"), float("-inf"), object(), b"bytes", {1, 2}, {1: 1, "a": 1}, "\ud800", HUGE, 1j],
        ids=lambda value: type(value).__name__,
    )
    def test_what_json_cannot_carry_is_refused_inside_unknown_keys(self, value):
        with pytest.raises(InvalidInputError):
            CheckpointManifest.from_dict({**REQUIRED, "x": [value]}).checked()

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800"], ids=ascii)
    def test_canonical_text_is_json_and_utf8_or_refused(self, value):
        with pytest.raises(InvalidInputError, match="not representable as JSON"):
            CheckpointManifest.from_dict({**REQUIRED, "x": [value]}).canonical()

    def test_a_value_that_contains_itself_is_refused(self):
        loop = []
        loop.append(loop)
        with pytest.raises(InvalidInputError):
            CheckpointManifest.from_dict({**REQUIRED, "x": loop}).checked()

    def test_deep_nesting_is_refused(self):
        with pytest.raises(InvalidInputError):
            v1(x=nested(5000)).checked()

    def test_deep_nesting_is_refused_in_a_new_manifest(self):
        with pytest.raises(InvalidInputError):
            CheckpointManifest.new(1, 1, x=nested(5000)).checked()


class TestFromJson:
    @pytest.mark.parametrize(
        "text",
        [
            "",
            " ",
            "{",
            "nothing",
            "null",
            "[]",
            "1",
            '"text"',
            "{}",
            "{'version': 1}",
            b"\xff\xfe\x00",
            b"\x80",
            "\ufeff{}",
            '{"version":1,"checkpoint_id":7,"epoch":8,"timestamp_ms":NaN}',
            '{"version":1,"checkpoint_id":7,"epoch":8,"timestamp_ms":9,"x":NaN}',
            '{"version":1,"checkpoint_id":7,"epoch":8,"timestamp_ms":9,"x":[-Infinity]}',
            '{"version":1,"checkpoint_id":7,"epoch":8,"timestamp_ms":1e3}',
            '{"version":1,"checkpoint_id":"7","epoch":8,"timestamp_ms":9}',
            '{"version":1,"checkpoint_id":' + "9" * 5000 + ',"epoch":8,"timestamp_ms":9}',
            '{"version":1,"checkpoint_id":7,"epoch":8,"timestamp_ms":9} trailing',
            '{"version":1,"checkpoint_id":7,"epoch":8,"timestamp_ms":9,"\\ud800":1}',
            '{"x":' + "[" * 100_000,
            "[" * 100_000 + "]" * 100_000,
            '{"a":' * 100_000,
        ],
        ids=lambda text: ascii(text)[:40],
    )
    def test_what_is_no_manifest_is_refused(self, text):
        with pytest.raises(InvalidInputError, match="CheckpointManifest: "):
            CheckpointManifest.from_json(text)

    @pytest.mark.parametrize("text", [None, 1, {}, REQUIRED, []], ids=repr)
    def test_what_is_no_text_is_refused(self, text):
        with pytest.raises(InvalidInputError, match="text or bytes"):
            CheckpointManifest.from_json(text)

    @pytest.mark.parametrize("fields", [None, 1, "x", [], {1: 2}, {None: 1, **REQUIRED}], ids=repr)
    def test_what_is_no_map_of_names_is_refused(self, fields):
        with pytest.raises(InvalidInputError):
            CheckpointManifest.from_dict(fields)

    def test_bytes_and_text_give_the_same(self):
        text = json.dumps(FULL, ensure_ascii=False)
        assert CheckpointManifest.from_json(text.encode()) == CheckpointManifest.from_json(text)

    def test_a_refusal_names_three_findings_and_counts_the_rest(self):
        with pytest.raises(InvalidInputError) as caught:
            CheckpointManifest.from_dict({"vnode_count": -1})
        assert "version: Field required; checkpoint_id: Field required; epoch: Field required (and 2 more)" in str(
            caught.value
        )


class TestChecked:
    def test_a_good_manifest_is_returned_as_it_is(self):
        made = CheckpointManifest.from_dict(FULL)
        assert made.checked() == made

    @pytest.mark.parametrize(
        "garbage",
        [
            {"epoch": "one"},
            {"epoch": -1},
            {"checkpoint_id": 2**64},
            {"version": None},
            {"timestamp_ms": 1.5},
            {"vnode_count": 65536},
            {"source_names": ["a" * 513]},
            {"source_names": 5},
            {"operator_states": 5},
            {"operator_states": {"a": b"raw"}},
            {"operator_states": {"a": "text"}},
            {"sink_commit_statuses": {"a": "Done"}},
            {"watermark": float("nan")},
            {"epoch": object},
        ],
        ids=lambda garbage: str(garbage)[:40],
    )
    def test_garbage_put_in_by_model_copy_is_refused(self, garbage):
        with pytest.raises(InvalidInputError):
            CheckpointManifest.from_dict(FULL).model_copy(update=garbage).checked()

    def test_a_plain_value_put_in_by_model_copy_becomes_its_model(self):
        copied = v1().model_copy(update={"operator_states": {"a": {"state_b64": "YQ=="}}}).checked()
        assert copied.operator_states["a"] == OperatorCheckpoint(state_b64="YQ==")

    def test_a_manifest_made_without_validation_is_refused(self):
        with pytest.raises(InvalidInputError, match="epoch: Field required"):
            CheckpointManifest.model_construct(version=1, checkpoint_id=1, timestamp_ms=1).checked()


class TestOperatorCheckpoint:
    def test_bytes_of_at_most_the_threshold_are_inline_and_longer_ones_external(self):
        inline = OperatorCheckpoint.from_bytes(b"abcd", threshold=4, offset=10)
        assert inline == OperatorCheckpoint(state_b64="YWJjZA==", external=False, external_offset=0, external_length=0)
        external = OperatorCheckpoint.from_bytes(b"abcde", threshold=4, offset=10)
        assert external == OperatorCheckpoint(state_b64=None, external=True, external_offset=10, external_length=5)

    def test_the_default_threshold_is_one_mebibyte_inclusive(self):
        assert INLINE_THRESHOLD_BYTES == 1 << 20
        state = bytes((1 << 20) + 1)
        assert not OperatorCheckpoint.from_bytes(state[:-1]).external
        assert OperatorCheckpoint.from_bytes(state).external

    def test_empty_bytes_are_inline_and_not_none(self):
        empty = OperatorCheckpoint.from_bytes(b"", threshold=0)
        assert (empty.state_b64, empty.external) == ("", False)
        assert empty.inline_state("op") == b""

    def test_no_state_is_none(self):
        assert OperatorCheckpoint().inline_state("op") is None
        assert OperatorCheckpoint.from_bytes(b"long", threshold=1).inline_state("op") is None

    @pytest.mark.parametrize(
        "state", [b"\x00\xff", bytearray(b"\x00\xff"), memoryview(b"\x00\xff")], ids=lambda state: type(state).__name__
    )
    def test_any_bytes_like_state_comes_back(self, state):
        assert OperatorCheckpoint.from_bytes(state).inline_state("op") == b"\x00\xff"

    def test_the_size_of_a_view_is_in_bytes_whatever_its_items_are(self):
        numbers = memoryview(array.array("i", [1, 2]))
        made = OperatorCheckpoint.from_bytes(numbers, threshold=numbers.nbytes - 1)
        assert (made.external, made.external_length) == (True, numbers.nbytes)

    @pytest.mark.parametrize("state", ["text", 5, None, [1], [b"a"]], ids=repr)
    def test_a_state_that_is_no_bytes_is_refused(self, state):
        with pytest.raises(InvalidInputError, match="must be bytes"):
            OperatorCheckpoint.from_bytes(state)

    @pytest.mark.parametrize("threshold", [-1, INLINE_THRESHOLD_MAX_BYTES + 1, 2**64, True, 1.0, "1", None], ids=repr)
    def test_a_threshold_out_of_range_is_refused(self, threshold):
        with pytest.raises(InvalidInputError, match="threshold"):
            OperatorCheckpoint.from_bytes(b"", threshold=threshold)

    @pytest.mark.parametrize("threshold", [0, INLINE_THRESHOLD_MAX_BYTES])
    def test_both_ends_of_the_threshold_are_allowed(self, threshold):
        assert OperatorCheckpoint.from_bytes(b"x", threshold=threshold).external is (threshold == 0)

    @pytest.mark.parametrize("offset", [-1, 2**64, 1.0, True, None], ids=repr)
    def test_an_offset_that_is_no_u64_is_refused(self, offset):
        with pytest.raises(InvalidInputError, match="offset"):
            OperatorCheckpoint.from_bytes(b"long", threshold=1, offset=offset)

    @pytest.mark.parametrize(
        "text", ["a", "YQ", "YQ=", "Y Q==", "YQ==\n", "YQ==YQ==", "-_-_", "é===", "====", "\0"], ids=ascii
    )
    def test_bad_base64_is_an_error_that_names_the_operator(self, text):
        with pytest.raises(InvalidInputError, match="'the operator'"):
            OperatorCheckpoint(state_b64=text).inline_state("the operator")


class TestInlineHash:
    def test_it_is_the_seeds_formula_over_operators_by_name(self):
        made = v1(
            operator_states={
                "zeta": {"state_b64": base64.b64encode(b"last").decode()},
                "outside": {"state_b64": None, "external": True, "external_length": 3},
                "both": {"state_b64": "YQ==", "external": True, "external_length": 3},
                "nothing": {},
                "empty": {"state_b64": ""},
                "ä": {"state_b64": "eA=="},
            }
        )
        expected = b"empty\x00\x00" + b"zeta\x00bGFzdA==\x00" + "ä".encode() + b"\x00eA==\x00"
        assert made.inline_hash() == hashlib.sha256(expected).hexdigest()

    def test_none_without_inline_state(self):
        assert v1().inline_hash() is None
        assert v1(operator_states={"a": {"external": True}, "b": {}}).inline_hash() is None

    def test_moving_a_byte_between_name_and_state_changes_it(self):
        one = v1(operator_states={"a": {"state_b64": "bYQ="}})
        other = v1(operator_states={"ab": {"state_b64": "YQ="}})
        assert one.inline_hash() != other.inline_hash()

    def test_state_is_expected_for_external_operators_and_for_a_checksum_that_is_not_the_inline_one(self):
        inline = v1(operator_states={"a": {"state_b64": "YQ=="}})
        assert not v1().expects_state
        assert not inline.expects_state
        assert not inline.model_copy(update={"state_checksum": inline.inline_hash()}).expects_state
        assert inline.model_copy(update={"state_checksum": "0" * 64}).expects_state
        assert v1(state_checksum="0" * 64).expects_state
        assert v1(operator_states={"a": {"external": True}}).expects_state


class TestPartitions:
    @staticmethod
    def entry(partition, delta, path="p"):
        return {"partition_id": partition, "is_delta": delta, "path": path, "size_bytes": 1}

    def test_the_snapshot_comes_before_its_deltas_which_keep_their_order(self):
        entries = [
            self.entry(1, True, "d2"),
            self.entry(0, False, "x"),
            self.entry(1, False, "s"),
            self.entry(1, True, "d1"),
        ]
        made = v2(operators={"a": {"partitions": entries}, "b": {"partitions": [self.entry(1, False, "other")]}})
        assert [one.path for one in made.partition("a", 1)] == ["s", "d2", "d1"]
        assert made.partition("a", 9) == made.partition("c", 1) == []

    def test_entries_are_those_of_every_operator(self):
        made = v2(
            operators={
                "a": {"partitions": [self.entry(0, False, "x")]},
                "b": {"partitions": [self.entry(0, True, "y")]},
            }
        )
        assert sorted((name, one.path) for name, one in made.entries()) == [("a", "x"), ("b", "y")]

    @pytest.mark.parametrize(
        ("operators", "stands"),
        [
            ({}, False),
            ({"a": [(0, False)]}, False),
            ({"a": [(0, True)]}, True),
            ({"a": [(0, True), (0, False)]}, False),
            ({"a": [(0, False), (1, True)]}, True),
            ({"a": [(0, False)], "b": [(0, True)]}, True),
            ({"a": [(0, False), (0, True), (1, False)], "b": [(1, False)]}, False),
        ],
        ids=str,
    )
    def test_it_stands_on_its_parent_if_some_partition_has_deltas_only(self, operators, stands):
        made = v2(
            operators={name: {"partitions": [self.entry(*one) for one in all_]} for name, all_ in operators.items()}
        )
        assert made.stands_on_parent is stands

    def test_a_parent_alone_is_nothing_to_stand_on(self):
        assert not v2(parent_id=PARENT).stands_on_parent


class TestArtifactPaths:
    def test_a_path_has_the_form_of_the_seed(self):
        assert artifact_path(ID, "join", 3, delta=False) == f"{ID}/operators/join/partition-3.snap"
        assert artifact_path(ID, "join", 3, delta=True) == f"{ID}/operators/join/partition-3.delta"

    NAMES = (
        "", ".", "..", "...", "../..", "a", "A", "a/b", "a%2Fb", "a%252Fb", "a b", "a+b", "a%20b", "%2E",
        "ü", "u\u0308", "`", "'", "a=b", "🚀", "\0", "\n", "a" * 512,
    )  # fmt: skip

    @pytest.mark.parametrize("name", NAMES, ids=ascii)
    def test_a_name_cannot_leave_its_place(self, name):
        parts = artifact_path(ID, name, 0, delta=False).split("/")
        assert (parts[:2], parts[3:]) == ([ID, "operators"], ["partition-0.snap"])
        assert parts[2] not in (".", "..")
        assert parts[2].isascii()

    def test_different_names_never_share_a_path(self):
        assert len({artifact_path(ID, name, 0, delta=False) for name in self.NAMES}) == len(self.NAMES)

    def test_a_name_that_utf8_cannot_carry_is_refused(self):
        with pytest.raises(InvalidInputError):
            artifact_path(ID, "\ud800", 0, delta=False)

    def test_a_path_knows_its_checkpoint(self):
        assert path_checkpoint(artifact_path(ID, "../x", 0, delta=True)) == ID

    @pytest.mark.parametrize("path", ["", "x", "/", f"/{ID}", "state.bin", f"{ID}x/operators"])
    def test_a_path_that_begins_with_no_checkpoint_names_no_artifact(self, path):
        with pytest.raises(ArtifactNotFoundError):
            path_checkpoint(path)

    @pytest.mark.parametrize("path", [None, 5, b"x"], ids=repr)
    def test_a_path_that_is_no_text_is_refused(self, path):
        with pytest.raises(InvalidInputError):
            path_checkpoint(path)


class TestStored:
    @staticmethod
    def checkpoint(text, sha256):
        row = Revision(
            stream="s",
            checkpoint_key="0" * 19 + "7",
            revision=0,
            change=Change.SAVED,
            format="manifest-v1",
            insert_id="i",
            at=datetime(2024, 1, 1, tzinfo=UTC),
            manifest=text,
            manifest_sha256=sha256,
        )
        return fold([row])[row.checkpoint_key]

    def test_a_stored_manifest_is_verified_and_parsed(self):
        text = v1().canonical()
        assert parse_stored(CheckpointManifest, self.checkpoint(text, sha256_text(text)), "s") == v1()

    @pytest.mark.parametrize(
        ("text", "sha256", "says"),
        [
            (v1().canonical(), "0" * 64, "does not match its checksum"),
            (v1().canonical(), None, "does not match its checksum"),
            (None, None, "does not match its checksum"),
            ("{}", sha256_text("{}"), "unreadable"),
            ("garbage", sha256_text("garbage"), "unreadable"),
        ],
    )
    def test_anything_else_is_corrupt_and_says_which_checkpoint(self, text, sha256, says):
        with pytest.raises(
            CorruptError, match=f"checkpoint 7 of stream 's' {says}|checkpoint 7 of stream 's' is {says}"
        ):
            parse_stored(CheckpointManifest, self.checkpoint(text, sha256), "s")

    def test_a_time_beyond_the_calendar_has_no_column_value(self):
        assert created_at(1_700_000_000_123) == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
        assert created_at(0) == datetime(1970, 1, 1, tzinfo=UTC)
        assert created_at(253_402_300_800_000) is None  # the year 10000
        assert created_at(U64_MAX) is None
