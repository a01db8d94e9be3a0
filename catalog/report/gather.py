"""Reads what a report tells: each table once and without bytes of artifacts, then validation and the retention plan."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from catalog import keys
from catalog.catalog import CheckpointCatalog
from catalog.errors import CatalogError, CheckpointNotFoundError, CorruptError
from catalog.lifecycle import History
from catalog.policies import Retention
from catalog.prune import RetentionReport
from catalog.report.facts import Key, OperatorSize, Report, bring_together
from catalog.tables.port import Condition, Equals, In, Table
from catalog.validation import Issue

CHUNK_KEY = ["stream", "checkpoint_key", "attempt", "path", "chunk_no"]
CHUNK_COLUMNS = [*CHUNK_KEY, "operator", "chunk_size", "held_key", "held_attempt"]
EVENT_COLUMNS = ["stream", "checkpoint_key", "event", "at", "details"]
NO_OPERATOR = "(state)"
"""What a sidecar state counts as; the view checkpoint_growth says the same."""


def gather(
    catalog: CheckpointCatalog,
    *,
    now: datetime,
    streams: Sequence[str] | None = None,
    policies: Sequence[Retention] | None = None,
) -> Report:
    """Read a catalog, and change nothing.

    Data files that are damaged or gone do not keep the rest from being told.

    Args:
        catalog: the catalog.
        now: when the report is made.
        streams: which ones, by default all.
        policies: what is kept, if the plan is to be told.

    Raises:
        CheckpointNotFoundError: there is no such stream.
    """
    lost: dict[str, str] = {}
    histories = catalog.histories(streams, damaged=lambda name, error: lost.update({name: str(error)}))
    if missing := sorted(set(streams or ()) - histories.keys() - lost.keys()):
        raise CheckpointNotFoundError(f"there is no stream {missing[0]!r}: `ckpt list` shows all", stream=missing[0])
    only: list[Condition] = [] if streams is None else [In("stream", tuple(map(keys.stream_key, histories)))]
    chunks, lost_chunks = _scan(catalog, Table.ARTIFACTS, only, CHUNK_COLUMNS, histories)
    wanted = In("event", ("verified", "drilled"))
    events, lost_events = _scan(catalog, Table.EVENTS, [wanted, *only], EVENT_COLUMNS, histories)
    operators, stored = _sizes(chunks, histories)
    stored_bytes = dict.fromkeys(histories.keys() - lost_chunks.keys(), 0) | stored
    issues = _issues(catalog, sorted(histories))
    retention, unplanned = _plan(catalog, sorted(histories), policies) if policies is not None else (None, {})
    return Report(
        str(catalog.engine.place),
        now,
        bring_together(
            histories,
            issues=issues,
            events=events.to_pylist(),
            operators=operators,
            stored_bytes=stored_bytes,
        ),
        retention,
        unplanned,
        (*lost.values(), *lost_chunks.values(), *lost_events.values()),
    )


def _scan(
    catalog: CheckpointCatalog,
    table: Table,
    where: Sequence[Condition],
    columns: Sequence[str],
    streams: Mapping[str, History],
) -> tuple[pa.Table, dict[str, str]]:
    """Return rows of a table; if it is damaged those of streams that can be read, and by stream why others cannot."""
    try:
        return catalog.engine.scan(table, where, columns), {}
    except CorruptError:
        found, problems = [], {}
        for name in streams:
            try:
                found.append(catalog.engine.scan(table, [Equals("stream", keys.stream_key(name)), *where], columns))
            except CorruptError as error:
                problems[name] = f"{table} of stream {name!r}: {error}"
        return pa.concat_tables(found) if found else pa.table({name: [] for name in columns}), problems


def _sizes(
    chunks: pa.Table, histories: Mapping[str, History]
) -> tuple[dict[Key, dict[str, OperatorSize]], dict[str, int]]:
    """Return what each checkpoint has of each operator as its producer wrote it, and what each stream has stored."""
    # A row seen twice is one chunk.
    once = chunks.group_by(CHUNK_KEY).aggregate(
        [("operator", "max"), ("chunk_size", "max"), ("held_key", "max"), ("held_attempt", "max")]
    )
    size = pc.cast(once["chunk_size_max"], pa.int64())
    zero = pa.scalar(0, pa.int64())
    borrowed = pc.and_(
        pc.is_valid(once["held_key_max"]),
        pc.fill_null(pc.not_equal(once["held_key_max"], once["checkpoint_key"]), False),
    )
    once = once.append_column("size", size)
    once = once.append_column("new", pc.if_else(borrowed, zero, size))
    once = once.append_column("stored", pc.if_else(pc.is_valid(once["held_attempt_max"]), zero, size))
    saved = {
        (name, key): one.origin.attempt for name, some in histories.items() for key, one in some.items() if one.origin
    }
    operators = defaultdict[Key, dict[str, OperatorSize]](dict)
    by_operator = once.group_by(["stream", "checkpoint_key", "attempt", "operator_max"])
    for row in by_operator.aggregate([("size", "sum"), ("new", "sum")]).to_pylist():
        key = keys.stream_label(row["stream"]), row["checkpoint_key"]
        if saved.get(key) == row["attempt"]:
            operator = NO_OPERATOR if row["operator_max"] is None else row["operator_max"]
            operators[key][operator] = OperatorSize(row["size_sum"], row["new_sum"])
    stored = once.group_by("stream").aggregate([("stored", "sum")]).to_pylist()
    return operators, {keys.stream_label(row["stream"]): row["stored_sum"] for row in stored}


def _issues(catalog: CheckpointCatalog, streams: Sequence[str]) -> dict[Key, tuple[Issue, ...]]:
    """Return what validation at the depth of metadata finds, which asks again before it tells of a fault."""
    found = catalog.validate(streams, record=False).results
    return {(stream, keys.any_key(result.checkpoint_id)): result.issues for stream, result in found}


def _plan(
    catalog: CheckpointCatalog, streams: Sequence[str], policies: Sequence[Retention]
) -> tuple[RetentionReport, dict[str, str]]:
    """Return what retention would do, and why it could not be planned for some streams."""
    reports, errors = [], {}
    for name in streams:
        try:
            reports.append(catalog.apply_retention(policies, [name], dry_run=True))
        except CatalogError as error:
            errors[name] = str(error)
    planned = tuple(one for some in reports for one in some.planned)
    undo_until = {name: until for some in reports for name, until in some.undo_until.items()}
    return RetentionReport(planned, undo_until, dry_run=True), errors
