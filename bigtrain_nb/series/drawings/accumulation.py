"""Effects of gradient accumulation: on memory, and, if it is wrong, on the weights."""

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from bigtrain_nb.common.words import number
from bigtrain_nb.plots.canvas import INK, MEASURED, PREDICTED, canvas, grid, label, name_rows, side_text

SMALLEST = 1e-8  # smaller distances, 0 included, are drawn here: float32 cannot resolve them


def distance_figure(wrong, right) -> Figure:
    """The distance of each method's final weights from those of full batches, one row each, on a logarithmic axis.

    `wrong`, `right`: {name: distance}; 1 is the distance that training itself moved the weights.
    """
    figure, (axes,) = canvas(1.3 + 0.36 * (len(wrong) + len(right)))
    axes.axvline(1, color=INK, linewidth=1.2)
    everything = {**wrong, **right}
    for y, (name, distance) in enumerate(everything.items()):
        drawn = max(distance, SMALLEST)
        if name in wrong:
            axes.plot(drawn, y, "X", color=PREDICTED, markersize=9)
        else:
            axes.plot(drawn, y, "o", color=MEASURED, markersize=8)
        words = f"{distance:.2g}" if distance < 0.001 else number(distance)
        side_text(axes, y, words)
    farthest = max(1.0, *everything.values())
    axes.set_xscale("log")
    axes.set_xlim(SMALLEST, 3 * farthest)
    axes.xaxis.set_minor_locator(NullLocator())
    name_rows(axes, list(everything))
    grid(axes, "x")
    label(
        axes,
        "distance to the weights of full batches\ncross: a mistake; dot: right; line: as far as training moved",
    )
    return figure


def passes_figure(steps) -> Figure:
    """The timeline of a step's passes, and its memory below on the same axis; one column per entry of ``steps``.

    `steps`: {title: (forward passes, backward passes, memory)}, passes as [(start, end), ...] and memory as [(time,
    MiB), ...], all times in seconds.
    """
    figure, panels = canvas(3.6, len(steps), rows=2)
    longest = max(1000 * (backward[-1][1] - forward[0][0]) for forward, backward, _ in steps.values())
    for place, (title, (forward, backward, memory)) in enumerate(steps.items()):
        passes, below = panels[place], panels[len(steps) + place]
        zero = forward[0][0]
        for y, (spans, color) in enumerate(((backward, PREDICTED), (forward, MEASURED))):
            bars = [(1000 * (start - zero), 1000 * (end - start)) for start, end in spans]
            passes.broken_barh(bars, (y - 0.3, 0.6), color=color)
        passes.set_yticks([1, 0], ["forward", "backward"])
        passes.set_title(title, color=INK, fontsize=10)

        times = [1000 * (time - zero) for time, _ in memory]
        mebibytes = [amount for _, amount in memory]
        below.fill_between(times, mebibytes, color=INK, alpha=0.15, linewidth=0)
        below.plot(times, mebibytes, color=INK, linewidth=1.2)
        below.set(xlim=(0, 1.02 * longest), ylim=(0, None))
        grid(below, "y")
        label(below, "milliseconds")
    label(panels[len(steps)], "milliseconds", "memory, MiB")
    return figure
