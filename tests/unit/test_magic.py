"""The %%workers magic: the notebook names that the code sees, its error messages, and its line numbers."""

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
    """Run a cell that starts with %%workers; raise its error."""
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


def test_a_worker_that_ends_early_is_an_error_only_where_something_is_taken(shell):
    workers(shell, "", "import sys\nsys.exit(0)")
    with pytest.raises(RuntimeError, match="worker 0 exited without an error before the end of the cell's code"):
        workers(shell, "--take ranks", "import sys\nranks = 1\nsys.exit(0)")


def test_any_name_can_be_taken_and_only_names_that_were_given_are_there(shell):
    code = "assert not {'json', 'os'} & set(globals())\nfile, json, os, Path, name = 'a.txt', 1, 2, 3, 4"
    workers(shell, "1 --give steps --take file json os Path name", code)
    taken = [shell.user_ns.pop(name) for name in ("file", "json", "os", "Path", "name")]
    assert taken == [["a.txt"], [1], [2], [3], [4]]


def test_a_future_import_may_come_first(shell, capsys):
    code = "# as in a script\n\nfrom __future__ import annotations; found: unknown = steps\nprint(gone)"
    with pytest.raises(RuntimeError):
        workers(shell, "1 --give steps", code)
    assert "line 5, in <module>" in capsys.readouterr().out


def test_named_variables_are_given_by_value_and_a_traceback_counts_lines_as_the_cell_does(shell, capsys):
    code = "print([steps, folder, nested, text])\nnested['a'] = 0\nprint(unknown)"
    with pytest.raises(RuntimeError, match="ended because worker 0 failed.*notebook variables named after --give"):
        workers(shell, "1 --give steps folder nested text", code)
    values = [3, "some/where", {"a": [1, None, True, 0.5]}, 'it\'s "so"\n']
    shown = capsys.readouterr().out
    assert f"worker 0 | {values}" in shown and shell.user_ns["nested"] == values[2]
    assert "line 4, in <module>" in shown and "|     print(unknown)" in shown and "NameError: name 'unknown'" in shown


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("two", "invalid int value: 'two'"),
        ("2 --give gone", "gone"),
        ("2 --give array", "Object of type ndarray is not JSON serializable"),
    ],
)
def test_mistakes_in_the_line_are_told(shell, line, message):
    shell.user_ns.update(array=np.ones(2))
    with pytest.raises((UsageError, ValueError, KeyError, TypeError)) as caught:
        workers(shell, line, "pass")
    assert message in str(caught.value)
