"""Horizontal bars of a few interleaved rates, with a headline in large type."""

import math
from textwrap import shorten

from bigtrain_nb.common.words import interval
from bigtrain_nb.plots.canvas import INK, MEASURED, canvas, grid, label

NAME = 92
"""Characters of a name that fit above its bar."""
ROW, HEAD, FOOT = 0.62, 0.85, 0.6
"""Heights in inches: of a bar with its name, of the headline, of the axis."""


def bars_figure(results, headline="", line="", before=None):
    """Return a figure with a bar for each result; the baseline, named `before`, is gray.

    `results`: `Result`s, or anything with name, median, low, high and unit. Names are above the bars, so that long ones
    do not narrow the chart; the line at a bar's end is its interval. `headline` is on top in large type, `line` below.
    """
    figure, (axes,) = canvas((HEAD if headline else 0.0) + FOOT + ROW * len(results))
    axes.set_title(headline, loc="left", fontsize=19, color=INK, pad=30, fontweight="bold", parse_math=False)
    below = shorten(line, NAME, placeholder=" ...")
    axes.text(0, 1.0, below, transform=axes.transAxes, color=INK, va="bottom", parse_math=False)
    widest = max(_end(result) for result in results)
    for y, result in enumerate(results):
        color, alpha = (INK, 0.35) if result.name == before else (MEASURED, 1.0)
        axes.barh(y, result.median, height=0.42, color=color, alpha=alpha)
        if result.low < result.high:
            axes.plot((result.low, result.high), (y, y), color=INK, linewidth=1.6, marker="|", markersize=9)
        name = shorten(result.name, NAME, placeholder=" ...")
        axes.text(0, y - 0.27, name, color=INK, fontsize=10, va="bottom", parse_math=False)
        axes.text(_end(result) + 0.015 * widest, y, interval(result), color=INK, fontsize=10, va="center")
    axes.set_ylim(len(results) - 0.7, -0.72)
    axes.set_xlim(0, 1.36 * widest)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.locator_params(axis="x", nbins=5)
    axes.xaxis.set_major_formatter("{x:,.6g}")
    grid(axes, "x")
    label(axes, results[0].unit)
    return figure


def _end(result):
    return max(result.median, result.high if math.isfinite(result.high) else 0.0)
