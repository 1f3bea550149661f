"""Charts of rows: a name, a measurement with its interval, a prediction, and the value in words."""

import math
from dataclasses import dataclass
from textwrap import fill

from matplotlib.ticker import LogLocator, NullLocator

from bigtrain_nb.common.words import interval, quantity
from bigtrain_nb.plots.canvas import INK, MEASURED, PREDICTED, canvas, grid, key, label, name_rows, side_text


@dataclass(frozen=True)
class Row:
    """One row of a chart: a dot at ``value``, a thick line between the ``ends`` of its interval, faint ``ticks``.

    With a single tick, a cross replaces the dot: another measurement might be far from it.
    ``predicted`` is drawn as a diamond, ``words`` at the side. None, empty and infinite values are omitted.
    """

    name: str
    value: float | None = None
    ends: tuple = ()
    ticks: tuple = ()
    predicted: float | None = None
    words: str = ""


def rows_figure(rows, title):
    """Return a figure of the rows, the first on top, with a key of the marks, and its axes."""
    figure, (axes,) = canvas(1.0 + 0.4 * len(rows))
    marks = {}  # {meaning: a mark of that kind}
    for y, row in enumerate(rows):
        if row.ticks:
            marks["a round"] = axes.vlines(row.ticks, y - 0.22, y + 0.22, color=INK, alpha=0.22, linewidth=1)
        if row.ends and math.isfinite(row.ends[1]):
            (line,) = axes.plot(row.ends, (y, y), color=MEASURED, linewidth=3.5)
            marks["interval"] = line
        if row.value is not None:
            is_once = len(row.ticks) == 1
            (dot,) = axes.plot(row.value, y, "x" if is_once else "o", color=MEASURED, markersize=7, markeredgewidth=2)
            marks["measured once: no interval" if is_once else "measured"] = dot
        if row.predicted is not None:
            (diamond,) = axes.plot(row.predicted, y, "D", color=PREDICTED, markersize=7, markeredgecolor="white")
            marks["predicted"] = diamond
        side_text(axes, y, row.words)
    name_rows(axes, [fill(row.name, 38, max_lines=2) for row in rows])
    grid(axes, "x")
    key(figure, marks)
    label(axes, title)
    return figure, axes


def comparison_figure(results):
    """One row for each result: dot = median, thick line = interval if there is one, faint ticks = rounds.

    `results`: a list of `Result` (anything with name, median, low, high, unit and rounds).
    """
    rows = [Row(each.name, each.median, _ends(each), each.rounds, words=interval(each)) for each in results]
    unit = results[0].unit
    figure, axes = rows_figure(rows, "times" if unit == "x" else unit)
    axes.margins(x=0.06)
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", nbins=5)
    axes.xaxis.set_major_formatter("{x:,.6g}")
    return figure


def prediction_figure(predictions):
    """Each prediction as a multiple of the measurement, on a logarithmic axis, with the measured interval.

    `predictions`: objects with name, predicted, median, low, high and unit; all values above zero.
    """
    rows = []
    reach = 2.0
    for one in predictions:
        ends = [end / one.median for end in _ends(one)]
        factor = one.predicted / one.median
        words = f"{quantity(one.predicted, one.unit)}, was {quantity(one.median, one.unit)}"
        rows.append(Row(one.name, 1.0, ends, predicted=factor, words=words))
        reach = max(reach, factor, 1 / factor)
    figure, axes = rows_figure(rows, "prediction / measured")
    axes.axvline(1, color=MEASURED, linewidth=1.2, alpha=0.7)
    axes.set_xscale("log")
    axes.set_xlim(0.8 / reach, 1.25 * reach)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(LogLocator(2 if reach < 10 else 10, numticks=5))
    axes.xaxis.set_major_formatter("{x:,.3g}x")
    return figure


def _ends(result):
    """The ends of a result's interval; empty if it has no width."""
    return (result.low, result.high) if result.low < result.high else ()
