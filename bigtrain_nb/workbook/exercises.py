"""Building blocks of exercises: a reference solution, a check, a hint and typical wrong answers.

The exercises of a notebook are in a module of `bigtrain_nb.series.exercises`. The solution comes first, then its
check, an `exercise` with the hint as its docstring, then the answers that it must refuse.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import numpy as np

from bigtrain_nb.common import beside

EXERCISES = "bigtrain_nb.series.exercises"
LONGEST_VALUE = 150  # characters of a value in a message


class Wrong(Exception):
    """An answer is wrong; the message contains the expected and the actual value."""


class NotAttempted(Exception):
    """An answer is still the `...` that the exercise came with."""


class NotUnpacked(FileNotFoundError):
    """The scripts of the series, which an exercise needs, are not in the notebook's folder."""


@dataclass(frozen=True)
class Exercise:
    """One function for the reader to complete.

    `name` is "module.function". `reference` is the solution, whose source `solution` shows. `takes` describes the
    arguments of the function, in order and separated by ";", and `returns` its result. `check(answer)` calls the
    reader's function and raises `Wrong` for a wrong one. `wrong` holds typical wrong answers, each with a part of the
    expected error message. `minutes` is the time it takes a reader, `difficulty` runs from 1 to 5, `seconds` is the
    time limit of the check.
    """

    name: str
    reference: Callable
    takes: str
    returns: str
    check: Callable
    hint: str
    minutes: int
    difficulty: int
    seconds: float = 60
    wrong: list = field(default_factory=list)

    def refuses(self, reason):
        """Decorate a typical wrong answer."""

        def note(answer):
            self.wrong.append((answer, reason))
            return answer

        return note


def exercise(reference, takes, returns, minutes, difficulty, seconds=60):
    """Decorate the check of an answer and turn it into an `Exercise`; its docstring is the hint."""
    module = reference.__module__.rpartition(".")[2]

    def make(check):
        hint = " ".join(check.__doc__.split())
        name = f"{module}.{reference.__name__}"
        return Exercise(name, reference, takes, returns, check, hint, minutes, difficulty, seconds)

    return make


def registry(name):
    """The exercises of one notebook by name: "module.function" is in bigtrain_nb/series/exercises/module.py.

    Raises ValueError for an unknown module, `NotUnpacked` if the scripts of the series, which it needs, are missing.
    """
    module = name.partition(".")[0]
    (folder,) = import_module(EXERCISES).__path__
    known = [path.stem for path in sorted(Path(folder).glob("[!_]*.py"))]
    if module not in known:
        raise ValueError(f"no exercise named {name!r}: the first part is one of {', '.join(known)}")
    try:
        contents = vars(import_module(f"{EXERCISES}.{module}"))
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] != "scripts":
            raise
        raise NotUnpacked(
            f"this exercise needs the folder `scripts` of the series, which is not in {Path.cwd()}: {beside.REMEDY}"
        ) from None
    return {one.name: one for one in contents.values() if isinstance(one, Exercise)}


def expect(got, expected, what, rel=1e-6, why=""):
    """Raise `Wrong` with both values unless `got` equals `expected`; numbers and arrays within a relative `rel`.

    `what` names the value in the message ("the median of 1, 2, 9"). `why`, a string or a function that returns one,
    ends the message with a possible cause. Raises `NotAttempted` if `got` is `...`.
    """
    if is_unfinished(got):
        raise NotAttempted
    if isinstance(got, np.generic):
        got = got.item()  # a NumPy scalar as a Python one
    if not _alike(got, expected, rel):
        about = "about " if isinstance(expected, float) else ""
        missing = " (is a return missing?)" if got is None else ""
        reason = why() if callable(why) else why
        raise Wrong(f"{what}: expected {about}{_short(expected)}, got {_short(got)}{missing}{reason}")


def is_unfinished(value):
    """Whether a value is `...`, or a tuple or list with `...` in it."""
    return value is ... or (isinstance(value, tuple | list) and any(part is ... for part in value))


def _alike(got, expected, rel):
    if isinstance(expected, tuple | list):
        if not isinstance(got, tuple | list) or len(got) != len(expected):
            return False
        return all(_alike(one, other, rel) for one, other in zip(got, expected, strict=True))
    if isinstance(got, bool) or isinstance(expected, bool | str | dict | None):
        return type(got) is type(expected) and got == expected
    try:
        return np.shape(got) == np.shape(expected) and np.allclose(got, expected, rtol=rel, atol=1e-12)
    except TypeError:  # not numbers
        return False


def _short(value):
    if isinstance(value, float):
        return f"{value:.6g}"
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else text[:LONGEST_VALUE] + "..."
