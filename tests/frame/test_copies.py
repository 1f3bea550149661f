"""The reader's copies in my/: made from all notebooks, self-contained, and ignored by tests."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bigtrain_nb.unpack import main
from bigtrain_nb.workbook import copies, record
from bigtrain_nb.workbook.predictions import Prediction

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LINK = re.compile(r"""\]\(([^)#]+)(?:#[^)]*)?\)|src="([^"]+)\"""")


@pytest.fixture(scope="module")
def my(tmp_path_factory):
    """The copies as made by `make lab`, but in an empty folder."""
    folder = tmp_path_factory.mktemp("checkout") / "my"
    main([*map(str, NOTEBOOKS), str(folder)])
    return folder


def test_the_evening_is_copied_of_each_notebook_that_has_one(my):
    made = {path.name for path in my.glob("evening-*.ipynb")}
    assert made == {f"evening-{path.name}" for path in NOTEBOOKS if '"evening"' in path.read_text()}
    assert all(path.stem < "06" for path in NOTEBOOKS if f"evening-{path.name}" in made)


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
            if not place.is_relative_to(my):  # next to my/, as it is next to notebooks/
                place = ROOT / place.relative_to(my.parent)
            assert place.exists(), f"{path.name}: {target}"
    assert links > 100


def test_scripts_are_imported_from_the_copies(my):
    code = "from importlib.util import find_spec; print(find_spec('scripts.next_byte').origin)"
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


NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "id": "title", "metadata": {}, "source": ["# Title"]},
        {
            "cell_type": "code",
            "id": "ask",
            "metadata": {"tags": ["deterministic"], "exercise": "a.b", "collapsed": True},
            "source": ["bt.predict(...)"],
            "outputs": [{"output_type": "stream", "name": "stdout", "text": ["author's"]}],
            "execution_count": 3,
        },
    ],
    "metadata": {"bigtrain": {"rendered": "seal"}, "kernelspec": {"name": "python3"}},
    "nbformat": 4,
    "nbformat_minor": 5,
}


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A notebook in the current folder."""
    monkeypatch.chdir(tmp_path)
    notebook = tmp_path / "00-first.ipynb"
    notebook.write_text(json.dumps(NOTEBOOK))
    return notebook


def test_a_copy_is_made_and_the_notebook_stays_as_it_is(shipped, tmp_path, capsys):
    before = shipped.read_bytes()
    main(["00-first.ipynb", "my"])
    assert "my/00-first.ipynb: made" in capsys.readouterr().out
    made = copies.read("my/00-first.ipynb")
    cells = [(cell["id"], cell["source"]) for cell in made["cells"]]
    assert cells == [("title", "# Title"), ("ask", "bt.predict(...)")]
    assert made["cells"][1]["outputs"] == [] and made["cells"][1]["execution_count"] is None
    assert made["cells"][1]["metadata"] == {"tags": ["deterministic"], "exercise": "a.b"}
    assert made["metadata"]["kernelspec"] == {"name": "python3"} and "rendered" not in made["metadata"]["bigtrain"]
    assert shipped.read_bytes() == before
    assert (tmp_path / "my" / "scripts" / "train_photos.py").exists() and not (tmp_path / "scripts").exists()


def test_a_copy_that_is_there_is_never_touched_and_an_old_one_is_named(shipped, tmp_path, capsys):
    main(["00-first.ipynb", "my"])
    mine = tmp_path / "my" / "00-first.ipynb"
    mine.write_text(mine.read_text().replace("bt.predict(...)", "bt.predict(3)"))
    written = mine.read_bytes()
    capsys.readouterr()
    main(["00-first.ipynb", "my"])
    assert mine.read_bytes() == written and capsys.readouterr().out == ""
    opened = NOTEBOOK["metadata"] | {"language_info": {"name": "python", "version": "3.13"}}  # as Jupyter saves it
    shipped.write_text(json.dumps(NOTEBOOK | {"metadata": opened}))
    main(["00-first.ipynb", "my"])
    assert capsys.readouterr().out == ""
    shipped.write_text(json.dumps(NOTEBOOK).replace("# Title", "# Better title"))
    main(["00-first.ipynb", "my"])
    assert mine.read_bytes() == written
    assert "my/00-first.ipynb is a copy of another version and is unchanged" in capsys.readouterr().out
    mine.rename(tmp_path / "my" / "my-00-first.ipynb")
    main(["00-first.ipynb", "my"])
    assert copies.read(mine)["cells"][0]["source"] == "# Better title"


@pytest.mark.parametrize("damaged", [b"{", b"[]", b"\xff", b'{"cells": [3]}'])
def test_a_copy_that_cannot_be_read_is_left_and_named(shipped, tmp_path, capsys, damaged):
    mine = tmp_path / "my" / "00-first.ipynb"
    mine.parent.mkdir()
    mine.write_bytes(damaged)
    main(["00-first.ipynb", "my"])
    assert "my/00-first.ipynb is unchanged: it cannot be read" in capsys.readouterr().out
    assert mine.read_bytes() == damaged


def test_a_copy_made_anew_begins_a_fresh_round(shipped, tmp_path):
    main(["00-first.ipynb", "my"])
    folder = tmp_path / "my"
    record.write(folder, {"00-first": record.Notes({"one": [Prediction("one")]})})
    main(["00-first.ipynb", "my"])
    assert list(record.read(folder)) == ["00-first"]
    (folder / "00-first.ipynb").unlink()
    main(["00-first.ipynb", "my"])
    (name,) = record.read(folder)
    assert name.startswith("00-first (until 20")


@pytest.fixture
def evening(shipped):
    """The notebook has evening cells, and so has the second of the two linked in its last cell."""
    notebook = json.loads(json.dumps(NOTEBOOK))
    title, ask = notebook["cells"]
    title["metadata"] = {"tags": ["evening"]}
    ask["metadata"]["tags"].append("evening")
    other = ask | {"id": "other", "metadata": {}, "source": ["1 / 0"]}
    links = ["**Next:** [02](02-second.ipynb), [01](01-first.ipynb#Place)"]
    notebook["cells"] = [title, other, ask, title | {"id": "next", "source": links}]
    for name in ("00-first", "02-second"):
        shipped.with_name(f"{name}.ipynb").write_text(json.dumps(notebook))
    shipped.with_name("01-first.ipynb").write_text(json.dumps(NOTEBOOK))
    return shipped


def test_the_evening_has_its_cells_alone_and_leads_to_the_next(evening, tmp_path, capsys):
    main(["00-first.ipynb", "01-first.ipynb", "my"])
    said = capsys.readouterr().out
    assert "my/00-first.ipynb: made" in said and "my/evening-00-first.ipynb: made" in said
    assert not (tmp_path / "my" / "evening-01-first.ipynb").exists()
    made = copies.read("my/evening-00-first.ipynb")["cells"]
    assert [cell["id"] for cell in made] == ["title", "ask", "next"] and made[1]["outputs"] == []
    assert made[1]["metadata"]["tags"] == ["deterministic", "evening"]
    assert made[2]["source"] == "**Next:** [02](evening-02-second.ipynb), [01](01-first.ipynb#Place)"
    assert copies.read("my/00-first.ipynb")["cells"][3]["source"].startswith("**Next:** [02](02-second")
    made[1]["source"] = "mine"
    Path("my/evening-00-first.ipynb").write_text(json.dumps({"cells": made, "metadata": {}}))
    main(["00-first.ipynb", "01-first.ipynb", "my"])
    assert "my/evening-00-first.ipynb is a copy of another version" in capsys.readouterr().out
    assert copies.read("my/evening-00-first.ipynb")["cells"][1]["source"] == "mine"


def test_links_of_the_evening_to_sections_that_it_lacks_lead_to_the_whole_notebook(tmp_path):
    text = "## Here\n\n[here](#Here), [further](#Far-away)"
    first = {
        "cell_type": "markdown",
        "id": "title",
        "metadata": {"tags": ["evening"]},
        "source": "# Title\n\n**Takes** about 45 minutes to work through; **Further** another 20;"
        " the short track (☾) 20.",
    }
    cells = [first, first | {"id": "here", "source": text}]
    notebook = tmp_path / "00-first.ipynb"
    notebook.write_text(json.dumps(NOTEBOOK | {"cells": cells}))
    copies.make_evening(notebook, tmp_path / "my")
    title, here = copies.read(tmp_path / "my" / "evening-00-first.ipynb")["cells"]
    assert here["source"] == "## Here\n\n[here](#Here), [further](00-first.ipynb#Far-away)"
    assert "is in [the full notebook](00-first.ipynb).\n\n**Takes** about 20 minutes." in title["source"]


def test_a_new_copy_of_the_evening_leaves_what_is_noted(evening, tmp_path):
    main(["00-first.ipynb", "my"])
    folder = tmp_path / "my"
    record.write(folder, {"00-first": record.Notes({"one": [Prediction("one")]})})
    (folder / "evening-00-first.ipynb").unlink()
    main(["00-first.ipynb", "my"])
    assert (folder / "evening-00-first.ipynb").exists() and list(record.read(folder)) == ["00-first"]


def test_what_cannot_be_is_said(shipped, tmp_path):
    with pytest.raises(SystemExit, match="00-first.ipynb is the notebook itself: choose another folder"):
        main(["00-first.ipynb"])
    with pytest.raises(SystemExit, match="No such file .*missing.ipynb"):
        main(["missing.ipynb", "my"])
    (tmp_path / "bad.ipynb").write_text("{}")
    with pytest.raises(SystemExit, match="bad.ipynb is not a notebook: KeyError"):
        main(["bad.ipynb", "my"])
