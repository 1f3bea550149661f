"""The scores over the series and the days: noted beside the notebooks by a reader's kernel, and by no other."""

import json
import subprocess
import sys
from datetime import date

import pytest

from bigtrain_nb.workbook import scores, workbook


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.setattr(workbook, "_predictions", {})
    monkeypatch.setattr(workbook, "_checked", {})
    return tmp_path


@pytest.fixture
def scored(monkeypatch):
    """Predict in a notebook's kernel on a day, 1.0 being right; return the lines of `score`, by their first word."""

    def score(notebook, day="2026-11-20", **predictions):
        class Today(date):
            @classmethod
            def today(cls):
                return date.fromisoformat(day)

        monkeypatch.setattr(scores, "date", Today)
        monkeypatch.setattr(workbook, "_predictions", {})
        if notebook:
            monkeypatch.setenv("JPY_SESSION_NAME", f"notebooks/{notebook}.ipynb")
        for name, said in predictions.items():
            workbook.predict(name, said)
            workbook.reveal(name, 1.0)
        lines = [line.split(maxsplit=1) for line in str(workbook.score(series=True)).splitlines() if line]
        return {first: " ".join(others) for first, *others in lines}

    return score


def words(line):
    return " ".join(line.split())


def test_a_kernel_that_no_server_started_notes_nothing(folder, scored):
    assert "together" in scored(None, speedup=1.0)
    assert list(folder.iterdir()) == []


def test_the_last_notebook_shows_all_that_came_before(scored):
    scored("00-first", one=1.0, two=1.9)
    lines = scored("01-second", three=3.0)
    assert words(lines["00-first"]) == "1 of 2 2 of 2 0 of 0"
    assert words(lines["01-second"]) == "0 of 1 0 of 1 0 of 0"
    assert words(lines["together"]) == "1 of 3 2 of 3 0 of 0"


def test_a_reader_sees_which_predictions_got_better_over_the_days(scored):
    assert "Your" not in scored("00-first", "2026-11-20", cache=2.0)
    assert "Your" not in scored("00-first", "2026-11-20", cache=3.0, batch=1.0), "worked through again on one day"
    lines = scored("00-first", "2026-11-22", cache=1.2, new=1.0)
    assert words(lines["cache"]) == "off by 3.0x on 2026-11-20 off by 1.20x on 2026-11-22"
    assert words(lines["00-first"]) == "1 of 2 2 of 2 0 of 0", "the series counts the last day"


NOTED = {"predictions": 2, "hits": 1, "within_twice": 2, "exercises": 0, "right": 0, "off": {"one": 1.5}}


@pytest.mark.parametrize(
    "damaged",
    [
        json.dumps({"00-first": {"2026-11-20": NOTED}})[:-1],
        "null",
        "[]",
        '{"00-first": null}',
        '{"00-first": {}}',
        '{"00-first": {"2026-11-20": null}}',
        json.dumps({"00-first": {"2026-11-20": NOTED | {"right": None}}}),
        json.dumps({"00-first": {"2026-11-20": NOTED | {"off": {"one": None}}}}),
        "\udcff",
    ],
)
def test_a_damaged_file_is_kept_and_said(folder, scored, capsys, damaged):
    file = folder / scores.FILE
    damaged = damaged.encode(errors="surrogateescape")
    for times in (1, 2):
        file.write_bytes(damaged)
        assert words(scored("01-second", one=1.0)["together"]) == "1 of 1 1 of 1 0 of 0"
        kept = f".score-history-damaged-{times}.json"
        assert (folder / kept).read_bytes() == damaged
        said = capsys.readouterr().out
        assert f"{scores.FILE} cannot be read" in said and f"It is kept as {kept}" in said
    scored("02-third", two=1.0)
    assert capsys.readouterr().out == ""
    assert [*json.loads(file.read_text())] == ["01-second", "02-third"]


def test_a_kernel_that_notes_nothing_leaves_a_damaged_file_where_it_is(folder, scored, capsys):
    (folder / scores.FILE).write_text("null")
    scored(None, one=1.0)
    assert "cannot be read" in capsys.readouterr().out
    assert (folder / scores.FILE).read_text() == "null" and len(list(folder.iterdir())) == 1


def test_a_folder_that_cannot_be_written_shows_a_score_all_the_same(folder, scored, monkeypatch):
    monkeypatch.setattr(scores, "FILE", "missing/history.json")
    monkeypatch.setattr(scores, "LOCK", "missing/lock")
    assert words(scored("00-first", one=1.0)["together"]) == "1 of 1 1 of 1 0 of 0"
    assert list(folder.iterdir()) == []


NOTE_20 = """
import os, sys
from bigtrain_nb.workbook import scores
sys.stdin.read()
for number in range(20):
    os.environ["JPY_SESSION_NAME"] = f"{sys.argv[1]}-{number}.ipynb"
    scores.note(dict.fromkeys(scores.COUNTS, 1) | {"off": {}})
"""


def test_what_four_kernels_note_at_once_is_all_there(folder):
    kernels = []
    for name in "abcd":
        kernels.append(subprocess.Popen([sys.executable, "-c", NOTE_20, name], stdin=subprocess.PIPE))
    for kernel in kernels:
        kernel.stdin.close()
    assert [kernel.wait() for kernel in kernels] == [0] * 4
    assert len(json.loads((folder / scores.FILE).read_text())) == 80
