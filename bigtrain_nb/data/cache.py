"""Folders that are created once and kept in the user's cache."""

import functools
import json
import os
import shutil
import tempfile
from pathlib import Path

import platformdirs
from tqdm.auto import tqdm

from bigtrain_nb.common.checks import as_path

FORMAT = 3
"""Part of every folder's name, so that folders from an earlier version of this project are not reused."""

MANIFEST = "manifest.json"

progress = functools.partial(tqdm, delay=1, leave=False, disable=None)
"""A progress bar for work of over a second; removed when full, and shown only in a terminal or notebook."""


def cache_folder(cache=None):
    """Return ``cache`` if given, else the folder in BIGTRAIN_NB_CACHE, else this platform's cache folder."""
    chosen = (cache is not None and as_path("cache", cache)) or os.environ.get("BIGTRAIN_NB_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return platformdirs.user_cache_path("bigtrain_nb", appauthor=False)


def made(name, fill, cache=None):
    """Return (folder, facts) of the folder ``name`` in the cache.

    It is created unless it exists and every file has its original size. ``fill(making)`` writes all files into the
    empty folder ``making`` and returns JSON-serializable facts about them. That folder is a sibling, renamed at the
    end, so no process sees a partial one.
    """
    folder = cache_folder(cache) / f"{name}-v{FORMAT}"
    facts = _facts(folder)
    if facts is None:
        facts = _make(folder, fill)
    return folder, facts


def _facts(folder):
    """Return the facts stored in ``folder``, or None if a file is missing or its size differs."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        for name, size in manifest["sizes"].items():
            if (folder / name).stat().st_size != size:
                return None
    except (OSError, ValueError):
        return None
    return manifest["facts"]


def _make(folder, fill):
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=folder.parent) as beside:
        making = Path(beside, folder.name)
        making.mkdir()
        facts = fill(making)
        files = [path for path in making.rglob("*") if path.is_file()]
        sizes = {path.relative_to(making).as_posix(): path.stat().st_size for path in files}
        (making / MANIFEST).write_text(json.dumps({"facts": facts, "sizes": sizes}), encoding="utf-8")
        try:
            making.rename(folder)
        except OSError:
            if _facts(folder) is None:  # otherwise another process has completed it
                shutil.rmtree(folder)
                making.rename(folder)
    return facts
