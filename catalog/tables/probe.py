"""What a storage can do, found out by trying: whether of two commits of one version the second is refused."""

import shutil
import uuid
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.fs as pa_fs
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.fs import DeltaStorageHandler

from catalog.errors import ReadOnlyError
from catalog.tables.commits import first_line
from catalog.tables.names import Place

PROBE_PREFIX = "_probe-"
"""Of the folder in the catalog's that the attempt is made in; Delta ignores names that begin with an underscore."""


def creates_exclusively(place: Place, storage_options: Mapping[str, str] | None = None) -> bool:
    """Say whether two writers of one version can never both succeed, which is what every native commit stands on.

    It is tried in a table of its own, which is removed again.

    Raises:
        ReadOnlyError: the place cannot be written.
    """
    uri = f"{place.path}/{PROBE_PREFIX}{uuid.uuid4().hex}"
    options = dict(storage_options or {})
    once = CommitProperties(max_commit_retries=0)
    rows = pa.table({"row": [1]})
    try:
        write_deltalake(uri, rows, storage_options=options)
        writers = [DeltaTable(uri, storage_options=options) for _ in range(2)]
        write_deltalake(writers[0], rows, mode="overwrite", commit_properties=once)
        try:
            write_deltalake(writers[1], rows, mode="overwrite", commit_properties=once)
        except CommitFailedError:
            return True
    except (DeltaError, OSError) as error:
        raise ReadOnlyError(f"cannot write in {place}: {first_line(error)}") from error
    finally:
        if place.local_folder:
            shutil.rmtree(uri, ignore_errors=True)
        else:
            storage = pa_fs.PyFileSystem(DeltaStorageHandler(uri, options))
            for file in storage.get_file_info(pa_fs.FileSelector("", recursive=True, allow_not_found=True)):
                if file.type is pa_fs.FileType.File:
                    storage.delete_file(file.path)
    return False
