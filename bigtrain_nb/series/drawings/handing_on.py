"""Handing a model on: what a teacher brings, what adapting forgets, and how many tokens readers get."""

import numpy as np
from matplotlib.figure import Figure

from bigtrain_nb.plots.canvas import INK, MEASURED, PREDICTED, canvas, grid, key, label, name_rows, side_text


def pairs_figure(losses, title) -> Figure:
    """One row for each way to train, with a dot for each seed; a line joins the dots of one seed.

    `losses`: {way: one loss for each seed}.
    """
    figure, (axes,) = canvas(1.0 + 0.55 * len(losses))
    rows = range(len(losses))
    for of_one_seed in zip(*losses.values(), strict=True):
        axes.plot(of_one_seed, rows, color=INK, alpha=0.25, linewidth=1)
    for y, values in enumerate(losses.values()):
        axes.plot(values, [y] * len(values), "o", color=MEASURED, markersize=7)
        side_text(axes, y, f"mean {np.mean(values):.2f}")
    name_rows(axes, list(losses))
    axes.margins(x=0.08)
    grid(axes, "x")
    label(axes, title)
    return figure


def forgetting_figure(found) -> Figure:
    """The loss on the first text over that on the new one: a line for each way to adapt, a dot for each learning rate.

    `found`: {way: {rate: (loss on the new text, loss on the first text)}}, of three ways. The rate with the least loss
    on the new text has a ring.
    """
    figure, (axes,) = canvas(3.8)
    marks = {}
    for colour, (way, of_rates) in zip((INK, MEASURED, PREDICTED), found.items(), strict=True):
        new, first = zip(*of_rates.values(), strict=True)
        (marks[way],) = axes.plot(new, first, "o-", color=colour, markersize=6, linewidth=1.5)
        best = int(np.argmin(new))
        axes.plot(new[best], first[best], "o", color=colour, markersize=14, fillstyle="none", markeredgewidth=1.8)
    key(figure, marks)
    grid(axes, "both")
    label(axes, "loss on the new text\na dot is a learning rate, the ring the best one", "loss on the first text")
    return figure


def readers_figure(rates) -> Figure:
    """Tokens a second over the number of readers in a batch: of all together, and of each.

    `rates`: {readers: tokens a second of all together}.
    """
    figure, (axes,) = canvas(3.2)
    readers = list(rates)
    each = [rate / count for count, rate in rates.items()]
    marks = {}
    for colour, words, values in ((MEASURED, "all together", list(rates.values())), (PREDICTED, "each reader", each)):
        (marks[words],) = axes.plot(readers, values, "o-", color=colour, linewidth=2, markersize=6)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_ylim(bottom=0)
    key(figure, marks)
    grid(axes, "y")
    label(axes, "readers in a batch", "tokens a second")
    return figure
