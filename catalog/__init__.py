"""A Delta Lake-backed catalog for the checkpoints of stream processors."""

from catalog.catalog import CheckpointCatalog
from catalog.checkpointer import ChainLink, Checkpointer
from catalog.coordinator import (
    CheckpointCoordinator,
    CompletedCheckpoint,
    PendingCheckpoint,
    RestoredCheckpoint,
    RestoreMode,
)
from catalog.cutting import Cutting, SharedFile
from catalog.diff import CheckpointDiff
from catalog.drills import Drill, DrillReport
from catalog.errors import (
    AbandonedError,
    ArtifactNotFoundError,
    BasePurgedError,
    BrokenChainError,
    CatalogError,
    CheckpointAbortedError,
    CheckpointExistsError,
    CheckpointInUseError,
    CheckpointNotFoundError,
    CheckpointStreamError,
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
    SnapshotCancelledError,
    StreamClosedError,
    TrashedError,
    UnknownHandleError,
    UnknownOutcomeError,
    UnsupportedFormatError,
)
from catalog.folders import AppendLog, Folder, JsonMergePatch, KeyedTable, Link
from catalog.folding import FoldedChain, FoldReport
from catalog.handles import ArtifactHandle, CheckpointedStateScope, InlineHandle, StateHandle
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
from catalog.memory_factory import MemoryCheckpoints, MemoryStreamFactory
from catalog.moment import Moment
from catalog.moving.layouts import Layout
from catalog.moving.report import Moved, MoveLine, MoveReport
from catalog.output_stream import CheckpointStateOutputStream
from catalog.policies import (
    Best,
    Every,
    Last,
    LastCommitted,
    LastValidated,
    Newest,
    Period,
    Retention,
    Within,
    read_policies,
)
from catalog.prune import CleanUp, Planned, RetentionReport
from catalog.recovery import RecoveryReport
from catalog.restore import StatePart
from catalog.snapshot import (
    CheckpointOptions,
    ExecutionType,
    SavepointSnapshotStrategy,
    SnapshotResources,
    SnapshotResult,
    SnapshotStrategy,
    SnapshotStrategyRunner,
    SnapshotTask,
    SnapshotType,
)
from catalog.state import CheckpointId, CheckpointState
from catalog.state_store import CheckpointStateManager, CheckpointStateStore
from catalog.store import CheckpointStore
from catalog.strategies import DirectorySnapshotStrategy, MappingSnapshotStrategy, PartitionSnapshotStrategy
from catalog.stream_factory import CatalogStreamFactory, CheckpointStreamFactory
from catalog.sweep import SweepReport
from catalog.tables.compaction import CompactedTable, CompactionReport
from catalog.tables.port import Merging
from catalog.validation import Issue, ValidationResult
from catalog.verify import Depth, Progress, Sample, ValidationReport

__all__ = [
    "AbandonedError",
    "AppendLog",
    "ArtifactHandle",
    "ArtifactNotFoundError",
    "BasePurgedError",
    "Best",
    "BrokenChainError",
    "CatalogError",
    "CatalogStreamFactory",
    "ChainLink",
    "CheckpointAbortedError",
    "CheckpointCatalog",
    "CheckpointCoordinator",
    "CheckpointDiff",
    "CheckpointExistsError",
    "CheckpointId",
    "CheckpointInUseError",
    "CheckpointManifest",
    "CheckpointManifestV2",
    "CheckpointNotFoundError",
    "CheckpointOptions",
    "CheckpointState",
    "CheckpointStateManager",
    "CheckpointStateOutputStream",
    "CheckpointStateStore",
    "CheckpointStore",
    "CheckpointStreamError",
    "CheckpointStreamFactory",
    "CheckpointedStateScope",
    "Checkpointer",
    "CleanUp",
    "ClosedIdError",
    "CompactedTable",
    "CompactionReport",
    "CompletedCheckpoint",
    "ConflictError",
    "ConnectorCheckpoint",
    "CorruptError",
    "Cutting",
    "Depth",
    "DeserializationError",
    "DirectorySnapshotStrategy",
    "Drill",
    "DrillReport",
    "Every",
    "ExecutionType",
    "FoldReport",
    "FoldedChain",
    "Folder",
    "InlineHandle",
    "InvalidInputError",
    "Issue",
    "JsonMergePatch",
    "KeyedTable",
    "Last",
    "LastCommitted",
    "LastValidated",
    "Layout",
    "Link",
    "LockTimeoutError",
    "MappingSnapshotStrategy",
    "MemoryCheckpoints",
    "MemoryStreamFactory",
    "Merging",
    "Moment",
    "MoveLine",
    "MoveReport",
    "Moved",
    "Newest",
    "NotACatalogError",
    "OperatorCheckpoint",
    "OperatorEntry",
    "OutOfReachError",
    "PartitionEntry",
    "PartitionSnapshotStrategy",
    "PendingCheckpoint",
    "Period",
    "Planned",
    "Progress",
    "PurgedError",
    "ReadOnlyError",
    "RecoveryReport",
    "RestoreMode",
    "RestoredCheckpoint",
    "Retention",
    "RetentionReport",
    "Sample",
    "SavepointSnapshotStrategy",
    "SessionError",
    "SharedFile",
    "SnapshotCancelledError",
    "SnapshotResources",
    "SnapshotResult",
    "SnapshotStrategy",
    "SnapshotStrategyRunner",
    "SnapshotTask",
    "SnapshotType",
    "SourceOffsetEntry",
    "StateHandle",
    "StatePart",
    "StreamClosedError",
    "SweepReport",
    "TrashedError",
    "UnknownHandleError",
    "UnknownOutcomeError",
    "UnsupportedFormatError",
    "ValidationReport",
    "ValidationResult",
    "Within",
    "artifact_path",
    "new_uuid7",
    "read_policies",
]
