"""Make the book: the executed notebooks as static pages that need no Jupyter.

    python tools/book.py [FOLDER]     build/book, unless another folder is named

Nothing is executed: the pages show the outputs that the notebooks hold, a picture or a sentence where JupyterLab has
controls, and the exercises' hints and solutions, folded. Sphinx makes pages and search; this file is also its extension
that reads a notebook as MyST Markdown.
"""
import argparse
import html
import inspect
import json
import re
import shutil
import sys
import tempfile
import textwrap
from pathlib import Path

import nbformat
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from myst_parser.parsers.sphinx_ import MystParser
from notebook_rules import code_cells
from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder

from bigtrain_nb.workbook.exercises import registry

TOOLS = Path(__file__).resolve().parent
NOTEBOOKS = TOOLS.parent / "notebooks"
FOLDER = TOOLS.parent / "build" / "book"
TITLE = "Training large models with TensorFlow 2"
SETTINGS = {
    "project": TITLE,
    "html_title": TITLE,
    "root_doc": "README",
    "extensions": ["myst_parser", "book"],
    "exclude_patterns": [".ipynb_checkpoints"],
    "myst_enable_extensions": ["dollarmath", "html_image"],
    "myst_heading_anchors": 3,
    "myst_heading_slug_func": "book.anchor",
    "smartquotes": False,
    "suppress_warnings": ["misc.highlighting_failure"],  # no lexer knows a shell command of several lines in a cell
    "html_theme": "furo",
    "html_static_path": [str(TOOLS / "book.css")],
    "html_css_files": ["book.css"],
    "html_copy_source": False,
    "html_show_copyright": False,
    "html_use_index": False,
}
WIDGET = re.compile(r"\w+|bt\.(?:Lab|Planner)\(.*\)")  # the last line of a cell that shows controls
CONTROLS = "In JupyterLab, controls stand here: `make lab` opens it."


def build(folder):
    """Write the book into `folder`, in place of an earlier one; 0, or 1 if Sphinx warned of something.

    Raises FileExistsError, and leaves all as it is, where a folder other than the usual one holds anything else.
    """
    index = folder / "index.html"
    ours = folder.resolve() == FOLDER or (index.exists() and f"<title>{TITLE}</title>".encode() in index.read_bytes())
    if not ours and any(folder.glob("*")):
        raise FileExistsError(f"{folder} holds other files than the book's: name a new folder.")
    if folder.exists():
        shutil.rmtree(folder)
    with tempfile.TemporaryDirectory() as work:
        app = Sphinx(NOTEBOOKS, None, folder, work, "book", SETTINGS, status=None, freshenv=True, warningiserror=True)
        app.build()
    shutil.copy(folder / "README.html", index)
    return app.statuscode


def setup(app):
    """Tell Sphinx of notebooks, and of formulas as MathML, which needs no script and no network."""
    app.add_builder(BookBuilder)
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    app.add_html_math_renderer("mathml", (formula, None), (formula, None))
    app.connect("source-read", add_contents)


class BookBuilder(StandaloneHTMLBuilder):
    name = "book"
    supported_data_uri_images = False  # notebooks' pictures become files


class NotebookParser(MystParser):
    supported = ("notebook",)

    def parse(self, inputstring, document):
        super().parse(markdown(nbformat.v4.reads_json(inputstring)), document)


def add_contents(app, name, source):
    """Sphinx takes the order of the pages, for its sidebar and for next and previous, from a list on the first one."""
    if name == app.config.root_doc:
        source[0] += "\n\n" + fence("{toctree}", "\n".join([":hidden:", "", *sorted(app.env.found_docs - {name})]))


def anchor(title):
    """What JupyterLab calls a heading's place, so that a link into a notebook leads there in both."""
    return title.replace(" ", "-")


def formula(writer, node):
    writer.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def markdown(notebook):
    """The notebook as MyST Markdown."""
    codes = code_cells(notebook)
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        elif cell.source:
            parts += [*code(cell), *in_place_of_controls(cell, codes[codes.index(cell) + 1:]), *folded(cell)]
    return "\n\n".join(parts)


def code(cell):
    source = cell.source.removeprefix("# NBVAL_CHECK_OUTPUT\n")
    yield fence("ipython3" if re.search("^!", source, re.MULTILINE) else "python", source)
    if cell.outputs:
        yield fence("{container} output", "\n\n".join(shown(output, cell) for output in cell.outputs))


def shown(output, cell):
    """One output: its picture before its HTML before its text."""
    data = output.get("data", {})
    page, text = data.get("text/html", ""), output.get("text") or data.get("text/plain", "")
    if "image/png" in data:
        return picture(output, cell)
    if 'class="highlight"' in page:  # source code, whose colours would be those of a light page
        return fence("python", text)
    return fence("{raw} html", page) if page else fence("text", text.rstrip("\n"))


def picture(output, cell):
    known = output.metadata.get("image/png", {})
    words = known.get("alt", "picture drawn by " + cell.source.rsplit("\n", 1)[-1])
    data = "".join(output.data["image/png"].split())
    options = f":alt: {json.dumps(words, ensure_ascii=False)}\n:width: {known.get('width', 672)}px"
    return fence("{image} data:image/png;base64," + data, options)


def in_place_of_controls(cell, later):
    """For a cell that shows controls only: a sentence, and what a later cell shows of the same controls' runs."""
    name = cell.source.rsplit("\n", 1)[-1]
    if cell.outputs or not WIDGET.fullmatch(name):
        return
    drawn = [(output, one) for one in later[1:] if f"{name}.picture()" in one.source
             for output in one.outputs if "image/png" in output.get("data", {})]
    words = CONTROLS + " Their runs at the end of this page, in one picture:" * bool(drawn)
    yield fence("{container} controls", "\n\n".join([words, *(picture(*one) for one in drawn[-1:])]))


def folded(cell):
    """The hint and the solution of an exercise; nothing under other cells."""
    if "exercise" not in cell.metadata:
        return
    exercise = registry()[cell.metadata["exercise"]]
    hint = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(exercise.hint, quote=False))
    solution = textwrap.dedent(inspect.getsource(exercise.reference)).rstrip()
    yield fence("{raw} html", f'<details class="hint"><summary>Hint</summary><p>{hint}</p></details>\n'
                              '<details class="solution"><summary>Solution</summary>')
    yield fence("python", solution)
    yield fence("{raw} html", "</details>")


def fence(kind, body):
    """A fenced block of Markdown, with more backticks than there are in a row inside."""
    ticks = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", body))])
    return f"{ticks}{kind}\n{body}\n{ticks}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    folder = parser.parse_args().folder
    try:
        failed = build(folder)
    except FileExistsError as error:
        sys.exit(str(error))
    print(f"The book is {'not whole' if failed else 'ready'}: open {folder / 'index.html'}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
