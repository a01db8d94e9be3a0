"""Conformance suites for implementers: subclass a suite, give it a `harness` fixture, and run pytest. Needs pytest."""

from catalog.testing.harness import FakeClock, Harness
from catalog.testing.store_suite import CheckpointStoreSuite

__all__ = ["CheckpointStoreSuite", "FakeClock", "Harness"]
