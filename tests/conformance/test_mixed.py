"""The contracts on one catalog that both engines use at once: every step through the other one than the step before."""

from itertools import cycle

import pytest
from pyspark.sql import SparkSession

from catalog import CheckpointCatalog
from catalog.tables.native import NativeEngine
from catalog.testing import CheckpointerSuite, CheckpointStateStoreSuite, CheckpointStoreSuite
from catalog.testing.native import NativeHarness
from catalog.testing.spark import SparkHarness


class Alternating:
    """Two real engines on the same tables, taking turns call by call."""

    batch_chunks = NativeEngine.batch_chunks

    def __init__(self, *engines):
        self._engines = cycle(engines)
        self.place = engines[0].place

    def __getattr__(self, name):
        return lambda *arguments, **options: getattr(next(self._engines), name)(*arguments, **options)


def mixed_harness(spark: SparkSession, folder, made_by: str):
    """A catalog whose tables one engine made, and which both use from then on."""
    harness = SparkHarness(spark, folder) if made_by == "spark" else NativeHarness(folder, maintain_every=7)
    other = (
        CheckpointCatalog.native(folder, maintain_every=7)
        if made_by == "spark"
        else CheckpointCatalog.for_path(spark, folder)
    )
    harness.catalog.engine = Alternating(harness.catalog.engine, other.engine)
    return harness


class _Mixed:
    @pytest.fixture(scope="class", params=["spark", "native"])
    @classmethod
    def harness(cls, request, spark, tmp_path_factory):
        return mixed_harness(spark, tmp_path_factory.mktemp("mixed") / "catalog", request.param)


class TestSelection(_Mixed):
    stream = CheckpointStoreSuite.stream
    store = CheckpointStoreSuite.store

    test_full_manifest = CheckpointStoreSuite.test_a_full_manifest_and_a_bare_one_round_trip
    test_purge = CheckpointStoreSuite.test_after_the_undo_window_bytes_go_and_the_id_is_closed_for_ever
    test_damage = CheckpointStoreSuite.test_changed_or_lost_state_is_found_and_recovery_falls_back


@pytest.mark.prove
class TestStore(_Mixed, CheckpointStoreSuite):
    pass


@pytest.mark.prove
class TestCheckpointer(_Mixed, CheckpointerSuite):
    pass


@pytest.mark.prove
class TestCheckpointStateStore(_Mixed, CheckpointStateStoreSuite):
    pass
