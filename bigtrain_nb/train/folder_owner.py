"""Note which run uses a checkpoint folder: two that save in one folder would restore each other's checkpoints."""

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
from bigtrain_nb.common.words import cause

FILE = "owner.json"
A_NOTEBOOK = "a notebook"
LARGEST_TOKEN = 2**24  # exact in float32, which workers exchange


class FolderOwner:
    """A note in ``folder`` about the run that uses it: its host, process, start, script and arguments.

    The chief writes it with `take`. Whether a process on another host still runs cannot be checked: the folder is taken
    over, and the run that has lost it raises at its next save. By `token`, workers check that they share a folder.
    """

    def __init__(self, folder):
        self._folder = os.fspath(folder)
        self._path = os.path.join(self._folder, FILE)
        self._note = {
            "token": secrets.randbelow(LARGEST_TOKEN - 1) + 1,
            "host": socket.gethostname(),
            "pid_namespace": _pid_namespace(),
            "process": os.getpid(),
            "started": _started(os.getpid()),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            "runs": _what_runs(),
            "state": "made",
        }

    def take(self):
        """Note that this run uses the folder; return the previous run's note, None if there was none.

        Raises RuntimeError, naming the run, if another process on this machine is training in it.
        """
        before = self._read()
        if before and before["state"] == "trains" and not self._is_mine(before) and self._runs_here(before):
            raise RuntimeError(self._in_use_by(before))
        self._write()
        return before

    @contextmanager
    def training(self):
        """Mark the folder as in use until the end of the block."""
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
        """Raise RuntimeError if another run has taken the folder."""
        found = self._read()
        if found and not self._is_mine(found):
            raise RuntimeError(self._in_use_by(found))

    @property
    def token(self):
        """The token in the chief's note, 0 if there is no note."""
        found = self._read()
        return found["token"] if found else 0

    @property
    def runs(self):
        """This process's script and arguments."""
        return self._note["runs"]

    def _is_mine(self, note):
        return note["process"] == self._note["process"] and self._runs_here(note)

    def _runs_here(self, note):
        """Return whether a note's process is alive on this host, in this container."""
        if all(note[name] == self._note[name] for name in ("host", "pid_namespace")):
            with suppress(psutil.NoSuchProcess):
                since = psutil.boot_time() if note["started"] > 1e9 else 0.0  # earlier notes have seconds since 1970
                return abs(_started(note["process"]) + since - note["started"]) < 2  # boot_time() has whole seconds
        return False

    def _in_use_by(self, note):
        return (
            f"folder={self._folder!r} is in use by another training run, {note['runs']!r} (process {note['process']} on"
            f" {note['host']}, since {note['since']}): use another folder for this run, or end that one first"
        )

    def _read(self):
        """Return the note in the folder, None if it is missing or incomplete.

        Raises OSError if it cannot be read, because the folder's user is then unknown.
        """
        try:
            with tf.io.gfile.GFile(self._path) as file:
                note = json.loads(file.read())
            return note if self._note.keys() <= note.keys() else None
        except (tf.errors.NotFoundError, ValueError, AttributeError):
            return None
        except tf.errors.OpError as error:
            raise OSError(f"{self._path}, which records who uses the folder, cannot be read: {cause(error)}") from None

    def _write(self):
        with tf.io.gfile.GFile(f"{self._path}.part", "w") as file:
            file.write(json.dumps(self._note))
        tf.io.gfile.rename(f"{self._path}.part", self._path, overwrite=True)


def _started(process):
    """Return when a process was started, in seconds since the boot: the system's clock may be set meanwhile."""
    booted = psutil.boot_time()  # first, because create_time() of older versions uses the last time that was read
    return psutil.Process(process).create_time() - booted


def _pid_namespace():
    """Return the scope of process ids: containers can share a hostname, and each numbers its processes from 1."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    return ""  # not Linux


def _what_runs():
    """Return script and arguments; in a notebook, where they are meaningless, `A_NOTEBOOK`."""
    return A_NOTEBOOK if "ipykernel" in sys.modules else " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
