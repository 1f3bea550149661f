"""The address of the repository stands in one place, and every link to it follows."""

import shutil

import notebook_rules as rules
import repository

ROOT = repository.ROOT


def first_cells(root):
    return {path.name: rules.read(path).cells[0].source for path in (root / "notebooks").glob("*.ipynb")}


def test_each_notebook_says_how_it_opens_elsewhere():
    address = repository.address()
    place = address.removeprefix("https://github.com/")
    for name, source in first_cells(ROOT).items():
        assert repository.opening(source, name, address) == source, "run tools/repository.py"
        assert f"https://colab.research.google.com/github/{place}/blob/main/notebooks/{name})" in source


def test_a_move_is_written_everywhere_and_nothing_else(tmp_path, capsys):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "notebooks").mkdir()
    for path in (ROOT / "notebooks").glob("0[01]*.ipynb"):
        shutil.copy(path, tmp_path / "notebooks")
    before = first_cells(tmp_path)
    old, new = repository.address(), "https://github.com/ann/big.train"
    assert repository.main([new], tmp_path) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    said = (tmp_path / "pyproject.toml").read_text()
    assert old not in said and said.replace(new, old) == (ROOT / "pyproject.toml").read_text()
    for name, source in first_cells(tmp_path).items():
        assert source == before[name].replace(f"/{old.removeprefix('https://github.com/')}/", "/ann/big.train/")
        assert rules.read(tmp_path / "notebooks" / name).cells[1:] == rules.read(ROOT / "notebooks" / name).cells[1:]
    assert repository.main([], tmp_path) == 0 and capsys.readouterr().out == ""


def test_an_address_that_colab_cannot_open_is_refused(tmp_path, capsys):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    assert repository.main(["https://example.com/ann/train"], tmp_path) == 1
    assert "'https://example.com/ann/train' is not like https://github.com/owner/name" in capsys.readouterr().err
    assert (tmp_path / "pyproject.toml").read_text() == (ROOT / "pyproject.toml").read_text()
