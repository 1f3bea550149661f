"""The reader's copies in my/: made from all notebooks, whole in themselves, and looked at by no test."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bigtrain_nb.unpack import main
from bigtrain_nb.workbook import copies

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LINK = re.compile(r"""\]\(([^)#]+)(?:#[^)]*)?\)|src="([^"]+)\"""")


@pytest.fixture(scope="module")
def my(tmp_path_factory):
    """As `make lab` makes them, but in a folder where nothing else is."""
    folder = tmp_path_factory.mktemp("checkout") / "my"
    main([*map(str, NOTEBOOKS), str(folder)])
    return folder


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_copy_has_the_cells_of_the_notebook_without_outputs(my, path):
    shipped, mine = copies.read(path), copies.read(my / path.name)
    assert [(cell["id"], cell["source"]) for cell in mine["cells"]] == [
        (cell["id"], cell["source"]) for cell in shipped["cells"]
    ]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in mine["cells"])
    assert [cell["metadata"].get("exercise") for cell in mine["cells"]] == [
        cell["metadata"].get("exercise") for cell in shipped["cells"]
    ]


def test_links_and_pictures_of_the_copies_lead_somewhere(my):
    texts = {path: path.read_text() for path in my.rglob("*.md")}
    for path in my.glob("*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        texts[path] = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    links = 0
    for path, text in texts.items():
        for link in LINK.findall(text):
            target = link[0] or link[1]
            if target.startswith("http"):
                continue
            links += 1
            place = (path.parent / target).resolve()
            if not place.is_relative_to(my):  # beside my/, as it is beside notebooks/
                place = ROOT / place.relative_to(my.parent)
            assert place.exists(), f"{path.name}: {target}"
    assert links > 100


def test_scripts_are_imported_from_the_copies(my):
    code = "import scripts.next_byte as one; print(one.__file__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=my, capture_output=True, text=True)
    assert done.stdout.startswith(str(my)), done.stderr


def test_pytest_ruff_and_git_look_at_no_copies(tmp_path):
    for name in ("conftest.py", "pyproject.toml", ".gitignore"):
        shutil.copy(ROOT / name, tmp_path / name)
    for folder in ("tests", "tools"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("unit", "frame", "workers"))
    my = tmp_path / "my"
    my.mkdir()
    (my / "test_mine.py").write_text("import nothing_there\ndef test_mine(): assert False")
    shutil.copy(NOTEBOOKS[0], my)
    (tmp_path / "test_other.py").write_text("import os\n\n\ndef test_other():\n    pass\n")
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", ".", "--ignore=tests"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    assert "test_other" in found and "my/" not in found, found
    ruff = [sys.executable, "-m", "ruff", "check", "--no-cache", "."]
    said = subprocess.run(ruff, cwd=tmp_path, capture_output=True, text=True).stdout
    assert "test_other.py" in said and "test_mine" not in said, said
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    ignored = subprocess.run(["git", "check-ignore", "my/test_mine.py"], cwd=tmp_path, capture_output=True, text=True)
    assert ignored.stdout == "my/test_mine.py\n"
