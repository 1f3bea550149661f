"""Measured values in words: one way to write a rate, a ratio, a time and an interval, and to show what has a card."""

import math


class Shown:
    """What shows itself as its ``_card()``, a `Card`: as HTML in a notebook and as text everywhere else."""

    def __repr__(self):
        return str(self._card())

    def _repr_html_(self):
        return self._card().html


def number(value: float) -> str:
    """A rate or a ratio to three significant digits: 2,350, 12.3, 0.047."""
    if not math.isfinite(value):
        return "?"
    rounded = float(f"{value:.3g}")
    digits = 0 if rounded == 0 else 2 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(0, digits)}f}"


def quantity(value: float, unit: str = "") -> str:
    """A number with its unit: "1.80x", "12.3x", "2,350 examples/s"."""
    if unit == "x" and math.isfinite(value):
        return f"{value:.2f}x" if value < 3 else f"{value:.1f}x" if value < 100 else f"{value:,.0f}x"
    return f"{number(value)} {unit}".strip()


def duration(seconds: float) -> str:
    """A time in words: "0.4 ms", "42 ms", "1.3 s"."""
    if seconds < 0.1:
        return f"{1000 * seconds:.2g} ms"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"


def interval(row) -> str:
    """"2,350 (2,300 to 2,410)", with times signs where the unit is a ratio; no brackets where there were no rounds."""
    unit = "x" if row.unit == "x" else ""
    if getattr(row, "rounds", None) == () and row.low == row.high:
        return quantity(row.median, unit)
    return f"{quantity(row.median, unit)} ({quantity(row.low, unit)} to {quantity(row.high, unit)})"
