"""What a batch in slices does to the weights, where it is done wrong, and to memory."""

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from bigtrain_nb.common.words import number
from bigtrain_nb.plots.canvas import INK, MEASURED, PREDICTED, canvas, grid, label, name_rows, side_text
from bigtrain_nb.series.drawings.dots import dots_and_line

SMALLEST = 1e-8  # distances below it, 0 included, are drawn there: single precision ends before


def distance_figure(wrong, right) -> Figure:
    """One row for each way to train, on a logarithmic axis: how far its weights end from those of whole batches.

    `wrong`, `right`: {name: distance}; 1 is as far off as training itself has moved the weights.
    """
    figure, (axes,) = canvas(1.3 + 0.36 * (len(wrong) + len(right)))
    axes.axvline(1, color=INK, linewidth=1.2)
    everything = {**wrong, **right}
    for y, (name, distance) in enumerate(everything.items()):
        drawn = max(distance, SMALLEST)
        if name in wrong:
            axes.plot(drawn, y, "X", color=PREDICTED, markersize=9)
        else:
            axes.plot(drawn, y, "o", color=MEASURED, markersize=8)
        words = f"{distance:.2g}" if distance < 0.001 else number(distance)
        side_text(axes, y, words)
    farthest = max(1.0, *everything.values())
    axes.set_xscale("log")
    axes.set_xlim(SMALLEST, 3 * farthest)
    axes.xaxis.set_minor_locator(NullLocator())
    name_rows(axes, list(everything))
    grid(axes, "x")
    label(
        axes,
        "distance to the weights of whole batches\ncross: a mistake; dot: right; line: as far as training moved",
    )
    return figure


def memory_figure(measured, predicted) -> Figure:
    """Peak memory against the number of slices: measured as dots with their values, predicted as a dashed line.

    `measured`, `predicted`: {micro_batches: MiB}.
    """
    figure, (axes,) = canvas(3.2)
    dots_and_line(axes, measured, predicted, _mebibytes, offset=(9, 7))
    places = sorted(measured)
    axes.set_xscale("log", base=2)
    axes.set_xticks(places, [str(place) for place in places])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(places[0] / 1.2, 1.7 * places[-1])
    highest = max(*measured.values(), *predicted.values())
    axes.set_ylim(0, 1.2 * highest)
    grid(axes, "y")
    label(axes, "micro-batches K\ndot: measured, dashed: constant + activations / K", "peak memory, MiB")
    return figure


def _mebibytes(peak):
    return f"{number(peak)} MiB"
