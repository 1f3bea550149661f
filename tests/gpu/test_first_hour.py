"""The first hour on a machine with NVIDIA GPUs: do our promises hold? Each check has a separate process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from checks import CHECKS

from bigtrain_nb.common.hardware import nvidia_gpus

HERE = Path(__file__).parent
NOTEBOOKS = sorted((HERE.parents[1] / "notebooks").glob("[01][0-9]-*.ipynb"))[2:]
CELL_SECONDS = 600


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.timeout(2700)
def test_check(name):
    check = CHECKS[name]
    if len(nvidia_gpus()) < check.gpus:
        pytest.skip(f"needs {check.gpus} GPUs")
    command = [sys.executable, HERE / "checks.py", "check", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=check.seconds, check=False)
    print(done.stdout)
    assert done.returncode == 0, f"{check.advice}\n{(done.stderr or done.stdout)[-2000:]}"


@pytest.mark.parametrize("count", [1, 2, "all"])
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.timeout(7200)
def test_notebook(notebook, count):
    gpus = nvidia_gpus()
    if count == "all" and len(gpus) < 3 or count == 2 and len(gpus) < 2:
        pytest.skip("it ran with all GPUs, or there are too few")
    chosen = gpus if count == "all" else gpus[:count]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(chosen)}
    command = [sys.executable, "-m", "pytest", "-q", f"--nbval-cell-timeout={CELL_SECONDS}", notebook]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    said = done.stdout[-3000:]
    if "kernel died" in done.stdout:
        command = [sys.executable, HERE.parents[1] / "tools" / "last_words.py", notebook]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        said += subprocess.run(command, env=environment, check=False, **pipes).stdout[-3000:]
    assert done.returncode == 0, said
