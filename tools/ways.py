"""Estimate the minutes of each notebook's core path, Further and short track (evening), and update them in the text.

    python tools/ways.py            write
    python tools/ways.py --check    list outdated figures; the exit status is 1 if there are any

Minutes: words of Markdown / 180, lines of code / 20, one per prediction, and the stated minutes of exercises. Headings
of sections with short-track cells are marked by a moon, and links to them are updated.
"""

import argparse
import math
import re
import sys
from pathlib import Path

import notebook_rules as rules

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "notebooks").glob("*.md"))]
MOON = " ☾"
EXERCISE = re.compile(r"\*\((\d+) minutes?, difficulty")
HEADING = re.compile(r"^(##+ .*?)(?: ☾)?$", re.MULTILINE)
SAID = re.compile(r"about \d+ minutes to work through(; \*\*Further\*\* another \d+)?(; the short track \(☾\) \d+)?")
LINK = re.compile(r"\]\(((?:[\w./-]*/)?(\d\d-[\w-]+\.ipynb))?#([^)\s]+)\)")


def has_form(notebook):
    return any(cell.id == "further" for cell in notebook.cells)


def way(notebook):
    """The cells before Further."""
    return [*notebook.cells[: _further_at(notebook)]]


def further(notebook):
    """The sections of Further, each the list of its cells."""
    sections = []
    for cell in notebook.cells[_further_at(notebook) + 1 :]:
        if not sections or (cell.cell_type == "markdown" and re.search("^## ", cell.source, re.MULTILINE)):
            sections.append([])
        sections[-1].append(cell)
    return sections


def _further_at(notebook):
    return [cell.id for cell in notebook.cells].index("further")


def evening(notebook):
    return [cell for cell in notebook.cells if is_of_evening(cell)]


def is_of_evening(cell):
    return "evening" in cell.metadata.get("tags", [])


def minutes(cells):
    """The estimated minutes to work through the cells."""
    total = 0
    for cell in cells:
        if cell.cell_type == "code":
            total += sum(bool(line.strip()) for line in cell.source.splitlines()) / 20
            total += "bt.predict(" in cell.source
        else:
            total += len(cell.source.split()) / 180
            total += sum(int(said) for said in EXERCISE.findall(cell.source))
    return total


def in_fives(minutes):
    return 5 * math.ceil(minutes / 5)


def figures(notebook):
    """The minutes of the core path, Further and the short track, as the text states them."""
    rest = notebook.cells[_further_at(notebook) :]
    return tuple(in_fives(minutes(cells)) for cells in (way(notebook), rest, evening(notebook)))


def marked(notebook):
    """{anchor of a heading, without the mark: whether its section has short-track cells}."""
    found, section = {}, None
    for number, cell in enumerate(notebook.cells):
        headings = HEADING.findall(cell.source) if cell.cell_type == "markdown" and number else []
        for heading in headings or [None]:
            section = place(heading) if heading else section
            found[section] = found.get(section, False) or is_of_evening(cell)
    return found


def place(heading):
    """The anchor of the heading, as JupyterLab names it, without the mark."""
    return re.sub("[`*]", "", heading.lstrip("#").strip()).replace(" ", "-")


def wanted():
    """{file: its expected text}."""
    notebooks = {path: rules.read(path) for path in NOTEBOOKS}
    places = {path.name: marked(notebook) for path, notebook in notebooks.items()}
    formed = {path: figures(notebook) for path, notebook in notebooks.items() if has_form(notebook)}

    def linked(text, own=""):
        def link(found):
            place = found[3].removesuffix("-☾")
            moon = "-☾" if places.get(found[2] or own, {}).get(place) else ""
            return f"]({found[1] or ''}#{place}{moon})"

        return LINK.sub(link, text)

    texts = {}
    for path, notebook in notebooks.items():
        for number, cell in enumerate(notebook.cells):
            if cell.cell_type == "markdown":
                cell.source = linked(cell.source, path.name)
                if number:
                    cell.source = HEADING.sub(lambda one, path=path: _with_mark(one, places[path.name]), cell.source)
        if path in formed:
            notebook.cells[0].source = SAID.sub(_said(*formed[path]), notebook.cells[0].source)
        texts[path] = rules.text(notebook)
    for page in PAGES:
        text = linked(page.read_text(encoding="utf-8"))
        for path, (of_way, _, _) in formed.items():
            for said in (rf"(\]\({path.name}\) \|) \d+", rf"(\[The notebook\]\({path.name}\),) \d+"):
                text = re.sub(said, rf"\1 {of_way}", text)
            text = re.sub(rf"(\]\(notebooks/{path.name}\) \|[^|]*\|) \d+", rf"\1 {of_way}", text)
        texts[page] = text
    together = sum(int(one) for one in re.findall(r"\.ipynb\) \| (\d+) \|", texts[ROOT / "notebooks" / "README.md"]))
    front = ROOT / "README.md"
    texts[front] = re.sub(r"(core paths take about) \d+ hours", rf"\1 {together / 60:.0f} hours", texts[front])
    return texts


def _with_mark(found, places):
    return found[1] + (MOON if places[place(found[1])] else "")


def _said(of_way, of_further, of_evening):
    said = f"about {of_way} minutes to work through; **Further** another {of_further}"
    return said + (f"; the short track (☾) {of_evening}" if of_evening else "")


def problems():
    """Differences from the expected text, each with file and line."""
    found = []
    for path, text in wanted().items():
        lines = zip(path.read_text(encoding="utf-8").splitlines(), text.splitlines(), strict=False)
        for number, (is_so, should_be) in enumerate(lines, 1):
            if is_so != should_be:
                found.append(f"{path.relative_to(ROOT)}:{number}: must be {should_be.strip()[:200]}")
    return found


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    if parser.parse_args(arguments).check:
        found = problems()
        print(*found, sep="\n")
        return int(bool(found))
    for path, text in wanted().items():
        if path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"{path.relative_to(ROOT)}: written")
    for path in NOTEBOOKS:
        notebook = rules.read(path)
        if has_form(notebook):
            exact = [minutes(cells) for cells in (way(notebook), notebook.cells, evening(notebook))]
            print(f"{path.stem}: way {exact[0]:.0f}, Further {exact[1] - exact[0]:.0f}, evening {exact[2]:.0f} minutes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
