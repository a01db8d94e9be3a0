"""The store's contract, on a catalog in a folder."""

import pytest
from pyspark.sql import SparkSession

from catalog.testing import CheckpointStoreSuite, Harness
from catalog.testing.spark import SparkHarness


class TestStoreByPath(CheckpointStoreSuite):
    @pytest.fixture(scope="class")
    @classmethod
    def harness(cls, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Harness:
        return SparkHarness(spark, tmp_path_factory.mktemp("conformance") / "a catalog's folder")
