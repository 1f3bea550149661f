"""Which training uses a folder of checkpoints: two that save in one folder would take each other's."""

import json
import os
import secrets
import socket
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from bigtrain_nb.common.quiet import tf

FILE = "owner.json"
A_NOTEBOOK = "a notebook"
LARGEST_TOKEN = 2**24  # so that a float32, which workers exchange, holds it


class FolderOwner:
    """A note in ``folder``, about the training that uses it: its host, process, start, script and arguments.

    The chief writes it with `take`. Whether a process on another host still runs, nobody here can see: the folder
    changes hands, and a training that has lost it raises at its next save. Other workers compare `token`, to see
    whether the folder that they see is the same.
    """

    def __init__(self, folder):
        self._folder = os.fspath(folder)
        self._path = os.path.join(self._folder, FILE)
        self._note = {
            "token": secrets.randbelow(LARGEST_TOKEN - 1) + 1,
            "host": socket.gethostname(),
            "pid_namespace": _pid_namespace(),
            "process": os.getpid(),
            "started": psutil.Process().create_time(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            "runs": _what_runs(),
            "state": "made",
        }

    def take(self):
        """Note that this training uses the folder; return the note of the one before, None if there was none.

        Raises RuntimeError, naming it, if another process of this machine trains with it now.
        """
        before = self._read()
        if before and before["state"] == "trains" and not self._is_mine(before) and self._runs_here(before):
            raise RuntimeError(self._in_use_by(before))
        self._write()
        return before

    @contextmanager
    def training(self):
        """Say in the folder that it is in use, until the end of the block."""
        self.check()
        self._note["state"] = "trains"
        self._write()
        try:
            yield
        finally:
            self._note["state"] = "ended"
            with suppress(RuntimeError, OSError, tf.errors.OpError):
                self.check()
                self._write()

    def check(self):
        """Raise RuntimeError if another training has taken the folder meanwhile."""
        found = self._read()
        if found and not self._is_mine(found):
            raise RuntimeError(self._in_use_by(found))

    @property
    def token(self):
        """The number that the chief's note has, 0 if there is no note."""
        found = self._read()
        return found["token"] if found else 0

    @property
    def runs(self):
        """The script and the arguments of this process."""
        return self._note["runs"]

    def _is_mine(self, note):
        mine = self._note
        return all(note[name] == mine[name] for name in ("host", "pid_namespace", "process", "started"))

    def _runs_here(self, note):
        """Tell whether the process of a note is alive on this host, in this container."""
        if all(note[name] == self._note[name] for name in ("host", "pid_namespace")):
            with suppress(psutil.NoSuchProcess):
                return psutil.Process(note["process"]).create_time() == note["started"]
        return False

    def _in_use_by(self, note):
        return (
            f"folder={self._folder!r} is in use by another training, {note['runs']!r} (process {note['process']} on"
            f" {note['host']}, since {note['since']}): give this one a folder of its own, or end that one first"
        )

    def _read(self):
        """Return the note that stands in the folder, None for none and for one that is being written."""
        try:
            with tf.io.gfile.GFile(self._path) as file:
                note = json.loads(file.read())
            return note if self._note.keys() <= note.keys() else None
        except (tf.errors.OpError, OSError, ValueError, AttributeError):
            return None

    def _write(self):
        with tf.io.gfile.GFile(f"{self._path}.part", "w") as file:
            file.write(json.dumps(self._note))
        tf.io.gfile.rename(f"{self._path}.part", self._path, overwrite=True)


def _pid_namespace():
    """Return where process numbers hold: containers can have one hostname, and each counts its processes from 1."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    return ""  # not Linux


def _what_runs():
    """Return script and arguments, which in a notebook are those of its kernel and say nothing."""
    return A_NOTEBOOK if "ipykernel" in sys.modules else " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
