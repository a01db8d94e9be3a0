"""What a Checkpointer promises, as tests: the table and the known faults of seed 002.

Every test uses a stream of its own. "Another process" is a second checkpointer of the stream: it shares nothing with
the first one but the tables.
"""

import asyncio
import hashlib
import itertools
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from typing import Any, ParamSpec

import pytest

from catalog.checkpointer import ChainLink, Checkpointer
from catalog.errors import (
    AbandonedError,
    ArtifactNotFoundError,
    BrokenChainError,
    CheckpointExistsError,
    CheckpointInUseError,
    CheckpointNotFoundError,
    CorruptError,
    InvalidInputError,
    PurgedError,
    TrashedError,
)
from catalog.keys import U64_MAX, new_uuid7
from catalog.manifest import CheckpointManifest, CheckpointManifestV2, artifact_path
from catalog.protocol import PRUNE_UNDO
from catalog.retention import PURGE_MARGIN
from catalog.testing.harness import Harness, Held

P = ParamSpec("P")
Call = Callable[[], Coroutine[Any, Any, object]]
NO_GRACE = timedelta(0)
UNDO_WINDOW = PRUNE_UNDO + PURGE_MARGIN

AWKWARD_NAMES = (
    "../../etc", "..", ".", "a/b", "a%2Fb", "a%252Fb", "a.b", "a%2Eb", "%2F", "/", "", " ", "A/B", "a\\b", "a\nb",
    "a?b#c", "a\u2028b", "ü", "🎈", "🎈" * 512, "x" * 512,
)  # fmt: skip
"""Operator names that a path made of raw names would confuse, or let out of their place."""


def in_a_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test in an event loop of its own, so that no pytest plug-in is needed."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@dataclass(frozen=True, slots=True)
class Part:
    """An artifact to be written, or at least listed."""

    operator: str
    partition: int
    data: bytes
    delta: bool = False

    def path(self, id: str) -> str:
        """Return where it is under a checkpoint."""
        return artifact_path(id, self.operator, self.partition, delta=self.delta)

    def link(self, id: str) -> ChainLink:
        """Return it as a link of a chain."""
        return ChainLink(id, self.path(id), self.delta, self.data)

    async def write(self, checkpointer: Checkpointer, id: str) -> str:
        """Write it and return what the checkpointer returned."""
        save = checkpointer.save_delta if self.delta else checkpointer.save_snapshot
        return await save(id, self.operator, self.partition, self.data)


def manifest_of(id: str, *parts: Part, hashed: bool = True, **fields: Any) -> CheckpointManifestV2:
    """Return a manifest that lists these parts."""
    operators: dict[str, Any] = {}
    for part in parts:
        operator = operators.setdefault(part.operator, {"partitions": [], "total_bytes": 0})
        entry = {
            "partition_id": part.partition,
            "is_delta": part.delta,
            "path": part.path(id),
            "size_bytes": len(part.data),
            "sha256": sha256(part.data) if hashed else None,
        }
        operator["partitions"].append(entry)
        operator["total_bytes"] += len(part.data)
    total = sum(len(part.data) for part in parts)
    known = {"timestamp_ms": 1_700_000_000_000, "operators": operators, "total_size_bytes": total}
    return CheckpointManifestV2.new(id, fields.pop("epoch", 1), **{**known, **fields})


async def save(checkpointer: Checkpointer, id: str, *parts: Part, **fields: Any) -> CheckpointManifestV2:
    """Write these parts and the manifest that lists them."""
    await asyncio.gather(*(part.write(checkpointer, id) for part in parts))
    manifest = manifest_of(id, *parts, **fields)
    await checkpointer.save_manifest(manifest)
    return manifest


async def load(checkpointer: Checkpointer, id: str, *parts: Part) -> list[bytes]:
    """Return the bytes of these parts as they are stored."""
    return list(await asyncio.gather(*(checkpointer.load_artifact(part.path(id)) for part in parts)))


async def refuse(call: Callable[[Any], Coroutine[Any, Any, object]], *values: object) -> None:
    """Make sure that a call refuses each of these values."""
    for value in values:
        with pytest.raises(InvalidInputError):
            await call(value)


def sha256(data: bytes) -> str:
    """Return the SHA-256 of bytes in lower-case hex."""
    return hashlib.sha256(data).hexdigest()


def ids(count: int) -> list[str]:
    """Return new ids, oldest first."""
    return [new_uuid7() for _ in range(count)]


class CheckpointerSuite:
    """Subclass it and provide a class-scoped fixture `harness`."""

    @pytest.fixture
    def stream(self, request: pytest.FixtureRequest) -> str:
        """A new stream, under a name that quoting gone wrong would stumble over."""
        return f'it\'s 100% "{request.node.name}"; a=b\\c:*?#[ü🎈]\u2028\u2029\x85/../{new_uuid7()}/'

    # -- saving and loading ----------------------------------------------------------------------------------------

    @in_a_loop
    async def test_what_is_not_there_is_none_or_an_error(self, harness: Harness, stream: str) -> None:
        checkpointer, id = harness.catalog.checkpointer(stream), new_uuid7()
        assert await checkpointer.read_latest() is None
        assert await checkpointer.list_checkpoints() == []
        with pytest.raises(CheckpointNotFoundError):
            await checkpointer.load_manifest(id)
        with pytest.raises(CheckpointNotFoundError):
            await checkpointer.update_latest(id)
        with pytest.raises(CheckpointNotFoundError):
            await checkpointer.delete_checkpoint(id)
        with pytest.raises(CheckpointNotFoundError):
            await checkpointer.restore(id)
        with pytest.raises(CheckpointNotFoundError):
            await checkpointer.load_chain(id, "op", 0)
        for path in (artifact_path(id, "op", 0, delta=False), "no/checkpoint/id", "../../etc/passwd", ""):
            with pytest.raises(ArtifactNotFoundError):
                await checkpointer.load_artifact(path)
        assert harness.checkpoint_rows(stream) == []

    @in_a_loop
    async def test_a_checkpoint_is_loadable_when_saved_and_latest_when_promoted(
        self, harness: Harness, stream: str
    ) -> None:
        here, elsewhere = harness.catalog.checkpointer(stream), harness.catalog.checkpointer(stream)
        id = new_uuid7()
        parts = Part("op", 0, b"state"), Part("op", 2**32 - 1, b"")
        assert [await part.write(here, id) for part in parts] == [sha256(b"state"), sha256(b"")]
        assert await load(here, id, *parts) == await load(elsewhere, id, *parts) == [b"state", b""]
        assert await here.list_checkpoints() == []

        manifest = manifest_of(id, *parts)
        await here.save_manifest(manifest)
        assert await elsewhere.list_checkpoints() == [id]
        assert await elsewhere.load_manifest(id) == manifest
        assert await load(elsewhere, id, *parts) == [b"state", b""]
        assert await elsewhere.read_latest() is None

        await asyncio.gather(here.update_latest(id), elsewhere.update_latest(id))
        await here.update_latest(id)
        assert await elsewhere.read_latest() == id

        for checkpointer, delta in itertools.product((here, elsewhere), (False, True)):
            with pytest.raises(CheckpointExistsError):
                await Part("op", 0, b"too late", delta).write(checkpointer, id)
        assert harness.artifact_rows(stream) == 2
        assert await load(here, id, *parts) == [b"state", b""]

    @in_a_loop
    async def test_a_manifest_comes_back_with_unknown_keys_and_values_above_2_63(
        self, harness: Harness, stream: str
    ) -> None:
        id, parent = ids(2)
        checkpointer = harness.catalog.checkpointer(stream)
        path = artifact_path(id, "op/ü", 7, delta=False)
        entry = {
            "partition_id": 7,
            "is_delta": False,
            "path": path,
            "size_bytes": U64_MAX,
            "sha256": None,
            "tier": "hot",
        }
        manifest = CheckpointManifestV2.new(
            id,
            U64_MAX,
            timestamp_ms=U64_MAX,
            operators={"op/ü": {"partitions": [entry], "total_bytes": U64_MAX, "codec": None}, "": {}},
            source_offsets={"k🎈": {"source_type": "kafka", "offsets": {"0": "12"}, "epoch": 2**63, "lag": 1.5}},
            parent_id=parent,
            watermark=-(2**63),
            total_size_bytes=2**63 + 1,
            written_by={"engine": ["v9", True, None, 2**70]},
        )
        await checkpointer.save_manifest(manifest)
        loaded = await harness.catalog.checkpointer(stream).load_manifest(uuid.UUID(id))
        assert loaded == manifest
        assert loaded.canonical() == manifest.canonical()

        # Nobody ever wrote what it lists: it may be looked at, but nobody may start from it.
        with pytest.raises(ArtifactNotFoundError):
            await checkpointer.load_artifact(path)
        with pytest.raises(ArtifactNotFoundError, match="never written"):
            await checkpointer.update_latest(id)
        assert await checkpointer.read_latest() is None
        assert await checkpointer.list_checkpoints() == [id]

    @in_a_loop
    async def test_of_two_processes_saving_an_id_one_wins_and_the_same_content_again_is_a_success(
        self, harness: Harness, stream: str
    ) -> None:
        id = new_uuid7()
        rivals = [harness.catalog.checkpointer(stream) for _ in range(2)]
        parts = [Part("op", 0, b"one"), Part("op", 0, b"two")]
        for rival, part in zip(rivals, parts, strict=True):
            await part.write(rival, id)
        manifests = [manifest_of(id, part) for part in parts]
        ends = await asyncio.gather(
            *(rival.save_manifest(manifest) for rival, manifest in zip(rivals, manifests, strict=True)),
            return_exceptions=True,
        )
        assert sorted(type(end).__name__ for end in ends) == ["CheckpointExistsError", "NoneType"]
        won = ends.index(None)

        # Saved again, by who saved it and by a process that never wrote a byte of it.
        await rivals[won].save_manifest(manifests[won])
        await harness.catalog.checkpointer(stream).save_manifest(manifests[won])
        for checkpointer, other in (
            (rivals[1 - won], manifests[1 - won]),
            (rivals[won], manifest_of(id, parts[won], epoch=2)),
        ):
            with pytest.raises(CheckpointExistsError):
                await checkpointer.save_manifest(other)
        assert await rivals[1 - won].cleanup_orphans(NO_GRACE) >= 1
        assert await load(rivals[1 - won], id, parts[won]) == [parts[won].data]
        assert await rivals[1 - won].load_manifest(id) == manifests[won]
        assert [row["change"] for row in harness.checkpoint_rows(stream)].count("prepared") == 1

    @in_a_loop
    async def test_many_concurrent_saves_lose_nothing_and_leave_the_event_loop_free(
        self, harness: Harness, stream: str
    ) -> None:
        checkpointer, id = harness.catalog.checkpointer(stream), new_uuid7()
        parts = [Part("op", number // 2, bytes([number]) * number, delta=number % 2 == 1) for number in range(12)]
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.001)
                ticks += 1

        ticker = asyncio.create_task(tick())
        # Eight in this loop, and four threads with loops of their own.
        hashes = await asyncio.gather(
            *(part.write(checkpointer, id) for part in parts[:8]),
            *(asyncio.to_thread(asyncio.run, part.write(checkpointer, id)) for part in parts[8:]),
        )
        ticker.cancel()
        assert ticks > 5 * len(parts)
        assert hashes == [sha256(part.data) for part in parts]

        await checkpointer.save_manifest(manifest_of(id, *parts))
        assert await load(harness.catalog.checkpointer(stream), id, *parts) == [part.data for part in parts]

    @in_a_loop
    async def test_the_last_write_of_an_artifact_before_the_manifest_counts(
        self, harness: Harness, stream: str
    ) -> None:
        checkpointer, id = harness.catalog.checkpointer(stream), new_uuid7()
        first, again, beside = Part("op", 0, b"first"), Part("op", 0, b"again"), Part("op", 1, b"beside")
        for part in (first, beside, again):
            await part.write(checkpointer, id)
            harness.clock.advance(timedelta(seconds=1))
        assert await load(checkpointer, id, again, beside) == [b"again", b"beside"]
        assert await load(harness.catalog.checkpointer(stream), id, again, beside) == [b"again", b"beside"]
        with pytest.raises(InvalidInputError):
            await checkpointer.save_manifest(manifest_of(id, first, beside))

        # Another process is later still, but this one saves, and without a hash its own bytes are meant; twice.
        await Part("op", 0, b"rival").write(harness.catalog.checkpointer(stream), id)
        for _ in range(2):
            await checkpointer.save_manifest(manifest_of(id, again, beside, hashed=False))
        await checkpointer.cleanup_orphans(NO_GRACE)
        assert await load(checkpointer, id, again, beside) == [b"again", b"beside"]

    @in_a_loop
    async def test_of_two_writes_of_an_artifact_the_one_that_began_last_counts_whichever_ends_last(
        self, harness: Harness, stream: str
    ) -> None:
        for ends_before_the_save in (True, False):
            checkpointer, id = harness.catalog.checkpointer(stream), new_uuid7()
            older, newer = Held(b"older"), Part("op", 0, b"newer")
            given_up = asyncio.create_task(checkpointer.save_snapshot(id, "op", 0, older))
            await asyncio.to_thread(older.wait_until_begun)
            await newer.write(checkpointer, id)
            if ends_before_the_save:
                older.go_on()
                await given_up
            assert await load(checkpointer, id, newer) == [b"newer"]
            manifest = manifest_of(id, newer, hashed=False)
            await checkpointer.save_manifest(manifest)
            older.go_on()
            await given_up
            await checkpointer.save_manifest(manifest)
            await checkpointer.update_latest(id)
            assert await load(checkpointer, id, newer) == [b"newer"]
        assert harness.catalog.validate([stream], depth="hashes").results == ()

    @in_a_loop
    async def test_a_write_given_up_does_not_come_into_a_checkpoint_that_another_process_wrote(
        self, harness: Harness, stream: str
    ) -> None:
        checkpointer, id = harness.catalog.checkpointer(stream), new_uuid7()
        theirs, older = Part("op", 0, b"theirs"), Held(b"older.")
        given_up = asyncio.create_task(checkpointer.save_snapshot(id, "op", 0, older))
        await asyncio.to_thread(older.wait_until_begun)
        await theirs.write(harness.catalog.checkpointer(stream), id)
        await checkpointer.save_manifest(manifest_of(id, theirs))
        older.go_on()
        await given_up
        assert await checkpointer.cleanup_orphans(NO_GRACE) == 1, "what was given up is part of no checkpoint"
        assert await load(checkpointer, id, theirs) == [b"theirs"]
        assert harness.catalog.validate([stream], depth="hashes").results == ()

    @in_a_loop
    async def test_what_another_process_wrote_becomes_part_of_the_checkpoint_saved_here(
        self, harness: Harness, stream: str
    ) -> None:
        writer, saver = harness.catalog.checkpointer(stream), harness.catalog.checkpointer(stream)
        id = new_uuid7()
        parts = Part("op", 0, b"theirs"), Part("op", 1, b"ours")
        await parts[0].write(writer, id)
        await parts[1].write(saver, id)
        manifest = manifest_of(id, *parts)
        await saver.save_manifest(manifest)
        await saver.update_latest(id)
        harness.clock.advance(timedelta(days=1))
        await saver.cleanup_orphans(NO_GRACE)
        assert await load(saver, id, *parts) == [b"theirs", b"ours"]
        assert await saver.load_chain(id, "op", 0) == [parts[0].link(id)]

        # The writer has not heard of the manifest yet.
        with pytest.raises(CheckpointExistsError):
            await Part("op", 2, b"too late").write(writer, id)
        await writer.save_manifest(manifest)

    @in_a_loop
    async def test_operator_names_cannot_leave_their_place_or_meet(self, harness: Harness, stream: str) -> None:
        checkpointer, id = harness.catalog.checkpointer(stream), new_uuid7()
        paths = {artifact_path(id, name, 0, delta=delta) for name in AWKWARD_NAMES for delta in (False, True)}
        assert len(paths) == 2 * len(AWKWARD_NAMES)
        for path in paths:
            assert path.startswith(f"{id}/operators/")
            assert path.count("/") == 3
            assert ".." not in path

        written = ("../../etc", "a/b", "a%2Fb", "a.b", "", "a\u2028b", "🎈" * 512)
        parts = [Part(name, 0, f"of {name}".encode()) for name in written]
        manifest = await save(checkpointer, id, *parts)
        assert await load(checkpointer, id, *parts) == [part.data for part in parts]
        assert await checkpointer.load_chain(id, "../../etc", 0) == [parts[0].link(id)]
        assert set((await checkpointer.load_manifest(id)).operators) == set(manifest.operators) == set(written)

    @in_a_loop
    async def test_bad_arguments_are_refused_before_anything_is_written(self, harness: Harness, stream: str) -> None:
        checkpointer, id = harness.catalog.checkpointer(stream), new_uuid7()
        for takes_an_id in (
            lambda bad: checkpointer.save_snapshot(bad, "op", 0, b""),
            lambda bad: checkpointer.save_delta(bad, "op", 0, b""),
            lambda bad: checkpointer.load_chain(bad, "op", 0),
            checkpointer.load_manifest,
            checkpointer.update_latest,
            checkpointer.delete_checkpoint,
            checkpointer.restore,
        ):
            await refuse(takes_an_id, uuid.uuid4(), str(uuid.uuid4()), "yesterday", "", 7, None)
        await refuse(lambda bad: checkpointer.save_snapshot(id, "op", bad, b""), -1, 2**32, True, 1.0, "0", None)
        await refuse(lambda bad: checkpointer.save_delta(id, bad, 0, b""), "x" * 513, "\ud800", 7, None)
        await refuse(lambda bad: checkpointer.save_snapshot(id, "op", 0, bad), "text", 7, None, ["text"], [b"", 7])
        await refuse(lambda bad: checkpointer.load_chain(id, "op", bad), -1, True, "0")
        await refuse(lambda bad: checkpointer.load_chain(id, bad, 0), "x" * 513, 7)
        await refuse(checkpointer.load_artifact, 7, None)
        await refuse(checkpointer.cleanup_orphans, timedelta(-1), 3600)
        assert harness.artifact_rows(stream) == 0
        assert harness.checkpoint_rows(stream) == []

    @in_a_loop
    async def test_a_manifest_that_is_none_or_lies_is_refused_before_anything_is_written(
        self, harness: Harness, stream: str
    ) -> None:
        here, elsewhere = harness.catalog.checkpointer(stream), harness.catalog.checkpointer(stream)
        id, state = new_uuid7(), Part("op", 0, b"state")
        manifest = manifest_of(id, state)
        await state.write(here, id)
        await refuse(here.save_manifest, None, manifest.model_dump(), CheckpointManifest.new(1, 1))
        await refuse(
            lambda wrong: here.save_manifest(manifest.model_copy(update=wrong)),
            {"checkpoint_id": str(uuid.uuid4())},
            {"checkpoint_id": 7},
            {"parent_id": "yesterday"},
            {"epoch": -1},
            {"epoch": 2**64},
            {"epoch": True},
            {"watermark": 2**63},
            {"operators": {"x" * 513: {}}},
            {"operators": {"op": {"partitions": [{"partition_id": 2**32}]}}},
            {"unknown": float("nan")},
        )

        def lying(**lie: Any) -> CheckpointManifestV2:
            entry = manifest.operators["op"].partitions[0].model_dump()
            return manifest_of(id, operators={"op": {"partitions": [{**entry, **lie}]}})

        await refuse(here.save_manifest, lying(size_bytes=6), lying(sha256=sha256(b"other")))
        await refuse(elsewhere.save_manifest, lying(size_bytes=6))
        assert harness.artifact_rows(stream) == 1
        assert harness.checkpoint_rows(stream) == []

    @in_a_loop
    async def test_a_stream_with_integer_ids_is_refused(self, harness: Harness, stream: str) -> None:
        harness.catalog.store(stream).save(CheckpointManifest.new(1, 1))
        checkpointer, id = harness.catalog.checkpointer(stream), new_uuid7()
        calls: list[Call] = [
            lambda: checkpointer.save_snapshot(id, "op", 0, b"state"),
            lambda: checkpointer.save_manifest(manifest_of(id)),
            checkpointer.list_checkpoints,
            checkpointer.read_latest,
        ]
        for call in calls:
            with pytest.raises(InvalidInputError, match="manifest-v1"):
                await call()
        assert harness.artifact_rows(stream) == 0
        assert len(harness.checkpoint_rows(stream)) == 1

    # -- latest ----------------------------------------------------------------------------------------------------

    @in_a_loop
    async def test_latest_is_the_highest_promoted_id_that_is_not_deleted(self, harness: Harness, stream: str) -> None:
        checkpointer = harness.catalog.checkpointer(stream)
        older, newer, newest = ids(3)
        for id in (newest, older, newer):
            await checkpointer.save_manifest(manifest_of(id))
        assert await checkpointer.list_checkpoints() == [older, newer, newest]
        assert await checkpointer.read_latest() is None

        await checkpointer.update_latest(newer)
        await checkpointer.update_latest(older)
        assert await checkpointer.read_latest() == newer

        await checkpointer.delete_checkpoint(newer)
        assert await checkpointer.read_latest() == older
        assert await checkpointer.list_checkpoints() == [older, newest]
        with pytest.raises(TrashedError):
            await checkpointer.update_latest(newer)

    @in_a_loop
    async def test_a_manifest_that_lists_an_artifact_as_what_it_is_not_is_refused(
        self, harness: Harness, stream: str
    ) -> None:
        writer = harness.catalog.checkpointer(stream)
        base, change = Part("op", 0, b"base"), Part("op", 1, b"+1", delta=True)
        first, id = ids(2)
        await save(writer, first, base, Part("op", 1, b"one"))
        await base.write(writer, id)
        await change.write(writer, id)
        truth = manifest_of(id, base, change, parent_id=first)

        def entries(*changed: dict[str, Any]) -> CheckpointManifestV2:
            found = [one.model_dump() for one in truth.operators["op"].partitions]
            listed = [{**one, **more} for one, more in zip(found, changed, strict=False)] + list(changed[2:])
            return manifest_of(id, parent_id=first, operators={"op": {"partitions": listed}})

        other = truth.model_dump()["operators"]["op"]
        lies = [
            (entries({}, {"is_delta": False}), "'op' partition 1: .* written as the delta"),
            (entries({"is_delta": True}, {}), "'op' partition 0: .* written as the snapshot"),
            (entries({"partition_id": 1}, {"partition_id": 0}), "'op' partition 1: .* of operator 'op' partition 0"),
            (manifest_of(id, parent_id=first, operators={"else": other}), "'else' partition 0: .* of operator 'op'"),
            (entries({}, {}, other["partitions"][0]), "'op' partition 0: .* is listed twice"),
        ]
        for checkpointer in (writer, harness.catalog.checkpointer(stream)):
            for manifest, told in lies:
                with pytest.raises(InvalidInputError, match=told):
                    await checkpointer.save_manifest(manifest)
        assert await writer.list_checkpoints() == [first]
        await writer.save_manifest(truth)
        assert [link.data for link in await writer.load_chain(id, "op", 1)] == [b"one", b"+1"]

    # -- integrity -------------------------------------------------------------------------------------------------

    @in_a_loop
    async def test_an_absent_artifact_is_not_found_and_a_changed_or_lost_one_is_corrupt(
        self, harness: Harness, stream: str
    ) -> None:
        checkpointer, id = harness.catalog.checkpointer(stream), new_uuid7()
        state, listed = Part("op", 0, b"state"), Part("op", 1, b"listed")
        await state.write(checkpointer, id)
        await checkpointer.save_manifest(manifest_of(id, state, listed))
        for absent in (listed, Part("op", 0, b"", delta=True), Part("nobody", 0, b"")):
            with pytest.raises(ArtifactNotFoundError):
                await load(checkpointer, id, absent)

        harness.corrupt_state(stream, id)
        with pytest.raises(CorruptError, match="checksum"):
            await load(checkpointer, id, state)
        harness.lose_state(stream, id)
        with pytest.raises(CorruptError, match="missing"):
            await load(checkpointer, id, state)
        harness.corrupt_manifest(stream, id)
        with pytest.raises(CorruptError):
            await checkpointer.load_manifest(id)
        assert await checkpointer.list_checkpoints() == [id]

    # -- chains ----------------------------------------------------------------------------------------------------

    @in_a_loop
    async def test_a_chain_runs_from_its_snapshot_along_the_parents_and_a_loss_breaks_it(
        self, harness: Harness, stream: str
    ) -> None:
        checkpointer = harness.catalog.checkpointer(stream)
        first, second, third = ids(3)
        base, change = Part("op", 0, b"base"), Part("op", 0, b"+0", delta=True)
        more, fresh = Part("op", 0, b"+1", delta=True), Part("op", 1, b"fresh")
        last, groundless = Part("op", 0, b"+2", delta=True), Part("op", 7, b"", delta=True)
        await save(checkpointer, first, change, base)
        await save(checkpointer, second, more, fresh, parent_id=first)
        await last.write(checkpointer, third)
        await checkpointer.save_manifest(manifest_of(third, groundless, last, parent_id=second))

        links = [base.link(first), change.link(first), more.link(second), last.link(third)]
        assert await checkpointer.load_chain(third, "op", 0) == links
        assert await checkpointer.load_chain(first, "op", 0) == links[:2]
        with pytest.raises(ArtifactNotFoundError):
            await checkpointer.load_chain(third, "op", 1)
        with pytest.raises(BrokenChainError, match=second):
            await checkpointer.load_chain(third, "op", 7)

        harness.lose_state(stream, first)
        with pytest.raises(BrokenChainError, match=first):
            await checkpointer.load_chain(third, "op", 0)
        # A partition with a snapshot of its own needs no parent.
        assert await checkpointer.load_chain(second, "op", 1) == [fresh.link(second)]

    @in_a_loop
    async def test_a_delta_is_saved_only_on_a_parent_that_is_there(self, harness: Harness, stream: str) -> None:
        checkpointer = harness.catalog.checkpointer(stream)
        deleted, id, whole = ids(3)
        delta = Part("op", 0, b"+1", delta=True)
        with pytest.raises(InvalidInputError, match="parent_id"):
            await checkpointer.save_manifest(manifest_of(id, delta))
        await checkpointer.save_manifest(manifest_of(deleted))
        await checkpointer.delete_checkpoint(deleted)
        for parent, why in ((new_uuid7(), "does not exist"), (id, "does not exist"), (deleted, "trashed")):
            with pytest.raises(BrokenChainError, match=why):
                await checkpointer.save_manifest(manifest_of(id, delta, parent_id=parent))

        # With a snapshot of its own it stands on nobody.
        await checkpointer.save_manifest(manifest_of(whole, Part("op", 0, b"base"), delta, parent_id=new_uuid7()))
        assert await checkpointer.list_checkpoints() == [whole]

    # -- deleting --------------------------------------------------------------------------------------------------

    @in_a_loop
    async def test_a_deleted_checkpoint_is_gone_at_once_and_can_be_taken_back(
        self, harness: Harness, stream: str
    ) -> None:
        checkpointer, id = harness.catalog.checkpointer(stream), new_uuid7()
        state = Part("op", 0, b"state")
        manifest = await save(checkpointer, id, state)
        await checkpointer.delete_checkpoint(id)
        await checkpointer.delete_checkpoint(id)
        assert await checkpointer.list_checkpoints() == []
        calls: list[Call] = [
            lambda: checkpointer.load_manifest(id),
            lambda: checkpointer.load_artifact(state.path(id)),
            lambda: checkpointer.load_chain(id, "op", 0),
            lambda: checkpointer.save_manifest(manifest),
            lambda: checkpointer.save_snapshot(id, "op", 0, b"other"),
        ]
        for call in calls:
            with pytest.raises(TrashedError):
                await call()

        harness.clock.advance(PRUNE_UNDO - timedelta(seconds=1))
        await checkpointer.cleanup_orphans(NO_GRACE)
        await checkpointer.restore(id)
        await checkpointer.restore(id)
        assert await checkpointer.load_manifest(id) == manifest
        assert await load(checkpointer, id, state) == [b"state"]

    @in_a_loop
    async def test_a_parent_cannot_be_deleted_under_a_live_delta_and_goes_with_all_artifacts_after_it(
        self, harness: Harness, stream: str
    ) -> None:
        checkpointer = harness.catalog.checkpointer(stream)
        parent, child, beside = ids(3)
        base, change, other = Part("op", 0, b"base"), Part("op", 0, b"+1", delta=True), Part("op", 0, b"other")
        await save(checkpointer, parent, base)
        await save(checkpointer, child, change, parent_id=parent)
        await save(checkpointer, beside, other)
        with pytest.raises(CheckpointInUseError, match=child):
            await checkpointer.delete_checkpoint(parent)

        await checkpointer.delete_checkpoint(child)
        await checkpointer.delete_checkpoint(parent)
        assert await checkpointer.list_checkpoints() == [beside]
        harness.clock.advance(UNDO_WINDOW)
        await checkpointer.cleanup_orphans()
        assert harness.artifact_rows(stream) == 1
        assert await load(checkpointer, beside, other) == [b"other"]
        calls: list[Call] = [
            lambda: checkpointer.load_manifest(parent),
            lambda: checkpointer.restore(child),
            lambda: checkpointer.save_manifest(manifest_of(parent)),
        ]
        for call in calls:
            with pytest.raises(PurgedError):
                await call()

    @in_a_loop
    async def test_a_restored_delta_is_loadable_while_its_parent_is_in_the_trash(
        self, harness: Harness, stream: str
    ) -> None:
        checkpointer = harness.catalog.checkpointer(stream)
        parent, child = ids(2)
        base, change = Part("op", 0, b"base"), Part("op", 0, b"+1", delta=True)
        await save(checkpointer, parent, base)
        await save(checkpointer, child, change, parent_id=parent)
        await checkpointer.delete_checkpoint(child)
        await checkpointer.delete_checkpoint(parent)
        await checkpointer.restore(child)
        harness.clock.advance(UNDO_WINDOW)
        await checkpointer.cleanup_orphans()
        assert await checkpointer.load_chain(child, "op", 0) == [base.link(parent), change.link(child)]

    @in_a_loop
    async def test_artifacts_without_a_manifest_are_invisible_and_go_after_the_grace_period(
        self, harness: Harness, stream: str
    ) -> None:
        checkpointer, id = harness.catalog.checkpointer(stream), new_uuid7()
        orphan = Part("op", 0, b"orphan")
        await orphan.write(checkpointer, id)
        assert await checkpointer.list_checkpoints() == []
        assert await checkpointer.cleanup_orphans() == 0
        assert await load(checkpointer, id, orphan) == [b"orphan"]

        assert await checkpointer.cleanup_orphans(NO_GRACE) == 1
        assert harness.artifact_rows(stream) == 0
        # Who was only slow is told so, and goes on with the next id.
        with pytest.raises(AbandonedError):
            await checkpointer.save_manifest(manifest_of(id, orphan))
        following = new_uuid7()
        await save(checkpointer, following)
        assert await checkpointer.list_checkpoints() == [following]
