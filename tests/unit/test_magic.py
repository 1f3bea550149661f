"""%%workers in a cell: what the code sees of the notebook, what it is told otherwise, and how lines count."""

import subprocess
import sys

import numpy as np
import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config


@pytest.fixture(scope="module")
def module_shell():
    main = sys.modules["__main__"]
    shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    sys.modules["__main__"] = main
    shell.run_cell("%load_ext bigtrain_nb").raise_error()
    yield shell
    InteractiveShell.clear_instance()


@pytest.fixture
def shell(module_shell):
    module_shell.user_ns.update(steps=3, folder="some/where", nested={"a": [1, None, True, 0.5]}, text='it\'s "so"\n')
    return module_shell


def workers(shell, line, code):
    """Run a cell that starts with %%workers; raise what it raises."""
    shell.run_cell(f"%%workers {line}\n{code}").raise_error()


def test_the_code_runs_in_two_workers_and_nothing_comes_back(shell, capsys):
    workers(shell, "", "steps = 7\nprint('said')")
    assert sorted(capsys.readouterr().out.splitlines()) == ["worker 0 | said", "worker 1 | said"]
    assert shell.user_ns["steps"] == 3


def test_what_is_taken_comes_back_from_each_worker(shell):
    code = "import json, os\nindex = json.loads(os.environ['TF_CONFIG'])['task']['index']\nfound = {'a': [index, None]}"
    workers(shell, "2 --take index found", code)
    assert shell.user_ns["index"] == [0, 1] and shell.user_ns["found"] == [{"a": [0, None]}, {"a": [1, None]}]
    with pytest.raises(RuntimeError, match="ended because worker 0 failed"):
        workers(shell, "1 --take gone", "pass")


def test_named_variables_are_given_by_value(shell, capsys):
    code = "from __future__ import annotations  # first\nprint([steps, folder, nested, text])\nnested['a'] = 0"
    workers(shell, "1 --give steps folder nested text", code)
    values = [3, "some/where", {"a": [1, None, True, 0.5]}, 'it\'s "so"\n']
    assert f"worker 0 | {values}" in capsys.readouterr().out
    assert shell.user_ns["nested"] == values[2]


@pytest.mark.parametrize("give", ["", "--give folder"])
def test_a_traceback_counts_lines_as_the_cell_does(shell, capsys, give):
    code = "from __future__ import annotations\nwhere = 1\nraise KeyError('line four of the cell')"
    workers(shell, f"1 {give} --name job", code)
    log = shell.user_ns["job"].logs(0)
    assert "line 4, in <module>" in log and "    raise KeyError('line four of the cell')" in log
    assert "worker 0 | KeyError: 'line four of the cell'" in capsys.readouterr().out


def test_what_is_wrong_with_the_code_is_told_by_the_workers(shell, capsys):
    with pytest.raises(RuntimeError, match="ended because worker 0 failed.*--name job.*those after --give"):
        workers(shell, "1", "print(steps)")
    assert "worker 0 | NameError: name 'steps' is not defined" in capsys.readouterr().out
    workers(shell, "1 --name job", "x = = 2")
    assert "SyntaxError" in capsys.readouterr().out and "line 2" in shell.user_ns["job"].logs(0)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("two", "invalid int value: 'two'"),
        ("2 --many", "unrecognized arguments: --many"),
        ("0", "workers=0 must be"),
        ("2 --give gone", "gone"),
        ("2 --give array", "Object of type ndarray is not JSON serializable"),
    ],
)
def test_mistakes_in_the_line_are_told(shell, line, message):
    shell.user_ns.update(array=np.ones(2))
    with pytest.raises((UsageError, ValueError, KeyError, TypeError)) as caught:
        workers(shell, line, "pass")
    assert message in str(caught.value)


@pytest.mark.parametrize("first", ["import bigtrain_nb as bt", "%load_ext bigtrain_nb"])
def test_the_import_in_a_notebook_is_enough(first):
    code = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        f"for cell in [{first!r}, '%%workers 1\\nprint(\"it ran\")']:\n"
        "    shell.run_cell(cell).raise_error()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout == "worker 0 | it ran\n" and not done.stderr, done


def test_without_ipython_nothing_of_it_is_loaded():
    code = "import sys, bigtrain_nb.launch.jobs; print({'IPython', 'tensorflow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout == "set()\n", done
