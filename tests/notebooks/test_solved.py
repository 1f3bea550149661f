"""Each notebook's exercises, with the reference solutions put in: every check says right, and what uses them runs.

They know what the notebook has imported before them. All other cells are run with the notebook as it is shipped.
"""
import ast
import inspect
import textwrap
from pathlib import Path

import notebook_rules as rules
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from nbformat.v4 import new_code_cell

from bigtrain_nb.workbook.exercises import registry

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
NEEDED = {"01-feed-the-model": ["data", "left_to_you", "bad"]}  # what cells that use an answer need beside imports


def solved(source, reference):
    """The cell with the reference in place of the function of its name; ValueError if there is none."""
    lines = source.splitlines()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == reference.__name__:
            solution = textwrap.dedent(inspect.getsource(reference)).splitlines()
            return "\n".join(lines[:node.lineno - 1] + solution + lines[node.end_lineno:])
    raise ValueError(f"the exercise cell defines no function {reference.__name__}:\n{source}")


def exercise_cells(notebook):
    return [cell for cell in rules.code_cells(notebook) if "exercise" in cell.metadata]


def kept(cell, answers, needed=()):
    """The code of a cell that uses an answer; of another one its imports, and what it sets that such a cell needs."""
    code = ast.parse(TransformerManager().transform_cell(cell.source))
    if not any(isinstance(one, ast.Name) and one.id in answers for one in ast.walk(code)):
        code.body = [one for one in code.body if isinstance(one, ast.Import | ast.ImportFrom)
                     or isinstance(one, ast.Assign) and ast.unparse(one.targets) in needed]
    return code


def checked(notebook, name):
    """What the cells that check this exercise say."""
    cells = [cell for cell in rules.code_cells(notebook) if f'check("{name}"' in cell.source]
    return " ".join(text for cell in cells for text in rules.output_texts(cell)).lower()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_solved_exercises_are_right_where_they_stand_and_what_uses_them_runs(path, monkeypatch):
    monkeypatch.syspath_prepend(path.parent)
    known, answers = {}, []
    for cell in rules.code_cells(rules.read(path)):
        if name := cell.metadata.get("exercise"):
            reference = registry()[name].reference
            answers.append(reference.__name__)
            exec(solved(cell.source, reference), known)
            assert known["bt"].check(name, known[answers[-1]]).status == "right", name
        else:
            exec(compile(kept(cell, answers, NEEDED.get(path.stem, ())), cell.id, "exec"), known)
    assert len(answers) >= 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_as_shipped_no_exercise_is_attempted(path):
    notebook = rules.read(path)
    for cell in exercise_cells(notebook):
        name = cell.metadata["exercise"]
        assert "exercise" in cell.metadata.get("tags", []) and "..." in cell.source
        assert "not attempted" in checked(notebook, name), name


def test_every_exercise_stands_in_one_notebook():
    placed = [cell.metadata["exercise"] for path in NOTEBOOKS for cell in exercise_cells(rules.read(path))]
    assert sorted(placed) == sorted(registry())


def total(values):
    return sum(values)


def test_only_the_function_of_the_exercise_is_replaced():
    cell = "import math\n\ndef total(values):\n    return ...\n\nbt.check('a.total', total)"
    assert solved(cell, total) == (
        "import math\n\ndef total(values):\n    return sum(values)\n\nbt.check('a.total', total)")
    with pytest.raises(ValueError, match="defines no function total"):
        solved("def other():\n    return ...", total)


def test_of_other_cells_only_imports_are_kept_and_what_is_needed():
    cell = new_code_cell("%matplotlib inline\nimport math\nslow = 1\nsize = math.pi\nprint(size)")
    assert ast.unparse(kept(cell, ["total"], ["size"])) == "import math\nsize = math.pi"
    cell.source = "print(list(map(total, [slow])))"
    assert ast.unparse(kept(cell, ["total"])) == cell.source
