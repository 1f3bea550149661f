"""Folders that are made once, kept in the user's cache, and made again when damaged."""

import errno
import json
import os
import platform
import re
import shutil
import time
import uuid
import zlib
from pathlib import Path

import platformdirs
import psutil

MANIFEST = "manifest.json"
CHECKSUM_BYTES = 256 * 2**20
"""Folders up to this size have all checksums compared each time they are opened, larger ones only file sizes."""
ABANDONED_SECONDS = 24 * 3600
MAKING = re.compile(r"\.making-(\w*)-(\d+)-\w+")
"""The name of a folder that is being made: host and process."""
FULL = (errno.ENOSPC, errno.EDQUOT)


def cache_folder(cache=None):
    """Return ``cache`` if given, else the folder in BIGTRAIN_NB_CACHE, else this platform's cache folder."""
    chosen = cache or os.environ.get("BIGTRAIN_NB_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return platformdirs.user_cache_path("bigtrain_nb", appauthor=False)


def made(folder, fill, needs):
    """Return the facts of ``folder``; unless it is there and whole, make it first.

    ``fill(making)`` writes all files into the empty folder ``making`` and returns facts about them, for JSON. That
    folder stands beside and is renamed at the end, so ``folder`` is never seen half made, and of several processes
    that make it at once the first one wins. ``needs`` is the expected size in bytes.

    Raises OSError that names the folder and the space needed when the disk is full; nothing is left behind.
    """
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder.parent)
    manifest = whole(folder)
    return manifest["facts"] if manifest else _make(folder, fill, needs)


def whole(folder):
    """Return the manifest of ``folder``: {"facts": ..., "files": ...}, or None if it is missing or damaged."""
    try:
        manifest = _read_manifest(folder)
    except (OSError, ValueError):
        return None
    deep = sum(size for size, _ in manifest["files"].values()) <= CHECKSUM_BYTES
    as_stored = all(_as_stored(folder / name, *stored, deep) for name, stored in manifest["files"].items())
    return manifest if as_stored else None


def damaged_files(folder):
    """Return the paths of files in ``folder`` that are missing or changed since it was made, by their checksums."""
    try:
        files = _read_manifest(folder)["files"]
    except (OSError, ValueError):
        return [folder / MANIFEST]
    return [folder / name for name, stored in files.items() if not _as_stored(folder / name, *stored, deep=True)]


def _read_manifest(folder):
    checksum, body = (folder / MANIFEST).read_text(encoding="utf-8").split("\n", 1)
    if int(checksum) != zlib.crc32(body.encode()):
        raise ValueError(f"{folder / MANIFEST} is damaged")
    return json.loads(body)


def _as_stored(path, size, crc, deep):
    try:
        return path.stat().st_size == size and (not deep or _crc(path) == crc)
    except OSError:
        return False


def _crc(path):
    crc = 0
    with open(path, "rb") as file:
        while block := file.read(2**20):
            crc = zlib.crc32(block, crc)
    return crc


def _make(folder, fill, needs):
    free = shutil.disk_usage(folder.parent).free
    if needs > free:
        raise _disk_full(folder, needs)
    making = _beside(folder)
    try:
        making.mkdir()
        facts = fill(making)
        _write_manifest(making, facts)
        _put(making, folder)
        return facts
    except Exception as error:
        if _is_disk_full(error):
            _remove(making)
            raise _disk_full(folder, needs) from error
        raise
    finally:
        _remove(making)


def _write_manifest(folder, facts):
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {path.relative_to(folder).as_posix(): (path.stat().st_size, _crc(path)) for path in paths}
    body = json.dumps({"facts": facts, "files": files})
    (folder / MANIFEST).write_text(f"{zlib.crc32(body.encode())}\n{body}", encoding="utf-8")


def _put(making, folder):
    """Rename ``making`` to ``folder``; a damaged folder in its place makes room, a whole one stays."""
    while True:
        try:
            making.rename(folder)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        if whole(folder):
            return
        aside = _beside(folder)
        try:
            folder.rename(aside)
        except FileNotFoundError:
            continue
        _remove(aside)


def _host():
    return re.sub(r"\W", "_", platform.node())


def _beside(folder):
    return folder.with_name(f".making-{_host()}-{os.getpid()}-{uuid.uuid4().hex[:8]}")


def _remove_abandoned(parent):
    """Remove what makers have left in ``parent``: those of this host that died, and others after a day."""
    for path in parent.glob(".making-*"):
        ours = MAKING.fullmatch(path.name)
        if not ours:
            continue
        host, pid = ours.groups()
        try:
            age = time.time() - path.stat().st_mtime
        except FileNotFoundError:
            continue
        if not psutil.pid_exists(int(pid)) if host == _host() else age > ABANDONED_SECONDS:
            _remove(path)


def _remove(path):
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _is_disk_full(error):
    """Tell whether there is no space left; TensorFlow says so only in words."""
    return getattr(error, "errno", None) in FULL or os.strerror(errno.ENOSPC) in str(error)


def _disk_full(folder, needs):
    free = shutil.disk_usage(folder.parent).free
    return OSError(
        errno.ENOSPC,
        f"not enough space: about {needs / 1e6:,.1f} MB are needed and {free / 1e6:,.1f} MB are free; "
        "free some, or let BIGTRAIN_NB_CACHE or cache= name a folder on another disk",
        str(folder),
    )
