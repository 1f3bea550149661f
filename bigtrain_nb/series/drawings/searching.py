"""Hyperparameter search: stopped trials, the cost of reaching a loss, the true gain of a winner, a scaling law."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bigtrain_nb.plots.canvas import INK, MEASURED, PREDICTED, canvas, grid, label, name_rows, side_text
from bigtrain_nb.series.drawings.dots import name_lines

DASHED = (0, (3, 1.5))


def pruned_figure(curves, stops) -> Figure:
    """The loss of each trial over the epochs, as a thin dashed line after the rule has stopped it.

    `curves`: one list of losses per trial. `stops`: the number of epochs that each may run.
    """
    figure, (axes,) = canvas(3.4)
    for losses, stop in zip(curves, stops, strict=True):
        epochs = np.arange(1, len(losses) + 1)
        axes.plot(epochs, losses, color=INK, alpha=0.35, linewidth=0.9, linestyle=DASHED)
        axes.plot(epochs[:stop], losses[:stop], color=MEASURED, linewidth=1.8)
        if stop < len(losses):
            axes.plot(stop, losses[stop - 1], "X", color=PREDICTED, markersize=8, markeredgewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    grid(axes, "y")
    label(axes, "epoch\nblue: runs, orange: stopped here, dashed: how it would have gone on", "loss")
    return figure


def reached_figure(spent, unit) -> Figure:
    """The share of each search method's repetitions that have reached the loss, over the cost.

    `spent`: {method: one cost in ``unit`` per repetition}, two methods.
    """
    figure, (axes,) = canvas(3.0)
    for (way, costs), color in zip(spent.items(), (PREDICTED, MEASURED), strict=True):
        ordered = np.sort(costs)
        share = np.arange(1, len(ordered) + 1) / len(ordered)
        axes.step(ordered, 100 * share, color=color, linewidth=2, where="post")
        there = np.quantile(ordered, 0.8)
        place = (10, -14) if color == PREDICTED else (-10, 6)
        side = "left" if color == PREDICTED else "right"
        axes.annotate(way, (there, 80), place, textcoords="offset points", ha=side, color=INK, fontsize=10)
    axes.set_xlim(0, max(np.quantile(costs, 0.97) for costs in spent.values()))
    grid(axes, "y")
    label(axes, unit, "% of searches that\nhave reached the loss")
    return figure


def seeds_figure(losses) -> Figure:
    """One row per choice, a dot per seed, a bar for the mean. `losses`: {choice: one loss per seed}."""
    figure, (axes,) = canvas(0.9 + 0.42 * len(losses))
    for row, values in enumerate(losses.values()):
        axes.plot(values, [row] * len(values), "o", color=MEASURED, alpha=0.55, markersize=8, markeredgewidth=0)
        axes.plot([np.mean(values)] * 2, [row - 0.3, row + 0.3], color=PREDICTED, linewidth=2.5)
        side_text(axes, row, f"{np.mean(values):.3f}")
    name_rows(axes, list(losses))
    grid(axes, "x")
    label(axes, "loss on new text; a dot is a seed, the bar their mean")
    return figure


def curse_figure(trials, seen, true) -> Figure:
    """The apparent and the true gain of the winner, over the number of trials in a search."""
    figure, (axes,) = canvas(3.0)
    for values, color, words in ((seen, PREDICTED, "what the search shows"), (true, MEASURED, "what fresh seeds show")):
        axes.plot(trials, values, "o-", color=color, linewidth=2, markersize=5)
        axes.annotate(words, (trials[-1], values[-1]), (-6, 9), textcoords="offset points", ha="right", color=INK)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_ylim(0, 1.2 * max(seen))
    grid(axes, "y")
    label(axes, "trials in a search", "gain of the winner, in\nspreads of the settings")
    return figure


def law_figure(sizes, losses, line, band, new_size, new_loss) -> Figure:
    """Losses over model sizes, the fitted law with its interval, and the loss of a model that was not fitted.

    `band`: lower bound, middle and upper bound of the law at the sizes `line`, [3, points].
    """
    figure, (axes,) = canvas(3.4)
    low, middle, high = band
    axes.fill_between(line, low, high, color=PREDICTED, alpha=0.18, linewidth=0)
    axes.plot(line, middle, color=PREDICTED, linewidth=1.8)
    axes.plot(sizes, losses, "o", color=MEASURED, markersize=7, markeredgewidth=0)
    axes.plot(new_size, new_loss, "D", color=MEASURED, markersize=9, markeredgewidth=0)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:,g}")
    grid(axes, "y")
    label(axes, "parameters\ndots: fitted, diamond: trained after the prediction, band: 90 % interval", "loss")
    return figure


def spreads_figure(spreads) -> Figure:
    """The standard deviation of the activations over the layers, one line per initializer.

    `spreads`: {initializer: one standard deviation per layer}.
    """
    figure, (axes,) = canvas(3.8)
    ends = {}
    for name, values in spreads.items():
        axes.plot(np.arange(1, len(values) + 1), values, "o-", color=MEASURED, linewidth=1.8, markersize=4)
        ends[name] = values[-1]
    axes.set_yscale("log")
    name_lines(axes, ends, apart=0.09)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    grid(axes, "y")
    label(axes, "layer", "standard deviation\nof the activations")
    return figure
