"""A Delta Lake-backed catalog for the checkpoints of stream processors."""

from catalog.artifacts import SharedFile
from catalog.catalog import CheckpointCatalog
from catalog.checkpointer import ChainLink, Checkpointer
from catalog.errors import (
    AbandonedError,
    ArtifactNotFoundError,
    BrokenChainError,
    CatalogError,
    CheckpointExistsError,
    CheckpointInUseError,
    CheckpointNotFoundError,
    ClosedIdError,
    ConflictError,
    CorruptError,
    DeserializationError,
    InvalidInputError,
    LockTimeoutError,
    NotACatalogError,
    PurgedError,
    ReadOnlyError,
    SessionError,
    TrashedError,
    UnknownOutcomeError,
    UnsupportedFormatError,
)
from catalog.keys import new_uuid7
from catalog.manifest import (
    CheckpointManifest,
    CheckpointManifestV2,
    ConnectorCheckpoint,
    OperatorCheckpoint,
    OperatorEntry,
    PartitionEntry,
    SourceOffsetEntry,
    artifact_path,
)
from catalog.recovery import RecoveryReport
from catalog.state import CheckpointId, CheckpointState
from catalog.state_store import CheckpointStateManager, CheckpointStateStore
from catalog.store import CheckpointStore
from catalog.validation import Issue, ValidationResult

__all__ = [
    "AbandonedError",
    "ArtifactNotFoundError",
    "BrokenChainError",
    "CatalogError",
    "ChainLink",
    "CheckpointCatalog",
    "CheckpointExistsError",
    "CheckpointId",
    "CheckpointInUseError",
    "CheckpointManifest",
    "CheckpointManifestV2",
    "CheckpointNotFoundError",
    "CheckpointState",
    "CheckpointStateManager",
    "CheckpointStateStore",
    "CheckpointStore",
    "Checkpointer",
    "ClosedIdError",
    "ConflictError",
    "ConnectorCheckpoint",
    "CorruptError",
    "DeserializationError",
    "InvalidInputError",
    "Issue",
    "LockTimeoutError",
    "NotACatalogError",
    "OperatorCheckpoint",
    "OperatorEntry",
    "PartitionEntry",
    "PurgedError",
    "ReadOnlyError",
    "RecoveryReport",
    "SessionError",
    "SharedFile",
    "SourceOffsetEntry",
    "TrashedError",
    "UnknownOutcomeError",
    "UnsupportedFormatError",
    "ValidationResult",
    "artifact_path",
    "new_uuid7",
]
