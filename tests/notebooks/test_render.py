"""tools/render.py on tiny notebooks: what it stores, what it leaves alone, what it refuses."""
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import notebook_rules as rules
import psutil
import pytest
import render
from nbformat.v4 import new_code_cell, new_notebook, new_output


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """Write code cells as notebooks/small.ipynb of an otherwise empty project."""
    (tmp_path / "notebooks").mkdir()
    monkeypatch.setattr(render, "ROOT", tmp_path)

    def store(*sources):
        path = tmp_path / "notebooks" / "small.ipynb"
        rules.write(rules.clean(new_notebook(cells=[new_code_cell(source) for source in sources])), path)
        return path
    return store


def test_rendering_stores_outputs_and_is_done_once(stored, capsys):
    path = stored("x = 6 * 7", "import os; x, os.path.basename(os.getcwd())")
    assert render.main([]) == 0
    first = path.read_text()
    notebook = rules.read(path)
    assert rules.form_problems(notebook) == []
    assert notebook.cells[1].outputs[0].data["text/plain"] == "(42, 'notebooks')"
    assert render.main([]) == 0
    assert "small.ipynb: up to date" in capsys.readouterr().out
    assert render.main([str(path)]) == 0
    assert path.read_text() == first
    assert [p.name for p in path.parent.iterdir()] == ["small.ipynb"]


@pytest.mark.parametrize("source, reason", [
    ("1 / 0", "ZeroDivisionError"),
    ("import os; os._exit(1)", "its kernel died"),
    ("import sys; print('x', file=sys.stderr)", "cell 0 wrote to stderr"),
    ("import sys; print(sys.prefix)", "cell 0 shows"),
])
def test_a_notebook_with_a_problem_is_left_as_it_was(stored, capsys, source, reason):
    path = stored(source)
    before = path.read_text()
    assert render.main([]) == 1
    assert reason in capsys.readouterr().out
    assert path.read_text() == before


def test_a_changed_cell_and_a_changed_output_are_rendered_again(stored):
    path = stored("print(1)")
    render.main([])
    notebook = rules.read(path)
    for change in ({"source": "print(2)"}, {"outputs": []}):
        changed = rules.read(path)
        changed.cells[0].update(change)
        assert not rules.is_sealed(changed)
    assert rules.is_sealed(notebook)


def test_no_output_stays_that_this_run_did_not_make(stored):
    path = stored("", "print('skipped')", "print('run')")
    notebook = rules.read(path)
    notebook.cells[1].metadata["tags"] = ["skip-execution"]
    for cell in notebook.cells:
        cell.update(execution_count=7, outputs=[new_output("stream", name="stdout", text="stale")])
    rules.write(notebook, path)
    assert render.main([]) == 0
    found = [(cell.execution_count, "".join(rules.output_texts(cell))) for cell in rules.read(path).cells]
    assert found == [(None, ""), (None, ""), (1, "run\n")]


def test_a_cell_may_take_what_its_tag_says_and_otherwise_what_it_may_in_the_tests(stored, capsys):
    path = stored("import time; time.sleep(30)")
    notebook = rules.read(path)
    notebook.cells[0].metadata["tags"] = ["timeout=1"]
    rules.write(notebook, path)
    assert render.main([]) == 1
    assert "timed out" in capsys.readouterr().out
    settings = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["tool"]["pytest"]
    assert f"--nbval-cell-timeout={rules.CELL_SECONDS}" in settings["ini_options"]["addopts"]


def test_a_notebook_that_is_not_there_is_named_before_anything_is_executed(stored, capsys):
    path = stored("1")
    assert render.main([str(path), "nowhere.ipynb"]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", "There is no such notebook: nowhere.ipynb\n")


def test_an_interrupt_ends_it_with_its_kernel_and_a_sentence(stored):
    path = stored("import os, time; open('kernel', 'w').write(f'{os.getpid()}\\n'); time.sleep(50)")
    kernel = path.with_name("kernel")
    command = [sys.executable, render.__file__, path, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as rendering:
        while not (kernel.exists() and kernel.read_text().endswith("\n")) and rendering.poll() is None:
            time.sleep(0.1)
        rendering.send_signal(signal.SIGINT)
        out, err = rendering.communicate(timeout=40)
    assert rendering.returncode == 1 and out == "small.ipynb: executing ...\n"
    assert err.endswith("Stopped; the notebook that was being executed is left as it was.\n") and "render.py" not in err
    assert not psutil.pid_exists(int(kernel.read_text()))
