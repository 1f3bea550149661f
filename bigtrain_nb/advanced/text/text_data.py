"""Text on disk for language models: Python's standard library, or a folder of your own files."""

import hashlib
import os
import platform
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bigtrain_nb.common.checks import as_path, fraction, of_kind, one_of, positive
from bigtrain_nb.data import cache as storage

NOT_SOURCE = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
"""Excluded folders of the standard library: third-party code, and tests full of odd data."""


@dataclass(frozen=True)
class TextData:
    """UTF-8 text for training and for testing, each of concatenated files; at most one file is split between them.

    ``files`` is their number.
    """

    train: Path = field(repr=False)
    test: Path = field(repr=False)
    train_bytes: int
    test_bytes: int
    files: int

    def array(self, split: str = "train") -> np.ndarray:
        """Return the bytes of the "train" or "test" text: uint8 [bytes], memory-mapped.

        Raises ValueError for another ``split``.
        """
        one_of("split", split, ("train", "test"))
        path = getattr(self, split)
        return np.memmap(path, np.uint8, mode="r") if path.stat().st_size else np.zeros(0, np.uint8)


def source_text(megabytes: float = 8.0, *, cache: str | os.PathLike | None = None) -> TextData:
    """Return `TextData` of the running Python's standard library, at most ``megabytes`` (10^6 bytes) in all.

    Complete files in a fixed random order; about a tenth of the bytes is test text. Created on the first call, like
    `photo_crops`, and cached for this version of Python.

    Raises ValueError for an invalid size, OSError when the disk is full.

    Example::

        text = bt.source_text(megabytes=0.1)
        print(text.train_bytes, bytes(text.array()[:60]).decode())
    """
    megabytes = positive("megabytes", megabytes)

    def fill(making):
        library = Path(sysconfig.get_path("stdlib"))
        chosen, left = [], megabytes * 1e6
        files = library.rglob("*.py")
        sources = [path for path in files if NOT_SOURCE.isdisjoint(path.relative_to(library).parts)]
        for path in _shuffled(sources):
            size = path.stat().st_size
            if size <= left and _is_text(path):
                chosen.append(path)
                left -= size
        _write(making, chosen, 0.1)
        return {"files": len(chosen)}

    name = f"source-text-2-python{platform.python_version()}-{megabytes:g}MB"
    return _text_data(*storage.made(name, fill, cache))


def text_folder(
    folder: str | os.PathLike,
    pattern: str = "**/*.txt",
    *,
    test_fraction: float = 0.1,
    cache: str | os.PathLike | None = None,
) -> TextData:
    """Return `TextData` of your own UTF-8 files: those below ``folder`` that match ``pattern``.

    The test text is random complete files with about ``test_fraction`` of the bytes, none larger than that. If they
    make up less than half of it, the end of the largest other file is added. Hidden and empty files are ignored, and so
    are those in the cache. The text is copied into the cache, and again whenever the files change.

    Raises ValueError if files are not UTF-8 (it names them), if no file matches and for invalid settings;
    FileNotFoundError for a missing folder; OSError when the disk is full.

    Example::

        from pathlib import Path

        Path("poem.txt").write_text("Tyger Tyger, burning bright, in the forests of the night\\n" * 9)
        text = bt.text_folder(".", "poem*.txt")
        print(text.train_bytes, text.test_bytes)
    """
    of_kind("pattern", pattern, str, 'a pattern of paths below the folder, like "**/*.txt"')
    if not pattern or pattern.startswith("/"):
        raise ValueError(f'pattern={pattern!r} must be a pattern of paths below the folder, like "**/*.txt"')
    fraction("test_fraction", test_fraction)

    top = Path(as_path("folder", folder)).absolute()
    if not top.is_dir():
        raise FileNotFoundError(f"{top}: there is no such folder")
    found = [path for path in sorted(top.glob(pattern)) if path.is_file()]
    copies = storage.cache_folder(cache)
    visible = [path for path in found if "/." not in f"/{path.relative_to(top).as_posix()}"]
    paths = [path for path in visible if copies not in path.parents]
    if not paths:
        raise ValueError(f"{top} holds no UTF-8 text: no file matches {pattern}")

    def fill(making):
        checked = storage.progress(paths, f"checking {top.name}")
        damaged = [path.relative_to(top).as_posix() for path in checked if not _is_text(path)]
        if damaged:
            raise ValueError(
                f"{top}: {len(damaged)} of {len(paths)} files are not UTF-8 text:\n" + "\n".join(damaged[:10])
            )
        filled = [path for path in _shuffled(paths) if path.stat().st_size]
        if not filled:
            raise ValueError(f"{folder} holds no text: all files that match {pattern} are empty")
        _write(making, filled, test_fraction)
        return {"files": len(filled)}

    # Rebuilt when a path, size or modification time changes; 3 is the version of the split
    digest = hashlib.sha256(repr((pattern, ("text 3", test_fraction))).encode())
    for path in paths:
        status = path.stat()
        digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return _text_data(*storage.made(f"{top.name[:40]}-{digest.hexdigest()[:16]}", fill, cache))


def _shuffled(paths):
    """Return the paths in a fixed random order."""
    return np.random.default_rng(0).permutation(sorted(paths)).tolist()


def _is_text(path):
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _write(making, paths, test_fraction):
    """Write test.txt from the first files, up to about ``test_fraction`` of the bytes, and train.txt from the others.

    Files larger than that and the last file are not used for test.txt. If the rest make up less than half of it, the
    end of the largest other file is added.
    """
    sizes = {path: path.stat().st_size for path in paths}
    wanted = test_fraction * sum(sizes.values())
    of_test, left = set(), wanted
    for path in paths[:-1]:
        if left > 0 and sizes[path] <= wanted:
            of_test.add(path)
            left -= sizes[path]
    largest = max((path for path in paths if path not in of_test), key=sizes.get, default=None)
    with open(making / "train.txt", "wb") as train, open(making / "test.txt", "wb") as test:
        for path in storage.progress(paths, "writing text"):
            text = path.read_bytes()
            if path == largest and text and left > wanted / 2:
                characters = text.decode()
                kept = max(1, min(len(characters) - 1, round(len(characters) * (1 - left / len(text)))))
                test.write(characters[kept:].encode())
                text = characters[:kept].encode()
            out = test if path in of_test else train
            out.write(text)


def _text_data(root, facts):
    train, test = root / "train.txt", root / "test.txt"
    sizes = train.stat().st_size, test.stat().st_size
    return TextData(train, test, *sizes, facts["files"])
