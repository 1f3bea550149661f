"""What a link and a device do in a step of fully sharded layers, and what sending costs by the size of the batch."""

from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from bigtrain_nb.plots.canvas import GREEN, MEASURED, PREDICTED, PURPLE, canvas, grid, key, label, name_rows

COLOURS = {"forward": MEASURED, "backward": PREDICTED, "gather": GREEN, "scatter": PURPLE}
LINES = (MEASURED, PREDICTED, GREEN)


def clock_figure(steps) -> Figure:
    """A row for the link and one for the device of each step: what they do, with the number of the layer.

    `steps`: {name: [span, ...]}, of which each has lane, kind, layer, start and end in milliseconds.
    """
    lanes = ("link", "device")
    names = [f"{name}, {lane}" for name in steps for lane in lanes]
    figure, (axes,) = canvas(1.4 + 0.42 * len(names))
    last = max(span.end for spans in steps.values() for span in spans)
    for number, spans in enumerate(steps.values()):
        for span in spans:
            _draw_span(axes, span, len(lanes) * number + lanes.index(span.lane), last)
    axes.set_xlim(0, last)
    name_rows(axes, names)
    label(axes, "milliseconds on the clock, with the number of the layer")
    key(figure, {kind: Patch(color=colour) for kind, colour in COLOURS.items()})
    return figure


def _draw_span(axes, span, y, last):
    length = span.end - span.start
    box = Rectangle((span.start, y - 0.4), length, 0.8, facecolor=COLOURS[span.kind], edgecolor="white")
    axes.add_patch(box)
    if length > 0.02 * last:
        middle = span.start + length / 2
        axes.text(middle, y, str(span.layer), ha="center", va="center", color="white", fontsize=9)


def slower_figure(slower, limits) -> Figure:
    """How many times as long a step takes as without any sending, by the tokens of a device; a line for each link.

    `slower`: {link: {tokens: times}}; `limits`: {link: tokens}, drawn as dashed upright lines in the link's colour.
    """
    figure, (axes,) = canvas(3.6)
    lines = {}
    for (link, by_tokens), colour in zip(slower.items(), LINES, strict=True):
        tokens = sorted(by_tokens)
        (lines[link],) = axes.plot(tokens, [by_tokens[each] for each in tokens], color=colour, linewidth=2)
        axes.axvline(limits[link], color=colour, linestyle=(0, (4, 2)), linewidth=1.2)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    tokens = sorted(next(iter(slower.values())))
    ticks = [2**n for n in range(0, 40, 2) if tokens[0] <= 2**n <= tokens[-1]]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_xlim(tokens[0], tokens[-1])
    highest = max(max(by_tokens.values()) for by_tokens in slower.values())
    marks = [2**n for n in range(12) if 2**n < 1.5 * highest]
    axes.set_yticks(marks, [f"{mark}x" for mark in marks])
    axes.minorticks_off()
    grid(axes, "y")
    below = "tokens of a device in a micro-batch\ndashed: the tokens that the formula asks for"
    label(axes, below, "step time / computing time")
    key(figure, lines)
    return figure
