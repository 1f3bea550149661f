"""Numbers of few bits as figures."""


import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bigtrain_nb.plots.canvas import INK, MEASURED, PREDICTED, canvas, grid, label, name_rows

FORMATS = {"float32": (8, 23), "bfloat16": (8, 7), "float16": (5, 10)}
"""Bits of exponent and of mantissa; one more is the sign. IEEE 754-2019; bfloat16: Kalamkar et al. 2019."""


def powers(exponent_bits, mantissa_bits):
    """Return log2 of a format's smallest number above 0, smallest with all digits, and end of its range (excluded)."""
    bias = 2 ** (exponent_bits - 1) - 1
    return 1 - bias - mantissa_bits, 1 - bias, bias + 1


def bits_figure() -> Figure:
    """The bits of each format, one box each: sign, exponent (how large), mantissa (how exact)."""
    figure, axes = canvas(2.0)
    for y, (exponent, mantissa) in enumerate(FORMATS.values()):
        colours = [INK] + exponent * [PREDICTED] + mantissa * [MEASURED]
        axes.barh([y] * len(colours), 0.86, left=np.arange(len(colours)) + 0.07, height=0.6, color=colours)
        axes.text(len(colours) + 0.5, y, f"1 + {exponent} + {mantissa}", color=INK, fontsize=10, va="center")
    middle = 1 + FORMATS["float32"][0] / 2
    axes.text(0.5, -0.45, "sign", color=INK, fontsize=10, ha="center")
    axes.text(middle, -0.45, "exponent", color=PREDICTED, fontsize=10, ha="center")
    axes.text(20, -0.45, "mantissa", color=MEASURED, fontsize=10, ha="center")
    name_rows(axes, list(FORMATS))
    axes.set_ylim(len(FORMATS) - 0.6, -0.8)
    axes.set_xlim(-0.5, 37)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    return figure


def range_figure(values, scale=None) -> Figure:
    """What each format can hold, on an axis of powers of two, below a histogram of the sizes of ``values``.

    Thin, at the left end of a range: numbers with fewer digits (subnormal). Zeros are left out. With ``scale`` a second
    histogram shows the values times it. Raises ValueError if no value is a finite number other than zero.
    """
    sizes = np.abs(np.asarray(values, np.float64)).ravel()
    sizes = sizes[(sizes > 0) & np.isfinite(sizes)]
    if not sizes.size:
        raise ValueError("values: nothing to draw; expected at least one finite number other than zero")
    figure, axes = canvas(3.4)
    groups = [(1, MEASURED, "as they are")] + ([(scale, PREDICTED, f"times {scale:,.0f}")] if scale else [])
    for factor, colour, name in groups:
        counts, edges = np.histogram(np.log2(sizes * factor), bins=np.arange(-160, 160))
        axes.bar(edges[:-1], -2.2 * counts / counts.max(), 1, -0.6, align="edge", color=colour, alpha=0.75)
        axes.text(np.median(np.log2(sizes * factor)), -2.95, name, color=colour, fontsize=10, ha="center")
    ends = np.log2([sizes.min(), sizes.max() * (scale or 1)])
    left, right = min(-30, ends[0] - 3), max(20, ends[1] + 3)
    for y, bits in enumerate(FORMATS.values()):
        _draw_range(axes, y, powers(*bits), left, right)
    name_rows(axes, list(FORMATS))
    axes.set_axisbelow(True)
    axes.set_ylim(len(FORMATS) - 0.4, -3.3)
    axes.set_xlim(left, right)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(lambda power, _: f"$2^{{{round(power)}}}$")
    grid(axes, "x")
    label(axes, "size of a number\nthick: all digits, thin: fewer, beyond: zero or infinity", "")
    return figure


def _draw_range(axes, y, limits, left, right):
    smallest, normal, end = limits
    for start, stop, height in ((smallest, normal, 0.14), (normal, end, 0.5)):
        start, stop = max(start, left), min(stop, right)
        axes.barh(y, max(0, stop - start), left=start, height=height, color=INK, alpha=0.55)
    for power, place, side in ((smallest, left, "left"), (end, right, "right")):
        if not left < power < right:
            text = f" from $2^{{{power}}}$" if side == "left" else f"to $2^{{{power}}}$ "
            axes.text(place, y - 0.3, text, color=INK, fontsize=9, ha=side, va="bottom")
