"""A notebook by itself, as on a hosted service: an empty folder, the wheel, and one line before the first cell."""

import shutil
from pathlib import Path

import notebook_rules as rules
import pytest
import render
from nbformat.v4 import new_code_cell

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
CELLS = 10
QUICK = "02-mirror-it"
WHOLE = ("00-measure-first", "05-a-batch-that-does-not-fit", "07-pay-with-time")
IS_THE_WHEELS = "import bigtrain_nb\nassert bigtrain_nb.__file__.startswith({folder!r}), bigtrain_nb.__file__"

whole_ones = [path for path in NOTEBOOKS if path.stem in WHOLE]
beginnings = [path for path in NOTEBOOKS if path.stem not in (QUICK, *WHOLE)]
by_name = {"ids": lambda path: path.stem}


def run_alone(path, folder, environment, cells=None):
    """Run a notebook, or its first code cells, in an empty folder; raise its errors."""
    shutil.copy(path, folder)
    notebook = rules.read(folder / path.name)
    if cells:
        last = rules.code_cells(notebook)[cells - 1]
        notebook.cells = notebook.cells[: notebook.cells.index(last) + 1]
    made_sure = new_code_cell(IS_THE_WHEELS.format(folder=str(environment)))
    notebook.cells = [new_code_cell("%run -m bigtrain_nb.unpack"), made_sure, *notebook.cells]
    render.execute(notebook, folder)


def test_one_begins_alone(tmp_path, kernel_of_the_wheel):
    (path,) = [path for path in NOTEBOOKS if path.stem == QUICK]
    run_alone(path, tmp_path, kernel_of_the_wheel, CELLS)


@pytest.mark.more("all notebooks alone: each makes its kernel and begins a second time")
@pytest.mark.parametrize("path", beginnings, **by_name)
def test_it_begins_alone(path, tmp_path, kernel_of_the_wheel):
    run_alone(path, tmp_path, kernel_of_the_wheel, CELLS)


@pytest.mark.more("three notebooks a second time")
@pytest.mark.parametrize("path", whole_ones, **by_name)
def test_it_runs_alone_to_its_end(path, tmp_path, kernel_of_the_wheel):
    run_alone(path, tmp_path, kernel_of_the_wheel)
