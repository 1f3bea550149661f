"""A test that kills its worker process ends the run, in words; it does not hang."""

from pathlib import Path

CONFTEST = Path(__file__).parents[2] / "conftest.py"
TESTS = """
import os
import pytest

@pytest.mark.parametrize("number", range(4))
def test_it(number):
    if __name__ == "test_2" and number == 1:
        os.abort()
"""


def test_a_crashed_worker_ends_the_run(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(
        f"import runpy; pytest_testnodedown = runpy.run_path({str(CONFTEST)!r})['pytest_testnodedown']"
    )
    pytester.makepyfile(**{f"test_{number}": TESTS for number in range(1, 5)})
    of_xdist = ("-p", "xdist.plugin", "-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")
    run = pytester.runpytest_subprocess(*of_xdist, timeout=240)
    assert run.ret == 3
    run.stdout.fnmatch_lines("*gw? crashed*")
