"""The package as users get it: built, and installed with what it needs, away from the checkout."""

import json
import os
import subprocess
import sys
import tomllib
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from catalog import CheckpointCatalog, CheckpointManifest

pytestmark = pytest.mark.prove

CHECKOUT = Path(__file__).parents[2]
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
JOBS = {name: entry for name, entry in PROJECT["scripts"].items() if name != "ckpt"}

READ_SQL = """
import catalog, json, sys
from catalog.tables.schema import sql_file

print(json.dumps([catalog.__file__, [sql_file(*one.split("/")) for one in sys.argv[1:]]]))
"""
NATIVE = """
import sys
from catalog import CheckpointCatalog, SessionError

try:
    CheckpointCatalog.native(sys.argv[1])
except SessionError as error:
    print(error)
"""
SPARK = """
import sys
from catalog import CheckpointCatalog, CheckpointManifest, SessionError
from catalog.session import build_session

catalog = CheckpointCatalog.for_path(build_session(), sys.argv[1])
store = catalog.store("orders")
store.save_with_state(CheckpointManifest.new(store.next_id(), epoch=1), b"more")
print(store.list_ids(), store.recover_latest_validated().chosen_id, store.load_state_data(8))
for needs_workers in (catalog.validate, catalog.run_drills, catalog.compact):
    try:
        needs_workers()
    except SessionError as error:
        print(error)
"""
DELTALAKE_IS_MISSING = "the native engine needs deltalake: pip install 'checkpoint-catalog[native]'"


def run(*command, cwd, code=0):
    """Run a command as a user would, without this process's Python path, and return stdout and stderr."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([str(one) for one in command], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


def build(source, folder):
    """Build a wheel of a folder or a source distribution."""
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, source, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build(CHECKOUT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    """The programs of an environment that has the wheel and what it needs, and no extra."""
    environment = tmp_path_factory.mktemp("bare") / "environment"
    venv.create(environment, with_pip=True)
    run(environment / "bin" / "pip", "install", "--quiet", wheel, cwd=environment)
    return environment / "bin"


@pytest.fixture(scope="module")
def programs(wheel, tmp_path_factory):
    """The programs of an environment that has the extra `native` too."""
    environment = tmp_path_factory.mktemp("native") / "environment"
    venv.create(environment, with_pip=True)
    run(environment / "bin" / "pip", "install", "--quiet", f"{wheel}[native]", cwd=environment)
    return environment / "bin"


@pytest.fixture
def place(tmp_path):
    folder = tmp_path / "catalog"
    with CheckpointCatalog.native(folder, create=True) as catalog:
        catalog.store("orders").save_with_state(CheckpointManifest.new(7, epoch=1), b"state")
    return folder


def test_the_wheel_has_the_sql_the_types_and_the_license_and_nothing_else(wheel):
    inside = set(zipfile.ZipFile(wheel).namelist())
    of_sql = {name for name in inside if name.startswith("catalog/_sql/")}
    assert of_sql == {f"catalog/_sql/{file.relative_to(CHECKOUT / 'sql')}" for file in CHECKOUT.glob("sql/*/*.sql")}
    assert "catalog/py.typed" in inside
    tops = {name.partition("/")[0] for name in inside}
    (info,) = tops - {"catalog", "jobs"}
    assert f"{info}/licenses/LICENSE" in inside


def test_the_metadata_say_what_it_is_and_what_it_needs(wheel):
    (name,) = (one for one in zipfile.ZipFile(wheel).namelist() if one.endswith(".dist-info/METADATA"))
    told = message_from_bytes(zipfile.ZipFile(wheel).read(name))
    assert (told["Name"], told["Version"]) == ("checkpoint-catalog", PROJECT["version"])
    assert (told["License-Expression"], told["License-File"]) == ("Apache-2.0", "LICENSE")
    assert told["Description-Content-Type"] == "text/markdown"
    assert told.get_payload().startswith("# checkpoint-catalog")
    assert set(told.get_all("Classifier")) == set(PROJECT["classifiers"])
    assert set(told.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])


def test_a_source_distribution_builds_the_same_wheel(wheel, bare, tmp_path):
    run(bare / "pip", "install", "--quiet", "hatchling", cwd=tmp_path)
    run(bare / "python", "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, cwd=CHECKOUT)
    (source,) = tmp_path.glob("*.tar.gz")
    again = build(source, tmp_path)
    assert sorted(zipfile.ZipFile(again).namelist()) == sorted(zipfile.ZipFile(wheel).namelist())


def test_the_installed_package_reads_the_sql_of_the_wheel(programs, tmp_path):
    sources = {file.relative_to(CHECKOUT / "sql").with_suffix("").as_posix(): file
               for file in CHECKOUT.glob("sql/*/*.sql")}  # fmt: skip
    shown, _ = run(programs / "python", "-c", READ_SQL, *sources, cwd=tmp_path)
    file, texts = json.loads(shown)
    assert Path(file).is_relative_to(programs.parent), "the checkout was used"
    assert texts == [one.read_text() for one in sources.values()]


def test_the_command_line_works(programs, place, tmp_path):
    shown, _ = run(programs / "ckpt", "list", place, "--output", "json", cwd=tmp_path)
    assert '"checkpoint_id": 7' in shown
    run(programs / "ckpt", "recover", place, "orders", "--into", tmp_path / "state", cwd=tmp_path)
    assert (tmp_path / "state" / "artifacts" / "state.bin").read_bytes() == b"state"


@pytest.mark.parametrize("name", sorted(JOBS))
def test_every_job_runs_as_a_command_and_as_a_module(name, programs, place, tmp_path):
    module = JOBS[name].partition(":")[0]
    for command in ([programs / name], [programs / "python", "-m", module]):
        shown, _ = run(*command, place, "--engine", "native", "--output", "json", cwd=tmp_path)
        assert json.loads(shown)


@pytest.mark.parametrize("command", [["ckpt", "list"], ["ckpt-verify", "--engine", "native"]], ids=lambda one: one[0])
def test_without_the_extra_the_commands_say_what_to_install(command, bare, place, tmp_path):
    program, *options = command
    shown, said = run(bare / program, *options, place, cwd=tmp_path, code=1)
    assert (shown, said) == ("", f"{program}: {DELTALAKE_IS_MISSING}\n")


def test_without_the_extra_the_library_says_what_to_install(bare, place, tmp_path):
    shown, _ = run(bare / "python", "-c", NATIVE, place, cwd=tmp_path)
    assert shown == DELTALAKE_IS_MISSING + "\n"


def test_without_the_extra_spark_saves_loads_and_recovers_and_says_what_its_workers_need(bare, place, tmp_path):
    shown, _ = run(bare / "python", "-c", SPARK, place, cwd=tmp_path)
    done, *told = shown.splitlines()
    assert done == "[7, 8] 8 b'more'"
    install = "pip install 'checkpoint-catalog[native]'"
    at_work = f"work on {place} needs deltalake where Spark's Python workers run: {install} there"
    assert told == [at_work, at_work, f"compaction needs deltalake: {install}"]
