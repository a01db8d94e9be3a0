"""State as a file to read: seekable, and every byte verified before it is handed out."""

import hashlib
import io
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from catalog import artifacts
from catalog.chunks import inventory
from catalog.cutting import Hashing
from catalog.errors import CheckpointStreamError, UnknownHandleError
from catalog.output_stream import as_stream_error
from catalog.reader import StreamReader

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class ArtifactInputStream(io.RawIOBase):
    """Reads one artifact, a batch of chunks at a time; for one thread at a time, as files are."""

    def __init__(self, stream: StreamReader, rows: Sequence[Mapping[str, Any]], sha256: str) -> None:
        """Open an artifact.

        Args:
            stream: the stream's rows.
            rows: its chunk rows without bytes, all of one attempt.
            sha256: what its handle says it is.

        Raises:
            CheckpointStreamError: chunks are missing, or it is another artifact.
        """
        super().__init__()
        chunks = {row["chunk_no"]: row for row in rows}
        self._stream = stream
        self._chunks = [chunks[number] for number in sorted(chunks)]
        last = self._chunks[-1]
        self._name = f"artifact {last['path']!r} of checkpoint {last['checkpoint_key']}"
        kept = inventory(rows)[last["path"]]
        if not kept.complete or kept.sha256 != sha256:
            raise CheckpointStreamError(f"{self._name} is not what its handle says: chunks are missing or others")
        self._ends = list(accumulate(row["chunk_size"] for row in self._chunks))
        self._position = 0
        self._batch: artifacts.Rows = {}
        self._verified: dict[int, memoryview] = {}
        self._whole = hashlib.sha256()
        self._hashed = 0
        """How many chunks have been read in order from the first; then the hash of the whole is checked too."""

    def readable(self) -> bool:
        """Whether it can be read: yes."""
        return True

    def seekable(self) -> bool:
        """Whether it can be sought: yes."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to a position, which may be beyond the end, and return it."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._ends[-1]}
        if whence not in start or start[whence] + offset < 0:
            raise CheckpointStreamError(f"cannot seek to {offset} from {whence}")
        self._position = start[whence] + offset
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        """Read bytes into a buffer and return how many; 0 is the end."""
        if self.closed:
            raise ValueError("I/O operation on closed file")
        target = memoryview(buffer).cast("B")
        number = bisect_right(self._ends, self._position)
        if number == len(self._ends) or not len(target):
            return 0
        chunk = self._chunk(number)
        begin = self._position - (self._ends[number] - len(chunk))
        some = chunk[begin : begin + len(target)]
        target[: len(some)] = some
        self._position += len(some)
        return len(some)

    def readall(self) -> bytes:
        """Read all bytes from here to the end."""
        rest = bytearray(max(self._ends[-1] - self._position, 0))
        target, done = memoryview(rest), 0
        while read := self.readinto(target[done:]):
            done += read
        return bytes(rest)

    def close(self) -> None:
        """Give the memory back."""
        self._batch, self._verified = {}, {}
        super().close()

    def _chunk(self, number: int) -> memoryview:
        """Return a chunk, verified."""
        if number not in self._verified:
            self._verified = {number: self._load(number)}
        return self._verified[number]

    def _load(self, number: int) -> memoryview:
        row = self._chunks[number]
        if number not in self._batch:
            named = (row["stream"], row["checkpoint_key"], row["attempt"], row["path"])
            with as_stream_error(f"{self._name} cannot be read"):
                self._batch = artifacts.load_batch(self._stream.engine, *named, first=number)
        found = self._batch.pop(number, None)
        data: memoryview = found["data"].cast("B") if found else memoryview(b"")
        if found is None or (len(data), hashlib.sha256(data).hexdigest()) != (row["chunk_size"], row["chunk_sha256"]):
            raise self._fault(f"chunk {number} {'does not match its checksum' if found else 'is missing'}")
        if number == self._hashed:
            self._whole.update(row["chunk_sha256"].encode() if row["hashing"] == Hashing.CHUNKS else data)
            self._hashed += 1
            if self._hashed == len(self._chunks) and self._whole.hexdigest() != row["artifact_sha256"]:
                raise self._fault("it does not match the checksum of the whole")
        return data

    def _fault(self, what: str) -> CheckpointStreamError:
        """Ask again before anything is called damaged: its checkpoint may have been purged meanwhile."""
        with as_stream_error(f"{self._name} cannot be read"):
            now = self._stream.now(self._chunks[0]["checkpoint_key"])
        if now is not None and not now.unpurged:
            return UnknownHandleError(f"{self._name} is gone: {self._stream.closed(now)}")
        return CheckpointStreamError(f"{self._name} is damaged: {what}")
