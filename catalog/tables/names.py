"""Where a catalog's tables are: a folder, or a schema; and how their names are written in SQL."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from catalog.errors import InvalidInputError
from catalog.tables.port import Table

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_PART = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")


@dataclass(frozen=True, slots=True)
class TableName:
    """A table's name as parts; the only way a name gets into SQL text."""

    parts: tuple[str, ...]

    @property
    def sql(self) -> str:
        """The name, every part back-quoted."""
        return ".".join("`" + part.replace("`", "``") + "`" for part in self.parts)


@dataclass(frozen=True, slots=True)
class Place:
    """A catalog's address: either a folder or a schema of one to three parts."""

    path: str | None = None
    schema: tuple[str, ...] = ()

    def table(self, table: Table) -> TableName:
        """Return the name of one of the catalog's tables."""
        return TableName(("delta", f"{self.path}/{table}") if self.path else (*self.schema, str(table)))

    @property
    def local_folder(self) -> Path | None:
        """The folder on this machine's disk, if it is one."""
        return Path(self.path) if self.path and self.path.startswith("/") else None

    def __str__(self) -> str:
        return self.path or TableName(self.schema).sql


def path_place(path: str | os.PathLike[str]) -> Place:
    """Return the place of a folder: a local path, or an address such as `abfss://…`."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text.strip():
        raise InvalidInputError(f"a catalog's path must be text or a pathlib.Path, not {path!r}")
    _refuse_substitution(text)
    if text.startswith("file:"):
        text = "/" + text.removeprefix("file:").lstrip("/")
    if _SCHEME.match(text):
        return Place(path=text.rstrip("/"))
    try:
        return Place(path=str(Path(text).expanduser().resolve()))
    except (ValueError, RuntimeError, OSError) as error:
        raise InvalidInputError(f"{text!r} cannot be a catalog's path: {error}") from error


def name_place(name: str) -> Place:
    """Return the place of a schema: `schema`, `catalog.schema` or `catalog.namespace.schema`, back-quotes allowed."""
    if not isinstance(name, str):
        raise InvalidInputError(f"a catalog's name must be text, not {name!r}")
    _refuse_substitution(name)
    parts: list[str] = []
    position = 0
    while match := _PART.match(name, position):
        parts.append(match[1].replace("``", "`") if match[1] else match[2].strip())
        position = match.end()
        if position == len(name) or name[position] != ".":
            break
        position += 1
    if name.endswith(".") or position != len(name) or not 1 <= len(parts) <= 3 or not all(parts):
        raise InvalidInputError(f"{name!r} is not a schema name of one to three parts, such as main.checkpoints")
    return Place(schema=tuple(parts))


def _refuse_substitution(text: str) -> None:
    """Refuse what Spark would replace in SQL text, back-quoted or not, by a setting or an environment variable."""
    if "${" in text:
        raise InvalidInputError(f"{text!r} cannot be a catalog's place: Spark replaces ${{…}} in names")


def any_place(place: str | os.PathLike[str]) -> Place:
    """Return the place of a path (anything with a slash, or a pathlib.Path), else of a schema name."""
    if isinstance(place, str) and "/" not in place and not place.startswith((".", "~")):
        return name_place(place)
    return path_place(place)
