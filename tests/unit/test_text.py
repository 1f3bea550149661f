"""Text: the standard library's sources and a reader's own folder, split into whole files."""

import re
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from bigtrain_nb.data.text import source_text, text_folder


def made(tmp_path):
    cache = tmp_path / "cache"
    return [path.name for path in cache.iterdir()] if cache.exists() else []


@pytest.fixture
def sources(tmp_path):
    def sources(megabytes=0.5, **settings):
        return source_text(megabytes, **{"cache": tmp_path / "cache", **settings})

    return sources


@pytest.fixture
def folder(tmp_path):
    """Ten files of 1000 bytes, each of its own letter, some of them in a folder further down."""
    folder = tmp_path / "texts"
    (folder / "more").mkdir(parents=True)
    for i, letter in enumerate("abcdefghij"):
        (folder / ("more" if i % 2 else "") / f"{letter}.txt").write_text(letter * 999 + "\n")
    return folder


@pytest.fixture
def read(tmp_path):
    def read(folder, *args, **settings):
        return text_folder(folder, *args, **{"cache": tmp_path / "cache", **settings})

    return read


def test_source_text_is_python_of_the_size_asked_for(sources):
    data = sources()
    assert 490_000 < data.train_bytes + data.test_bytes <= 500_000
    assert 0.05 < data.test_bytes / (data.train_bytes + data.test_bytes) < 0.3
    text = data.train.read_text(encoding="utf-8")
    assert len(data.train.read_bytes()) == data.train_bytes and text.count("def ") > 100 and data.files > 10


def test_source_text_is_made_of_whole_library_files_none_in_both(sources):
    data = sources(0.2)
    library = Path(sysconfig.get_path("stdlib"))
    train, test = data.train.read_bytes(), data.test.read_bytes()
    found = []
    for path in library.rglob("*.py"):
        content = path.read_bytes()
        if len(content) > 2000 and (content in train or content in test):
            assert not (content in train and content in test), path
            found.append(path.relative_to(library))
    assert len(found) > data.files / 2
    assert not any({"site-packages", "test", "tests"} & set(path.parts) for path in found)


def test_source_text_repeats_and_follows_the_seed(sources, tmp_path):
    data = sources()
    before = data.train.stat().st_mtime_ns
    assert sources() == data and data.train.stat().st_mtime_ns == before
    other = sources(cache=tmp_path / "other")
    assert other.train.read_bytes() == data.train.read_bytes() and other.test.read_bytes() == data.test.read_bytes()
    assert sources(seed=1).train.read_bytes() != data.train.read_bytes()


def test_source_text_damage_is_healed(sources):
    data = sources()
    good = data.train.read_bytes()
    data.train.write_bytes(good[:-1])
    data.test.unlink()
    assert sources() == data and data.train.read_bytes() == good


def test_source_text_gives_what_there_is(sources):
    data = sources(1000)
    assert 2e6 < data.train_bytes + data.test_bytes < 30e6


@pytest.mark.parametrize("value", [0, -1, 0.01, "many", True, float("nan"), float("inf")])
def test_source_text_refuses_nonsense(sources, tmp_path, value):
    with pytest.raises(ValueError, match=rf"megabytes={value!r} must be a number of at least 0\.1"):
        sources(value)
    assert made(tmp_path) == []


def test_the_array_is_the_text(sources):
    data = sources()
    assert data.array().dtype == np.uint8 and data.array().shape == (data.train_bytes,)
    assert data.array("test").tobytes() == data.test.read_bytes()
    with pytest.raises(ValueError, match="split='valid' must be 'train' or 'test'"):
        data.array("valid")


def test_a_folders_files_go_whole_into_train_or_test(folder, read):
    data = read(folder, test_fraction=0.3)
    assert (data.train_bytes, data.test_bytes, data.files, data.skipped) == (7000, 3000, 10, ())
    train, test = data.train.read_text(), data.test.read_text()
    assert set(train) & set(test) == {"\n"} and set(train + test) == set("abcdefghij\n")


def test_a_pattern_chooses_files(folder, read):
    assert read(folder, "*.txt").files == 5
    assert read(folder, "**/[a-c].txt").files == 3
    (folder / "notes.md").write_text("notes\nnotes\n")
    assert read(folder, "*.md").files == 1


def test_a_folder_is_read_again_when_it_changes(folder, read):
    first = read(folder)
    assert read(folder) == first
    (folder / "k.txt").write_text("k" * 500)
    assert read(folder).files == 11


def test_a_single_file_is_cut_between_characters(tmp_path, read):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "input.txt").write_bytes(("é\r\n" * 100).encode())
    data = read(tmp_path / "one", test_fraction=0.25)
    assert data.files == 1 and data.train.read_bytes().decode() == "é\r\n" * 75
    assert data.train.read_bytes() + data.test.read_bytes() == ("é\r\n" * 100).encode()
    (tmp_path / "one" / "input.txt").write_text("a")
    with pytest.raises(ValueError, match=r"input\.txt has 1 characters: too few"):
        read(tmp_path / "one")


def test_two_files_give_one_each(tmp_path, read):
    (tmp_path / "two").mkdir()
    for name in "ab":
        (tmp_path / "two" / f"{name}.txt").write_text(name * 10)
    data = read(tmp_path / "two", test_fraction=0.9)
    assert (data.train_bytes, data.test_bytes) == (10, 10)


def test_files_that_are_not_text_are_named_or_left_out(folder, read, tmp_path):
    (folder / "latin.txt").write_bytes("é".encode("latin-1"))
    (folder / "more" / "binary.txt").write_bytes(bytes(range(256)))
    with pytest.raises(ValueError, match="2 of 12 files cannot be read as UTF-8 text") as caught:
        read(folder)
    assert str(caught.value).splitlines()[1:] == ["latin.txt", "more/binary.txt"]
    assert made(tmp_path) == []
    data = read(folder, skip_damaged=True)
    assert data.files == 10 and data.skipped == ("latin.txt", "more/binary.txt")


def test_folders_without_text(tmp_path, read):
    with pytest.raises(FileNotFoundError, match="none: there is no such folder"):
        read(tmp_path / "none")
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "empty.txt").touch()
    (tmp_path / "none" / ".hidden.txt").write_text("hidden")
    with pytest.raises(ValueError, match=r"none holds no text: .* matches pattern='\*\*/\*\.txt'"):
        read(tmp_path / "none")
    assert made(tmp_path) == []


@pytest.mark.parametrize(
    "setting, value, allowed",
    [
        ("pattern", "", "a pattern below the folder"),
        ("pattern", ".", "a pattern below the folder"),
        ("pattern", "/etc/*", "a pattern below the folder"),
        ("pattern", None, "a pattern below the folder"),
        ("test_fraction", 1, "between 0 and 1"),
        ("seed", 1.5, "a whole number"),
    ],
)
def test_bad_settings_are_refused(folder, read, tmp_path, setting, value, allowed):
    with pytest.raises(ValueError, match=re.escape(f"{setting}={value!r} must be ") + f".*{allowed}"):
        read(folder, **{setting: value})
    assert made(tmp_path) == []
