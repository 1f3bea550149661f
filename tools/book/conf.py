"""The book: the executed notebooks as static pages that need no Jupyter and no network. `make book` calls Sphinx.

Nothing is executed: the pages show the outputs that the notebooks hold, and under each exercise its hint and solution,
folded. The reference stands behind the notebooks.
"""

import inspect
import re
import shutil
import sys
import textwrap
from operator import methodcaller
from pathlib import Path

import nbformat
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from nbformat.v4 import new_markdown_cell

import bigtrain_nb.advanced.parallel
from bigtrain_nb.workbook.exercises import registry

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
sys.path.append(str(NOTEBOOKS))  # where an exercise finds its script

project = html_title = "Training large models with TensorFlow 2"
extensions = ["myst_nb", "sphinx.ext.autodoc"]
root_doc = "README"
exclude_patterns = [".ipynb_checkpoints", "scripts/*/README.md"]
autodoc_inherit_docstrings = False  # those of Keras are not written for Sphinx
nb_execution_mode = "off"
nb_merge_streams = True
nb_mime_priority_overrides = [("html", "image/png", 0), ("html", "text/html", 1)]
myst_enable_extensions = ["dollarmath", "html_image"]
myst_heading_anchors = 3
myst_heading_slug_func = methodcaller("replace", " ", "-")  # as JupyterLab names the place of a heading
smartquotes = False
suppress_warnings = ["misc.highlighting_failure"]  # no lexer knows a shell command of several lines in a cell
html_theme = "furo"
html_static_path = ["book.css"]
html_css_files = ["book.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_copyright = False
html_use_index = False

CONTENTS = """

```{toctree}
:hidden:
:glob:

*
```

```{toctree}
:hidden:
:caption: Reference

reference
```
"""
PUBLIC_NAME = re.compile(r"^- `bt\.(\w+)`$", re.MULTILINE)
CONTROLS = re.compile(r"\w+|bt\.Lab\(.*\)|widgets\.interactive\(.*\)")  # the last line of a cell that shows controls
FOLDED = """<details class="hint"><summary>Hint</summary>

{hint}

</details>
<details class="solution"><summary>Solution</summary>

```python
{solution}
```

</details>"""


def setup(app):
    app.add_html_math_renderer("mathml", (formula, None), (formula, None))
    app.connect("source-read", complete)
    app.connect("build-finished", add_index)


def formula(writer, node):
    """A formula as MathML, which needs no script."""
    writer.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def complete(app, name, source):
    """Give the first page its table of contents, and a notebook's page what it shows beside what the notebook holds."""
    if name == root_doc:
        source[0] += CONTENTS
    elif name == "reference":
        source[0] = PUBLIC_NAME.sub(what_it_takes, source[0])
    elif app.env.doc2path(name).suffix == ".ipynb":
        notebook = nbformat.reads(source[0], as_version=4)
        notebook.metadata.language_info.pygments_lexer = "ipython3"
        cells = []
        for cell in notebook.cells:
            cells.append(cell)
            if cell.cell_type == "code":
                prepare(cell)
                cells += remarks(cell)
        notebook.cells = cells
        source[0] = nbformat.writes(notebook)


def what_it_takes(line):
    """What Sphinx writes of a public name: how it is called, and its docstring; of `Model` also what goes together."""
    name = line[1]
    value = getattr(bigtrain_nb, name)
    if inspect.isclass(value):
        members = "of" if name == "Model" else ""  # its others are those of Keras
        directive = f".. autoclass:: bigtrain_nb.{name}\n   :members: {members}"
    elif inspect.isfunction(value):
        directive = f".. autofunction:: bigtrain_nb.{name}"
    else:
        directive = f".. autodata:: bigtrain_nb.{bigtrain_nb._MODULE_OF[name]}.{name}\n   :no-value:"
    together = inspect.getdoc(bigtrain_nb.advanced.parallel).partition("\n\n")[2] if name == "Model" else ""
    return f"```{{eval-rst}}\n{directive}\n```\n{together}\n"


def prepare(cell):
    """Leave out what the tests need, and put a picture's words where myst-nb looks for them."""
    cell.source = cell.source.removeprefix("# NBVAL_CHECK_OUTPUT\n")
    for output in cell.outputs:
        if "image/png" in output.get("data", {}):
            known = output.metadata.get("image/png", {})
            words = known.get("alt", "picture drawn by " + cell.source.splitlines()[-1])
            cell.metadata["mystnb"] = {"image": {"alt": words}}


def remarks(cell):
    """What follows the cell in the book: an exercise's hint and solution, or a sentence where there are controls."""
    if "exercise" in cell.metadata:
        name = cell.metadata["exercise"]
        exercise = registry(name)[name]
        solution = textwrap.dedent(inspect.getsource(exercise.reference)).rstrip()
        return [new_markdown_cell(FOLDED.format(hint=exercise.hint, solution=solution))]
    lines = cell.source.splitlines()
    if lines and not cell.outputs and CONTROLS.fullmatch(lines[-1]):
        return [new_markdown_cell("*In JupyterLab, controls stand here: `make lab` opens it.*")]
    return []


def add_index(app, error):
    if not error:
        shutil.copy(app.outdir / "README.html", app.outdir / "index.html")
