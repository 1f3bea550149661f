"""A reader's copies of the notebooks, without outputs: full notebooks and short tracks ("evening").

The metadata of a copy records the version of its notebook.
"""

import hashlib
import json
import re
from functools import partial
from pathlib import Path

from bigtrain_nb.common.files import write_text
from bigtrain_nb.workbook import record

CELL_METADATA = ("exercise", "tags")
EVENING = "evening"
"""The tag of cells on the short track; its copies are named evening-00-... ."""
LINK = re.compile(r"(?<=\]\()[\w-]+\.ipynb")
SECTION = re.compile(r"(?<=\]\()#([^)\s]+)")
MINUTES = re.compile(r"about \d+ minutes to work through.*?the short track \(☾\) (\d+)")
HEADING = re.compile(r"^##+ (.*)$", re.MULTILINE)


def make(notebook, folder):
    """Make the reader's copy of a notebook in a folder; an existing copy is never overwritten.

    Returns a message for the reader, or "". After a copy was deleted or renamed, its earlier entries stay in the
    record, but predictions in the new copy count as first ones. Raises OSError if a file cannot be read or written, and
    ValueError for a file that is not a notebook, or if ``notebook`` itself is in ``folder``.
    """
    notebook, copy = Path(notebook), Path(folder) / Path(notebook).name
    if notebook.resolve() == copy.resolve():
        raise ValueError(f"{notebook} is the notebook itself: choose another folder for your copy")
    new = _as_shipped(read(notebook))
    if not copy.exists():
        record.begin_again(Path(folder), notebook.stem)
    return _make(new, copy)


def make_evening(notebook, folder):
    """Make a copy with only the cells of the short track, as `make` does; "" for a notebook that has none.

    Its predictions are recorded under the full notebook, which continues from there.
    """
    notebook = Path(notebook)
    new = _as_shipped(read(notebook))
    new["cells"] = [cell for cell in new["cells"] if _is_of_evening(cell)]
    if not new["cells"]:
        return ""
    for cell in (new["cells"][0], new["cells"][-1]):
        cell["source"] = LINK.sub(lambda link: _evening_of(notebook.parent / link[0]), cell["source"])
    text = "\n".join(cell["source"] for cell in new["cells"] if cell["cell_type"] == "markdown")
    here = {heading.replace(" ", "-") for heading in HEADING.findall(text)}
    for cell in new["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = SECTION.sub(partial(_where, here, notebook.name), cell["source"])
    said = f"**This is the short track.** What it mentions but omits is in [the full notebook]({notebook.name})."
    title = MINUTES.sub(r"about \1 minutes", new["cells"][0]["source"])
    new["cells"][0]["source"] = title.replace("**Takes**", f"{said}\n\n**Takes**", 1)
    return _make(new, Path(folder) / (record.EVENING + notebook.name))


def _where(here, whole, link):
    """A link to a section, unchanged if the section is ``here``; otherwise into the ``whole`` notebook."""
    return link[0] if link[1] in here else whole + link[0]


def _is_of_evening(cell):
    return EVENING in cell["metadata"].get("tags", [])


def _evening_of(notebook):
    """The name of the copy that a link leads to: the short track's where there is one."""
    goes_on = notebook.is_file() and any(map(_is_of_evening, read(notebook)["cells"]))
    return record.EVENING * goes_on + notebook.name


def _make(new, copy):
    version = hashlib.sha256(_text(new).encode()).hexdigest()[:16]
    if not copy.exists():
        copy.parent.mkdir(parents=True, exist_ok=True)
        new["metadata"] |= {"bigtrain": {"version": version}}
        write_text(copy, _text(new))
        return f"{copy}: made"
    try:
        made_from = read(copy)["metadata"].get("bigtrain", {}).get("version")
    except ValueError as error:
        return f"{copy} is unchanged: it cannot be read ({error}). For a new one, rename or delete it and unpack again."
    if made_from == version:
        return ""
    return (
        f"{copy} is a copy of another version and is unchanged. To get the new one next to it, rename it, for example"
        f" to my-{copy.name}, and unpack again."
    )


def read(path):
    """A notebook as a dictionary, each source as one string. Raises ValueError for a file that is not a notebook."""
    try:
        notebook = json.loads(Path(path).read_text(encoding="utf-8"))
        for cell in notebook["cells"]:
            cell["source"] = "".join(cell["source"])
            cell["metadata"], cell["cell_type"] = dict(cell["metadata"]), str(cell["cell_type"])
        notebook["metadata"] = dict(notebook["metadata"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a notebook: {error!r}") from None
    return notebook


def _as_shipped(notebook):
    """The notebook without outputs and counts; of the metadata, only the kernel and `CELL_METADATA` remain."""
    cells = []
    for cell in notebook["cells"]:
        kept = {name: cell["metadata"][name] for name in CELL_METADATA if name in cell["metadata"]}
        blank = {"outputs": [], "execution_count": None} if cell["cell_type"] == "code" else {}
        cells.append(cell | blank | {"metadata": kept})
    metadata = {name: value for name, value in notebook["metadata"].items() if name == "kernelspec"}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _text(notebook):
    """The notebook as JSON, as Jupyter writes it: each source as a list of lines."""
    cells = [cell | {"source": cell["source"].splitlines(keepends=True)} for cell in notebook["cells"]]
    return json.dumps(notebook | {"cells": cells}, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
