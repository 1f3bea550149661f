"""The number of cells whose stored outputs nbval compares, because they are the same on every machine."""

from pathlib import Path

import notebook_rules as rules

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
AT_LEAST = 100  # raise it with every marked cell; never lower it


def test_cells_that_are_the_same_everywhere_are_compared():
    code = [cell for path in NOTEBOOKS for cell in rules.read(path).cells if cell.cell_type == "code"]
    compared = [cell for cell in code if cell.source.startswith("# NBVAL_CHECK_OUTPUT\n")]
    assert len(compared) >= AT_LEAST
    empty = [cell.id for cell in compared if not cell.outputs or cell.execution_count is None]
    assert not empty, f"nbval compares nothing there: {empty}"
