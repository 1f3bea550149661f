"""What a batch in slices does to the weights, where it is done wrong, and to memory."""

import math

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from bigtrain_nb.common.words import number
from bigtrain_nb.plots.canvas import INK, MEASURED, canvas, dots_and_line, grid, label, name_rows, side_text

SMALLEST = 1e-8  # distances below it, 0 included, are drawn there: single precision ends before


def distance_figure(distances) -> Figure:
    """One row for each way to train, on a logarithmic axis: how far its weights end from those of the big batch.

    `distances`: {name: distance}; 1 is as far off as training itself has moved the weights. Raises ValueError for
    none, and for a distance that is negative or not finite.
    """
    if not distances:
        raise ValueError("distances: nothing to draw; expected at least one {name: distance}")
    for name, distance in distances.items():
        if not 0 <= distance < math.inf:
            raise ValueError(f"distances: {name!r} is {distance}; expected a finite number from 0 up")
    figure, axes = canvas(1.0 + 0.36 * len(distances))
    axes.axvline(1, color=INK, linewidth=1.2)
    for y, distance in enumerate(distances.values()):
        axes.plot([SMALLEST, max(distance, SMALLEST)], [y, y], color=MEASURED, linewidth=3, solid_capstyle="butt")
        axes.plot(max(distance, SMALLEST), y, "o", color=MEASURED, markersize=7)
        side_text(axes, y, f"{distance:.2g}" if distance < 0.001 else number(distance))
    axes.set_xscale("log")
    axes.set_xlim(SMALLEST, 3 * max(1.0, *distances.values()))
    axes.xaxis.set_minor_locator(NullLocator())
    name_rows(axes, list(distances))
    grid(axes, "x")
    label(axes, "distance to the weights of one big batch\nupright line: as far off as training moved them", "")
    return figure


def memory_figure(measured, predicted) -> Figure:
    """Peak memory against the number of slices: measured as dots with their values, predicted as a dashed line.

    `measured`, `predicted`: {micro_batches: MiB}. Raises ValueError if nothing was measured.
    """
    if not measured:
        raise ValueError("measured: nothing to draw; expected at least one {micro_batches: MiB}")
    figure, axes = canvas(3.2)
    dots_and_line(axes, measured, predicted, lambda peak: f"{number(peak)} MiB", (9, 7))
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(measured), map(str, sorted(measured)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(min(measured) / 1.2, 1.7 * max(measured))
    axes.set_ylim(0, 1.2 * max(*measured.values(), *predicted.values()))
    grid(axes, "y")
    label(axes, "micro-batches K\ndot: measured, dashed: constant + activations / K", "peak memory, MiB")
    return figure
