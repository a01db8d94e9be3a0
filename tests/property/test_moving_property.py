"""Whatever a source holds: an export of what was imported is the same files with the same bytes."""

import io
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from catalog import CheckpointCatalog, CheckpointState, DeserializationError, Layout, keys, new_uuid7
from catalog.moving import layouts
from catalog.moving.finding import identify
from tests import sources
from tests.property.test_state_property import damaged, near_states

NAMES = st.text(min_size=1, max_size=8)
IDS = st.one_of(st.integers(1, 20), st.integers(999_990, 1_000_010), st.integers(1, 2**64 - 1))
BYTES = st.binary(max_size=40)
DUMPS = st.sampled_from(
    [
        {"indent": 2},
        {"indent": 2, "ensure_ascii": False},
        {"separators": (",", ":"), "sort_keys": True, "ensure_ascii": False},
        {"indent": "\t"},
    ]
)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory):
    return CheckpointCatalog.native(tmp_path_factory.mktemp("moving") / "catalog", create=True)


@st.composite
def manifests(draw, number):
    """Bytes of a manifest of seed 004, and perhaps of a state; one in five has bytes that are none."""
    state = draw(st.none() | BYTES)
    if draw(st.integers(0, 4)) == 0:
        return draw(BYTES), state
    fields = {
        "version": 1,
        "checkpoint_id": number,
        "epoch": draw(st.integers(0, 3)),
        "timestamp_ms": draw(st.integers(0, 2**64 - 1)),
        "sink_commit_statuses": draw(
            st.dictionaries(NAMES, st.sampled_from(["Pending", "Committed", {"Failed": "why"}]), max_size=2)
        ),
        "operator_states": {name: {"state_b64": "YQ=="} for name in draw(st.lists(NAMES, max_size=2, unique=True))},
        "a key of tomorrow": draw(st.none() | NAMES),
    }
    if state is not None and draw(st.booleans()):
        fields["state_checksum"] = sources.sha256(state)
    return json.dumps(fields, **draw(DUMPS)).encode(), state


@st.composite
def numbered(draw):
    """The files of a store with integer ids."""
    layout = draw(st.sampled_from([Layout.OBJECTS, Layout.FOLDERS]))
    files = {}
    for number in draw(st.sets(IDS, min_size=1, max_size=5)):
        key = f"{number:020d}"
        raw, state = draw(manifests(number))
        files[layouts.file_name(layout, key)] = raw
        if state is not None:
            files[layouts.file_name(layout, key, "state.bin")] = state
    return files


@st.composite
def partitioned(draw):
    """The files of a store with UUIDv7 ids: chains, in either spelling."""
    ids = [new_uuid7() for _ in range(draw(st.integers(1, 4)))]
    slash = draw(st.sampled_from(["/", ""]))
    files = sources.partitions(ids, slash, draw(st.sampled_from(["", "checkpoints/", "s3://b/"])))
    for lost in draw(st.sets(st.sampled_from(sorted(files.keys() - {"_latest"})), max_size=2)):
        if lost.endswith(".json") and "offsets" not in lost:
            files[lost] = draw(BYTES)
        else:
            del files[lost]
    return files


def states():
    readable = st.dictionaries(IDS, st.sampled_from([sorted, None]), max_size=4).map(
        lambda some: {f"any name {n}.bin": sources.state(n, order=order) for n, order in some.items()}
    )
    return readable.map(lambda files: {**files, "first.bin": sources.state(0), "torn-21.bin": sources.state(21)[:-3]})


@pytest.mark.parametrize("kind", [numbered(), partitioned(), states()], ids=["numbered", "partitioned", "states"])
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_an_export_after_an_import_is_the_same_files_with_the_same_bytes(catalog, kind, data):
    files, stream = data.draw(kind), new_uuid7()
    with tempfile.TemporaryDirectory() as folder:
        source, target = sources.put(Path(folder) / "source", files), Path(folder) / "target"
        imported = catalog.import_from(source, stream, threads=2)
        assert imported.count("skipped") <= len(imported.faults)
        invalid = {
            result.checkpoint_id
            for _, result in catalog.validate([stream], depth="hashes", record=False).results
            if not result.valid
        }
        told = {line.checkpoint_id for line in imported.lines if line.outcome == "imported as corrupt"}
        assert told == invalid, "the report and validation agree on what is corrupt"
        skipped = {line.file for line in imported.lines if line.outcome == "skipped"}
        catalog.export_to(target, stream, threads=2)
        pointers = set(layouts.POINTERS.values())
        assert sources.taken(target).keys() - pointers == files.keys() - skipped - pointers
        assert all(
            data == files.get(name, data) for name, data in sources.taken(target).items() if name not in pointers
        )
        again = catalog.import_from(source, stream, threads=2)
        assert {line.outcome for line in again.lines} <= {"already there", "skipped"}


def with_operators(*names):
    """Return a state whose operators have these names and no bytes."""
    entries = [len(name).to_bytes(4, "little") + name + bytes(4) for name in map(str.encode, names)]
    return bytes(24) + len(names).to_bytes(4, "little") + b"".join(entries)


@settings(deadline=None, max_examples=400)
@given(data=st.binary(max_size=200) | near_states | damaged())
@example(with_operators("é" * keys.NAME_MAX_CHARS, ""))
@example(with_operators("é" * (keys.NAME_MAX_CHARS + 1)))
@example(with_operators("twice", "twice"))
def test_a_state_is_recognized_without_being_kept_exactly_if_it_can_be_read(data):
    try:
        expected = CheckpointState.deserialize("s", data).id.sequence
    except DeserializationError:
        expected = None
    assert identify(io.BytesIO(data).read, len(data)) == expected
