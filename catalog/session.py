"""One Spark session with Delta and every setting this catalog wants, or one sentence saying what is missing.

Settings come in layers, and the later layer wins: the defaults below, then what spark-submit or a running session
already fixed, then the caller's own. Settings that are lists (`ADDITIVE`) are joined instead.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from filelock import FileLock

from catalog.errors import SessionError

if TYPE_CHECKING:  # importing pyspark takes a second, which `import catalog.session` should not cost
    from pyspark.sql import SparkSession

JARS_VARIABLE: Final = "CHECKPOINT_CATALOG_JARS"
IVY_SETTINGS_VARIABLE: Final = "CHECKPOINT_CATALOG_IVY_SETTINGS"
OLDEST_JAVA: Final = 17

MIB: Final = 1024 * 1024

SETTINGS: Final[Mapping[str, str]] = {
    # Delta: SQL statements, and tables by path and by name.
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Time: without both, Delta rebuilds the whole state of a small table on every commit.
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.extraJavaOptions": "-Duser.timezone=UTC",
    # Small commits: Delta spreads a table's state over 50 tasks, each of which costs more than its few rows.
    "spark.databricks.delta.snapshotPartitions": "2",
    # Blobs, written: Parquet looks at sizes every 100 rows, which is 400 MiB of 4 MiB chunks.
    "spark.hadoop.parquet.page.size.row.check.min": "1",
    "spark.hadoop.parquet.page.size.row.check.max": "4",
    "spark.hadoop.parquet.block.size": str(64 * MIB),
    # A dictionary of unique chunks is built and thrown away; only the payload column goes without.
    "spark.hadoop.parquet.enable.dictionary#data": "false",
    # Blobs, read: a batch holds this many rows at once, thousands by default.
    "spark.sql.parquet.columnarReaderBatchSize": "32",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16",
    # Blobs, fetched: results of more than 1 GiB are refused by default, and have to fit into the driver.
    "spark.driver.maxResultSize": "2g",
    "spark.driver.memory": "4g",
    # OPTIMIZE: 1 GiB files, the default, are too big to rewrite for a few chunks.
    "spark.databricks.delta.optimize.minFileSize": str(32 * MIB),
    "spark.databricks.delta.optimize.maxFileSize": str(256 * MIB),
    # Quiet: a library opens no port and draws no bars; Delta's and Hadoop's warnings are about their own insides.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}

LOCAL_SETTINGS: Final[Mapping[str, str]] = {
    # A few rows need no 200 shuffle partitions; a cluster does.
    "spark.sql.shuffle.partitions": "2",
    # The machine's own name may not resolve (laptops, VPNs), and nobody else has to reach this driver.
    "spark.driver.host": "127.0.0.1",
}

QUICK_SETTINGS: Final[Mapping[str, str]] = {
    # Many tiny queries: compiling them well, in Java and in Spark, takes longer than running them. With one level of
    # compiling, Java keeps 48 MB of code unless told otherwise: Spark and Delta are more, and were compiled for ever.
    "spark.driver.extraJavaOptions": (
        "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC -Xmn256m -XX:MetaspaceSize=256m"
    ),
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # A few rows per table: one task each, planned once.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}
"""Settings for build_session that make test suites about three times as fast."""

EXCLUDES: Final = (
    # Spark ships these itself, and its class loader prefers its own: 25 of the 33 jars, 74 of the 87 MB.
    "com.fasterxml.jackson.core:*",
    "com.github.luben:zstd-jni",
    "com.google.code.findbugs:jsr305",
    "commons-logging:commons-logging",
    "commons-pool:commons-pool",
    "io.airlift:aircompressor",
    "org.apache.hadoop:hadoop-client-*",
    "org.apache.logging.log4j:*",
    "org.apache.parquet:*",
    "org.locationtech.jts:*",
    "org.roaringbitmap:*",
    "org.slf4j:*",
    "org.xerial.snappy:snappy-java",
)

ADDITIVE: Final[Mapping[str, str]] = {  # and the separator of each
    "spark.driver.extraJavaOptions": " ",
    "spark.jars": ",",
    "spark.jars.excludes": ",",
    "spark.jars.packages": ",",
    "spark.sql.extensions": ",",
}


def build_session(
    app_name: str = "checkpoint-catalog",
    settings: Mapping[str, str] | None = None,
    master: str | None = None,
    *,
    log: str | os.PathLike[str] | None = None,
) -> SparkSession:
    """Start a Spark session with Delta, or return the one that runs.

    A running session keeps what only counts when its JVM starts: jars, memory, Java options, log. Where the environment
    names a Spark Connect server (SPARK_REMOTE), the session is that server's, with its own settings.

    Args:
        app_name: The application's name.
        settings: Spark settings, which win over the defaults; lists are added to.
        master: Where to run; by default what spark-submit says, else all cores of this machine.
        log: What the JVM says for itself, such as which jars it fetches, is added to this file instead of printed.
            Errors of queries are raised as ever.

    Raises:
        SessionError: Java or the Delta jars are missing, or the running session has no Delta.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    if address := os.environ.get("SPARK_REMOTE"):
        return _remote_session(address, settings or {})
    fixed: dict[str, str] = {}
    jars: dict[str, str] = {}
    running = SparkContext._active_spark_context
    if running is not None:
        if not has_delta(SparkSession.builder.getOrCreate()):  # asked before anything of it is changed
            raise SessionError(
                "The Spark session that runs in this process has no Delta: call build_session() before any other "
                "session is started, in a new process."
            )
        fixed = dict(running.getConf().getAll())
    elif "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started the JVM, and chosen its jars
        SparkContext._ensure_initialized()
        fixed = dict(SparkConf().getAll())
    else:
        check_java()
        jars = jar_settings()

    own = {"spark.app.name": app_name, **({"spark.master": master} if master else {}), **(settings or {})}
    defaults = default_settings(own.get("spark.master", fixed.get("spark.master")))
    merged = merge(defaults, jars, fixed, own)
    changed = {key: value for key, value in merged.items() if fixed.get(key) != value}
    try:
        if SparkContext._gateway is None:
            _start_jvm(changed, log)
        spark = SparkSession.builder.config(map={**changed}).getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise SessionError(
            f"Spark's JVM ended before it was ready (its own words are {'above' if log is None else f'in {log}'}); if "
            f"{merged.get('spark.jars.packages', 'a jar')} could not be had, check the network, or set "
            f"{IVY_SETTINGS_VARIABLE} to an Ivy settings file that names your mirror, or {JARS_VARIABLE} to a folder "
            "that holds the jars."
        ) from error
    if running is None and not has_delta(spark):
        spark.stop()
        raise SessionError(
            f"This process's JVM was started without Delta: give spark-submit `--packages {delta_package()}`, "
            "or call build_session() in a new process."
        )
    if running is None:  # PySpark reads this setting only under spark-submit, and otherwise starts python3 from PATH
        spark.sparkContext.pythonExec = merged["spark.pyspark.python"]
    return spark


def _remote_session(address: str, settings: Mapping[str, str]) -> SparkSession:
    """Connect to a server, whose jars and defaults are its own."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.config(map={**settings}).getOrCreate()
    if not has_delta(spark):
        spark.stop()
        raise SessionError(
            f"The Spark Connect server at {address} has no Delta: start it with `--packages {delta_package()}` and "
            "with spark.sql.extensions and spark.sql.catalog.spark_catalog as delta-spark asks."
        )
    return spark


def _start_jvm(settings: Mapping[str, str], log: str | os.PathLike[str] | None) -> None:
    """Start the JVM as PySpark does, but for where its output goes; it fetches the jars before it answers."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    with fetching_alone(settings), Path(log or os.devnull).open("ab") as said:
        output = {"stdout": said, "stderr": said} if log is not None else None
        try:
            gateway = launch_gateway(conf, output)  # type: ignore[no-untyped-call]
        except BaseException as error:
            _end_children_of(error)
            raise
    SparkContext._ensure_initialized(gateway=gateway)


def _end_children_of(error: BaseException) -> None:
    """End the JVM whose start was interrupted: it ignores Ctrl-C, and would hold the caller's output open for ever.

    PySpark keeps the process in a local variable only, which the trace still has.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for value in frame.f_locals.values():
            if isinstance(value, subprocess.Popen):
                value.kill()
                value.wait()


@contextmanager
def fetching_alone(settings: Mapping[str, str]) -> Iterator[None]:
    """Wait for other processes that fetch jars into the same folder.

    Two that fill Ivy's cache at once write into each other's downloads: the jar is refused for its size, and both end.

    Raises:
        SessionError: The folder cannot be written.
    """
    if "spark.jars.packages" not in settings:
        yield
        return
    folder = Path(settings.get("spark.jars.ivy", Path.home() / ".ivy2.5.2"))
    lock = FileLock(folder / "checkpoint-catalog.lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise SessionError(
            f"Jars are fetched into {folder}, which cannot be written ({error.strerror}): set spark.jars.ivy to "
            f"another folder, or {JARS_VARIABLE} to one that holds the jars."
        ) from error
    try:
        yield
    finally:
        lock.release()


def has_delta(spark: SparkSession) -> bool:
    """Whether a session knows Delta's statements and has its classes."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        spark.sql("DESCRIBE HISTORY delta.`/no/such/delta/table`")
    except PySparkException as error:  # only Delta answers with an error of its own
        return (error.getCondition() or "").startswith("DELTA_")
    except Py4JJavaError:  # configured, but the classes are not there
        return False
    return True


def default_settings(master: str | None) -> dict[str, str]:
    """The defaults for a master, by default this machine."""
    local = LOCAL_SETTINGS if master is None or master.startswith("local") else {}
    python = os.environ.get("PYSPARK_PYTHON", sys.executable)  # workers need the packages that this process has
    return {**SETTINGS, **local, "spark.pyspark.python": python}


def merge(*layers: Mapping[str, str]) -> dict[str, str]:
    """Lay settings over each other: a later one wins, a list keeps what the later one lacks."""
    merged: dict[str, str] = {}
    for key, value in (item for layer in layers for item in layer.items()):
        separator = ADDITIVE.get(key)
        if separator and key in merged:
            given = value.split(separator)
            merged[key] = separator.join([part for part in merged[key].split(separator) if part not in given] + given)
        else:
            merged[key] = value
    return merged


def delta_package() -> str:
    """The Maven coordinate of the Delta jar that fits the installed packages."""
    spark_minor = ".".join(version("pyspark").split(".")[:2])
    return f"io.delta:delta-spark_{spark_minor}_2.13:{version('delta-spark')}"


def jar_settings(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Where the Delta jars come from: a folder, a mirror, or Maven Central.

    Raises:
        SessionError: The folder or the settings file is not there, or the folder lacks a jar.
    """
    if folder := environment.get(JARS_VARIABLE):
        jars = sorted(Path(folder).absolute().glob("*.jar"))
        needed = ("delta-spark_", "delta-storage-", "delta-kernel-api-", "delta-kernel-defaults-")
        missing = [name for name in needed if not any(name in jar.name for jar in jars)]
        if missing:
            raise SessionError(
                f"{JARS_VARIABLE} is {folder}, where there is no {missing[0]}*.jar: put {delta_package()} and the jars "
                "it depends on there, or unset the variable to have them downloaded."
            )
        return {"spark.jars": ",".join(map(str, jars))}
    found = {"spark.jars.packages": delta_package(), "spark.jars.excludes": ",".join(EXCLUDES)}
    if ivy_settings := environment.get(IVY_SETTINGS_VARIABLE):
        if not Path(ivy_settings).is_file():
            raise SessionError(
                f"{IVY_SETTINGS_VARIABLE} is {ivy_settings}, which is not a file: correct it, or unset it to download "
                "from Maven Central."
            )
        found["spark.jars.ivySettings"] = ivy_settings
    return found


def check_java(environment: Mapping[str, str] = os.environ) -> str:
    """Find the Java that Spark would start, refuse one that is too old, and return its version and where it is.

    Raises:
        SessionError: There is no Java, or it is too old.
    """
    remedy = f"install Java {OLDEST_JAVA} or newer and set JAVA_HOME to its folder"
    home = environment.get("JAVA_HOME")  # Spark never looks further when it is set
    java = shutil.which(str(Path(home, "bin", "java")) if home else "java", path=environment.get("PATH"))
    if java is None:
        place = f"in JAVA_HOME, which is {home}" if home else "in JAVA_HOME or on PATH"
        raise SessionError(f"Spark needs Java, and there is none {place}: {remedy}.")
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)  # "1.8.0_392" is Java 8
    if found is None:
        raise SessionError(f"{java} does not answer `java -version`, so Spark cannot start: {remedy}.")
    if int(found[1]) < OLDEST_JAVA:
        raise SessionError(f"{java} is Java {found[1]}, too old for Spark: {remedy}.")
    return f"Java {found[1]}, {java}"
