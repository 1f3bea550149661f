"""Every public name, and every setting of the large ones, is used in a cell that a reader runs."""

import ast
import inspect
import json
from pathlib import Path

import pytest

import bigtrain_nb as bt
from bigtrain_nb.train.settings import Settings

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
OFFERED = {"hint", "solution"}
"""Functions that `bt.check` suggests after a wrong answer: readers write these cells."""
BY_PLACE = {"folder", "model", "data", "batch"}


def cells():
    """Yield the code of all notebooks and their scripts as syntax trees, without magics."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                lines = "".join(cell["source"]).splitlines()
                yield ast.parse("\n".join("" if line.lstrip()[:1] in ("%", "!") else line for line in lines))
    for path in sorted((NOTEBOOKS / "scripts").rglob("*.py")):
        yield ast.parse(path.read_text(encoding="utf-8"))


NODES = [node for tree in cells() for node in ast.walk(tree)]


def named():
    """Return all keyword arguments and dictionary keys: settings may pass through a notebook's functions."""
    keywords = {keyword.arg for node in NODES if isinstance(node, ast.Call) for keyword in node.keywords}
    keys = {getattr(key, "value", None) for node in NODES if isinstance(node, ast.Dict) for key in node.keys}
    return keywords | keys


def test_each_name_stands_in_a_cell():
    used = {node.attr for node in NODES if isinstance(node, ast.Attribute)}
    used |= {alias.name for node in NODES if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(bt.__all__) - used == OFFERED


SETTINGS = {
    "Model": Settings.__annotations__,
    "Pipeline": inspect.signature(bt.Pipeline).parameters,
    "Resume": inspect.signature(bt.Resume).parameters,
    "plan_step": inspect.signature(bt.plan_step).parameters,
    "preflight": inspect.signature(bt.preflight).parameters,
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_each_setting_stands_in_a_cell(settings):
    assert set(settings) - named() <= BY_PLACE
