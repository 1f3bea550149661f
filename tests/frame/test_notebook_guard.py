"""The guard around nbval, on tiny notebooks in a separate pytest."""

import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook


@pytest.fixture
def run(pytester):
    """Run code cells as a notebook under nbval and the guard, the first one with these tags."""

    def run_cells(*sources, tags=(), seconds=60):
        cells = [new_code_cell(source) for source in sources]
        cells[0].metadata["tags"] = list(tags)
        nbformat.write(new_notebook(cells=cells), pytester.path / "small.ipynb")
        return pytester.runpytest_inprocess(
            "-p", "notebook_guard", "--nbval-lax", "--nbval-current-env", "-rs", f"--nbval-cell-timeout={seconds}"
        )

    return run_cells


def test_a_kernel_is_this_python_and_measures_half_as_long_unless_more_was_asked_for(run, monkeypatch):
    monkeypatch.delenv("BIGTRAIN_NB_TIME_SCALE", raising=False)
    for said, expected in ((None, "0.5"), ("3", "3")):
        if said:
            monkeypatch.setenv("BIGTRAIN_NB_TIME_SCALE", said)
        found = "import os, sys; found = os.environ['BIGTRAIN_NB_TIME_SCALE'], sys.executable"
        run(found, f"assert found == {(expected, sys.executable)!r}").assert_outcomes(passed=2)


def test_a_tag_raises_the_limit_for_its_cell_and_what_reaches_its_limit_is_stopped_with_the_rest(run, pytester):
    result = run("import time; time.sleep(1.5)", "time.sleep(50)", "open('trace', 'w')", tags=["timeout=40"], seconds=1)
    result.assert_outcomes(passed=1, failed=1, skipped=1)
    result.stdout.fnmatch_lines(["*Timeout of 1 seconds exceeded*", "SKIPPED*Cell 1 of this notebook failed before*"])
    assert not (pytester.path / "trace").exists()


def test_a_dead_kernel_is_noticed_long_before_the_limit(run):
    result = run("import os; os._exit(3)", "print('never')", seconds=300)
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(["*The kernel died while it executed this cell*", "*os._exit(3)*"])
    assert result.duration < 60
