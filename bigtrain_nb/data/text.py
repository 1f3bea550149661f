"""Text on disk for language models: the running Python's own source code, or a reader's own folder."""

import os
import platform
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bigtrain_nb.common.checks import fraction, whole_number
from bigtrain_nb.common.progress import shown
from bigtrain_nb.data import cache as storage
from bigtrain_nb.data.folders import cache_name, own_folder, sort_out, visible_files

FORMAT = 1
"""Part of every folder's name: text made by an earlier version of this file is not taken for this one's."""

NOT_SOURCE = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
"""Folders of the standard library that are left out: other people's code, and tests full of odd data."""

LARGEST_LIBRARY = 30_000_000
"""Bytes; no Python's standard library holds more source code, whatever is asked for."""


@dataclass(frozen=True)
class TextData:
    """A train and a test text, UTF-8, made of whole files one after another, no file in both.

    ``files`` counts them; ``skipped`` names those that are not UTF-8 and were left out.
    """

    root: Path = field(repr=False)
    train: Path = field(repr=False)
    test: Path = field(repr=False)
    train_bytes: int
    test_bytes: int
    files: int
    skipped: tuple = ()

    def array(self, split="train"):
        """Return the bytes of the "train" or the "test" text: uint8 [bytes], read from disk as they are used."""
        if split not in ("train", "test"):
            raise ValueError(f"split={split!r} must be 'train' or 'test'")
        return np.memmap(getattr(self, split), np.uint8, mode="r")


def source_text(megabytes=8.0, *, test_fraction=0.1, seed=0, cache=None):
    """Return `TextData` of the running Python's standard library, at most ``megabytes`` (10^6 bytes) in all.

    Whole files are drawn in an order given by ``seed``; about ``test_fraction`` of the bytes is the test text. Made on
    the first call, as `photo_crops` is, and kept for this version of Python.

    Raises ValueError for settings that make no sense, OSError when the disk is full.
    """
    if isinstance(megabytes, bool) or not isinstance(megabytes, int | float) or not 0.1 <= megabytes < np.inf:
        raise ValueError(f"megabytes={megabytes!r} must be a number of at least 0.1")
    test_fraction = fraction("test_fraction", test_fraction)
    whole_number("seed", seed, 0)
    library = Path(sysconfig.get_path("stdlib"))

    def fill(making):
        chosen, left = [], megabytes * 1e6
        for path in _shuffled(_library_files(library), seed):
            if path.stat().st_size <= left and _is_text(path):
                chosen.append(path)
                left -= path.stat().st_size
        return _write(making, chosen, test_fraction) | {"skipped": []}

    name = f"source-text-v{FORMAT}-python{platform.python_version()}-{megabytes}MB-test{test_fraction}-seed{seed}"
    return _text_data(storage.cache_folder(cache) / name, fill, needs=min(int(megabytes * 1e6), LARGEST_LIBRARY))


def text_folder(folder, pattern="**/*.txt", *, test_fraction=0.1, seed=0, skip_damaged=False, cache=None):
    """Return `TextData` of a reader's own UTF-8 files: those below ``folder`` that match ``pattern``.

    Random whole files with about ``test_fraction`` of the bytes are the test text; of a single file it is the end.
    Hidden and empty files are ignored. Copied into the cache, and again whenever the files change.

    Raises ValueError that names the files that are not UTF-8, unless ``skip_damaged``, which leaves them out and lists
    them in ``.skipped``; ValueError if no file matches and for settings that make no sense; FileNotFoundError for a
    folder that is not there; OSError when the disk is full.
    """
    test_fraction = fraction("test_fraction", test_fraction)
    whole_number("seed", seed, 0)
    if not isinstance(pattern, str) or not Path(pattern).parts or Path(pattern).is_absolute():
        raise ValueError(f"pattern={pattern!r} must be a pattern below the folder, such as '**/*.txt'")
    folder = own_folder(folder, cache)
    paths = [path for path in visible_files(folder, pattern) if path.stat().st_size]
    if not paths:
        raise ValueError(f"{folder} holds no text: no file that is not empty matches pattern={pattern!r}")

    def fill(making):
        good, skipped = sort_out(folder, paths, _is_text, "UTF-8 text", skip_damaged)
        return _write(making, _shuffled(good, seed), test_fraction) | {"skipped": skipped}

    name = cache_name(f"text-folder-v{FORMAT}", folder, paths, (test_fraction, seed, bool(skip_damaged)))
    return _text_data(storage.cache_folder(cache) / name, fill, needs=sum(path.stat().st_size for path in paths))


def _library_files(library):
    for folder, subfolders, names in os.walk(library):
        subfolders[:] = set(subfolders) - NOT_SOURCE
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _shuffled(paths, seed):
    return np.random.default_rng(seed).permutation(sorted(paths)).tolist()


def _is_text(path):
    try:
        with open(path, encoding="utf-8") as file:
            while file.read(2**20):
                pass
    except UnicodeDecodeError:
        return False
    return True


def _write(making, paths, test_fraction):
    """Write test.txt from the first files, up to about ``test_fraction`` of the bytes, train.txt from the others."""
    if len(paths) == 1:
        return _write_cut(making, paths[0], test_fraction)
    wanted = test_fraction * sum(path.stat().st_size for path in paths)
    tests, size = 1, paths[0].stat().st_size
    while size < wanted and tests < len(paths) - 1:
        size += paths[tests].stat().st_size
        tests += 1
    for name, part in (("test", paths[:tests]), ("train", paths[tests:])):
        with open(making / f"{name}.txt", "wb") as out:
            for path in shown(part, f"writing {name} text"):
                out.write(path.read_bytes())
    return {"files": len(paths)}


def _write_cut(making, path, test_fraction):
    text = path.read_bytes().decode()
    cut = round(len(text) * (1 - test_fraction))
    if not 0 < cut < len(text):
        raise ValueError(f"{path} has {len(text)} characters: too few for a train and a test text")
    (making / "train.txt").write_bytes(text[:cut].encode())
    (making / "test.txt").write_bytes(text[cut:].encode())
    return {"files": 1}


def _text_data(root, fill, needs):
    facts = storage.made(root, fill, needs)
    train, test = root / "train.txt", root / "test.txt"
    sizes = train.stat().st_size, test.stat().st_size
    return TextData(root, train, test, *sizes, facts["files"], tuple(facts["skipped"]))
