"""The Checkpointer over Delta tables in a folder, through Spark."""

import pytest
from pyspark.sql import SparkSession

from catalog.testing import CheckpointerSuite, FakeClock
from catalog.testing.spark import SparkHarness


class TestCheckpointerByPath(CheckpointerSuite):
    @pytest.fixture(scope="class")
    @classmethod
    def harness(cls, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkHarness:
        return SparkHarness(spark, tmp_path_factory.mktemp("checkpointer") / "catalog", FakeClock())
