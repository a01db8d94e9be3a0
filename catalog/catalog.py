"""Open a catalog, hand out the stores of its streams, look at all of it, and go back in time."""

import getpass
import os
import socket
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from catalog import (
    artifacts,
    clone,
    diff,
    drills,
    folding,
    keys,
    lifecycle,
    moment,
    prune,
    recovery,
    restore,
    verify,
    views,
)
from catalog.checkpointer import Checkpointer
from catalog.chunks import inventory
from catalog.clone import CopiedStream
from catalog.diff import CheckpointDiff, Contents
from catalog.drills import DrillReport
from catalog.errors import CheckpointNotFoundError, CorruptError, InvalidInputError, OutOfReachError, SessionError
from catalog.folders import Folder
from catalog.folding import MIN_LINKS, FoldReport
from catalog.gone_back import GoneBack
from catalog.lifecycle import Checkpoint, Revision
from catalog.manifest import DEFAULT_VNODE_COUNT, Positions, StateManifest, parse_any
from catalog.moment import Moment, MomentEngine
from catalog.moving import importing
from catalog.moving.exporting import Exporter
from catalog.moving.finding import find_plan
from catalog.moving.importing import Importer
from catalog.moving.layouts import Layout
from catalog.moving.report import MoveReport
from catalog.moving.storage import Storage
from catalog.policies import LONGEST_SPAN, Retention, check_flag, check_span
from catalog.protocol import Stream
from catalog.prune import CleanUp, Planned, RetentionReport
from catalog.reader import rows_unreadable
from catalog.recovery import RecoveryReport, Requirement
from catalog.restore import StatePart
from catalog.state_store import CheckpointStateManager, CheckpointStateStore
from catalog.store import CheckpointStore
from catalog.sweep import ORPHAN_GRACE
from catalog.tables.compaction import CompactionReport
from catalog.tables.names import TableName, any_place, name_place, path_place
from catalog.tables.port import Condition, Engine, Equals, In, Merging, Table
from catalog.tables.schema import CHECKPOINT_FACTS
from catalog.verify import Depth, Progress, Sample, ValidationReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LONGEST_KEEP_REMOVED = timedelta(days=1)


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
        self._clock = _checked(clock)
        self._actor = _actor(actor)
        self._gone_back = GoneBack()

    def __repr__(self) -> str:
        shown = f"as of {self.moment}" if self.moment else type(self.engine).__name__.removesuffix("Engine").lower()
        return f"CheckpointCatalog({str(self.engine.place)!r}, {shown})"

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

        clock, actor = _checked(clock), _actor(actor)
        engine = SparkEngine.create(spark, any_place(place), clock=clock, **options)
        return cls(engine, clock=clock, actor=actor)

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

        return cls(SparkEngine(spark, path_place(path), clock=clock, **options), clock=clock, actor=actor)

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

        return cls(SparkEngine(spark, name_place(name), clock=clock, **options), clock=clock, actor=actor)

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

        clock, actor = _checked(clock), _actor(actor)
        make = NativeEngine.create if create else NativeEngine
        return cls(make(path_place(path), clock=clock, **options), clock=clock, actor=actor)

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

    def streams(self, *, staged: bool = False) -> list[str]:
        """Return the names of all streams that have a row.

        Args:
            staged: also of those whose first save never came to an end, of which there are only bytes.
        """
        return sorted(self._names([], staged=staged))

    def _names(self, where: Sequence[Condition], *, staged: bool) -> set[str]:
        tables = (Table.CHECKPOINTS, Table.ARTIFACTS) if staged else (Table.CHECKPOINTS,)
        found = [self.engine.scan(table, where, ["stream"]).column("stream").unique() for table in tables]
        return {keys.stream_label(stream) for some in found for stream in some.to_pylist()}

    def _known(self, streams: Iterable[str] | None, aim: str, *, staged: bool = False) -> list[str]:
        """Return the names of the streams that are meant, by default all; refuse one that is not there."""
        if streams is None:
            return self.streams(staged=staged)
        wanted = _several(streams)
        there = self._names([_of_streams(wanted)], staged=staged)
        if missing := [name for name in wanted if name not in there]:
            raise CheckpointNotFoundError(f"there is no stream {missing[0]!r} {aim}", stream=missing[0])
        return wanted

    # -- looking ---------------------------------------------------------------------------------------------------

    def histories(
        self,
        streams: Iterable[str] | None = None,
        *,
        damaged: Callable[[str, CorruptError], None] | None = None,
    ) -> dict[str, dict[str, Checkpoint]]:
        """Return what became of all checkpoints, by stream and key, from one read that takes no manifests along.

        Args:
            streams: which ones, by default all; one that has no row is left out.
            damaged: is told of each stream whose rows cannot be read, and why, and that stream is left out; without it
                that is an error.
        """
        where = [] if streams is None else [_of_streams(_several(streams))]
        found = defaultdict(list)
        for row in chain.from_iterable(part.to_pylist() for part in self._facts(where, damaged)):
            found[keys.stream_label(row["stream"])].append(Revision(**row))
        return {name: lifecycle.fold(found[name]) for name in sorted(found)}

    def _facts(
        self, where: Sequence[Condition], damaged: Callable[[str, CorruptError], None] | None
    ) -> Iterator[pa.Table]:
        """Yield all rows of some streams; where something is damaged, of each stream by itself."""
        try:
            yield self.engine.scan(Table.CHECKPOINTS, where, CHECKPOINT_FACTS)
        except CorruptError:
            for name in sorted(self._names(where, staged=False)):
                try:
                    yield self.engine.scan(Table.CHECKPOINTS, [_of_streams([name])], CHECKPOINT_FACTS)
                except CorruptError as error:
                    if damaged is None:
                        raise rows_unreadable(name, error) from error
                    damaged(name, rows_unreadable(name, error))

    def table(self, table: Table) -> "DataFrame":
        """Return one of the tables as a DataFrame, `checkpoints` as of this catalog's moment."""
        sql, relation, _ = self._sql()
        return sql(f"SELECT * FROM {relation(table)}")

    def view(self, name: str) -> "DataFrame":
        """Return one of the views of sql/views as a DataFrame, whether it is deployed or not.

        Args:
            name: one of `catalog.views.VIEWS`; at an earlier moment not one of `catalog.views.OF_THE_PRESENT`.
        """
        if name not in views.VIEWS:
            raise InvalidInputError(f"there is no view {name!r}: choose one of {', '.join(views.VIEWS)}")
        sql, relation, earlier = self._sql()
        if earlier and name in views.OF_THE_PRESENT:
            raise InvalidInputError(f"{name} tells what is now, not what was at {self.moment}: ask the catalog itself")
        return sql(views.query(name, earlier.table if earlier else relation, earlier))

    def deploy_views(self, prefix: str = "") -> list[str]:
        """Make the views, or make them anew, and return their names as SQL takes them.

        They are persistent in the catalog's schema; a catalog by path has no schema, and gets temporary views of the
        session. At an earlier moment they leave out those of `catalog.views.OF_THE_PRESENT`.

        Args:
            prefix: is put before every name, for several catalogs in one session.
        """
        sql, relation, earlier = self._sql()
        schema = () if earlier else self.engine.place.schema
        wanted = [name for name in views.VIEWS if not (earlier and name in views.OF_THE_PRESENT)]
        names = {name: TableName((*schema, prefix + name)) for name in wanted}

        def over(name: str) -> str:
            return names[name].sql if name in names else (earlier.table if earlier else relation)(Table(name))

        for name in wanted:
            sql(views.create_statement(name, names[name], over, temporary=not schema, earlier=earlier))
        return [name.sql for name in names.values()]

    def validate(
        self,
        streams: Iterable[str] | None = None,
        *,
        depth: Depth | str = Depth.METADATA,
        sample: Sample | None = None,
        progress: Callable[[Progress], None] | None = None,
        record: bool = True,
    ) -> ValidationReport:
        """Look at live checkpoints, where the workers are, and write what was found into `events`.

        A stream whose rows cannot be read is told in the report, and the others are looked at all the same.

        Args:
            streams: which ones, by default all.
            depth: "metadata", or "hashes" to read and hash every chunk and artifact as well.
            sample: look only at some, chosen at random.
            progress: is called with how far it has come, every now and then.
            record: whether it is written down at all.
        """
        return verify.validate(
            self.engine,
            streams=streams if streams is None else _several(streams),
            depth=_depth(depth),
            sample=sample,
            progress=progress,
            clock=self._clock,
            actor=self._actor,
            record=record and not isinstance(self.engine, MomentEngine),
        )

    def run_drills(
        self,
        streams: Iterable[str] | None = None,
        *,
        sample: Sample | None = None,
        scratch: str | os.PathLike[str] | None = None,
        dry_run: bool = False,
        progress: Callable[[Progress], None] | None = None,
    ) -> DrillReport:
        """Restore some committed checkpoints into scratch space, check every hash, and write how it went into `events`.

        One that cannot be restored is recorded as failed, and the others are drilled all the same.

        Args:
            streams: which ones, by default all.
            sample: choose at random; by default the latest of each stream and the one drilled the longest ago, if ever.
            scratch: a folder where the workers are, in which temporary ones are made; by default the system's. Each
                worker needs room for one restored checkpoint at a time.
            dry_run: only say which ones would be restored.
            progress: is called with how far it has come, every now and then.
        """
        return drills.run(
            self.engine,
            self.histories(None if streams is None else self._known(streams, "to drill")),
            sample=sample,
            scratch=None if scratch is None else Path(scratch).absolute(),
            dry_run=dry_run,
            progress=progress,
            clock=self._clock,
            actor=self._actor,
            record=not isinstance(self.engine, MomentEngine),
        )

    def diff(self, stream: str, before: int | str, after: int | str) -> CheckpointDiff:
        """Return what changed between two checkpoints of a stream: operators, bytes by chunk, positions."""
        rows = self.stream(stream)
        pair = [self._content(rows, keys.any_key(one)) for one in (before, after)]
        (first, parts, positions), (second, later_parts, later_positions) = pair
        return diff.compare((first, second), (parts, later_parts), (positions, later_positions))

    def _content(self, rows: Stream, key: str) -> tuple[int | str, Contents, Positions]:
        found = rows.require_live(key, rows.find(key))
        manifest = parse_any(found, rows.label)
        attempt = (found.origin.attempt if found.origin else None) or ""
        of_attempt = [Equals("checkpoint_key", key), Equals("attempt", attempt)]
        kept = inventory(artifacts.facts(rows.engine, rows.stream, of_attempt))
        state = self.state_store().load(rows.label, int(key)) if isinstance(manifest, StateManifest) else None
        return found.id, diff.contents(manifest, kept, state), manifest.positions()

    # -- going back ------------------------------------------------------------------------------------------------

    def recover(
        self,
        stream: str,
        *,
        allow_pending: bool = False,
        lenient: bool = False,
        pipeline_hash: int | None = None,
        vnode_count: int | None = None,
        at_offset: tuple[str, int] | tuple[str, str, int] | None = None,
        at_watermark: int | None = None,
        at_event_count: int | None = None,
        at_time: datetime | None = None,
    ) -> RecoveryReport:
        """Return the newest checkpoint of a stream that is eligible and valid, and why newer ones were passed over.

        Args:
            stream: the stream, of any format.
            allow_pending: also take one whose sinks are pending or failed: what they did not commit is lost to them.
            lenient: also take one whose state is missing; the report says so.
            pipeline_hash: only of this pipeline.
            vnode_count: only with so many virtual nodes.
            at_offset: not beyond an offset: (source, offset), or (source, position, offset).
            at_watermark: not beyond this event-time watermark.
            at_event_count: after not more events than these.
            at_time: not made after this time.
        """
        rows = self.stream(stream)
        history = rows.history()
        require: list[Requirement] = []
        if pipeline_hash is not None:
            require.append(recovery.pipeline(keys.u64(pipeline_hash, "pipeline_hash")))
        if vnode_count is not None:
            require.append(recovery.vnodes(keys.u64(vnode_count, "vnode_count")))
        if at_watermark is not None:
            require.append(recovery.at_or_before_watermark(keys.integer(at_watermark, "at_watermark")))
        if at_event_count is not None:
            require.append(recovery.at_or_before_event_count(keys.u64(at_event_count, "at_event_count")))
        if at_time is not None:
            require.append(recovery.at_or_before_time(at_time))
        if at_offset is not None:
            source, position, offset = _offset(at_offset)
            positions = restore.Manifests(rows, history).positions
            require.append(recovery.at_or_before_offset(source, offset, position, positions))
        return restore.recover(rows, allow_pending=allow_pending, lenient=lenient, require=require, history=history)

    def restore_into(self, stream: str, checkpoint_id: int | str, folder: str | os.PathLike[str]) -> Path:
        """Write a checkpoint's state into a new folder, verified, all of it or nothing, and return the folder.

        It holds manifest.json, the state under artifacts/, what rides in the manifest included, and restore.json, which
        says of each file the operator, partition and handle that it is of, in the order to apply. A CheckpointState is
        one file, `checkpoint-state.bin`: `CheckpointState.deserialize` takes its bytes.
        """
        return restore.materialize(self.stream(stream), keys.any_key(checkpoint_id), folder)

    def open_state(self, stream: str, checkpoint_id: int | str) -> Iterator[tuple[StatePart, Iterator[bytes]]]:
        """Yield a checkpoint's state in the order to apply it, piece by piece, each as a stream of verified chunks.

        Every piece of state is one, what rides in the manifest too; a CheckpointState is one piece, as
        `CheckpointState.deserialize` takes it.
        """
        rows = self.stream(stream)
        for part in restore.parts(rows, keys.any_key(checkpoint_id)):
            yield part, restore.open_part(rows, part)

    def as_of(self, *, version: int | None = None, timestamp: datetime | None = None) -> "CheckpointCatalog":
        """Return the whole catalog as it was at a moment, read-only.

        A moment is a version of the table `checkpoints`; a timestamp means the newest version at or before it. Bytes
        are read as they are now: they never change, and what was purged since is told as such. Where the log does not
        reach as far as a timestamp, rows tell what was there then, and `moment` says so.

        Raises:
            OutOfReachError: that version is not there any more, or not yet; it says what is reachable. Reading what
                only rows can tell raises it too, if those of a checkpoint that was purged since do not tell enough.
        """
        found = moment.find(self.engine, version, timestamp, self._clock())
        return CheckpointCatalog(MomentEngine(self.engine, found), clock=lambda: found.at, actor=self._actor)

    @property
    def moment(self) -> Moment | None:
        """The moment that this catalog shows, None if it is the present."""
        return self.engine.moment if isinstance(self.engine, MomentEngine) else None

    def copy_to(self, other: "CheckpointCatalog", streams: Iterable[str] | None = None) -> list[CopiedStream]:
        """Copy streams, as they are now or were at this moment, into another catalog that does not have them.

        Args:
            other: the catalog to copy into.
            streams: which ones, by default all.

        Raises:
            CheckpointNotFoundError: there is no such stream.
        """
        return [clone.copy_stream(self.stream(name), other.stream(name)) for name in self._known(streams, "to copy")]

    # -- in and out ------------------------------------------------------------------------------------------------

    def import_from(
        self,
        source: str | os.PathLike[str],
        stream: str,
        *,
        layout: Layout | str | None = None,
        storage_options: Mapping[str, str] | None = None,
        threads: int = importing.THREADS,
        dry_run: bool = False,
        progress: Callable[[Progress], None] | None = None,
    ) -> MoveReport:
        """Import the checkpoints that another store keeps as files, and say what became of each.

        Ids, sink statuses, checksums and times stay. Run again after an interruption it goes on; what is there with
        the same content is a success, other content under an id is told and never overwritten. What is wrong with a
        source comes along as it is, and is found by validation; it does not count as latest, and recovery passes it.

        Args:
            source: a folder, or an address such as s3://bucket/folder.
            stream: where to.
            layout: how the source names its files; by default it is recognized. See `catalog.Layout`.
            storage_options: for S3 those that deltalake takes; what is missing, the environment says.
            threads: how many files are read at a time.
            dry_run: read and judge everything, and write nothing.
            progress: is told how far it has come, after every checkpoint.

        Raises:
            InvalidInputError: nothing is there, no layout is recognized, or the stream holds another format.
            ConflictError: somebody else changed the stream meanwhile; run it again.
        """
        storage = Storage(source, storage_options)
        threads = keys.u64(threads, "threads", minimum=1)
        plan = find_plan(storage, _layout(layout), threads)
        rows = self.stream(stream, plan.layout.holds)
        return Importer(rows, storage, plan, threads=threads, dry_run=dry_run, progress=progress).run()

    def export_to(
        self,
        target: str | os.PathLike[str],
        stream: str,
        *,
        layout: Layout | str | None = None,
        storage_options: Mapping[str, str] | None = None,
        threads: int = importing.THREADS,
        dry_run: bool = False,
        progress: Callable[[Progress], None] | None = None,
    ) -> MoveReport:
        """Export the live checkpoints of a stream, and what they stand on, as files of another store; see `MoveReport`.

        What was imported gets the same names and bytes, as long as it was not updated here. Run again after an
        interruption it goes on.

        Args:
            target: an empty or new folder, or address such as s3://bucket/folder.
            stream: where from.
            layout: how files are named; by default as those that were imported, else as the stream's format wants it.
            storage_options: for S3 those that deltalake takes; what is missing, the environment says.
            threads: how many checkpoints are written at a time.
            dry_run: read and compare everything, and write nothing.
            progress: is told how far it has come, after every checkpoint.

        Raises:
            CheckpointNotFoundError: there is no such stream.
            InvalidInputError: the target holds something else than this export.
        """
        storage = Storage(target, storage_options)
        threads = keys.u64(threads, "threads", minimum=1)
        rows = self.stream(stream)
        return Exporter(
            rows, storage, layout=_layout(layout), threads=threads, dry_run=dry_run, progress=progress
        ).run()

    # -- keeping ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Wait for work that goes on in the background; a `with` block does so at its end. Stops no Spark session."""
        self.engine.close()

    def __enter__(self) -> "CheckpointCatalog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def apply_retention(
        self, policies: Iterable[Retention], streams: Iterable[str] | None = None, *, dry_run: bool = False
    ) -> RetentionReport:
        """Put into the trash what no policy keeps, with a reason for every checkpoint; `restore` undoes it for a while.

        Args:
            policies: what is kept of which streams; the first that fits a stream counts, one that none fits is left
                alone. `catalog.read_policies` reads them from a TOML file.
            streams: which ones, by default all.
            dry_run: only say what would go.

        Raises:
            CheckpointNotFoundError: there is no such stream, not even one of which there are only bytes.
        """
        policies = _policies(policies)
        check_flag(dry_run, "dry_run")
        planned: list[Planned] = []
        undo_until: dict[str, datetime] = {}
        # Of one that is named there may be only bytes: nothing of it goes here, and its clean-up comes next.
        for name in self._known(streams, "to apply retention to", staged=streams is not None):
            if policy := prune.choose(policies, name):
                some, until = prune.apply(self.stream(name), policy, dry_run=dry_run)
                planned += some
                undo_until |= {name: until} if until else {}
        return RetentionReport(tuple(planned), undo_until, dry_run)

    def fold_chains(
        self,
        streams: Iterable[str] | None = None,
        *,
        folders: Mapping[str, Folder] = MappingProxyType({}),
        min_links: int = MIN_LINKS,
        dry_run: bool = False,
        progress: Callable[[Progress], None] | None = None,
    ) -> FoldReport:
        """Make one snapshot of every long delta chain of the newest checkpoints, where the workers are.

        Recovery then reads that one, which is verified against the chain before it counts. Nothing is deleted: what
        the chain stood on goes when retention lets it go. A chain whose format nobody tells is left alone.

        Args:
            streams: which ones, by default all.
            folders: who knows the format of an operator's artifacts, by operator or by a pattern as file names have
                it. An operator whose manifest tells one of the formats `catalog.folders.READY` needs none.
            min_links: chains of fewer artifacts are left.
            dry_run: only say what would be folded.
            progress: is called with how far it has come, after every checkpoint.
        """
        return folding.fold_chains(
            self.engine,
            streams=streams if streams is None else _several(streams),
            folders=folders,
            min_links=min_links,
            dry_run=dry_run,
            progress=progress,
            clock=self._clock,
            actor=self._actor,
        )

    def clean_up(
        self, streams: Iterable[str] | None = None, *, grace: timedelta = ORPHAN_GRACE, dry_run: bool = False
    ) -> list[CleanUp]:
        """Delete for good what is past its undo window, and the bytes that nothing needs any more.

        Args:
            streams: which ones, by default all.
            grace: what was staged less than this ago is left alone: its save may be in progress.
            dry_run: only say what would go.

        Raises:
            CheckpointNotFoundError: there is no such stream, not even one of which there are only bytes.
        """
        check_flag(dry_run, "dry_run")
        wanted = self._known(streams, "to clean up", staged=True)
        return [prune.clean_up(self.stream(name), grace, dry_run=dry_run) for name in wanted]

    def compact(
        self,
        *,
        keep_removed: timedelta | None = None,
        dry_run: bool = False,
        progress: Callable[[Merging], None] | None = None,
    ) -> CompactionReport:
        """Keep the tables small and quick: merge small files, shorten logs, delete what no readable version needs.

        Once a day is enough. It is safe beside writers and readers of either engine, and twice at once; merged rows
        are compared with what they were made of, and chunks with their hashes, before they count.

        Args:
            keep_removed: how long data files of `artifacts` and `events` stay on the disk that no longer count, by
                default and at most a day. With less the disk gets swept bytes back sooner, and a read that is under
                way may have to begin again. Undo and `as_of` do not depend on it.
            dry_run: only say what would be done.
            progress: is told how far it has come, every now and then.

        Raises:
            CorruptError: merged rows differ from what they were made of; nothing was deleted.
        """
        check_flag(dry_run, "dry_run")
        if keep_removed is not None:
            check_span(keep_removed, "keep_removed", LONGEST_KEEP_REMOVED)
        return self.engine.compact(keep_removed=keep_removed, dry_run=dry_run, progress=progress)

    def stream(self, name: str, format: keys.Format | None = None) -> Stream:
        """Return the rows of a stream of some format, or of any, and the protocol's steps on them."""
        return Stream(self.engine, name, format, clock=self._clock, actor=self._actor, gone_back=self._gone_back)

    def _sql(self) -> tuple[Callable[[str], "DataFrame"], views.Naming, views.Earlier | None]:
        """Return what runs a statement, how tables are named in it, and how views show this moment if it is one."""
        engine: Any = self.engine.current if isinstance(self.engine, MomentEngine) else self.engine
        sql = getattr(engine, "sql", None)
        if sql is None:
            raise SessionError("views need Spark: open the catalog with CheckpointCatalog.for_path(spark, path)")
        at = self.moment
        if at is not None and at.version is None:
            raise OutOfReachError(f"there are no views as of {at}: choose a version that the log has")

        def relation(table: Table) -> str:
            named: str = engine.relation(table, at.version if at and table is Table.CHECKPOINTS else None)
            return named

        if at is None:
            return sql, relation, None
        saved = self.engine.scan(Table.CHECKPOINTS, [], ["at"])["at"].to_pylist()
        return sql, relation, views.Earlier(max([at.at, *saved]), relation, engine.relation)


def _offset(value: tuple[str, int] | tuple[str, str, int]) -> tuple[str, str | None, int]:
    """Return source, position and offset; anything else might compare something, and choose wrongly."""
    match value:
        case (str(source), offset):
            return source, None, keys.integer(offset, "at_offset")
        case (str(source), str(position), offset):
            return source, position, keys.integer(offset, "at_offset")
    raise InvalidInputError(f"at_offset must be (source, offset) or (source, position, offset), not {value!r}")


def _several(streams: Iterable[str]) -> list[str]:
    """Return names, each one once; refuse one where several are meant: its letters would be taken for names."""
    if isinstance(streams, str):
        raise InvalidInputError(f"streams must be a list of names: pass [{streams!r}]")
    return list(dict.fromkeys(keys.text(one, "stream name") for one in streams))


def _of_streams(names: Iterable[str]) -> Condition:
    return In("stream", tuple(map(keys.stream_key, names)))


def _policies(policies: Iterable[Retention]) -> list[Retention]:
    """Return policies as a list, which can be gone through for every stream; refuse what is none."""
    found: Any = list(policies) if isinstance(policies, Iterable) else policies
    if found is policies or not all(isinstance(one, Retention) for one in found):
        raise InvalidInputError(f"policies must be a list of Retention, as [Retention((Last(3),))] is, not {found!r}")
    return list(found)


def _layout(value: Layout | str | None) -> Layout | None:
    try:
        return None if value is None else Layout(value)
    except ValueError as error:
        raise InvalidInputError(f"layout must be one of {', '.join(Layout)}, not {value!r}") from error


def _depth(value: Depth | str) -> Depth:
    try:
        return Depth(value)
    except ValueError as error:
        raise InvalidInputError(f"depth must be one of {', '.join(Depth)}, not {value!r}") from error


def _checked(clock: Callable[[], datetime]) -> Callable[[], datetime]:
    """Return a clock in UTC, refused now if it is wrong already, before a catalog is created, and whenever it is.

    A time without a zone would be written as if it were UTC. The calendar must have room for the longest undo window.
    """

    def now() -> datetime:
        at = keys.utc(clock(), "clock")
        try:
            _ = at - LONGEST_SPAN, at + LONGEST_SPAN
        except OverflowError as error:
            raise InvalidInputError(f"clock cannot be right, it says {at}: set it", what="clock", value=at) from error
        return at

    now()
    return now


def _actor(given: str | None) -> str:
    """Return who is written down beside every change; refused before a catalog is created, if it is no name."""
    return keys.text("" if given is None else given, "actor") or f"{_user()}@{socket.gethostname()}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
