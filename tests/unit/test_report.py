"""The report: what counts, the exercises checked again, and a page that is whole in itself."""

import copy
import json
import sys
from html.parser import HTMLParser

import pytest

from bigtrain_nb.report import again
from bigtrain_nb.report.__main__ import main
from bigtrain_nb.report.page import page
from bigtrain_nb.workbook import copies, record
from bigtrain_nb.workbook.predictions import Prediction
from bigtrain_nb.workbook.workbook import Checked

RATE = "def rate(sizes, ready):\n    {body}\n\n\nbt.check('measure_first.rate', rate)"
SAY = "def say(low, high, margin=0.02):\n    return {body}\n\n\nbt.check('measure_first.say', say)"
ABOVE = [
    "import bigtrain_nb as bt\nimport time",
    "%load_ext autoreload",
    "raise SystemExit('a measurement that takes long')",
    "total = sum\ndef add(sizes):\n    return total(sizes)",
    "this is no Python",
]


def code(source, exercise=None):
    metadata = {"exercise": exercise} if exercise else {}
    return {"cell_type": "code", "id": source[:9], "metadata": metadata, "source": source, "outputs": []}


def notebook_of(rate, say):
    cells = [*map(code, ABOVE)]
    cells += [code(RATE.format(body=rate), "measure_first.rate"), code(SAY.format(body=say), "measure_first.say")]
    return cells


def found(path, cells, **limits):
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return again.check_again(path, notebook_of("return ...", "..."), **limits)


def test_an_answer_is_checked_with_what_it_needs_of_the_cells_above_and_no_more(tmp_path):
    cells = notebook_of("return add(sizes[1:]) / (ready[-1] - ready[0])", "low")
    checked = found(tmp_path / "00-first.ipynb", cells)
    assert checked["measure_first.rate"] == Checked("right")
    assert checked["measure_first.say"].status == "wrong" and "got 1" in checked["measure_first.say"].message


def test_what_nobody_wrote_in_is_not_run(tmp_path, monkeypatch):
    monkeypatch.setattr(again, "_in_a_process", lambda *_: pytest.fail("it was run"))
    checked = found(tmp_path / "00-first.ipynb", notebook_of("return ...", "..."))
    assert {one.status for one in checked.values()} == {"not attempted"}
    broken = found(tmp_path / "00-first.ipynb", notebook_of("return (", "..."))
    assert broken["measure_first.rate"].status == "wrong" and "SyntaxError" in broken["measure_first.rate"].message


def test_answers_that_hang_or_end_the_process_are_wrong_and_those_before_are_told(tmp_path):
    hangs = "__import__('subprocess').run(['sleep', '1000'])"
    checked = found(tmp_path / "a.ipynb", notebook_of("return sum(sizes[1:]) / (ready[-1] - ready[0])", "..."))
    assert checked["measure_first.rate"].status == "right"
    ends = notebook_of("__import__('os')._exit(0)", "...")
    assert "has ended before" in found(tmp_path / "a.ipynb", ends)["measure_first.rate"].message
    cells = [code(hangs + "\n" + RATE.format(body="return 3"), "measure_first.rate")]
    checked = found(tmp_path / "a.ipynb", cells, seconds_to_start=0.5, seconds_each=0.5)
    assert checked["measure_first.rate"] == Checked("wrong", "the exercises of this notebook did not end within 1 s")


def needed(*cells):
    """The lines that the last of some cells needs, and its own."""
    return again.code_for([code(cell) for cell in cells]).splitlines()


def test_the_names_that_code_reads_and_no_others_are_needed():
    above = ["import a\nimport b.c as d\nfrom e import f", "x = d(1)\ny = measured = f(2)", "inner = a", "y = 3"]
    lines = ["def g():", "    inner = 4", "    return x + inner"]
    assert needed(*above, "\n".join(lines), "g()") == ["import b.c as d", "x = d(1)", *lines, "g()"]
    assert needed(*above, "y") == ["y = 3", "y"], "the last value is enough"
    *more, _, _, _ = found = needed("x = 1", "y = [x for x in range(3)]", "x = 2\nx, y")
    assert found[-3:] == ["y = [x for x in range(3)]", "x = 2", "(x, y)"]
    assert more == ([] if sys.version_info < (3, 12) else ["x = 1"])


def test_what_changes_a_value_is_needed_too():
    changes = ["x = {}", "x['a'] = 1", "for i in range(3):", "    x[i] = i", "x |= {}", "x.y.z = 2", "x"]
    cells = [*changes[:2], "\n".join(changes[2:4]), "other = 1\nother[0] = x", *changes[4:]]
    assert needed(*cells) == changes


class Page(HTMLParser):
    """Which tags a page opens, its text, and what it loads."""

    def __init__(self, markup):
        super().__init__()
        self.tags, self.loaded, self.text = [], [], ""
        self.feed(markup)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.loaded += [value for name, value in attributes if name in ("src", "href") and not value.startswith("#")]

    def handle_data(self, data):
        self.text += data


NOTES = record.Notes(
    {
        "speedup": [Prediction("speedup", "x", 3.0, "then", 2.0, 1.9, 2.1, "later")],
        "late": [
            Prediction("late", "s", None, None, 5.0, 5.0, 5.0, "later"),
            Prediction("late", "s", 5.0, "then", 5.0, 5.0, 5.0, "later"),
        ],
    },
    {},
    {"processor": "Fast <one>", "cores": 2, "tensorflow": "2.21.0"},
)


def test_the_page_says_what_counts_and_on_which_machine_and_loads_nothing():
    checked = {"00-first": {"a.rate": Checked("right"), "a.say": Checked("wrong", "got <b>")}, "01-second": {}}
    shown = Page(page({"00-first": NOTES, "00-first (until 2026-11-25)": copy.deepcopy(NOTES)}, checked))
    assert shown.loaded == [] and "script" not in shown.tags and shown.tags.count("svg") == 2
    for words in (
        "off by 1.50x, too high",
        "late, second time",
        "processor: Fast <one>; cores: 2; tensorflow: 2.21.0",
        "got <b>",
        "00-first (until 2026-11-25)",
        "01-second",
    ):
        assert words in shown.text
    assert "b" not in shown.tags and "0 of 1" in shown.text and "1 of 2" in shown.text


def test_a_report_of_a_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="There are no notebooks in my: `make lab` makes copies of them"):
        main(["my"])
    notebook = {"cells": notebook_of("return ...", "..."), "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "00-first.ipynb").write_text(json.dumps(notebook))
    copies.update("00-first.ipynb", "my")
    (tmp_path / "my" / "99-bad.ipynb").write_text("{")
    record.write(tmp_path / "my", {"00-first": NOTES})
    main(["my"])
    assert "left out: my/99-bad.ipynb is no notebook" in capsys.readouterr().out
    text = Page((tmp_path / "my" / "report.html").read_text()).text
    assert "measure_first.rate" in text and "not attempted" in text and "speedup" in text
    assert sys.version.split()[0] in text
