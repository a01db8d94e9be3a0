"""What the tests share: one Spark session, because starting one takes longer than most tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from catalog.session import build_session
from catalog.testing.spark import QUICK_SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The only Spark session of this process, on two cores."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    session = build_session("tests", {**QUICK_SETTINGS, "spark.sql.warehouse.dir": str(warehouse)}, master="local[2]")
    yield session
    session.stop()
