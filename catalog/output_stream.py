"""Checkpoint output streams: write, then either ask for the handle, or close and leave nothing behind."""

import io
import logging
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from catalog.cutting import Buffer
from catalog.errors import CheckpointStreamError, StreamClosedError
from catalog.handles import InlineHandle, StateHandle

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

log = logging.getLogger(__name__)

PIECE_BYTES = 4 << 20
PIECES_WAITING = 2


class CheckpointStateOutputStream(io.RawIOBase):
    """A file to write state into; one thread writes, any thread may close it.

    `close_and_get_handle` makes what was written durable and says where it is. `close` without it discards
    everything; so does leaving a `with` block.
    """

    def __init__(self) -> None:
        """Make a stream; a factory does."""
        super().__init__()
        self._written = 0
        self._failure: str | None = None
        self._ended = False
        self._handle: StateHandle | None = None
        self._ending = threading.Lock()

    def writable(self) -> bool:
        """Whether it can be written: yes."""
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:  # noqa: ARG002 - the interface
        """Refuse it, as a file that is only written does."""
        raise io.UnsupportedOperation("a checkpoint output stream cannot be read: open its handle")

    def get_pos(self) -> int:
        """Return how many bytes were written."""
        return self._written

    def tell(self) -> int:
        """See get_pos."""
        return self._written

    def flush(self) -> None:
        """Do nothing, at any time: state is durable when its handle is out, and not looked at before."""

    def sync(self) -> None:
        """See flush."""

    def write(self, data: "ReadableBuffer", /) -> int:
        """Add bytes and return how many.

        Raises:
            StreamClosedError: the stream was closed.
            CheckpointStreamError: the bytes cannot be stored.
        """
        return self._take(data, frozen=False)

    def writelines(self, lines: "Iterable[ReadableBuffer]", /) -> None:
        """Add several pieces of bytes; see write."""
        self._check_open()  # there may be no line
        for line in lines:
            self.write(line)

    def write_frozen(self, data: "ReadableBuffer", /) -> int:
        """Add bytes that never change again, and so need not be copied; see write.

        This is where a snapshot could become damaged: what is written to the buffer before the handle is out makes the
        stored bytes differ from their hash, and they cannot be loaded.
        """
        return self._take(data, frozen=True)

    def _take(self, data: "ReadableBuffer", *, frozen: bool) -> int:
        self._check_open()
        view = memoryview(data)
        piece = view.cast("B") if view.nbytes else memoryview(b"")
        try:
            self._add(piece, frozen=frozen)
        except BaseException as error:
            self._failure = str(error) or type(error).__name__
            raise
        self._written += len(piece)
        return len(piece)

    def _check_open(self) -> None:
        if self._ended:
            raise StreamClosedError("this stream is closed")

    def close_and_get_handle(self) -> StateHandle | None:
        """Make what was written durable and return its handle; None if nothing was written.

        Raises:
            StreamClosedError: it was closed before, or this was asked before.
            CheckpointStreamError: the bytes could not be stored, now or by an earlier write, and nothing of them is
                left.
        """
        with self._ending:
            if self._ended:
                raise StreamClosedError("this stream is closed: its handle can be asked for once")
            self._ended = True
        try:
            self._check_whole()
            self._handle = self._finish() if self._written else None
        except BaseException:
            self._discard_quietly()
            raise
        finally:
            super().close()
        return self._handle

    def _check_whole(self) -> None:
        if self._failure is not None:
            raise CheckpointStreamError(f"a write to this stream failed, its state is not whole: {self._failure}")

    def take_handle(self) -> StateHandle | None:
        """Return the handle if it is out, once: for whoever discards what was written."""
        handle, self._handle = self._handle, None
        return handle

    def close(self) -> None:
        """Discard what was written, unless its handle is out; never raises, and may be called again."""
        with self._ending:
            first, self._ended = not self._ended, True
        if first:
            self._discard_quietly()
        super().close()

    @abstractmethod
    def _add(self, piece: memoryview, *, frozen: bool) -> None:
        """Take bytes; unless they are frozen, the buffer may be filled again afterwards."""

    @abstractmethod
    def _finish(self) -> StateHandle:
        """Store what was taken; at least one byte."""

    @abstractmethod
    def _discard(self) -> None:
        """Leave nothing behind."""

    def _discard_quietly(self) -> None:
        try:
            self._discard()
        except Exception:
            log.exception("what was written to a checkpoint stream could not be discarded; the sweep takes it")


class BufferedOutputStream(CheckpointStateOutputStream):
    """Collects pieces of 4 MiB; small state rides in the handle, from the first full piece on a thread stores it."""

    def __init__(self, threshold: int, upload: Callable[[Iterator[Buffer]], StateHandle], remove: Callable[[], None]):
        """Make a stream.

        Args:
            threshold: up to so many bytes ride in the handle.
            upload: stores pieces, all of them or none, and says where.
            remove: removes what an upload that did not end well may have left.
        """
        super().__init__()
        self._threshold = threshold
        self._upload = upload
        self._remove = remove
        self._rest = bytearray()
        self._transfer: _Transfer | None = None
        self._uploaded = False

    def _add(self, piece: memoryview, *, frozen: bool) -> None:
        while len(piece):
            if not self._rest and len(piece) >= PIECE_BYTES:
                self._started().put(piece[:PIECE_BYTES] if frozen else _copied(piece[:PIECE_BYTES]))
                piece = piece[PIECE_BYTES:]
                continue
            missing = PIECE_BYTES - len(self._rest)
            self._rest += piece[:missing]
            piece = piece[missing:]
            if len(self._rest) == PIECE_BYTES:
                self._started().put(bytes(self._rest))
                self._rest.clear()

    def _started(self) -> "_Transfer":
        with self._ending:  # not after somebody closed it, who would not see it
            if self._ended:
                raise StreamClosedError("this stream was closed")
            if self._transfer is None:
                self._transfer, self._uploaded = _Transfer(self._upload), True
            return self._transfer

    def _finish(self) -> StateHandle:
        data = bytes(self._rest)
        self._rest.clear()  # whoever keeps the stream must not keep the bytes
        if self._transfer is not None:
            if data:
                self._transfer.put(data)
            return self._transfer.result()
        if len(data) <= self._threshold:
            return InlineHandle.of(data)
        self._uploaded = True
        with as_stream_error():
            return self._upload(iter([data]))

    def _discard(self) -> None:
        self._rest.clear()
        if self._transfer is not None:
            self._transfer.abort()
        if self._uploaded:
            self._remove()


def _copied(piece: memoryview) -> Buffer:
    """Return the bytes where the caller cannot change them; other threads go on while they are copied."""
    if isinstance(piece.obj, bytes):
        return piece
    copy = pa.allocate_buffer(len(piece))
    with pa.FixedSizeBufferWriter(copy) as writer:
        writer.write(piece)
    return memoryview(copy)


@contextmanager
def as_stream_error(what: str = "the state could not be stored") -> Iterator[None]:
    """Turn what goes wrong with the tables into what file users expect, an OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise CheckpointStreamError(f"{what}: {error}") from error


class _Transfer:
    """Pieces on their way from the thread that writes them to one that stores them; a few wait at most."""

    def __init__(self, upload: Callable[[Iterator[Buffer]], StateHandle]) -> None:
        self._pieces: deque[Buffer] = deque()
        self._changed = threading.Condition()
        self._complete = self._aborted = False
        self._handle: StateHandle | None = None
        self._error: BaseException | None = None
        # A daemon: a stream that nobody closes must not keep the interpreter from ending.
        self._thread = threading.Thread(target=self._run, args=(upload,), daemon=True, name="checkpoint-stream")
        self._thread.start()

    def put(self, piece: Buffer) -> None:
        with self._changed:
            self._changed.wait_for(lambda: len(self._pieces) < PIECES_WAITING or self._error or self._aborted)
            self._raise_if_over()
            self._pieces.append(piece)
            self._changed.notify_all()

    def result(self) -> StateHandle:
        """Wait until everything is stored."""
        with self._changed:
            self._complete = True
            self._changed.notify_all()
        self._thread.join()
        self._raise_if_over()
        assert self._handle is not None
        return self._handle

    def abort(self) -> None:
        with self._changed:
            self._aborted = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self, upload: Callable[[Iterator[Buffer]], StateHandle]) -> None:
        try:
            self._handle = upload(self._arriving())
        except BaseException as error:  # noqa: BLE001 - told to whoever writes or asks for the handle, who waits
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _arriving(self) -> Iterator[Buffer]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pieces or self._complete or self._aborted)
                if self._aborted:
                    raise StreamClosedError("this stream was closed")
                if not self._pieces:
                    return
                piece = self._pieces.popleft()
                self._changed.notify_all()
            yield piece

    def _raise_if_over(self) -> None:
        if self._aborted:
            raise StreamClosedError("this stream was closed")
        if isinstance(self._error, OSError):
            raise self._error
        if self._error:
            raise CheckpointStreamError(f"the state could not be stored: {self._error}") from self._error
