"""docs/CLI.md: every command shows what it says, every option and variable is named, and no other."""

import contextlib
import io
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer.main

from catalog.cli.frame import CATALOG_VARIABLE, ExitCode
from catalog.cli.main import COMMANDS, app, main
from catalog.session import IVY_SETTINGS_VARIABLE, JARS_VARIABLE

TEXT = (Path(__file__).parents[2] / "docs" / "CLI.md").read_text("utf-8")
BLOCKS = re.findall(r"^```console\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
FOR_ALL = {"--output", "--debug", "--help"}


def steps(block):
    """Return each command of a block, and what it shows."""
    found = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        else:
            found[-1][1].append(line)
    return [(command, "\n".join(shown)) for command, shown in found]


def run(command):
    """Run a line of the page as a shell would, `ckpt` in this process, and return all that it shows."""
    words = shlex.split(command)
    if words[0] == "export":
        name, _, value = words[1].partition("=")
        os.environ[name] = value
        return ""
    if words[0] != "ckpt":
        return subprocess.run(command, shell=True, check=True, capture_output=True, text=True).stdout
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown), pytest.raises(SystemExit):
        main(words[1:])
    return shown.getvalue()


def settled(text, place):
    """Return output without what differs from run to run and from machine to machine."""
    for found, instead in (
        (re.escape(str(place)), "/data/ckpt"),
        (re.escape(str(place.parent)), "/home/me"),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?", "TIME"),
        (r"\b\d+\.\d+ s\b", "N s"),
        (r"\b\d+ (s|min|h|d)\b", "AGE"),
        (r"\b[\w-]+@[\w.-]+", "WHO"),
        (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "UUID"),
        (r"^(ok|warn|fail) +(\w+) .*$", r"\2"),
        (r"\d+\.\d MiB", "N MiB"),
        (r" +", " "),
        (r" $", ""),
    ):
        text = re.sub(found, instead, text, flags=re.MULTILINE)
    return text.strip()


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(CATALOG_VARIABLE, "")
    return tmp_path / "ckpt"


def check(blocks, place):
    for block in blocks:
        for command, shown in steps(block):
            found = run(command.replace("/data/ckpt", str(place)))
            assert settled(found, place) == settled(shown, place), command


def test_every_command_of_the_page_shows_what_it_says(place):
    assert len(BLOCKS) == 7
    check(BLOCKS[:-1], place)


def test_the_query_of_the_page_shows_what_it_says(spark, place):  # noqa: ARG001 - the session that it finds
    check([BLOCKS[0]], place)
    os.environ[CATALOG_VARIABLE] = str(place)
    check([BLOCKS[-1]], place)


def test_every_command_has_a_row_with_its_arguments_and_options_and_no_other():
    rows = dict(re.findall(r"^\| `ckpt (\w+)(?: .*?)?` \| (.*?) \|", TEXT, re.MULTILINE))
    assert rows.keys() == COMMANDS.keys()
    group = typer.main.get_command(app)
    for name, options in rows.items():
        params = group.commands[name].params
        there = {option for one in params for option in one.opts if option.startswith("--")} - FOR_ALL
        assert set(re.findall(r"--[a-z-]+", options)) == there, name
        (arguments,) = re.findall(rf"^\| `ckpt {name} ?(.*?)` \|", TEXT, re.MULTILINE)
        names = [one.metavar for one in params if not one.opts[0].startswith("-")]
        assert [word.strip("[]") for word in arguments.replace("\\|", "|").split()] == names, name


def test_every_exit_code_and_environment_variable_is_in_its_table():
    codes = [int(code) for code in re.findall(r"^\| (\d+) \|", TEXT, re.MULTILINE)]
    assert codes == sorted(ExitCode)
    for variable in (CATALOG_VARIABLE, JARS_VARIABLE, IVY_SETTINGS_VARIABLE):
        assert re.search(rf"^\| `{variable}` \|", TEXT, re.MULTILINE)


def test_every_file_the_page_points_to_is_there():
    targets = re.findall(r"\]\(([^)#]+)", TEXT)
    assert targets
    assert [one for one in targets if not (Path(__file__).parents[2] / "docs" / one).exists()] == []
