"""Handles: where a piece of state is. They go into manifests as JSON, survive the process, and open as streams."""

import base64
import hashlib
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from catalog.errors import InvalidInputError
from catalog.stored_json import U64, Name, StoredJson, decode_base64


class CheckpointedStateScope(StrEnum):
    """Who may use a piece of state."""

    EXCLUSIVE = "exclusive"
    """Only the checkpoint it was written for."""
    SHARED = "shared"
    """Later checkpoints too."""


class InlineHandle(StoredJson):
    """A small piece of state that rides in its handle."""

    kind: Literal["inline"] = "inline"
    state_b64: str
    size_bytes: U64
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> "InlineHandle":
        """Return a handle that holds these bytes."""
        return cls(
            state_b64=base64.b64encode(data).decode(), size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest()
        )

    def data(self, what: str = "an inline handle") -> bytes:
        """Return the bytes, verified.

        Args:
            what: the handle, for messages.

        Raises:
            InvalidInputError: they are not base64, or not those that its size and checksum are of.
        """
        data = decode_base64(self.state_b64, f"{what}: state_b64")
        if (len(data), hashlib.sha256(data).hexdigest()) != (self.size_bytes, self.sha256):
            raise InvalidInputError(f"{what}: the state does not match its size and checksum")
        return data


class ArtifactHandle(StoredJson):
    """A piece of state that is an artifact in the tables."""

    kind: Literal["artifact"] = "artifact"
    stream: Name
    checkpoint_key: str
    """The checkpoint it was written for; later ones may use it too."""
    attempt: str
    path: str
    """Unique among all artifacts of the stream."""
    size_bytes: U64
    sha256: str
    """Over its chunks' hashes in order."""
    cutting: Literal["fixed", "content"]
    scope: Literal["exclusive", "shared"]


StateHandle = InlineHandle | ArtifactHandle
StoredHandle = Annotated[StateHandle, Field(discriminator="kind")]
