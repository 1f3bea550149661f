"""A reader's own folder: which files count, what identifies them, and the words for those that are damaged."""

import hashlib
from pathlib import Path

from bigtrain_nb.common.progress import shown
from bigtrain_nb.data import cache as storage


def own_folder(folder, cache):
    """Return ``folder`` as an absolute path; raise if it is not there, or if the cache is inside it."""
    folder = Path(folder).expanduser().absolute()
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: there is no such folder")
    if storage.cache_folder(cache).is_relative_to(folder):
        raise ValueError(f"cache={str(storage.cache_folder(cache))!r} must be outside the folder of data, {folder}")
    return folder


def visible_files(folder, pattern):
    """Return the files below ``folder`` that match ``pattern``, sorted; not hidden ones nor any in hidden folders."""
    paths = (path for path in folder.glob(pattern) if path.is_file())
    return sorted(path for path in paths if not any(part[0] == "." for part in path.relative_to(folder).parts))


def cache_name(kind, folder, paths, arguments):
    """Return a folder name that changes with any path, size or time of change of the files, or any argument."""
    digest = hashlib.sha256(repr((str(folder), *arguments)).encode())
    for path in paths:
        status = path.stat()
        digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return f"{kind}-{folder.name[:40]}-{digest.hexdigest()[:16]}"


def sort_out(folder, paths, is_good, needed, skip_damaged):
    """Return (good paths, names of the damaged ones).

    Raises ValueError that names the damaged ones unless ``skip_damaged``, and if no good one is left. ``needed`` says
    what a good file is, as in "images".
    """
    good = [path for path in shown(paths, f"checking {folder.name}") if is_good(path)]
    names = [path.relative_to(folder).as_posix() for path in sorted(set(paths) - set(good))]
    if names and not skip_damaged:
        listed = "\n".join(names[:10] + [f"and {len(names) - 10} more"] * (len(names) > 10))
        raise ValueError(
            f"{folder}: {len(names)} of {len(paths)} files cannot be read as {needed}; "
            f"skip_damaged=True leaves them out:\n{listed}"
        )
    if not good:
        raise ValueError(f"{folder}: none of its {len(paths)} files can be read as {needed}")
    return good, names
