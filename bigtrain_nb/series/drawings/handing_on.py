"""Handing a model on: the gain from a teacher, the cost of pruning and adapting, and the tokens/s of requests."""

import numpy as np
from matplotlib.figure import Figure

from bigtrain_nb.plots.canvas import INK, MEASURED, PREDICTED, canvas, grid, key, label, name_rows, side_text
from bigtrain_nb.series.drawings.dots import name_lines

OF_WAYS = ((INK, "s"), (MEASURED, "o"), (PREDICTED, "D"))


def pairs_figure(losses, title) -> Figure:
    """The loss of each seed as a dot, one row per training method; a line joins the dots of one seed.

    `losses`: {method: one loss per seed}.
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


def pruning_figure(losses) -> Figure:
    """Loss over sparsity, right after pruning and after fine-tuning.

    `losses`: {sparsity: (loss after pruning, loss after fine-tuning)}.
    """
    figure, (axes,) = canvas(2.9)
    marks = {}
    percent = [100 * sparsity for sparsity in losses]
    at_once, after = zip(*losses.values(), strict=True)
    for colour, words, values in ((INK, "pruned", at_once), (MEASURED, "fine-tuned, mask kept", after)):
        (marks[words],) = axes.plot(percent, values, "o-", color=colour, linewidth=2, markersize=6)
    axes.set_ylim(bottom=0)
    key(figure, marks)
    grid(axes, "y")
    label(axes, "sparsity, % of the weights that are zero", "loss")
    return figure


def forgetting_figure(found) -> Figure:
    """Losses on the new and the original text over the learning rate, in two panels; one line per adaptation method.

    `found`: {method: {learning rate: (loss on the new text, loss on the original text)}}, three methods. In both panels
    a ring marks the learning rate with the lowest loss on the new text.
    """
    figure, panels = canvas(4.9, rows=2)
    titles = ("What it learns: the loss on the new text", "What it forgets: the loss on the first text")
    for place, (axes, title) in enumerate(zip(panels, titles, strict=True)):
        ends = {}
        for (colour, shape), (way, of_rates) in zip(OF_WAYS, found.items(), strict=True):
            rates = sorted(of_rates)
            losses = [of_rates[rate][place] for rate in rates]
            best = min(rates, key=of_rates.get)
            axes.plot(rates, losses, shape, linestyle="-", color=colour, markersize=6, linewidth=1.8)
            axes.plot(
                best, of_rates[best][place], "o", color=colour, markersize=15, fillstyle="none", markeredgewidth=1.8
            )
            ends[way] = losses[-1]
        axes.set_xscale("log")
        axes.set_xlim(rates[0] / 1.2, 1.2 * rates[-1])
        axes.margins(y=0.15)
        axes.set_xticks(rates, [np.format_float_positional(rate, trim="-") for rate in rates])
        axes.minorticks_off()
        axes.set_title(title, loc="left", color=INK, fontsize=10, fontweight="bold")
        grid(axes, "both")
        label(axes, "", "loss")
        name_lines(axes, ends, apart=0.13)
    label(panels[-1], "learning rate\nring: the learning rate with the lowest loss on the new text", "loss")
    return figure


def requests_figure(rates) -> Figure:
    """Tokens per second over the number of requests in a batch: in total and per request.

    `rates`: {requests: total tokens per second}.
    """
    figure, (axes,) = canvas(3.2)
    requests = list(rates)
    each = [rate / count for count, rate in rates.items()]
    marks = {}
    for colour, words, values in ((MEASURED, "all together", list(rates.values())), (PREDICTED, "each request", each)):
        (marks[words],) = axes.plot(requests, values, "o-", color=colour, linewidth=2, markersize=6)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_ylim(bottom=0)
    key(figure, marks)
    grid(axes, "y")
    label(axes, "requests in a batch", "tokens per second")
    return figure
