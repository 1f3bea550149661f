"""What exercises are made of: for each a reference solution, a check, a hint and typical wrong answers.

The exercises of a notebook stand in a module of `workbook/exercises/`, beside the notebooks. The solution comes first,
then its check, an `exercise` with the hint as its docstring, then what it must refuse.
"""

import math
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module

import numpy as np

LONGEST_VALUE = 150  # characters of a value in a message


class Wrong(Exception):
    """An answer is wrong; the message says what was expected and what came instead."""


class NotAttempted(Exception):
    """An answer is still the `...` that the exercise came with."""


@dataclass(frozen=True)
class Exercise:
    """One function for the reader to complete.

    `name` is "module.function". `reference` is the solution; its source is what `solution` shows.
    `check(answer)` calls the reader's function and raises `Wrong` where it must. `wrong` holds typical wrong
    answers, each with a part of the message that must refuse it. `minutes` is the time it takes, `difficulty`
    runs from 1 to 5.
    """

    name: str
    reference: Callable
    check: Callable
    hint: str
    minutes: int
    difficulty: int
    wrong: list[tuple[Callable, str]] = field(default_factory=list)

    def refuses(self, reason: str):
        """Decorate a typical wrong answer."""

        def note(answer):
            self.wrong.append((answer, reason))
            return answer

        return note


def exercise(reference: Callable, minutes: int, difficulty: int):
    """Decorate the check of an answer, of which it makes an `Exercise`; its docstring is the hint."""
    name = f"{reference.__module__.rpartition('.')[2]}.{reference.__name__}"
    return lambda check: Exercise(name, reference, check, " ".join(check.__doc__.split()), minutes, difficulty)


def registry() -> dict[str, Exercise]:
    """All exercises by name: those of the modules in `workbook/exercises/`, in the folder of the notebook.

    Raises ModuleNotFoundError if there is no such folder.
    """
    package = import_module("workbook.exercises")
    modules = [import_module(f"workbook.exercises.{module.name}") for module in pkgutil.iter_modules(package.__path__)]
    made = [one for module in modules for one in vars(module).values() if isinstance(one, Exercise)]
    return {one.name: one for one in made}


def expect(got, expected, what: str, rel: float = 1e-6) -> None:
    """Raise `Wrong` with both values unless `got` is `expected`, numbers and arrays within `rel` of it.

    `what` names the value in the message ("the median of 1, 2, 9"). Raises `NotAttempted` if `got` is `...`.
    """
    if is_unfinished(got):
        raise NotAttempted
    if not _alike(got, expected, rel):
        about = "about " if isinstance(expected, float) else ""
        raise Wrong(f"{what}: expected {about}{_short(expected)}, got {_short(got)}")


def is_unfinished(value) -> bool:
    """Whether a value is `...`, or a tuple or list with `...` in it."""
    return value is ... or (isinstance(value, tuple | list) and any(part is ... for part in value))


def _alike(got, expected, rel):
    if isinstance(expected, bool | np.bool_):
        return isinstance(got, bool | np.bool_) and bool(got) == bool(expected)
    if isinstance(expected, int | float | np.number):
        return _is_number(got) and math.isclose(float(got), float(expected), rel_tol=rel, abs_tol=1e-12)
    if isinstance(expected, np.ndarray):
        return np.shape(got) == expected.shape and np.allclose(got, expected, rtol=rel, atol=1e-12)
    if isinstance(expected, tuple | list):
        same_length = isinstance(got, tuple | list) and len(got) == len(expected)
        return same_length and all(_alike(one, other, rel) for one, other in zip(got, expected, strict=True))
    return type(got) is type(expected) and got == expected


def _is_number(value):
    if isinstance(value, bool | np.bool_ | str | bytes) or value is None:
        return False
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def _short(value):
    if isinstance(value, float | np.floating):
        return f"{value:.6g}"
    if isinstance(value, int | np.integer):
        return str(value)
    if value is None:
        return "None (is a return missing?)"
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else text[:LONGEST_VALUE] + "..."
