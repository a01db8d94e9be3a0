"""What was gone back to, stream by stream, as all who write through one catalog have to know."""

import threading

from catalog import keys


class GoneBack:
    """The checkpoint of each stream that new ones share with, once one was gone back to; safe to share by threads.

    Newer ones may be damaged. Who processes the same again makes the same chunks, through whatever store: it would
    borrow the damaged ones, and be told that they are saved.
    """

    def __init__(self) -> None:
        """Begin where nothing was gone back to."""
        self._lock = threading.Lock()
        self._bases: dict[str, tuple[str, str]] = {}
        """By stream the key to share with, "" for none, and a UUIDv7 as old as the going back."""

    def base(self, stream: str) -> str | None:
        """Return the key that a stream shares with, "" if it is none, None if the stream was never gone back in."""
        return self._bases.get(stream, (None, ""))[0]

    def go_back(self, stream: str, key: str) -> None:
        """Share with this one, or with none, until something is saved that began later."""
        with self._lock:
            self._bases[stream] = key, keys.new_uuid7()

    def go_on(self, stream: str, key: str, attempt: str) -> None:
        """Share with what was saved, unless its attempt began before: it may have borrowed what was passed over."""
        with self._lock:
            base = self._bases.get(stream)
            if base and base[1] < attempt:
                self._bases[stream] = key, base[1]
