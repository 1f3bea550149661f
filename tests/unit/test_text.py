"""Text: the standard library's sources and a reader's own folder, split by files."""

import pytest

from bigtrain_nb.advanced.text.text_data import source_text, text_folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def sources(cache):
    return source_text(0.5, cache=cache)


@pytest.fixture
def folder(tmp_path):
    """Ten files of 1000 bytes, each of a different letter, some in a subfolder."""
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
    size = sources.train_bytes + sources.test_bytes
    assert 490_000 < size <= 500_000 and 0.05 < sources.test_bytes / size < 0.3
    text = sources.train.read_text(encoding="utf-8")
    assert len(sources.train.read_bytes()) == sources.train_bytes
    assert text.count("def ") > 100 and sources.files > 10


def test_a_folders_files_go_whole_into_train_or_test(folder, read):
    data = read(folder, test_fraction=0.3)
    assert (data.train_bytes, data.test_bytes, data.files) == (7000, 3000, 10)
    train, test = data.train.read_text(), data.test.read_text()
    assert set(train) & set(test) == {"\n"} and set(train + test) == set("abcdefghij\n")


def test_a_pattern_chooses_files_and_a_change_is_seen(folder, read):
    assert read(folder, "*.txt").files == 5
    assert read(folder, "**/[a-c].txt").files == 3
    assert read(folder) == read(folder)
    (folder / "k.txt").write_text("k" * 500)
    assert read(folder).files == 11


def test_a_single_file_is_cut_between_characters(tmp_path, read):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "input.txt").write_bytes(("é\r\n" * 100).encode())
    data = read(tmp_path / "one", test_fraction=0.25)
    assert data.files == 1 and data.train.read_bytes().decode() == "é\r\n" * 75
    assert data.train.read_bytes() + data.test.read_bytes() == ("é\r\n" * 100).encode()


def test_of_a_few_bytes_both_parts_are_made(tmp_path, read):
    (tmp_path / "few").mkdir()
    (tmp_path / "few" / "a.txt").write_text("hey\n")
    text = read(tmp_path / "few")
    assert [bytes(text.array(split)) for split in ("train", "test")] == [b"hey", b"\n"]
    (tmp_path / "few" / "a.txt").write_text("h")
    assert bytes(read(tmp_path / "few").array("test")) == b""


@pytest.mark.parametrize(
    ("sizes", "train", "test"),
    [
        ({"b": 10_000, **dict.fromkeys("cdefgh", 500)}, 11_500, 1_500),  # three whole ones
        (dict.fromkeys("abc", 1_000), 2_700, 300),  # none fits: the end of one
        ({"l": 9_900, "r": 100}, 9_000, 1_000),  # all that fit are too little: also the end of the largest
    ],
)
def test_of_unlike_files_those_that_fit_are_the_test_text_or_the_end_of_the_largest(tmp_path, read, sizes, train, test):
    folder = tmp_path / "unlike"
    folder.mkdir()
    for letter, size in sizes.items():
        (folder / f"{letter}.txt").write_text(letter * size)
    data = read(folder, test_fraction=0.1)
    assert (data.train_bytes, data.test_bytes) == (train, test)


def test_files_that_are_not_text_are_named(folder, read, tmp_path):
    (folder / "latin.txt").write_bytes("é".encode("latin-1"))
    (folder / "more" / "binary.txt").write_bytes(bytes(range(256)))
    with pytest.raises(ValueError, match="2 of 12 files are not UTF-8 text") as caught:
        read(folder)
    assert str(caught.value).splitlines()[1:] == ["latin.txt", "more/binary.txt"]
    assert not list((tmp_path / "cache").iterdir())


def test_copies_in_a_cache_within_the_folder_are_not_read_again(tmp_path):
    (tmp_path / "one.txt").write_text("words " * 100)
    found = [text_folder(tmp_path, cache=tmp_path / "cache") for _ in range(2)]
    assert found[0] == found[1] and found[0].files == 1
