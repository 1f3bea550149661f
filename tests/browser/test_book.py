"""The book contains every notebook, has no broken links, and opens in a browser from disk, on a phone too."""

import inspect
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import notebook_rules as rules
import pytest
from bs4 import BeautifulSoup
from playwright.sync_api import expect

import bigtrain_nb as bt
from bigtrain_nb.workbook.exercises import registry

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NOT_LOADED = "() => [...document.images].filter(i => !i.naturalWidth).map(i => i.src)"
TOO_WIDE = """() => Math.max(...[...document.querySelectorAll("html, .content")]
    .map(e => e.scrollWidth - e.clientWidth))"""
CUT_OFF = """() => [...document.querySelectorAll(".content pre")]
    .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)"""

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """The folder of the book, built as by `make book`; Sphinx fails on warnings."""
    folder = tmp_path_factory.mktemp("book") / "html"
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-c", "tools/book", "notebooks", folder]
    subprocess.run(command, cwd=ROOT, check=True, timeout=500)
    return folder


@pytest.fixture(scope="module")
def pages(book):
    found = {}
    for path in book.rglob("*.html"):
        found[path.relative_to(book).as_posix()] = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
    return found


def test_every_link_and_picture_is_there(pages, book):
    places = {name: {tag["id"] for tag in page.find_all(id=True)} for name, page in pages.items()}
    links = 0
    for name, page in pages.items():
        for tag in page.find_all(["a", "img", "link", "script"]):
            target = urlsplit(tag.get("href") or tag.get("src") or "")
            if target.scheme:
                assert tag.name == "a", f"{name} loads {target.geturl()}: the book must need no network"
                continue
            links += 1
            file = posixpath.normpath(posixpath.join(name, "..", unquote(target.path))) if target.path else name
            assert (book / file).is_file(), f"{name}: {target.geturl()}"
            if target.fragment:
                assert unquote(target.fragment) in places[file], f"{name}: {target.geturl()}"
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
        exercise = registry(name)[name]
        assert re.sub("[`*]", "", exercise.hint) in hint.get_text().replace("*", "")
        assert inspect.getsource(exercise.reference).strip() in solution.get_text()
        assert f'bt.check("{name}"' in hint.find_previous(class_="cell_input").get_text()


def test_the_reference_has_every_public_name_with_what_it_takes(pages):
    page = pages["reference.html"]
    for name in bt.__all__:
        ids = f"bigtrain_nb.{name}", f"bigtrain_nb.{bt._MODULE_OF[name]}.{name}"
        (place,) = (each for each in page.select("dt") if each.get("id") in ids)
        assert place.find_next("dd").get_text().strip()


def test_formulas_are_shown_without_a_script(pages):
    page = pages["03-many-workers.html"]
    assert page.select("math[display=block] mfrac") and page.select("math mi")
    prose = [each.get_text() for each in page.article.select("p, li, td")]
    assert not [text for text in prose if re.search(r"\\frac|\$\$", text)]


AT_A_DESK = pytest.param(1280, id="desk", marks=pytest.mark.more("all pages once more, where there is more room"))


@pytest.mark.parametrize("width", [pytest.param(390, id="phone"), AT_A_DESK])
def test_pages_fit_and_show_their_pictures(book, page, width):
    page.set_viewport_size({"width": width, "height": 900})
    for path in sorted(book.rglob("*.html")):
        page.goto(path.as_uri())
        assert page.evaluate(TOO_WIDE) <= 0, f"{path.name} is wider than the screen"
        assert page.evaluate(NOT_LOADED) == [], path.name
        assert page.evaluate(CUT_OFF) == [], f"{path.name}: lines of code run out of their column"


def test_the_search_finds_a_word(book, page, errors):
    page.goto((book / "index.html").as_uri())
    page.get_by_placeholder("Search").first.fill("interleave")
    page.keyboard.press("Enter")
    found = page.locator("#search-results a", has_text="01 · Feed the model").first
    expect(found).to_be_visible()
    found.click()
    expect(page.locator("h1", has_text="Feed the model")).to_be_visible()
    errors.clear()  # pages on disk cannot read others for search excerpts


def test_hints_open_and_pages_lead_on(book, page):
    page.goto((book / "00-measure-first.html").as_uri())
    hint = page.locator("details.hint").first
    expect(hint.locator("p")).to_be_hidden()
    hint.locator("summary").click()
    expect(hint.locator("p")).to_be_visible()
    page.locator("a.next-page").click()
    expect(page.locator("h1", has_text="01 · Feed the model")).to_be_visible()
