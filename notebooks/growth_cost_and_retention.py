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
# # Growth, cost and retention
#
# What do checkpoints cost, why do they grow, how long would a restore take, and what may go? This notebook makes three
# weeks of checkpoints of a web shop, and answers from the views and from restore drills.
#
# It needs `pip install 'checkpoint-catalog[native,notebooks]'` and Java 17, and takes about two minutes.

# %%
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import matplotlib.dates as mdates
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from catalog import (
    CheckpointCatalog,
    CheckpointCoordinator,
    CheckpointManifestV2,
    Last,
    Newest,
    PartitionSnapshotStrategy,
    Period,
    Retention,
    Sample,
    artifact_path,
    new_uuid7,
)
from catalog.session import QUICK_SETTINGS, build_session

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
BLUE, ORANGE, GREY = "#0072B2", "#E69F00", "#A7AFB9"  # told apart by colour-blind readers too

pd.set_option("display.max_colwidth", None)

plt.rcParams |= {
    "figure.figsize": (8, 3.6),
    "figure.constrained_layout.use": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": "medium",
    "legend.frameon": False,
}

# %% [markdown]
# ## Three weeks of a web shop
#
# The native engine fills the catalog, and the clock is ours. Job `shop` takes a checkpoint every six hours. Its
# operators differ:
#
# - `rates`, a lookup table, never changes;
# - `stock` has 6 partitions, of which one changes in six hours;
# - `sessions` follows the time of day, and leaks a little.

# %%
folder = tempfile.TemporaryDirectory(prefix="growth-")
place = Path(folder.name) / "catalog"
today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
start = today - timedelta(days=today.weekday() + 21)  # a Monday
now = start

cat = CheckpointCatalog.native(place, create=True, clock=lambda: now, actor="shop", durable=False)
random = np.random.default_rng(42)

state = {
    "rates": {0: random.bytes(256 * KIB)},
    "stock": {partition: random.bytes(256 * KIB) for partition in range(6)},
    "sessions": {},
}
strategies = {name: PartitionSnapshotStrategy(lambda name=name: state[name]) for name in state}

with CheckpointCoordinator(cat.store("shop"), strategies) as job:
    for number in range(21 * 4):
        now = start + timedelta(hours=6 * number)
        state["stock"][int(random.integers(6))] = random.bytes(256 * KIB)
        busy = 1 + np.sin((now.hour - 6) / 24 * 2 * np.pi)
        state["sessions"] = {0: random.bytes(int((150 + 250 * busy + 6 * number) * KIB))}
        job.trigger(epoch=1, timestamp_ms=int(now.timestamp() * 1000)).result()

# %% [markdown]
# Two jobs append to a log. They save a snapshot on Monday at midnight, and after that only what is new: a week is one
# chain of deltas. The chain of `audit-folded` is folded every night, that of `audit` never.

# %%
LOG_FORMAT = "append-log"  # told in the manifest, so that folding knows how deltas are put together


async def save_log(checkpointer, parent):
    delta, data = parent is not None, random.bytes(24 * KIB)
    checkpoint_id = new_uuid7()
    write = checkpointer.save_delta if delta else checkpointer.save_snapshot
    sha256 = await write(checkpoint_id, "log", 0, data)
    path = artifact_path(checkpoint_id, "log", 0, delta=delta)
    entry = {"partition_id": 0, "is_delta": delta, "path": path, "size_bytes": len(data), "sha256": sha256}
    operators = {"log": {"format": LOG_FORMAT, "partitions": [entry]}}
    manifest = CheckpointManifestV2.new(checkpoint_id, epoch=1, parent_id=parent, operators=operators)
    await checkpointer.save_manifest(manifest)
    await checkpointer.update_latest(checkpoint_id)
    return checkpoint_id


parents = {"audit": None, "audit-folded": None}
for number in range(21 * 6):
    now = start + timedelta(hours=4 * number)
    if number % (7 * 6) == 0:
        parents = dict.fromkeys(parents)  # Monday, midnight
    elif now.hour == 0:
        cat.fold_chains(["audit-folded"], min_links=2)
    for stream, parent in parents.items():
        parents[stream] = await save_log(cat.checkpointer(stream), parent)

{stream: len(history) for stream, history in cat.histories().items()}

# %% [markdown]
# A drill restores checkpoints into scratch space, checks every hash, and writes down how long it took. Scheduled,
# `ckpt-drill` restores a few a night. Here it is a quarter of all at once.

# %%
drills = cat.run_drills(sample=Sample(percent=25))
print(len(drills.drills), "restored,", len(drills.failed), "failed")

# %% [markdown]
# ## Spark, and the views
#
# The settings make many tiny queries quick, and large ones slow: leave them out for a catalog of your own.

# %%
spark = build_session(settings=QUICK_SETTINGS, log=place.with_name("spark.log"))
CheckpointCatalog.for_path(spark, place).deploy_views()


def table(query):
    """Run a query, and return its rows for reading."""
    return spark.sql(query).toPandas().convert_dtypes()


# %% [markdown]
# ## Size by operator over time
#
# `checkpoint_growth` has a row per checkpoint and operator.

# %%
growth = table("""
    SELECT saved_at, operator, g.bytes
    FROM checkpoint_growth g
    JOIN checkpoint_list USING (stream, checkpoint_key)
    WHERE stream = 'shop'
""")
mib = growth.assign(bytes=growth["bytes"].astype(float) / MIB).pivot(
    index="saved_at", columns="operator", values="bytes"
)


def date_axis(axes):
    axes.xaxis.set_major_locator(mdates.WeekdayLocator(mdates.MO))
    axes.xaxis.set_minor_locator(mdates.DayLocator())
    axes.xaxis.set_major_formatter(mdates.DateFormatter("%a %d %b"))


figure, axes = plt.subplots()
operators = {"rates": GREY, "stock": BLUE, "sessions": ORANGE}
axes.stackplot(mib.index, *(mib[name] for name in operators), labels=operators, colors=operators.values())
axes.set(title="shop: sessions follow the day, and grow from week to week", ylabel="state of a checkpoint (MiB)")
axes.margins(x=0)
date_axis(axes)
axes.legend(reverse=True, loc="upper left", bbox_to_anchor=(1, 1))
plt.show()

# %% [markdown]
# Which operator is it? The first day against the last one, at the same hours:

# %%
first, last = mib.iloc[:4].mean(), mib.iloc[-4:].mean()
pd.DataFrame({"first day (MiB)": first, "last day (MiB)": last, "times": last / first}).round(2)

# %% [markdown]
# ## New against shared bytes
#
# State that the checkpoint before already has is not stored again. `new_bytes` is what was stored for
# a checkpoint, `shared_bytes` what it borrows from an earlier one.

# %%
saved = table("""
    SELECT saved_at, new_bytes, shared_bytes
    FROM checkpoint_list
    WHERE stream = 'shop'
    ORDER BY checkpoint_key
""").astype({"new_bytes": float, "shared_bytes": float})

figure, axes = plt.subplots()
axes.stackplot(
    saved["saved_at"],
    saved["new_bytes"] / MIB,
    saved["shared_bytes"] / MIB,
    labels=["stored", "shared"],
    colors=[ORANGE, GREY],
    step="post",
)
axes.set(title="shop: what a checkpoint has, and what had to be written for it", ylabel="bytes of a checkpoint (MiB)")
axes.margins(x=0)
date_axis(axes)
axes.legend(reverse=True, loc="upper left", bbox_to_anchor=(1, 1))
plt.show()

# %%
table("""
    SELECT operator, round(sum(bytes) / 1048576, 1) AS state_mib, round(sum(new_bytes) / 1048576, 1) AS stored_mib,
        round(100 * sum(new_bytes) / sum(bytes)) AS stored_percent
    FROM checkpoint_growth
    WHERE stream = 'shop'
    GROUP BY operator
    ORDER BY stored_mib
""")

# %% [markdown]
# ## Chain depth
#
# Deltas are cheap to write, and dear to restore: the whole chain has to be read. `delta_chains` says how long each is;
# a checkpoint with a snapshot, of its own or folded, has no chain.

# %%
chains = table("""
    SELECT stream, saved_at, coalesce(depth, 1) AS depth
    FROM checkpoint_list
    LEFT JOIN delta_chains USING (stream, checkpoint_id, checkpoint_key)
    WHERE stream LIKE 'audit%'
    ORDER BY stream, checkpoint_key
""")

figure, axes = plt.subplots()
for stream, colour in {"audit": ORANGE, "audit-folded": BLUE}.items():
    of_stream = chains[chains["stream"] == stream]
    axes.step(of_stream["saved_at"], of_stream["depth"].astype(int), where="post", color=colour, label=stream)
axes.set(title="What a restore has to read: a week's chain, or one folded every night", ylabel="chain depth (links)")
axes.set_ylim(0)
axes.margins(x=0)
date_axis(axes)
axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
plt.show()

# %% [markdown]
# ## Restore times
#
# Every drill is an event, with its measurements as VARIANT. Longer chains take longer; folding keeps them short.

# %%
restores = table("""
    SELECT stream, coalesce(depth, 1) AS depth, details:seconds::DOUBLE * 1000 AS milliseconds
    FROM checkpoint_events
    LEFT JOIN delta_chains USING (stream, checkpoint_id, checkpoint_key)
    WHERE event = 'drilled' AND stream LIKE 'audit%'
""")

figure, axes = plt.subplots()
for stream, colour, marker in (("audit", ORANGE, "o"), ("audit-folded", BLUE, "^")):
    of_stream = restores[restores["stream"] == stream]
    axes.scatter(of_stream["depth"].astype(int), of_stream["milliseconds"], color=colour, marker=marker, label=stream)
axes.set(title="Restores that were measured", xlabel="chain depth (links)", ylabel="restore time (ms)")
axes.set_xlim(0)
axes.set_ylim(0)
axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
plt.show()

# %% [markdown]
# `restore_drills` has the summary per stream, for a dashboard: what was never proven to restore, and how long the
# others took.

# %%
table("""
    SELECT stream, committed, proven, failures, round(1000 * seconds_p50) AS ms_p50, round(1000 * seconds_p99) AS ms_p99
    FROM restore_drills
    ORDER BY stream
""")

# %% [markdown]
# ## What may go
#
# Keep the newest twelve, the newest of each of the last seven days, and of each of the last three weeks. The plan has a
# reason for each checkpoint.

# %%
policy = Retention((Last(12), Newest(Period.DAILY, 7), Newest(Period.WEEKLY, 3)))
plan = cat.apply_retention([policy], dry_run=True)
planned = pd.DataFrame([(one.stream, one.checkpoint_id, one.keep, one.reason) for one in plan.planned])
planned.columns = ["stream", "checkpoint_id", "keep", "reason"]
planned.query("stream == 'shop' and keep")[["checkpoint_id", "reason"]].set_index("checkpoint_id")

# %%
saved_at = {one.id: one.origin.at for history in cat.histories().values() for one in history.values()}
planned["saved_at"] = planned["checkpoint_id"].map(saved_at)

figure, axes = plt.subplots(figsize=(8, 2.6))
streams = ["audit-folded", "audit", "shop"]
for keep, colour, marker, label in ((False, GREY, "|", "goes"), (True, BLUE, "o", "stays")):
    some = planned[planned["keep"] == keep]
    axes.scatter(some["saved_at"], some["stream"].map(streams.index), color=colour, marker=marker, label=label)
axes.set(title="What the policy keeps", yticks=range(3), yticklabels=streams)
axes.set_ylim(-0.6, 2.6)
date_axis(axes)
axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
plt.show()

# %% [markdown]
# `audit` keeps more than the policy asks for: what a kept delta stands on stays. Folded chains let go.

# %%
went = pd.DataFrame([(one.stream, not one.keep, one.bytes, one.freed_bytes) for one in plan.planned])
went.columns = ["stream", "goes", "bytes", "freed"]
summary = went.groupby("stream").agg(checkpoints=("goes", "size"), go=("goes", "sum"), freed_mib=("freed", "sum"))
summary.assign(freed_mib=(summary["freed_mib"] / MIB).round(1))

# %% [markdown]
# ## What it costs
#
# Now it is done: what goes is trashed, can be restored for a week, is purged after that, and its bytes are swept; at
# last `compact` gives the disk back. The job `ckpt-maintain` does all this by schedule; `keep_removed` is only so
# that we need not wait another day.


# %%
def on_disk():
    """Return how many bytes the catalog takes on the disk, logs and all, once it is compacted."""
    cat.compact(keep_removed=timedelta(0))
    return sum(file.stat().st_size for file in place.rglob("*") if file.is_file())


costs = {"all artifacts": sum(one.bytes for history in cat.histories().values() for one in history.values())}
now = datetime.now(UTC)
cat.apply_retention([policy])
now += timedelta(days=8)
costs["what is shared, stored once"] = on_disk()
cat.clean_up()
costs["after retention"] = on_disk()

# %%
figure, axes = plt.subplots(figsize=(8, 2.2))
bars = axes.barh(list(costs), [cost / MIB for cost in costs.values()], color=[GREY, ORANGE, BLUE], height=0.6)
axes.bar_label(bars, fmt="%.0f MiB", padding=4)
axes.invert_yaxis()
axes.set(title="Three weeks of checkpoints of all three jobs", xlabel="size (MiB)")
axes.margins(x=0.12)
plt.show()

# %% [markdown]
# The same for state ten thousand times as large, a checkpoint of 20 GiB instead of 2 MiB, at 0.023 USD per GiB
# and month; prices differ.

# %%
SCALE, PRICE = 10_000, 0.023
pd.DataFrame({"USD per month": {step: round(SCALE * cost / GIB * PRICE, 1) for step, cost in costs.items()}})

# %% [markdown]
# What is left is whole:

# %%
left = cat.validate(depth="hashes")
print(left.checked, "checkpoints,", "all sound" if left.valid else "with faults")

# %%
spark.stop()
cat.close()
folder.cleanup()
