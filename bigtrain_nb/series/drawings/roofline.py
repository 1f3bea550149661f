"""How fast operations run, or may run at most, beside what the limits of a device allow."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from bigtrain_nb.common.words import number
from bigtrain_nb.plots.canvas import INK, MEASURED, canvas, grid, label
from bigtrain_nb.series.drawings.dots import dots_and_line


def products_figure(measured, bound) -> Figure:
    """GFLOP/s of a product of two [n, n] matrices: measured as dots, the limits as a dashed line.

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


STYLES = (("dotted", "o", "circles"), ("dashed", "s", "squares"), ("solid", "^", "triangles"))
"""Of the line, the dots and their name, for each format."""


def roofs_figure(peaks, bandwidth, intensities) -> Figure:
    """What a device computes at most, over FLOPs a byte: a slope of its memory, and a roof for each of three formats.

    `peaks`: {format: FLOP/s}; `bandwidth`: bytes/s; `intensities`: {name: {format: FLOPs a byte}}, a dot each. All axes
    are logarithmic.
    """
    figure, (axes,) = canvas(4.0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    places = [place for of_formats in intensities.values() for place in of_formats.values()]
    line = np.geomspace(min(places) / 2, 4 * max(places), 200)
    for (name, peak), (style, _, shape) in zip(peaks.items(), STYLES, strict=True):
        axes.plot(line, np.minimum(peak, bandwidth * line), color=INK, linestyle=style, linewidth=1.4)
        words = f"{name} ({shape})"
        axes.annotate(words, (line[-1], peak), (0, 4), textcoords="offset points", ha="right", color=INK, fontsize=10)
    for name, of_formats in intensities.items():
        heights = [min(peaks[kind], bandwidth * place) for kind, place in of_formats.items()]
        for place, height, (_, marker, _) in zip(of_formats.values(), heights, STYLES, strict=True):
            axes.plot(place, height, marker, color=MEASURED, markersize=7)
        axes.annotate(
            name, (min(of_formats.values()), min(heights)), (8, -16), textcoords="offset points", color=INK, fontsize=10
        )
    axes.set_ylim(min(peaks.values()) / 2000)
    axes.set_xlim(line[0], line[-1])
    grid(axes, "both")
    label(axes, "FLOPs for each byte that is moved", "FLOP/s at most")
    return figure
