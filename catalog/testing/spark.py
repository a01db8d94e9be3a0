"""The harness of a catalog in Spark: it looks at and damages the Delta tables by plain SQL."""

import os
from typing import Any

from pyspark.sql import SparkSession

from catalog import keys
from catalog.catalog import CheckpointCatalog
from catalog.tables.names import any_place
from catalog.tables.port import Table
from catalog.testing.harness import FakeClock, Harness


class SparkHarness(Harness):
    """A new catalog at a path or under a name."""

    def __init__(self, spark: SparkSession, place: str | os.PathLike[str], clock: FakeClock | None = None) -> None:
        """Create the catalog.

        Args:
            spark: a session with Delta.
            place: a path (anything with a slash, or a pathlib.Path) or a schema name.
            clock: the catalog's clock, by default a new one.
        """
        self.clock = clock or FakeClock()
        self.catalog = CheckpointCatalog.create(spark, place, clock=self.clock)
        self._spark = spark
        self._checkpoints = any_place(place).table(Table.CHECKPOINTS).sql
        self._artifacts = any_place(place).table(Table.ARTIFACTS).sql

    def corrupt_manifest(self, stream: str, key: str) -> None:
        """See Harness."""
        of_key = _of_key(stream, key)
        newest = f"SELECT max(revision) AS newest FROM {self._checkpoints} WHERE {of_key} AND manifest IS NOT NULL"
        revision = self._spark.sql(newest).collect()[0]["newest"]
        garbage = _text('{"version": 1, "checkpoint_id"')
        self._change(f"UPDATE {self._checkpoints} SET manifest = {garbage} WHERE {of_key} AND revision = {revision}")

    def corrupt_state(self, stream: str, key: str) -> None:
        """See Harness."""
        first = "unhex(translate(hex(substring(data, 1, 1)), '0123456789ABCDEF', '123456789ABCDEF0'))"
        changed = f"concat({first}, substring(data, 2))"
        self._change(f"UPDATE {self._artifacts} SET data = {changed} WHERE {_of_key(stream, key)} AND length(data) > 0")

    def lose_state(self, stream: str, key: str) -> None:
        """See Harness."""
        self._change(f"DELETE FROM {self._artifacts} WHERE {_of_key(stream, key)}")

    def artifact_rows(self, stream: str) -> int:
        """See Harness."""
        count = f"SELECT count(*) AS n FROM {self._artifacts} WHERE {_of_stream(stream)}"
        return int(self._spark.sql(count).collect()[0]["n"])

    def checkpoint_rows(self, stream: str) -> list[dict[str, Any]]:
        """See Harness."""
        rows = f"SELECT * FROM {self._checkpoints} WHERE {_of_stream(stream)} ORDER BY checkpoint_key, revision"
        found: list[dict[str, Any]] = self._spark.sql(rows).toArrow().to_pylist()
        return found

    def _change(self, statement: str) -> None:
        """Run it and insist that it changed something: a fault that was not planted proves nothing."""
        if not self._spark.sql(statement).collect()[0]["num_affected_rows"]:
            raise LookupError(f"no such row: {statement}")


def _of_stream(stream: str) -> str:
    return f"stream = {_text(stream or keys.EMPTY_STREAM)}"


def _of_key(stream: str, key: str) -> str:
    return f"{_of_stream(stream)} AND checkpoint_key = {_text(key)}"


def _text(value: str) -> str:
    """Return a text as SQL that means the same whatever characters are in it."""
    return f"CAST(X'{value.encode().hex()}' AS STRING)"
