"""A reader's own folder: which files count, what identifies them, and the words for those that are damaged."""

import hashlib
from pathlib import Path

import numpy as np

from bigtrain_nb.common.checks import as_path
from bigtrain_nb.data.cache import made, progress


def copied(folder, pattern, is_good, kind, write, settings, cache):
    """Return (copy, facts) of the files below ``folder`` that match ``pattern``, hidden ones left out.

    ``is_good(path)`` tells whether a file is of that ``kind``, as in "UTF-8 text"; ``write(making, paths)``, with the
    paths in random order, fills the copy and returns facts. It is made again when any path, size or time of change of
    the files, or any of the ``settings`` changes.

    Raises ValueError that names the damaged files, ten at most, and for a folder without files; FileNotFoundError for
    one that is not there.
    """
    folder = Path(as_path("folder", folder)).expanduser().absolute()
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: there is no such folder")
    found = [path for path in sorted(folder.glob(pattern)) if path.is_file()]
    paths = [path for path in found if "/." not in f"/{path.relative_to(folder).as_posix()}"]
    if not paths:
        raise ValueError(f"{folder} holds no {kind}: no file matches {pattern}")

    def fill(making):
        checked = progress(paths, f"checking {folder.name}")
        damaged = [path.relative_to(folder).as_posix() for path in checked if not is_good(path)]
        if damaged:
            raise ValueError(
                f"{folder}: {len(damaged)} of {len(paths)} files cannot be read; expected are {kind}:\n"
                + "\n".join(damaged[:10])
            )
        return write(making, shuffled(paths))

    digest = hashlib.sha256(repr((pattern, settings)).encode())
    for path in paths:
        status = path.stat()
        digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return made(f"{folder.name[:40]}-{digest.hexdigest()[:16]}", fill, cache)


def shuffled(paths):
    """Return the paths in a random order, the same each time."""
    return np.random.default_rng(0).permutation(sorted(paths)).tolist()
