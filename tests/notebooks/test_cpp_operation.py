"""Notebook 14's cells on a C++ operation, on a machine without a compiler."""

import shutil
from pathlib import Path

import notebook_rules as rules
import numpy as np

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "14-shrink-it-hand-it-on.ipynb"
CELLS = ("cpp-build", "cpp-gradient", "cpp-fit")


def test_without_a_compiler_the_cells_say_so_and_run(monkeypatch, capsys):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    sources = {cell.id: cell.source for cell in rules.code_cells(rules.read(NOTEBOOK))}
    known = {"tf": tf, "keras": keras, "np": np}
    bt.devices()  # splits the CPU before TensorFlow is initialized
    for name in CELLS:
        exec(sources[name], known)
    assert "no g++" in capsys.readouterr().out
