"""A reader's copies of the notebooks: without outputs, and brought to a new version without losing what was written.

In the folder of the copies, `BASES` keeps the version that each was made from. A copy names its version in its
metadata; the version is written first and the copy last, by renaming: what was cut short is done again.
"""

import hashlib
import json
from pathlib import Path

from bigtrain_nb.common.files import write_text
from bigtrain_nb.workbook import record
from bigtrain_nb.workbook.merge import merge

BASES = ".bigtrain-versions"
CELL_METADATA = ("exercise", "tags")
RELOAD = "A notebook that is open in JupyterLab must be read anew before it is saved: File > Reload Notebook from Disk."


def update(notebook, folder):
    """Make the reader's copy of a notebook in a folder, or bring the one that is there to the notebook's version.

    Returns what to tell the reader, a list of sentences; it is empty if the copy has this version already. What a copy
    noted before it was deleted stays in the record, and its predictions count afresh. Raises OSError where a file
    cannot be read or written, ValueError for a notebook that is none, and for one that stands in the folder itself.
    """
    notebook, copy = Path(notebook), Path(folder) / Path(notebook).name
    if notebook.resolve() == copy.resolve():
        raise ValueError(f"{notebook} is the notebook itself: name another folder for your copy of it")
    new = _as_shipped(read(notebook))
    version = hashlib.sha256(_text(new).encode()).hexdigest()[:16]
    base = Path(folder) / BASES / f"{notebook.stem}.{version}.json"

    if not copy.exists():
        base.parent.mkdir(parents=True, exist_ok=True)
        write_text(base, _text(new))
        record.begin_again(Path(folder), notebook.stem)
        _write_copy(copy, new, version)
        return [f"{copy}: made"]

    try:
        mine = read(copy)
    except ValueError as error:
        return [
            f"{copy} is left as it is, for it cannot be read ({error}). Rename or delete it, and a new one is made."
        ]
    old_version = mine["metadata"].get("bigtrain", {}).get("version")
    if old_version == version:
        return []
    cells, said = merge(shipped_cells(copy), mine["cells"], new["cells"])
    base.parent.mkdir(parents=True, exist_ok=True)
    write_text(base, _text(new))
    metadata = new["metadata"] | {name: value for name, value in mine["metadata"].items() if name != "widgets"}
    _write_copy(copy, new | {"cells": cells, "metadata": metadata}, version)
    for other in base.parent.glob(f"{notebook.stem}.*.json"):
        if other != base:
            other.unlink()
    return [f"{copy}: brought to the new version", *(f"  {sentence}" for sentence in said)]


def shipped_cells(copy):
    """The cells that a reader's copy was made from; none where that is not known any more."""
    copy = Path(copy)
    version = read(copy)["metadata"].get("bigtrain", {}).get("version")
    base = copy.parent / BASES / f"{copy.stem}.{version}.json"
    return read(base)["cells"] if base.exists() else []


def read(path):
    """A notebook's dictionary, with each source as one text. Raises ValueError for a file that is no notebook."""
    try:
        notebook = json.loads(Path(path).read_text(encoding="utf-8"))
        for cell in notebook["cells"]:
            cell["source"] = "".join(cell["source"])
            cell["metadata"], cell["cell_type"] = dict(cell["metadata"]), str(cell["cell_type"])
            if cell["cell_type"] == "code":
                cell.setdefault("outputs", [])
                cell.setdefault("execution_count", None)
        notebook["metadata"] = dict(notebook["metadata"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no notebook: {error!r}") from None
    return notebook


def _as_shipped(notebook):
    """The notebook without outputs, counts, and all metadata but its kernel's and what the cells mean."""
    cells = []
    for cell in notebook["cells"]:
        kept = {name: cell["metadata"][name] for name in CELL_METADATA if name in cell["metadata"]}
        blank = {"outputs": [], "execution_count": None} if cell["cell_type"] == "code" else {}
        cells.append(cell | blank | {"metadata": kept})
    metadata = {name: value for name, value in notebook["metadata"].items() if name not in ("bigtrain", "widgets")}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _write_copy(path, notebook, version):
    metadata = notebook["metadata"] | {"bigtrain": {"version": version}}
    write_text(path, _text(notebook | {"metadata": metadata}))


def _text(notebook):
    """The notebook as it stands in a file, as Jupyter writes it: each source as a list of lines."""
    cells = [cell | {"source": cell["source"].splitlines(keepends=True)} for cell in notebook["cells"]]
    return json.dumps(notebook | {"cells": cells}, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
