"""Keep the pictures of notebooks/README.md current: each is an output of its notebook.

python tools/covers.py     rewrites those that differ from the notebooks' outputs
"""

import base64
from pathlib import Path

import notebook_rules as rules

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
DRAWN_BY = {  # text in the cell whose largest picture is used
    "00-measure-first": "measured.figure()",
    "01-feed-the-model": "cached.figure()",
    "02-mirror-it": "steps_figure(steps",
    "03-many-workers": "resumed_figure(",
    "04-half-the-bits": "range_figure(gradients",
    "05-a-batch-that-does-not-fit": "distance_figure(wrong, right)",
    "06-all-of-it": "stacked_figure(rows",
    "07-pay-with-time": "course_figure(courses)",
    "08-share-it-out": "steps, figure, words = clock_of()",
    "09-cut-the-model": "order_figure(orders)",
    "10-feed-a-language-model": "rows_figure(drawn)",
    "11-when-it-goes-wrong": "interval_figure(measured",
    "12-ask-a-server": "staleness_figure(learning_rates",
    "13-choose-it": "curse_figure(search_sizes",
    "14-shrink-it-hand-it-on": "forgetting_figure(tried)",
}


def cover(name):
    """The picture of the notebook of that name as PNG. Raises ValueError unless one cell draws it."""
    notebook = rules.read(NOTEBOOKS / f"{name}.ipynb")
    cells = [cell for cell in rules.code_cells(notebook) if DRAWN_BY[name] in cell.source]
    shown = [output.get("data", {}) for cell in cells for output in cell.outputs]
    drawn = [data["image/png"] for data in shown if "image/png" in data]
    if len(cells) != 1 or not drawn:
        raise ValueError(f"{name}: one cell with {DRAWN_BY[name]!r} and a picture is needed; see tools/covers.py")
    return base64.b64decode(max(drawn, key=len))


def file_of(name):
    return NOTEBOOKS / "images" / f"{name}.png"


def main():
    for name in DRAWN_BY:
        picture, file = cover(name), file_of(name)
        if not file.exists() or file.read_bytes() != picture:
            file.write_bytes(picture)
            print(f"{file.name}: written")


if __name__ == "__main__":
    main()
