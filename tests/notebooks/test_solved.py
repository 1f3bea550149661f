"""Each notebook's exercises, with the reference solutions put in: every check says right, and what uses them runs.

The cells that no exercise touches are run with the notebook as it is shipped.
"""
import ast
import inspect
import symtable
import textwrap
from pathlib import Path

import notebook_rules as rules
import pytest
import render
from IPython.core.inputtransformer2 import TransformerManager
from nbformat.v4 import new_code_cell, new_notebook

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


def names(cell):
    """Return the notebook's names that a cell binds and those that it reads; a magic's own text counts for neither."""
    cell_table = symtable.symtable(TransformerManager().transform_cell(cell.source), "cell", "exec")
    of_cell = cell_table.get_symbols()
    bound = {one.get_name() for one in of_cell if one.is_assigned() or one.is_imported() or one.is_namespace()}
    read = {one.get_name() for one in of_cell if one.is_referenced()}
    inner = list(cell_table.get_children())
    for table in inner:
        inner += table.get_children()
        read |= {one.get_name() for one in table.get_symbols() if one.is_referenced() and one.is_global()}
    return bound, read


def touched(notebook):
    """Return the code cells with exercises, those that use what an exercise defines, and all that these need."""
    cells = rules.code_cells(notebook)
    bound, read = zip(*map(names, cells), strict=True)
    exercises = [place for place, cell in enumerate(cells) if "exercise" in cell.metadata]
    answers = set().union(*(bound[place] for place in exercises))
    needed = {place for place in range(exercises[0], len(cells)) if place in exercises or read[place] & answers}
    for place in reversed(range(len(cells))):
        if any(bound[place] & read[later] for later in needed if later > place):
            needed.add(place)
    return [cells[place] for place in sorted(needed)]


def checked(notebook, name):
    """What the cells that check this exercise say."""
    cells = [cell for cell in rules.code_cells(notebook) if f'check("{name}"' in cell.source]
    return " ".join(text for cell in cells for text in rules.output_texts(cell)).lower()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_solved_exercises_run_and_their_checks_say_right(path):
    notebook = rules.read(path)
    exercises = [cell.metadata["exercise"] for cell in exercise_cells(notebook)]
    for cell in exercise_cells(notebook):
        cell.source = solved(cell.source, registry()[cell.metadata["exercise"]].reference)
    notebook.cells = touched(notebook)
    render.execute(notebook, path.parent)
    assert len(exercises) >= 3
    for name in exercises:
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


def test_what_no_exercise_touches_is_left_out():
    cells = ["import math", "%matplotlib inline\nslow = 1", "seen = math.pi", "def half(x):\n    return ...",
             "%%time\nhalf(slow)", "print(half(seen), [math for slow in (1, 2)])", "print(slow)"]
    notebook = new_notebook(cells=[new_code_cell(cell) for cell in cells])
    notebook.cells[3].metadata["exercise"] = "a.half"
    assert [cells.index(cell.source) for cell in touched(notebook)] == [0, 2, 3, 5]
