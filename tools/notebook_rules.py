"""The form of stored notebooks: how they are cleaned, and the rules that they must follow.

The rules are functions that return a list of problems, each a sentence that names the cell.
"""

import ast
import copy
import hashlib
import json
import os
import re
from pathlib import Path

import nbformat

KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
CELL_METADATA = ("exercise", "tags")
CELL_SECONDS = 480  # as --nbval-cell-timeout in pyproject.toml
TAGS = ("exercise", "deterministic", "evening")
MARKER = re.compile(r"\b(?!NBVAL_CHECK_OUTPUT\b)(?:NBVAL_|PYTEST_VALIDATE)\w*")
WIDGET = "application/vnd.jupyter.widget-view+json"

PATHS = re.compile(r"(?<![\w.])/(?:home|root|Users|tmp|var/folders|private|opt|mnt)/\w|\.venv\b|site-packages")
UNWANTED = {  # in the outputs of a cell
    "a path": PATHS,
    "a warning": re.compile(
        r"\w*Warning:\s|\bWARNING\b|\b[WEF]\d{4} \d\d:|: [WEF] (?:tensorflow|external)/|\bTraceback \(most recent"
    ),
    "an address": re.compile(r"\bat 0x[0-9a-f]{6,}"),
}
REVEALS = re.compile(r"""\b(?:bt\.reveal|ledger\.(?:enter|measure|overall))\(\s*["']([^"']+)""")
EMBEDDED = re.compile(r"data:[\w/+.-]+;base64,[A-Za-z0-9+/=\s]+")


def read(path):
    """The notebook at `path`, unchanged; nbformat's reader would give random ids to cells without one."""
    return nbformat.v4.reads_json(Path(path).read_text(encoding="utf-8"))


def text(notebook):
    """The notebook as the text of its file."""
    return nbformat.writes(notebook) + "\n"


def write(notebook, path):
    """Write atomically: write a temporary file next to `path`, then rename it."""
    part = Path(path).with_name(f".{Path(path).name}.part")
    part.write_text(text(notebook), encoding="utf-8")
    os.replace(part, path)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def clean(notebook):
    """A copy without details that differ between runs or machines; cleaning is idempotent.

    Widget views are removed (their models existed only in the kernel), and so are outputs that then have neither a
    picture nor HTML.
    """
    notebook = copy.deepcopy(notebook)
    seal = notebook.metadata.get("bigtrain")
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNELSPEC, "language_info": {"name": "python"}})
    if seal:
        notebook.metadata["bigtrain"] = seal
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({k: cell.metadata[k] for k in CELL_METADATA if k in cell.metadata})
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not is_only_a_widget(output)]
            for output in cell.outputs:
                output.get("data", {}).pop(WIDGET, None)
    return notebook


def is_only_a_widget(output):
    kinds = output.get("data", {})
    return WIDGET in kinds and not any(kind.startswith("image/") or kind == "text/html" for kind in kinds)


def fingerprint(notebook):
    """A hash of the code and its stored outputs as the notebook was rendered."""
    digest = hashlib.sha256()
    for cell in code_cells(notebook):
        digest.update(json.dumps([cell.source, cell.execution_count, cell.outputs], sort_keys=True).encode())
    return digest.hexdigest()[:16]


def seal(notebook):
    """Record in the notebook that its outputs belong to its code."""
    notebook.metadata["bigtrain"] = {"rendered": fingerprint(notebook)}
    return notebook


def is_sealed(notebook):
    return notebook.metadata.get("bigtrain", {}).get("rendered") == fingerprint(notebook)


def output_texts(cell):
    """The readable text of the cell's outputs, without pictures embedded in HTML."""
    for output in cell.outputs:
        yield output.get("text", "")
        for kind, shown in output.get("data", {}).items():
            if not kind.startswith("image/") or "svg" in kind:
                yield EMBEDDED.sub("", shown if isinstance(shown, str) else json.dumps(shown))


def output_problems(notebook, private=()):
    """Outputs with errors, warnings, paths or addresses, or with one of the `private` texts of a machine."""
    problems = []
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        if any(output.output_type == "error" for output in cell.outputs):
            problems.append(f"cell {number} ended in an error")
        if any(output.get("name") == "stderr" for output in cell.outputs):
            problems.append(f"cell {number} wrote to stderr")
        for shown in output_texts(cell):
            for what, pattern in UNWANTED.items():
                if found := pattern.search(shown):
                    around = shown[max(0, found.start() - 20) : found.start() + 60]
                    problems.append(f"cell {number} shows {what}: {around!r}")
            problems += [f"cell {number} shows this machine's {name}" for name in private if name in shown]
    return problems


def form_problems(notebook):
    """Differences from the form that rendering produces."""
    problems = []
    seen = set()
    for number, cell in enumerate(notebook.cells):
        name = cell.get("id")
        if not name or name in seen:
            problems.append(f"cell {number} has no unique id: {name}")
        seen.add(name)
        if cell.cell_type == "code" and cell.source and cell.execution_count is None:
            problems.append(f"cell {number} was not run")
    if notebook != clean(notebook):
        problems.append("it holds metadata or widget views that rendering removes")
    if not is_sealed(notebook):
        problems.append(
            "its code or outputs have changed since it was rendered: run `make render`, or "
            "`git checkout notebooks` to restore those shipped"
        )
    return problems


def source_problems(notebook):
    """Text that a notebook's cells must not contain, and text that the first one must."""
    problems = []
    if not notebook.cells or not re.search(r"\bminutes?\b", notebook.cells[0].source):
        problems.append("the first cell does not say how many minutes it takes")
    for number, cell in enumerate(notebook.cells):
        unknown = [tag for tag in cell.metadata.get("tags", []) if tag not in TAGS]
        if cell.cell_type == "code":
            unknown += MARKER.findall(cell.source)
            if re.search(r"\bpip3?\s+install\b", cell.source):
                problems.append(f"cell {number} installs packages")
            if PATHS.search(cell.source):
                problems.append(f"cell {number} names an absolute path")
        if unknown:
            problems.append(
                f"cell {number} has the tags or markers {', '.join(unknown)}; allowed are {', '.join(TAGS)} and "
                "NBVAL_CHECK_OUTPUT"
            )
    return problems


def prediction_problems(notebook):
    """Predictions that are not left to the reader.

    Each needs its own blank cell, right below its question and before anything reveals it.
    """
    problems = []
    asked, revealed = {}, {}
    above = None  # the kind of the last cell that is not a prediction
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type != "code" or "bt.predict(" not in cell.source:
            above = cell.cell_type
            if cell.cell_type == "code":
                for name in REVEALS.findall(cell.source):
                    revealed.setdefault(name, number)
            continue
        name = _blank_prediction(cell.source)
        if name is None:
            problems.append(f'cell {number} must be bt.predict("name", ..., "unit") and nothing else')
            continue
        if above != "markdown":
            problems.append(f"cell {number} is not below the question about {name!r}")
        asked[name] = number
    for name, number in asked.items():
        if number > revealed.get(name, number):
            problems.append(f"cell {revealed[name]} reveals {name!r} before cell {number} asks for it")
        if not any(f'"{name}"' in cell.source for cell in code_cells(notebook)[1:] if "bt.predict(" not in cell.source):
            problems.append(f"nothing reveals {name!r}")
    return problems


def _blank_prediction(source):
    """The name in a cell that asks for a prediction, also under a condition; None if it is not blank, or does more."""
    try:
        (statement,) = ast.parse(source).body
    except (SyntaxError, ValueError):
        return None
    if isinstance(statement, ast.If) and len(statement.body) == 1 and not statement.orelse:
        (statement,) = statement.body
    match statement:
        case ast.Expr(ast.Call(ast.Attribute(attr="predict"), [ast.Constant(str(name)), ast.Constant(value), *_])):
            return name if value is ... else None
    return None
