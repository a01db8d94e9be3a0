"""All contracts on the native engine, on a catalog in a folder."""

import pytest

from catalog.testing import CheckpointerSuite, CheckpointStateStoreSuite, CheckpointStoreSuite, FakeClock
from catalog.testing.native import NativeHarness


class _Native:
    @pytest.fixture(scope="class")
    @classmethod
    def harness(cls, tmp_path_factory: pytest.TempPathFactory) -> NativeHarness:
        # Tidied after every few commits, so that merged files and short logs are what the contract is held on.
        folder = tmp_path_factory.mktemp("native") / "a catalog's folder, 100 % & # ü"
        return NativeHarness(folder, FakeClock(), maintain_every=7, keep_versions=20)


class TestStore(_Native, CheckpointStoreSuite):
    pass


class TestCheckpointer(_Native, CheckpointerSuite):
    pass


class TestCheckpointStateStore(_Native, CheckpointStateStoreSuite):
    pass
