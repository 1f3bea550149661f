"""tools/render.py on tiny notebooks: what it stores, leaves unchanged and refuses."""

import signal
import subprocess
import sys
import time

import notebook_rules as rules
import psutil
import pytest
import render
from nbformat.v4 import new_code_cell, new_notebook, new_output


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """A function that writes code cells to notebooks/small.ipynb in an otherwise empty project."""
    (tmp_path / "notebooks").mkdir()
    monkeypatch.setattr(render, "ROOT", tmp_path)

    def store(*sources):
        path = tmp_path / "notebooks" / "small.ipynb"
        stale = new_output("stream", name="stdout", text="stale")
        cells = [new_code_cell(source, outputs=[stale]) for source in sources]
        rules.write(rules.clean(new_notebook(cells=cells)), path)
        return path

    return store


def test_rendering_stores_outputs_once_until_something_changes(stored, capsys):
    path = stored("x = 6 * 7", "import os; x, os.path.basename(os.getcwd())")
    assert render.main([]) == 0
    notebook = rules.read(path)
    assert rules.form_problems(notebook) == []
    assert notebook.cells[0].outputs == []
    assert notebook.cells[1].outputs[0].data["text/plain"] == "(42, 'notebooks')"
    assert render.main([]) == 0
    assert "small.ipynb: up to date" in capsys.readouterr().out
    for change in ({"source": "x = 1"}, {"outputs": [new_output("stream", text="other")]}):
        changed = rules.read(path)
        changed.cells[0].update(change)
        assert not rules.is_sealed(changed)
    assert [file.name for file in path.parent.iterdir()] == ["small.ipynb"]


@pytest.mark.parametrize(
    "source, reasons",
    [
        ("1 / 0", ["ZeroDivisionError"]),
        ("import os; os._exit(1)", ["its kernel died"]),
        ("import sys; print('x', file=sys.stderr); print(sys.prefix)", ["cell 0 wrote to stderr", "cell 0 shows"]),
        ("import time; time.sleep(30)", ["timed out"]),
    ],
)
def test_a_notebook_with_a_problem_is_left_as_it_was(stored, capsys, monkeypatch, source, reasons):
    monkeypatch.setattr(rules, "CELL_SECONDS", 2 if reasons == ["timed out"] else 60)
    path = stored(source)
    before = path.read_text()
    assert render.main([str(path)]) == 1
    said = capsys.readouterr().out
    assert all(reason in said for reason in reasons)
    assert path.read_text() == before


def test_an_interrupt_ends_it_with_its_kernel_and_a_sentence(stored):
    path = stored("import os, time; open('kernel', 'w').write(f'{os.getpid()}\\n'); time.sleep(50)")
    kernel = path.with_name("kernel")
    command = [sys.executable, render.__file__, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as rendering:
        while not (kernel.exists() and kernel.read_text().endswith("\n")) and rendering.poll() is None:
            time.sleep(0.1)
        rendering.send_signal(signal.SIGINT)
        _, err = rendering.communicate(timeout=120)
    assert rendering.returncode == 1
    assert err.endswith("Stopped; the notebook that was being executed is left unchanged.\n") and "render.py" not in err
    assert not psutil.pid_exists(int(kernel.read_text()))
