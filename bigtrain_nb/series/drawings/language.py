"""Documents in rows, what attention across documents costs, an order that is none, and where short rows are cheaper."""

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from bigtrain_nb.measure.intervals import mean_interval
from bigtrain_nb.plots.canvas import INK, MEASURED, PREDICTED, canvas, grid, key, label, name_rows, side_text

COLOURS = ("#2f7fd6", "#d4690f", "#5aa469", "#8e6bbf", "#c9a227", "#3aa6a6", "#b5576b")
"""Neighbouring documents have different ones; padding is light grey."""
PADDING = "#e6e8eb"


def rows_figure(ways) -> Figure:
    """Rows of tokens, one under the other, each document in a colour of its own, and beside them what is lost.

    `ways`: {name: (documents, words)}; documents [rows, places] are the numbers of the documents, -1 for padding, -2
    beside a row that is shorter.
    """
    figure, (axes,) = canvas(0.5 + 0.75 * len(ways))
    palette = ListedColormap([PADDING, *COLOURS])
    for y, (documents, _) in enumerate(ways.values()):
        colours = np.select([documents < -1, documents < 0], [-1, 0], 1 + documents % len(COLOURS))
        lines = np.repeat(colours, 4, axis=0)
        lines[3::4] = -1  # a white line below each row
        lines = np.ma.masked_less(lines, 0)
        extent = (0, documents.shape[1], y + 0.42, y - 0.42)
        axes.imshow(lines, palette, vmin=0, vmax=len(COLOURS), aspect="auto", extent=extent, interpolation="nearest")
    name_rows(axes, list(ways))
    axes.set_xlim(0, max(documents.shape[1] for documents, _ in ways.values()))
    for y, (_, words) in enumerate(ways.values()):
        side_text(axes, y, words)
    label(axes, "place in the row; a colour is a document, grey is padding")
    return figure


def places_figure(gains, places) -> Figure:
    """By how much a loss is lower, by the place of a token in its document: a dot for each seed, a bar for their mean.

    `gains`: for each seed one number for each of the `places`, which are names.
    """
    figure, (axes,) = canvas(3.0)
    axes.axhline(0, color=INK, linewidth=1)
    x = np.arange(len(places))
    mean, low, high = np.transpose([mean_interval(of_place) for of_place in np.transpose(gains)])
    bars = axes.vlines(x, low, high, color=MEASURED, linewidth=4, alpha=0.35)
    (means,) = axes.plot(x, mean, "_", color=MEASURED, markersize=16, markeredgewidth=2.5)
    for of_seed in gains:
        (seeds,) = axes.plot(x, of_seed, "o", color=PREDICTED, markersize=5, alpha=0.8)
    axes.set_xticks(x, places)
    grid(axes, "y")
    label(axes, "place of the token in its document", "gain, nats a token")
    key(figure, {"a seed": seeds, "mean": means, "95 % interval of the mean": bars})
    return figure


def halves_figure(counts) -> Figure:
    """How often a batch holds so many numbers of the lower half, for each way to shuffle.

    `counts`: {way: how many of each batch}.
    """
    figure, panels = canvas(2.6, len(counts))
    most = max(max(values) for values in counts.values())
    for axes, (way, values) in zip(panels, counts.items(), strict=True):
        places = np.arange(most + 1)
        axes.bar(places, [100 * np.mean(values == place) for place in places], width=0.8, color=MEASURED)
        axes.set_title(way, color=INK, fontsize=10, loc="left")
        grid(axes, "y")
        label(axes, "numbers from the lower half,\nin a batch of 32", "batches, %" if axes is panels[0] else "")
    return figure


def crossover_figure(packed, fitted, buckets, first_slower=None) -> Figure:
    """Tokens/s of packed rows by their length: measured, the line of a formula, and the level of rows in buckets.

    `packed`: {tokens in a row: tokens/s}, `fitted`: the same by the formula, `buckets`: tokens/s.
    `first_slower`: the shortest of the `fitted` rows that is slower than the buckets, if one is.
    """
    figure, (axes,) = canvas(3.2)
    lengths = sorted(fitted)
    (line,) = axes.plot(lengths, [fitted[length] for length in lengths], "--", color=INK, linewidth=1.2)
    (dots,) = axes.plot(list(packed), list(packed.values()), "o", color=MEASURED, markersize=7)
    level = axes.axhline(buckets, color=PREDICTED, linewidth=2)
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(0, 1.15 * max(*packed.values(), *fitted.values(), buckets))
    axes.yaxis.set_major_formatter("{x:,.6g}")
    grid(axes, "y")
    label(axes, "length of a packed row, tokens", "tokens/s")
    marks = {"packed rows": dots, "1 / (a + b · S), from the outer two dots": line, "short rows in buckets": level}
    if first_slower is not None:
        place = [first_slower], [fitted[first_slower]]
        (ring,) = axes.plot(*place, "o", color=PREDICTED, fillstyle="none", markersize=13, markeredgewidth=2)
        marks["first length at which the buckets are faster"] = ring
    key(figure, marks)
    return figure
