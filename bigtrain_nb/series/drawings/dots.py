"""What was measured as dots, what a formula predicts as a line."""

from bigtrain_nb.plots.canvas import INK, MEASURED, PREDICTED


def dots_and_line(axes, measured, predicted, words, offset):
    """Draw what was measured as dots, each with its value in ``words``, and what was predicted as a dashed line.

    `measured`, `predicted`: {x: y}; `offset` of the words from their dot, in points.
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
