"""What the README and the pages of docs/ show is what happens.

The blocks of a page are run in order, in one folder and one namespace of its own. A Python block is executed, or
written to a file if it begins with a comment that names one (`# test_mine.py`); a shell block is run by bash, a SQL
block by the page's Spark session. A text block says what the block before it printed. docs/JOBS.md, whose schedules
belong elsewhere, has test_schedules.py instead; CLI.md, MOVING.md and REPORT.md are run by the tests of what they show.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from catalog.tables.port import Table
from catalog.tables.schema import FORMAT_PROPERTY, FORMAT_VERSION, definition

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
RUN_ELSEWHERE = {"CLI.md", "JOBS.md", "MOVING.md", "REPORT.md"}
RUN_HERE = [
    # These two start Spark anew, or wreck catalogs one after the other: half a minute each.
    pytest.param(page, marks=pytest.mark.prove if page.name in ("OPERATIONS.md", "TESTING.md") else ())
    for page in PAGES
    if page.name not in RUN_ELSEWHERE
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w/]+\.\w+)\n")
SHOWN_PLACES = ("/tmp/first-catalog", "/data", "/backup")


def settled(text):
    """Return output without what differs from run to run: durations, moments, and white space at line ends."""
    text = re.sub(r"(\d+\.\d+|N) s\b", "N s", text)
    text = re.sub(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d+)?)?", "TIME", text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


class Page:
    """Runs the blocks of a page."""

    def __init__(self, file, folder):
        self.file = file
        self.folder = folder
        self.names = {"__name__": file.stem}

    def blocks(self):
        """Return kind and text of every block, with the places that are shown in this test's folder."""
        text = self.file.read_text("utf-8")
        for place in SHOWN_PLACES:
            text = re.sub(rf"(?<![\w/]){place}\b", str(self.folder / place.strip("/")), text)
        return BLOCK.findall(text)

    def python(self, code):
        if named := FILE.match(code):
            (self.folder / named[1]).write_text(code)
            return ""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.chdir(self.folder):
            exec(compile(code, self.file.name, "exec"), self.names)
        return printed.getvalue()

    def sh(self, code):
        env = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "120",
        }
        done = subprocess.run(["bash", "-e", "-c", code], cwd=self.folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def sql(self, query):
        frame = self.names["spark"].sql(query)
        return "\n".join([" | ".join(frame.columns), *(" | ".join(map(str, row)) for row in frame.collect())])


@pytest.mark.parametrize("file", RUN_HERE, ids=lambda file: file.name)
def test_every_block_of_a_page_does_what_it_shows(file, request, tmp_path, monkeypatch):
    blocks = "".join(text for _, text in BLOCK.findall(file.read_text("utf-8")))
    if "build_session" in blocks:
        request.getfixturevalue("spark")  # which build_session then returns
    if "s3://bucket" in blocks:
        for name, value in request.getfixturevalue("s3_options").items():
            monkeypatch.setenv(name, value)
    page = Page(file, tmp_path)
    printed, before = "", ""
    for kind, text in page.blocks():
        if kind in ("python", "sh", "sql"):
            assert not printed.strip() or before != "python", f"nothing is said about what was printed: {printed}"
            printed, before = getattr(page, kind)(text), kind
        elif kind == "text":
            assert settled(printed) == settled(text)
            printed = ""


def anchors(file):
    """Return the anchors that the headings of a page make."""
    headings = re.findall(r"^#+ (.+)$", file.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.name)
def test_whatever_a_page_points_to_is_there(file):
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", file.read_text("utf-8")) if "://" not in target]
    for path, _, anchor in (target.partition("#") for target in targets):
        target = file.parent / path if path else file
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


@pytest.mark.parametrize("file", sorted(ROOT.glob("docs/*.md")), ids=lambda file: file.name)
def test_every_block_of_a_page_has_a_kind_that_is_run(file):
    kinds = {kind for kind, _ in BLOCK.findall(file.read_text("utf-8"))}
    assert file.name in RUN_ELSEWHERE or kinds <= {"python", "sh", "sql", "text"}


FORMAT = (ROOT / "docs" / "FORMAT.md").read_text("utf-8")


def section(name):
    """Return the part of docs/FORMAT.md about a table."""
    (found,) = re.findall(rf"^## `{name}`.*?(?=^## )", FORMAT, re.MULTILINE | re.DOTALL)
    return found


@pytest.mark.parametrize("table", list(Table))
def test_the_format_page_has_every_column_with_its_type_and_no_other(table):
    told = re.findall(r"^\| `(\w+)` \| ([A-Z][A-Z0-9(),_]+)( NOT NULL)? \|", section(table), re.MULTILINE)
    assert told == [(one.name, one.sql_type, " NOT NULL" if one.required else "") for one in definition(table).columns]


@pytest.mark.parametrize("table", list(Table))
def test_the_format_page_has_every_property_with_its_value_and_no_other(table):
    rows = re.findall(r"^\| `([\w.]+)` \| `(.+?)` \| `(.+?)` \| `(.+?)` \|", FORMAT, re.MULTILINE)
    of_table = {name: dict(zip(("checkpoints", "artifacts", "events"), values, strict=True))[table]
                for name, *values in rows}  # fmt: skip
    assert of_table == dict(definition(table).properties)
    assert of_table[FORMAT_PROPERTY] == str(FORMAT_VERSION)
