"""Each notebook's exercises with the reference solutions: every check passes, and cells that use the answers run.

They have the notebook's earlier imports. All other cells are tested with the shipped notebook. A check must run the
answer that it is given, never the solution instead.
"""

import ast
import functools
import inspect
import sys
from pathlib import Path

import notebook_rules as rules
import pytest
from IPython.core.inputtransformer2 import TransformerManager

import bigtrain_nb as bt
from bigtrain_nb.workbook.exercises import registry

ROOT = Path(__file__).parents[2]
EXERCISES = ROOT / "bigtrain_nb" / "series" / "exercises"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
COMPARE = {
    *("pay_with_time.segment", "when_it_goes_wrong.interval"),
    *("ask_a_server.asynchronous", "mirror_it.noise_scale"),
}
"""Exercises whose check also calls the solution."""
ELSEWHERE = {"many_workers.train"}
"""Exercises whose answer runs in separate processes, where calls cannot be counted."""

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def exercise_cells(path):
    return [cell for cell in rules.code_cells(rules.read(path)) if "exercise" in cell.metadata]


def code_to_run(cell, answers):
    """Compile a cell if it uses an answer, otherwise only its imports."""
    code = ast.parse(TransformerManager().transform_cell(cell.source))
    names = {node.id for node in ast.walk(code) if isinstance(node, ast.Name)}
    if names.isdisjoint(answers):
        code.body = [one for one in code.body if isinstance(one, ast.Import | ast.ImportFrom)]
    return compile(code, cell.id, "exec")


@each_notebook
def test_solved_exercises_are_right_where_they_stand_and_what_uses_them_runs(path, monkeypatch):
    monkeypatch.syspath_prepend(path.parent)
    bt.devices()  # splits the CPU before a notebook initializes TensorFlow
    known = {}
    answers = set()
    for cell in rules.code_cells(rules.read(path)):
        name = cell.metadata.get("exercise")
        if name is None:
            exec(code_to_run(cell, answers), known)
        else:
            solution = registry(name)[name].reference
            function = solution.__name__
            assert f"def {function}(" in cell.source
            exec(inspect.getsource(solution), known)
            if name in ELSEWHERE:
                assert known["bt"].check(name, known[function]).status == "right", name
            else:
                expect_only_the_answer_is_run(name, known[function], monkeypatch)
            answers.add(function)
    assert len(answers) >= 2


def expect_only_the_answer_is_run(name, answer, monkeypatch):
    """Assert that the check passes by calling the answer, and calls the solution only for exercises in COMPARE."""
    calls = {"answer": 0, "solution": 0}

    def counted(function, which):
        @functools.wraps(function)
        def call(*args, **kwargs):
            calls[which] += 1
            return function(*args, **kwargs)

        return call

    solution = registry(name)[name].reference
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[solution.__module__], solution.__name__, counted(solution, "solution"))
        found = bt.check(name, counted(answer, "answer"))
    assert found.status == "right", (name, found.message)
    assert calls["answer"] >= max(1, calls["solution"]), name
    assert (calls["solution"] > 0) == (name in COMPARE), name


@pytest.mark.parametrize("name", sorted(COMPARE))
def test_where_the_solution_is_asked_too_each_call_of_the_answer_counts(name):
    """An answer that is wrong only in its first or last call is refused: no other call replaces it."""
    solution = registry(name)[name].reference
    total = 0

    def count(*args):
        nonlocal total
        total += 1
        return solution(*args)

    assert bt.check(name, count).status == "right"
    for bad in (1, total):
        number = 0

        def spoilt(*args, bad=bad):
            nonlocal number
            number += 1
            return object() if number == bad else solution(*args)

        assert bt.check(name, spoilt).status == "wrong"


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
