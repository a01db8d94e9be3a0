"""Whether whole tables hold what docs/FORMAT.md promises: Great Expectations suites over a catalog, on Spark.

No bytes of artifacts are read, and manifests only by the view validation_issues.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from catalog import keys
from catalog.catalog import CheckpointCatalog
from catalog.cutting import CHUNK_BYTES
from catalog.errors import SessionError
from catalog.lifecycle import Change
from catalog.tables.port import Table
from catalog.tables.schema import definition
from catalog.validation import INTEGRITY, RULES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_Expect = Callable[..., Any]
"""Makes an expectation of a suite name, a type, what to tell people, and its arguments."""

_ISSUES = "validation_issues"
_DETAILS = {
    "result_format": "SUMMARY",
    "partial_unexpected_count": 3,
    "unexpected_index_column_names": ["stream", "checkpoint_key"],
}
_UUID7 = "[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
_FORMS = {
    "20 digits or a UUIDv7": (rf"^([0-9]{{20}}|{_UUID7})$", "checkpoint_key parent held_key via"),
    "a UUIDv7": (rf"^{_UUID7}$", "attempt held_attempt"),
    "64 lower-case hex digits": ("^[0-9a-f]{64}$", "manifest_sha256 content_sha256 chunk_sha256 artifact_sha256"),
}
_VALUES = {
    "change": [str(change) for change in Change],
    # Empty where an id was closed in a stream that was never saved to.
    "format": [*(str(format) for format in keys.Format), ""],
    "kind": ["snapshot", "delta", "state", "source"],
    "scope": ["exclusive", "shared"],
}
_NOT_NEGATIVE = """
    revision epoch event_count pipeline_hash vnode_count sinks_committed sinks_pending sinks_failed artifact_count
    artifact_bytes shared_bytes partition chunk_no held_no artifact_size
"""
_BOUNDS = {**dict.fromkeys(_NOT_NEGATIVE.split(), (0, None)), "chunk_count": (1, None), "chunk_size": (0, CHUNK_BYTES)}


@dataclass(frozen=True, slots=True)
class Finding:
    """A live checkpoint that breaks a rule of `catalog.validation.RULES`."""

    rule: str
    stream: str
    checkpoint_id: int | str


@dataclass(frozen=True, slots=True)
class FailedExpectation:
    """An expectation that the catalog does not meet."""

    table: str
    """A table, or the view validation_issues."""
    suite: str
    """schema, keys, ranges, references or rules."""
    expectation: str
    """Its type, as Great Expectations names it."""
    column: str | None
    """One or several; None if it is about the whole table."""
    unexpected: int | None
    """How many rows do not meet it; None if it is not about rows, or could not be checked."""
    examples: tuple[str, ...]
    """A few of these rows."""
    message: str
    """What is expected and what was found, for people."""


@dataclass(frozen=True, slots=True)
class QualityReport:
    """What the suites found."""

    success: bool
    """Whether all expectations are met; warnings do not count."""
    failed: tuple[FailedExpectation, ...]
    rules: tuple[Finding, ...]
    """The integrity rules that checkpoints break, as the view validation_issues shows them."""
    warnings: tuple[Finding, ...]
    expectations: int
    """How many there were."""
    seconds: float
    data_docs: Path | None = None
    """The index.html, if Data Docs were asked for."""

    def explain(self) -> str:
        """Return the findings as text for people."""
        lines = [f"failed: {one.message}" for one in self.failed]
        for rule, count in sorted(Counter(one.rule for one in self.warnings).items()):
            lines.append(f"warning: {rule}, {_count(count, 'checkpoint')}: {RULES.get(rule)}")
        lines.append(f"{self.expectations - len(self.failed)} of {self.expectations} met in {self.seconds:.1f} s")
        return "\n".join([*lines, f"see {self.data_docs}"] if self.data_docs else lines)


def check_quality(catalog: CheckpointCatalog, *, data_docs: str | os.PathLike[str] | None = None) -> QualityReport:
    """Hold a catalog's tables, and what the view validation_issues shows, to expectations.

    Beside a clean-up the view may show a fault that is none; `CheckpointCatalog.validate` asks again before it says so.
    A null in a column that its table declares NOT NULL is not found: Delta refuses it, and Spark trusts that. Great
    Expectations' current context is a new one afterwards.

    Args:
        catalog: one in Spark, of now or as of a version.
        data_docs: a folder to write Data Docs into.

    Raises:
        SessionError: the catalog is not in Spark, or Great Expectations cannot be imported.
    """
    began = time.monotonic()
    shown = catalog.view(_ISSUES).select("stream", "checkpoint_key", "rule", "severity")
    spark, issues = shown.sparkSession, shown.toArrow()
    checks = _Checks()
    for table in Table:
        whole = catalog.table(table)
        ddl = ", ".join(f"{column.name} {column.sql_type}" for column in definition(table).columns)
        checks.run(table, "columns", whole.limit(0), _of_columns(checks.expect, spark.createDataFrame([], ddl)))
        # Spark answers every equal plan of the session from its cache, whatever was committed since: be equal to none.
        rows = whole.drop("data", "manifest").where(f"'{keys.new_uuid7()}' IS NOT NULL").persist()
        try:
            checks.run(table, "rows", rows, _of_rows(checks.expect, table))
            if table is Table.CHECKPOINTS:
                checks.run(table, "parents", _parents(rows), _of_parents(checks.expect))
            elif table is Table.ARTIFACTS:
                borrowed = rows.where("coalesce(held_key, held_attempt, via) IS NOT NULL")
                checks.run(table, "borrowed", borrowed, _of_borrowed(checks.expect))
        finally:
            rows.unpersist()
    # Over rows that are here: every query over the view itself would plan all of it again, for seconds.
    checks.run(_ISSUES, "rules", spark.createDataFrame(issues), _of_issues(checks.expect))
    return QualityReport(
        success=not checks.failed,
        failed=tuple(checks.failed),
        rules=_findings(issues.to_pylist(), "integrity"),
        warnings=_findings(issues.to_pylist(), "warning"),
        expectations=checks.count,
        data_docs=None if data_docs is None else checks.write_docs(Path(data_docs).absolute()),
        seconds=time.monotonic() - began,
    )


# -- what is expected ----------------------------------------------------------------------------------------------


def _of_columns(expect: _Expect, defined: "DataFrame") -> list[Any]:
    note, names = "the columns must be those of sql/tables", defined.columns
    types = {field.name: type(field.dataType).__name__ for field in defined.schema}
    return [
        expect("schema", "TableColumnsToMatchSet", note, column_set=names, exact_match=True),
        *(expect("schema", "ColumnTypeToBe", f"{one} must be of {t}", column=one, type_=t) for one, t in types.items()),
    ]


def _of_rows(expect: _Expect, table: Table) -> list[Any]:
    columns = definition(table).columns
    has = {column.name for column in columns}
    wanted = [
        expect("schema", "ColumnValuesToNotBeNull", f"{column.name} must not be null", column=column.name)
        for column in columns
        if column.required
    ]
    for form, (regex, names) in _FORMS.items():
        for name in filter(has.__contains__, names.split()):
            wanted.append(
                expect("keys", "ColumnValuesToMatchRegex", f"{name} must be {form}", column=name, regex=regex)
            )
    for name in filter(has.__contains__, _VALUES):
        note = f"{name} must be one of {_VALUES[name]}"
        wanted.append(expect("keys", "ColumnValuesToBeInSet", note, column=name, value_set=_VALUES[name]))
    for name in filter(has.__contains__, _BOUNDS):
        least, most = _BOUNDS[name]
        note = f"{name} must be at least {least}" + (f" and at most {most}" if most else "")
        wanted.append(expect("ranges", "ColumnValuesToBeBetween", note, column=name, min_value=least, max_value=most))
    if table is Table.CHECKPOINTS:
        key, note = ["stream", "checkpoint_key", "revision"], "a revision must be there only once"
        wanted.append(expect("keys", "CompoundColumnsToBeUnique", note, column_list=key))
        wanted.append(expect("keys", "ColumnValuesToBeUnique", "insert_id must be unique", column="insert_id"))
    elif table is Table.ARTIFACTS:
        pair = {"column_A": "chunk_count", "column_B": "chunk_no", "ignore_row_if": "either_value_is_missing"}
        note = "chunk_no must be below chunk_count"
        wanted.append(expect("ranges", "ColumnPairValuesAToBeGreaterThanB", note, **pair))
    return wanted


def _parents(rows: "DataFrame") -> "DataFrame":
    """Return the unpurged checkpoints with deltas; missing_parent is the key of a parent that has no row, else NULL."""
    from pyspark.sql import functions as F

    purged = rows.where(F.col("change") == Change.PURGED.value).select("stream", "checkpoint_key")
    known = rows.select("stream", F.col("checkpoint_key").alias("parent"), F.lit(True).alias("known")).distinct()
    deltas = rows.where("parent IS NOT NULL").join(purged, ["stream", "checkpoint_key"], "left_anti")
    missing = F.when(F.col("known").isNull(), F.col("parent")).alias("missing_parent")
    return deltas.join(known, ["stream", "parent"], "left").select("stream", "checkpoint_key", missing)


def _of_parents(expect: _Expect) -> list[Any]:
    note = "every parent of an unpurged checkpoint must have a row"
    return [expect("references", "ColumnValuesToBeNull", note, column="missing_parent")]


def _of_borrowed(expect: _Expect) -> list[Any]:
    return [
        expect("references", "ColumnValuesToNotBeNull", f"a borrowed chunk must have {name}", column=name)
        for name in ("held_key", "held_attempt")
    ]


def _of_issues(expect: _Expect) -> list[Any]:
    note = "every rule must be one of catalog.validation.RULES"
    wanted = [expect("rules", "ColumnValuesToBeInSet", note, column="rule", value_set=list(RULES))]
    for rule, meaning in INTEGRITY.items():
        note = f"no checkpoint may break {rule} ({meaning})"
        wanted.append(expect("rules", "ColumnValuesToNotBeInSet", note, column="rule", value_set=[rule]))
    return wanted


# -- checking it ---------------------------------------------------------------------------------------------------


class _Checks:
    """Great Expectations, and what it found so far."""

    def __init__(self) -> None:
        self.failed: list[FailedExpectation] = []
        self.count = 0
        self._gx = _great_expectations()
        self._context = self._gx.get_context(mode="ephemeral")
        self._context.enable_analytics(False)
        self._context.variables.progress_bars = {"globally": False}
        source = self._context.data_sources.add_spark("catalog", persist=False)
        self._batches = {
            name: source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("all")
            for name in [*map(str, Table), _ISSUES]
        }

    def expect(self, suite: str, kind: str, note: str, **arguments: Any) -> Any:
        """Return an expectation that carries what it says in words, and the suite that it is told under."""
        return getattr(self._gx.expectations, f"Expect{kind}")(notes=note, meta={"suite": suite}, **arguments)

    def run(self, table: str, part: str, rows: "DataFrame", expectations: list[Any]) -> None:
        """Check all at once, which takes few jobs, and what failed again for its details, which takes many."""
        results = self._validate(table, f"{table}: {part}", rows, expectations, "BOOLEAN_ONLY")
        self.count += len(results)
        failed = [copy(one.expectation_config.to_domain_obj()) for one in results if not one.success]
        if failed:
            results = self._validate(table, f"{table}: {part} that failed", rows, failed, _DETAILS)
            self.failed += [_failed(str(table), one) for one in results]

    def _validate(self, table: str, name: str, rows: "DataFrame", expectations: list[Any], how: Any) -> list[Any]:
        suite = self._context.suites.add(self._gx.ExpectationSuite(name=name, expectations=expectations))
        check = self._gx.ValidationDefinition(name=name, data=self._batches[table], suite=suite)
        results: list[Any] = check.run(batch_parameters={"dataframe": rows}, result_format=how).results
        return results

    def write_docs(self, folder: Path) -> Path:
        """Write Data Docs into a folder and return their index.html."""
        site = {
            "class_name": "SiteBuilder",
            "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder)},
            "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
            "show_how_to_buttons": False,
        }
        self._context.add_data_docs_site("quality", site)
        self._context.build_data_docs(site_names=["quality"])
        return folder / "index.html"


def _great_expectations() -> ModuleType:
    """Import Great Expectations, which takes seconds."""
    try:
        import great_expectations
    except SystemExit as error:
        # PySpark without grpcio takes a program that is no file for its own doctests, and ends it as a success.
        raise SessionError(
            "Great Expectations cannot be imported by `python -c` or a program on standard input: "
            "put the program into a file, or pip install grpcio"
        ) from error
    return great_expectations


def _failed(table: str, result: Any) -> FailedExpectation:
    config, found = result.expectation_config, result.result
    several = config.kwargs.get("column_list") or [config.kwargs.get(name) for name in ("column_A", "column_B")]
    column = config.kwargs.get("column") or ", ".join(filter(None, several)) or None
    unexpected = found.get("unexpected_count")
    rows = found.get("partial_unexpected_index_list") or ()
    examples = tuple(dict.fromkeys(", ".join(f"{name} {value}" for name, value in row.items()) for row in rows))
    if not found:
        told = result.exception_info
        reason = (told if "raised_exception" in told else next(iter(told.values())))["exception_message"]
        problem = f"it could not be checked: {reason.splitlines()[0]}"
    elif unexpected is None:
        problem = f"found {found.get('details', {}).get('mismatched') or found.get('observed_value')}"
    else:
        problem = f"not so in {_count(unexpected, 'row')}, such as {'; '.join(examples)}"
    message = f"{table}: {config.notes}: {problem}"
    return FailedExpectation(table, config.meta["suite"], config.type, column, unexpected, examples, message)


def _findings(issues: Iterable[Mapping[str, str]], severity: str) -> tuple[Finding, ...]:
    found = {(one["rule"], one["stream"], one["checkpoint_key"]) for one in issues if one["severity"] == severity}
    return tuple(
        Finding(rule, keys.stream_label(of), keys.checkpoint_id(key)) for rule, of, key in sorted(found, key=str)
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
