"""Open a catalog and hand out the stores of its streams."""

import getpass
import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from catalog import keys
from catalog.checkpointer import Checkpointer
from catalog.errors import SessionError
from catalog.manifest import DEFAULT_VNODE_COUNT
from catalog.protocol import Stream
from catalog.state_store import CheckpointStateManager, CheckpointStateStore
from catalog.store import CheckpointStore
from catalog.tables.names import any_place, name_place, path_place
from catalog.tables.port import Engine, Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def utc_now() -> datetime:
    """Return this moment."""
    return datetime.now(UTC)


class CheckpointCatalog:
    """The checkpoints of many streams, in three Delta tables; safe to share by threads.

    A Spark session is used as it is: never stopped, never reconfigured.
    """

    def __init__(self, engine: Engine, *, clock: Callable[[], datetime] = utc_now, actor: str | None = None) -> None:
        """Make a catalog over an engine; `create`, `for_path` and `for_name` are the usual ways.

        Args:
            engine: how the tables are reached.
            clock: the time, with time zone.
            actor: who is written down beside every change; by default user@host.
        """
        self.engine = engine
        self._clock = clock
        self._actor = actor or f"{_user()}@{socket.gethostname()}"

    @classmethod
    def create(
        cls,
        spark: "SparkSession",
        place: str | os.PathLike[str],
        *,
        clock: Callable[[], datetime] = utc_now,
        actor: str | None = None,
        **options: Any,
    ) -> "CheckpointCatalog":
        """Create a catalog, or open the one that is there.

        Args:
            spark: a session with Delta.
            place: a path (anything with a slash, or a pathlib.Path) or a schema name of one to three parts.
            clock: the time, with time zone.
            actor: who is written down beside every change.
            options: see SparkEngine: single_writer, durable, lock_timeout_s.

        Raises:
            NotACatalogError: something else is there.
            ReadOnlyError: the place cannot be written.
            UnsupportedFormatError: a newer version of this package made the catalog that is there.
        """
        from catalog.tables.spark import SparkEngine

        return cls(SparkEngine.create(spark, any_place(place), **options), clock=clock, actor=actor)

    @classmethod
    def for_path(
        cls,
        spark: "SparkSession",
        path: str | os.PathLike[str],
        *,
        clock: Callable[[], datetime] = utc_now,
        actor: str | None = None,
        **options: Any,
    ) -> "CheckpointCatalog":
        """Open the catalog in a folder; the arguments are those of `create`."""
        from catalog.tables.spark import SparkEngine

        return cls(SparkEngine(spark, path_place(path), **options), clock=clock, actor=actor)

    @classmethod
    def for_name(
        cls,
        spark: "SparkSession",
        name: str,
        *,
        clock: Callable[[], datetime] = utc_now,
        actor: str | None = None,
        **options: Any,
    ) -> "CheckpointCatalog":
        """Open the catalog in a schema: `schema`, `catalog.schema` or `catalog.namespace.schema`."""
        from catalog.tables.spark import SparkEngine

        return cls(SparkEngine(spark, name_place(name), **options), clock=clock, actor=actor)

    @classmethod
    def native(
        cls,
        path: str | os.PathLike[str],
        *,
        create: bool = False,
        clock: Callable[[], datetime] = utc_now,
        actor: str | None = None,
        **options: Any,
    ) -> "CheckpointCatalog":
        """Open the catalog at a path without Spark, for producers that commit every few seconds.

        The tables are the very same: both engines can use them at once. Needs `checkpoint-catalog[native]`.

        Args:
            path: a local folder, or an address that deltalake takes, such as s3://bucket/folder.
            create: make the catalog if there is none; without it a mistyped path is an error, not a fresh start.
            clock: the time, with time zone.
            actor: who is written down beside every change.
            options: see NativeEngine: storage_options, durable, lock_timeout_s, maintain_every, keep_versions.

        Raises:
            NotACatalogError: something else is there, or nothing and it is not to be created.
            ReadOnlyError: the place cannot be written.
            UnsupportedFormatError: a newer version of this package made the catalog that is there.
        """
        try:
            from catalog.tables.native import NativeEngine
        except ModuleNotFoundError as error:
            if error.name != "deltalake":
                raise
            raise SessionError("the native engine needs deltalake: pip install 'checkpoint-catalog[native]'") from error

        make = NativeEngine.create if create else NativeEngine
        return cls(make(path_place(path), **options), clock=clock, actor=actor)

    def store(self, stream: str, *, max_retained: int = 0, vnode_count: int = DEFAULT_VNODE_COUNT) -> CheckpointStore:
        """Return the store of a stream with integer ids (seed 004).

        Args:
            stream: any text up to 512 characters; a trailing slash is significant, and '' is a stream too.
            max_retained: how many checkpoints auto-prune leaves at every save; 0 switches it off.
            vnode_count: what manifests are expected to have.
        """
        return CheckpointStore(
            self.stream(stream, keys.Format.MANIFEST_V1), max_retained=max_retained, vnode_count=vnode_count
        )

    def checkpointer(self, stream: str) -> Checkpointer:
        """Return the async checkpointer of a stream with UUIDv7 ids (seed 002)."""
        return Checkpointer(self.stream(stream, keys.Format.MANIFEST_V2))

    def state_store(self, *, max_per_stream: int | None = None) -> CheckpointStateStore:
        """Return the store of CheckpointStates, whose streams are named by the states (seed 003)."""
        open_stream = partial(self.stream, format=keys.Format.STATE_V1)
        return CheckpointStateStore(open_stream, max_per_stream=max_per_stream)

    def state_manager(self, interval: int, *, max_per_stream: int | None = None) -> CheckpointStateManager:
        """Return a manager that saves a stream's CheckpointState every `interval` events of that stream."""
        return CheckpointStateManager(self.state_store(max_per_stream=max_per_stream), interval)

    def streams(self) -> list[str]:
        """Return the names of all streams that have a row."""
        found = self.engine.scan(Table.CHECKPOINTS, [], ["stream"]).column("stream").unique().to_pylist()
        return sorted(keys.stream_label(stream) for stream in found)

    def maintain(self) -> None:
        """Keep the tables small and quick: merge small files, shorten logs, delete what no readable version needs.

        Once a day is enough. It runs on the native engine, also beside Spark's writers.
        """
        self.engine.maintain()

    def stream(self, name: str, format: keys.Format | None = None) -> Stream:
        """Return the rows of a stream of some format, or of any, and the protocol's steps on them."""
        return Stream(self.engine, name, format, clock=self._clock, actor=self._actor)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
