"""The scores over the series and the days: noted beside the notebooks by a reader's kernel, and by no other."""

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
