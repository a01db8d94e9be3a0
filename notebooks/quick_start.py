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
# # Quick start
#
# A checkpoint catalog keeps the checkpoints of stream processors in Delta tables. This notebook saves some, reads them
# back, recovers, lets old ones go, and asks SQL about all of it.
#
# It needs `pip install 'checkpoint-catalog[native,notebooks]'`. Only the SQL at the end needs Java 17; it takes most of
# the minute that all of this runs.

# %% [markdown]
# ## A catalog
#
# A catalog is a folder, or an address such as `s3://bucket/folder`. Here it is a temporary one.

# %%
import tempfile
from pathlib import Path

import pandas as pd
import pyarrow as pa

from catalog import (
    CheckpointCatalog,
    CheckpointCoordinator,
    CheckpointExistsError,
    CheckpointManifest,
    Last,
    MappingSnapshotStrategy,
    Retention,
)
from catalog.session import build_session

folder = tempfile.TemporaryDirectory(prefix="quick-start-")
place = Path(folder.name) / "catalog"

cat = CheckpointCatalog.native(place, create=True)  # without create=True a mistyped path is an error

# %% [markdown]
# ## Save
#
# A stream holds one producer's checkpoints. Each is a manifest, which says where the sources and sinks stand, and its
# state, which is bytes. One commit makes both exist: nobody ever sees half a checkpoint.

# %%
store = cat.store("orders")

for offset in (1000, 2000, 3000):
    manifest = CheckpointManifest.new(
        store.next_id(),
        epoch=1,
        source_offsets={"kafka": {"offsets": {"partition-0": str(offset)}, "epoch": 1}},
        sink_commit_statuses={"warehouse": "Pending"},
    )
    store.save_with_state(manifest, f"counts up to {offset}".encode())
    if offset < 3000:
        store.update_manifest(manifest.with_sink_status("warehouse", "Committed"))

store.list_ids()

# %% [markdown]
# An id is taken once. Of two writers one wins, and the other is told.

# %%
try:
    store.save(CheckpointManifest.new(3, epoch=99))
except CheckpointExistsError as error:
    print(error)

# %% [markdown]
# ## Load
#
# What is read was compared with its SHA-256 hash. Wrong bytes are an error, never data.

# %%
latest = store.load_latest()
print(latest.checkpoint_id, latest.source_offsets["kafka"].offsets, latest.sink_commit_statuses)
print(store.load_state_data(latest.checkpoint_id))

# %% [markdown]
# ## Recover
#
# The newest checkpoint is not always the one to restore from: the warehouse has not confirmed checkpoint 3. Recovery
# walks back to the newest that is good, reads all of it, and gives a reason for each that it passed over.

# %%
report = cat.recover("orders")
for checkpoint_id, reason in report.skipped:
    print(f"passed over {checkpoint_id}: {reason}")
print("chosen", report.chosen_id)

# %% [markdown]
# ## Checkpoints of a whole job
#
# A `CheckpointCoordinator` takes checkpoints while the job goes on. A strategy per operator says how its state is
# written; the one for a `dict` is ready-made, and so are those for partitions of bytes and for folders of files.

# %%
words = {}
strategies = {"count": MappingSnapshotStrategy(words, pa.string(), pa.int64())}

with CheckpointCoordinator(cat.store("words"), strategies) as job:
    for offset, line in enumerate(("to be or not to be", "that is the question"), start=1):
        for word in line.split():
            words[word] = words.get(word, 0) + 1
        position = {"lines": {"offsets": {"line": str(offset)}, "epoch": 1}}
        pending = job.trigger(epoch=1, source_offsets=position)  # returns at once; writing goes on behind
    saved = pending.result()

print("saved", saved.checkpoint_id)

# %% [markdown]
# After a crash a new process begins like this:

# %%
with CheckpointCoordinator(cat.store("words"), strategies) as job:
    restored = job.restore()
    words = MappingSnapshotStrategy.restore(restored.open("count"))

print("go on after line", restored.manifest.source_offsets["lines"].offsets["line"], "with", words)

# %% [markdown]
# ## Let old ones go
#
# Retention keeps what any of its policies keeps. `dry_run` only tells. What goes can be restored for a week.

# %%
policy = Retention((Last(1),))
plan = cat.apply_retention([policy], ["orders"], dry_run=True)
pd.DataFrame([(one.checkpoint_id, one.keep, one.reason) for one in plan.planned], columns=["id", "keep", "reason"])

# %%
cat.apply_retention([policy], ["orders"])
print("after:", store.list_ids())
store.restore(1)
print("undone:", store.list_ids())

# %% [markdown]
# ## Ask SQL
#
# The same tables, through Spark. `deploy_views` makes the views; each column of each view has a comment.

# %%
spark = build_session(log=Path(folder.name) / "spark.log")  # what Spark says while it starts goes there
sql_cat = CheckpointCatalog.for_path(spark, place)
sql_cat.deploy_views()

spark.sql("""
    SELECT stream, checkpoint_id, eligible, reason
    FROM recovery_candidates
    ORDER BY stream, checkpoint_key
""").toPandas()

# %%
spark.sql("""
    SELECT stream, committed, trashed, faults, sinks_pending
    FROM stream_health
    ORDER BY stream
""").toPandas()

# %% [markdown]
# ## Where to go on
#
# - [Recovery and time travel](recovery_and_time_travel.ipynb): damage, conditions, undo, the past.
# - [Growth, cost and retention](growth_cost_and_retention.ipynb): what grows, what it costs, how long restores take.
# - [A tour in SQL](sql_tour.ipynb): all the questions that the views answer.
# - `ckpt list`, `ckpt show` and `ckpt recover` do the same from a shell; [README](../README.md) has the rest.

# %%
spark.stop()
cat.close()
folder.cleanup()
