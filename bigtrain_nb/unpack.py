"""Copy the files that the notebooks need (scripts, pictures, glossary), and make working copies without outputs.

    %run -m bigtrain_nb.unpack                          in a notebook: into its folder
    python -m bigtrain_nb.unpack FOLDER                 in a shell
    python -m bigtrain_nb.unpack NOTEBOOK.ipynb my      a copy of the notebook and the files, in the folder `my`; also
                                                        evening-NOTEBOOK.ipynb if the notebook has a short track

Run it again after an update to get new and changed files. Files that you have edited are kept and listed. Copies of
notebooks are never overwritten: a message says which are older than their notebooks, and how to get the new ones.
"""

import argparse
import hashlib
import json
import sys
from importlib import invalidate_caches
from pathlib import Path

from bigtrain_nb.common import beside
from bigtrain_nb.common.files import write_bytes, write_text
from bigtrain_nb.workbook import copies

INDEX = ("README.md", "older-tutorials.md", "reference.md", "tried.md", "your-fit.md")
"""Files next to the notebooks that are useful only with all of them."""
WRITTEN = Path(".bigtrain-versions", "beside.json")
"""The digest of each file as written, to detect the reader's edits."""


def unpack(folder=".", names=beside.NAMES):
    """Copy the files of these names into ``folder``, created if missing; files that the reader has edited are kept.

    Returns the paths written and the paths kept, relative to ``folder``. Raises OSError with the path of a file that
    cannot be written.
    """
    folder = Path(folder)
    notes = folder / WRITTEN
    known = _read(notes)
    written, kept = [], []
    for path in _carried(names):
        content = (beside.folder() / path).read_bytes()
        target = folder / path
        there = target.read_bytes() if target.is_file() else None
        if there != content:
            if target.exists() and (there is None or known.get(str(path)) != _digest(there)):
                kept.append(path)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(target, content)
            written.append(path)
        known[str(path)] = _digest(content)
    notes.parent.mkdir(exist_ok=True)
    write_text(notes, json.dumps(known, indent=1) + "\n")
    invalidate_caches()  # this kernel may have failed to import `scripts` before
    return written, kept


def _read(notes):
    """{path: digest} of the files as written; empty if unknown, so that every file that differs is kept."""
    try:
        return dict(json.loads(notes.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return {}


def _digest(content):
    return hashlib.sha256(content).hexdigest()


def _carried(names):
    """Return the paths of all files to copy, relative to their folder."""
    root = beside.folder()
    files = []
    for name in names:
        place = root / name
        files += [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    paths = [file.relative_to(root) for file in files]
    return [path for path in paths if not any(part.startswith((".", "__pycache__")) for part in path.parts)]


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m bigtrain_nb.unpack", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    help = "notebooks to copy, and the folder to unpack into (default: the current one)"
    parser.add_argument("paths", nargs="*", metavar="NOTEBOOK.ipynb or FOLDER", help=help)
    given = parser.parse_args(arguments).paths
    notebooks = [Path(path) for path in given if path.endswith(".ipynb")]
    folders = [Path(path) for path in given if not path.endswith(".ipynb")]
    if len(folders) > 1:
        parser.error(f"expected one folder, not {', '.join(map(str, folders))}")
    folder = folders[0] if folders else Path()
    said = []
    try:
        for path in notebooks:
            said += [copies.make(path, folder), copies.make_evening(path, folder)]
        for sentence in filter(None, said):
            print(sentence)
        _unpack_and_tell(folder, [path.parent.resolve() for path in notebooks])
    except (OSError, ValueError) as error:
        sys.exit(str(error))


def _unpack_and_tell(folder, sources):
    of_series = beside.folder().resolve() in sources
    names = (*beside.NAMES, *INDEX) if of_series else beside.NAMES
    written, kept = unpack(folder, names)
    if written:
        files = "1 file" if len(written) == 1 else f"{len(written)} files"
        print(f"{files} written to {folder.resolve()}: {', '.join(names)}")
    elif not kept and not sources:
        print(f"Already there: {', '.join(names)}")
    if kept:
        print(
            f"Kept, because they differ from the series' files: {', '.join(map(str, kept))}."
            " To get fresh copies, rename or delete yours, and unpack again."
        )


if __name__ == "__main__":
    main()
