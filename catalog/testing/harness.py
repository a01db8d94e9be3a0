"""What a conformance suite needs besides the catalog: a clock to move, and hands that bypass the code under test."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from catalog.catalog import CheckpointCatalog


class FakeClock:
    """A clock that stands still until it is told to advance.

    By default it starts at the real time, because table formats write times of their own beside those of the catalog.
    """

    def __init__(self, start: datetime | None = None) -> None:
        self._now = start or datetime.now(UTC)

    def __call__(self) -> datetime:
        return self._now

    def advance(self, by: timedelta) -> None:
        """Let time pass."""
        if by < timedelta(0):
            raise ValueError(f"time does not go back: {by}")
        self._now += by


class Held:
    """State in pieces, which does not come to its end before it is told to go on: what a slow write reads."""

    _PATIENCE_S = 60
    """After so long the test is wrong, and must fail instead of hanging."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._begun, self._may_go_on = threading.Event(), threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        self._begun.set()
        yield self._data[:1]
        assert self._may_go_on.wait(self._PATIENCE_S)
        yield self._data[1:]

    def wait_until_begun(self) -> None:
        """Wait until somebody reads it."""
        assert self._begun.wait(self._PATIENCE_S)

    def go_on(self) -> None:
        """Let whoever reads it come to the end."""
        self._may_go_on.set()


class Harness(ABC):
    """A catalog, its clock, and ways to look at and damage its tables that use none of the catalog's own code.

    Streams are named as a caller names them; a key is an id as it is stored: `keys.integer_key(7)`, or a UUID's text.
    """

    catalog: CheckpointCatalog
    """Empty at first; the suites use a new stream for every test."""
    clock: FakeClock
    """The catalog's clock."""

    @abstractmethod
    def corrupt_manifest(self, stream: str, key: str) -> None:
        """Overwrite the manifest text of the checkpoint's newest revision that has one, and leave its hash."""

    @abstractmethod
    def corrupt_state(self, stream: str, key: str) -> None:
        """Change bytes of every artifact chunk of the checkpoint, sizes and hashes staying as they are."""

    @abstractmethod
    def lose_state(self, stream: str, key: str) -> None:
        """Delete every artifact row of the checkpoint."""

    @abstractmethod
    def artifact_rows(self, stream: str) -> int:
        """Return how many artifact rows the stream has."""

    @abstractmethod
    def checkpoint_rows(self, stream: str) -> list[dict[str, Any]]:
        """Return all revisions of the stream, with all columns, in the order of key and revision."""
