"""Work for another core."""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


def start(pool: Executor, work: Callable[..., T], *arguments: Any) -> Future[T]:
    """Let a pool do some work; while the interpreter shuts down, when there are no threads any more, do it here."""
    try:
        return pool.submit(work, *arguments)
    except RuntimeError:
        done: Future[T] = Future()
        try:
            done.set_result(work(*arguments))
        except Exception as error:  # noqa: BLE001 - told to whoever asks for the result, as a pool does
            done.set_exception(error)
        return done


@contextmanager
def workers(threads: int) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool that, when the block ends, ends what it has begun and begins nothing more: Ctrl-C has to stop it."""
    pool = ThreadPoolExecutor(threads)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
