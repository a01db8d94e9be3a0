"""A catalog with one fault for each rule, planted by plain Delta writes past the code under test."""

import asyncio
import hashlib
import json
from pathlib import Path

from catalog import (
    CheckpointedStateScope,
    CheckpointId,
    CheckpointManifest,
    CheckpointManifestV2,
    CheckpointState,
    InlineHandle,
    artifact_path,
    artifacts,
    chunks,
    cutting,
    keys,
    new_uuid7,
)
from catalog.lifecycle import Change
from catalog.manifest import sha256_text
from catalog.protocol import Draft
from catalog.tables.port import Equals, Table
from catalog.tables.schema import arrow
from catalog.testing.native import NativeHarness

CONNECTOR = {"offsets": {"p-0": "1"}, "epoch": 1}


def v1(number, **fields):
    return CheckpointManifest.new(number, epoch=fields.pop("epoch", number), **fields)


def plant_marks(catalog, stream, numbers, **told):
    """Leave nothing of these checkpoints but the mark that they were purged, as a sweep does."""
    now = catalog.stream(stream).clock()
    mark = {
        "stream": keys.stream_key(stream), "revision": 2, "change": Change.PURGED, "format": keys.Format.MANIFEST_V1,
        "at": now, "actor": "user@host", "reason": "undo window ended: not one of the newest 2",
        "details": json.dumps({"saved_at": now.isoformat(), "trashed_at": now.isoformat()}),
        **told,
    }  # fmt: skip
    rows = [{**mark, "checkpoint_key": keys.integer_key(one), "insert_id": keys.new_uuid7()} for one in numbers]
    catalog.engine.append(Table.CHECKPOINTS, [arrow(Table.CHECKPOINTS, rows)])


class World:
    """A new catalog, and what it takes to fill it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.harness = NativeHarness(place, maintain_every=0)
        self.catalog = self.harness.catalog

    def save(self, stream, *numbers, state=b"state", **fields):
        store = self.catalog.store(stream)
        for number in numbers:
            store.save_with_state(v1(number, **fields), state)
        return store

    def rewrite(self, stream, key, **fields):
        """Add an updated revision whose manifest has other fields, with a right hash, as no store would."""
        rows = self.catalog.stream(stream)
        found = rows.find(key)
        manifest = {**json.loads(found.content.manifest), **fields}
        text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
        columns = {"manifest": text, "manifest_sha256": sha256_text(text)}
        told = {
            name: getattr(found.content, name) for name in ("epoch", "vnode_count", "sinks_pending", "sinks_failed")
        }
        rows.change(key, lambda _: {"change": Change.UPDATED, **columns, **told})

    def change(self, table, stream, key, change):
        self.harness._change(table, stream, key, change)

    def snapshot(self, stream, data=b"everything", *, parent=None, write=True, listed=None, **entry):
        """Save and promote a v2 checkpoint of one partition; with a parent it is a delta."""
        checkpointer, id = self.catalog.checkpointer(stream), new_uuid7()
        path = artifact_path(id, "count", 0, delta=parent is not None)
        listed = {"partition_id": 0, "is_delta": parent is not None, "path": path, "size_bytes": len(data), **entry}

        async def run():
            if write:
                await (checkpointer.save_delta if parent else checkpointer.save_snapshot)(id, "count", 0, data)
            operators = {"count": {"partitions": [listed]}}
            offsets = {"kafka": {"source_type": "kafka", "offsets": {"p-0": "7"}}}
            manifest = CheckpointManifestV2.new(
                id, epoch=1, operators=operators, parent_id=parent, source_offsets=offsets
            )
            await checkpointer.save_manifest(manifest)
            if write:
                await checkpointer.update_latest(id)

        asyncio.run(run())
        return id

    def streamed(self, stream, *, numbers=(1, 2), **fields):
        """Save checkpoints whose state was written to checkpoint streams; each uses the first one's on."""
        store = self.catalog.store(stream)
        handles = {}
        for number in numbers:
            factory = store.stream_factory(number, threshold=4)
            for name, data in (("big", b"x" * 600_000), ("small", b"tiny")):
                if name == "big" and handles:
                    factory.reuse_previous_state_handle([handles["big"]])
                    continue
                output = factory.create_checkpoint_state_output_stream(CheckpointedStateScope.SHARED)
                output.write(data)
                handles[name] = output.close_and_get_handle()
            store.save_with_handles(v1(number, operator_handles={"op": handles}, **fields), factory)
        return handles


class Planted(World):
    """The catalog, and which rules each checkpoint breaks: {(stream, id): {rule, …}}."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.expected: dict[tuple[str, str], set[str]] = {}
        for name, plant in sorted(vars(type(self)).items()):
            if name.startswith("plant_"):
                plant(self, name.removeprefix("plant_"))

    def breaks(self, stream, id, *rules):
        self.expected[stream, str(id)] = set(rules)

    def plant_good(self, stream):
        self.save(stream, 1, 2, source_offsets={"kafka": CONNECTOR}, sink_commit_statuses={"w": "Committed"})
        first = self.snapshot("good v2")
        self.snapshot("good v2", b"more", parent=first)
        state = CheckpointState.new(CheckpointId("good state", 0))
        state.set_source_offset("mqtt", 2**64 - 1)
        self.catalog.state_store().save(state)
        self.streamed("good streams")

    def plant_handles(self, stream):
        handles = self.streamed(stream)
        self.harness.lose_state(stream, keys.integer_key(1))
        self.breaks(stream, 1, "state_missing")
        self.breaks(stream, 2, "holder_missing")
        self.streamed(stream + " other", numbers=(1,))
        other = handles["big"].model_copy(update={"size_bytes": 5}).model_dump()
        path = self.catalog.store(stream + " other").load_by_id(1).operator_handles["op"]["big"].path
        self.rewrite(stream + " other", keys.integer_key(1), operator_handles={"op": {"big": {**other, "path": path}}})
        self.breaks(stream + " other", 1, "artifact_mismatch")

    def plant_manifest_unreadable(self, stream):
        self.save(stream, 1)
        self.harness.corrupt_manifest(stream, keys.integer_key(1))
        self.breaks(stream, 1, "manifest_unreadable")

    def plant_id_mismatch(self, stream):
        self.save(stream, 1)
        self.rewrite(stream, keys.integer_key(1), checkpoint_id=2)
        self.breaks(stream, 1, "id_mismatch")

    def plant_id_zero(self, stream):
        manifest = v1(1).model_copy(update={"checkpoint_id": 0})
        draft = Draft(
            key="0" * 20,
            format=keys.Format.MANIFEST_V1,
            attempt="none",
            manifest=manifest.canonical(),
            facts={"epoch": 1},
        )
        self.catalog.stream(stream).save(draft)
        self.breaks(stream, 0, "id_zero")

    def plant_epoch_zero(self, stream):
        self.save(stream, 1, epoch=0)
        self.breaks(stream, 1, "epoch_zero")
        self.catalog.stream(stream + " v2")
        id = self.snapshot(stream + " v2")
        self.rewrite(stream + " v2", id, epoch=0)
        self.breaks(stream + " v2", id, "epoch_zero")

    def plant_inline_state_unreadable(self, stream):
        inline = {"op": {"state_b64": "YQ=="}}
        self.catalog.store(stream).save(v1(1, operator_states=inline))
        broken = v1(1, operator_states={"op": {"state_b64": "?"}})
        self.rewrite(
            stream, keys.integer_key(1), operator_states={"op": {"state_b64": "?"}}, state_checksum=broken.inline_hash()
        )
        self.breaks(stream, 1, "inline_state_unreadable")
        sound = InlineHandle.of(b"a").model_dump()
        wrong = {"not base64": {"state_b64": "?"}, "other bytes": {"sha256": "0" * 64}, "other size": {"size_bytes": 2}}
        for what, damage in wrong.items():
            name = f"{stream} handle, {what}"
            self.catalog.store(name).save(v1(1, operator_handles={"op": {"x": sound}}))
            self.rewrite(name, keys.integer_key(1), operator_handles={"op": {"x": {**sound, **damage}}})
            self.breaks(name, 1, "inline_state_unreadable")

    def plant_state_missing(self, stream):
        self.save(stream, 1)
        self.harness.lose_state(stream, keys.integer_key(1))
        self.breaks(stream, 1, "state_missing")
        state = CheckpointState.new(CheckpointId(stream + " large", 3))
        state.set_operator_state("op", b"x" * (2 << 20))
        self.catalog.state_store().save(state)
        self.harness.lose_state(stream + " large", keys.integer_key(3))
        self.breaks(stream + " large", 3, "state_missing")

    def plant_chunk_missing(self, stream):
        self.save(stream, 1, state=b"x" * (cutting.CHUNK_BYTES + 1))
        self.change(Table.ARTIFACTS, stream, keys.integer_key(1), lambda rows: rows.pop(0))
        self.breaks(stream, 1, "chunk_missing")

    def plant_holder_missing(self, stream):
        self.save(stream, 1)
        rows = self.catalog.stream(stream)
        held = artifacts.facts(rows.engine, stream, [Equals("checkpoint_key", keys.integer_key(1))])
        borrowed = [{**row, "checkpoint_key": keys.integer_key(2)} for row in chunks.links(held, "borrower")]
        self.catalog.engine.append(Table.ARTIFACTS, [arrow(Table.ARTIFACTS, borrowed)])
        stored = chunks.totals(borrowed)
        manifest = v1(2, state_checksum=stored["state.bin"].sha256)
        draft = Draft(
            key=keys.integer_key(2), format=keys.Format.MANIFEST_V1, attempt="borrower", manifest=manifest.canonical(),
            artifacts=stored, facts={"epoch": 2},
        )  # fmt: skip
        rows.save(draft)
        self.harness.lose_state(stream, keys.integer_key(1))
        self.breaks(stream, 1, "state_missing")
        self.breaks(stream, 2, "holder_missing")

    def plant_checksum_missing(self, stream):
        self.save(stream, 1)
        self.rewrite(stream, keys.integer_key(1), state_checksum=None)
        self.breaks(stream, 1, "checksum_missing")

    def plant_checksum_mismatch(self, stream):
        self.save(stream, 1)
        self.rewrite(stream, keys.integer_key(1), state_checksum="0" * 64)
        self.breaks(stream, 1, "checksum_mismatch")
        self.catalog.store(stream + " inline").save(
            v1(1, operator_states={"b": {"state_b64": "YQ=="}, "a": {"state_b64": ""}})
        )
        self.rewrite(stream + " inline", keys.integer_key(1), state_checksum="0" * 64)
        self.breaks(stream + " inline", 1, "checksum_mismatch")

    def plant_artifact_mismatch(self, stream):
        id = self.snapshot(stream)
        entry = {
            "partition_id": 0,
            "is_delta": False,
            "path": artifact_path(id, "count", 0, delta=False),
            "size_bytes": 1,
        }
        self.rewrite(stream, id, operators={"count": {"partitions": [entry]}})
        self.breaks(stream, id, "artifact_mismatch")

    def plant_content_mismatch(self, stream):
        id = self.snapshot(stream)

        def other_hash(rows):
            rows[0]["artifact_sha256"] = hashlib.sha256(b"other").hexdigest()

        self.change(Table.ARTIFACTS, stream, id, other_hash)
        self.breaks(stream, id, "content_mismatch")

    def plant_chain_broken(self, stream):
        parent = self.snapshot(stream)
        child = self.snapshot(stream, b"delta", parent=parent)
        self.harness.lose_state(stream, parent)
        self.breaks(stream, parent, "state_missing")
        self.breaks(stream, child, "chain_broken")

    def plant_revision_gap(self, stream):
        store = self.save(stream, 1)
        store.pin(1, "why")
        store.unpin(1)

        def lose_the_middle(rows):
            rows[:] = [row for row in rows if row["revision"] != 1]

        self.change(Table.CHECKPOINTS, stream, keys.integer_key(1), lose_the_middle)
        self.breaks(stream, 1, "revision_gap")

    def plant_version_zero(self, stream):
        self.catalog.store(stream).save(CheckpointManifest.from_dict({**v1(1).model_dump(), "version": 0}))
        self.breaks(stream, 1, "version_zero")

    def plant_timestamp_zero(self, stream):
        self.save(stream, 1, timestamp_ms=0)
        self.breaks(stream, 1, "timestamp_zero")

    def plant_sink_without_status(self, stream):
        self.save(stream, 1, sink_epochs={"a": 1}, sink_commit_statuses={"b": "Committed"})
        self.breaks(stream, 1, "sink_without_status")

    def plant_source_unknown(self, stream):
        self.save(stream, 1, source_offsets={"a": CONNECTOR}, source_names=["b"])
        self.breaks(stream, 1, "source_unknown")

    def plant_vnode_count_legacy(self, stream):
        self.save(stream, 1, vnode_count=0)
        self.breaks(stream, 1, "vnode_count_legacy")

    def plant_vnode_count_mismatch(self, stream):
        self.save(stream, 1, vnode_count=128)
        self.save(stream, 2)
        self.breaks(stream, 1, "vnode_count_mismatch")

    def plant_never_written(self, stream):
        id = self.snapshot(stream, write=False)
        self.breaks(stream, id, "never_written")
