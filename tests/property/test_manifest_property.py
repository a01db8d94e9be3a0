"""Any manifest survives a round trip, and no input makes from_json fail in an unforeseen way."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from catalog.errors import InvalidInputError
from catalog.keys import U64_MAX, Uuid7Source
from catalog.manifest import CheckpointManifest, CheckpointManifestV2

SETTINGS = settings(deadline=None, max_examples=60)

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
u64 = st.integers(0, U64_MAX) | st.sampled_from([2**63, 0xDEADBEEFCAFE1234, U64_MAX])
i64 = st.integers(-(2**63), 2**63 - 1)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
unknown = st.dictionaries(names.map("x-".__add__), json_values, max_size=2)
uuids = st.builds(Uuid7Source())


def maps(values):
    return st.dictionaries(names, values, max_size=3)


def fields(required, optional):
    known = st.fixed_dictionaries(required, optional=optional)
    return st.builds(lambda some, more: {**some, **more}, known, unknown)


connectors = fields({"offsets": maps(names), "epoch": u64}, {"metadata": maps(names)})
statuses = st.sampled_from(["Pending", "Committed"]) | names.map(lambda why: {"Failed": why})
operators = fields(
    {}, {"state_b64": st.none() | names, "external": st.booleans(), "external_offset": u64, "external_length": u64}
)
manifests = fields(
    {"version": st.integers(0, 2**32 - 1), "checkpoint_id": u64, "epoch": u64, "timestamp_ms": u64},
    {
        "source_offsets": maps(connectors),
        "sink_epochs": maps(u64),
        "sink_commit_statuses": maps(statuses),
        "table_offsets": maps(connectors),
        "operator_states": maps(operators),
        "table_store_checkpoint_path": st.none() | names,
        "watermark": st.none() | i64,
        "source_watermarks": maps(i64),
        "source_names": st.lists(names, unique=True, max_size=3).map(sorted),
        "sink_names": st.lists(names, unique=True, max_size=3).map(sorted),
        "pipeline_hash": st.none() | u64,
        "vnode_count": st.integers(0, 2**16 - 1),
        "state_checksum": st.none() | names,
    },
)
partitions = fields(
    {"partition_id": st.integers(0, 2**32 - 1), "is_delta": st.booleans(), "path": names, "size_bytes": u64},
    {"sha256": st.none() | names},
)
manifests_v2 = fields(
    {"version": st.integers(0, 2**32 - 1), "checkpoint_id": uuids, "epoch": u64, "timestamp_ms": u64},
    {
        "operators": maps(fields({}, {"partitions": st.lists(partitions, max_size=3), "total_bytes": u64})),
        "source_offsets": maps(fields({"source_type": names}, {"offsets": maps(names), "epoch": u64})),
        "parent_id": st.none() | uuids,
        "watermark": st.none() | i64,
        "total_size_bytes": u64,
    },
)
either = st.tuples(st.just(CheckpointManifest), manifests) | st.tuples(st.just(CheckpointManifestV2), manifests_v2)


def contains(whole, part):
    """Whether everything in part is in whole, which may have defaults besides."""
    if isinstance(part, dict):
        return all(name in whole and contains(whole[name], value) for name, value in part.items())
    if isinstance(part, list):
        return len(whole) == len(part) and all(map(contains, whole, part))
    return type(whole) is type(part) and whole == part


@SETTINGS
@given(either)
def test_a_manifest_comes_back_with_everything_that_was_in_it(drawn):
    model, given_fields = drawn
    manifest = model.from_json(json.dumps(given_fields))
    text = manifest.canonical()
    assert contains(json.loads(text), given_fields)
    again = model.from_json(text.encode())
    assert again == manifest == manifest.checked() == model.from_dict(given_fields)
    assert again.canonical() == text


@SETTINGS
@given(either, st.randoms(use_true_random=False))
def test_canonical_text_does_not_depend_on_the_order_of_keys(drawn, random):
    model, given_fields = drawn

    def shuffled(value):
        if isinstance(value, dict):
            items = [(name, shuffled(item)) for name, item in value.items()]
            random.shuffle(items)
            return dict(items)
        return [shuffled(item) for item in value] if isinstance(value, list) else value

    assert model.from_dict(shuffled(given_fields)).canonical() == model.from_dict(given_fields).canonical()


def manifest_or_refusal(model, text):
    """Return what from_json and checked make of a text; anything but InvalidInputError is the test's failure."""
    try:
        manifest = model.from_json(text)
        return manifest.checked() == manifest
    except InvalidInputError:
        return None


@SETTINGS
@given(st.text() | st.binary())
def test_arbitrary_text_is_never_a_manifest(text):
    assert manifest_or_refusal(CheckpointManifest, text) is None
    assert manifest_or_refusal(CheckpointManifestV2, text) is None


any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@SETTINGS
@given(either, st.data())
def test_a_manifest_with_arbitrary_json_inside_is_a_manifest_or_refused(drawn, data):
    model, given_fields = drawn
    broken = dict(given_fields)
    for name in data.draw(st.lists(st.sampled_from([*model.model_fields, "unknown"]), min_size=1, max_size=2)):
        broken[name] = data.draw(any_json)
    assert manifest_or_refusal(model, json.dumps(broken)) in (True, None)


@SETTINGS
@given(either, st.data())
def test_a_damaged_text_is_a_manifest_or_refused(drawn, data):
    model, given_fields = drawn
    text = model.from_dict(given_fields).canonical().encode()
    at = data.draw(st.integers(0, len(text)))
    damaged = text[:at] + data.draw(st.binary(max_size=2)) + text[at + data.draw(st.integers(0, 3)) :]
    assert manifest_or_refusal(model, damaged) in (True, None)
