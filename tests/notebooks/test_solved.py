"""Each notebook's exercises, with the reference solutions put in: every check says right, and what uses them runs.

They know what the notebook has imported before them. All other cells are run with the notebook as it is shipped.
"""

import ast
import inspect
from pathlib import Path

import notebook_rules as rules
import pytest
from IPython.core.inputtransformer2 import TransformerManager

import bigtrain_nb as bt
from bigtrain_nb.workbook.exercises import registry

ROOT = Path(__file__).parents[2]
EXERCISES = ROOT / "bigtrain_nb" / "series" / "exercises"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NEEDED = {  # what cells that use an answer build on
    "01-feed-the-model": ("data =", "bad =", "finding =", "off", "jpegs =", "def decode", "decoding =", "microsec")
}

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def exercise_cells(path):
    return [cell for cell in rules.code_cells(rules.read(path)) if "exercise" in cell.metadata]


def code_to_run(cell, answers, needed):
    """All of a cell that uses an answer; of another one its imports and what is needed."""
    code = ast.parse(TransformerManager().transform_cell(cell.source))
    names = {node.id for node in ast.walk(code) if isinstance(node, ast.Name)}
    if names.isdisjoint(answers):
        code.body = [
            statement
            for statement in code.body
            if isinstance(statement, ast.Import | ast.ImportFrom) or ast.unparse(statement).startswith(needed)
        ]
    return compile(code, cell.id, "exec")


@each_notebook
def test_solved_exercises_are_right_where_they_stand_and_what_uses_them_runs(path, monkeypatch):
    monkeypatch.syspath_prepend(path.parent)
    bt.devices()  # splits the CPU, before a notebook makes TensorFlow run
    known = {}
    answers = set()
    for cell in rules.code_cells(rules.read(path)):
        name = cell.metadata.get("exercise")
        if name is None:
            exec(code_to_run(cell, answers, NEEDED.get(path.stem, ())), known)
        else:
            solution = registry(name)[name].reference
            function = solution.__name__
            assert f"def {function}(" in cell.source
            exec(inspect.getsource(solution), known)
            assert known["bt"].check(name, known[function]).status == "right", name
            answers.add(function)
    assert len(answers) >= 3


@each_notebook
def test_as_shipped_no_exercise_is_attempted(path):
    cells = rules.code_cells(rules.read(path))
    for exercise in exercise_cells(path):
        name = exercise.metadata["exercise"]
        assert "exercise" in exercise.metadata.get("tags", [])
        assert "..." in exercise.source
        checks = [cell for cell in cells if f'check("{name}"' in cell.source]
        said = " ".join(text for cell in checks for text in rules.output_texts(cell))
        assert "not attempted" in said.lower(), name


def test_every_exercise_stands_in_one_notebook():
    placed = [cell.metadata["exercise"] for path in NOTEBOOKS for cell in exercise_cells(path)]
    modules = [path.stem for path in EXERCISES.glob("[!_]*.py")]
    written = [name for module in modules for name in registry(module)]
    assert sorted(placed) == sorted(written)
