"""Charts of rows: a name, what was measured with its interval, what was predicted, and the value in words."""

import math
from dataclasses import dataclass
from textwrap import fill

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from bigtrain_nb.common.words import interval, quantity
from bigtrain_nb.plots.canvas import INK, MEASURED, PREDICTED, canvas, grid, label, name_rows, side_text

PALE = 0.35  # how strong the colour of a pale row is
KEY = {
    "value": "dot: measured",
    "ends": "line: interval",
    "ticks": "ticks: rounds",
    "pale": "pale: not kept",
    "beside": "upright mark: measured beside it",
    "predicted": "diamond: prediction",
}


@dataclass(frozen=True)
class Row:
    """One row of a chart: a dot at ``value``, a thick line between the ``ends`` of its interval, faint ``ticks``.

    ``predicted`` is drawn as a diamond, ``beside``, what the value is to be compared with, as an upright mark;
    ``words`` stand at the side. What is None or empty is left out.
    """

    name: str
    value: float | None = None
    ends: tuple = ()
    ticks: tuple = ()
    predicted: float | None = None
    beside: float | None = None
    words: str = ""
    pale: bool = False


def rows_figure(panels, zoomed=()) -> Figure:
    """Panels side by side with the same rows, of which the first writes the names; below, what each mark means.

    `panels`: {title: [`Row`, ...]}; `zoomed`: the titles of panels whose axis does not begin at zero. Raises ValueError
    for no rows.
    """
    first = next(iter(panels.values()))
    if not first:
        raise ValueError("nothing to draw; expected at least one row")
    figure, all_axes = canvas(1.0 + 0.4 * len(first), len(panels))
    for axes, (title, rows) in zip(all_axes, panels.items(), strict=True):
        for y, row in enumerate(rows):
            _draw(axes, y, row)
        low, high = _reach(rows)
        margin = 0.15 * (high - low) or 0.1 * high
        if title in zoomed:
            axes.set_xlim(low - margin, high + margin)
        else:
            axes.set_xlim(0, 1.06 * high)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=max(3, 5 // len(panels))))
        axes.xaxis.set_major_formatter("{x:,.6g}")
        axes.tick_params(axis="y", labelleft=axes is all_axes[0])
        name_rows(axes, [fill(row.name, 34, max_lines=2) for row in first])
        grid(axes, "x")
        label(axes, title)
    everything = [row for rows in panels.values() for row in rows]
    key = [words for part, words in KEY.items() if any(getattr(row, part) for row in everything)]
    figure.supxlabel(fill(", ".join(key), 80), color=INK, fontsize=10)
    return figure


def comparison_figure(results, baseline=None, prediction=None, beside=None) -> Figure:
    """One row for each result: dot = median, thick line = interval if there is one, faint ticks = rounds.

    `results`: a list of `Result` (anything with name, median, low, high, unit and rounds).
    `baseline`: the name of the row to compare with. `prediction`: a rate, drawn dashed.
    `beside`: for each row the baseline's rate as measured together with it, or None.
    Raises ValueError for no results.
    """
    rows = []
    for place, result in enumerate(results):
        is_baseline = result.name == baseline
        row = Row(
            name=f"baseline: {result.name}" if is_baseline else result.name,
            value=result.median,
            ends=(result.low, result.high) if result.low < result.high else (),
            ticks=result.rounds,
            beside=beside[place] if beside else None,
            words=interval(result),
        )
        rows.append(row)
    unit = results[0].unit if results else ""
    figure = rows_figure({"times" if unit == "x" else unit: rows})
    if prediction is not None:
        (axes,) = figure.axes
        axes.axvline(prediction, color=PREDICTED, linestyle="dashed", linewidth=2)
        axes.set_xlim(right=max(axes.get_xlim()[1], 1.06 * prediction))
        text = f"your prediction: {quantity(prediction, unit)}"
        axes.set_title(text, color=PREDICTED, fontsize=10, loc="left", pad=4)
    return figure


def prediction_figure(predictions) -> Figure:
    """Each prediction as a multiple of what was measured, on a logarithmic axis, with the measured interval.

    `predictions`: objects with name, predicted, median, low, high and unit; all values above zero. Raises ValueError
    for none.
    """
    rows = []
    for one in predictions:
        ends = (one.low / one.median, one.high / one.median) if one.low < one.high else ()
        words = f"{quantity(one.predicted, one.unit)}, was {quantity(one.median, one.unit)}"
        rows.append(Row(one.name, 1.0, ends, predicted=one.predicted / one.median, words=words))
    figure = rows_figure({"prediction / measured": rows})
    (axes,) = figure.axes
    axes.axvline(1, color=MEASURED, linewidth=1.2, alpha=0.7)
    low, high = _reach(rows)
    span = 1.25 * max(2.0, high, 1 / low if low > 0 else 0)
    axes.set_xscale("log")
    axes.set_xlim(1 / span, span)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(LogLocator(2 if span < 20 else 10, numticks=20))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.4g}x" if value >= 1 else f"1/{1 / value:,.4g}")
    return figure


def _draw(axes, y, row):
    strength = PALE if row.pale else 1.0
    axes.vlines(row.ticks, y - 0.22, y + 0.22, color=INK, alpha=0.22, linewidth=1)
    if all(map(math.isfinite, row.ends)):
        axes.plot(row.ends, [y] * len(row.ends), color=MEASURED, alpha=strength, linewidth=3.5)
    if row.beside is not None:
        axes.vlines(row.beside, y - 0.36, y + 0.36, color=INK, alpha=0.7, linewidth=1.2)
    if row.value is not None:
        axes.plot(row.value, y, "o", markersize=7, color=MEASURED, alpha=strength)
    if row.predicted is not None:
        axes.plot(row.predicted, y, "D", markersize=7, color=PREDICTED, markeredgecolor="white")
    side_text(axes, y, row.words)


def _reach(rows):
    """The lowest and the highest number in the rows."""
    values = []
    for row in rows:
        values += [row.value, row.predicted, row.beside, *row.ends, *row.ticks]
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return min(finite, default=0.0), max(finite, default=1.0)
