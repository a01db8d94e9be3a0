"""The SQL views of sql/views: read, and put over a catalog's tables as persistent, temporary or nameless ones.

A file holds only the SELECT. Its header says the grain and every column with a comment; `{name}` stands for a table or
another view, `{checkpoint_id}` for the id that people see, made of the column checkpoint_key.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
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
OF_THE_PRESENT = frozenset({"orphan_artifacts"})
"""Views that mean nothing at an earlier moment: what may be deleted is told by the rows of now."""

Naming = Callable[[Table], str]
"""Gives the SQL for a table."""
_AS_NOW = ("parent_key", "fold_attempts", "folds")
"""What the bytes of a checkpoint are read by: at an earlier moment that of now, for what was folded may be swept."""

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


@dataclass(frozen=True, slots=True)
class Earlier:
    """An earlier moment as views show it: `checkpoints` as they were, and what belongs to them of what is now."""

    at: datetime
    """The moment, or when the last of its checkpoints was saved, if the clock of its writer was ahead."""
    then: Naming
    """The tables as they were, as far as they were."""
    now: Naming

    def table(self, table: Table) -> str:
        """Return a table without what came later, but with the folds: what they stand for may be swept."""
        at = f"TIMESTAMP '{self.at.astimezone(UTC)}'"
        match table:
            case Table.ARTIFACTS:
                then, now = self.then(Table.CHECKPOINTS), self.now(Table.CHECKPOINTS)
                same = "t.stream = f.stream AND t.checkpoint_key = f.checkpoint_key"
                folds = f"SELECT f.attempt FROM {now} f LEFT SEMI JOIN {then} t ON {same} WHERE f.change = 'folded'"
                return f"(SELECT * FROM {self.now(table)} WHERE staged_at <= {at} OR attempt IN ({folds}))"
            case Table.EVENTS:
                return f"(SELECT * FROM {self.now(table)} WHERE at <= {at})"
        return self.then(table)

    def all_checkpoints(self, then: str) -> str:
        """Return the view all_checkpoints of this moment, with what is now where bytes are read by it."""
        told = {name: f"IF(n.attempt IS NULL, c.{name}, n.{name}) AS {name}" for name in _AS_NOW}
        told["purged_since"] = "c.status <> 'purged' AND coalesce(n.status = 'purged', FALSE) AS purged_since"
        columns = ",\n  ".join(told.get(name, f"c.{name}") for name, _ in view("all_checkpoints").columns)
        return f"""SELECT
  {columns}
FROM ({then}) c
LEFT JOIN ({query("all_checkpoints", self.now)}) n ON n.stream = c.stream AND n.checkpoint_key = c.checkpoint_key"""


def create_statement(
    name: str, target: TableName, relation: Callable[[str], str], *, temporary: bool, earlier: Earlier | None = None
) -> str:
    """Return the statement that makes a view, with a comment on every column."""
    found = view(name)
    columns = ", ".join(f"{column} COMMENT {_text(comment)}" for column, comment in found.columns)
    kind = "TEMPORARY VIEW" if temporary else "VIEW"
    select = _select(name, relation, earlier)
    return f"CREATE OR REPLACE {kind} {target.sql} ({columns}) COMMENT {_text(found.grain)} AS\n{select}"


def query(name: str, table: Naming, earlier: Earlier | None = None) -> str:
    """Return a view as one query over the tables alone, for those who have not deployed it."""

    def relation(wanted: str) -> str:
        return f"({_select(wanted, relation, earlier)})" if wanted in VIEWS else table(Table(wanted))

    return _select(name, relation, earlier)


def _select(name: str, relation: Callable[[str], str], earlier: Earlier | None) -> str:
    found = view(name).render(relation)
    return earlier.all_checkpoints(found) if earlier and name == "all_checkpoints" else found


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
