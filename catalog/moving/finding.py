"""What a source holds: its layout, and the checkpoints that its files make."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from catalog import keys
from catalog.errors import InvalidInputError
from catalog.moving import layouts
from catalog.moving.layouts import FileFacts, Layout, Plan
from catalog.moving.storage import PIECE_BYTES, FileFault, Storage

_SNIFFED = 16
"""So many files are looked into before a place is said to hold no states."""


def find_plan(storage: Storage, layout: Layout | None, threads: int) -> Plan:
    """Look at a source's files, and say which checkpoints they make.

    Raises:
        InvalidInputError: no layout is recognized, or several are.
    """
    listed = storage.list()
    plan = _plan(storage, layout, [file for file in listed if file.stray is None], threads)
    return replace(plan, strays={**plan.strays, **{file.path: file.stray for file in listed if file.stray is not None}})


def _plan(storage: Storage, layout: Layout | None, files: Sequence[FileFacts], threads: int) -> Plan:
    found = layout or layouts.detect(files)
    if found not in (None, Layout.STATES):
        return layouts.plan(found, files)
    if layout is None and not any(_sequence(storage, file) is not None for file in files[:_SNIFFED]):
        within = layouts.places(files)
        hint = f"; pass {storage.label}/{within[0]}" if within else ""
        if len(within) > 1:
            hint += f", or another of {len(within)} such folders"
        raise InvalidInputError(
            f"no checkpoints are recognized among the {len(files)} files of {storage.label}{hint}: expected are "
            "manifests/manifest-N.json, checkpoints/checkpoint_N/manifest.json, UUID/manifest.json, or files that are "
            "serialized CheckpointStates"
        )
    with ThreadPoolExecutor(threads) as pool:
        sequences = dict(zip(files, pool.map(lambda file: _sequence(storage, file), files), strict=True))
    return layouts.plan_states(files, sequences.__getitem__)


def _sequence(storage: Storage, file: FileFacts) -> int | None:
    try:
        with storage.reading(file.path) as read:
            return identify(read, file.size)
    except FileFault:
        return None  # is told when it is imported


def identify(read: Callable[[int], bytes], size: int) -> int | None:
    """Return the sequence of a serialized state, None if the bytes are none, as `CheckpointState.deserialize` has it.

    Any file is asked, and may be larger than the memory: what is in it is passed over, and a length that leads beyond
    its end is seen before anything is read.

    Args:
        read: gives so many of its next bytes, or all that are left.
        size: how many it has.
    """
    try:
        return _Skimmer(read, size).sequence()
    except (EOFError, ValueError):
        return None


class _Skimmer:
    """Passes over a serialized state, of which it keeps the names."""

    def __init__(self, read: Callable[[int], bytes], size: int) -> None:
        self._read = read
        self._left = size

    def sequence(self) -> int:
        """Return the sequence.

        Raises:
            EOFError: it is no state: a length leads beyond its end.
            ValueError: it is no state, for another reason.
        """
        sequence, _watermark_ns, _event_count = (self._number(8) for _ in range(3))
        self._entries(lambda: self._number(4))
        if self._left:
            self._entries(lambda: 8)
        if self._left:
            raise ValueError("bytes follow its end")
        return sequence

    def _entries(self, size: Callable[[], int]) -> None:
        """Pass over operators or sources, each with a name of its own and so many bytes."""
        names = set()
        for _ in range(self._number(4)):
            length = self._number(4)
            if length > keys.NAME_MAX_CHARS * 4:
                raise ValueError("a name is too long")
            name = self._take(length).decode()
            if len(name) > keys.NAME_MAX_CHARS or name in names:
                raise ValueError("a name is too long, or there twice")
            names.add(name)
            self._skip(size())

    def _number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "little")

    def _skip(self, size: int) -> None:
        self._check(size)
        for start in range(0, size, PIECE_BYTES):
            self._take(min(PIECE_BYTES, size - start))

    def _take(self, size: int) -> bytes:
        self._check(size)
        found = self._read(size)
        if len(found) < size:
            raise EOFError
        self._left -= size
        return found

    def _check(self, size: int) -> None:
        if size > self._left:
            raise EOFError
