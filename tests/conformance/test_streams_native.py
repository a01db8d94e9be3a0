"""The contract of checkpoint streams on the native engine."""

import pytest

from catalog.testing import CatalogStreamFactorySuite, FakeClock
from catalog.testing.native import NativeHarness


class TestStreams(CatalogStreamFactorySuite):
    @pytest.fixture(scope="class")
    @classmethod
    def harness(cls, tmp_path_factory: pytest.TempPathFactory) -> NativeHarness:
        folder = tmp_path_factory.mktemp("streams") / "a catalog's folder, 100 % & # ü"
        return NativeHarness(folder, FakeClock(), maintain_every=7, keep_versions=20)
