"""Each notebook, with the reference solutions put in, runs to its end and every check says right."""
import ast
import inspect
import textwrap
from pathlib import Path

import notebook_rules as rules
import pytest
import render

from bigtrain_nb.exercises import registry

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


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


def checked(notebook, name):
    """What the cells that check this exercise say."""
    cells = [cell for cell in rules.code_cells(notebook) if f'check("{name}"' in cell.source]
    return " ".join(text for cell in cells for text in rules.output_texts(cell)).lower()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_solved_notebooks_run_and_their_checks_say_right(path):
    notebook = rules.read(path)
    names = [cell.metadata["exercise"] for cell in exercise_cells(notebook)]
    for cell in exercise_cells(notebook):
        cell.source = solved(cell.source, registry()[cell.metadata["exercise"]].reference)
    render.execute(notebook, path.parent)
    assert len(names) >= 3
    for name in names:
        assert "right" in checked(notebook, name) and "wrong" not in checked(notebook, name), name


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
