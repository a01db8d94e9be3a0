"""Imports or exports in a process of its own, and kills itself at one of its writes; run as a script.

moving_worker.py CATALOG import|export PLACE NUMBER before|after
"""

import os
import signal
import sys
from itertools import count

from catalog import CheckpointCatalog
from catalog.moving import importing
from catalog.moving.storage import Storage
from catalog.tables.native import NativeEngine

NUMBERS = count()


def dying(work, number, when):
    """Return work that is killed before or after it is done for the given time."""

    def die(*arguments, **named):
        mine = next(NUMBERS) == number
        if mine and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = work(*arguments, **named)
        if mine:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    return die


def main(place, what, other, number, when):
    importing.BATCH = 2  # several commits for a few checkpoints
    catalog = CheckpointCatalog.native(place)
    if what == "import":
        for name in ("append", "insert_unless"):
            setattr(NativeEngine, name, dying(getattr(NativeEngine, name), int(number), when))
        catalog.import_from(other, "s", threads=2)
    else:
        os.rename = dying(os.rename, int(number), when)  # pathlib's too: it is what makes a file appear
        os.fsync = dying(os.fsync, int(number), when)
        Storage.write = dying(Storage.write, int(number), when)
        catalog.export_to(other, "s", threads=2)
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
