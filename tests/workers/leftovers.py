"""What a job must not leave behind: processes, ports that listen, temporary files, open descriptors."""

import os
import socket
import tempfile
import time
import uuid
from contextlib import suppress

import psutil

SECONDS = 60
"""A net: ten seconds are enough, whatever happened to the process that launched the job, unless the machine is busy."""

AUTOGRAPH = "__autograph_generated_file"
"""Files that TensorFlow deletes as its process ends, and leaves when that is killed."""


class Watch:
    """Marks the environment, so that processes are found wherever they went, and sets a temporary folder apart."""

    def __init__(self, monkeypatch, folder):
        self.mark, self.folder = uuid.uuid4().hex, folder
        monkeypatch.setenv("BIGTRAIN_TEST", self.mark)
        monkeypatch.setenv("TMPDIR", str(folder))
        monkeypatch.setattr(tempfile, "tempdir", None)

    def processes(self):
        """Return the processes that inherited the mark and run; a zombie does not."""
        return [process for process in psutil.process_iter() if self._runs(process)]

    def _runs(self, process):
        with suppress(psutil.Error):
            marked = process.pid != os.getpid() and process.environ().get("BIGTRAIN_TEST") == self.mark
            return marked and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        return False

    def nothing_left(self, addresses=()):
        """Wait for at most `SECONDS`; raise AssertionError naming what is still there."""
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
    """Whether a process is there and no zombie."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False


def eventually(condition, seconds=200):
    """Return the first true value of ``condition()``; fail once the seconds are over."""
    until = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)
    return value
