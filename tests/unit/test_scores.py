"""The score over the series: noted beside the notebooks by a reader's kernel, and by no other."""

import json

import pytest

from bigtrain_nb.workbook import scores, workbook
from bigtrain_nb.workbook.scores import FILE, Summary


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.setattr(workbook, "_predictions", {})
    monkeypatch.setattr(workbook, "_checked", {})
    return tmp_path


def work_through(monkeypatch, notebook, *said):
    """Predict 2 several times, as ``said``, in the kernel of a notebook; return what the score says."""
    monkeypatch.setenv("JPY_SESSION_NAME", f"notebooks/{notebook}.ipynb")
    monkeypatch.setattr(workbook, "_predictions", {})
    for place, value in enumerate(said):
        workbook.predict(f"speedup {place}", value, "x")
        workbook.reveal(f"speedup {place}", 2.0)
    return str(workbook.score(series=True))


def line(text, name):
    return next(" ".join(found.split()) for found in text.splitlines() if found.startswith(name))


def test_a_kernel_that_no_server_started_notes_nothing(folder):
    workbook.predict("speedup", 2.0)
    workbook.reveal("speedup", 2.0)
    text = str(workbook.score(series=True))
    assert "this notebook" in text and "together" in text
    assert list(folder.iterdir()) == []


def test_the_last_notebook_shows_all_that_came_before(monkeypatch):
    work_through(monkeypatch, "00-first", 2.0, 3.0)
    text = work_through(monkeypatch, "01-second", 9.0)
    assert line(text, "00-first") == "00-first 1 of 2 2 of 2 0 of 0"
    assert line(text, "01-second") == "01-second 0 of 1 0 of 1 0 of 0"
    assert line(text, "together") == "together 1 of 3 2 of 3 0 of 0"


def test_a_notebook_that_is_worked_through_again_replaces_its_line(monkeypatch):
    work_through(monkeypatch, "00-first", 9.0)
    text = work_through(monkeypatch, "00-first", 2.0)
    assert "1 of 1" in line(text, "00-first") and text.count("00-first") == 1


def test_without_series_only_this_notebook_is_shown_but_noted_all_the_same(monkeypatch, folder):
    work_through(monkeypatch, "00-first", 2.0)
    assert "whole series" not in str(workbook.score())
    assert list(json.loads((folder / FILE).read_text())) == ["00-first"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"00-first": 3}', '{"00-first": {"best": 1}}'])
def test_a_damaged_file_is_made_anew(monkeypatch, folder, content):
    (folder / FILE).write_text(content)
    assert "0 of 1" in work_through(monkeypatch, "00-first", 9.0)
    assert list(json.loads((folder / FILE).read_text())) == ["00-first"]


def test_a_folder_that_cannot_be_written_shows_this_notebook(monkeypatch):
    def refuse(*_):
        raise PermissionError("read-only")

    monkeypatch.setattr(scores, "write_text", refuse)
    assert "1 of 1" in work_through(monkeypatch, "00-first", 2.0)


def test_the_table_adds_up():
    text = str(scores.table({"a": Summary(3, 1, 2, 4, 4), "b": Summary(2, 2, 2, 0, 0)}))
    assert "3 of 5" in text and "4 of 5" in text and "4 of 4" in text
