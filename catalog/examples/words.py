"""A small stateful stream processor over real text: it counts words and builds an index, with ready-made strategies.

Its source are the files of Python's standard library, which every machine has. Started again at the same catalog it
restores the newest good checkpoint and goes on with the next file, so every word counts exactly once.
"""

import os
import re
import sysconfig
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from catalog import (
    CheckpointCoordinator,
    CheckpointStore,
    CompletedCheckpoint,
    DirectorySnapshotStrategy,
    MappingSnapshotStrategy,
    SnapshotStrategy,
)

SOURCE = "library"
POSITION = "files"
SINK = "dashboard"

_WORD = re.compile(r"[A-Za-z]\w+")
_NOT_OURS = {"site-packages", "dist-packages", "__pycache__"}


def library() -> list[Path]:
    """Return the files of the standard library, always in the same order."""
    folder = Path(sysconfig.get_path("stdlib"))
    found = (file for file in folder.rglob("*.py") if _NOT_OURS.isdisjoint(file.relative_to(folder).parts))
    return sorted(file for file in found if "test" not in file.parts)  # which not every Python brings along


def words_in(file: Path) -> list[str]:
    """Return the words of a file, in their order."""
    return _WORD.findall(file.read_text("utf-8", errors="replace"))


class WordsJob:
    """The stream processor: operator `words` counts in memory, operator `index` writes files that never change."""

    def __init__(self, store: CheckpointStore, files: Sequence[Path], index: str | os.PathLike[str]) -> None:
        """Begin where the newest good checkpoint ends, or anew.

        Args:
            store: the checkpoints.
            files: the source.
            index: a new or empty folder for the index.
        """
        self.words: Counter[str] = Counter()
        self.position = 0
        """How many files were read."""
        self._files = files
        self._index = Path(index)
        self._index.mkdir(parents=True, exist_ok=True)
        strategies: dict[str, SnapshotStrategy[Any]] = {
            "words": MappingSnapshotStrategy(self.words, pa.string(), pa.int64()),
            "index": DirectorySnapshotStrategy(self._index),
        }
        self.coordinator = CheckpointCoordinator(store, strategies)
        self.restored = self.coordinator.restore()
        if self.restored:
            self.words.update(MappingSnapshotStrategy.restore(self.restored.open("words")))
            DirectorySnapshotStrategy.restore(self.restored.open("index"), self._index)
            self.position = int(self.restored.manifest.source_offsets[SOURCE].offsets[POSITION])

    def read(self, count: int) -> None:
        """Read some more files: count their words, and write which words they have as the next piece of the index."""
        end = min(self.position + count, len(self._files))
        with (self._index / f"{self.position:05d}.tsv").open("w", encoding="utf-8") as piece:
            for number in range(self.position, end):
                found = words_in(self._files[number])
                self.words.update(found)
                piece.writelines(f"{word}\t{number}\n" for word in dict.fromkeys(found))
        self.position = end

    def checkpoint(self, *, delivered: bool = True) -> CompletedCheckpoint:
        """Save what was processed so far, and tell whether the sink has it too."""
        position = {SOURCE: {"offsets": {POSITION: str(self.position)}, "epoch": 1}}
        saved = self.coordinator.trigger(epoch=1, source_offsets=position, sinks=[SINK]).result()
        if delivered:
            self.coordinator.sink_committed(saved.checkpoint_id, SINK)
        return saved
