# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Recovery and time travel
#
# It is half past ten, the payments job is down, and its newest checkpoints are not to be trusted. This notebook finds
# the one to restore from, takes its state out, undoes what people did in a hurry, and looks at how things were before.
#
# It needs `pip install 'checkpoint-catalog[native,notebooks]'` and runs in seconds: nothing of this needs Spark.

# %%
import json
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from catalog import CheckpointCatalog, CheckpointManifest

pd.set_option("display.max_colwidth", None)

# %% [markdown]
# ## The morning
#
# A checkpoint every ten minutes, from nine o'clock on. The clock is ours, so that a morning passes in a second; leave
# `clock` out for a catalog of your own.

# %%
folder = tempfile.TemporaryDirectory(prefix="recovery-")
place = Path(folder.name) / "catalog"
now = datetime(2026, 5, 4, 9, 0, tzinfo=UTC)

cat = CheckpointCatalog.native(place, create=True, clock=lambda: now, actor="payments-job")
store = cat.store("payments")

OLD_PIPELINE, NEW_PIPELINE = 11, 12
for number in range(1, 9):
    manifest = CheckpointManifest.new(
        number,
        epoch=number,
        timestamp_ms=int(now.timestamp() * 1000),
        watermark=number * 600,
        pipeline_hash=OLD_PIPELINE if number < 5 else NEW_PIPELINE,
        source_offsets={
            "kafka": {"offsets": {"partition-0": str(5000 * number), "partition-1": str(4800 * number)}, "epoch": 1}
        },
        sink_commit_statuses={"ledger": "Pending"},
    )
    balances = {f"account-{account}": 100 * account + number // account for account in range(1, 6)}
    store.save_with_state(manifest, json.dumps(balances).encode())
    if number < 7:
        store.update_manifest(manifest.with_sink_status("ledger", "Committed"))
    now += timedelta(minutes=10)

store.update_manifest(store.load_by_id(8).with_sink_status("ledger", "Failed", error="connection refused"))
store.list_ids()

# %% [markdown]
# Then a disk goes bad. We play that by hand: one bit of checkpoint 6 changes in the Delta table itself, past the
# catalog.

# %%
artifacts = DeltaTable(str(place / "artifacts"))
rows = artifacts.to_pyarrow_table(filters=[("checkpoint_key", "=", f"{6:020d}")]).to_pylist()
rows[0]["data"] = bytes([rows[0]["data"][0] ^ 1]) + rows[0]["data"][1:]
damaged = pa.Table.from_pylist(rows, artifacts.to_pyarrow_table().schema)
write_deltalake(artifacts, damaged, mode="overwrite", predicate=f"checkpoint_key = '{6:020d}'")

# %% [markdown]
# ## What is wrong
#
# `validate` reads and hashes every byte. It judges state, not sinks: 7 and 8 are whole.

# %%
found = cat.validate(depth="hashes")
for stream, result in found.results:
    for issue in result.failures:
        print(f"{stream} {result.checkpoint_id}: {issue.rule}: {issue}")

# %% [markdown]
# ## Which one to restore from
#
# Recovery goes from the newest to the oldest, and says why not.

# %%
print(cat.recover("payments").explain())

# %% [markdown]
# It can be told what else matters. Each condition has an option of the same name in `ckpt recover`.

# %%
questions = {
    "nothing else": {},
    "pending and failed sinks are fine": {"allow_pending": True},
    "not beyond offset 17,000 of partition 0": {"at_offset": ("kafka", "partition-0", 17_000)},
    "not beyond watermark 1,300": {"at_watermark": 1300},
    "not made after 9:15": {"at_time": datetime(2026, 5, 4, 9, 15, tzinfo=UTC)},
    "of the old pipeline": {"pipeline_hash": OLD_PIPELINE},
}
answers = {question: cat.recover("payments", **conditions) for question, conditions in questions.items()}
pd.DataFrame(
    [(question, one.chosen_id, len(one.skipped)) for question, one in answers.items()],
    columns=["condition", "chosen", "passed over"],
)

# %% [markdown]
# ## Its state, in a folder
#
# All of it or nothing, and verified. `restore.json` lists the files in the order to apply. In a program,
# `store.load_state_data` or `cat.open_state` hand out the same bytes.

# %%
restored = cat.restore_into("payments", 5, Path(folder.name) / "restored")
for file in sorted(restored.rglob("*")):
    if file.is_file():
        print(file.relative_to(restored))
print(json.loads(store.load_state_data(5)))

# %% [markdown]
# What changed since the checkpoint before?

# %%
print(cat.diff("payments", 4, 5).explain())

# %% [markdown]
# ## Undo
#
# Somebody cleans up in a hurry, and keeps the newest three: the very ones that are not fit. Pruning goes by what the
# manifests say, and by them 6 was good.

# %%
print(store.prune(3), "pruned,", store.list_ids(), "left")
print(cat.recover("payments").explain())

# %% [markdown]
# Nothing is deleted yet: what went is in the trash for a week, and recovery says so. It comes back as it was.

# %%
for number in (1, 2, 3, 4, 5):
    store.restore(number)
print(store.list_ids(), "recovery chooses", cat.recover("payments").chosen_id)

# %% [markdown]
# An update can be taken back as well. Here somebody declares checkpoint 8 committed that is not.

# %%
store.update_manifest(store.load_by_id(8).with_sink_status("ledger", "Committed"))
print("recovery would choose", cat.recover("payments").chosen_id)
store.undo_update(8)
print("undone: recovery chooses", cat.recover("payments").chosen_id)

# %% [markdown]
# ## Time travel
#
# Every commit is a version. `as_of` shows the whole catalog at one of them, or at a `timestamp`, read-only.

# %%
moments = {
    1: "the first save",
    4: "the ledger has confirmed 2",
    10: "the ledger has confirmed 5",
    15: "the ledger has failed at 8",
    16: "the prune",
    21: "its undoing",
}
past = {version: cat.as_of(version=version) for version in moments}
pd.DataFrame(
    [
        (version, moments[version], moment.store("payments").list_ids(), moment.recover("payments").chosen_id)
        for version, moment in past.items()
    ],
    columns=["version", "after", "live checkpoints", "recovery would choose"],
).convert_dtypes()

# %% [markdown]
# The past is more than a list: its checkpoints load. The ledger's status of checkpoint 6, when it was just saved and
# now:

# %%
for name, moment in {"then": cat.as_of(version=11), "now": cat}.items():
    print(f"{name}:", moment.store("payments").load_by_id(6).sink_commit_statuses["ledger"])

# %% [markdown]
# A moment can be copied into another catalog, to try something there without touching this one.

# %%
with CheckpointCatalog.native(Path(folder.name) / "rehearsal", create=True) as rehearsal:
    for one in cat.as_of(version=8).copy_to(rehearsal):
        print(one)
    print(rehearsal.store("payments").list_ids(), "recovery chooses", rehearsal.recover("payments").chosen_id)

# %% [markdown]
# ## From a shell
#
# ```
# ckpt recover PLACE payments --explain
# ckpt recover PLACE payments --explain --at-offset kafka/partition-0=17000
# ckpt recover PLACE payments --as-of 16 --into FOLDER
# ```

# %%
cat.close()
folder.cleanup()
