"""Checks of settings: an error names the setting, its value and what is allowed."""

import math
import operator
from numbers import Real


def whole_number(name, value, least, most=None, most_is=""):
    """Return ``value`` as an int; raise ValueError unless it is a whole number from ``least`` to ``most``."""
    allowed = f"a whole number of at least {least}"
    if most is not None:
        allowed += f" and at most {most}" + (f", {most_is}" if most_is else "")
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < least or (most is not None and number > most):
        raise ValueError(f"{name}={value!r} must be {allowed}")
    return number


def positive(name, value, unit=""):
    """Return ``value`` as a float; raise ValueError unless it is a finite number above 0."""
    return _real(name, value, f"a positive, finite number{unit and ' of ' + unit}", lambda number: number > 0)


def not_negative(name, value, unit):
    """Return ``value`` as a float; raise ValueError unless it is a finite number, 0 or more."""
    return _real(name, value, f"a finite number of {unit}, 0 or more", lambda number: number >= 0)


def fraction(name, value):
    """Return ``value`` as a float; raise ValueError unless it is a number between 0 and 1, both excluded."""
    return _real(name, value, "a number between 0 and 1, both excluded", lambda number: 0 < number < 1)


def share_of(name, value):
    """Return ``value`` as a float; raise ValueError unless it is a number above 0 and at most 1."""
    return _real(name, value, "a number above 0 and at most 1", lambda number: 0 < number <= 1)


def one_of(name, value, allowed):
    """Return ``value``; raise ValueError unless it is one of ``allowed``."""
    if value not in tuple(allowed):
        raise ValueError(f"{name}={value!r} must be one of {', '.join(allowed)}")
    return value


def _real(name, value, allowed, fits):
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or not fits(number):
        raise ValueError(f"{name}={value!r} must be {allowed}")
    return number
