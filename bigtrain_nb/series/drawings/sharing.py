"""The timeline of a link and a device in a fully sharded step; the cost of communication by batch size."""

from operator import attrgetter

from matplotlib.figure import Figure

from bigtrain_nb.plots.canvas import GREEN, INK, MEASURED, PREDICTED, canvas, grid, key, label
from bigtrain_nb.series.drawings.clocks import clock, draw_box, say_once

DONE = {  # by kind: box color, text color, label
    "forward": (MEASURED, "white", "forward"),
    "backward": (PREDICTED, "white", "backward"),
    "gather": ("#aecbf0", INK, "gathers weights"),
    "scatter": (GREEN, "white", "reduce-scatters gradients"),
}
"""Colors as in the pipeline and memory figures: gathered weights light blue, gradients green."""
WAITING = "#e4e5e7"
LINES = (MEASURED, PREDICTED, GREEN)


def clock_figure(steps) -> Figure:
    """The timeline of each step, one row for the link and one for the device; boxes show the layer's number.

    `steps`: {name: [span, ...]}; a span has lane, kind, layer, start and end, in milliseconds. Gray: the device waits.
    The heading of a step gives its end, and the device's total waiting time.
    """
    last = max(span.end for spans in steps.values() for span in spans)
    waiting = {name: _waiting(spans) for name, spans in steps.items()}
    heads = {}
    for name, spans in steps.items():
        end, waits = max(span.end for span in spans), sum(end - start for start, end in waiting[name])
        heads[name] = f"{name}: the step ends at {end:.1f} ms, the device waits for {waits:.1f} ms"
    groups = dict.fromkeys(heads.values(), ("link", "device"))
    below = "milliseconds on the clock, with the number of the layer"
    figure, axes, places = clock(groups, last, below, room=0.17)
    for name, spans in steps.items():
        for lane in ("link", "device"):
            y = places[heads[name], lane]
            own = sorted((span for span in spans if span.lane == lane), key=attrgetter("start"))
            for span in own:
                colour, ink, _ = DONE[span.kind]
                draw_box(axes, span.start, span.end, y, colour, str(span.layer), ink)
            say_once(axes, [(span.start, DONE[span.kind][-1]) for span in own], y)
        for start, end in waiting[name]:
            draw_box(axes, start, end, y, WAITING, "waits", INK)
    return figure


def _waiting(spans):
    """Return the (start, end) of each of the device's waits: for the link, and finally for the gradients to arrive."""
    gaps, free_at = [], 0.0
    for span in sorted(spans, key=attrgetter("start")):
        if span.lane == "device":
            if span.start > free_at:
                gaps.append((free_at, span.start))
            free_at = span.end
    end = max(span.end for span in spans)
    return [*gaps, (free_at, end)] if end > free_at else gaps


def slower_figure(slower, limits) -> Figure:
    """Step time as a multiple of compute time, over the tokens per device; one line per link.

    `slower`: {link: {tokens: multiple}}; `limits`: {link: tokens}, dashed vertical lines in the link's color.
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
    label(axes, below, "step time / compute time")
    key(figure, lines)
    return figure
