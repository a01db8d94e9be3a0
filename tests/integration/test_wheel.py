"""The package as users get it: built, and installed with what it needs, away from the checkout."""

import json
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from catalog import CheckpointCatalog, CheckpointManifest

CHECKOUT = Path(__file__).parents[2]

READ_SQL = """
import catalog, json, sys
from catalog.tables.schema import sql_file

print(json.dumps([catalog.__file__, [sql_file(*one.split("/")) for one in sys.argv[1:]]]))
"""


def run(*command, cwd):
    done = subprocess.run([str(one) for one in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.prove
def test_the_wheel_alone_is_enough_for_the_command_line_and_has_the_sql(tmp_path):
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, CHECKOUT, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    sources = {
        one.relative_to(CHECKOUT / "sql").with_suffix("").as_posix(): one for one in CHECKOUT.glob("sql/*/*.sql")
    }
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("catalog/_sql/")}
    assert inside == {f"catalog/_sql/{name}.sql" for name in sources}

    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    run(environment / "bin" / "python", "-m", "pip", "install", "--quiet", f"{wheel}[native]", cwd=tmp_path)
    file, texts = json.loads(run(environment / "bin" / "python", "-c", READ_SQL, *sources, cwd=tmp_path))
    assert Path(file).is_relative_to(environment), "the checkout was used"
    assert texts == [one.read_text() for one in sources.values()]

    place = tmp_path / "catalog"
    with CheckpointCatalog.native(place, create=True) as catalog:
        catalog.store("orders").save_with_state(CheckpointManifest.new(7, epoch=1), b"state")
    shown = run(environment / "bin" / "ckpt", "list", place, "--output", "json", cwd=tmp_path)
    assert '"checkpoint_id": 7' in shown
    run(environment / "bin" / "ckpt", "recover", place, "orders", "--into", tmp_path / "state", cwd=tmp_path)
    assert (tmp_path / "state" / "artifacts" / "state.bin").read_bytes() == b"state"
