"""Handing a model on: what a teacher brings, what pruning costs, who answered, and where latency breaks."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from bigtrain_nb.plots.canvas import INK, MEASURED, PREDICTED, canvas, grid, key, label, name_rows, side_text

DASHED = (0, (3, 1.5))


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


def zeros_figure(losses, sizes) -> Figure:
    """The loss over the share of zeros, and at each dot the size when zipped.

    `losses`: {share of zeros: loss}; `sizes`: {share of zeros: kB}.
    """
    figure, (axes,) = canvas(3.0)
    shares = [100 * share for share in losses]
    axes.plot(shares, losses.values(), "o-", color=MEASURED, markersize=7, linewidth=1.6)
    for share, loss in losses.items():
        where = {"textcoords": "offset points", "ha": "center", "color": INK, "fontsize": 9}
        axes.annotate(f"{sizes[share]:.0f} kB", (100 * share, loss), (0, 9), **where)
    axes.margins(x=0.08, y=0.18)
    grid(axes, "y")
    label(axes, "zeros, % of the weights in matrices\nat each dot: the size when zipped", "loss")
    return figure


def answered_figure(answers, published) -> Figure:
    """One row for each client, a mark for each answer in the colour of the version that gave it.

    `answers`: a list of (second, client, version); `published`: the second when version 2 was put into the folder.
    """
    figure, (axes,) = canvas(2.6)
    clients = sorted({client for _, client, _ in answers})
    marks = {}
    for version, colour in {1: MEASURED, 2: PREDICTED}.items():
        mine = [(second, clients.index(client)) for second, client, which in answers if which == version]
        seconds, rows = zip(*mine, strict=True) if mine else ((), ())
        (marks[f"version {version}"],) = axes.plot(seconds, rows, "|", color=colour, markersize=16, alpha=0.7)
    axes.axvline(published, color=INK, linewidth=1.2, linestyle=":")
    name_rows(axes, clients)
    key(figure, marks)
    label(axes, "seconds\ndotted: version 2 was put into the folder")
    return figure


def load_figure(measured) -> Figure:
    """The latency over the rate of requests: solid the median, dashed what 95 % of the requests stay below.

    `measured`: {name: {requests a second: latencies in seconds}}, of two servers.
    """
    figure, (axes,) = canvas(3.4)
    marks = {}
    for colour, (name, latencies) in zip((MEASURED, PREDICTED), measured.items(), strict=True):
        medians = [1000 * np.median(seconds) for seconds in latencies.values()]
        tails = [1000 * np.quantile(seconds, 0.95) for seconds in latencies.values()]
        (line,) = axes.plot(list(latencies), medians, "o-", color=colour, linewidth=2, markersize=6)
        (tail,) = axes.plot(list(latencies), tails, "o", linestyle=DASHED, color=colour, linewidth=1.5, markersize=4)
        marks |= {f"{name}, median": line, f"{name}, 95 %": tail}
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(left=0)
    key(figure, marks)
    grid(axes, "y")
    label(axes, "requests a second", "latency (ms)")
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
