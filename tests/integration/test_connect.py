"""Spark Connect: a server that has no more than Delta's jar, and a client process without a JVM."""

import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from catalog.session import QUICK_SETTINGS, SETTINGS, jar_settings

pytestmark = pytest.mark.prove

CHECKOUT = Path(__file__).parents[2]
SPARK_BIN = Path(pyspark.__file__).parent / "bin"
CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"

NO_DELTA = """
from catalog import SessionError
from catalog.session import build_session
try:
    build_session()
except SessionError as error:
    print(error)
"""


def clean_environment(**further):
    """Return this process's environment without what would choose a Spark."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARK", "PYSPARK"))}
    return {**kept, "PYTHONPATH": str(CHECKOUT), **further}


@contextmanager
def server(folder, settings):
    """Start a server on a free port of this machine, and give its address."""
    binding = {"spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": "0"}
    own = {"spark.driver.memory": "2g", "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}
    settings = {**own, **binding, "spark.sql.warehouse.dir": str(folder / "warehouse"), **settings}
    confs = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    command = [SPARK_BIN / "spark-submit", "--class", CLASS, "--master", "local[2]", *confs]
    log = folder / "server.log"
    env = clean_environment(SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable)
    with log.open("wb") as out:
        started = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=folder, env=env)
    try:
        while not (found := re.search(r"Spark Connect server started at: (\S+)", log.read_text())):
            assert started.poll() is None, log.read_text()[-4000:]
            time.sleep(0.1)
        yield f"sc://{found[1]}"
    finally:
        started.terminate()
        started.wait()


def test_the_catalog_works_through_a_connect_server_that_has_only_deltas_jar(tmp_path):
    delta = {name: SETTINGS[name] for name in ("spark.sql.extensions", "spark.sql.catalog.spark_catalog")}
    with server(tmp_path, {**jar_settings(), **QUICK_SETTINGS, **delta}) as address:
        tests = [sys.executable, "-m", "pytest", "-q", Path(__file__).with_name("over_connect.py")]
        client = subprocess.run(tests, cwd=CHECKOUT, env=clean_environment(SPARK_REMOTE=address))
    assert client.returncode == 0


def test_a_connect_server_without_delta_is_told_in_a_sentence(tmp_path):
    with server(tmp_path, {}) as address:
        client = subprocess.run(
            [sys.executable, "-c", NO_DELTA],
            env=clean_environment(SPARK_REMOTE=address),
            capture_output=True,
            text=True,
        )
    assert client.stdout.startswith("The Spark Connect server at sc://127.0.0.1:"), client.stderr
    assert "--packages io.delta:delta-spark" in client.stdout
