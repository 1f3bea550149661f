"""Checks of settings: errors name the setting, its value and the allowed values."""

import inspect
import math
import os
from numbers import Integral, Real


def integer(name, value, least, most=math.inf):
    """Return ``value`` as an int; raise ValueError unless it is an integer from ``least`` to ``most``."""
    allowed = f"an integer of at least {least}"
    if most < math.inf:
        allowed += f" and at most {most}"
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    _check(name, value, is_whole and least <= value <= most, allowed)
    return int(value)


def positive(name, value, unit=""):
    """Return ``value`` as a float; raise ValueError unless it is finite and above 0."""
    of = f" of {unit}" if unit else ""
    _check(name, value, _is_number(value) and value > 0, f"a positive, finite number{of}")
    return float(value)


def finite(name, value, allowed="a finite number"):
    """Return ``value`` as a float; raise ValueError unless it is a finite number."""
    _check(name, value, _is_number(value), allowed)
    return float(value)


def not_negative(name, value, unit):
    """Return ``value`` as a float; raise ValueError unless it is a finite number, 0 or more."""
    _check(name, value, _is_number(value) and value >= 0, f"a finite number of {unit}, 0 or more")
    return float(value)


def fraction(name, value):
    """Return ``value`` as a float; raise ValueError unless it is a number between 0 and 1, both excluded."""
    _check(name, value, _is_number(value) and 0 < value < 1, "a number between 0 and 1, exclusive")
    return float(value)


def share(name, value):
    """Return ``value`` as a float; raise ValueError unless it is a number from 0 to below 1."""
    _check(name, value, _is_number(value) and 0 <= value < 1, "a number of at least 0 and below 1")
    return float(value)


def switch(name, value):
    """Return ``value``; raise ValueError unless it is True or False."""
    _check(name, value, isinstance(value, bool), "True or False")
    return value


def one_of(name, value, allowed):
    """Return ``value``; raise ValueError unless it is one of ``allowed``."""
    _check(name, value, is_among(value, allowed), f"one of {', '.join(map(str, allowed))}")
    return value


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
    """Return ``value`` as a string; raise TypeError unless it is a path."""
    return os.fspath(of_kind(name, value, str | os.PathLike, "a path, as a string or a pathlib.Path"))


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


def _check(name, value, is_allowed, allowed):
    if not is_allowed:
        raise ValueError(f"{name}={value!r:.99} must be {allowed}")
