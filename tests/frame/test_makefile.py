"""The set-up in the Makefile: when .venv is made, from what, and what is said where that cannot be."""
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAKE_PYTHON = """#!/bin/sh
echo "$(basename "$0") $*" >> "$CALLS"
case "$1 $2" in
    "-c "*) echo "$0" ;;
    "-m venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    "-m pip") [ ! -e offline ] ;;
esac
"""


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Call make in a copy of the project where Python is a fake: what it was called with, and what make printed."""
    folder = tmp_path / "my project"
    (folder / "tools").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "tools/jupyterlab.json"):
        shutil.copy(ROOT / name, folder / name)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in [("python3.13", FAKE_PYTHON), ("other", FAKE_PYTHON), ("nvidia-smi", "#!/bin/sh\n[ -e gpu ]")]:
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    calls = tmp_path / "calls"
    for name in ("PYTHON", "MAKEFLAGS", "MAKELEVEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(calls))

    def run(*words, folder=folder):
        calls.write_text("")
        made = subprocess.run(["make", *words], cwd=folder, capture_output=True, text=True)
        return calls.read_text(), made.stdout + made.stderr

    run.folder = folder
    return run


def test_venv_is_made_once_and_afresh_when_something_changes(make):
    venv, pip, ruff = "-m venv .venv", '-e .[book,test]', "python -m ruff check ."
    first, _ = make("lint")
    assert first.index(venv) < first.index(pip) < first.index(ruff)
    assert make("lint")[0] == ruff + "\n"
    for name in ("pyproject.toml", "constraints.txt"):
        later = (make.folder / ".venv" / "ready").stat().st_mtime + 5
        os.utime(make.folder / name, (later, later))
        assert venv in make("lint")[0]
        os.utime(make.folder / name, (0, 0))
    assert "other -m venv" in make("lint", "PYTHON=other")[0]
    assert make("lint")[0] == ruff + "\n", "the Python that was chosen stays"
    make.folder.rename(make.folder.with_name("moved"))
    assert venv in make("lint", folder=make.folder.with_name("moved"))[0]


def test_a_set_up_that_did_not_end_begins_again(make):
    (make.folder / "offline").touch()
    assert "ruff" not in make("lint")[0]
    (make.folder / "offline").unlink()
    assert "-m venv .venv" in make("lint")[0]


def test_a_gpu_brings_cudas_libraries_and_jupyterlab_asks_nothing(make):
    (make.folder / "gpu").touch()
    assert "-e .[book,test,gpu]" in make("lint")[0]
    assert "fetchNews" in (make.folder / ".venv/share/jupyter/lab/settings/overrides.json").read_text()


@pytest.mark.parametrize("python, named", [("", "none on PATH"), ("/usr/bin/false", "/usr/bin/false")])
def test_without_a_python_that_fits_make_says_so_in_a_sentence(make, python, named):
    calls, printed = make("lint", f"PYTHON={python}")
    assert f"Python 3.11 to 3.13 with its venv module is needed, and {named} is not" in printed
    assert calls == "" and not (make.folder / ".venv").exists()
