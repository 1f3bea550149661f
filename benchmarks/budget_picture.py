"""The picture of budget.py: what was predicted beside what was measured."""

from textwrap import fill

from matplotlib.ticker import LogLocator, NullLocator

from bigtrain_nb.common.words import amount
from bigtrain_nb.plots.canvas import INK, MEASURED, PREDICTED, canvas, label


def predicted_figure(rows, tolerance, unit):
    """Predicted over measured on logarithmic axes, with the line of equals and a band of ``tolerance`` around it.

    `rows`: (name, measured, predicted), all above zero; names of rows outside the band are written. `tolerance`: 0.15
    for 15 %; `unit`: "bytes", "s" or "examples/s".
    """
    figure, (axes,) = canvas(4.2)
    values = [value for _, *pair in rows for value in pair]
    ends = [min(values) / 1.4, max(values) * 1.4]
    lower = [(1 - tolerance) * end for end in ends]
    upper = [(1 + tolerance) * end for end in ends]
    axes.fill_between(ends, lower, upper, color=INK, alpha=0.1)
    axes.plot(ends, ends, color=INK, linewidth=1.2)
    within = 0
    for name, measured, predicted in rows:
        is_inside = abs(predicted / measured - 1) <= tolerance
        within += is_inside
        colour = MEASURED if is_inside else PREDICTED
        axes.plot(measured, predicted, "o", color=colour, markersize=7, alpha=0.85)
        if not is_inside:
            _name(axes, fill(name, 18), measured, predicted)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(10, (1, 2, 5), numticks=8))
        if unit == "bytes":
            axis.set_major_locator(LogLocator(2, numticks=8))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(lambda value, _: amount(value, unit))
    key = f"line: equal, band: {100 * tolerance:.0f} %; {within} of {len(rows)} within it"
    label(axes, f"measured\n{key}", "predicted")
    return figure


def _name(axes, name, measured, predicted):
    """Write a name next to its dot, on the side away from the line."""
    away, side = (-9, "top") if predicted < measured else (9, "bottom")
    at = (measured, predicted)
    axes.annotate(
        name, at, (0, away), textcoords="offset points", ha="center", va=side, color=INK, fontsize=9
    )  # fmt: skip
