"""The guard around nbval, on tiny notebooks in a pytest of their own."""
import time

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output
from notebook_rules import cell_seconds


@pytest.fixture
def run(pytester):
    """Run code cells as a notebook under nbval and the guard; a cell is its source or a finished cell."""
    def run_cells(*cells, arguments=()):
        cells = [new_code_cell(cell) if isinstance(cell, str) else cell for cell in cells]
        nbformat.write(new_notebook(cells=cells), pytester.path / "small.ipynb")
        return pytester.runpytest_inprocess("-p", "notebook_guard", "--nbval-lax", "--nbval-current-env", "-rs",
                                            "--nbval-cell-timeout=60", *arguments)
    return run_cells


def test_a_good_notebook_passes_and_the_kernel_is_this_python(run):
    import sys
    result = run("x = 6 * 7", f"import sys; assert x == 42 and sys.executable == {sys.executable!r}")
    result.assert_outcomes(passed=2)


def test_a_cell_is_stopped_at_the_limit_of_its_tag(run):
    began = time.monotonic()
    slow = new_code_cell("import time; time.sleep(50)", metadata={"tags": ["timeout=2"]})
    result = run(slow, "print('never')")
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(["*Timeout of 2 seconds exceeded*"])
    assert time.monotonic() - began < 45


def test_a_tag_also_raises_the_limit_and_for_its_cell_only(run):
    patient = new_code_cell("import time; time.sleep(3)", metadata={"tags": ["timeout=40"]})
    result = run(patient, "time.sleep(30)", arguments=["--nbval-cell-timeout=1"])
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*Timeout of 1 seconds exceeded*"])


def test_a_dead_kernel_is_noticed_long_before_the_limit(run):
    began = time.monotonic()
    result = run("import os; os._exit(3)", "print('never')")
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(["*The kernel died while it executed this cell*", "*os._exit(3)*"])
    assert time.monotonic() - began < 40


def test_nothing_runs_after_the_first_failing_cell(run, pytester):
    result = run("1 / 0", "open('trace', 'w').close()", "print('never')")
    result.assert_outcomes(failed=1, skipped=2)
    result.stdout.fnmatch_lines(["*ZeroDivisionError*", "SKIPPED*Cell 0 of this notebook failed before*"])
    assert not (pytester.path / "trace").exists()


def test_nothing_runs_after_a_cell_that_pytest_itself_has_ended(run, pytester):
    pytester.makeconftest("""
        import pytest
        def pytest_runtest_call(item):  # as pytest-timeout does
            if item.cell_num == 0:
                pytest.fail("Timeout")""")
    run("1", "open('trace', 'w').close()").assert_outcomes(failed=1, skipped=1)


def test_stored_output_is_compared_where_the_cell_asks_for_it(run):
    def cell(stored):
        output = new_output("execute_result", data={"text/plain": stored}, execution_count=1)
        return new_code_cell("# NBVAL_CHECK_OUTPUT\n6 * 7", execution_count=1, outputs=[output])
    run(cell("42"), cell("43")).assert_outcomes(passed=1, failed=1)


def test_other_tags_leave_the_default():
    assert cell_seconds(new_code_cell("1", metadata={"tags": ["exercise", "timeouts", "timeout=soon"]}), 60) == 60
