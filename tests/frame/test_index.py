"""The index and the glossary agree with the notebooks."""

import re
from pathlib import Path
from textwrap import indent

import covers
import notebook_rules as rules
import pytest
import series_map

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
INDEX = (FOLDER / "README.md").read_text()
GLOSSARY = (FOLDER / "glossary.md").read_text(encoding="utf-8")
TERMS = re.findall(r"^- \*\*(.+?)\*\*(?: \([^)]+\))?: (.+)$", GLOSSARY, re.MULTILINE)


def sections(path):
    """Return {JupyterLab's anchor of a heading: its section's text}, and "": the text of the whole notebook."""
    parts = []
    for cell in rules.read(path).cells:
        parts.append(cell.source if cell.cell_type == "markdown" else indent(cell.source, " "))
    plain = re.sub("[`*]", "", "\n".join(parts))
    found = {"": plain}
    for part in re.split(r"^#+ ", plain, flags=re.MULTILINE)[1:]:
        heading = part.splitlines()[0]
        found[heading.replace(" ", "-")] = part
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_index_has_the_notebook_its_minutes_and_its_picture(path):
    opening = rules.read(path).cells[0].source
    minutes = re.search(r"about (\d+) minutes", opening)[1]
    title = opening.splitlines()[0].removeprefix("# ")
    assert f"[{title.replace(' ·', '')}]({path.name}) | {minutes} |" in INDEX
    assert f"## {title}\n\n[The notebook]({path.name}), {minutes} minutes." in INDEX
    assert f'<img src="images/{path.stem}.png"' in INDEX
    assert covers.file_of(path.stem).read_bytes() == covers.cover(path.stem), "run tools/covers.py"


def test_terms_are_in_order_and_explained_once():
    names = [name.lower() for name, _ in TERMS]
    assert len(names) == GLOSSARY.count("\n- **") > 30 and names == sorted(set(names))


@pytest.mark.parametrize("term, words", TERMS, ids=[term for term, _ in TERMS])
def test_each_term_stands_where_its_links_lead(term, words):
    links = re.findall(r"\]\(([^)#]+)#?([^)]*)\)", words)
    assert links
    for file, place in links:
        section = sections(FOLDER / file)[place]
        for name in term.split(", "):
            assert name.lower() in section.lower(), f"{name!r} is not in {file}, {place!r}"


@pytest.mark.parametrize("file", ["README.md", "older-tutorials.md", "tried.md"])
def test_each_link_into_a_notebook_leads_to_a_heading(file):
    links = re.findall(r"\]\(([^)#]+\.ipynb)#([^)]+)\)", (FOLDER / file).read_text())
    assert links
    assert [(name, place) for name, place in links if place not in sections(FOLDER / name)] == []


def test_the_map_leads_to_every_notebook_and_is_drawn():
    shown = {(notebook[:2], subject) for rows in series_map.COLUMNS.values() for _, notebook, subject in rows}
    assert {number for number, _ in shown} == {path.name[:2] for path in NOTEBOOKS}
    titles = {path.name[:2]: rules.read(path).cells[0].source.splitlines()[0] for path in NOTEBOOKS}
    assert [one for one in shown if one[1] not in titles[one[0]]] == []
    assert series_map.FILE.read_text(encoding="utf-8") == series_map.drawing(), "run tools/series_map.py"


def test_notebook_03_shows_what_was_stored_of_ray():
    stored = (FOLDER.parent / "benchmarks" / "elastic_on_ray.md").read_text()
    table = stored[stored.index("| workers |") :].strip()
    assert len(table.splitlines()) > 4
    [shown] = [
        cell.source for cell in rules.read(FOLDER / "03-many-workers.ipynb").cells if cell.id == "elastic-on-ray"
    ]
    assert table in shown
