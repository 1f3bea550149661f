"""What more devices bring and what larger batches cost: efficiencies, and loss curves that part."""

import math

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from bigtrain_nb.plots.canvas import INK, MEASURED, canvas, grid, label, name_rows, side_text

STYLES = ("solid", (0, (5, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)), (0, (9, 2)))
APART = 0.065  # of the axes' height: labels closer than this would cover each other


def efficiency_figure(rows) -> Figure:
    """One bar for each row, filled up to its efficiency; what is missing to the ideal is named as loss.

    `rows`: {name: efficiency}, where 1 is ideal.
    """
    figure, (axes,) = canvas(1.0 + 0.4 * len(rows))
    axes.axvline(1, color=INK, linewidth=1.2)
    for y, share in enumerate(rows.values()):
        axes.barh(y, 1, height=0.56, color=INK, alpha=0.08)
        axes.barh(y, share, height=0.56, color=MEASURED)
        side_text(axes, y, f"{100 * (1 - share):.0f} % lost")
    name_rows(axes, list(rows))
    axes.set_xlim(0, 1.04)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    label(axes, "efficiency, in % of the ideal (upright line)\nblue: used, grey: lost")
    return figure


def curves_figure(curves, only=None) -> Figure:
    """Losses over epochs on a logarithmic axis, one line for each of ``curves``, named at its end.

    `curves`: {name: [loss, ...]}, all above zero; what is not finite is left out. The first is the one to compare with.
    `only`: the names to draw, by default all. A curve looks the same whichever others are drawn.
    """
    figure, (axes,) = canvas(3.6)
    axes.set_yscale("log")
    ends = {}
    for place, (name, losses) in enumerate(curves.items()):
        if only is not None and name not in only:
            continue
        colour, width = (INK, 2.5) if place == 0 else (MEASURED, 1.8)
        shown = [loss if math.isfinite(loss) else math.nan for loss in losses]
        epochs = range(1, len(shown) + 1)
        style = STYLES[place % len(STYLES)]
        axes.plot(
            epochs,
            shown,
            color=colour,
            linewidth=width,
            linestyle=style,
            marker="o",
            markersize=4,
        )
        ends[name] = [loss for loss in shown if not math.isnan(loss)][-1]
    low, high = axes.get_ylim()
    free = 0.0
    for name, loss in sorted(ends.items(), key=lambda end: end[1]):
        height = math.log(loss / low) / math.log(high / low)
        height = max(height, free)
        free = height + APART
        axes.text(
            1.02,
            height,
            name,
            transform=axes.transAxes,
            color=INK,
            fontsize=10,
            va="center",
        )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    grid(axes, "y")
    label(axes, "epoch", "training loss (logarithmic scale)")
    return figure
