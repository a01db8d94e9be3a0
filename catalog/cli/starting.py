"""How a command opens its catalog: without Spark, unless that is asked for, and then it says so."""

import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from catalog.catalog import CheckpointCatalog
from catalog.cli.job import EngineName, open_catalog
from catalog.cli.output import Output
from catalog.errors import SessionError

STARTING = "starting Spark, which takes some seconds …"


def opened(out: Output, path: str, engine: EngineName) -> CheckpointCatalog:
    """Open the catalog at a place through an engine; what is a folder is no name of a schema."""
    if engine is EngineName.NATIVE:
        return open_catalog("ckpt", path, engine)
    place = str(Path(path).absolute()) if Path(path).is_dir() else path
    with starting(out):
        return open_catalog("ckpt", place, engine)


@contextmanager
def starting(out: Output) -> Iterator[None]:
    """Say that Spark is started, and keep what its JVM says meanwhile and later to itself, unless it fails."""
    out.note(STARTING)
    # PySpark writes every error as a page of JSON, beside raising it.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
    sys.stderr.flush()
    here = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        except SessionError:
            said.seek(0)
            os.write(here, said.read())
            raise
        finally:
            os.dup2(here, 2)
            os.close(here)
