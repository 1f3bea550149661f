"""The choices that a Lab offers, and their validation."""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from bigtrain_nb.common.checks import is_among


@dataclass(frozen=True)
class Choices:
    """The values of one setting: a list or tuple of anything, or a `range` of integers; a switch has two."""

    values: list | tuple | range
    default: object

    @property
    def is_scale(self):
        """Whether the values are two or more numbers in ascending order."""
        if len(self.values) < 2 or not all(type(value) in (int, float) for value in self.values):
            return False
        return all(low < high for low, high in pairwise(self.values))

    @property
    def allowed(self):
        if isinstance(self.values, range):
            return f"an integer from {self.values[0]} to {self.values[-1]} in steps of {self.values.step}"
        return "one of " + ", ".join(map(text, self.values))


def control(name, given):
    """Return `Choices` from a list, a range or a bool; its default is the first choice, for a switch the value."""
    if isinstance(given, bool):
        return Choices((False, True), given)
    if isinstance(given, list) and given:
        [(words, times)] = Counter(map(text, given)).most_common(1)
        if times > 1:
            raise ValueError(f"{name} has {times} choices {words}: give each choice values that print differently")
        for place, value in enumerate(given):
            if is_among(value, given[:place]):
                raise ValueError(f"{name} has two equal choices, {value!r} and another: leave one out, or use strings")
    if isinstance(given, list | range) and given:
        return Choices(given, given[0])
    raise ValueError(f"{name}={given!r}: expected a list of choices, a range of integers, True or False")


def settings(controls, given):
    """Return the given or default value of every control. Raises ValueError for an unknown name or value."""
    chosen = {name: one.default for name, one in controls.items()}
    for name, value in given.items():
        one = look_up(controls, name)
        if not is_among(value, one.values):
            raise ValueError(f"{name}={text(value)} is not among the choices: expected {one.allowed}")
        chosen[name] = one.values[one.values.index(value)]  # the listed object, not an equal NumPy scalar
    return chosen


def look_up(controls, name):
    """Return the control of that name; raise a ValueError that lists the existing names if there is none."""
    if not is_among(name, controls):
        raise ValueError(f"unknown setting {name!r}: expected one of {', '.join(controls) or 'none'}")
    return controls[name]


def text(value):
    """A choice as a string: a function by its name, a string without quotes."""
    return getattr(value, "__name__", None) or str(value)


def describe(chosen):
    """Settings in one line: "batch=32 prefetch=2"."""
    return " ".join(f"{name}={text(value)}" for name, value in chosen.items())
