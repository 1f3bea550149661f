"""Every stored notebook follows the rules of tools/notebook_rules.py."""

from pathlib import Path

import notebook_rules as rules
import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_stands_as_rendering_left_it_and_keeps_the_rules(path):
    notebook = rules.read(path)
    assert rules.form_problems(notebook) == []
    assert rules.output_problems(notebook) == []
    assert rules.source_problems(notebook) == []
    assert rules.prediction_problems(notebook) == []
    assert path.read_text(encoding="utf-8") == rules.text(notebook)
