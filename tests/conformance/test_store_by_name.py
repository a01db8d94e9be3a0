"""A selection of the store's contract, on a catalog in a schema: what could differ there is how tables are named."""

import uuid

import pytest
from pyspark.sql import SparkSession

from catalog.testing import CheckpointStoreSuite, Harness
from catalog.testing.spark import SparkHarness


class TestStoreByName:
    @pytest.fixture(scope="class")
    @classmethod
    def harness(cls, spark: SparkSession) -> Harness:
        return SparkHarness(spark, f"conf_{uuid.uuid4().hex}")

    stream = CheckpointStoreSuite.stream
    store = CheckpointStoreSuite.store

    test_full_manifest = CheckpointStoreSuite.test_a_full_manifest_and_a_bare_one_round_trip
    test_two_savers = CheckpointStoreSuite.test_of_two_savers_at_once_exactly_one_wins_and_the_other_is_told
    test_purge = CheckpointStoreSuite.test_after_the_undo_window_bytes_go_and_the_id_is_closed_for_ever
