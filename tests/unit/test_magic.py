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
    yield module_shell
    module_shell.reset(new_session=False)


def workers(shell, line, code):
    """Run a cell that starts with %%workers; raise what it raises."""
    shell.run_cell(f"%%workers {line}\n{code}").raise_error()


def test_the_code_runs_in_each_worker(shell, capsys):
    workers(shell, "3", "import os\nprint('a line of', os.environ['TF_CONFIG'][-2:-1])")
    lines = sorted(line for line in capsys.readouterr().out.splitlines() if line.startswith("worker"))
    assert [line.split(" | ")[0] for line in lines] == ["worker 0", "worker 1", "worker 2"]


def test_two_workers_without_a_number_and_nothing_comes_back(shell, capsys):
    workers(shell, "", "steps = 7\nprint('said')")
    assert capsys.readouterr().out.count("| said") == 2
    assert shell.user_ns["steps"] == 3


def test_named_variables_are_given_by_value(shell, capsys):
    workers(shell, "1 --give steps folder nested text", "print([steps, folder, nested, text])\nnested['a'] = 0")
    values = [3, "some/where", {"a": [1, None, True, 0.5]}, 'it\'s "so"\n']
    assert f"worker 0 | {values}" in capsys.readouterr().out
    assert shell.user_ns["nested"] == values[2]


def test_what_is_given_comes_after_imports_from_the_future(shell, capsys):
    workers(shell, "1 --give steps", "from __future__ import annotations  # first\nprint(steps)")
    assert "worker 0 | 3" in capsys.readouterr().out


def test_the_job_can_be_kept(shell):
    workers(shell, "2 --name job", "print('kept')")
    assert shell.user_ns["job"].codes == [0, 0] and shell.user_ns["job"].logs(1) == "kept\n"


def test_settings_reach_the_job(shell, capsys):
    code = "import os, sys\nsys.exit(os.environ['BIGTRAIN_RESTART'] == '0')"
    workers(shell, "2 --restarts 1 --patience 0.1 --timeout 100 --name job", code)
    assert shell.user_ns["job"].restarted == 1 and shell.user_ns["job"].codes == [0, 0]
    workers(shell, "1 --timeout 1 --name job", "import time\ntime.sleep(600)")
    assert shell.user_ns["job"].exit_code == 124


@pytest.mark.parametrize("give", ["", "--give folder"])
@pytest.mark.parametrize(
    "first", ["where = 1\n", "from __future__ import annotations\nfrom __future__ import division  # done"]
)
def test_a_traceback_counts_lines_as_the_cell_does(shell, capsys, give, first):
    code = f"{first}\nraise KeyError('line four of the cell')"
    shell.run_cell(f"%%workers 1 {give} --name job\n{code}")
    log = shell.user_ns["job"].logs(0)
    assert "line 4, in <module>" in log and "    raise KeyError('line four of the cell')" in log
    assert "worker 0 | KeyError: 'line four of the cell'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("print(steps)", ["steps"]),
        ("for step in range(steps): print(folder)", ["folder", "steps"]),
        ("def work(n=steps):\n    return n", ["steps"]),
        ("print([steps for each in range(3)])", ["steps"]),
        ("print(f'{folder}/file')", ["folder"]),
        ("nested['a'] = 2", ["nested"]),
        ("steps += 1 if text else 0", ["text"]),
        ("class Work(folder): pass", ["folder"]),
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
        "import os.path\nprint(os.sep)",
        "print(dict(steps=1), 'steps'.upper(), ''.join('folder'))",
        "if __name__ == '__main__': print(len([1]))",
        "try:\n    1 / 0\nexcept ZeroDivisionError as text:\n    print(text)",
        "with open('/dev/null') as folder: print(folder.name)",
        "class steps:\n    folder = 1\nprint(steps.folder)",
        "print((lambda steps, *folder, **nested: steps)(1))",
        "if (steps := 4) > 3: print(steps)",
        "match [1, 2]:\n    case [steps, *folder]: print(steps, folder)",
        "match {'a': 1}:\n    case {'a': nested, **text}: print(nested, text)",
        "from os import sep as steps\nprint(steps)",
        "global steps\nsteps = 2\nprint(steps)",
        "if len('a') > 1: quit()\nexit(0)",
        "from __future__ import (annotations)\nexit(0)",
    ],
)
def test_names_of_its_own_are_no_matter(shell, code, capsys):
    workers(shell, "1 --name job", code)
    assert shell.user_ns["job"].codes == [0], capsys.readouterr().out


def test_a_name_that_nobody_has_fails_in_the_workers(shell, capsys):
    with pytest.raises(RuntimeError, match="ended because worker 0 failed.*--name job"):
        workers(shell, "1", "print(nowhere)")
    assert "worker 0 | NameError: name 'nowhere' is not defined" in capsys.readouterr().out


def test_a_syntax_error_is_told_by_the_workers(shell, capsys):
    workers(shell, "1 --name job", "x = = 2")
    assert "SyntaxError" in capsys.readouterr().out and "line 2" in shell.user_ns["job"].logs(0)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("two", "invalid int value: 'two'"),
        ("2 --many", "unrecognized arguments: --many"),
        ("2 --timeout soon", "invalid float value: 'soon'"),
        ("2 --give gone", "--give gone: the notebook has no such variable"),
        ("2 --give array", "--give array: numbers, strings, lists, dictionaries only"),
        ("2 --give numbers", "--give numbers: only lists, and strings as keys; it would be {'1': 'one'}"),
        ("2 --give pair", "--give pair: only lists, and strings as keys; it would be [1, 2]"),
        ("2 --give", "expected at least one argument"),
        ("2 'open", "No closing quotation"),
    ],
)
def test_mistakes_in_the_line_are_told(shell, line, message):
    shell.user_ns.update(array=np.ones(2), numbers={1: "one"}, pair=(1, 2))
    with pytest.raises(UsageError) as caught:
        workers(shell, line, "pass")
    assert str(caught.value).startswith("%%workers") and message in str(caught.value)


@pytest.mark.parametrize(("line", "message"), [("0", "workers=0 must be"), ("2 --restarts -1", "restarts=-1 must be")])
def test_bad_settings_are_those_of_run_workers(shell, line, message):
    with pytest.raises(ValueError, match=message):
        workers(shell, line, "pass")


@pytest.mark.parametrize("first", ["import bigtrain_nb as bt", "%load_ext bigtrain_nb", "import bigtrain_nb.common"])
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
