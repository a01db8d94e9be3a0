"""Files as other checkpoint stores write them: pretty JSON in their own order of fields, small pointers, raw bytes."""

import hashlib
import json
from pathlib import Path

from catalog import CheckpointId, CheckpointState


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def manifest(number, state=None, **fields):
    """Return a manifest of seed 004 as its authors' serializer writes it: fields in order, two spaces, no line end."""
    known = {
        "version": 1,
        "checkpoint_id": number,
        "epoch": number,
        "timestamp_ms": 1_700_000_000_000 + number,
        "source_offsets": {"kafka": {"offsets": {"partition-0": str(1000 * number)}, "epoch": number, "metadata": {}}},
        "sink_epochs": {"warehouse": number},
        "sink_commit_statuses": {"warehouse": "Committed"},
        "pipeline_hash": 0xDEADBEEFCAFE1234,
        "vnode_count": 256,
        "state_checksum": None if state is None else sha256(state),
    }
    return json.dumps({**known, **fields}, indent=2).encode()


def objects(numbers, state=b"state of %d", **fields):
    """Return the files of seed 004's store."""
    files = {"manifests/latest.json": b'{"checkpoint_id":%d}' % max(numbers)}
    for number in numbers:
        files[f"manifests/manifest-{number:06d}.json"] = manifest(number, state % number, **fields)
        files[f"checkpoints/state-{number:06d}.bin"] = state % number
    return files


def folders(numbers, state=b"state of %d"):
    """Return the files of its sibling on a file system."""
    files = {"checkpoints/latest.txt": b"checkpoint_%06d" % max(numbers)}
    for number in numbers:
        files[f"checkpoints/checkpoint_{number:06d}/manifest.json"] = manifest(number, state % number)
        files[f"checkpoints/checkpoint_{number:06d}/state.bin"] = state % number
    return files


def manifest_v2(id, entries, parent=None, **fields):
    """Return a manifest of seed 002.

    Args:
        id: the checkpoint.
        entries: (operator, partition, is_delta, path, data).
        parent: what its deltas stand on.
    """
    operators = {}
    for operator, partition, is_delta, path, data in entries:
        entry = {"partition_id": partition, "is_delta": is_delta, "path": path}
        entry |= {"size_bytes": len(data), "sha256": sha256(data)}
        operators.setdefault(operator, {"partitions": [], "total_bytes": 0})["partitions"].append(entry)
    known = {"version": 2, "checkpoint_id": id, "epoch": 1, "timestamp_ms": 1_700_000_000_000}
    return json.dumps({**known, "operators": operators, "parent_id": parent, **fields}, indent=2).encode()


def partitions(ids, slash="/", prefix=""):
    """Return the files of seed 002's store: a snapshot, and deltas each on the one before.

    Args:
        ids: the checkpoints, oldest first.
        slash: what is between an id and the rest; its authors' code wrote none.
        prefix: what paths in manifests begin with.
    """
    files, parent = {"_latest": ids[-1].encode()}, None
    for number, id in enumerate(ids):
        data, kind = b"bytes %d" % number, "delta" if parent else "snap"
        name = f"{id}{slash}operators/window.agg/partition-0.{kind}"
        entries = [("window.agg", 0, parent is not None, prefix + name, data)]
        files |= {name: data, f"{id}{slash}manifest.json": manifest_v2(id, entries, parent)}
        files[f"{id}{slash}offsets/kafka.json"] = b'{"partition-0": "7"}'
        parent = id
    return files


def state(sequence, *, order=sorted, size=10):
    """Return a serialized state of seed 003; its authors' code wrote maps in any order."""
    one = CheckpointState(CheckpointId("s", sequence), watermark_ns=sequence, event_count=sequence)
    one.set_operator_state("count", b"c" * size)
    data = one.serialize()
    if order is sorted:
        return data
    pair = b"".join(len(part).to_bytes(4, "little") + part for part in (b"b", b"1", b"a", b"2"))
    return data[:24] + (2).to_bytes(4, "little") + pair + (0).to_bytes(4, "little")


def put(folder, files):
    """Write files into a folder."""
    for name, data in files.items():
        file = Path(folder) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return folder


def taken(folder):
    """Return all files of a folder."""
    return {
        file.relative_to(folder).as_posix(): file.read_bytes() for file in Path(folder).rglob("*") if file.is_file()
    }
