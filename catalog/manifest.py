"""The two manifest generations as frozen models, and their canonical JSON.

Manifests are JSON that outlives this version: unknown keys survive a load and a save, and canonical bytes (sorted
keys, no spaces, UTF-8) give one SHA-256 per content.
"""

import base64
import hashlib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, ClassVar, Literal, Self, TypeVar
from urllib.parse import quote

from pydantic import ConfigDict, Field

from catalog import keys
from catalog.errors import ArtifactNotFoundError, CorruptError, InvalidInputError
from catalog.handles import ArtifactHandle, InlineHandle, StoredHandle
from catalog.lifecycle import Checkpoint
from catalog.stored_json import I64, U16, U32, U64, Name, Names, StoredJson, Uuid7, decode_base64, plain

DEFAULT_VNODE_COUNT = 256
INLINE_THRESHOLD_BYTES = 1 << 20
INLINE_THRESHOLD_MAX_BYTES = 64 << 20

M = TypeVar("M", bound=StoredJson)
Positions = dict[tuple[str, str], str]
"""Offset as text by source and, where a source has several, what it is of; else that is empty."""


class ConnectorCheckpoint(StoredJson):
    """The position of a source or a reference table."""

    offsets: dict[Name, str]
    """Position by partition as text: `{"partition-0": "1234"}`, `{"lsn": "0/1234ABCD"}`."""
    epoch: U64
    metadata: dict[str, str] = {}


class FailedSink(StoredJson):
    """The status of a sink whose commit failed: `{"Failed": "why"}`."""

    model_config = ConfigDict(extra="forbid")

    Failed: str


SinkStatus = Literal["Pending", "Committed"] | FailedSink


class OperatorCheckpoint(StoredJson):
    """One operator's state: inline as base64, or a range of the checkpoint's state artifact."""

    state_b64: str | None = None
    external: bool = False
    external_offset: U64 = 0
    external_length: U64 = 0

    @classmethod
    def from_bytes(cls, state: bytes, *, threshold: int = INLINE_THRESHOLD_BYTES, offset: int = 0) -> Self:
        """Return it inline if the state has at most threshold bytes, else as a range from offset on.

        Args:
            state: the operator's bytes; external ones are the caller's to put into the state artifact.
            threshold: largest state that rides inline, inclusive; 0 to 64 MiB. Above 14 MiB the SQL views that take
                manifests apart show nothing of such a checkpoint.
            offset: where an external state begins in the state artifact.
        """
        if not isinstance(state, bytes | bytearray | memoryview):
            raise InvalidInputError(f"operator state must be bytes, not {type(state).__name__}")
        if isinstance(threshold, bool) or not isinstance(threshold, int):
            raise InvalidInputError(f"inline threshold must be an integer, not {threshold!r}")
        if not 0 <= threshold <= INLINE_THRESHOLD_MAX_BYTES:
            raise InvalidInputError(
                f"inline threshold must be 0 to {INLINE_THRESHOLD_MAX_BYTES} bytes, not {threshold}"
            )
        size = memoryview(state).nbytes  # len() of a view counts its items
        if size <= threshold:
            return cls(state_b64=base64.b64encode(state).decode())
        return cls(external=True, external_offset=keys.u64(offset, "offset"), external_length=size)

    def inline_state(self, operator: str) -> bytes | None:
        """Return the inline bytes, None if there are none; bad base64 is an error that names the operator."""
        if self.external or self.state_b64 is None:
            return None
        return decode_base64(self.state_b64, f"operator {operator!r}: state_b64")


class CheckpointManifest(StoredJson):
    """Manifest version 1 (seed 004): integer ids."""

    FORMAT: ClassVar[keys.Format] = keys.Format.MANIFEST_V1
    STATE_PATH: ClassVar[str] = "state.bin"

    version: U32
    checkpoint_id: U64
    epoch: U64
    timestamp_ms: U64
    source_offsets: dict[Name, ConnectorCheckpoint] = {}
    sink_epochs: dict[Name, U64] = {}
    """The last epoch each sink committed."""
    sink_commit_statuses: dict[Name, SinkStatus] = {}
    table_offsets: dict[Name, ConnectorCheckpoint] = {}
    operator_states: dict[Name, OperatorCheckpoint] = {}
    table_store_checkpoint_path: str | None = None
    watermark: I64 | None = None
    source_watermarks: dict[Name, I64] = {}
    source_names: Names = []
    sink_names: Names = []
    pipeline_hash: U64 | None = None
    vnode_count: U16 = 0
    """256 in a new manifest; absent in JSON it is 0, a legacy manifest."""
    state_checksum: str | None = None
    """SHA-256 in lower-case hex over all state, inline and external; the store fills it in."""
    operator_handles: dict[Name, dict[Name, StoredHandle]] = Field(default={}, exclude_if=lambda found: not found)
    """Operators' state in checkpoint streams, by operator and name; not in JSON where there is none."""

    @classmethod
    def new(cls, checkpoint_id: int, epoch: int, *, timestamp_ms: int | None = None, **fields: Any) -> Self:
        """Return a new manifest, by default of this moment and with 256 vnodes."""
        now = keys.now_ms() if timestamp_ms is None else timestamp_ms
        known = {"version": 1, "checkpoint_id": checkpoint_id, "epoch": epoch, "timestamp_ms": now}
        return cls._new(fields, {"vnode_count": fields.get("vnode_count", DEFAULT_VNODE_COUNT), **known})

    def with_sink_status(self, sink: str, status: SinkStatus | str, *, error: str = "") -> Self:
        """Return a copy in which a sink is `Pending`, `Committed` or `Failed` (with why)."""
        value = {"Failed": error} if status == "Failed" else status
        return self.from_dict(
            {**self.model_dump(), "sink_commit_statuses": plain({**self.sink_commit_statuses, sink: value})}
        )

    def inline_hash(self) -> str | None:
        """Return the SHA-256 over all inline operator states by name, None if there are none."""
        inline = [(name, op.state_b64) for name, op in sorted(self.operator_states.items()) if not op.external]
        parts = [part for name, state in inline if state is not None for part in (name.encode(), state.encode())]
        return hashlib.sha256(b"".join(part + b"\0" for part in parts)).hexdigest() if parts else None

    def artifact_handles(self) -> dict[str, tuple[str, str, ArtifactHandle]]:
        """Return operator, name and handle of all state in checkpoint streams that is an artifact, by path."""
        return {
            handle.path: (operator, name, handle)
            for operator, handles in self.operator_handles.items()
            for name, handle in handles.items()
            if isinstance(handle, ArtifactHandle)
        }

    def inline_parts(self) -> Iterator[tuple[str, str | None, Callable[[], bytes]]]:
        """Yield operator, name (None where it has none) and a reader of every piece of state that rides in it.

        A reader verifies, and refuses what is damaged with an InvalidInputError that names operator and handle.
        """
        for operator, state in self.operator_states.items():
            if state.state_b64 is not None and not state.external:
                yield operator, None, partial(decode_base64, state.state_b64, f"operator {operator!r}: state_b64")
        for operator, handles in self.operator_handles.items():
            for name, handle in handles.items():
                if isinstance(handle, InlineHandle):
                    yield operator, name, partial(handle.data, f"operator {operator!r}, handle {name!r}")

    @property
    def expects_state(self) -> bool:
        """Whether a state artifact must exist for this manifest to be restored."""
        if any(operator.external for operator in self.operator_states.values()):
            return True
        return self.state_checksum is not None and self.state_checksum != self.inline_hash()

    @property
    def key(self) -> str:
        """The checkpoint's key."""
        return keys.integer_key(self.checkpoint_id, minimum=0)

    def positions(self) -> Positions:
        """Return where its sources stand."""
        return _positions(self.source_offsets)


class PartitionEntry(StoredJson):
    """One artifact of an operator's partition."""

    partition_id: U32
    is_delta: bool
    path: str
    size_bytes: U64
    sha256: str | None = None


class OperatorEntry(StoredJson):
    """An operator's artifacts."""

    partitions: list[PartitionEntry] = []
    total_bytes: U64 = 0


class SourceOffsetEntry(StoredJson):
    """The position of a source."""

    source_type: str
    offsets: dict[Name, str] = {}
    epoch: U64 = 0


class CheckpointManifestV2(StoredJson):
    """Manifest version 2 (seed 002): UUIDv7 ids, artifacts per operator and partition."""

    FORMAT: ClassVar[keys.Format] = keys.Format.MANIFEST_V2

    version: U32
    checkpoint_id: Uuid7
    epoch: U64
    timestamp_ms: U64
    operators: dict[Name, OperatorEntry] = {}
    source_offsets: dict[Name, SourceOffsetEntry] = {}
    parent_id: Uuid7 | None = None
    watermark: I64 | None = None
    total_size_bytes: U64 = 0

    @classmethod
    def new(cls, checkpoint_id: str, epoch: int, *, timestamp_ms: int | None = None, **fields: Any) -> Self:
        """Return a new manifest, by default of this moment."""
        now = keys.now_ms() if timestamp_ms is None else timestamp_ms
        known = {"version": 2, "checkpoint_id": keys.uuid7(checkpoint_id), "epoch": epoch, "timestamp_ms": now}
        return cls._new(fields, known)

    @property
    def key(self) -> str:
        """The checkpoint's key."""
        return self.checkpoint_id

    def positions(self) -> Positions:
        """Return where its sources stand."""
        return _positions(self.source_offsets)

    def entries(self) -> list[tuple[str, PartitionEntry]]:
        """Return every artifact entry with its operator."""
        return [(name, entry) for name, operator in self.operators.items() for entry in operator.partitions]

    def partition(self, operator: str, partition: int) -> list[PartitionEntry]:
        """Return a partition's entries, the snapshot before its deltas, deltas in the manifest's order."""
        found = self.operators.get(operator, OperatorEntry()).partitions
        return sorted((entry for entry in found if entry.partition_id == partition), key=lambda entry: entry.is_delta)

    @property
    def stands_on_parent(self) -> bool:
        """Whether some partition has deltas but no snapshot of its own."""
        whole = {(name, entry.partition_id) for name, entry in self.entries() if not entry.is_delta}
        return any(entry.is_delta and (name, entry.partition_id) not in whole for name, entry in self.entries())


class StateManifest(StoredJson):
    """What a row says about a CheckpointState (seed 003); its bytes ride inline up to 1 MiB."""

    FORMAT: ClassVar[keys.Format] = keys.Format.STATE_V1
    STATE_PATH: ClassVar[str] = "checkpoint-state.bin"

    version: U64
    sequence: U64
    watermark_ns: U64
    event_count: U64
    source_offsets: dict[Name, U64]
    operator_bytes: dict[Name, U64]
    """Size in bytes of each operator's state."""
    metadata: dict[str, str]
    state_b64: str | None
    """The serialized state; None when it is an artifact."""

    @property
    def key(self) -> str:
        """The checkpoint's key."""
        return keys.integer_key(self.sequence, minimum=0)

    def positions(self) -> Positions:
        """Return where its sources stand."""
        return {(source, ""): str(offset) for source, offset in self.source_offsets.items()}


Manifest = CheckpointManifest | CheckpointManifestV2 | StateManifest
MODELS: Mapping[str, type[Manifest]] = {
    model.FORMAT: model for model in (CheckpointManifest, CheckpointManifestV2, StateManifest)
}


def artifact_path(checkpoint_id: str, operator: str, partition: int, *, delta: bool) -> str:
    """Return the path of an operator partition's artifact; a name is quoted, so it cannot leave its place."""
    # quote() leaves dots alone, and ".." is a step upwards in most path handling.
    name = quote(keys.text(operator, "operator name"), safe="").replace(".", "%2E")
    return f"{checkpoint_id}/operators/{name}/partition-{partition}.{'delta' if delta else 'snap'}"


def folded_path(checkpoint_id: str, operator: str, partition: int) -> str:
    """Return the path of the snapshot that an operator partition's chain is folded into."""
    return artifact_path(checkpoint_id, operator, partition, delta=False).removesuffix("snap") + "fold"


def path_checkpoint(path: str) -> str:
    """Return the checkpoint id at the beginning of an artifact's path."""
    if not isinstance(path, str):
        raise InvalidInputError(f"an artifact's path must be text, not {type(path).__name__}")
    try:
        return keys.uuid7(path.partition("/")[0])
    except InvalidInputError as error:
        raise ArtifactNotFoundError(f"no artifact {path!r}: a path begins with a checkpoint id", path=path) from error


def created_at(timestamp_ms: int) -> datetime | None:
    """Return a manifest's time, None where it is beyond what a timestamp column can hold."""
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return None


def parse_stored(model: type[M], checkpoint: Checkpoint, stream: str) -> M:
    """Return a stored checkpoint's manifest, verified.

    Raises:
        CorruptError: it is not what was saved.
    """
    content = checkpoint.content
    where = f"checkpoint {checkpoint.id} of stream {stream!r}"
    if content is None or content.manifest is None or sha256_text(content.manifest) != content.manifest_sha256:
        raise CorruptError(f"the manifest of {where} does not match its checksum", stream=stream, key=checkpoint.key)
    try:
        return model.from_json(content.manifest)
    except InvalidInputError as error:
        raise CorruptError(
            f"the manifest of {where} is unreadable: {error}", stream=stream, key=checkpoint.key
        ) from error


def parse_any(checkpoint: Checkpoint, stream: str) -> Manifest:
    """Return a stored checkpoint's manifest of whatever format, verified; see parse_stored."""
    model: Any = MODELS.get(checkpoint.head.format)
    if model is None:
        raise CorruptError(f"checkpoint {checkpoint.id} of stream {stream!r} is of an unknown format", stream=stream)
    found: Manifest = parse_stored(model, checkpoint, stream)
    return found


def content_sha256(manifest: str, artifacts: Mapping[str, str]) -> str:
    """Return the hash over a manifest's text and its artifacts' hashes by path: equal means the same content."""
    return sha256_text("\n".join([manifest, *(f"{path}\0{artifacts[path]}" for path in sorted(artifacts))]))


def _positions(sources: Mapping[str, ConnectorCheckpoint] | Mapping[str, SourceOffsetEntry]) -> Positions:
    return {(name, position): text for name, one in sources.items() for position, text in one.offsets.items()}


def sha256_text(text: str) -> str:
    """Return the SHA-256 of a text's UTF-8 bytes, in lower-case hex."""
    return hashlib.sha256(text.encode()).hexdigest()
