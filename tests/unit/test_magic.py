"""%%workers in a cell: what the code sees of the notebook, what it is told otherwise, and how lines count."""

import subprocess
import sys

import numpy as np
import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from bigtrain_nb.launch import magic


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


def test_named_variables_are_given_by_value(shell, capsys):
    code = "from __future__ import annotations  # first\nprint([steps, folder, nested, text])\nnested['a'] = 0"
    workers(shell, "1 --give steps folder nested text", code)
    values = [3, "some/where", {"a": [1, None, True, 0.5]}, 'it\'s "so"\n']
    assert f"worker 0 | {values}" in capsys.readouterr().out
    assert shell.user_ns["nested"] == values[2]


def test_settings_reach_the_job_which_can_be_kept(shell):
    code = "import os, sys\nprint('kept')\nsys.exit(os.environ['BIGTRAIN_RESTART'] == '0')"
    workers(shell, "3 --restarts 1 --patience 0.1 --timeout 100 --name job", code)
    job = shell.user_ns["job"]
    assert job.restarted == 1 and job.codes == [0, 0, 0] and "kept\n" in job.logs(2)
    workers(shell, "1 --timeout 0.1 --name job", "import time\ntime.sleep(600)")
    assert shell.user_ns["job"].exit_code == 124


@pytest.mark.parametrize("give", ["", "--give folder"])
def test_a_traceback_counts_lines_as_the_cell_does(shell, capsys, give):
    code = "from __future__ import annotations\nwhere = 1\nraise KeyError('line four of the cell')"
    workers(shell, f"1 {give} --name job", code)
    log = shell.user_ns["job"].logs(0)
    assert "line 4, in <module>" in log and "    raise KeyError('line four of the cell')" in log
    assert "worker 0 | KeyError: 'line four of the cell'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("print(steps)", ["steps"]),
        ("for step in range(steps): print(folder)", ["folder", "steps"]),
        ("def work(n=steps):\n    return n", ["steps"]),
        ("print(f'{folder}/file')", ["folder"]),
        ("steps += 1 if text else 0", ["text"]),
    ],
)
def test_a_name_that_only_the_notebook_has_is_refused(shell, code, names):
    with pytest.raises(UsageError) as caught:
        workers(shell, "2", code)
    assert str(caught.value).startswith(f"%%workers: the code uses {', '.join(names)} of the notebook")
    assert f"--give {' '.join(names)}" in str(caught.value)


@pytest.mark.parametrize(
    "code",
    [
        "steps = 1\nprint(steps)",
        "def work(steps):\n    return steps\nwork(1)",
        "print([steps for steps in range(3)])",
        "import os as folder\nprint(folder.sep)",
        "print(dict(steps=1), 'steps'.upper(), ''.join('folder'))",
        "try:\n    1 / 0\nexcept ZeroDivisionError as text:\n    print(text)",
        "class steps:\n    folder = 1\nprint(steps.folder)",
        "print((lambda steps, *folder, **nested: steps)(1))",
        "match [1, 2]:\n    case [steps, *folder]: print(steps, folder)",
        "if __name__ == '__main__': exit(0)",
    ],
)
def test_names_of_its_own_are_no_matter(shell, code):
    magic._check_names(code, shell.user_ns, given=[])


def test_what_is_wrong_with_the_code_is_told_by_the_workers(shell, capsys):
    with pytest.raises(RuntimeError, match="ended because worker 0 failed.*--name job"):
        workers(shell, "1", "print(nowhere)")
    assert "worker 0 | NameError: name 'nowhere' is not defined" in capsys.readouterr().out
    workers(shell, "1 --name job", "x = = 2")
    assert "SyntaxError" in capsys.readouterr().out and "line 2" in shell.user_ns["job"].logs(0)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("two", "invalid int value: 'two'"),
        ("2 --many", "unrecognized arguments: --many"),
        ("0", "workers=0 must be"),
        ("2 --restarts -1", "restarts=-1 must be"),
        ("2 --give gone", "%%workers --give gone: the notebook has no such variable"),
        ("2 --give array", "--give array: only numbers, strings, lists, and dictionaries with strings as keys"),
        ("2 --give numbers", "%%workers --give numbers: only numbers, strings, lists"),
        ("2 --give pair", "%%workers --give pair: only numbers, strings, lists"),
    ],
)
def test_mistakes_in_the_line_are_told(shell, line, message):
    shell.user_ns.update(array=np.ones(2), numbers={1: "one"}, pair=(1, 2))
    with pytest.raises((UsageError, ValueError)) as caught:
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
