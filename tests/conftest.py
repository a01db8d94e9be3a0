"""What the tests share: one Spark session, because starting one takes longer than most tests, and one S3."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from catalog.session import QUICK_SETTINGS, build_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The only Spark session of this process, on two cores."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    session = build_session("tests", {**QUICK_SETTINGS, "spark.sql.warehouse.dir": str(warehouse)}, master="local[2]")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def s3_options() -> Iterator[dict[str, str]]:
    """What deltalake needs to reach a local S3 that has a bucket named `bucket`."""
    command = [sys.executable, str(Path(__file__).with_name("s3_server.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        assert server.stdin
        yield {
            "AWS_ENDPOINT_URL": server.stdout.readline().strip(),
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }
        server.stdin.close()
