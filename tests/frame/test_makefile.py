"""The Makefile's setup: when and from what .venv is created, and the error messages if it cannot be."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VENV, PIP = "-m venv .venv", "-e .[workbook,book,test,hub]"
LINT = "python -m ruff check .\npython -m codespell_lib"
FAKE_PYTHON = """#!/bin/sh
echo "$(basename "$0") $*" >> ../calls
case "$1 $2" in
    "-c "*) echo "$0" ;;
    "-m venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    "-m pip") [ ! -e offline ] ;;
esac
"""


@pytest.fixture
def lint(tmp_path, monkeypatch):
    """A function: call `make lint` in a copy of the project with a fake Python; return its calls and make's output."""
    folder = tmp_path / "my project"
    (folder / "tools").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "tools/jupyterlab.json"):
        shutil.copy(ROOT / name, folder / name)
    for name, text in [("python3.13", FAKE_PYTHON), ("other", FAKE_PYTHON), ("nvidia-smi", "#!/bin/sh\n[ -e gpu ]")]:
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.chdir(folder)

    def call(*words):
        Path("../calls").write_text("")
        path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        made = subprocess.run(["make", "lint", *words], env=path, capture_output=True, text=True)
        return Path("../calls").read_text(), made.stdout + made.stderr

    return call


def test_venv_is_made_once_and_afresh_when_something_changes(lint):
    first, _ = lint()
    assert first.index(VENV) < first.index(PIP) < first.index(LINT)
    assert lint()[0] == LINT + "\n"
    for name in ("pyproject.toml", "constraints.txt"):
        later = os.path.getmtime(".venv/ready") + 5
        os.utime(name, (later, later))
        assert VENV in lint()[0]
        os.utime(name, (0, 0))
    assert f"other {VENV}" in lint("PYTHON=other")[0]
    assert lint()[0] == LINT + "\n", "the Python that was chosen stays"
    os.rename("../my project", "../moved")
    os.chdir("../moved")
    assert VENV in lint()[0]


def test_a_set_up_that_did_not_end_begins_again(lint):
    Path("offline").touch()
    assert LINT not in lint()[0]
    Path("offline").unlink()
    assert VENV in lint()[0]


def test_a_gpu_brings_cudas_libraries(lint):
    Path("gpu").touch()
    assert "-e .[workbook,book,test,hub,gpu]" in lint()[0]


@pytest.mark.parametrize("python, named", [("", "none on PATH"), ("/usr/bin/false", "/usr/bin/false")])
def test_without_a_python_that_fits_make_says_so_in_a_sentence(lint, python, named):
    _, printed = lint(f"PYTHON={python}")
    assert f"Python 3.11 to 3.13 with its venv module is needed, and {named} is not" in printed
    assert not os.path.exists(".venv")
