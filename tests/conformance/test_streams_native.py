"""The contract of checkpoint streams on the native engine."""

import uuid

import pytest

from catalog.testing import CatalogStreamFactorySuite, FakeClock, SnapshotStrategySuite
from catalog.testing.native import NativeHarness
from catalog.testing.stream_factory_suite import CatalogCheckpoints


class _Native:
    @pytest.fixture(scope="class")
    @classmethod
    def harness(cls, tmp_path_factory: pytest.TempPathFactory) -> NativeHarness:
        folder = tmp_path_factory.mktemp("streams") / "a catalog's folder, 100 % & # ü"
        return NativeHarness(folder, FakeClock(), maintain_every=7, keep_versions=20)


class TestStreams(_Native, CatalogStreamFactorySuite):
    pass


class TestSnapshots(_Native, SnapshotStrategySuite):
    @pytest.fixture
    def checkpoints(self, harness: NativeHarness) -> CatalogCheckpoints:
        return CatalogCheckpoints(harness, str(uuid.uuid4()))
