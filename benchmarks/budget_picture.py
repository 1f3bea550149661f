"""The picture of budget.py: what was predicted beside what was measured."""

from matplotlib.ticker import LogLocator, NullLocator

from bigtrain_nb.common.words import amount
from bigtrain_nb.plots.canvas import INK, MEASURED, PREDICTED, canvas, label


def predicted_figure(rows, band, unit):
    """Predicted over measured on logarithmic axes, with the line of equals and a band at it.

    `rows`: (name, measured, predicted), all above zero; names of rows outside the band are written. `band`: the least
    and the largest ratio, (0.85, 1.15) for 15 %; `unit`: "bytes", "s" or one that has no multiples of its own,
    "examples/s".
    """
    figure, (axes,) = canvas(4.2)
    values = [value for _, *pair in rows for value in pair]
    ends = [min(values) / 1.4, max(values) * 1.4]
    lower, upper = ([edge * end for end in ends] for edge in band)
    axes.fill_between(ends, lower, upper, color=INK, alpha=0.1)
    axes.plot(ends, ends, color=INK, linewidth=1.2)
    outside = [row for row in rows if not band[0] <= row[2] / row[1] <= band[1]]
    for row in rows:
        colour = PREDICTED if row in outside else MEASURED
        axes.plot(*row[1:], "o", color=colour, markersize=7, alpha=0.85)
    _names(axes, outside)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    fits_itself = unit in ("bytes", "s")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(10, (1, 2, 5), numticks=8))
        if unit == "bytes":
            axis.set_major_locator(LogLocator(2, numticks=8))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(lambda value, _: amount(value, unit if fits_itself else ""))
    key = f"line: equal, band: {band[0]:.2f} to {band[1]:.2f}; {len(rows) - len(outside)} of {len(rows)} within it"
    of_axes = "" if fits_itself else f" ({unit})"
    label(axes, f"measured{of_axes}\n{key}", f"predicted{of_axes}")
    return figure


def _names(axes, rows):
    """Write the names one below the other in the corners that have no dots, each with a line to its dot.

    They stand in the order of the dots' heights, so that lines rarely cross.
    """
    too_low = sorted((row for row in rows if row[2] < row[1]), key=lambda row: row[2])
    for place, (name, *dot) in enumerate(too_low):
        _name(axes, name, dot, (0.99, 0.05 + 0.08 * place), "right")
    too_high = sorted((row for row in rows if row[2] > row[1]), key=lambda row: -row[2])
    for place, (name, *dot) in enumerate(too_high):
        _name(axes, name, dot, (0.01, 0.95 - 0.08 * place), "left")


def _name(axes, name, dot, at, side):
    """Write a name at a side of the axes, with a line from its inner end to its dot."""
    line = {
        "arrowstyle": "-",
        "color": INK,
        "linewidth": 0.6,
        "relpos": (0 if side == "right" else 1, 0.5),
        "shrinkB": 4,
    }
    axes.annotate(
        name, dot, at, textcoords="axes fraction", ha=side, va="center", color=INK, fontsize=9, arrowprops=line
    )  # fmt: skip
