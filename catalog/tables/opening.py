"""What both engines ask of a place before they create or open a catalog there."""

import logging
import os
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from catalog.errors import (
    CatalogError,
    DamagedCatalogError,
    InvalidInputError,
    NotACatalogError,
    ReadOnlyError,
    UnsupportedFormatError,
)
from catalog.tables.locks import LOCK_FILE, CommitLock, fsync, fsync_commits, mend_log
from catalog.tables.names import Place
from catalog.tables.port import Table
from catalog.tables.schema import FORMAT_PROPERTY, FORMAT_VERSION

log = logging.getLogger(__name__)

_MISTAKEN = re.compile(r"%[0-9A-Fa-f]{2}|[\\\x00-\x1f\x7f]")
_PLAIN_READERS, _PLAIN_WRITERS = (1, 3), (1, 2, 7)
"""Of the highest versions the features say what they are."""
_PLAIN_FEATURES = frozenset({"appendOnly", "invariants"})
"""What writer version 2 stands for."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """What a Delta table asks of its readers and writers."""

    reader: int
    writer: int
    features: frozenset[str]

    @property
    def is_plain(self) -> bool:
        """Whether docs/FORMAT.md allows it."""
        return self.reader in _PLAIN_READERS and self.writer in _PLAIN_WRITERS and self.features <= _PLAIN_FEATURES

    def __str__(self) -> str:
        further = ", ".join(sorted(self.features - _PLAIN_FEATURES))
        return f"reader version {self.reader}, writer version {self.writer}{further and f': {further}'}"


def check_folder(folder: Path | None) -> None:
    """Refuse a local folder that delta-rs would take for another one: it decodes names, and more than once."""
    if folder and _MISTAKEN.search(str(folder)):
        raise InvalidInputError(
            f"{str(folder)!r} cannot be a catalog's folder: its path must not have % before two hexadecimal digits, "
            "a backslash or a control character; rename it or take another one"
        )


def creating(place: Place) -> AbstractContextManager[None]:
    """Let one process at a time create tables in a local folder, and only in one that holds nothing else."""
    folder = place.local_folder
    if folder is None:
        return nullcontext()
    check_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        entries = {entry.name for entry in folder.iterdir()}
    except FileExistsError as error:
        raise NotACatalogError(f"{folder} is a file: pass a folder", place=str(place)) from error
    except OSError as error:
        raise ReadOnlyError(f"cannot create a catalog in {folder}: {error.strerror or error}") from error
    foreign = entries - {LOCK_FILE, *Table}
    if foreign and Table.CHECKPOINTS not in entries:
        raise NotACatalogError(
            f"{folder} is not a catalog and holds other things ({sorted(foreign)[0]!r}): pass a new or empty folder",
            place=str(place),
        )
    return CommitLock(folder, durable=False).held()


def created(folder: Path | None) -> None:
    """Put new tables on the disk, if they are in a local folder."""
    if folder is None:
        return
    for table in Table:
        fsync_commits(folder / table, after=-1)
        fsync(folder / table)
    fsync(folder)
    fsync(folder.parent)


def mended(place: Place) -> bool:
    """Do without log checkpoints that a power cut left half-written, and say whether there were any."""
    folders = [place.local_folder / table for table in Table] if place.local_folder else []
    aside: list[Path] = []
    for folder in folders:
        if folder.is_dir():
            with CommitLock(folder, durable=False).held():
                found = mend_log(folder)
            aside += [found] if found else []
    for one in aside:
        log.warning("a log checkpoint was half-written, which a power cut may do; it is set aside as %s", one)
    return bool(aside)


def check_format(place: Place, properties: Mapping[str, str], protocol: Protocol) -> None:
    """Refuse a table `checkpoints` that is not ours, newer than this package, or not for both engines."""
    version = properties.get(FORMAT_PROPERTY) or ""
    if not version.isdecimal():
        raise no_catalog(place, "the table `checkpoints` there was not made by checkpoint-catalog", found=True)
    if int(version) > FORMAT_VERSION:
        raise UnsupportedFormatError(
            f"the catalog at {place} has format {version}, this version reads up to {FORMAT_VERSION}: "
            "upgrade checkpoint-catalog",
            version=int(version),
        )
    if not protocol.is_plain:
        raise UnsupportedFormatError(
            f"the table `checkpoints` of {place} uses more of Delta than its format allows ({protocol}), so that not "
            "every engine could write it: ALTER TABLE … DROP FEATURE takes features away, "
            "or make a new catalog and import into it",
            version=int(version),
        )


def lost_bytes(place: Place) -> DamagedCatalogError:
    """Return the error that says that a catalog's bytes are gone, which a new table would only hide."""
    return DamagedCatalogError(
        f"the catalog at {place} has checkpoints, but its table `artifacts` is gone, and their bytes with it: bring "
        "it back, with UNDROP TABLE or from a backup, or take another place",
        place=str(place),
        found=True,
    )


def lost_rows(place: Place) -> DamagedCatalogError:
    """Return the error that says that a catalog's checkpoints are gone: beside a new table all bytes were garbage."""
    return DamagedCatalogError(
        f"there is a checkpoint catalog at {place}, but its table `checkpoints` is gone, which says what the bytes in "
        "the others belong to: bring it back, with UNDROP TABLE or from a backup, or take another place",
        place=str(place),
        found=True,
    )


def has_data(table: Path) -> bool:
    """Say whether anything was ever written to a local table after it was made."""
    return (table / "_delta_log").is_dir() and any(table.rglob("*.parquet"))


def unreadable(place: Place) -> CatalogError | None:
    """Return the error that says that this process may not look into a local catalog, if that is so."""
    if place.local_folder is None:
        return None
    tables = [place.local_folder / table for table in Table]
    for folder in (place.local_folder, *(one for table in tables for one in (table, table / "_delta_log"))):
        if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
            return CatalogError(f"cannot look into {folder}: permission denied; let this process read it")
    return None


def damaged(place: Place, table: Table, why: str, *, found: bool) -> DamagedCatalogError:
    """Return the error that says that a catalog is there, but not all of it.

    Args:
        place: the catalog.
        table: which table is gone or cannot be read.
        why: what was said of it.
        found: whether it is there, and must not be made anew.
    """
    what = "cannot be read" if found else "is gone"
    half = (
        "; if only its newest log entry is half-written, as a power cut may leave it, move that aside" if found else ""
    )
    return DamagedCatalogError(
        f"there is a checkpoint catalog at {place}, but it is damaged, the table `{table}` {what} ({why}): bring that "
        f"folder back from a backup{half}, see docs/OPERATIONS.md",
        place=str(place),
        found=found,
    )


def gone(place: Place, table: Table) -> NotACatalogError:
    """Return the error that says that a catalog was removed while it was open."""
    return NotACatalogError(
        f"the catalog at {place} was removed while it was open: its table `{table}` is gone; bring it back from a "
        "backup, or take another place",
        place=str(place),
        found=False,
    )


def no_catalog(place: Place, why: str, *, found: bool) -> NotACatalogError:
    """Return the error that says that there is no catalog at a place."""
    return NotACatalogError(
        f"no checkpoint catalog at {place} ({why}): check the place, or make one with "
        "`ckpt init`, CheckpointCatalog.create, or without Spark native(path, create=True)",
        place=str(place),
        found=found,
    )
