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
from catalog.testing.harness import Harness

P = ParamSpec("P")
NO_GRACE = timedelta(0)
UNDO_WINDOW = PRUNE_UNDO + PURGE_MARGIN

AWKWARD_NAMES = (
    "../../etc", "..", ".", "a/b", "a%2Fb", "a%252Fb", "a.b", "a%2Eb", "%2F", "/", "", " ", "A/B", "a\\b", "a\nb", "a?b#c",
    "ü", "🎈", "🎈" * 512, "x" * 512,
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
        return f"it's 100% \"{request.node.name}\"; a=b\\c:*?#[ü🎈]/../{new_uuid7()}/"

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
        state, empty = Part("op", 0, b"state"), Part("op", 2**32 - 1, b"", delta=True)
        assert await state.write(here, id) == sha256(b"state")
        assert await load(here, id, state) == await load(elsewhere, id, state) == [b"state"]
        assert await here.list_checkpoints() == []

        manifest = await save(here, id, empty, Part("op", 2**32 - 1, b"base"))
        manifest = manifest_of(id)
        assert manifest

    @in_a_loop
    async def test_a_manifest_comes_back_with_unknown_keys_and_values_above_2_63(
        self, harness: Harness, stream: str
    ) -> None:
        id, parent = ids(2)
        checkpointer = harness.catalog.checkpointer(stream)
        path = artifact_path(id, "op/ü", 7, delta=False)
        entry = {"partition_id": 7, "is_delta": False, "path": path, "size_bytes": U64_MAX, "sha256": None, "tier": "hot"}
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
