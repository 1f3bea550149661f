"""Every stored notebook keeps the rules of tools/notebook_rules.py."""
from pathlib import Path

import notebook_rules as rules
import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

pytestmark = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def test_it_stands_as_rendering_left_it(path):
    notebook = rules.read(path)
    assert rules.form_problems(notebook) == []
    assert path.read_text(encoding="utf-8") == rules.text(notebook)


def test_its_outputs_are_clean(path):
    assert rules.output_problems(rules.read(path)) == []


def test_it_keeps_the_grammar(path):
    assert rules.shape_problems(rules.read(path)) == []
