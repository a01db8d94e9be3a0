"""A Delta Lake-backed catalog for the checkpoints of stream processors."""

from catalog.artifacts import SharedFile
from catalog.catalog import CheckpointCatalog
from catalog.checkpointer import ChainLink, Checkpointer
from catalog.diff import CheckpointDiff
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
    OutOfReachError,
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
from catalog.moment import Moment
from catalog.recovery import RecoveryReport
from catalog.restore import StatePart
from catalog.state import CheckpointId, CheckpointState
from catalog.state_store import CheckpointStateManager, CheckpointStateStore
from catalog.store import CheckpointStore
from catalog.validation import Issue, ValidationResult
from catalog.verify import Depth, Progress, Sample, ValidationReport

__all__ = [
    "AbandonedError",
    "ArtifactNotFoundError",
    "BrokenChainError",
    "CatalogError",
    "ChainLink",
    "CheckpointCatalog",
    "CheckpointDiff",
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
    "Depth",
    "DeserializationError",
    "InvalidInputError",
    "Issue",
    "LockTimeoutError",
    "Moment",
    "NotACatalogError",
    "OperatorCheckpoint",
    "OperatorEntry",
    "OutOfReachError",
    "PartitionEntry",
    "Progress",
    "PurgedError",
    "ReadOnlyError",
    "RecoveryReport",
    "Sample",
    "SessionError",
    "SharedFile",
    "SourceOffsetEntry",
    "StatePart",
    "TrashedError",
    "UnknownOutcomeError",
    "UnsupportedFormatError",
    "ValidationReport",
    "ValidationResult",
    "artifact_path",
    "new_uuid7",
]
