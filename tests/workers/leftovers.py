"""Possible leftovers of a job: processes, listening ports, temporary files, open descriptors."""

import os
import socket
import tempfile
import time
import uuid
from contextlib import suppress

import psutil

SECONDS = 60
"""A safety limit: on an idle machine ten seconds suffice, whatever happened to the launching process."""

AUTOGRAPH = "__autograph_generated_file"
"""Files that TensorFlow deletes when its process exits, but not when it is killed."""


class Watch:
    """Marks the environment, so that all descendant processes can be found, and sets a separate temporary folder."""

    def __init__(self, monkeypatch, folder):
        self.mark, self.folder = uuid.uuid4().hex, folder
        monkeypatch.setenv("BIGTRAIN_TEST", self.mark)
        monkeypatch.setenv("TMPDIR", str(folder))
        monkeypatch.setattr(tempfile, "tempdir", None)

    def processes(self):
        """Return the running processes that inherited the mark, without zombies."""
        return [process for process in psutil.process_iter() if self._runs(process)]

    def _runs(self, process):
        with suppress(psutil.Error):
            marked = process.pid != os.getpid() and process.environ().get("BIGTRAIN_TEST") == self.mark
            return marked and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        return False

    def nothing_left(self, addresses=()):
        """Wait until nothing is left; after `SECONDS` raise AssertionError naming the leftovers."""
        until = time.monotonic() + SECONDS
        while left := self._left(addresses):
            assert time.monotonic() < until, left
            time.sleep(0.05)

    def _left(self, addresses):
        listening = [address for address in addresses if listens(address)]
        files = [path.name for path in self.folder.iterdir() if not path.name.startswith(AUTOGRAPH)]
        return [*map(str, self.processes()), *listening, *files]

    def end(self):
        for process in self.processes():
            with suppress(psutil.Error):
                process.kill()


def listens(address):
    host, _, port = address.rpartition(":")
    with socket.socket() as one:
        one.settimeout(1)
        return one.connect_ex((host, int(port))) == 0


def runs(pid):
    """Return whether a process exists and is not a zombie."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False


def eventually(condition, seconds=200):
    """Return the first true value of ``condition()``; fail after ``seconds``."""
    until = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)
    return value
