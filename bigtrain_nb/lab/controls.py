"""What a Lab lets the reader choose: lists, switches and ranges of whole numbers.

`controls` makes them from the reader's choices, `settings` checks what is chosen.
"""

import inspect
from dataclasses import dataclass
from numbers import Integral


@dataclass(frozen=True)
class Choices:
    """One of several values: a tuple of anything, or a `range` of whole numbers. A switch has False and True."""

    values: tuple | range
    default: object

    @property
    def allowed(self) -> str:
        if isinstance(self.values, range):
            return f"a whole number from {self.values[0]} to {self.values[-1]} in steps of {self.values.step}"
        return "one of " + ", ".join(text(choice) for choice in self.values)

    def accept(self, name, value):
        """Return the choice that equals `value`, where 1 is not True. Raises ValueError, which names it, if none."""
        if value in self.values:
            choice = self.values[self.values.index(value)]
            if isinstance(choice, bool) == isinstance(value, bool):
                return choice
        raise ValueError(f"{name}={text(value)} is not among the choices: expected {self.allowed}")


def controls(build, choices: dict) -> dict:
    """Return `Choices` for each name: from a list, True or False, or whole numbers (low, high[, step]).

    A control starts at the first choice; a switch starts as given. Raises ValueError for anything that is not a choice,
    for a choice that `build` does not take, and for a parameter that has neither a default nor a choice.
    """
    try:
        inspect.signature(build).bind(**choices)
    except TypeError as error:
        raise ValueError(f"build and the choices do not fit: {error}") from None
    return {name: _control(name, given) for name, given in choices.items()}


def settings(made: dict, given: dict) -> dict:
    """Return a value for every control: the given or its default. Raises ValueError for an unknown name or value."""
    for name in given:
        look_up(made, name)
    return {name: control.accept(name, given.get(name, control.default)) for name, control in made.items()}


def look_up(made: dict, name: str) -> Choices:
    """Return the control of that name. Raises ValueError that names those there are."""
    if name not in made:
        raise ValueError(f"unknown setting {name!r}: expected one of {', '.join(made) or 'none'}")
    return made[name]


def text(value) -> str:
    """A choice in words: a function by its name, a text without quotes."""
    return getattr(value, "__name__", None) or str(value)


def describe(chosen: dict) -> str:
    """Settings in one line: "batch=32 prefetch=2"."""
    return " ".join(f"{name}={text(value)}" for name, value in chosen.items())


def _control(name, given):
    if isinstance(given, bool):
        return Choices((False, True), given)
    values = ()
    if isinstance(given, list):
        values = tuple(given)
    elif isinstance(given, tuple) and len(given) in (2, 3) and all(isinstance(number, Integral) for number in given):
        low, high, *step = given
        values = range(low, high + 1, *step)
    if not values:
        raise ValueError(
            f"{name}={given!r}: expected a list of choices, True or False, or whole numbers (low, high[, step])"
        )
    return Choices(values, values[0])
