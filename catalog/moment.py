"""A catalog as it was: an engine that reads `checkpoints` at one moment, and writes nothing.

Bytes never change, so they are read as they are now; what was purged since is told as such.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from catalog import keys, marks
from catalog.errors import CorruptError, InvalidInputError, OutOfReachError, ReadOnlyError
from catalog.lifecycle import Change, Revision
from catalog.tables.port import Condition, Engine, Table, Version
from catalog.tables.schema import arrow

_TELLING = ("stream", "checkpoint_key", "revision", "change", "format", "at", "reason", "details")
"""Columns that tell what a purged checkpoint was before."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of a catalog."""

    at: datetime
    version: int | None
    """The version of `checkpoints`; None if the log does not reach that far, and rows tell what was there."""

    def __str__(self) -> str:
        if self.version is None:
            return f"{self.at:%Y-%m-%d %H:%M:%S.%f} UTC, told by rows: the log does not reach that far"
        return f"version {self.version}, of {self.at:%Y-%m-%d %H:%M:%S.%f} UTC"


def find(engine: Engine, version: int | None, timestamp: datetime | None, now: datetime) -> Moment:
    """Return the moment that is meant.

    Raises:
        OutOfReachError: there is no such version any more, or not yet; it says what is there.
    """
    if (version is None) == (timestamp is None):
        raise InvalidInputError("as_of takes either a version or a timestamp")
    known = engine.versions()
    if version is not None:
        if isinstance(version, bool) or not isinstance(version, int):
            raise InvalidInputError(f"a version is an integer, not {version!r}")
        found = next((one for one in known if one.number == version), None)
        if found is None or not _readable(engine, found):
            raise OutOfReachError(f"version {version} cannot be read; {_reach(engine, known)}", version=version)
        return Moment(found.at, version)
    timestamp = keys.utc(timestamp, "timestamp")
    if timestamp > max(now, known[-1].at):
        raise OutOfReachError(f"{timestamp} has not come yet; {_reach(engine, known)}", timestamp=timestamp)
    newest = max((one for one in known if one.at <= timestamp), key=lambda one: one.number, default=None)
    if newest is None and known[0].number == 0:
        raise OutOfReachError(f"the catalog was made after {timestamp}; {_reach(engine, known)}", timestamp=timestamp)
    return Moment(timestamp, newest.number if newest and _readable(engine, newest) else None)


def _readable(engine: Engine, version: Version) -> bool:
    """Say whether a version's data files are there too: the log remembers versions for longer."""
    try:
        with suppress(CorruptError):  # is told to whoever reads that stream
            # A column that no statistics tell, so that every file is opened.
            engine.scan(Table.CHECKPOINTS, [], ["at"], version=version.number)
    except OutOfReachError:
        return False
    return True


def _reach(engine: Engine, known: Sequence[Version]) -> str:
    """Say which versions can be read; files go in the order in which versions stopped needing them."""
    first = bisect_left(known, True, key=partial(_readable, engine))
    if first == len(known):
        return "none is reachable"
    ends = " to ".join(f"{one.number} ({keys.time_text(one.at)})" for one in (known[first], known[-1]))
    return f"reachable are versions {ends}"


class MomentEngine:
    """Reads `checkpoints` as they were at a moment, and the other tables as they are; commits nothing."""

    def __init__(self, current: Engine, moment: Moment) -> None:
        """Make it.

        Args:
            current: the tables as they are now.
            moment: when.
        """
        self.current = current
        self.moment = moment
        self.batch_chunks = current.batch_chunks
        self.place = current.place
        self.workers_write = False

    def scan(
        self,
        table: Table,
        where: Iterable[Condition],
        columns: Sequence[str],
        *,
        version: int | None = None,
        of_keys_with: Condition | None = None,
    ) -> pa.Table:
        """See Engine.scan; a version that is asked for is another moment."""
        if table is not Table.CHECKPOINTS or version is not None:
            return self.current.scan(table, where, columns, version=version, of_keys_with=of_keys_with)
        if self.moment.version is not None:
            return self.current.scan(table, where, columns, version=self.moment.version, of_keys_with=of_keys_with)
        # Callers ask by stream and key alone, so the mark of whatever was purged since is among its rows.
        rows = self.current.scan(table, where, list(dict.fromkeys([*columns, *_TELLING])))
        later = pc.field("at") > pa.scalar(self.moment.at, rows.schema.field("at").type)
        then = rows.filter(~later)
        swept = self._told_by_marks(then, rows.filter(later & (pc.field("change") == Change.PURGED)))
        seen = then.select(columns)
        return pa.concat_tables([seen, swept.select(columns).cast(seen.schema)]) if swept.num_rows else seen

    def _told_by_marks(self, then: pa.Table, purged: pa.Table) -> pa.Table:
        """Return rows of this moment that were swept since, as far as the marks of their purge keep them.

        Raises:
            OutOfReachError: a mark does not tell enough.
        """
        there = set(zip(then["stream"].to_pylist(), then["checkpoint_key"].to_pylist(), strict=True))
        found = list[Revision]()
        for row in purged.select(_TELLING).to_pylist():
            mark = Revision(insert_id="", **row)
            if (mark.stream, mark.checkpoint_key) in there or (marks.saved_at(mark) or self.moment.at) > self.moment.at:
                continue
            if (life := marks.life(mark)) is None:
                raise self._cannot_tell(mark)
            found += [one for one in life if one.at <= self.moment.at]
        return arrow(Table.CHECKPOINTS, (one.row() for one in found))

    def _cannot_tell(self, mark: Revision) -> OutOfReachError:
        which = f"checkpoint {keys.checkpoint_id(mark.checkpoint_key)} of stream {keys.stream_label(mark.stream)!r}"
        return OutOfReachError(
            f"what was there at {self.moment.at} cannot be told: {which} was purged at {keys.time_text(mark.at)}, and "
            f"all that is left does not say what it was before; {_reach(self.current, self.current.versions())}",
            timestamp=self.moment.at,
        )

    def versions(self) -> list[Version]:
        """See Engine.versions; up to this moment."""
        return [one for one in self.current.versions() if one.at <= self.moment.at]

    def worker(self) -> Engine:
        """See Engine.worker."""
        return self

    def lookup(self) -> Engine:
        """See Engine.lookup."""
        return self

    def spread(self, tasks: Sequence[bytes], work: Callable[[Engine, bytes], bytes]) -> Iterator[bytes]:
        """See Engine.spread; here, because workers would see the present."""
        return (work(self, task) for task in tasks)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ReadOnlyError(
            f"this is the catalog as of {self.moment}, which cannot change: undo on the catalog itself, checkpoint by "
            "checkpoint, or copy the moment into a new catalog"
        )

    append = append_made = insert_unless = delete = settle = compact = _refuse

    def close(self) -> None:
        """See Engine.close."""
