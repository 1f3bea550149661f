"""How each notebook went on each day, noted in one file beside the notebooks, so that a reader sees what got better.

Only a kernel that a Jupyter server started for a notebook notes anything: not one of the tests, nor of `make render`.
The file has {notebook: {day: summary}}. A summary counts predictions (that were revealed), hits, within_twice,
exercises and right, and has in "off" how many times too high or too low each prediction was.
"""

import contextlib
import fcntl
import itertools
import json
import os
from collections import Counter
from datetime import date
from pathlib import Path

from bigtrain_nb.common import cards
from bigtrain_nb.common.files import write_text
from bigtrain_nb.common.words import quantity

FILE, LOCK = ".score-history.json", ".score-history.lock"
COUNTS = ("predictions", "hits", "within_twice", "exercises", "right")


def note(summary):
    """Note how this notebook went today; return its name, and {notebook: {day: summary}} of all that is noted."""
    session = os.environ.get("JPY_SESSION_NAME")  # Jupyter's own: the notebook that this kernel was started for
    notebook = Path(session).stem if session else "this notebook"
    with contextlib.ExitStack() as stack:
        if session:
            with contextlib.suppress(OSError):  # a folder that cannot be written keeps no score
                lock = stack.enter_context(open(LOCK, "w"))
                fcntl.flock(lock, fcntl.LOCK_EX)  # what another kernel notes meanwhile would be lost
        history = _read(keep=session)
        history.setdefault(notebook, {})[date.today().isoformat()] = summary
        if session:
            with contextlib.suppress(OSError):
                write_text(FILE, json.dumps(history, indent=1) + "\n")
    return notebook, history


def _read(keep):
    """What is noted; nothing where there is no file yet. A damaged one is said, and kept under another name."""
    try:
        history = json.loads(Path(FILE).read_text(encoding="utf-8"))
        _check(history)
        return history
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"{FILE} cannot be read ({error!r}): the scores begin anew.")
        if keep:
            _keep_damaged()
        return {}


def _keep_damaged():
    names = (f".score-history-damaged-{number}.json" for number in itertools.count(1))
    free = next(name for name in names if not os.path.exists(name))
    with contextlib.suppress(OSError):  # then nothing is written over it either
        os.rename(FILE, free)
        print(f"It is kept as {free}. If you can repair it, give it its name back.")


def _check(history):
    """Raise ValueError, KeyError, TypeError or AttributeError unless all that will be shown is there."""
    for days in history.values():
        max(days)
        for summary in days.values():
            sum(summary[count] for count in COUNTS)
            sum(summary.get("off", {}).values())


def trend(days):
    """A row for each prediction that was made on two days or more: how far off the first time, and the last."""
    told = {}
    for day in sorted(days):
        for name, times in days[day].get("off", {}).items():
            told.setdefault(name, []).append(f"off by {quantity(times, 'x')} on {day}")
    return [[name, lines[0], lines[-1]] for name, lines in told.items() if len(lines) > 1]


def table(history):
    """A line for each notebook, as it went on its last day, and one for all."""
    rows = []
    together = Counter()
    for notebook, days in sorted(history.items()):
        counts = days[max(days)] | {"off": 0}
        rows.append(_row(notebook, counts))
        together.update(counts)
    rows.append(_row("together", together))
    head = ["", "predictions that hit", "within a factor of 2", "exercises right"]
    return cards.table("The whole series, as far as you have come", head, rows)


def _row(name, counts):
    return [
        name,
        f"{counts['hits']} of {counts['predictions']}",
        f"{counts['within_twice']} of {counts['predictions']}",
        f"{counts['right']} of {counts['exercises']}",
    ]
