"""Keeps CheckpointStates (seed 003) in the catalog's tables: a stream per stream id, a sequence per checkpoint."""

import base64
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from catalog import keys, lifecycle, retention
from catalog.cutting import Writing
from catalog.errors import CorruptError, DeserializationError, InvalidInputError
from catalog.lifecycle import Checkpoint, History
from catalog.manifest import INLINE_THRESHOLD_BYTES, StateManifest, parse_stored
from catalog.protocol import PRUNE_UNDO, Draft, Stream
from catalog.retention import Plan
from catalog.state import CheckpointId, CheckpointState
from catalog.sweep import ORPHAN_GRACE, clean_up

STATE_PATH = StateManifest.STATE_PATH


class CheckpointStateStore:
    """Saves and loads CheckpointStates of many streams; safe to share by threads."""

    def __init__(self, open_stream: Callable[[str], Stream], *, max_per_stream: int | None = None) -> None:
        """Make a store; `CheckpointCatalog.state_store` is the usual way.

        Args:
            open_stream: gives the rows of a stream.
            max_per_stream: how many checkpoints of a stream stay at every save, the lowest sequences go first.
        """
        self._open = open_stream
        self._max = None if max_per_stream is None else keys.u64(max_per_stream, "max_per_stream", minimum=1)

    def save(self, state: CheckpointState) -> None:
        """Save a state under its stream and sequence; the same content again is a success.

        Raises:
            CheckpointExistsError: the sequence is taken by other content.
        """
        if not isinstance(state, CheckpointState):
            raise InvalidInputError(f"a state must be a CheckpointState, not {type(state).__name__}")
        data = state.serialize()
        stream, key = self._open(state.id.stream_id), _key(state.id.sequence)
        inline = len(data) <= INLINE_THRESHOLD_BYTES
        manifest = manifest_of(state, data if inline else None)
        attempt = keys.new_uuid7()
        stored = {}
        if not inline:
            stream.check_format()
            stored = {STATE_PATH: stream.stage(key, attempt, STATE_PATH, "state", data, Writing(base=stream.base))}
        draft = Draft(
            key=key,
            format=manifest.FORMAT,
            attempt=attempt,
            manifest=manifest.canonical(),
            artifacts=stored,
            facts=manifest_columns(state),
        )
        stream.save(draft, self._prune if self._max else None)

    def latest(self, stream_id: str) -> CheckpointState | None:
        """Return the state with the highest sequence, None if there is none."""
        stream = self._open(stream_id)
        newest = stream.latest()
        return self._state(stream, newest) if newest else None

    def load(self, stream_id: str, sequence: int) -> CheckpointState | None:
        """Return the state of a sequence, None if there is none."""
        stream = self._open(stream_id)
        found = stream.find(_key(sequence))
        return self._state(stream, found) if found and found.live else None

    def list(self, stream_id: str) -> list[int]:
        """Return the sequences of a stream, ascending."""
        return [int(key) for key in lifecycle.live_keys(self._open(stream_id).history())]

    def delete_before(self, stream_id: str, sequence: int, *, undo_for: timedelta = PRUNE_UNDO) -> int:
        """Trash all sequences below one and return how many went; `restore` undoes it."""
        bound = _key(sequence)

        def planner(history: History, now: datetime) -> Plan:
            return retention.drop(history, [key for key in history if key < bound], f"before {sequence}", now)

        return len(self._open(stream_id).trash(planner, undo_for).trash)

    def restore(self, stream_id: str, sequence: int) -> None:
        """Take a checkpoint out of the trash; within its undo window this always works."""
        self._open(stream_id).restore(_key(sequence))

    def cleanup_orphans(self, stream_id: str, grace: timedelta = ORPHAN_GRACE) -> int:
        """Delete what no checkpoint of a stream needs any more; see CheckpointStore.cleanup_orphans."""
        return clean_up(self._open(stream_id), grace)

    def _prune(self, history: History, now: datetime) -> Plan:
        return retention.keep_newest(history, self._max or 0, now)

    def _state(self, stream: Stream, checkpoint: Checkpoint) -> CheckpointState:
        manifest = parse_stored(StateManifest, checkpoint, stream.label)
        try:
            if manifest.state_b64 is None:
                data = stream.read(checkpoint.key, STATE_PATH)
            else:
                data = base64.b64decode(manifest.state_b64, validate=True)
            state = CheckpointState.deserialize(stream.label, data)
        except (ValueError, DeserializationError) as error:
            raise CorruptError(f"state {checkpoint.id} of stream {stream.label!r} is unreadable: {error}") from error
        created_at = checkpoint.origin.created_at if checkpoint.origin else None
        if created_at:
            state.id = CheckpointId(stream.label, state.id.sequence, created_at)
        state.metadata = dict(manifest.metadata)
        return state


class CheckpointStateManager:
    """Saves a stream's state every so many events of that stream; safe to share by threads."""

    def __init__(self, store: CheckpointStateStore, interval: int) -> None:
        """Make a manager.

        Args:
            store: where the states go.
            interval: events of one stream between two of its checkpoints, at least 1.
        """
        self.store = store
        self._interval = keys.u64(interval, "interval", minimum=1)
        self._events: dict[str, int] = {}
        self._made = 0
        self._lock = threading.Lock()

    @property
    def checkpoints_made(self) -> int:
        """How many checkpoints this manager has saved, of all streams."""
        return self._made

    def record(self, stream_id: str, capture: Callable[[], CheckpointState], events: int = 1) -> bool:
        """Count events of a stream and save its state when the interval is full.

        Args:
            stream_id: the stream.
            capture: gives the state to save; called only when one is due.
            events: how many events were processed.

        Returns:
            Whether a checkpoint was saved. One that fails stays due.
        """
        keys.u64(events, "events")
        with self._lock:
            count = self._events[stream_id] = self._events.get(stream_id, 0) + events
            if count < self._interval:
                return False
            self._events[stream_id] = count % self._interval
        try:
            self.store.save(_of_stream(stream_id, capture()))
        except BaseException:
            with self._lock:
                self._events[stream_id] += count - count % self._interval
            raise
        with self._lock:
            self._made += 1
        return True


def manifest_of(state: CheckpointState, data: bytes | None) -> StateManifest:
    """Return what a row says about a state.

    Args:
        state: the state.
        data: it as bytes, if they ride in the manifest; None if they are an artifact.
    """
    return StateManifest.from_dict(
        {
            "version": 1,
            "sequence": state.id.sequence,
            "watermark_ns": state.watermark_ns,
            "event_count": state.event_count,
            "source_offsets": dict(state.source_offsets),
            "operator_bytes": {name: len(one) for name, one in state.operator_states.items()},
            "metadata": dict(state.metadata),
            "state_b64": None if data is None else base64.b64encode(data).decode(),
        }
    )


def manifest_columns(state: CheckpointState) -> dict[str, Any]:
    """Return the columns that queries and pruning need of a state."""
    return {
        "created_at": state.id.created_at,
        "watermark": state.watermark_ns,
        "event_count": state.event_count,
    }


def _of_stream(stream_id: str, state: CheckpointState) -> CheckpointState:
    if state.id.stream_id != stream_id:
        raise InvalidInputError(f"the state captured for stream {stream_id!r} is of {state.id.stream_id!r}")
    return state


def _key(sequence: int) -> str:
    return keys.integer_key(sequence, "sequence", minimum=0)
