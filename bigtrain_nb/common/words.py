"""Formatting of numbers, to three significant digits.

`number` formats only the digits, `quantity` a rate or a ratio in its unit, `amount` a size, a time or a count in a
suitable unit (GiB, ms, billions), `interval` a median with its confidence interval.
"""

import math
import re

ROUNDS_FOR_AN_INTERVAL = 6
"""With fewer, even the full range of the rounds holds their true median in less than 95 % of cases."""
_TIMES = {"µs": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "hours": 3600, "days": 86400}
_BINARY = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL = ("", "k", "M", "G", "T", "P", "E", "Z")
_COUNTED = ("", "k", "M", "B", "T")


def number(value):
    """Format a rate or a ratio to three significant digits: 2,350, 12.3, 0.047."""
    if not math.isfinite(value):
        return "?"
    rounded = float(f"{value:.3g}")
    digits = 0 if rounded == 0 else 2 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(0, digits)}f}"


def quantity(value, unit=""):
    """Format a number with its unit: "1.80x", "12.3x", "0.0420x", "2,350 examples/s"; an integer as "3 steps"."""
    if unit != "x":
        digits = f"{value:,.0f}" if float(value).is_integer() else number(value)
        return f"{digits} {unit}".strip()
    if 0 < value < 0.095:
        return f"{number(value)}x"
    if value < 3:
        return f"{value:.2f}x"
    return f"{value:.1f}x" if value < 100 else f"{value:,.0f}x"


def amount(value, unit):
    """Format a number in a suitable unit: "1.21 GiB", "12.5 ms", "312 TFLOP", "6.58 B weights" (billions)."""
    if not math.isfinite(value):
        return "unknown"
    name, size = fitting_unit(value, unit)
    return f"{number(value / size)} {name}".strip()


def fitting_unit(value, unit):
    """Return a suitable unit for a value in "s", "bytes", a unit like "FLOP" or a count of things, and its size."""
    if unit == "s":
        units = _TIMES
    elif unit == "bytes":
        units = {name: 1024**power for power, name in enumerate(_BINARY)}
    elif unit[:1].isupper():
        units = {prefix + unit: 1000**power for power, prefix in enumerate(_DECIMAL)}
    else:
        units = {f"{prefix} {unit}".strip(): 1000**power for power, prefix in enumerate(_COUNTED)}
    fitting = unit, 1
    for name, size in units.items():
        least = 2 * size if unit == "s" and size > 1 else 0.9995 * size
        if abs(value) >= least:
            fitting = name, size
    return fitting


def cause(error):
    """Return an error's message in one line of at most 299 characters.

    Errors from Keras layers are reduced to the cause, which Keras prints in bold; node names of operations are removed.
    """
    words = str(error)
    if bold := re.search(r"\x1b\[1m(.*?)\x1b\[0m", words, re.DOTALL):
        words = bold[1]
    words = re.sub(r"\{\{.*?\}\}", "", words)
    return " ".join(words.split())[:299]


def first_sentence(error):
    """Return the first sentence of an error's message, in one line."""
    return re.split(r"(?<=[.!?]) ", cause(error))[0]


def interval(row):
    """Format a median with its interval, if any: "2,350 (2,300 to 2,410)" or "1.80x (1.70x to 1.90x)".

    With too few rounds for an interval, their range is labeled as such: "2,350 (3 rounds: 2,300 to 2,410)".
    """
    if row.low == row.high or not math.isfinite(row.high):
        return quantity(row.median, "x" if row.unit == "x" else "")
    if row.unit == "x":
        return f"{quantity(row.median, 'x')} ({quantity(row.low, 'x')} to {quantity(row.high, 'x')})"
    rounds = len(getattr(row, "rounds", ()))
    few = f"{rounds} rounds: " if 0 < rounds < ROUNDS_FOR_AN_INTERVAL else ""
    return f"{number(row.median)} ({few}{number(row.low)} to {number(row.high)})"
