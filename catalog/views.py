"""The SQL views of sql/views: read, and put over a catalog's tables as persistent, temporary or nameless ones.

A file holds only the SELECT. Its header says the grain and every column with a comment; `{name}` stands for a table or
another view, `{checkpoint_id}` for the id that people see, made of the column checkpoint_key.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from catalog.tables.names import TableName
from catalog.tables.port import Table
from catalog.tables.schema import sql_file

VIEWS = (
    "all_checkpoints",
    "checkpoint_list",
    "latest_checkpoints",
    "trashed_checkpoints",
    "checkpoint_manifests",
    "source_positions",
    "sink_statuses",
    "attempt_artifacts",
    "kept_checkpoints",
    "artifact_inventory",
    "checkpoint_growth",
    "delta_chains",
    "orphan_artifacts",
    "validation_issues",
    "recovery_candidates",
    "stream_health",
    "checkpoint_events",
    "restore_drills",
)
"""In an order in which each stands only on those before it."""

_COLUMN = re.compile(r"^--   (\w+): (.+)$", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\{(\w+\.)?(\w+)\}")
# A UUIDv7 has 36 characters, and may begin with a zero too.
_ID = "IF(length({0}checkpoint_key) = 20, coalesce(nullif(ltrim('0', {0}checkpoint_key), ''), '0'), {0}checkpoint_key)"


@dataclass(frozen=True, slots=True)
class View:
    """One view as its file defines it."""

    name: str
    grain: str
    columns: tuple[tuple[str, str], ...]
    """Name and comment of each column."""
    select: str
    """The SELECT, with placeholders."""

    def render(self, relation: Callable[[str], str]) -> str:
        """Return the SELECT over these tables and views.

        Args:
            relation: gives the SQL for the name of a table or view.
        """

        def replace(match: re.Match[str]) -> str:
            qualifier, name = match[1] or "", match[2]
            return _ID.format(qualifier) if name == "checkpoint_id" else relation(name)

        return _PLACEHOLDER.sub(replace, self.select)


@cache
def view(name: str) -> View:
    """Return a view of sql/views."""
    text = sql_file("views", name)
    grain = text.partition("\n")[0].removeprefix("-- Grain: ")
    select = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    return View(name, grain, tuple(_COLUMN.findall(text)), select)


def create_statement(name: str, target: TableName, relation: Callable[[str], str], *, temporary: bool) -> str:
    """Return the statement that makes a view, with a comment on every column."""
    found = view(name)
    columns = ", ".join(f"{column} COMMENT {_text(comment)}" for column, comment in found.columns)
    kind = "TEMPORARY VIEW" if temporary else "VIEW"
    return (
        f"CREATE OR REPLACE {kind} {target.sql} ({columns}) COMMENT {_text(found.grain)} AS\n{found.render(relation)}"
    )


def query(name: str, table: Callable[[Table], str]) -> str:
    """Return a view as one query over the tables alone, for those who have not deployed it."""

    def relation(wanted: str) -> str:
        return f"({view(wanted).render(relation)})" if wanted in VIEWS else table(Table(wanted))

    return view(name).render(relation)


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
