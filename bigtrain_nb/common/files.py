"""Atomic file writes: readers never see a partial file."""

import os
import secrets
import shutil
from contextlib import suppress
from glob import escape
from pathlib import Path

from bigtrain_nb.common.checks import as_path


def write_text(path, text):
    """Write a text file atomically."""
    write_bytes(path, text.encode())


def write_bytes(path, content):
    """Write a file atomically: under a temporary name, then renamed."""
    path = Path(as_path("path", path))
    if path.is_dir():
        raise IsADirectoryError(f"path={str(path)!r} is a folder: give the path of a file")
    replace_atomically(path, lambda beside: beside.write_bytes(content))


def replace_atomically(path, write):
    """Let ``write(beside)`` write a temporary file in the same folder, with the same suffix; then rename it.

    The mode of an existing file is kept. A pipe or a device is not replaced: ``write(path)`` writes to it. Temporary
    files for ``path`` that nobody has written to for an hour, left by killed processes, are removed.
    """
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        return write(Path(path))
    path = Path(os.path.realpath(path))  # a link stays, as when a file is opened for writing
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{os.getpid()}-{secrets.token_hex(4)}.part-of-{path.name}")
    try:
        write(beside)
        if path.exists():
            shutil.copymode(path, beside)
        written = beside.stat().st_mtime  # by the clock of the file system
        beside.replace(path)
        for left in path.parent.glob(f".*.part-of-{escape(path.name)}"):
            with suppress(OSError):
                if left.stat().st_mtime < written - 3600:
                    left.unlink()
    finally:
        beside.unlink(missing_ok=True)
