"""What is told of a local catalog that this process may not look into."""

import shutil
import stat
import tempfile
from pathlib import Path

import pytest

from catalog.tables.names import path_place
from catalog.tables.opening import unreadable
from catalog.tables.port import Table
from tests.unit.test_locks import in_child

# From Python 3.12 on; the forked processes here touch nothing that other threads could hold.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.fixture
def place():
    """A catalog's folders, which every user can reach; pytest's own cannot be entered by others."""
    made = Path(tempfile.mkdtemp(prefix="opening-"))
    for table in Table:
        (made / table / "_delta_log").mkdir(parents=True)
    made.chmod(0o755)
    yield made
    for one in (made, *made.rglob("*")):
        one.chmod(stat.S_IRWXU)
    shutil.rmtree(made)


@pytest.mark.parametrize("closed", [".", "checkpoints", "artifacts", "events/_delta_log"])
def test_a_folder_that_must_not_be_looked_into_is_no_damage(place, closed):
    (place / closed).chmod(0)

    def work():
        error = unreadable(path_place(str(place)))
        return 0 if error and f"cannot look into {place / closed}: permission denied" in str(error) else 1

    assert in_child(work) == 0


def test_with_permission_nothing_is_told(place):
    assert in_child(lambda: int(unreadable(path_place(str(place))) is not None)) == 0
