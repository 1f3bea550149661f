"""tools/last_words.py shows a kernel's last output before it died."""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

TOOL = Path(__file__).resolve().parents[2] / "tools" / "last_words.py"


def last_words(folder, *sources):
    path = folder / "one.ipynb"
    cells = [new_code_cell(source, id=f"cell-{number}") for number, source in enumerate(sources)]
    nbformat.write(new_notebook(cells=cells), path)
    return subprocess.run([sys.executable, TOOL, path], capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.more("a kernel that dies, for a tool that shows what nbval leaves out")
def test_the_cell_and_the_reason_are_named(tmp_path):
    done = last_words(tmp_path, "import os", "os.write(2, b'Check failed: ')\nos.abort()", "unreached = 1")
    assert done.returncode == 1 and "died in the last cell named above" in done.stderr
    assert "cell 1 (cell-1)" in done.stderr and "cell-2" not in done.stderr
    assert "Check failed: " in done.stderr and "Fatal Python error: Aborted" in done.stderr
