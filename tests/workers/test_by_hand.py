"""Notebook 03's cell that starts two workers without a helper: whatever they do, none remains."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "03-many-workers.ipynb"
CELLS = {cell["id"]: "".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]}
FIRST = "import json, os; config = json.loads(os.environ['TF_CONFIG']); first = config['task']['index'] == 0\n"


@pytest.fixture
def start(tmp_path):
    """A function that starts a script as the cell does."""

    def run(code, seconds=50):
        script = tmp_path / "script.py"
        script.write_text(FIRST + code)
        names = {"json": json, "os": os, "socket": socket, "subprocess": subprocess, "sys": sys, "script": script}
        exec(CELLS["tf-config-whole"], names)
        exec(CELLS["stock-start"].replace("timeout=50", f"timeout={seconds}"), names)

    return run


def test_an_error_is_shown_and_workers_that_wait_for_ever_are_killed(start, watch):
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        start("if not first: 1 / 0")
    with pytest.raises(subprocess.TimeoutExpired):
        start("import time\nwhile first: time.sleep(1)", seconds=1)
    watch.nothing_left()
