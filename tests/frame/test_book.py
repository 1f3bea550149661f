"""The book: every notebook is in it, with its pictures and folded hints, and no link is broken."""
import hashlib
import inspect
import re
import subprocess
import sys
from base64 import b64decode
from urllib.parse import unquote, urlsplit

import book
import notebook_rules as rules
import pytest
import render
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from bigtrain_nb.workbook.exercises import registry

NOTEBOOKS = sorted(book.NOTEBOOKS.glob("*.ipynb"))
IN_BETWEEN = ["output", "solution"]  # blocks that are no code of a cell stand in these
PICTURE = "iVBORw0KGgo="

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The book, made as `make book` makes it, without a warning and in place of an earlier one."""
    folder = tmp_path_factory.mktemp("book")
    (folder / "index.html").write_text(f"<title>{book.TITLE}</title>")
    (folder / "of-an-earlier-book.html").touch()
    made = subprocess.run([sys.executable, book.__file__, folder], capture_output=True, text=True, timeout=300)
    assert (made.returncode, made.stderr) == (0, "")
    assert f"open {folder / 'index.html'}" in made.stdout
    return folder


@pytest.fixture(scope="module")
def pages(folder):
    return {path.name: BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser") for path in folder.glob("*.html")}


def test_a_folder_with_anything_else_is_left_alone(tmp_path):
    other = [tmp_path / ".buildinfo", tmp_path / "index.html"]  # as any other pages that Sphinx made
    for file in other:
        file.write_text("<title>Another book</title>")
    with pytest.raises(FileExistsError, match="name a new folder"):
        book.build(tmp_path)
    assert sorted(tmp_path.iterdir()) == other


def digest(data):
    return hashlib.sha256(data).hexdigest()


def test_every_link_and_picture_is_there(pages, folder):
    places = {name: {tag["id"] for tag in page.find_all(id=True)} for name, page in pages.items()}
    seen, broken = 0, []
    for name, page in pages.items():
        for tag in page.find_all(["a", "img", "link", "script"]):
            target = urlsplit(tag.get("href") or tag.get("src") or "")
            if target.scheme:
                assert tag.name == "a", f"{name} loads {target.geturl()}: the book must need no network"
                continue
            file, seen = unquote(target.path) or name, seen + 1
            if not (folder / file).is_file() or (target.fragment and unquote(target.fragment) not in places[file]):
                broken.append(f"{name}: {target.geturl()}")
    assert broken == [] and seen > 100


@every_notebook
def test_a_notebook_is_there_with_its_code_pictures_and_headings(path, pages, folder):
    page, notebook = pages[f"{path.stem}.html"], rules.read(path)
    cells = rules.code_cells(notebook)
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    code = [block for block in page.select("article div.highlight") if not block.find_parent(class_=IN_BETWEEN)]
    assert len(code) == len([cell for cell in cells if cell.source]) + len(re.findall(r"^```\w", prose, re.MULTILINE))
    stored = [output.get("data", {}) for cell in cells for output in cell.outputs]
    stored = {digest(b64decode(data["image/png"])) for data in stored if "image/png" in data}
    pictures = page.select("article img")
    assert {digest((folder / picture["src"]).read_bytes()) for picture in pictures} == stored
    assert all(picture["alt"].strip() for picture in pictures)
    headings = re.findall(r"^#+ ", prose, re.MULTILINE)
    assert len(page.select("article h1, article h2, article h3")) == len(headings)


@every_notebook
def test_hints_and_solutions_are_folded_under_their_exercises(path, pages):
    page = pages[f"{path.stem}.html"]
    names = [cell.metadata["exercise"] for cell in rules.read(path).cells if "exercise" in cell.metadata]
    hints, solutions = page.select("details.hint"), page.select("details.solution")
    assert len(hints) == len(solutions) == len(names) >= 3
    assert not [tag for tag in page.select("details.hint, details.solution") if tag.has_attr("open")]
    for name, hint, solution in zip(names, hints, solutions, strict=True):
        exercise = registry()[name]
        assert exercise.hint.replace("`", "") in hint.get_text()
        assert inspect.getsource(exercise.reference).strip() in solution.get_text()
        assert f'bt.check("{name}"' in hint.find_previous("div", class_="highlight-python").get_text()


def test_every_page_leads_on_and_is_found(pages, folder):
    names = ["index", *(path.stem for path in NOTEBOOKS), "glossary"]
    for here, there in zip(names, names[1:], strict=False):
        assert pages[f"{here}.html"].select_one("a.next-page")["href"] == f"{there}.html"
        back = pages[f"{there}.html"].select_one("a.prev-page")["href"]
        assert pages[back].h1 == pages[f"{here}.html"].h1
    assert all(page.select_one("form[role=search] input[name=q]") for page in pages.values())
    assert '"interleav":' in (folder / "searchindex.js").read_text()


def test_formulas_are_shown_without_a_script(pages):
    page = pages["03-many-workers.html"]
    assert page.select("math[display=block] mfrac") and page.select("math mi")
    assert not re.search(r"\\frac|\$\$", page.article.get_text())


def test_no_page_tells_of_this_machine_or_of_widgets(pages, folder):
    for name, page in pages.items():
        text, source = page.get_text(), (folder / name).read_text(encoding="utf-8")
        assert not (found := rules.PATHS.search(text)), f"{name}: {found}"
        assert not [private for private in render.private_texts() if private in source], name
        assert "widget-view" not in source and not re.search("[Ee]rror displaying|Loading widget", text), name


def code_cell(source, *data, **metadata):
    outputs = [new_output("display_data", data=one, metadata={"image/png": {"alt": 'a "b": c'}}) for one in data]
    return new_code_cell(source, outputs=outputs, metadata=metadata)


def page_of(*cells):
    return book.markdown(new_notebook(cells=list(cells)))


def test_controls_without_a_picture_leave_a_sentence_and_not_a_hole():
    assert book.CONTROLS in page_of(code_cell("lab = 1\nlab"))
    assert book.CONTROLS in page_of(code_cell("bt.Planner(build)"))
    assert book.CONTROLS not in page_of(code_cell("lab\n1 + 1"), code_cell("lab", {"text/plain": "1"}))


def test_controls_are_stood_in_for_by_the_picture_of_their_runs():
    lab, other = code_cell("lab"), code_cell("1 + 1")
    drawn = code_cell("lab.picture()", {"image/png": PICTURE})
    assert page_of(lab, other, drawn).count(PICTURE) == 2
    assert page_of(lab, drawn).count(PICTURE) == 1, "it follows at once anyway"
    assert page_of(drawn, lab).count(PICTURE) == 1


def test_an_output_shows_its_picture_before_its_html_before_its_text():
    every = {"image/png": PICTURE, "text/html": "<p>page</p>", "text/plain": "words"}
    shown = page_of(code_cell("figure", every))
    assert PICTURE in shown and r':alt: "a \"b\": c"' in shown and "page" not in shown
    del every["image/png"]
    assert "{raw} html\n<p>page</p>" in page_of(code_cell("x", every))
    assert "text\nwords\n" in page_of(code_cell("x", {"text/plain": "words\n"}))


def test_backticks_inside_never_end_a_block():
    assert "````python\n'''```'''\n````" in page_of(code_cell("'''```'''"))


def test_what_the_tests_need_in_a_cell_is_not_shown():
    assert "NBVAL" not in page_of(code_cell("# NBVAL_CHECK_OUTPUT\n1"), new_markdown_cell("words"))
