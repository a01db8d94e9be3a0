"""Whatever rows are written in whatever files: the native engine finds, merges and deletes exactly the right ones."""

import tempfile
from datetime import UTC, datetime
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalog import CheckpointCatalog
from catalog.tables.port import Between, Equals, In, Table
from catalog.tables.schema import arrow

NOW = datetime(2026, 1, 1, tzinfo=UTC)
texts = st.sampled_from(["", "a", "b", "ab", "ü", "z" * 40, "z" * 41])
streams = st.sampled_from(["s", "t"])
columns = ["stream", "checkpoint_key", "attempt", "path", "chunk_no", "chunk_count"]


@st.composite
def rows(draw):
    return {
        "stream": draw(streams),
        "checkpoint_key": draw(texts),
        "attempt": draw(texts),
        "path": draw(texts),
        "kind": "state",
        "staged_at": NOW,
        "chunk_no": draw(st.integers(0, 3)),
        "chunk_count": draw(st.none() | st.integers(1, 3)),
        "chunk_size": 0,
        "chunk_sha256": "",
        "data": b"x" * draw(st.integers(0, 3)),
    }


@st.composite
def conditions(draw):
    text = draw(st.sampled_from(["checkpoint_key", "attempt", "path"]))
    number = draw(st.sampled_from(["chunk_no", "chunk_count"]))
    some = [
        Equals("stream", draw(streams)),
        Equals(text, draw(texts)),
        In(text, tuple(draw(st.lists(texts, max_size=3)))),
        Equals(number, draw(st.integers(0, 3))),
        Between(number, draw(st.integers(0, 3)), draw(st.integers(0, 4))),
    ]
    return draw(st.lists(st.sampled_from(some), max_size=3))


def meets(row, condition):
    value = row[condition.column]
    match condition:
        case Equals(value=wanted):
            return value is not None and value == wanted
        case In(values=wanted):
            return value in wanted
        case Between(low=low, high=high):
            return value is not None and low <= value < high


def plain(found, names):
    return sorted((tuple(row[name] for name in names) for row in found), key=repr)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    files=st.lists(st.lists(rows(), min_size=1, max_size=4), min_size=1, max_size=6),
    where=conditions(),
    names=st.lists(st.sampled_from(columns), min_size=1, unique=True),
    merged=st.booleans(),
)
def test_scan_and_delete_take_exactly_the_rows_that_meet_every_condition(files, where, names, merged):
    with tempfile.TemporaryDirectory() as folder:
        engine = CheckpointCatalog.native(Path(folder) / "catalog", create=True, durable=False).engine
        for file in files:
            for stream in ("s", "t"):
                if some := [row for row in file if row["stream"] == stream]:
                    engine.append(Table.ARTIFACTS, [arrow(Table.ARTIFACTS, some)])
        written = [row for file in files for row in file]
        if merged:
            engine.compact()
        wanted = [row for row in written if all(meets(row, condition) for condition in where)]
        assert plain(engine.scan(Table.ARTIFACTS, where, names).to_pylist(), names) == plain(wanted, names)
        if where:
            assert engine.delete(Table.ARTIFACTS, where) == len(wanted)
            rest = [row for row in written if not all(meets(row, condition) for condition in where)]
            found = engine.scan(Table.ARTIFACTS, [], [*columns, "data"]).to_pylist()
            assert plain(found, [*columns, "data"]) == plain(rest, [*columns, "data"])
        engine.close()
