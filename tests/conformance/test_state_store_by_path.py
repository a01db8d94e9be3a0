"""The CheckpointStateStore over Delta tables in a folder, through Spark."""

import pytest
from pyspark.sql import SparkSession

from catalog.testing import CheckpointStateStoreSuite, FakeClock
from catalog.testing.spark import SparkHarness


class TestCheckpointStateStoreByPath(CheckpointStateStoreSuite):
    @pytest.fixture(scope="class")
    @classmethod
    def harness(cls, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkHarness:
        return SparkHarness(spark, tmp_path_factory.mktemp("state-store") / "catalog", FakeClock())
