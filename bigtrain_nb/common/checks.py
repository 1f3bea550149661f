"""Checks of settings, which return the value: errors name the setting, its value and the allowed values.

Wrong types raise TypeError, other wrong values ValueError; a number of a wrong type is a wrong value.
"""

import inspect
import math
import os
from numbers import Integral, Real


def integer(name, value, least, most=math.inf, instead=""):
    allowed = f"{instead}an integer of at least {least}"
    if most < math.inf:
        allowed += f" and at most {most}"
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    return int(_checked(name, value, is_whole and least <= value <= most, allowed))


def positive(name, value, unit=""):
    of = f" of {unit}" if unit else ""
    return float(_checked(name, value, _is_number(value) and value > 0, f"a positive, finite number{of}"))


def finite(name, value, allowed="a finite number"):
    return float(_checked(name, value, _is_number(value), allowed))


def not_negative(name, value, unit):
    return float(_checked(name, value, _is_number(value) and value >= 0, f"a finite number of {unit}, 0 or more"))


def fraction(name, value):
    return float(_checked(name, value, _is_number(value) and 0 < value < 1, "a number between 0 and 1, exclusive"))


def share(name, value):
    return float(_checked(name, value, _is_number(value) and 0 <= value < 1, "a number of at least 0 and below 1"))


def switch(name, value):
    return _checked(name, value, isinstance(value, bool), "True or False")


def one_of(name, value, allowed):
    return _checked(name, value, is_among(value, allowed), f"one of {', '.join(map(str, allowed))}")


def is_among(value, allowed):
    """Return whether ``value`` is one of ``allowed``, even for an array, which compares elementwise."""
    try:
        return value in allowed
    except (TypeError, ValueError):
        return False


def of_kind(name, value, kind, allowed):
    """Return ``value``; raise TypeError unless it is a ``kind``, described by ``allowed``."""
    if not isinstance(value, kind):
        raise TypeError(f"{name}={value!r:.99} must be {allowed}")
    return value


def as_path(name, value):
    """Return ``value`` as a string, with the home folder for "~"; raise TypeError unless it is a path."""
    return os.path.expanduser(of_kind(name, value, str | os.PathLike, "a path, as a string or a pathlib.Path"))


def function(name, value, allowed="a function", arguments=None):
    """Return ``value``; raise TypeError unless it is callable, with ``arguments`` if given."""
    if not callable(value) or (arguments is not None and not takes(value, *arguments)):
        raise TypeError(f"{name}={value!r:.99} must be {allowed}")
    return value


def takes(function, *arguments, **named):
    """Return whether a function accepts these arguments, as far as its signature shows."""
    try:
        inspect.signature(function).bind(*arguments, **named)
    except TypeError:
        return False
    except ValueError:  # some C functions have no signature, and are unlikely to have our parameter names
        return not named
    return True


def _is_number(value):
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _checked(name, value, is_allowed, allowed):
    if not is_allowed:
        raise ValueError(f"{name}={value!r:.99} must be {allowed}")
    return value
