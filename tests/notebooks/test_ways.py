"""The form of a notebook: a core path within its time, then Further, and an evening track that runs by itself."""

import copy
import re
from pathlib import Path

import cell_names
import notebook_rules as rules
import pytest
import render
import ways
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SHORT, LONG = 60, 90  # minutes of a core path: in 00 to 05, and in the others
EVENING = 180  # minutes of the evening track, 00 to 05 together
OF_THE_EVENING = [path for path in NOTEBOOKS if path.stem < "06"]

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
each_evening = pytest.mark.parametrize("path", OF_THE_EVENING, ids=lambda path: path.stem)


def said(found):
    """Return the findings of `cell_names.missing` as sentences."""
    return [f"{cell.id} needs {', '.join(names)}" for cell, names in found]


def names_missing_on_the_way(notebook):
    """Return the names that the core path lacks without Further, even if Further defines them."""
    return said(cell_names.missing(ways.way(notebook)))


def names_missing_in_further(notebook):
    """Return the names that a section of Further lacks, given only the core path."""
    known = cell_names.defined(ways.way(notebook))
    return [line for cells in ways.further(notebook) for line in said(cell_names.missing(cells, known))]


def evening_problems(notebook):
    problems = said(cell_names.missing(ways.evening(notebook)))
    if not ways.is_of_evening(notebook.cells[0]):
        problems.append("the first cell does not belong to the evening")
    texts = [cell.source for cell in ways.evening(notebook) if cell.cell_type == "markdown"]
    tagged = {ways.place(heading) for text in texts for heading in ways.HEADING.findall(text)}
    for place, is_of_evening in ways.marked(notebook).items():
        if place and is_of_evening and place not in tagged:
            problems.append(f"{place}: its cells are of the evening, its heading is not")
    return problems


def test_each_notebook_has_the_form():
    assert [path.stem for path in NOTEBOOKS if not ways.has_form(rules.read(path))] == []


@each_notebook
def test_the_way_ends_in_time_and_further_follows(path):
    notebook = rules.read(path)
    assert ways.minutes(ways.way(notebook)) <= (SHORT if path.stem < "06" else LONG)
    way = ways.way(notebook)
    assert "**Next:**" in way[-1].source and "bt.score(" in way[-2].source
    (opening,) = [cell for cell in notebook.cells if cell.id == "further"]
    assert opening.source.startswith("## Further\n")
    assert ways.SAID.search(notebook.cells[0].source), "the first cell does not say `about N minutes to work through`"
    for cells in ways.further(notebook):
        assert cells[0].source.startswith("## "), f"a section of Further begins within the cell {cells[0].id}"


@each_notebook
def test_the_way_and_each_section_of_further_have_the_names_they_need(path):
    notebook = rules.read(path)
    assert names_missing_on_the_way(notebook) + names_missing_in_further(notebook) == []


@each_evening
def test_the_evening_has_the_names_it_needs_and_its_headings(path):
    notebook = rules.read(path)
    assert ways.evening(notebook) and evening_problems(notebook) == []


def test_the_evening_is_over_in_time():
    assert sum(ways.minutes(ways.evening(rules.read(path))) for path in OF_THE_EVENING) <= EVENING


def test_minutes_marks_and_links_are_what_the_tool_writes():
    assert ways.problems() == [], "run tools/ways.py"


@pytest.mark.more("a kernel for each of six notebooks, beside the tests of all their cells")
@each_evening
def test_the_evening_runs_by_itself(path):
    alone = copy.deepcopy(rules.read(path))
    alone.cells = ways.evening(alone)
    render.execute(alone, FOLDER)
    assert rules.output_problems(alone) == []


def notebook(*cells):
    """Return a notebook of "# text" or code cells; evening cells are strings in a list."""
    made = []
    for number, cell in enumerate(cells):
        source = "".join(cell)
        tags = {"tags": ["evening"]} if isinstance(cell, list) else {}
        new = new_markdown_cell if source.startswith(("#", "*")) else new_code_cell
        made.append(new(source, id="further" if source.startswith("## Further") else f"cell{number}", metadata=tags))
    return new_notebook(cells=made)


def test_a_cell_is_counted_by_its_words_lines_predictions_and_exercises():
    words = notebook("# " + 179 * "a " + "\n")
    assert ways.minutes(words.cells) == 1
    assert ways.minutes(notebook("a = 1\n\nb = 2").cells) == 2 / 20
    assert ways.minutes(notebook('bt.predict("a", ..., "x")').cells) == 1 + 1 / 20
    assert ways.minutes(notebook("*(12 minutes, difficulty 3 of 5)*").cells) == pytest.approx(12 + 6 / 180)
    assert [ways.in_fives(minutes) for minutes in (0.1, 5, 5.1, 44.9)] == [5, 5, 10, 45]


@pytest.mark.parametrize(
    "cells, missing",
    [
        (["a = 1", "def f():\n    return a + later", "later = 2", "f()"], []),
        (["[one for one in range(3)]", "for i in range(3):\n    i"], []),
        (["a = b"], ["cell0 needs b"]),
        (["a = a + 1"], ["cell0 needs a"]),
        (["a += 1"], ["cell0 needs a"]),
        (["from x import y", "with y() as z:\n    z(w)"], ["cell1 needs w"]),
        (["%%workers 2 --give steps --take losses\nanything", "losses"], ["cell0 needs steps"]),
        (["class A:\n    b = c"], ["cell0 needs c"]),
        (["%matplotlib inline\n!ls", "lambda: gone"], ["cell1 needs gone"]),
    ],
)
def test_names_that_are_missing_are_found(cells, missing):
    assert said(cell_names.missing(notebook(*cells).cells)) == missing


@pytest.mark.parametrize(
    "cells, problems",
    [
        ([["# Title"], ["a = 1"], ["## Two"], ["a"]], []),
        ([["# Title"], "a = 1", ["## Two"], ["a"]], ["cell3 needs a"]),
        ([["# Title"], "## Two", ["1"]], ["Two: its cells are of the evening, its heading is not"]),
        (["# Title", ["## Two"], ["1"]], ["the first cell does not belong to the evening"]),
    ],
)
def test_an_evening_that_does_not_stand_alone_is_found(cells, problems):
    assert evening_problems(notebook(*cells)) == problems


def test_the_tool_writes_minutes_marks_and_links(tmp_path, monkeypatch):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    cells = [["# 00 · Title\n\n**Takes** about 5 minutes to work through."], ["## A `word` here"], ["1"], "## Other"]
    cells += ["*[here](#A-word-here), [there](01-two.ipynb#A-☾)*", "## Further\n", "*(12 minutes, difficulty 3 of 5)*"]
    one, two = folder / "00-one.ipynb", folder / "01-two.ipynb"
    rules.write(notebook(*cells), one)
    rules.write(notebook("# 01 · Two", "## A ☾"), two)
    index, front = folder / "README.md", tmp_path / "README.md"
    index.write_text("| [00 Title](00-one.ipynb) | 60 | 00 |\n[The notebook](00-one.ipynb), 60 minutes.\n")
    front.write_text("[a](notebooks/00-one.ipynb#A-word-here)\n| [00](notebooks/00-one.ipynb) | words | 60 |\n")
    for name, value in {"ROOT": tmp_path, "NOTEBOOKS": [one, two], "PAGES": [front, index]}.items():
        monkeypatch.setattr(ways, name, value)
    assert any(problem.startswith("README.md:1: must be ") for problem in ways.problems())
    assert ways.main(["--check"]) == 1 and ways.main([]) == 0 and ways.main(["--check"]) == 0
    first, heading, _, other, links, *_ = [cell.source for cell in rules.read(one).cells]
    assert first.endswith("about 5 minutes to work through; **Further** another 15; the short track (☾) 5.")
    assert heading == "## A `word` here ☾" and other == "## Other"
    assert links == "*[here](#A-word-here-☾), [there](01-two.ipynb#A)*"
    assert rules.read(two).cells[1].source == "## A"
    assert index.read_text() == "| [00 Title](00-one.ipynb) | 5 | 00 |\n[The notebook](00-one.ipynb), 5 minutes.\n"
    assert re.findall(r"#[^)]*|\d+ \|$", front.read_text(), re.M) == ["#A-word-here-☾", "5 |"]
