"""The life of a checkpoint, from the first save to an undone prune: `make run`."""

import tempfile
from pathlib import Path

from catalog import CheckpointCatalog, CheckpointExistsError, CheckpointManifest
from catalog.session import build_session


def main() -> None:
    """Run it, and say what happens."""
    print("starting Spark (the first time it fetches the Delta jars) …", flush=True)
    spark = build_session()
    with tempfile.TemporaryDirectory(prefix="checkpoint-catalog-") as folder:
        place = Path(folder) / "catalog"
        catalog = CheckpointCatalog.create(spark, place)
        print(f"1. created a catalog: {', '.join(sorted(entry.name for entry in place.iterdir() if entry.is_dir()))}")

        store = catalog.store("orders", max_retained=3)
        for offset in (1000, 2000, 3000, 4000):
            number = store.next_id()
            position = {"kafka": {"offsets": {"partition-0": str(offset)}, "epoch": number}}
            manifest = CheckpointManifest.new(
                number, epoch=number, source_offsets=position, sink_commit_statuses={"warehouse": "Pending"}
            )
            store.save_with_state(manifest, [b"counts up to offset ", str(offset).encode()])
            print(f"2. saved checkpoint {number} at offset {offset}, with its state")
            if offset < 4000:
                store.update_manifest(manifest.with_sink_status("warehouse", "Committed"))
        print(f"3. the last save kept the newest 3 in the same commit: {store.list_ids()}")

        try:
            store.save(CheckpointManifest.new(number, epoch=99))
        except CheckpointExistsError as error:
            print(f"4. a second writer of id {number} is told: {error}")

        print("5. what recovery would choose, and why:")
        report = store.recover_latest_validated()
        print("   " + report.explain().replace("\n", "\n   "))
        assert isinstance(report.chosen_id, int)
        print(f"   its state: {store.load_state_data(report.chosen_id)!r}")

        print(
            f"6. pruned {store.prune(1)} more: {store.list_ids()} stay, 3 being the newest that recovery could choose"
        )
        store.restore(2)
        print(f"7. undone for one of them: {store.list_ids()}")

        print("8. the same, as SQL sees it:")
        checkpoints = spark.read.format("delta").load(str(place / "checkpoints"))
        checkpoints.orderBy("checkpoint_key", "revision").select(
            "checkpoint_key", "revision", "change", "reason", "sinks_pending", "artifact_bytes"
        ).show(truncate=False)
    spark.stop()


if __name__ == "__main__":
    main()
