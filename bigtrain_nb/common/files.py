"""Writing files so that nobody ever sees half of one."""

import os
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from bigtrain_nb.common.checks import as_path

SIGN_SECONDS = 1
TELL_SECONDS = 5
SECONDS_WITHOUT_A_SIGN = 120
"""After so long without a sign, what another process writes is taken to be left by one that has died. NFS may show
a sign 60 seconds late (acregmax in nfs(5))."""


def write_text(path, text):
    """Write a whole file of text at once."""
    write_bytes(path, text.encode())


def write_bytes(path, content):
    """Write a whole file at once: beside ``path``, then renamed."""
    path = Path(as_path("path", path))
    if path.is_dir():
        raise IsADirectoryError(f"path={str(path)!r} is a folder: give the path of a file")
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_once(path, write):
    """Let one of the processes that save the same thing to ``path`` at a time write it; the others wait for it.

    ``write(beside)`` writes the file, beside ``path`` and with the same ending; then it is renamed, so that everybody
    sees a whole file, the old one or the new. What a process that has died left is written anew after
    `SECONDS_WITHOUT_A_SIGN`.
    """
    path = Path(path)
    beside = path.with_name(f".part-of-{path.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    while not _is_first(beside):
        if _was_written_by_another(beside, path):
            return
    try:
        with _signs_of_life(beside):
            write(beside)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)  # not after it was renamed: then it may be another's
        raise


@contextmanager
def _signs_of_life(file):
    """Give a file the time of now, again and again: Keras may prepare for minutes what it then writes into it."""
    ended = threading.Event()

    def give_signs():
        while not ended.wait(SIGN_SECONDS):
            with suppress(OSError):
                os.utime(file)

    signs = threading.Thread(target=give_signs, daemon=True, name="signs of life")
    signs.start()
    try:
        yield
    finally:
        ended.set()
        signs.join()


def _is_first(beside):
    try:
        beside.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _was_written_by_another(beside, path):
    """Wait until the file beside is gone; return whether it was renamed. One without signs of life is removed."""
    seen, since = None, time.monotonic()
    has_told = False
    while True:
        try:
            state = beside.stat()
        except FileNotFoundError:
            return seen is not None and path.exists() and path.stat().st_ino == seen.st_ino
        if seen is None or (state.st_size, state.st_mtime_ns) != (seen.st_size, seen.st_mtime_ns):
            since = time.monotonic()
        if not has_told and time.monotonic() - since > TELL_SECONDS:
            has_told = True
            print(
                f"Waiting for {path}: another process has begun to write it, as {beside.name}. If it has died, this one"
                f" writes it, {SECONDS_WITHOUT_A_SIGN} s after the last sign of it",
                flush=True,
            )
        if time.monotonic() - since > SECONDS_WITHOUT_A_SIGN:
            beside.unlink(missing_ok=True)
            return False
        seen = state
        time.sleep(0.02)
