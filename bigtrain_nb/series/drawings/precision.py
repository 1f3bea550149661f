"""Figures of low-precision number formats."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from ml_dtypes import finfo

from bigtrain_nb.plots.canvas import INK, MEASURED, PREDICTED, canvas, grid, label, name_rows

FORMATS = {"float32": (8, 23), "bfloat16": (8, 7), "float16": (5, 10)}
"""(exponent bits, mantissa bits), without the sign bit. IEEE 754-2019; bfloat16: Kalamkar et al. 2019."""

HISTOGRAM = 2.2  # height of a histogram, in rows


def powers(exponent_bits, mantissa_bits):
    """Return log2 of a format's smallest positive number, smallest normal number, and end of its range (excluded)."""
    bias = 2 ** (exponent_bits - 1) - 1
    return 1 - bias - mantissa_bits, 1 - bias, bias + 1


def bits_figure() -> Figure:
    """The bits of each format, one box per bit: sign, exponent (range), mantissa (precision)."""
    figure, (axes,) = canvas(2.0)
    for y, (exponent, mantissa) in enumerate(FORMATS.values()):
        colours = [INK] + exponent * [PREDICTED] + mantissa * [MEASURED]
        for place, colour in enumerate(colours):
            axes.barh(y, 0.86, left=place + 0.07, height=0.6, color=colour)
        _write(axes, len(colours) + 0.5, y, f"1 + {exponent} + {mantissa}", INK, "left")
    _write(axes, 0.5, -0.45, "sign", INK)
    _write(axes, 5, -0.45, "exponent", PREDICTED)
    _write(axes, 20, -0.45, "mantissa", MEASURED)
    name_rows(axes, list(FORMATS))
    axes.set_ylim(len(FORMATS) - 0.6, -0.8)
    axes.set_xlim(-0.5, 37)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    return figure


def range_figure(values, scale=None) -> Figure:
    """The range of each format on an axis of powers of two, below a histogram of the magnitudes of ``values``.

    ``values`` are gradients; zeros are omitted. The thin left end of a range is subnormal numbers, with fewer digits.
    With ``scale``, a second histogram shows the scaled values.
    """
    sizes = np.abs(np.asarray(values, np.float64)).ravel()
    sizes = np.log2(sizes[(sizes > 0) & np.isfinite(sizes)])
    lowest, highest = sizes.min(), sizes.max()
    figure, (axes,) = canvas(3.4)
    _draw_histogram(axes, sizes, MEASURED, "gradients")
    if scale:
        moved = sizes + np.log2(scale)
        highest = moved.max()
        _draw_histogram(axes, moved, PREDICTED, f"gradients times {scale:,.0f}")
    left = min(-30, lowest - 3)
    right = max(20, highest + 3)
    for y, (exponent, mantissa) in enumerate(FORMATS.values()):
        _draw_range(axes, y, powers(exponent, mantissa), left, right)
    name_rows(axes, list(FORMATS))
    axes.set_ylim(len(FORMATS) - 0.4, -3.4)
    axes.set_xlim(left, right)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(lambda power, _: f"$2^{{{round(power)}}}$")
    grid(axes, "x")
    label(axes, "magnitude\nthick: full precision, thin: subnormal, with fewer digits, beyond: zero or infinity")
    return figure


def _draw_histogram(axes, sizes, colour, name):
    """Draw a histogram of the values by power of two, above the rows."""
    edges = np.arange(np.floor(sizes.min()), np.floor(sizes.max()) + 2)
    counts, _ = np.histogram(sizes, edges)
    heights = -HISTOGRAM * counts / counts.max()
    axes.stairs(heights - 0.6, edges, baseline=-0.6, fill=True, color=colour, alpha=0.75)
    _write(axes, np.median(sizes), -3.0, name, colour)


def _draw_range(axes, y, limits, left, right):
    """Draw the range of one format, and label its ends if they are off the axis."""
    smallest, normal, end = limits
    begin, stop = max(smallest, left), min(end, right)
    middle = max(normal, left)
    axes.barh(y, middle - begin, left=begin, height=0.14, color=INK, alpha=0.55)
    axes.barh(y, stop - middle, left=middle, height=0.5, color=INK, alpha=0.55)
    if smallest > left:
        _write(axes, (begin + middle) / 2, y - 0.28, "fewer digits", INK)
    if smallest <= left:
        _write(axes, left, y - 0.46, f" from $2^{{{smallest}}}$", INK, "left")
    if end >= right:
        _write(axes, right, y - 0.46, f"to $2^{{{end}}}$ ", INK, "right")


def _write(axes, x, y, text, colour, side="center"):
    axes.text(x, y, text, color=colour, fontsize=10, ha=side, va="center")


def tensors_figure(tensors, format_name) -> Figure:
    """The range of each tensor's values on an axis of powers of two: thick for the middle 98 %, thin for all.

    `tensors`: {name: array}; zeros are omitted. The band is the range of the format with one scale for all tensors: its
    right end is the largest value of all.
    """
    figure, (axes,) = canvas(0.9 + 0.26 * len(tensors))
    sizes = {name: np.log2(np.abs(values[values != 0])) for name, values in tensors.items()}
    largest = max(powers_of_two.max() for powers_of_two in sizes.values())
    limits = finfo(format_name)
    width = np.log2(float(limits.max)) - np.log2(float(limits.smallest_subnormal))
    axes.axvspan(largest - width, largest, color=PREDICTED, alpha=0.18, linewidth=0)
    for y, powers_of_two in enumerate(sizes.values()):
        low, high = np.percentile(powers_of_two, [1, 99])
        axes.plot([powers_of_two.min(), powers_of_two.max()], [y, y], color=MEASURED, linewidth=1)
        axes.plot([low, high], [y, y], color=MEASURED, linewidth=6, solid_capstyle="butt")
    name_rows(axes, list(tensors))
    axes.set_ylim(len(tensors) - 0.4, -0.6)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(lambda power, _: f"$2^{{{round(power)}}}$")
    grid(axes, "x")
    label(
        axes,
        f"magnitude; thick: the middle 98 % of a tensor\nband: the range of {format_name} with one scale for all",
    )
    return figure
