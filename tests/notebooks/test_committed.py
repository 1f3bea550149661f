"""Every stored notebook follows the rules of tools/notebook_rules.py, and nbval compares outputs with those stored."""

from pathlib import Path

import notebook_rules as rules
import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
AT_LEAST = 100  # cells whose outputs nbval compares; raise it with every marked cell, never lower it


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_stands_as_rendering_left_it_and_keeps_the_rules(path):
    notebook = rules.read(path)
    assert rules.form_problems(notebook) == []
    assert rules.output_problems(notebook) == []
    assert rules.source_problems(notebook) == []
    assert rules.prediction_problems(notebook) == []
    assert path.read_text(encoding="utf-8") == rules.text(notebook)


def test_cells_that_are_the_same_everywhere_are_compared():
    code = [cell for path in NOTEBOOKS for cell in rules.read(path).cells if cell.cell_type == "code"]
    compared = [cell for cell in code if cell.source.startswith("# NBVAL_CHECK_OUTPUT\n")]
    assert len(compared) >= AT_LEAST
    empty = [cell.id for cell in compared if not cell.outputs or cell.execution_count is None]
    assert not empty, f"nbval compares nothing there: {empty}"
