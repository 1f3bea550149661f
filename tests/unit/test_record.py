"""A reader's predictions and solutions: recorded next to the notebooks, only by a reader's kernel."""

import json
import subprocess
import sys
from dataclasses import asdict

import pytest

from bigtrain_nb.workbook import record, workbook
from bigtrain_nb.workbook.predictions import Prediction


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, fresh_notes):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def kernel(monkeypatch):
    """A function that simulates a new kernel, of a notebook if one is named."""

    def start(notebook=None):
        monkeypatch.setattr(record, "_own", record.Notes())
        monkeypatch.setattr(record, "_unwritten", False)
        monkeypatch.setattr(workbook, "_named", set())
        monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
        if notebook:
            monkeypatch.setenv("JPY_SESSION_NAME", f"my/{notebook}.ipynb")

    return start


def predict_and_reveal(**predictions):
    """Predict these values and reveal 1.0 for each."""
    for name, said in predictions.items():
        workbook.predict(name, said)
        workbook.reveal(name, 1.0)


def series():
    """Return the lines of the table of all notebooks, by their first word."""
    lines = [line.split(maxsplit=1) for line in str(workbook.score(series=True)).splitlines() if line]
    return {first: " ".join(" ".join(others).split()) for first, *others in lines}


def test_a_kernel_that_no_server_started_notes_nothing(folder, kernel):
    kernel()
    predict_and_reveal(speedup=1.0)
    assert series()["together"] == "1 of 1 1 of 1 0 of 0"
    assert list(folder.iterdir()) == []


def test_the_last_notebook_shows_all_that_came_before(kernel):
    kernel("00-first")
    predict_and_reveal(one=1.0, two=1.9, blank=...)
    kernel("01-second")
    predict_and_reveal(three=3.0)
    lines = series()
    assert lines["00-first"] == "1 of 2 2 of 2 0 of 0"
    assert lines["01-second"] == "0 of 1 0 of 1 0 of 0"
    assert lines["together"] == "1 of 3 2 of 3 0 of 0"


def test_an_evening_notes_as_its_notebook_and_misses_nothing(kernel):
    kernel("evening-00-first")
    predict_and_reveal(one=1.0)
    assert "1 of 1 predictions" in str(workbook.score())
    assert series()["00-first"] == "1 of 1 1 of 1 0 of 0"
    kernel("00-first")
    predict_and_reveal(one=3.0, two=3.0)  # the evening has already shown the answer to the first
    assert "1 of 2 predictions" in str(workbook.score())
    kernel("evening-00-first")
    assert series()["together"] == "1 of 2 1 of 2 0 of 0"


def test_what_was_revealed_in_an_earlier_kernel_is_too_late_in_the_next(kernel):
    kernel("00-first")
    predict_and_reveal(seen=..., typed=2.0)
    workbook.predict("open", 3.0)
    kernel("00-first")
    predict_and_reveal(seen=1.0, typed=1.0, open=3.0)
    (notes,) = record.read(record.Path()).values()
    assert [one.predicted for one in notes.predictions["seen"]] == [None, 1.0]
    assert [one.predicted for one in notes.predictions["typed"]] == [2.0, 1.0]
    assert [one.predicted for one in notes.predictions["open"]] == [3.0]
    assert [one.name for one in notes.counted] == ["typed", "open"]
    assert notes.machine["cores"] > 0


def test_a_fresh_round_keeps_the_one_before_under_another_name(folder, kernel):
    for _ in range(3):
        kernel("00-first")
        predict_and_reveal(one=1.0)
        record.begin_again(folder, "00-first")
    names = list(record.read(folder))
    assert len(set(names)) == 3 and all(name.startswith("00-first (until 20") for name in names)
    record.begin_again(folder, "never opened")
    assert list(record.read(folder)) == names
    predict_and_reveal(one=2.0)  # by a kernel older than the fresh copy: counting restarts
    assert series()["together"] == "0 of 1 1 of 1 0 of 0"


def test_a_measurement_of_a_kernel_that_predicted_for_an_earlier_copy_is_shown_only(folder, kernel):
    kernel("00-first")
    workbook.predict("one", 1.0)
    record.begin_again(folder, "00-first")
    assert workbook.predicted("one") is None
    assert "one: 2" in str(workbook.reveal("one", 2.0))


def test_what_cannot_be_written_stays_with_the_kernel(kernel, monkeypatch):
    def full(folder, notes):
        raise OSError("no space left")

    kernel("00-first")
    predict_and_reveal(one=1.0)
    monkeypatch.setattr(record, "write", full)
    predict_and_reveal(two=1.0)
    assert "2 of 2 predictions" in str(workbook.score())


def test_the_record_stands_beside_the_notebook_wherever_a_cell_has_gone(folder, kernel, monkeypatch):
    kernel("00-first")
    monkeypatch.setenv("JPY_SESSION_NAME", str(folder / "00-first.ipynb"))
    workbook.predict("one", 1.0)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    workbook.reveal("one", 1.0)
    assert not list(elsewhere.iterdir()) and "1 of 1 predictions" in str(workbook.score())


def test_a_notebook_whose_folder_is_not_here_has_its_record_in_the_current_one(folder, kernel, monkeypatch):
    kernel("00-first")
    monkeypatch.setenv("JPY_SESSION_NAME", "/of/another/machine/00-first.ipynb")
    workbook.predict("one", 1.0)
    assert list(record.read(folder)) == ["00-first"]


def test_a_number_that_stands_is_said_again(kernel):
    kernel("00-first")
    workbook.predict("one", 2.0)
    kernel("00-first")
    assert "one = 2 is kept" in str(workbook.predict("one", ...))
    assert "one: no prediction yet" in str(workbook.predict("one", ..., "x"))  # no unit: not in "x"


NOTED = asdict(Prediction("one", "x", 2.0, "2026-11-20T10:00:00", 1.5, 1.4, 1.6, "2026-11-20T10:01:00"))


def file_of(noted=NOTED, **others):
    return json.dumps({"00-first": {"predictions": {"one": [noted]}, "exercises": {}, "machine": {}} | others})


def test_what_stands_in_the_file_is_read(folder):
    (folder / record.FILE).write_text(file_of())
    (notes,) = record.read(folder).values()
    assert notes.counted == [Prediction(**NOTED)]
    assert notes.counted[0].verdict == "off by 1.33x, too high, but within 2x"


@pytest.mark.parametrize(
    "damaged",
    [
        file_of()[:-1],
        "null",
        '{"00-first": null}',
        file_of(machine=None),
        file_of(exercises={"a.b": 3}),
        file_of(predictions={"one": []}),
        file_of(NOTED | {"median": "1"}),
        file_of(NOTED | {"more": 1}),
        "\udcff",
    ],
)
def test_a_damaged_file_is_kept_and_said(folder, kernel, capsys, damaged):
    file = folder / record.FILE
    damaged = damaged.encode(errors="surrogateescape")
    for times in (1, 2):
        file.write_bytes(damaged)
        kernel("01-second")
        predict_and_reveal(one=1.0)
        assert series()["together"] == "1 of 1 1 of 1 0 of 0"
        kept = f".bigtrain-record-damaged-{times}.json"
        assert (folder / kept).read_bytes() == damaged
        said = capsys.readouterr().out
        assert f"{record.FILE} cannot be read" in said and f"It is kept as {kept}" in said
    kernel("02-third")
    predict_and_reveal(two=1.0)
    assert capsys.readouterr().out == ""
    assert [*json.loads(file.read_text())] == ["01-second", "02-third"]


def test_what_this_kernel_noted_outlives_a_damaged_file(folder, kernel, capsys):
    kernel("00-first")
    predict_and_reveal(one=1.0)
    (folder / record.FILE).write_text("null")
    predict_and_reveal(two=1.0)
    assert [*record.read(folder)["00-first"].predictions] == ["one", "two"]


def test_a_folder_that_cannot_be_written_shows_a_score_all_the_same(folder, kernel, monkeypatch):
    (folder / "file").write_text("")  # not a folder, so not even root can write in it
    monkeypatch.setattr(record, "FILE", "file/record.json")
    monkeypatch.setattr(record, "LOCK", "file/lock")
    kernel("00-first")
    predict_and_reveal(one=1.0)
    assert series()["together"] == "1 of 1 1 of 1 0 of 0"
    assert [each.name for each in folder.iterdir()] == ["file"]


NOTE_20 = """
import os, sys
from bigtrain_nb.workbook import record
sys.stdin.read()
for number in range(20):
    os.environ["JPY_SESSION_NAME"] = f"{sys.argv[1]}-{number}.ipynb"
    with record.opened() as notes:
        notes.exercises["measure_first.rate"] = "right"
"""


def test_what_four_kernels_note_at_once_is_all_there(folder):
    kernels = []
    for name in "abcd":
        kernels.append(subprocess.Popen([sys.executable, "-c", NOTE_20, name], stdin=subprocess.PIPE))
    for kernel in kernels:
        kernel.stdin.close()
    assert [kernel.wait() for kernel in kernels] == [0] * 4
    assert len(json.loads((folder / record.FILE).read_text())) == 80
