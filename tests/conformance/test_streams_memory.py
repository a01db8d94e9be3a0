"""The contract of checkpoint streams in memory."""

import pytest

from catalog import CheckpointNotFoundError, CheckpointStreamError, MemoryCheckpoints
from catalog.testing import CheckpointStreamFactorySuite, SnapshotStrategySuite
from catalog.testing.stream_factory_suite import EXCLUSIVE, LARGE, artifact


class InMemory(MemoryCheckpoints):
    """What the suite asks for besides what there is."""

    def open(self, handle):
        return self.factory(1_000).open(handle)

    def artifacts(self):
        return len(self.state)


class _InMemory:
    @pytest.fixture
    def checkpoints(self):
        return InMemory()


class TestSnapshots(_InMemory, SnapshotStrategySuite):
    pass


class TestStreams(_InMemory, CheckpointStreamFactorySuite):
    def test_more_than_the_limit_is_refused_and_leaves_nothing(self, checkpoints):
        stream = checkpoints.factory(1, limit_bytes=len(LARGE)).create_checkpoint_state_output_stream(EXCLUSIVE)
        stream.write(LARGE)
        with pytest.raises(CheckpointStreamError, match="limited to 32768 bytes"):
            stream.write(b"x")
        with pytest.raises(CheckpointStreamError, match="limited to 32768 bytes"):
            stream.close_and_get_handle()
        stream.close()
        assert checkpoints.artifacts() == 0

    def test_an_unknown_checkpoint_cannot_be_deleted(self, checkpoints):
        with pytest.raises(CheckpointNotFoundError):
            checkpoints.delete(1)

    def test_what_was_written_and_is_not_saved_goes_with_the_save(self, checkpoints):
        factory = checkpoints.factory(1)
        kept = artifact(factory)
        artifact(factory, LARGE + b"not asked for")
        checkpoints.save(factory, [kept])
        assert list(checkpoints.state) == [kept.path]
