"""Charts of one number after the other: the rounds of a measurement, a setting that changes step by step."""

import math

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from bigtrain_nb.common.words import amount, number
from bigtrain_nb.plots.canvas import INK, MEASURED, PREDICTED, canvas, grid, label, side_text


def throughput_figure(result) -> Figure:
    """The rounds of one `Result` in the order they were measured, the median, and its interval as a band."""
    figure, (axes,) = canvas(2.9)
    axes.axhspan(result.low, result.high, color=MEASURED, alpha=0.18, linewidth=0)
    axes.axhline(result.median, color=MEASURED, linewidth=1.5)
    rounds = range(1, len(result.rounds) + 1)
    axes.plot(rounds, result.rounds, "o", color=INK, markersize=4.5, alpha=0.75)
    reach = [*result.rounds, 0.9 * result.median, 1.1 * result.median]
    axes.set_ylim(0.99 * min(reach), 1.01 * max(reach))
    axes.yaxis.set_major_formatter(lambda value, _: number(value))
    side_text(axes, result.median, f"median {number(result.median)}\n{number(result.low)} to {number(result.high)}")
    _finish(axes, f"round\nthe first batch took {amount(result.first_seconds, 's')}", result.unit)
    return figure


def stairs_figure(values, crossed, x, y) -> Figure:
    """One value after each step, on an axis of powers of two; a cross where ``crossed`` is true.

    Values that a logarithm cannot show (0, infinity) leave a gap. `x`, `y`: the titles of the axes. Raises ValueError
    for no values.
    """
    if not values:
        raise ValueError("nothing to draw; expected at least one value")
    figure, (axes,) = canvas(2.9)
    shown = [value if 0 < value < math.inf else math.nan for value in values]
    edges = [step + 0.5 for step in range(len(shown) + 1)]
    axes.stairs(shown, edges, baseline=None, color=MEASURED, linewidth=1.8)
    for step, (value, is_crossed) in enumerate(zip(shown, crossed, strict=True), start=1):
        if is_crossed:
            axes.plot(step, value, "x", color=PREDICTED, markersize=8, markeredgewidth=2)
    axes.set_yscale("log", base=2)
    finite = [value for value in shown if math.isfinite(value)] or [1.0]
    axes.set_ylim(min(finite) / 2.5, max(finite) * 2.5)
    axes.yaxis.set_major_locator(LogLocator(base=2, numticks=8))
    axes.yaxis.set_major_formatter(lambda value, _: f"$2^{{{round(math.log2(value))}}}$")
    _finish(axes, x, y)
    return figure


def _finish(axes, x, y):
    axes.margins(x=0.04)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True, min_n_ticks=1))
    grid(axes, "y")
    label(axes, x, y)
