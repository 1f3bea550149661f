"""The measured speed of operations, compared with the limits of a device."""

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from bigtrain_nb.common.words import number
from bigtrain_nb.plots.canvas import canvas, grid, label
from bigtrain_nb.series.drawings.dots import dots_and_line


def products_figure(measured, bound) -> Figure:
    """GFLOP/s of an [n, n] matmul: measured as dots, the limits as a dashed line.

    `measured`, `bound`: {n: GFLOP/s}. Both axes are logarithmic.
    """
    figure, (axes,) = canvas(3.4)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    dots_and_line(axes, measured, bound, number, offset=(8, -14))
    sizes = sorted(measured)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(sizes[0] / 1.3, 1.6 * sizes[-1])
    axes.set_ylim(min(measured.values()) / 2)
    axes.yaxis.set_major_formatter("{x:,g}")
    grid(axes, "both")
    label(axes, "n: rows and columns of each matrix\ndot: measured, dashed: limits", "GFLOP/s")
    return figure
