"""Conformance suites for implementers: subclass a suite, give it a `harness` fixture, and run pytest. Needs pytest."""

import pytest

# Before they are imported, so that a failing assertion of a suite shows its values.
pytest.register_assert_rewrite(
    "catalog.testing.checkpointer_suite",
    "catalog.testing.snapshot_suite",
    "catalog.testing.state_suite",
    "catalog.testing.store_suite",
    "catalog.testing.stream_factory_suite",
)

from catalog.testing.checkpointer_suite import CheckpointerSuite  # noqa: E402
from catalog.testing.harness import FakeClock, Harness  # noqa: E402
from catalog.testing.snapshot_suite import SnapshotStrategySuite  # noqa: E402
from catalog.testing.state_suite import CheckpointStateStoreSuite  # noqa: E402
from catalog.testing.store_suite import CheckpointStoreSuite  # noqa: E402
from catalog.testing.stream_factory_suite import (  # noqa: E402
    CatalogStreamFactorySuite,
    CheckpointStreamFactorySuite,
    StreamCheckpoints,
)

__all__ = [
    "CatalogStreamFactorySuite",
    "CheckpointStateStoreSuite",
    "CheckpointStoreSuite",
    "CheckpointStreamFactorySuite",
    "CheckpointerSuite",
    "FakeClock",
    "Harness",
    "SnapshotStrategySuite",
    "StreamCheckpoints",
]
