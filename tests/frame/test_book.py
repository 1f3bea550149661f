"""The book: every notebook is in it, with its pictures and folded hints, and no link is broken."""
import inspect
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import notebook_rules as rules
import pytest
from bs4 import BeautifulSoup

from bigtrain_nb.workbook.exercises import registry

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def pages(book):
    return {path.name: BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser") for path in book.glob("*.html")}


def test_every_link_and_picture_is_there(pages, book):
    links = 0
    for name, page in pages.items():
        for tag in page.find_all(["a", "img", "link", "script"]):
            target = urlsplit(tag.get("href") or tag.get("src") or "")
            if target.scheme:
                assert tag.name == "a", f"{name} loads {target.geturl()}: the book must need no network"
                continue
            links += 1
            file = unquote(target.path) or name
            assert (book / file).is_file(), f"{name}: {target.geturl()}"
            if target.fragment:
                assert pages[file].find(id=unquote(target.fragment)), f"{name}: {target.geturl()}"
    assert links > 100


@every_notebook
def test_a_notebook_is_there_with_its_code_and_pictures(path, pages):
    article = pages[f"{path.stem}.html"].article
    cells = [cell for cell in rules.code_cells(rules.read(path)) if cell.source]
    shown = [code.get_text().strip() for code in article.select(".cell_input pre")]
    assert shown == [cell.source.removeprefix("# NBVAL_CHECK_OUTPUT\n").strip() for cell in cells]
    drawn = [output for cell in cells for output in cell.outputs if "image/png" in output.get("data", {})]
    pictures = article.select(".cell_output img")
    assert len(pictures) == len(drawn)
    assert all(picture["alt"].strip() for picture in pictures)


@every_notebook
def test_hints_and_solutions_are_folded_under_their_exercises(path, pages):
    page = pages[f"{path.stem}.html"]
    names = [cell.metadata["exercise"] for cell in rules.read(path).cells if "exercise" in cell.metadata]
    hints, solutions = page.select("details.hint"), page.select("details.solution")
    assert not [tag for tag in hints + solutions if tag.has_attr("open")]
    for name, hint, solution in zip(names, hints, solutions, strict=True):
        exercise = registry()[name]
        assert exercise.hint.replace("`", "") in hint.get_text()
        assert inspect.getsource(exercise.reference).strip() in solution.get_text()
        assert f'bt.check("{name}"' in hint.find_previous(class_="cell_input").get_text()


def test_formulas_are_shown_without_a_script(pages):
    page = pages["03-many-workers.html"]
    assert page.select("math[display=block] mfrac") and page.select("math mi")
    assert not re.search(r"\\frac|\$\$", page.article.get_text())
