"""`ckpt sql`: a query on the views and tables, through Spark."""

import re
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from catalog import views
from catalog.catalog import CheckpointCatalog
from catalog.cli import output as show_as
from catalog.cli.frame import CATALOG_VARIABLE, DebugOption, OutputOption, PathArgument, is_path, running
from catalog.cli.job import EngineName
from catalog.cli.output import Column, Listing, Output, OutputFormat
from catalog.cli.starting import opened
from catalog.errors import InvalidInputError
from catalog.tables.commits import first_line
from catalog.tables.names import any_place
from catalog.tables.port import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST_ROWS = 1000
_QUERY = re.compile(r"(\s|--.*\n|/\*(.|\n)*?\*/|\()*(SELECT|WITH|FROM|VALUES|TABLE)\b", re.IGNORECASE)


def sql_command(
    path: PathArgument,
    query: Annotated[
        str | None, typer.Argument(metavar="QUERY", help="One SELECT; without it the views are listed.")
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Show only so many rows.")] = MOST_ROWS,
    output: OutputOption = OutputFormat.TEXT,
    debug: DebugOption = False,
) -> None:
    """Ask the views and tables by SQL; this starts Spark.

    PATH may also be the name of a schema. Without a query it lists the views, which needs no Spark where PATH is none.
    """
    with running(output, debug) as out:
        if query is None:
            _check_path(out, path)
            out.result(_known(), _views())
            return
        _check_query(query)
        with opened(out, path, EngineName.SPARK) as catalog, out.working("asking Spark …"):
            columns, rows = _ask(catalog, query, limit + 1)
        if len(rows) > limit:
            out.note(f"only the first {limit} rows are shown: --limit N shows more")
        shown = [dict(zip(columns, row, strict=True)) for row in rows[:limit]]
        if not rows:
            out.note("no rows")
        out.result(shown, _table(columns, rows[:limit]))


def _check_path(out: Output, path: str) -> None:
    """Refuse a query that stands where PATH should, and a place without a catalog."""
    words = not is_path(path) and len(path.split()) > 1
    is_folder = not (words and _QUERY.match(path)) and Path(path).is_dir()
    if words and not is_folder:
        raise InvalidInputError(
            f"{path.strip()[:60]!r} looks like a query, and PATH is missing: name the catalog before it, "
            f"or set {CATALOG_VARIABLE}"
        )
    engine = EngineName.SPARK if any_place(path).schema and not is_folder else EngineName.NATIVE
    opened(out, path, engine).close()


def _check_query(query: str) -> None:
    """Refuse a statement before Spark is started for it."""
    if not _QUERY.match(query):
        raise InvalidInputError(f"only queries are taken, which begin with SELECT or WITH, not {query.strip()[:60]!r}")


def _ask(catalog: CheckpointCatalog, query: str, limit: int) -> tuple[list[str], list[list[Any]]]:
    """Return the columns and rows of a query.

    Raises:
        InvalidInputError: Spark does not take it, or it is not a query.
    """
    from pyspark.errors import PySparkException

    text = query.strip().rstrip(";")
    try:
        _name_relations(catalog, text)
        frame = _frame(catalog, text)
        columns = frame.columns
        if len(set(columns)) < len(columns):
            raise InvalidInputError("two columns have one name: give each its own with AS")
        return columns, [[_plain(value) for value in row] for row in frame.limit(limit).collect()]
    except PySparkException as error:
        unknown = error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND"
        known = f" (views and tables are {', '.join((*views.VIEWS, *Table))})" if unknown else ""
        raise InvalidInputError(first_line(error) + known) from error


def _name_relations(catalog: CheckpointCatalog, query: str) -> None:
    """Give the session the views and tables that a query may mean, as temporary ones: nothing is written."""
    words = set(re.findall(r"\w+", query.lower()))
    for name in views.VIEWS:
        if name in words:
            catalog.view(name).createOrReplaceTempView(name)
    for table in Table:
        if table in words:
            catalog.table(table).createOrReplaceTempView(table)


def _frame(catalog: CheckpointCatalog, query: str) -> "DataFrame":
    """Return what a query gives; as a part of another it cannot be anything else, such as a statement that deletes."""
    engine: Any = catalog.engine
    frame: DataFrame = engine.spark.sql(f"SELECT * FROM (\n{query}\n)")
    return frame


def _plain(value: Any) -> Any:
    """Return a value of Spark as JSON and people take it."""
    match value:
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case bytes() | bytearray():
            return bytes(value).hex()
        case datetime() | None | str() | int() | float():
            return value
        case date():
            return value.isoformat()
        case Mapping():
            return {str(key): _plain(one) for key, one in value.items()}
        case tuple() if hasattr(value, "asDict"):
            return {key: _plain(one) for key, one in value.asDict().items()}
        case list() | tuple():
            return [_plain(one) for one in value]
    return _plain(value.toPython()) if hasattr(value, "toPython") else str(value)


def _table(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> Listing:
    texts = [[_text(value) for value in row] for row in rows]
    return Listing([Column(name, folds=True) for name in columns], texts)


def _text(value: Any) -> str:
    return show_as.moment(value, timespec="milliseconds") if isinstance(value, datetime) else show_as.value(value)


def _known() -> list[dict[str, Any]]:
    return [
        {"view": name, "grain": views.view(name).grain, "columns": [column for column, _ in views.view(name).columns]}
        for name in views.VIEWS
    ]


def _views() -> Listing:
    rows = [(one["view"], one["grain"], ", ".join(one["columns"])) for one in _known()]
    return Listing((Column("view"), Column("grain", folds=True), Column("columns", folds=True)), rows)
