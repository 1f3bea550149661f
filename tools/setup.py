"""Make the project's own Python environment, .venv, or mend it: python3 tools/setup.py [PYTHON]

PYTHON, if it is given, is what .venv is made from; one of another version is made afresh.
Standard library only, and plain enough that a much older Python can run it far enough to say what is missing.
When all is well the call only looks, which takes a fraction of a second.
"""
from __future__ import print_function

import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys

OLDEST, NEWEST = (3, 11), (3, 13)
WANTED = "Python %d.%d to %d.%d" % (OLDEST + NEWEST)
NAMES = ("python3.13", "python3.12", "python3.11", "python3")
PROBE = "import sys; print('%d.%d' % sys.version_info[:2]); import venv, ensurepip"
GPU_SIGNS = ("/dev/nvidia0", "/usr/lib/wsl/lib/libcuda.so.1")  # NVIDIA's driver, on Linux and under WSL
READERS_OWN = re.compile(r"(pip|setuptools|wheel)[-/]")  # in .venv, what readers bring up to date themselves
INSPECT = """
import importlib.util, os, sys, sysconfig
print('%d.%d' % sys.version_info[:2])
print(os.path.relpath(sysconfig.get_paths()['purelib'], sys.prefix))
sys.exit(importlib.util.find_spec('bigtrain_nb') is None)
"""


class SetupError(Exception):
    """The set-up cannot go on; the message is one sentence for the reader."""


def ask(*command):
    """The lines that the command prints, and whether it ended well; no lines if it does not run."""
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError:
        return [], False
    out, _ = process.communicate()
    return out.decode("utf-8", "replace").splitlines(), process.returncode == 0


def find_python(candidates):
    """The first candidate that fits and can make environments, and its version; SetupError says what is missing."""
    without_venv, unsuited = [], []
    for python in candidates:
        lines, ok = ask(python, "-c", PROBE)
        if not lines or not re.match(r"\d+\.\d+$", lines[0]):
            continue
        version = tuple(int(part) for part in lines[0].split("."))
        if not OLDEST <= version <= NEWEST:
            unsuited.append("%s is %s" % (python, lines[0]))
        elif ok:
            return python, lines[0]
        else:
            without_venv.append((python, lines[0]))
    if without_venv:
        raise SetupError("{0} is Python {1} but lacks its venv module: install it (on Debian and Ubuntu: "
                         "apt install python{1}-venv) and call again.".format(*without_venv[0]))
    raise SetupError("%s is needed, but %s: install one, or name it with make PYTHON=/path/to/python."
                     % (WANTED, " and ".join(unsuited) or "none was found"))


class Project(object):
    """The project folder, its .venv and the stamp that says with what .venv was made."""

    def __init__(self, root):
        self.root = os.path.realpath(root)
        self.venv = os.path.join(self.root, ".venv")
        self.python = os.path.join(self.venv, "bin", "python")
        self.stamp = os.path.join(self.venv, "setup-done.json")
        self.log = os.path.join(self.venv, "setup.log")

    def extras(self):
        """What pyproject.toml calls it: with an NVIDIA GPU, the libraries of CUDA too."""
        return ["book", "test"] + ["gpu"] * any(os.path.exists(sign) for sign in GPU_SIGNS)

    def requirements(self):
        """A fingerprint of what decides what is installed."""
        digest = hashlib.sha256()
        for name in ("pyproject.toml", "constraints.txt"):
            with open(os.path.join(self.root, name), "rb") as file:
                digest.update(file.read() + b"\0")
        return digest.hexdigest()

    def state(self, version=None):
        """One of: ready, absent, interrupted, moved, damaged, changed; and another, if `version` is not that of .venv.

        Anything that was installed and is missing is damage. So is another version of a package: .venv promises the
        exact one, and what the other lacks cannot be told from what was lost. Only pip and its like may be upgraded.
        More extras than are wanted here are no change: a node without a GPU may share .venv with one that has some.
        """
        if not os.path.isdir(self.venv):
            return "absent"
        try:
            with open(self.stamp) as file:
                stamp = json.load(file)
            root, requirements, python = stamp["root"], stamp["requirements"], stamp["python"]
            installed, extras = set(stamp["installed"]), set(stamp.get("extras", []))
        except (IOError, ValueError, KeyError, TypeError):
            return "interrupted"
        if root != self.root:
            return "moved"
        python_now, present = self.inspect()
        if python_now != python or any(not READERS_OWN.match(name) for name in installed - present):
            return "damaged"
        if version not in (None, python):
            return "another"
        return "ready" if requirements == self.requirements() and extras.issuperset(self.extras()) else "changed"

    def inspect(self):
        """The version of .venv's Python and what lies beside the project's package; None if it does not find that."""
        lines, ok = ask(self.python, "-I", "-c", INSPECT)
        return (lines[0], listing(os.path.join(self.venv, str(lines[1])))) if ok else (None, set())

    def write_stamp(self):
        python, installed = self.inspect()
        if python is None:
            raise SetupError("pip reports success, but .venv has not what it installed: take PIP_TARGET and the like "
                             "out of the environment and of pip's configuration, and call again.")
        stamp = {"root": self.root, "requirements": self.requirements(), "extras": self.extras(), "python": python,
                 "installed": sorted(installed)}
        with open(self.stamp + ".part", "w") as file:
            json.dump(stamp, file)
        os.rename(self.stamp + ".part", self.stamp)

    def make(self, candidates):
        """Start .venv afresh, with a Python from outside; .venv's own, the first where it is activated, goes too."""
        own = os.path.realpath(os.path.join(self.venv, "bin"))
        path = os.environ.get("PATH", os.defpath).split(os.pathsep)
        os.environ["PATH"] = os.pathsep.join(folder for folder in path if os.path.realpath(folder) != own)
        python, _ = find_python([name for name in candidates if os.path.realpath(os.path.dirname(name)) != own])
        say("Making .venv with %s." % python)
        if os.path.isdir(self.venv) and not os.path.islink(self.venv):
            shutil.rmtree(self.venv)
        elif os.path.lexists(self.venv):
            os.remove(self.venv)
        if subprocess.call([python, "-m", "venv", self.venv]) != 0:
            raise SetupError("%s -m venv failed; the lines above say why." % python)

    def install(self):
        """Install the project and what it needs; until everything is in place the stamp is none, or still the old."""
        say("Installing what the project needs: a minute or two, longer when it must be downloaded first.")
        if "gpu" in self.extras():
            say("There is an NVIDIA GPU: some gigabytes of CUDA's libraries come with it.")
        command = [self.python, "-I", "-m", "pip", "install", "--disable-pip-version-check",
                   "--progress-bar", "off", "-c", "constraints.txt", "-e", ".[%s]" % ",".join(self.extras())]
        with open(self.log, "wb") as log:
            pip = subprocess.Popen(command, cwd=self.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            tail = follow(pip.stdout, log)
            if pip.wait() != 0:
                getattr(sys.stderr, "buffer", sys.stderr).write(tail + b"\n")
                raise SetupError("Installing failed, as pip says above (all of it: %s): put that right, often "
                                 "the network or a full disk, and call again." % self.log)
        self.write_stamp()


def listing(packages):
    """What lies in the packages folder, two levels deep: enough to notice what was removed or replaced."""
    found = set()
    for name in os.listdir(packages):
        path = os.path.join(packages, name)
        inside = os.listdir(path) if os.path.isdir(path) else []
        found.add(name)
        found.update(name + "/" + inner for inner in inside)
    return set(name for name in found if "__pycache__" not in name)


def follow(lines, log):
    """Copy pip's lines to the log, tell the gist in one line on a terminal, and return the last twenty.

    They stay bytes, for what a terminal or an old Python cannot encode.
    """
    live, collected, tail = sys.stdout.isatty(), 0, []
    for line in lines:
        log.write(line)
        tail = tail[-19:] + [line]
        collected += line.startswith(b"Collecting ")
        gist = "  installing them all" if line.startswith(b"Installing collected") else "  %d packages" % collected
        if live:
            print("\r%-30s" % gist, end="")
            sys.stdout.flush()
    if live:
        print()
    return b"".join(tail)


def say(text):
    print(text)
    sys.stdout.flush()


WHY = {
    "interrupted": "An earlier set-up did not finish: starting it afresh.",
    "moved": "The project folder was moved or copied: setting it up here.",
    "damaged": "Something in .venv is missing, has another version or no longer runs: setting it up afresh.",
    "another": "Another Python was chosen than .venv is made from: setting it up afresh.",
    "changed": "The requirements have changed: bringing .venv up to date.",
}


def set_up(root, chosen=None):
    """Bring the project at `root` to the state "ready", with the Python chosen; True if there was something to do."""
    project = Project(root)
    candidates = [chosen] if chosen else [sys.executable] + list(NAMES)
    version = find_python(candidates)[1] if chosen else None
    if project.state(version) == "ready":  # also where nothing can be written, no lock either
        return False
    with open(os.path.join(project.root, ".setup.lock"), "w") as lock:
        wait_for(lock)
        state = project.state(version)
        if state == "ready":
            return False
        if state in WHY:
            say(WHY[state])
        if state != "changed":
            project.make(candidates)
        project.install()
    return True


def wait_for(lock):
    """Hold the lock until the file is closed, so that no two set-ups work in one folder; not every disk has locks."""
    import fcntl
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (IOError, OSError) as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            return
        say("Another set-up is at work here; waiting for it.")
        fcntl.flock(lock, fcntl.LOCK_EX)


def main():
    if os.name != "posix":
        sys.exit("This project runs on Linux and macOS; on Windows, use it inside WSL.")
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        if set_up(root, *sys.argv[1:2]):
            say("Set-up done.")
    except SetupError as error:
        sys.exit(str(error))
    except (IOError, OSError) as error:
        sys.exit("Set-up cannot go on: %s" % error)
    except KeyboardInterrupt:
        sys.exit("Set-up interrupted; the next call starts it again.")


if __name__ == "__main__":
    main()
