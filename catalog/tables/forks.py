"""Engines after a fork: what they stand on, deltalake's threads and Spark's connection, is not in the new process."""

import os

from catalog.errors import CatalogError
from catalog.tables.names import Place


def check_process(place: Place, home_pid: int) -> None:
    """Refuse a process that was forked from the one whose threads and connections an engine uses: it would hang.

    Args:
        place: the catalog.
        home_pid: that process.
    """
    if os.getpid() != home_pid:
        raise CatalogError(
            f"process {os.getpid()} was forked from process {home_pid}, which had opened a catalog: it cannot use the "
            f"one at {place}; open catalogs only after forking, or let multiprocessing start processes by 'spawn' or "
            "'forkserver'",
            place=str(place),
        )
