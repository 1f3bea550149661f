"""Measured rates and predictions as figures."""

import math
import textwrap

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from bigtrain_nb.common.words import duration, interval, number, quantity
from bigtrain_nb.plots.canvas import INK, MEASURED, PREDICTED, canvas, grid, label, name_rows, side_text

NAME_WIDTH = 30  # characters of a row's name in one line


def throughput_figure(result) -> Figure:
    """The rounds of one `Result` in the order they were measured, the median, and its interval as a band."""
    figure, axes = canvas(2.9)
    rounds = range(1, len(result.rounds) + 1)
    axes.axhspan(result.low, result.high, color=MEASURED, alpha=0.18, linewidth=0)
    axes.axhline(result.median, color=MEASURED, linewidth=1.5)
    axes.plot(rounds, result.rounds, "o", color=INK, markersize=4.5, alpha=0.75)
    everything = _finite([*result.rounds, result.low, result.high])
    low, high = min([*everything, 0.9 * result.median]), max([*everything, 1.1 * result.median])
    axes.set_ylim(low - 0.06 * (high - low), high + 0.06 * (high - low))
    axes.margins(x=0.04)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True, min_n_ticks=1))
    axes.yaxis.set_major_formatter(lambda value, _: number(value))
    grid(axes, "y")
    label(axes, f"round\nthe first element took {duration(result.first_seconds)}", result.unit)
    ends = f"{number(result.low)} to {number(result.high)}"
    side_text(axes, result.median, f"median {number(result.median)}\n{ends}")
    return figure


def comparison_figure(results, baseline=None, prediction=None, beside=None) -> Figure:
    """One row for each result: dot = median, thick line = interval if there is one, faint ticks = rounds.

    `results`: a `Comparison`, or a list of `Result` (anything with name, median, low, high, unit and rounds).
    `baseline`: the name of the row to compare with; its dot is hollow and a thin line carries its median on.
    `prediction`: a rate, drawn dashed.
    `beside`: for each row the baseline's rate as measured together with it, or None; replaces the thin line.
    Raises ValueError for no results.
    """
    rows = list(getattr(results, "results", {}).values()) or list(results)
    if not rows:
        raise ValueError("results: nothing to draw; expected at least one result")
    figure, axes = canvas(0.8 + 0.4 * len(rows))
    for y, row in enumerate(rows):
        _row(axes, y, row, hollow=row.name == baseline)
        if beside and beside[y] is not None:
            axes.plot([beside[y]] * 2, [y - 0.36, y + 0.36], color=INK, alpha=0.7, linewidth=1.2)
        if row.name == baseline and not beside:
            axes.axvline(row.median, color=INK, alpha=0.5, linewidth=1)
    reach = [value for row in rows for value in (*row.rounds, row.high, row.median)]
    if prediction is not None:
        axes.axvline(prediction, color=PREDICTED, linestyle=(0, (4, 2)), linewidth=2)
        text = f"your prediction: {quantity(prediction, rows[0].unit)}"
        axes.set_title(text, color=PREDICTED, fontsize=10, loc="left", pad=4)
        reach.append(prediction)
    axes.set_xlim(0, 1.04 * max(_finite([*reach, *filter(None, beside or ())]), default=1.0))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    axes.xaxis.set_major_formatter("{x:,.6g}")
    _finish_rows(axes, [row.name + (" (baseline)" if row.name == baseline else "") for row in rows])
    units = " or ".join(dict.fromkeys(map(_unit, rows)))
    key = "dot: median, line: interval" if any(row.low < row.high for row in rows) else "dot: measured"
    key += ", ticks: rounds" if any(row.rounds for row in rows) else ""
    if beside and any(rate is not None for rate in beside):
        key += ", bar: baseline beside it"
    label(axes, f"{units}\n{key}", "")
    return figure


def prediction_figure(rows) -> Figure:
    """Each prediction as a multiple of what was measured, on a logarithmic axis, with the measured interval.

    `rows`: objects with name, predicted, median, low, high and unit; all values above zero.
    """
    rows = list(rows)
    if not rows:
        raise ValueError("rows: nothing to draw; expected at least one prediction with its measurement")
    figure, axes = canvas(1.0 + 0.4 * len(rows))
    axes.axvline(1, color=MEASURED, linewidth=1.2, alpha=0.7)
    for y, row in enumerate(rows):
        ends = [row.low / row.median, row.high / row.median]
        axes.plot(ends, [y, y], color=MEASURED, linewidth=7, alpha=0.45, solid_capstyle="butt")
        axes.plot(row.predicted / row.median, y, "D", color=PREDICTED, markersize=7)
        side_text(axes, y, f"{quantity(row.predicted, row.unit)}, was {quantity(row.median, row.unit)}")
    reach = [value / row.median for row in rows for value in (row.predicted, row.low, row.high) if value > 0]
    span = 1.25 * max(2.0, *(max(value, 1 / value) for value in _finite(reach)))
    axes.set_xscale("log")
    axes.set_xlim(1 / span, span)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(LogLocator(2 if span < 20 else 10, numticks=20))
    axes.xaxis.set_major_formatter(lambda value, _: _fold(value))
    _finish_rows(axes, [row.name for row in rows])
    band = ", band: measured interval" if any(row.low < row.high for row in rows) else ""
    label(axes, f"prediction / measured\ndiamond: prediction{band}", "")
    return figure


def _unit(row):
    """A ratio with an interval is one of rates; one without may be of anything."""
    if row.unit != "x":
        return row.unit
    return "times as fast" if row.low < row.high else "times"


def _row(axes, y, row, hollow):
    axes.vlines(_finite(row.rounds), y - 0.22, y + 0.22, color=INK, alpha=0.22, linewidth=1)
    if all(map(math.isfinite, (row.low, row.high))):
        axes.plot([row.low, row.high], [y, y], color=MEASURED, linewidth=3.5, solid_capstyle="butt")
    axes.plot(row.median, y, "o", markersize=7, color=MEASURED)
    if hollow:
        axes.plot(row.median, y, "o", markersize=3.5, color="white")
    side_text(axes, y, interval(row))


def _finish_rows(axes, names):
    name_rows(axes, [textwrap.fill(name, NAME_WIDTH, max_lines=2) for name in names])
    grid(axes, "x")


def _fold(value):
    return f"{value:,.4g}x" if value >= 1 else f"1/{1 / value:,.4g}"


def _finite(values):
    return [value for value in values if math.isfinite(value)]
