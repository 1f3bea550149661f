"""The cost of larger batches: diverging loss curves, and fewer steps saved than hoped."""

import math

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator

from bigtrain_nb.common.words import number
from bigtrain_nb.plots.canvas import INK, MEASURED, canvas, grid, label
from bigtrain_nb.series.drawings.dots import dots_and_line, name_lines

STYLES = ("solid", (0, (5, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)), (0, (9, 2)))
APART = 0.065  # share of the axes' height: closer labels would overlap


def steps_figure(measured, predicted, fair) -> Figure:
    """Steps to reach a loss over the batch size: measured as dots, predicted dashed, perfect scaling dotted.

    With perfect scaling, twice the batch is as good as two steps. `measured`, `predicted`, `fair`: {batch size: steps}.
    Both axes are logarithmic.
    """
    figure, (axes,) = canvas(3.6)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    sizes = sorted(fair)
    axes.plot(sizes, [fair[size] for size in sizes], color=INK, linestyle=(0, (1, 2)), linewidth=1.5)
    dots_and_line(axes, measured, predicted, number, offset=(4, -17))
    batches = sorted(measured)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(batches[0] / 1.3, 1.7 * batches[-1])
    axes.set_ylim(min(fair.values()) / 1.5, 1.5 * max(*measured.values(), *predicted.values()))
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    grid(axes, "both")
    label(
        axes,
        "batch size\ndot: measured, dashed: by the noise scale, dotted: twice the batch, half the steps",
        "steps",
    )
    return figure


def curves_figure(curves) -> Figure:
    """Losses over epochs on a logarithmic axis, one line for each of ``curves``, labeled at its end.

    `curves`: {name: [loss, ...]}, all above zero; non-finite values are omitted. The first is the baseline.
    """
    figure, (axes,) = canvas(3.6)
    axes.set_yscale("log")
    ends = {}
    for place, (name, losses) in enumerate(curves.items()):
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
    name_lines(axes, ends, APART)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    grid(axes, "y")
    label(axes, "epoch", "training loss (logarithmic scale)")
    return figure
