"""The score over the series: noted beside the notebooks by a reader's kernel, and by no other."""

import json

import pytest

from bigtrain_nb.workbook import scores
from bigtrain_nb.workbook.scores import FILE


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    return tmp_path


def summary(*counts):
    return dict(zip(["predictions", "hits", "within_twice", "exercises", "right"], counts, strict=True))


@pytest.fixture
def note(monkeypatch):
    """Note a summary in the kernel of a notebook; return the lines of the table, by what they begin with."""

    def noted(notebook, *counts):
        monkeypatch.setenv("JPY_SESSION_NAME", f"notebooks/{notebook}.ipynb")
        text = str(scores.table(scores.noted(summary(*counts))))
        lines = [line.split(maxsplit=1) for line in text.splitlines()]
        return {first: " ".join(others.split()) for first, others in lines}

    return noted


def test_a_kernel_that_no_server_started_notes_nothing(folder):
    text = str(scores.table(scores.noted(summary(1, 1, 1, 0, 0))))
    assert "this notebook" in text and "together" in text
    assert list(folder.iterdir()) == []


def test_the_last_notebook_shows_all_that_came_before(note):
    note("00-first", 2, 1, 2, 4, 4)
    lines = note("01-second", 1, 0, 0, 3, 1)
    assert lines["00-first"] == "1 of 2 2 of 2 4 of 4"
    assert lines["01-second"] == "0 of 1 0 of 1 1 of 3"
    assert lines["together"] == "1 of 3 2 of 3 5 of 7"


def test_a_notebook_that_is_worked_through_again_replaces_its_line(note):
    note("00-first", 1, 0, 0, 0, 0)
    assert note("00-first", 1, 1, 1, 0, 0)["together"].startswith("1 of 1")


@pytest.mark.parametrize("content", ["", '{"00-first": {"pred'])
def test_a_damaged_file_is_made_anew(note, folder, content):
    (folder / FILE).write_text(content)
    assert note("00-first", 1, 0, 1, 0, 0)["00-first"].startswith("0 of 1 1 of 1")
    assert list(json.loads((folder / FILE).read_text())) == ["00-first"]


def test_a_folder_that_cannot_be_written_shows_this_notebook(note, monkeypatch):
    def refuse(*_):
        raise PermissionError("read-only")

    monkeypatch.setattr(scores, "write_text", refuse)
    assert note("00-first", 1, 1, 1, 0, 0)["00-first"].startswith("1 of 1")
