"""What a Lab lets the reader choose: lists, switches and ranges of numbers, checked against the function they serve."""

import difflib
import inspect
import math
from dataclasses import dataclass
from numbers import Integral, Real

MOST_VALUES = 24


@dataclass(frozen=True)
class Choices:
    """One of several values; a switch is the choice between False and True."""

    name: str
    values: tuple
    default: object

    @property
    def is_switch(self) -> bool:
        return len(self.values) == 2 and all(isinstance(value, bool) for value in self.values)

    @property
    def allowed(self) -> str:
        return "one of " + ", ".join(map(text, self.values))

    def accept(self, value):
        """The choice that equals `value`, as an array equals only itself; raises ValueError if there is none."""
        for choice in self.values:
            if _same(choice, value):
                return choice
        raise ValueError(f"{self.name}={text(value)} is not among the choices: expected {self.allowed}")


@dataclass(frozen=True)
class Range:
    """A number between `low` and `high`, both included, in steps from `low`; without a step any number between."""

    name: str
    low: float
    high: float
    step: float | None
    default: float

    @property
    def whole(self) -> bool:
        return all(isinstance(number, int) for number in (self.low, self.high, self.step or 0))

    @property
    def allowed(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        steps = f" in steps of {self.step}" if self.step not in (None, 1) else ""
        return f"{kind} from {self.low} to {self.high}{steps}"

    @property
    def values(self) -> tuple:
        """All values in the range; raises ValueError where they have no step or are more than 24."""
        if self.step is None:
            raise ValueError(f"{self.name} has no step, so there is no list of values to try: give (low, high, step)")
        count = int((self.high - self.low) / self.step + 1e-9) + 1
        if count > MOST_VALUES:
            raise ValueError(f"{self.name} has {count} values; at most {MOST_VALUES} can be tried: give a larger step")
        return tuple(self.low + i * self.step for i in range(count))

    def accept(self, value):
        """`value` as an int or a float, if it lies in the range; raises ValueError otherwise."""
        number = _plain(value)
        if number is None or not self.low <= number <= self.high or not self._on_step(number):
            raise ValueError(f"{self.name}={text(value)} is out of range: expected {self.allowed}")
        return int(number) if self.whole else number

    def _on_step(self, value):
        if self.step is None:
            return True
        steps = (value - self.low) / self.step
        return math.isclose(steps, round(steps), abs_tol=1e-6)


def controls(build, choices: dict) -> dict:
    """One `Choices` or `Range` for each keyword: a list, True or False, or numbers (low, high[, step]).

    A control starts at the function's own default if that is among its choices, else at the first choice; a switch
    starts as given. Raises TypeError for a `build` that cannot be called and ValueError for anything that is not a
    choice, for a choice that `build` does not take and for a parameter that neither has a default nor a choice.
    """
    if not callable(build):
        raise TypeError(f"build: expected a function, got {build!r}")
    signature = inspect.signature(build)
    made = {name: _control(name, given, signature.parameters.get(name)) for name, given in choices.items()}
    try:
        signature.bind(**choices)
    except TypeError as error:
        raise ValueError(f"build and the choices do not fit: {error}") from None
    return made


def settings(made: dict, given: dict) -> dict:
    """A value for every control: the given one, else its default. Raises ValueError for an unknown name or value."""
    for name in given:
        look_up(made, name)
    return {name: each.accept(given.get(name, each.default)) for name, each in made.items()}


def equal(chosen: dict, other: dict) -> bool:
    """Whether two settings of the same controls are the same."""
    return all(_same(value, other[name]) for name, value in chosen.items())


def look_up(made: dict, name: str):
    """The control of that name. Raises ValueError that names those there are."""
    if name in made:
        return made[name]
    close = difflib.get_close_matches(str(name), made, n=1)
    guess = f"did you mean {close[0]!r}? " if close else ""
    raise ValueError(f"unknown setting {name!r}: {guess}expected {', '.join(made) or 'none, as build has no choices'}")


def text(value) -> str:
    """A choice in words: a function by its name, a text without quotes."""
    return getattr(value, "__name__", None) or str(value)


def describe(chosen: dict) -> str:
    """Settings in one line: "batch=32 prefetch=2"."""
    return " ".join(f"{name}={text(value)}" for name, value in chosen.items())


def _control(name, given, parameter):
    default = parameter.default if parameter is not None else inspect.Parameter.empty
    if isinstance(given, bool):
        return Choices(name, (False, True), given)
    if isinstance(given, list) and given:
        among = next((choice for choice in given if _same(choice, default)), given[0])
        return Choices(name, tuple(given), among)
    if isinstance(given, tuple) and len(given) in (2, 3) and None not in map(_plain, given):
        return _range(name, given, default)
    raise ValueError(
        f"{name}={given!r}: expected a list of choices with at least one, True or False, or (low, high[, step]), which"
        " are finite numbers"
    )


def _range(name, given, default):
    low, high, *rest = map(_plain, given)
    whole = all(isinstance(number, int) for number in (low, high, *rest))
    step = rest[0] if rest else 1 if whole else None
    if low >= high or (step is not None and step <= 0):
        raise ValueError(f"{name}={given!r}: expected low < high and a step above zero")
    made = Range(name, low, high, step, low)
    try:
        return Range(name, low, high, step, made.accept(default))
    except ValueError:
        return made


def _plain(value):
    """A finite number as an int or a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    number = int(value) if isinstance(value, Integral) else float(value)
    return number if abs(number) < math.inf else None


def _same(choice, value):
    if choice is value:
        return True
    try:
        return isinstance(choice, bool) == isinstance(value, bool) and bool(choice == value)
    except Exception:  # arrays and tensors raise whatever they like
        return False
