"""Measurements as dots, predictions as a line, names at the ends of lines."""

from bigtrain_nb.plots.canvas import INK, MEASURED, PREDICTED


def dots_and_line(axes, measured, predicted, words, offset):
    """Draw measurements as dots, each labeled by ``words(value)``, and predictions as a dashed line.

    `measured`, `predicted`: {x: y}; `offset`: of a label from its dot, in points.
    """
    places = sorted(predicted)
    line = [predicted[x] for x in places]
    axes.plot(places, line, color=PREDICTED, linestyle=(0, (4, 2)), linewidth=2)
    for x, y in measured.items():
        axes.plot(x, y, "o", color=MEASURED, markersize=8)
        axes.annotate(
            words(y),
            (x, y),
            offset,
            textcoords="offset points",
            color=INK,
            fontsize=10,
        )


def name_lines(axes, ends, apart):
    """Write the names of lines to the right of their ends, without overlaps.

    `ends`: {name: y of its line's end}; ``apart``: a fraction of the axes' height. The axes' limits must be set.
    """
    free = 0.0
    for name, y in sorted(ends.items(), key=lambda end: end[1]):
        place = axes.transData.transform((axes.get_xlim()[1], y))
        height = max(free, axes.transAxes.inverted().transform(place)[1])
        free = height + apart
        axes.text(1.02, height, name, transform=axes.transAxes, color=INK, fontsize=10, va="center")
