"""The notebooks run, and each is paired: the .py is the source, the .ipynb the same cells with their outputs.

After a change of a .py, write its .ipynb anew: python tests/notebooks/test_notebooks.py [NAME …]
"""

import os
import sys
import tempfile
from pathlib import Path

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SOURCES = sorted(NOTEBOOKS.glob("*.py"))
CELL_TIMEOUT_S = 300

each_notebook = pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)


def run(source, folder):
    """Return a notebook with its outputs, run in a folder by the ipykernel of this environment; a cell error raises."""
    notebook = jupytext.read(source)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:02d}"  # by default random, and another one every time
    # A kernel named python3 that the user or the machine has is another Python.
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    return notebook


def outputs(notebook):
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def test_there_is_a_notebook_to_try():
    assert {"quick_start", "sql_tour"} < {path.stem for path in SOURCES}
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == {path.stem for path in SOURCES}


@pytest.mark.parametrize(
    "source",
    # Those without Spark take seconds.
    [
        pytest.param(one, marks=[pytest.mark.prove] if "build_session(" in one.read_text("utf-8") else [])
        for one in SOURCES
    ],
    ids=lambda source: source.stem,
)
def test_a_notebook_runs_and_says_nothing_on_stderr(source, tmp_path):
    told = [output.text for output in outputs(run(source, tmp_path)) if output.get("name") == "stderr"]
    assert told == []


@each_notebook
def test_a_notebook_is_paired_with_its_outputs(source):
    paired = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    nbformat.validate(paired)
    cells = [(cell.cell_type, cell.source) for cell in jupytext.read(source).cells]
    assert [(cell.cell_type, cell.source) for cell in paired.cells] == cells
    ran = [cell.execution_count for cell in paired.cells if cell.cell_type == "code"]
    assert ran == list(range(1, len(ran) + 1)), "not run from the top to the end in a new kernel"
    shown = outputs(paired)
    assert shown
    assert {output.output_type for output in shown} <= {"stream", "display_data", "execute_result"}
    assert not [output for output in shown if output.get("name") == "stderr"]


@each_notebook
def test_a_notebook_shows_no_path_of_the_machine_it_ran_on(source):
    text = source.read_text("utf-8") + source.with_suffix(".ipynb").read_text("utf-8")
    places = {tempfile.gettempdir(), str(Path.home()), str(NOTEBOOKS.parent), sys.prefix} - {"/"}
    assert [place for place in places if place in text] == []


if __name__ == "__main__":
    names = sys.argv[1:] or [source.stem for source in SOURCES]
    for one in (NOTEBOOKS / f"{name}.py" for name in names):
        with tempfile.TemporaryDirectory() as scratch:
            nbformat.write(run(one, scratch), one.with_suffix(".ipynb"))
