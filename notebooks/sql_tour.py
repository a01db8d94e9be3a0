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
# # A tour of the catalog in SQL
#
# A checkpoint catalog is three Delta tables and a set of views over them. This tour makes a small catalog, damages it a
# little, and then asks the questions that somebody on call asks: what is there, what is wrong, what would be recovered
# and why, where do the sources stand, what grows, would a restore work, what can be taken back, and what was there
# before.
#
# It needs `pip install 'checkpoint-catalog[native,notebooks]'` and Java 17, and takes about a minute.

# %%
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from catalog import (
    AppendLog,
    CheckpointCatalog,
    CheckpointManifest,
    CheckpointManifestV2,
    Sample,
    artifact_path,
    new_uuid7,
)
from catalog.session import QUICK_SETTINGS, build_session

pd.set_option("display.max_colwidth", None)

# %% [markdown]
# ## A catalog to look at
#
# The native engine writes it, because it is quick; the tables are the same whichever engine writes. The clock is ours,
# so that a few seconds of work look like a few hours of a stream's life.

# %%
folder = tempfile.TemporaryDirectory(prefix="sql-tour-")
place = Path(folder.name) / "catalog"
now = datetime.now(UTC) - timedelta(hours=3)

native = CheckpointCatalog.native(place, create=True, clock=lambda: now, actor="tour")


def timestamp_ms():
    return int(now.timestamp() * 1000)


# %% [markdown]
# `orders` has integer ids and one state per checkpoint. It reads two partitions of a Kafka topic and feeds two sinks.
# One sink has not answered for checkpoint 6 yet, and one has failed for checkpoint 7. The first checkpoint is pinned.

# %%
orders = native.store("orders")
search_status = {6: "Pending"}
warehouse_status = {7: {"Failed": "no space left"}}
for number in range(1, 8):
    now += timedelta(minutes=10)
    manifest = CheckpointManifest.new(
        number,
        epoch=number,
        timestamp_ms=timestamp_ms(),
        watermark=number * 60_000,
        source_offsets={
            "kafka": {"offsets": {"partition-0": str(1000 * number), "partition-1": str(900 * number)}, "epoch": number}
        },
        sink_commit_statuses={
            "search": search_status.get(number, "Committed"),
            "warehouse": warehouse_status.get(number, "Committed"),
        },
    )
    orders.save_with_state(manifest, [b"counts " * 1000 * number])
orders.pin(1, reason="before the migration")

# %% [markdown]
# `clicks` has UUIDv7 ids and an artifact per operator. `rules` and `sessions` write a snapshot every time; `counts`
# writes a snapshot once and then only what changed, so its checkpoints form a chain.

# %%
clicks = native.checkpointer("clicks")


async def save_clicks(parent, sizes_kib):
    checkpoint_id, operators = new_uuid7(), {}
    for operator, kib in sizes_kib.items():
        delta = operator == "counts" and parent is not None
        data = operator.encode()[:1] * kib * 1024
        write = clicks.save_delta if delta else clicks.save_snapshot
        sha256 = await write(checkpoint_id, operator, 0, data)
        path = artifact_path(checkpoint_id, operator, 0, delta=delta)
        entry = {"partition_id": 0, "is_delta": delta, "path": path, "size_bytes": len(data), "sha256": sha256}
        operators[operator] = {"partitions": [entry]}
    manifest = CheckpointManifestV2.new(
        checkpoint_id, epoch=1, timestamp_ms=timestamp_ms(), parent_id=parent, operators=operators
    )
    await clicks.save_manifest(manifest)
    await clicks.update_latest(checkpoint_id)
    return checkpoint_id


parent = None
for sessions_kib in (40, 55, 80, 120, 170, 250):
    now += timedelta(minutes=10)
    parent = await save_clicks(parent, {"rules": 60, "counts": 8 if parent else 90, "sessions": sessions_kib})

# %% [markdown]
# Then two things happen. Somebody prunes `orders` to its newest five, and something that is not the catalog writes into
# a table: one manifest is overwritten.

# %%
before = native.engine.versions()[-1].number
now += timedelta(minutes=10)
pruned = orders.prune(5)

key_of_5 = f"{5:020d}"
checkpoints = DeltaTable(f"{place}/checkpoints")
everything = checkpoints.to_pyarrow_table()
rows = [row for row in everything.to_pylist() if (row["stream"], row["checkpoint_key"]) == ("orders", key_of_5)]
damaged = pa.Table.from_pylist([{**row, "manifest": '{"version": 1, "check'} for row in rows], everything.schema)
of_5 = f"stream = 'orders' AND checkpoint_key = '{key_of_5}'"
write_deltalake(checkpoints, damaged, mode="overwrite", predicate=of_5)
print(f"{pruned} pruned, {len(damaged)} damaged")

# %% [markdown]
# ## Spark, and the views
#
# The settings make many tiny queries quick, and large ones slow: leave them out for a catalog of your own. What Spark
# says while it starts goes into a file beside the catalog.

# %%
spark = build_session(settings=QUICK_SETTINGS, log=place.with_name("spark.log"))

# %% [markdown]
# `deploy_views` makes the views of [sql/views](../sql/views). A catalog in a folder has no schema to put them in, so
# they are temporary views of this session; a catalog in a schema gets persistent ones.

# %%
cat = CheckpointCatalog.for_path(spark, place, actor="tour")
print("\n".join(cat.deploy_views()))


# %%
def table(query):
    """Run a query, and return its rows for reading."""
    return spark.sql(query).toPandas().convert_dtypes()


# %% [markdown]
# ## What is there
#
# One row per live checkpoint. Checkpoint 2 of `orders` is pruned; checkpoint 1 would be too, but for its pin.

# %%
table("""
    SELECT stream, checkpoint_id, is_latest, epoch, sinks_pending, sinks_failed, bytes, pin_reason
    FROM checkpoint_list
    ORDER BY stream, checkpoint_key
""")

# %% [markdown]
# One row per stream, for whoever wants to go on from the newest.

# %%
table("""
    SELECT stream, checkpoint_id, date_format(saved_at, 'HH:mm') AS saved, sinks_pending, sinks_failed, bytes
    FROM latest_checkpoints
    ORDER BY stream
""")

# %% [markdown]
# And one row per stream for a dashboard, or an alert. `orders` has a fault.

# %%
table("""
    SELECT stream, committed, trashed, faults, warnings, sinks_failed, bytes, trashed_bytes
    FROM stream_health
    ORDER BY stream
""")

# %% [markdown]
# ## What is wrong
#
# `validation_issues` looks at metadata only, so it is quick on a large catalog too. `cat.validate(depth="hashes")`
# reads every byte as well.

# %%
table("SELECT stream, checkpoint_id, severity, rule, message FROM validation_issues")

# %% [markdown]
# ## What would be recovered, and why
#
# Recovery goes from the newest to the oldest and takes the first that is eligible and valid. The view says of each what
# would happen to it.

# %%
table("""
    SELECT checkpoint_id, eligible, recovery_rank AS rank, reason
    FROM recovery_candidates
    WHERE stream = 'orders'
    ORDER BY checkpoint_key DESC
""")

# %% [markdown]
# `recover` does it, reads and hashes the state too, and gives its reasons.

# %%
print(cat.recover("orders").explain())

# %% [markdown]
# A sink that is pending or failed may be acceptable; what is damaged never is. Recovery needs no Spark: the native
# engine gives the same answers.

# %%
quick = CheckpointCatalog.native(place)
print(quick.recover("orders", allow_pending=True).explain())

# %% [markdown]
# ## Where the sources stand
#
# One row per checkpoint, source and position in it. Checkpoint 5 is missing here: nobody can read its manifest.

# %%
table("""
    SELECT checkpoint_id, source, position, offset_number
    FROM source_positions
    WHERE stream = 'orders'
    ORDER BY checkpoint_key, position
""")

# %% [markdown]
# Everything after offset 3500 of partition 0 has to be read again. Which is the newest checkpoint to start from?

# %%
table("""
    SELECT checkpoint_id, offset_number
    FROM source_positions
    WHERE stream = 'orders' AND source = 'kafka' AND position = 'partition-0' AND offset_number <= 3500
    ORDER BY checkpoint_key DESC
    LIMIT 1
""")

# %% [markdown]
# The same question to `recover`, which also asks whether that checkpoint is good.

# %%
print(quick.recover("orders", at_offset=("kafka", "partition-0", 3500)).explain())

# %% [markdown]
# ## Reaching into a manifest
#
# `checkpoint_manifests` has the whole manifest as a VARIANT: a path reaches into it, and `::` gives it a type.

# %%
table("""
    SELECT checkpoint_id, readable, manifest:vnode_count::INT AS vnodes, manifest:watermark::BIGINT AS watermark,
        manifest:source_offsets.kafka.offsets['partition-0']::STRING AS partition_0,
        manifest:sink_commit_statuses.warehouse::STRING AS warehouse
    FROM checkpoint_manifests
    WHERE stream = 'orders'
    ORDER BY checkpoint_key
""")

# %% [markdown]
# ## What grows
#
# One row per checkpoint and operator, with the size before.

# %%
growth = table("""
    SELECT checkpoint_id, operator, bytes, growth_bytes, round(growth_ratio, 2) AS growth_ratio
    FROM checkpoint_growth
    WHERE stream = 'clicks'
    ORDER BY checkpoint_key, operator
""")
growth[growth["operator"] == "sessions"]

# %%
kib = growth.assign(kib=growth["bytes"].astype(float) / 1024).pivot(
    index="checkpoint_id", columns="operator", values="kib"
)[["rules", "counts", "sessions"]]
kib.index = range(1, len(kib) + 1)

figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
bottom = 0 * kib["rules"]
for operator, colour in {"rules": "#A7AFB9", "counts": "#0072B2", "sessions": "#E69F00"}.items():
    axes.bar(kib.index, kib[operator], bottom=bottom, label=operator, color=colour, width=0.7)
    bottom = bottom + kib[operator]
axes.set_title("clicks: sessions grow; counts write only what changed", loc="left")
axes.set_xlabel("checkpoint, oldest first")
axes.set_ylabel("size (KiB)")
axes.spines[["top", "right"]].set_visible(False)
handles, labels = axes.get_legend_handles_labels()
axes.legend(handles[::-1], labels[::-1], frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
plt.show()

# %% [markdown]
# The price of the small `counts`: to restore the newest checkpoint, a chain has to be read.

# %%
table("""
    SELECT operator, depth, whole, bytes_to_read
    FROM delta_chains
    WHERE stream = 'clicks'
    ORDER BY checkpoint_key DESC
    LIMIT 1
""")

# %% [markdown]
# Folding makes one snapshot of it; the folder knows how the deltas are put together. What the producer wrote stays
# beside it until retention lets it go, and `delta_chains` no longer has this checkpoint.

# %%
native.fold_chains(["clicks"], folders={"counts": AppendLog()}, min_links=2)
table("""
    SELECT kind, folded, i.bytes
    FROM artifact_inventory i
    JOIN latest_checkpoints USING (stream, checkpoint_key)
    WHERE stream = 'clicks' AND operator = 'counts'
    ORDER BY folded
""")

# %% [markdown]
# ## Would a restore work
#
# A drill restores checkpoints into scratch space and checks every hash: by schedule a few a night, here all of them.
# Checkpoint 5 of `orders` cannot be restored. `seconds_p50` and `seconds_p99` of the same view say how long the others
# took.

# %%
native.run_drills(sample=Sample(percent=100))
table("""
    SELECT stream, committed, proven, unproven, checkpoint_id AS oldest_unproven, last_error
    FROM restore_drills
    ORDER BY stream
""")

# %% [markdown]
# ## What is in the trash
#
# Pruning deletes nothing yet. `store.restore(2)` takes it back, until the undo window is over.

# %%
table("""
    SELECT stream, checkpoint_id, reason, trashed_by, date_diff(undo_until, current_timestamp()) AS days_to_undo, bytes
    FROM trashed_checkpoints
""")

# %% [markdown]
# ## Who did what
#
# Every change of every checkpoint's life, and every event, newest first; here without the drills.

# %%
table("""
    SELECT date_format(at, 'HH:mm') AS at, stream, checkpoint_id, event, actor, reason
    FROM checkpoint_events
    WHERE event <> 'drilled'
    ORDER BY checkpoint_events.at DESC, stream
    LIMIT 8
""")

# %% [markdown]
# ## What was there before
#
# Time travel: the whole catalog as of a version of the table `checkpoints`, here the one before the prune and the
# damage. Any view can be had of it, so that both times can be asked in one query: what was live then, and is not now?

# %%
past = cat.as_of(version=before)
past.view("checkpoint_list").createOrReplaceTempView("checkpoint_list_before")
table("""
    SELECT stream, checkpoint_id, epoch, bytes
    FROM checkpoint_list_before
    LEFT ANTI JOIN checkpoint_list USING (stream, checkpoint_key)
""")

# %% [markdown]
# Then checkpoint 5 was sound, and recovery would have chosen it.

# %%
print(quick.as_of(version=before).recover("orders").explain())

# %%
spark.stop()
native.close()
quick.close()
folder.cleanup()
