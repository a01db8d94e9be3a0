"""How a session starts, each in a process of its own, because a process has only one JVM."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

import pytest

from catalog.session import IVY_SETTINGS_VARIABLE, JARS_VARIABLE, build_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = """
import sys
from concurrent.futures import ThreadPoolExecutor
from catalog.errors import SessionError
from catalog.session import build_session
try:
    spark = build_session(settings={"spark.jars.ivy": sys.argv[1], "spark.driver.memory": "1g"}, master="local[1]")
except SessionError as error:
    sys.exit(f"SessionError: {error}")
"""

ROUND_TRIP = """
place = f"delta.`{sys.argv[2]}`"
spark.range(3).coalesce(1).write.format("delta").save(sys.argv[2])
spark.sql(f"MERGE INTO {place} t USING (SELECT 7L AS id) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *")
print(sorted(row.id for row in spark.table(place).collect()))
print(spark.sql(f"SELECT count(*) AS n FROM {place} VERSION AS OF 0").first().n)
print(spark.range(1).mapInArrow(lambda batches: batches, "id LONG").count(), spark.sparkContext.pythonExec)
"""

NO_DELTA = """
from pyspark.sql import SparkSession
quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
spark = SparkSession.builder.master("local[1]").config(map=quiet).getOrCreate()
"""

CREATE = """
import sys
from concurrent.futures import ThreadPoolExecutor
from catalog import CheckpointCatalog, SessionError
try:
    CheckpointCatalog.create(spark, sys.argv[2])
except SessionError as error:
    print(error)
"""

IVY_SETTINGS = """
<ivysettings>
  <settings defaultResolver="empty"/>
  <resolvers>
    <filesystem name="empty"><artifact pattern="{folder}/[artifact]-[revision].[ext]"/></filesystem>
  </resolvers>
</ivysettings>
"""


def run(code: str, *arguments: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new Python with nothing of this session's set-up in its environment but what is given."""
    ours = (IVY_SETTINGS_VARIABLE, JARS_VARIABLE, "PYSPARK_PYTHON", "PYSPARK_GATEWAY_PORT")
    inherited = {name: value for name, value in os.environ.items() if name not in ours}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, env=inherited | environment, capture_output=True, text=True, check=False)


def test_jars_that_cannot_be_had_are_one_clear_sentence(tmp_path: Path) -> None:
    ivy_settings = tmp_path / "ivysettings.xml"
    ivy_settings.write_text(IVY_SETTINGS.format(folder=tmp_path / "empty"))
    ended = run(START, tmp_path / "ivy", **{IVY_SETTINGS_VARIABLE: str(ivy_settings)})
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("SessionError: Spark's JVM ended before it was ready")
    for clue in ("io.delta:delta-spark_4.2_2.13:4.4.0", "network", IVY_SETTINGS_VARIABLE, JARS_VARIABLE):
        assert clue in last
    assert "Traceback" not in ended.stderr


def test_what_the_jvm_says_goes_into_the_log_and_the_sentence_names_it(tmp_path: Path) -> None:
    ivy_settings, log = tmp_path / "ivysettings.xml", tmp_path / "spark.log"
    ivy_settings.write_text(IVY_SETTINGS.format(folder=tmp_path / "empty"))
    log.write_text("kept\n")
    quiet = START.replace('master="local[1]"', 'master="local[1]", log=sys.argv[2]')
    ended = run(quiet, tmp_path / "ivy", log, **{IVY_SETTINGS_VARIABLE: str(ivy_settings)})
    assert ended.returncode == 1
    assert ended.stdout == ""
    (sentence,) = ended.stderr.splitlines()
    assert f"its own words are in {log}" in sentence
    assert log.read_text().startswith("kept\n")
    assert "unresolved dependency" in log.read_text()


@pytest.mark.prove
def test_a_folder_of_jars_is_enough_without_a_network(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "jars"
    folder.mkdir()
    for jar in spark.sparkContext.getConf().get("spark.jars", "").split(","):
        shutil.copy(urlparse(jar).path, folder)
    ended = run(START + ROUND_TRIP, tmp_path / "ivy", tmp_path / "table", **{JARS_VARIABLE: str(folder)})
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["[0, 1, 2, 7]", "3", f"1 {sys.executable}"]
    assert not (tmp_path / "ivy").exists()  # Ivy was never asked


def test_a_running_session_without_delta_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    still_works = "import atexit\natexit.register(lambda: print(spark.range(3).count()))\n"
    ended = run(NO_DELTA + still_works + CREATE + START, tmp_path / "ivy", tmp_path / "catalog")
    assert ended.returncode == 1
    assert "\nSessionError: The Spark session that runs in this process has no Delta: " in ended.stderr
    refused, count = ended.stdout.splitlines()
    assert refused.startswith("this Spark session has no Delta: make it with catalog.session.build_session()")
    assert count == "3"


def test_a_running_session_is_returned_and_keeps_its_own_settings(spark: SparkSession) -> None:
    before = dict(spark.sparkContext.getConf().getAll())
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    try:
        assert build_session(settings={"spark.sql.shuffle.partitions": "3"}) is spark
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", partitions)
    assert dict(spark.sparkContext.getConf().getAll()) == before


@pytest.mark.prove
def test_processes_that_start_together_on_a_new_machine_all_get_the_jars(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:
        ended = list(pool.map(lambda table: run(START + ROUND_TRIP, tmp_path / "ivy", tmp_path / table), "abc"))
    assert [(one.returncode, one.stdout.splitlines()[:2]) for one in ended] == [(0, ["[0, 1, 2, 7]", "3"])] * 3, ended
