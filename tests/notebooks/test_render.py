"""tools/render.py on tiny notebooks: what it stores, what it leaves alone, what it refuses."""
import notebook_rules as rules
import pytest
import render
from nbformat.v4 import new_code_cell, new_notebook


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
