"""Which files other stores keep, and under which names. Pure: file names in, a plan out.

| layout | a checkpoint's files | pointer |
|---|---|---|
| objects (seed 004) | `manifests/manifest-000007.json`, `checkpoints/state-000007.bin` | `manifests/latest.json` |
| folders (its sibling) | `checkpoints/checkpoint_000007/manifest.json`, `…/state.bin` | `checkpoints/latest.txt` |
| partitions (seed 002) | `{id}/manifest.json`, `{id}/operators/{operator}/partition-{n}.snap` or `.delta` | `_latest` |
| states (seed 003) | one file of bytes, of any name | none |

Ids are padded to six digits and may be longer. Of `partitions` there is a variant without the slash after the id, which
is what its authors' code wrote.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from catalog import keys
from catalog.errors import InvalidInputError
from catalog.manifest import CheckpointManifest

STATE = CheckpointManifest.STATE_PATH


class Layout(StrEnum):
    """How a store names its files."""

    OBJECTS = "objects"
    FOLDERS = "folders"
    PARTITIONS = "partitions"
    STATES = "states"

    @property
    def holds(self) -> keys.Format:
        """What a stream of it holds."""
        return FORMATS[self]


FORMATS = {
    Layout.OBJECTS: keys.Format.MANIFEST_V1,
    Layout.FOLDERS: keys.Format.MANIFEST_V1,
    Layout.PARTITIONS: keys.Format.MANIFEST_V2,
    Layout.STATES: keys.Format.STATE_V1,
}
POINTERS = {
    Layout.OBJECTS: "manifests/latest.json",
    Layout.FOLDERS: "checkpoints/latest.txt",
    Layout.PARTITIONS: "_latest",
}
MOST_DAMAGED_BYTES = 256 << 20
"""Up to this size a file that is no readable state is taken along as a damaged one: it is read as a whole for that."""
_UUID = r"[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}"
_MANIFEST = {
    Layout.OBJECTS: re.compile(r"manifests/manifest-([0-9]+)\.json"),
    Layout.FOLDERS: re.compile(r"checkpoints/checkpoint_([0-9]+)/manifest\.json"),
}
_STATE = {
    Layout.OBJECTS: re.compile(r"checkpoints/state-([0-9]+)\.bin"),
    Layout.FOLDERS: re.compile(r"checkpoints/checkpoint_([0-9]+)/state\.bin"),
}
_PART = re.compile(rf"({_UUID})/?(manifest\.json|(?:operators|offsets)/.+)", re.DOTALL)
_OPERATOR = re.compile(r"operators/(.+)/partition-([0-9]+)\.(snap|delta)", re.DOTALL)
_POINTER_FOLDER = re.compile(r"checkpoint_([0-9]+)")


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A file as a listing tells it."""

    path: str
    """Relative to the source, with slashes."""
    size: int
    modified: datetime | None = None
    stray: str | None = None
    """Why it is no part of any checkpoint, whatever it is called; None if nothing says so."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """The files of one checkpoint."""

    key: str
    manifest: FileFacts
    """For `states` the state itself."""
    parts: Mapping[str, FileFacts] = field(default_factory=dict)
    """Other files, by what they are called within the checkpoint: `state.bin`, `operators/count/partition-0.snap`."""

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return self.manifest.size + sum(part.size for part in self.parts.values())


@dataclass(frozen=True, slots=True)
class Plan:
    """What there is to import."""

    layout: Layout
    candidates: Sequence[Candidate]
    """By key."""
    strays: Mapping[str, str]
    """Why a file is no part of any checkpoint, by path."""
    pointer: FileFacts | None = None


def file_name(layout: Layout, key: str, part: str | None = None) -> str:
    """Return the usual name of a checkpoint's manifest, or of another of its files.

    Args:
        layout: the layout.
        key: the checkpoint.
        part: what it is called within the checkpoint; None is the manifest, for `states` the state itself.
    """
    if layout is Layout.PARTITIONS:
        return f"{key}/{part or 'manifest.json'}"
    if layout is Layout.STATES:
        return f"checkpoint-{key}.bin"
    number = f"{int(key):06d}"
    if layout is Layout.FOLDERS:
        return f"checkpoints/checkpoint_{number}/{part or 'manifest.json'}"
    return f"checkpoints/state-{number}.bin" if part == STATE else f"manifests/manifest-{number}.json"


def recognizes(layout: Layout, path: str) -> bool:
    """Return whether a file belongs to a layout, by its name; `states` have no names of their own."""
    if path == POINTERS.get(layout):
        return True
    patterns = (_PART,) if layout is Layout.PARTITIONS else (_MANIFEST.get(layout), _STATE.get(layout))
    return any(pattern.fullmatch(path) for pattern in patterns if pattern)


def detect(files: Iterable[FileFacts]) -> Layout | None:
    """Return the layout that file names show, None if they show none.

    Raises:
        InvalidInputError: they show several.
    """
    names = [file.path for file in files]
    found = [layout for layout in POINTERS if any(recognizes(layout, name) for name in names)]
    if len(found) > 1:
        raise InvalidInputError(
            f"there are files of several layouts, {' and '.join(found)}: say which one to take, the other's are told"
        )
    return found[0] if found else None


def places(files: Iterable[FileFacts]) -> list[str]:
    """Return the folders within in which a layout shows, for who gave one too high."""
    found = set()
    for file in files:
        steps = file.path.split("/")
        for depth in range(1, len(steps)):
            if any(recognizes(layout, "/".join(steps[depth:])) for layout in POINTERS):
                found.add("/".join(steps[:depth]))
                break
    return sorted(found)


def plan(layout: Layout, files: Iterable[FileFacts]) -> Plan:
    """Return the checkpoints that files of a layout make; of `states`, see plan_states."""
    strays: dict[str, str] = {}
    pointer = None
    manifests: dict[str, list[FileFacts]] = defaultdict(list)
    parts: dict[str, dict[str, list[FileFacts]]] = defaultdict(lambda: defaultdict(list))
    for file in sorted(files, key=lambda one: one.path):
        if file.path == POINTERS.get(layout):
            pointer = file
            continue
        try:
            found = _names(layout, file.path)
        except InvalidInputError as error:
            strays[file.path] = str(error)
            continue
        if found is None:
            strays[file.path] = f"not a file of the layout {layout}"
        elif found[1] is None:
            manifests[found[0]].append(file)
        else:
            parts[found[0]][found[1]].append(file)
    candidates = []
    for key in sorted(manifests.keys() | parts.keys()):
        named = {part: _one(layout, key, part, some, strays) for part, some in parts[key].items()}
        if key in manifests:
            candidates.append(Candidate(key, _one(layout, key, None, manifests[key], strays), named))
        else:
            why = f"checkpoint {keys.checkpoint_id(key)} has no manifest: its save never ended"
            strays |= {file.path: why for file in named.values()}
    return Plan(layout, candidates, strays, pointer)


def plan_states(files: Iterable[FileFacts], identify: Callable[[FileFacts], int | None]) -> Plan:
    """Return the checkpoints that files with serialized states make.

    A file that is no state has no sequence; then the last number in its name is taken for it, if nobody else's is the
    same: the first bytes of something else could be any number, and the next id has to be above it.

    Args:
        files: the files.
        identify: gives the sequence that is in a file's bytes, None if they are no state.
    """
    strays: dict[str, str] = {}
    found: dict[str, FileFacts] = {}
    unreadable = []
    for file in sorted(files, key=lambda one: one.path):
        sequence = identify(file)
        if sequence is None:
            unreadable.append(file)
            continue
        key = keys.integer_key(sequence, minimum=0)
        if key in found:
            strays[file.path] = f"it has the sequence {sequence}, as {found[key].path} has"
        found.setdefault(key, file)
    for file in unreadable:
        numbers = re.findall(r"[0-9]+", file.path.rpartition("/")[2])
        number = int(numbers[-1]) if numbers and len(numbers[-1]) <= 20 else -1
        if not 0 <= number <= keys.U64_MAX:
            strays[file.path] = "not a CheckpointState, and its name has no number"
        elif file.size > MOST_DAMAGED_BYTES:
            limit = f"a damaged one is imported up to {MOST_DAMAGED_BYTES >> 20} MiB"
            strays[file.path] = f"not a CheckpointState, and it has {file.size >> 20} MiB: {limit}"
        elif (key := keys.integer_key(number, minimum=0)) in found:
            strays[file.path] = f"not a CheckpointState, and {found[key].path} has the sequence {number} of its name"
        else:
            found[key] = file
    return Plan(Layout.STATES, [Candidate(key, found[key]) for key in sorted(found)], strays)


def operator_part(part: str) -> tuple[str, int, bool] | None:
    """Return operator, partition and whether it is a delta, as a file's name within its checkpoint tells."""
    match = _OPERATOR.fullmatch(part)
    return (match[1], int(match[2]), match[3] == "delta") if match else None


def within(key: str, path: str) -> tuple[str, str]:
    """Return the checkpoint, and the name within it, of a path in a manifest: relative, or with any prefix."""
    match = re.search(rf"({_UUID})/?((?:operators|offsets)/.*)", path, re.DOTALL)
    return (match[1].lower(), match[2]) if match else (key, path.removeprefix("/"))


def read_pointer(layout: Layout, raw: bytes) -> str | None:
    """Return the key that a pointer names, None if it is unreadable."""
    try:
        text = raw.decode().strip()
        match layout:
            case Layout.OBJECTS:
                return keys.integer_key(json.loads(text)["checkpoint_id"], minimum=0)
            case Layout.FOLDERS:
                found = _POINTER_FOLDER.fullmatch(text)
                return keys.integer_key(int(found[1]), minimum=0) if found else None
        return keys.uuid7(text)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def write_pointer(layout: Layout, key: str) -> bytes:
    """Return the pointer to a checkpoint, as its store writes it."""
    match layout:
        case Layout.OBJECTS:
            return b'{"checkpoint_id":%d}' % int(key)
        case Layout.FOLDERS:
            return b"checkpoint_%06d" % int(key)
    return key.encode()


def _names(layout: Layout, path: str) -> tuple[str, str | None] | None:
    """Return key and part of a file, None if it is of no checkpoint."""
    if layout is Layout.PARTITIONS:
        match = _PART.fullmatch(path)
        part = None if not match or match[2] == "manifest.json" else match[2]
        return (keys.uuid7(match[1]), part) if match else None
    for pattern, part in ((_MANIFEST[layout], None), (_STATE[layout], STATE)):
        if match := pattern.fullmatch(path):
            # Python refuses to read thousands of digits.
            return keys.integer_key(int(match[1].lstrip("0")[:21] or "0"), "the id in its name", minimum=0), part
    return None


def _one(layout: Layout, key: str, part: str | None, files: Sequence[FileFacts], strays: dict[str, str]) -> FileFacts:
    """Return the file that counts among those of one name within a checkpoint; the others are strays."""
    usual = file_name(layout, key, part)
    chosen = next((file for file in files if file.path == usual), files[0])
    strays |= {
        file.path: f"the same of checkpoint {keys.checkpoint_id(key)} as {chosen.path}"
        for file in files
        if file != chosen
    }
    return chosen
