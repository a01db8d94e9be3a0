"""Every error this package raises on purpose.

CatalogError
├── InvalidInputError (ValueError)        refused at the boundary, nothing was written
├── SessionError (RuntimeError)           Spark, Java or the Delta jars are not there
├── NotACatalogError (LookupError)        nothing, or something else, is at that place
│   └── DamagedCatalogError               a catalog is there, but a part of it is gone or cannot be read
├── UnsupportedFormatError                written by a newer checkpoint-catalog, or beyond its format
├── ReadOnlyError (PermissionError)       the place cannot be written
├── CheckpointNotFoundError (LookupError)
│   └── ArtifactNotFoundError
├── OutOfReachError (LookupError)         that moment cannot be read any more, or not yet
├── CheckpointExistsError                 the id is taken by different content
├── ClosedIdError                         the id can never be used again, or not now
│   ├── TrashedError                      in the trash: restore it, or take the next id
│   ├── PurgedError                       gone for good
│   └── AbandonedError                    given up before it was ever saved
├── CheckpointInUseError                  a live checkpoint or a pin needs it
├── CorruptError                          stored bytes are not what was saved
├── BrokenChainError                      a delta whose parents are not all there
├── DeserializationError (ValueError)     bytes that are no CheckpointState
├── CheckpointStreamError (OSError)       state could not be written or read through a stream
│   ├── StreamClosedError (ValueError)
│   └── UnknownHandleError (LookupError)  a handle from elsewhere, or whose state is gone
├── SnapshotCancelledError (CancelledError)  a snapshot was cancelled; nothing of it is left
├── CheckpointAbortedError                an operator failed or was too slow: the id is given up
├── ConflictError                         nothing happened: try again
│   ├── LockTimeoutError (TimeoutError)
│   └── BasePurgedError                   borrowed bytes were purged meanwhile: write them anew
└── UnknownOutcomeError                   it may have happened: look before trying again
"""

from concurrent.futures import CancelledError
from typing import Any


class CatalogError(Exception):
    """Root of all errors of this package; the facts are attributes as well as text."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        for name, value in facts.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        return self.message


class InvalidInputError(CatalogError, ValueError):
    """An argument was refused before anything was written."""


class SessionError(CatalogError, RuntimeError):
    """A Spark session with Delta cannot be had; the message says what to install or set."""


class NotACatalogError(CatalogError, LookupError):
    """There is no checkpoint catalog at that path or name."""


class DamagedCatalogError(NotACatalogError):
    """A catalog is there, but one of its tables is gone or cannot be read."""


class UnsupportedFormatError(CatalogError):
    """The catalog's table format is newer than this version of the package, or not for both engines."""


class ReadOnlyError(CatalogError, PermissionError):
    """The catalog's storage refuses writes."""


class CheckpointNotFoundError(CatalogError, LookupError):
    """The stream has no live checkpoint with that id."""


class ArtifactNotFoundError(CheckpointNotFoundError):
    """The checkpoint has no artifact with that path."""


class OutOfReachError(CatalogError, LookupError):
    """The catalog cannot be read as it was at that moment; the message says what is reachable."""


class CheckpointExistsError(CatalogError):
    """The id is already saved with different content; the stored one is untouched."""


class ClosedIdError(CatalogError):
    """The id exists, but not as a live checkpoint."""


class TrashedError(ClosedIdError):
    """The checkpoint is in the trash."""


class PurgedError(ClosedIdError):
    """The checkpoint was deleted for good."""


class AbandonedError(ClosedIdError):
    """The id was given up before a checkpoint was saved under it."""


class CheckpointInUseError(CatalogError):
    """Deleting it would break a live checkpoint, or it is pinned."""


class CorruptError(CatalogError):
    """What is stored does not match the hashes it was saved with."""


class BrokenChainError(CatalogError):
    """A delta's parent is missing, or does not hold what the delta stands on."""


class DeserializationError(CatalogError, ValueError):
    """Bytes that are not a serialized CheckpointState."""


class CheckpointStreamError(CatalogError, OSError):
    """State could not be written to a checkpoint stream, or read from one."""


class StreamClosedError(CheckpointStreamError, ValueError):
    """The stream was closed before."""


class UnknownHandleError(CheckpointStreamError, LookupError):
    """The handle is from elsewhere, or its state is gone."""


class SnapshotCancelledError(CatalogError, CancelledError):
    """The snapshot was cancelled; nothing that it had written is left."""


class CheckpointAbortedError(CatalogError):
    """A checkpoint was given up because an operator failed or took too long; its id is closed."""


class ConflictError(CatalogError):
    """Another writer was faster, again and again; nothing was written, so try again."""


class LockTimeoutError(ConflictError, TimeoutError):
    """The table's lock was not free in time; nothing was written."""


class BasePurgedError(ConflictError):
    """A checkpoint whose bytes a save borrows was purged meanwhile; nothing was written."""


class UnknownOutcomeError(CatalogError):
    """A commit was started and its result cannot be known: look, then decide."""
