"""Charts of sequences: the rounds of a measurement, a setting that changes step by step."""

import math

from matplotlib.ticker import LogLocator, MaxNLocator

from bigtrain_nb.common.words import amount, number
from bigtrain_nb.plots.canvas import INK, MEASURED, PREDICTED, canvas, grid, label, side_text


def throughput_figure(result):
    """The rounds of one `Result` in the order measured, the median, and its interval as a band."""
    figure, (axes,) = canvas(2.9)
    axes.axhspan(result.low, result.high, color=MEASURED, alpha=0.18, linewidth=0)
    axes.axhline(result.median, color=MEASURED, linewidth=1.5)
    places = range(1, len(result.rounds) + 1)
    axes.plot(places, result.rounds, "o", color=INK, markersize=4.5, alpha=0.75)

    shown = *result.rounds, 0.9 * result.median, 1.1 * result.median
    axes.set_ylim(0.99 * min(shown), 1.01 * max(shown))
    axes.yaxis.set_major_formatter("{x:,.6g}")
    _whole_steps(axes)

    ends = f"{number(result.low)} to {number(result.high)}"
    side_text(axes, result.median, f"median {number(result.median)}\n{ends}")
    label(axes, f"round\nthe first batch took {amount(result.first_seconds, 's')}", result.unit)
    return figure


def stairs_figure(values, crossed, x, y):
    """The value after each step, on an axis of powers of two; a cross where ``crossed`` is true.

    Values without a finite logarithm (0, infinity) leave a gap. `x`, `y`: the titles of the axes.
    """
    figure, (axes,) = canvas(2.9)
    shown = [value if 0 < value < math.inf else math.nan for value in values]
    edges = [place + 0.5 for place in range(len(shown) + 1)]
    axes.stairs(shown, edges, baseline=None, color=MEASURED, linewidth=1.8)
    for step, (value, is_crossed) in enumerate(zip(shown, crossed, strict=True), start=1):
        if is_crossed:
            axes.plot(step, value, "x", color=PREDICTED, markersize=8, markeredgewidth=2, zorder=3)

    axes.set_yscale("log", base=2)
    axes.margins(y=0.15)
    axes.yaxis.set_major_locator(LogLocator(base=2, numticks=8))
    _whole_steps(axes)
    label(axes, x, y)
    return figure


def _whole_steps(axes):
    axes.margins(x=0.04)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True, min_n_ticks=1))
    grid(axes, "y")
