"""Put what the notebooks of the series read beside a notebook: the scripts, the pictures and the glossary.

    %run -m bigtrain_nb.unpack              in a notebook: into its folder
    python -m bigtrain_nb.unpack FOLDER     in a shell

A file that is there already and differs is kept, and named.
"""

import argparse
import shutil
from importlib import invalidate_caches
from pathlib import Path

from bigtrain_nb.common import beside


def unpack(folder="."):
    """Copy all that stands beside the notebooks into ``folder``, which is made if need be; write over nothing.

    Returns the paths that were written, and those that were there and differ, both from ``folder`` on. Raises OSError
    with the path where a file cannot be written.
    """
    folder = Path(folder)
    written, kept = [], []
    for path in _carried():
        source, target = beside.folder() / path, folder / path
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            written.append(path)
        elif not target.is_file() or target.read_bytes() != source.read_bytes():
            kept.append(path)
    invalidate_caches()  # a kernel may have looked for `scripts` before
    return written, kept


def _carried():
    """Return the paths of all files to copy, from their folder on."""
    root = beside.folder()
    files = []
    for name in beside.NAMES:
        place = root / name
        files += [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    paths = [file.relative_to(root) for file in files]
    return [path for path in paths if not any(part.startswith((".", "__pycache__")) for part in path.parts)]


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m bigtrain_nb.unpack",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", nargs="?", default=".", help="where the notebook is; the current folder if not said")
    folder = Path(parser.parse_args(arguments).folder)
    written, kept = unpack(folder)
    names = ", ".join(beside.NAMES)
    if written:
        files = "1 file" if len(written) == 1 else f"{len(written)} files"
        print(f"{files} written into {folder.resolve()}: {names}")
    elif not kept:
        print(f"All is there already: {names}")
    if kept:
        print(
            f"Kept, because they differ from those of the series: {', '.join(map(str, kept))}."
            " To get these anew, rename or delete yours, and unpack again."
        )


if __name__ == "__main__":
    main()
