"""The schedules in docs/JOBS.md: their syntax, and that every job and option named there exists."""

import ast
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
import typer.main
import yaml

from catalog import read_policies

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "JOBS.md").read_text("utf-8")
MODULES = [import_module(f"jobs.{file.stem}") for file in ROOT.glob("jobs/*.py") if file.stem != "__init__"]
APPS = {module.NAME: module.main.app for module in MODULES}
FILES = {Path(module.__file__).name: module.NAME for module in MODULES}
CRON_FIELD = re.compile(r"(\*|\d+(-\d+)?)(/\d+)?(,\d+(-\d+)?)*")
CRON_MOST = (59, 23, 31, 12, 7)


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def check_cron(fields):
    assert len(fields) == 5
    for field, most in zip(fields, CRON_MOST, strict=True):
        assert CRON_FIELD.fullmatch(field), field
        assert all(int(number) <= most for number in re.findall(r"\d+", field))


def parse(name, arguments):
    """Parse a job's arguments as it would, without running it."""
    command = typer.main.get_command(APPS[name])
    with command.make_context(name, [str(one) for one in arguments]) as context:
        return context.params


def job_of(words):
    """Return the job's name and its arguments in a command line."""
    if words[0] == "spark-submit":
        at = next(number for number, word in enumerate(words) if word.endswith(".py"))
        return FILES[Path(words[at]).name], words[at + 1 :]
    if words[:2] == ["python", "-m"]:
        return FILES[f"{words[2].removeprefix('jobs.')}.py"], words[3:]
    return Path(words[0]).name, words[1:]


def test_the_ways_to_start_a_job_are_the_same_job():
    (block,) = blocks("sh")
    found = [job_of(shlex.split(line)) for line in block.splitlines()]
    assert len(found) == 3
    assert len({(name, *arguments) for name, arguments in found}) == 1
    for name, arguments in found:
        assert parse(name, arguments)["policies"] == "retention.toml"


def test_cron_lines_have_five_fields_and_jobs_with_options_that_exist():
    (block,) = blocks("cron")
    lines = [line.split(maxsplit=5) for line in block.splitlines() if not line.startswith("#")]
    assert len(lines) == 3
    for *fields, command in lines:
        check_cron(fields)
        assert parse(*job_of(shlex.split(command)))["place"] == "/data/ckpt"


def test_the_systemd_units_start_a_job():
    service, timer = blocks("ini")
    (command,) = re.findall(r"^ExecStart=(.*)$", service, re.MULTILINE)
    assert parse(*job_of(shlex.split(command)))
    assert re.search(r"^OnCalendar=\*-\*-\* \d\d:\d\d:\d\d$", timer, re.MULTILINE)


def test_the_airflow_dag_compiles_and_starts_jobs():
    (block,) = blocks("python")
    tree = ast.parse(block)
    compile(tree, "JOBS.md", "exec")
    names = {
        one.targets[0].id: one.value.value
        for one in tree.body
        if isinstance(one, ast.Assign) and isinstance(one.value, ast.Constant)
    }
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    started = []
    for call in calls:
        given = {one.arg: eval(compile(ast.Expression(one.value), "", "eval"), names) for one in call.keywords
                 if one.arg in ("bash_command", "application", "application_args", "schedule", "packages")}  # fmt: skip
        if call.func.id == "DAG":
            check_cron(given["schedule"].split())
        elif call.func.id == "BashOperator":
            started.append(job_of(shlex.split(given["bash_command"])))
        elif call.func.id == "SparkSubmitOperator":
            started.append((FILES[Path(given["application"]).name], given["application_args"]))
            assert given["packages"] in TEXT
    assert [name for name, _ in started] == ["ckpt-maintain", "ckpt-verify", "ckpt-drill"]
    for name, arguments in started:
        assert parse(name, arguments)["place"] == "/data/ckpt"


def test_the_databricks_job_parses_and_starts_jobs_by_their_entry_points():
    (block,) = blocks("yaml")
    (job,) = yaml.safe_load(block)["resources"]["jobs"].values()
    assert len(job["schedule"]["quartz_cron_expression"].split()) == 6
    clusters = {one["job_cluster_key"] for one in job["job_clusters"]}
    assert [one["task_key"] for one in job["tasks"]] == ["maintain", "drill"]
    for task in job["tasks"]:
        wheel = task["python_wheel_task"]
        assert wheel["package_name"] == "checkpoint-catalog"
        assert parse(wheel["entry_point"], wheel["parameters"])["place"] == "main.checkpoints"
        assert task["job_cluster_key"] in clusters
        assert {key for one in task["libraries"] for key in one} == {"whl", "pypi"}


def test_the_delta_package_that_is_named_is_the_one_that_a_session_takes():
    from catalog.session import delta_package

    assert set(re.findall(r"io\.delta:[\w.:-]+", TEXT)) == {delta_package()}


def test_the_retention_that_is_shown_can_be_read(tmp_path):
    (block,) = blocks("toml")
    file = tmp_path / "retention.toml"
    file.write_text(block)
    assert [one.streams for one in read_policies(file)] == ["audit/*", "*"]


@pytest.mark.parametrize("name", sorted(APPS))
def test_every_option_of_every_job_is_described_and_no_other(name):
    command = typer.main.get_command(APPS[name])
    there = {option for one in command.params for option in one.opts if option.startswith("--")} - {"--help"}
    rows = [row for row in TEXT.splitlines() if row.startswith("| `--")]
    told = {
        option
        for row in rows
        for option in re.findall(r"`(--[a-z-]+)", row.split(" | ")[0])
        if name in row.split(" | ")[1] or row.split(" | ")[1] == "all"
    }
    assert told == there


def test_every_job_is_in_the_table():
    for module in MODULES:
        assert f"| `jobs/{Path(module.__file__).name}` | `{module.NAME}` |" in TEXT
