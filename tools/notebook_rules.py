"""What a stored notebook looks like: how it is cleaned, and the rules it is held to.

The rules are functions that return a list of problems, each a sentence that names the cell.
"""
import copy
import hashlib
import json
import os
import re
from pathlib import Path
from statistics import median

import nbformat

KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
CELL_METADATA = ("exercise", "tags")
CELL_SECONDS = 60  # --nbval-cell-timeout in pyproject.toml is the same
TAG = re.compile(r"exercise|deterministic|timeout=([1-9]\d*)")
MARKER = re.compile(r"\b(?!NBVAL_CHECK_OUTPUT\b)(?:NBVAL_|PYTEST_VALIDATE)\w*")
WIDGET = "application/vnd.jupyter.widget-view+json"

PATHS = re.compile(r"(?<![\w.])/(?:home|root|Users|tmp|var/folders|private|opt|mnt)/\w|\.venv\b|site-packages")
WARNINGS = re.compile(r"\w*Warning:\s|\bWARNING\b|\b[WEF]\d{4} \d\d:|: [WEF] (?:tensorflow|external)/"
                      r"|\bTraceback \(most recent")
ADDRESSES = re.compile(r"\bat 0x[0-9a-f]{6,}")
EMBEDDED = re.compile(r"data:[\w/+.-]+;base64,[A-Za-z0-9+/=\s]+")


def read(path):
    """The notebook at `path` as it is; nbformat's own reading gives random ids to cells that have none."""
    return nbformat.v4.reads_json(Path(path).read_text(encoding="utf-8"))


def text(notebook):
    """The notebook as it stands in a file."""
    return nbformat.writes(notebook) + "\n"


def write(notebook, path):
    """Write beside `path`, then rename, so that a reader never sees half a notebook."""
    part = Path(path).with_name(f".{Path(path).name}.part")
    part.write_text(text(notebook), encoding="utf-8")
    os.replace(part, path)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def cell_seconds(cell, default=CELL_SECONDS):
    """How long the cell may take: 120 seconds with the tag `timeout=120`, the default without one."""
    found = [TAG.fullmatch(tag) for tag in cell.metadata.get("tags", [])]
    return max((int(tag[1]) for tag in found if tag and tag[1]), default=default)


def clean(notebook):
    """A copy without what differs from run to run or from machine to machine; cleaning twice changes nothing.

    Widget views go (their models live in a kernel that is no more), and with them an output that has no picture
    or HTML to show instead. Cells keep their ids; one without gets an id from its position and source.
    """
    notebook = copy.deepcopy(notebook)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    seal = notebook.metadata.get("bigtrain")
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNELSPEC, "language_info": {"name": "python"}})
    if seal:
        notebook.metadata["bigtrain"] = seal
    for position, cell in enumerate(notebook.cells):
        cell.metadata = nbformat.from_dict({k: cell.metadata[k] for k in CELL_METADATA if k in cell.metadata})
        if not cell.get("id"):
            cell.id = hashlib.sha256(f"{position}:{_joined(cell.source)}".encode()).hexdigest()[:8]
        if cell.cell_type == "code":
            cell.outputs = [output for output in map(_without_widget, cell.outputs) if output]
    return notebook


def _without_widget(output):
    data = output.get("data", {})
    if WIDGET in data:
        del data[WIDGET]
        if not any(kind.startswith("image/") or kind == "text/html" for kind in data):
            return None
    return output


def _joined(value):
    return "".join(value) if isinstance(value, list) else value


def fingerprint(notebook):
    """Stands for the code and its stored outputs: both were there, together, when the notebook was rendered."""
    digest = hashlib.sha256()
    for cell in code_cells(notebook):
        digest.update(json.dumps([cell.source, cell.execution_count, cell.outputs], sort_keys=True).encode())
    return digest.hexdigest()[:16]


def seal(notebook):
    """Note in the notebook that its outputs are those of its code."""
    notebook.metadata["bigtrain"] = {"rendered": fingerprint(notebook)}
    return notebook


def is_sealed(notebook):
    return notebook.metadata.get("bigtrain", {}).get("rendered") == fingerprint(notebook)


def output_texts(cell):
    """What a reader can read in the cell's outputs; pictures embedded in HTML are left out."""
    for output in cell.outputs:
        found = [output.get("text", "")]
        found += [v for k, v in output.get("data", {}).items() if not k.startswith("image/") or "svg" in k]
        for value in found:
            value = _joined(value) if isinstance(value, str | list) else json.dumps(value)
            yield EMBEDDED.sub("", value)


def output_problems(notebook, private=()):
    """Errors, noise and traces of one machine in the outputs; `private` adds texts that must not stand there."""
    problems = []
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        kinds = {output.get("name") or output.output_type for output in cell.outputs}
        problems += [f"cell {number} wrote to stderr"] * ("stderr" in kinds)
        problems += [f"cell {number} ended in an error"] * ("error" in kinds)
        for shown in output_texts(cell):
            for what, pattern in (("a path", PATHS), ("a warning", WARNINGS), ("an address", ADDRESSES)):
                if match := pattern.search(shown):
                    problems.append(f"cell {number} shows {what}: {_around(shown, match.start())}")
            problems += [f"cell {number} shows this machine's {name}" for name in private if name in shown]
    return problems


def _around(shown, position):
    return repr(shown[max(0, position - 20):position + 60])


def form_problems(notebook):
    """Anything that rendering would have left otherwise."""
    problems = []
    ids = [cell.get("id", "") for cell in notebook.cells]
    problems += [f"cell {n} has no id" for n, name in enumerate(ids) if not name]
    problems += [f"the id {name} is used twice" for name in sorted({i for i in ids if i and ids.count(i) > 1})]
    if notebook.metadata.get("kernelspec") != KERNELSPEC:
        problems.append(f"the kernelspec is {notebook.metadata.get('kernelspec')}, not {KERNELSPEC}")
    if notebook != clean(notebook):
        problems.append("it holds metadata or widget views that rendering removes")
    unrun = [n for n, cell in enumerate(notebook.cells)
             if cell.cell_type == "code" and cell.source and cell.execution_count is None]
    problems += [f"cell {n} was not run" for n in unrun]
    if not is_sealed(notebook):
        problems.append("its code or outputs have changed since it was rendered: make render, or "
                        "`git checkout notebooks` for those as shipped")
    return problems


def shape_problems(notebook):
    """The grammar of the workbook's notebooks: their length, short cells, enough words and not too many."""
    problems = []
    lines = [len([line for line in cell.source.splitlines() if line.strip()]) for cell in code_cells(notebook)]
    words = sum(len(cell.source.split()) for cell in notebook.cells if cell.cell_type == "markdown")
    if not 30 <= len(notebook.cells) <= 60:
        problems.append(f"{len(notebook.cells)} cells; 30 to 60 are allowed")
    if lines and median(lines) > 5:
        problems.append(f"the median code cell has {median(lines):g} lines; at most 5 are allowed")
    if lines and max(lines) > 15:
        problems.append(f"the longest code cell has {max(lines)} lines; at most 15 are allowed")
    ratio = words / max(1, sum(lines))
    if not 8 <= ratio <= 15:
        problems.append(f"{ratio:.1f} words of prose per line of code; 8 to 15 are allowed")
    if not notebook.cells or not re.search(r"\bminutes?\b", notebook.cells[0].source):
        problems.append("the first cell does not say how many minutes it takes")
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "code" and re.search(r"\bpip3?\s+install\b", cell.source):
            problems.append(f"cell {number} installs packages")
        if cell.cell_type == "code" and PATHS.search(cell.source):
            problems.append(f"cell {number} names an absolute path")
        unknown = [tag for tag in cell.metadata.get("tags", []) if not TAG.fullmatch(tag)]
        unknown += MARKER.findall(cell.source) if cell.cell_type == "code" else []
        problems += [f"cell {number} has the tag or marker {mark}; there are exercise, deterministic, timeout=120 and "
                     "NBVAL_CHECK_OUTPUT" for mark in unknown]
    return problems
