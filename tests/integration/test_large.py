"""Large artifacts in bounded memory, in processes of their own so that their peaks can be told."""

import json
import subprocess
import sys

import pytest

from catalog.session import QUICK_SETTINGS
from tests.benchmarks.native import memory_grown_mib

SCRIPT = """
import hashlib, json, os, resource, sys
from catalog import CheckpointCatalog, CheckpointManifest
from catalog.session import build_session

place, mib, settings = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])

def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

store = CheckpointCatalog.create(build_session(settings=settings, master="local[2]"), place).store("large")
store.save_with_state(CheckpointManifest.new(1, epoch=1), [b"warm"])
before, written, size = peak_mib(), hashlib.sha256(), 0

def pieces():
    for _ in range(mib):
        piece = os.urandom(1 << 20)
        written.update(piece)
        yield piece

store.save_with_state(CheckpointManifest.new(2, epoch=1), pieces())
saved, read = peak_mib(), hashlib.sha256()
for chunk in store.iter_state_data(2):
    read.update(chunk)
    size += len(chunk)
print(json.dumps({"same": read.hexdigest() == written.hexdigest() == store.load_by_id(2).state_checksum,
                  "size": size, "before": before, "saved": saved, "loaded": peak_mib()}))
"""


def save_and_load(place, mib):
    command = [sys.executable, "-c", SCRIPT, str(place), str(mib), json.dumps(QUICK_SETTINGS)]
    result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert result["same"]
    assert result["size"] == mib << 20
    return result


@pytest.mark.prove
def test_one_gib_is_saved_and_loaded_in_a_few_hundred_mib(tmp_path):
    result = save_and_load(tmp_path / "catalog", 1024)
    growth = {step: round(result[step] - result["before"]) for step in ("saved", "loaded")}
    print(f"\nPython's memory grew by {growth['saved']} MiB while saving and {growth['loaded']} MiB in all")
    assert max(growth.values()) < 500


@pytest.mark.parametrize("mib", [384, pytest.param(1024, marks=pytest.mark.prove)])
def test_a_native_writer_and_reader_never_hold_a_large_state_whole(tmp_path, mib):
    grown = memory_grown_mib(tmp_path, mib)
    print(f"\nof {mib} MiB memory held {grown['saved']:.0f} MiB while saving, {grown['loaded']:.0f} MiB while loading")
    assert grown.keys() == {"saved", "loaded"}
    assert max(grown.values()) < 300
