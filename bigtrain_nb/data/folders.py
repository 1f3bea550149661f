"""A reader's own folder: which files count, what identifies them, and the words for those that are damaged."""

import hashlib
from pathlib import Path

from bigtrain_nb.data.cache import progress


def own_folder(folder):
    """Return ``folder`` as an absolute path; raise if it is not there."""
    folder = Path(folder).expanduser().absolute()
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: there is no such folder")
    return folder


def visible_files(folder, pattern):
    """Return the files below ``folder`` that match ``pattern``, sorted; not hidden ones nor any in hidden folders."""
    found = []
    for path in sorted(folder.glob(pattern)):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden:
            found.append(path)
    return found


def cache_name(kind, folder, paths, settings):
    """Return a folder name that changes with any path, size or time of change of the files, or any setting."""
    digest = hashlib.sha256(repr((str(folder), settings)).encode())
    for path in paths:
        status = path.stat()
        digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return f"{kind}-{folder.name[:40]}-{digest.hexdigest()[:16]}"


def sort_out(folder, paths, is_good, needed, skip_damaged):
    """Return (good paths, names of the damaged ones).

    Raises ValueError that names the damaged ones unless ``skip_damaged``, and if no good one is left. ``needed`` says
    what a good file is, as in "images".
    """
    good, damaged = [], []
    for path in progress(paths, f"checking {folder.name}"):
        if is_good(path):
            good.append(path)
        else:
            damaged.append(path.relative_to(folder).as_posix())
    if damaged and not skip_damaged:
        listed = damaged[:10]
        if len(damaged) > 10:
            listed.append(f"and {len(damaged) - 10} more")
        raise ValueError(
            f"{folder}: {len(damaged)} of {len(paths)} files cannot be read as {needed}; "
            "skip_damaged=True leaves them out:\n" + "\n".join(listed)
        )
    if not good:
        raise ValueError(f"{folder}: none of its {len(paths)} files can be read as {needed}")
    return good, damaged
