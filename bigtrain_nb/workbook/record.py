"""The record of a reader's predictions and exercises, in one file next to the notebooks.

The file outlives a kernel, so a prediction made after its measurement was seen stays too late. Only a kernel that a
Jupyter server started for a notebook writes it, not those of the tests or of `make render`. It contains
{notebook: {"predictions": {name: rounds}, "exercises": {name: status}, "machine": facts}}, where the rounds are the
first prediction, which counts, and the last one made after its reveal, if any.
"""

import fcntl
import itertools
import json
import os
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path

from bigtrain_nb.common.files import write_text
from bigtrain_nb.workbook.predictions import Prediction

EVENING = "evening-"
"""Prefix of the names of short-track copies."""
UNTIL = " (until "
"""Marks the name under which the earlier notes of a restarted notebook are kept."""
FILE, LOCK = ".bigtrain-record.json", ".bigtrain-record.lock"


@dataclass
class Notes:
    """The notes of one notebook; `machine` describes that of the last measurement, as returned by `bt.machine`."""

    predictions: dict[str, list[Prediction]] = field(default_factory=dict)
    exercises: dict[str, str] = field(default_factory=dict)
    machine: dict = field(default_factory=dict)

    @property
    def in_time(self):
        """The revealed predictions that were made before their first reveal."""
        firsts = [rounds[0] for rounds in self.predictions.values()]
        return [one for one in firsts if one.predicted is not None and one.revealed]

    @property
    def counted(self):
        """Those of them that count, because the measurement can judge them."""
        return [one for one in self.in_time if one.is_judged]


_own = Notes()  # of this kernel, if nothing is written
_unwritten = False  # whether the file lacks notes of this kernel because writing failed


def notebook():
    """The name of the notebook for which a Jupyter server started this kernel; None for any other process.

    A short-track copy has the name of the full notebook.
    """
    session = os.environ.get("JPY_SESSION_NAME")
    return Path(session).stem.removeprefix(EVENING) if session else None


def _folder():
    """The notebook's folder, because a cell may have changed the current one; the current folder if unknown.

    Older servers do not pass an absolute path, and a path of another machine does not exist here.
    """
    session = Path(os.environ["JPY_SESSION_NAME"])
    return session.parent if session.is_absolute() and session.parent.is_dir() else Path()


@contextmanager
def opened():
    """Yield the `Notes` of this notebook for reading and changing; they are written at the end."""
    global _own, _unwritten
    if not notebook():
        yield _own
        return
    with locked(_folder()):
        _own, record = _read_with_own()
        yield _own
        try:
            write(_folder(), record)
            _unwritten = False
        except OSError:  # a folder that cannot be written keeps no record
            _unwritten = True


def noted():
    """The `Notes` of this notebook, and {notebook: Notes} of its folder, including this one."""
    if not notebook():
        return _own, {"this notebook": _own}
    with locked(_folder()):
        return _read_with_own()


def _read_with_own():
    record = read(_folder())
    if _unwritten:
        record[notebook()] = _own
    begun_again = any(name.startswith(notebook() + UNTIL) for name in record)
    return record.setdefault(notebook(), Notes() if begun_again else _own), record


@contextmanager
def locked(folder):
    """Lock the record of a folder, because concurrent changes by another kernel would be lost."""
    with ExitStack() as stack:
        with suppress(OSError):  # a folder that cannot be written keeps no record
            lock = stack.enter_context(open(folder / LOCK, "w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read(folder):
    """{notebook: Notes} of a folder; empty if there is no file yet.

    A damaged file is reported and kept under another name.
    """
    file = folder / FILE
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        return {name: _notes(**parts) for name, parts in record.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        print(f"{file} cannot be read ({error!r}): a new record of predictions and exercises is started.")
        _keep_damaged(file)
        return {}


def write(folder, record):
    """Write {notebook: Notes} atomically as the record of a folder."""
    plain = {name: asdict(notes) for name, notes in record.items()}
    write_text(folder / FILE, json.dumps(plain, indent=1) + "\n")


def begin_again(folder, name):
    """Restart the record of a notebook; its earlier notes are kept under a name with today's date."""
    with locked(folder):
        record = read(folder)
        if name in record:
            names = itertools.chain([""], (f", {number}" for number in itertools.count(2)))
            until = (f"{name}{UNTIL}{date.today().isoformat()}{number})" for number in names)
            record[next(free for free in until if free not in record)] = record.pop(name)
            write(folder, record)


def _notes(predictions, exercises, machine):
    """The `Notes` from the values in a file. Raises ValueError, TypeError or AttributeError for damaged ones."""
    found = {}
    for name, rounds in predictions.items():
        found[name] = [Prediction(**one) for one in rounds]
        for one in found[name]:
            _ = one.measured, one.in_words, one.predicted is None or not one.revealed or one.verdict
        if not found[name]:
            raise ValueError(f"{name} has no rounds")
    if not all(isinstance(status, str) for status in exercises.values()):
        raise ValueError("the status of an exercise is not a string")
    return Notes(found, exercises, dict(machine))


def _keep_damaged(file):
    names = (file.with_name(f".bigtrain-record-damaged-{number}.json") for number in itertools.count(1))
    free = next(name for name in names if not name.exists())
    with suppress(OSError):  # then it cannot be overwritten either
        os.rename(file, free)
        print(f"It is kept as {free}. If you can repair it, restore its name.")
