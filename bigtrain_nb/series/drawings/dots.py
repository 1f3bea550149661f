"""Measurements as dots, predictions as a line."""

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
