"""The contracts of checkpoint streams and snapshot strategies, on a catalog in a folder, through Spark."""

import uuid

import pytest
from pyspark.sql import SparkSession

from catalog.errors import UnknownHandleError
from catalog.testing import CatalogStreamFactorySuite, FakeClock, SnapshotStrategySuite
from catalog.testing.spark import SparkHarness
from catalog.testing.stream_factory_suite import HUGE, LARGE, CatalogCheckpoints, artifact, read


class _ByPath:
    @pytest.fixture(scope="class")
    @classmethod
    def harness(cls, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkHarness:
        return SparkHarness(spark, tmp_path_factory.mktemp("streams") / "a catalog's folder", FakeClock())

    @pytest.fixture
    def checkpoints(self, harness: SparkHarness) -> CatalogCheckpoints:
        return CatalogCheckpoints(harness, f"{uuid.uuid4()} a/../b 'c' \"d\" `e` \\f g=h 50%25 \t🚰é/")


class TestStreamsByPathInShort(_ByPath):
    """What every change has to pass; `make prove` runs the contracts."""

    def test_state_is_written_borrowed_reused_and_gone_with_the_last_checkpoint_that_uses_it(self, checkpoints):
        first = checkpoints.factory(1)
        large, huge = artifact(first), artifact(first, HUGE)
        checkpoints.save(first, [large, huge])
        second = checkpoints.factory(2)
        second.reuse_previous_state_handle([large])
        changed = artifact(second, HUGE[:-1] + b"!")
        checkpoints.save(second, [large, changed])
        assert [row["chunk_size"] for row in checkpoints.rows(2) if row["data"] is not None] == [len(HUGE) % (4 << 20)]
        checkpoints.delete(1)
        assert [read(checkpoints.open(one)) for one in (large, changed)] == [LARGE, HUGE[:-1] + b"!"]
        with pytest.raises(UnknownHandleError):
            checkpoints.open(huge)
        checkpoints.delete(2)
        assert checkpoints.artifacts() == 0


@pytest.mark.prove
class TestStreamsByPath(_ByPath, CatalogStreamFactorySuite):
    pass


@pytest.mark.prove
class TestSnapshotsByPath(_ByPath, SnapshotStrategySuite):
    pass
