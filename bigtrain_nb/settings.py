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


def positive_seconds(value, name="seconds"):
    """Return ``value``; raise ValueError unless it is a finite number of seconds above 0."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < math.inf:
        raise ValueError(f"{name}={value!r} must be a positive, finite number of seconds")
    return value


def not_negative_seconds(value, name):
    """Return ``value``; raise ValueError unless it is a finite number of seconds, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= value < math.inf:
        raise ValueError(f"{name}={value!r} must be a finite number of seconds, 0 or more")
    return value


def fraction(name, value):
    """Return ``value``; raise ValueError unless it is a number between 0 and 1, both excluded."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
        raise ValueError(f"{name}={value!r} must be a number between 0 and 1, both excluded")
    return float(value)
