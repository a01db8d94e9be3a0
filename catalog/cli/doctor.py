"""`ckpt doctor`: what this machine and a catalog's storage need to be, a line each, with the remedy."""

import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from catalog import session
from catalog.catalog import CheckpointCatalog
from catalog.cli import output as show_as
from catalog.cli.frame import CATALOG_VARIABLE, DebugOption, ExitCode, OutputOption, running
from catalog.cli.output import Column, Listing, OutputFormat
from catalog.cli.starting import starting
from catalog.errors import CatalogError, DamagedCatalogError, LockTimeoutError, NotACatalogError, SessionError
from catalog.tables.locks import CommitLock
from catalog.tables.names import Place, path_place
from catalog.tables.port import Table
from catalog.tables.schema import FORMAT_VERSION

FEWEST_FREE_BYTES = 1 << 30
FEWEST_FREE_PERCENT = 5
LOCK_WAIT_S = 1.0
NETWORK_DISKS = ("nfs", "nfs4", "cifs", "smb3", "fuse", "9p", "afs", "lustre", "ceph")
SPARK_VARIABLES = ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS")
"""What can make Spark start in another way than this package does."""


class State(StrEnum):
    """How something is."""

    OK = "ok"
    WARN = "warn"
    """It works, or is not needed for all."""
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's."""

    what: str
    state: State
    found: str
    remedy: str = ""


def doctor_command(
    path: Annotated[
        str | None,
        typer.Argument(metavar="PATH", envvar=CATALOG_VARIABLE, help="A catalog, to look at its storage too."),
    ] = None,
    spark: Annotated[bool, typer.Option("--spark", help="Start Spark too, and ask it for Delta.")] = False,
    output: OutputOption = OutputFormat.TEXT,
    debug: DebugOption = False,
) -> None:
    """Check this machine and a catalog, and tell the remedies.

    A line each, with ok, warn or fail. To see whether the storage creates files exclusively a small table is made
    beside the catalog's, and removed again. The exit code is 3 if something failed.
    """
    with running(output, debug) as out:
        found = list(_machine(os.environ))
        if spark:
            with starting(out):
                found.append(_spark())
        if path is not None:
            with out.working("looking at the catalog …"):
                found += _catalog(path_place(path))
        columns = (Column(""), Column("what"), Column("found", folds=True), Column("remedy", folds=True))
        rows = [(one.state, one.what, one.found, one.remedy) for one in found]
        out.result([asdict(one) for one in found], Listing(columns, rows))
        if any(one.state is State.FAIL for one in found):
            raise typer.Exit(ExitCode.FAULTS)


# -- this machine ------------------------------------------------------------------------------------------------------


def _machine(environment: Mapping[str, str]) -> Iterator[Finding]:
    found = ".".join(map(str, sys.version_info[:3]))
    if (3, 11) <= sys.version_info < (3, 14):
        yield Finding("python", State.OK, found)
    else:
        yield Finding("python", State.WARN, f"{found}, not tried", "use Python 3.11 to 3.13")
    yield _package("deltalake", State.FAIL, "pip install 'checkpoint-catalog[native]'")
    yield _package("pyspark", State.WARN, "pip install checkpoint-catalog")
    try:
        yield Finding("java", State.OK, session.check_java(environment))
    except SessionError as error:
        yield Finding("java", State.WARN, *_with_remedy(error, "only Spark needs it"))
    yield _jars(environment)
    yield _settings(environment)


def _package(name: str, if_missing: State, remedy: str) -> Finding:
    try:
        return Finding(name, State.OK, version(name))
    except PackageNotFoundError:
        return Finding(name, if_missing, "not installed", remedy)


def _with_remedy(error: Exception, otherwise: str = "") -> tuple[str, str]:
    """Return what an error says, and its remedy, which stands after the last colon."""
    found, colon, remedy = str(error).rpartition(": ")
    return (found, remedy) if colon else (str(error), otherwise)


def _jars(environment: Mapping[str, str]) -> Finding:
    try:
        wanted = session.jar_settings(environment)
    except SessionError as error:
        return Finding("jars", State.FAIL, *_with_remedy(error))
    if jars := wanted.get("spark.jars"):
        return Finding("jars", State.OK, f"{len(jars.split(','))} in {environment[session.JARS_VARIABLE]}")
    package = wanted["spark.jars.packages"]
    fetched = package.replace(":", "_", 1).replace(":", "-") + ".jar"
    if any(Path.home().glob(f".ivy2*/jars/{fetched}")):
        return Finding("jars", State.OK, f"{package}, fetched before")
    mirror = wanted.get("spark.jars.ivySettings", "Maven Central")
    remedy = f"needs a network once; or set {session.IVY_SETTINGS_VARIABLE} to a mirror's, or {session.JARS_VARIABLE}"
    return Finding("jars", State.WARN, f"{package} will be fetched from {mirror} when Spark first starts", remedy)


def _settings(environment: Mapping[str, str]) -> Finding:
    python = environment.get("PYSPARK_PYTHON")
    if python and shutil.which(python, path=environment.get("PATH")) is None:
        return Finding("settings", State.FAIL, f"PYSPARK_PYTHON is {python}, which is not there", "correct or unset it")
    others = [name for name in SPARK_VARIABLES if environment.get(name)]
    if others:
        found = ", ".join(f"{name} is {environment[name]}" for name in others)
        return Finding("settings", State.WARN, found, "unset it, unless Spark is to start from there")
    return Finding("settings", State.OK, f"none of {', '.join(SPARK_VARIABLES)} is set")


def _spark() -> Finding:
    try:
        spark = session.build_session("ckpt doctor")
    except SessionError as error:
        return Finding("spark", State.FAIL, *_with_remedy(error))
    return Finding("spark", State.OK, f"{spark.version}, with Delta")


# -- a catalog ---------------------------------------------------------------------------------------------------------


def _catalog(place: Place) -> Iterator[Finding]:
    yield _opened(place)
    if place.local_folder is None or place.local_folder.is_dir():
        for what, check in (("storage", _storage), ("locks", _locks), ("space", _space)):
            yield _tried(what, place, check)


def _opened(place: Place) -> Finding:
    try:
        with CheckpointCatalog.native(place.path or "") as catalog:
            streams = len(catalog.streams())
    except NotACatalogError as error:
        found, remedy = _with_remedy(error)
        if not isinstance(error, DamagedCatalogError):
            remedy = "check the path, or make one: `ckpt init`"
        return Finding("catalog", State.FAIL, found, remedy)
    except CatalogError as error:
        return Finding("catalog", State.FAIL, *_with_remedy(error))
    return Finding("catalog", State.OK, f"{place}: format {FORMAT_VERSION}, streams: {streams}")


def _tried(what: str, place: Place, check: Callable[[Place], Finding]) -> Finding:
    try:
        return check(place)
    except OSError as error:  # a ReadOnlyError is one too
        found = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return Finding(what, State.FAIL, found, "give this process permission to write there")
    except CatalogError as error:
        return Finding(what, State.FAIL, *_with_remedy(error))


def _storage(place: Place) -> Finding:
    try:
        from catalog.tables.probe import creates_exclusively
    except ModuleNotFoundError:
        return Finding("storage", State.WARN, "not known without deltalake")
    if creates_exclusively(place):
        return Finding("storage", State.OK, "of two commits of one version the second is refused")
    remedy = "let only one process write, or move the catalog"
    return Finding("storage", State.FAIL, "two writers can both believe they made one version", remedy)


def _locks(place: Place) -> Finding:
    folder = place.local_folder
    if folder is None:
        return Finding("locks", State.OK, "not needed: this is not a local disk")
    with tempfile.NamedTemporaryFile(dir=folder, prefix="_probe-") as first, Path(first.name).open() as second:
        fcntl.flock(first, fcntl.LOCK_EX)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        else:
            return Finding("locks", State.FAIL, "this disk lets two hold one lock", "use a disk that has flock")
    try:
        with ExitStack() as stack:
            for table in (one for one in Table if (folder / one).is_dir()):
                stack.enter_context(CommitLock(folder / table, timeout_s=LOCK_WAIT_S, durable=False).held())
    except LockTimeoutError:
        found = f"somebody has held the lock of {table} for more than {LOCK_WAIT_S:g} s"
        return Finding("locks", State.WARN, found, f"fuser {folder / table}/_commit.lock tells which process")
    disk = _disk(folder)
    if disk.startswith(NETWORK_DISKS):
        remedy = "write from one machine only, or move the catalog to an object store"
        return Finding("locks", State.WARN, f"free; but this is {disk}, where other machines may not see them", remedy)
    return Finding("locks", State.OK, "free")


def _disk(folder: Path) -> str:
    """Return the kind of file system that a folder is on, empty if that cannot be told."""
    mounts = Path("/proc/self/mounts")
    if not mounts.is_file():
        return ""
    lines = [line.split() for line in mounts.read_text("utf-8", "replace").splitlines()]
    above = [(place, kind) for _, place, kind, *_ in lines if folder.is_relative_to(place)]
    return max(above, key=lambda one: len(one[0]), default=("", ""))[1]


def _space(place: Place) -> Finding:
    folder = place.local_folder
    if folder is None:
        return Finding("space", State.OK, "not known: this is not a local disk")
    disk = shutil.disk_usage(folder)
    percent = 100 * disk.free // disk.total
    found = f"{show_as.size(disk.free)} of {show_as.size(disk.total)} free ({percent} %)"
    if disk.free >= FEWEST_FREE_BYTES and percent >= FEWEST_FREE_PERCENT:
        return Finding("space", State.OK, found)
    # Purging waits a few minutes longer than undo.
    remedy = (
        "`ckpt sweep` and `ckpt compact --keep-removed 0s` make room of what is past its undo window; if that is not "
        "enough `ckpt prune --keep N --undo-for 0s`, and both again after 5 minutes"
    )
    return Finding("space", State.WARN, found, remedy)
