"""What recomputation saves, and how far replicas drift that seldom talk."""

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from bigtrain_nb.common.words import number
from bigtrain_nb.plots.canvas import MEASURED, canvas, grid, label
from bigtrain_nb.series.drawings.dots import dots_and_line


def segments_figure(measured, predicted) -> Figure:
    """Peak memory against the layers in a recomputed segment: measured as dots, the formula as a dashed line.

    `measured`, `predicted`: {layers in a segment: MiB}.
    """
    figure, (axes,) = canvas(3.2)
    dots_and_line(axes, measured, predicted, number, offset=(-10, 10))
    sizes = sorted(measured)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(sizes[0] / 1.2, 1.5 * sizes[-1])
    axes.set_ylim(0, 1.15 * max(*measured.values(), *predicted.values()))
    grid(axes, "y")
    label(axes, "layers in a segment\ndot: measured, dashed: formula", "highest memory, MiB")
    return figure


def drift_figure(spread) -> Figure:
    """How far two replicas are apart after each step. `spread`: the largest difference of a weight, from step 1 on."""
    figure, (axes,) = canvas(2.6)
    steps = range(1, len(spread) + 1)
    axes.plot(steps, spread, "o-", color=MEASURED, markersize=7, linewidth=1.5)
    axes.set_ylim(0, 1.15 * max(spread))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    grid(axes, "y")
    label(axes, "step", "largest difference of a weight")
    return figure
