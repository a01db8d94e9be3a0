"""What a source holds: its layout, and the checkpoints that its files make."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from catalog.errors import InvalidInputError
from catalog.moving import contents, layouts
from catalog.moving.layouts import FileFacts, Layout, Plan
from catalog.moving.storage import FileFault, Storage

_SNIFFED = 16
"""So many files are looked into before a place is said to hold no states."""


def find_plan(storage: Storage, layout: Layout | None, threads: int) -> Plan:
    """Look at a source's files, and say which checkpoints they make.

    Raises:
        InvalidInputError: no layout is recognized, or several are.
    """
    listed = storage.list()
    plan = _plan(storage, layout, [file for file in listed if file.stray is None], threads)
    return replace(plan, strays={**plan.strays, **{file.path: file.stray for file in listed if file.stray is not None}})


def _plan(storage: Storage, layout: Layout | None, files: Sequence[FileFacts], threads: int) -> Plan:
    found = layout or layouts.detect(files)
    if found not in (None, Layout.STATES):
        return layouts.plan(found, files)
    if layout is None and not any(_sequence(storage, file) is not None for file in files[:_SNIFFED]):
        within = layouts.places(files)
        hint = f"; pass {storage.label}/{within[0]}" if within else ""
        if len(within) > 1:
            hint += f", or another of {len(within)} such folders"
        raise InvalidInputError(
            f"no checkpoints are recognized among the {len(files)} files of {storage.label}{hint}: expected are "
            "manifests/manifest-N.json, checkpoints/checkpoint_N/manifest.json, UUID/manifest.json, or files that are "
            "serialized CheckpointStates"
        )
    with ThreadPoolExecutor(threads) as pool:
        sequences = dict(zip(files, pool.map(lambda file: _sequence(storage, file), files), strict=True))
    return layouts.plan_states(files, sequences.__getitem__)


def _sequence(storage: Storage, file: FileFacts) -> int | None:
    try:
        return contents.identify(storage.read(file.path))
    except FileFault:
        return None  # is told when it is imported
