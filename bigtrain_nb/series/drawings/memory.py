"""Memory during a step, and the savings of activation checkpointing and chunked attention."""

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from bigtrain_nb.common.words import number
from bigtrain_nb.plots.canvas import INK, MEASURED, PREDICTED, canvas, grid, label
from bigtrain_nb.series.drawings.dots import dots_and_line


def course_figure(courses) -> Figure:
    """The memory timelines of two steps. `courses`: {name: MiB during each operation, in order}."""
    figure, (axes,) = canvas(3.2)
    for (name, course), color in zip(courses.items(), (MEASURED, PREDICTED), strict=True):
        axes.plot(range(len(course)), course, color=color, linewidth=1.5)
        fullest = max(range(len(course)), key=course.__getitem__)
        place = (fullest, course[fullest])
        axes.annotate(name, place, (6, 4), textcoords="offset points", color=color, fontsize=10)
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.18 * max(map(max, courses.values())))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    grid(axes, "y")
    label(axes, "operations of the step, in order", "planned memory, MiB\nwithout weights and optimizer state")
    return figure


def segments_figure(networks) -> Figure:
    """Peak memory over the layers per recomputed segment, one panel per network: dots measured, line by formula.

    `networks`: {name: ({layers per segment: MiB measured}, the same by formula)}.
    """
    figure, panels = canvas(3.4, len(networks))
    for axes, (name, (measured, predicted)) in zip(panels, networks.items(), strict=True):
        dots_and_line(axes, measured, predicted, number, offset=(-10, 10))
        sizes = sorted(measured)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(sizes[0] / 1.3, 1.5 * sizes[-1])
        axes.set_title(name, color=INK, fontsize=10)
        grid(axes, "y")
        label(axes, "layers in a segment")
    highest = max(max(*measured.values(), *predicted.values()) for measured, predicted in networks.values())
    panels[0].set_ylim(0, 1.18 * highest)
    label(panels[0], "layers in a segment", "peak memory, MiB\ndot: measured, dashed: formula")
    return figure


def lengths_figure(measured, one_table) -> Figure:
    """Memory of an attention layer's step over the sequence length, both axes logarithmic.

    `measured`: {name: {length: MiB}} for two implementations; `one_table`: {length: MiB of one attention matrix}.
    """
    figure, (axes,) = canvas(3.4)
    lengths = sorted(one_table)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    tables = [one_table[length] for length in lengths]
    axes.plot(lengths, tables, color=PREDICTED, linestyle=(0, (4, 2)), linewidth=2)
    axes.annotate("one attention matrix", (lengths[-1], tables[-1]), (10, -4), textcoords="offset points", color=INK)
    for (name, peaks), shape in zip(measured.items(), ("o", "s"), strict=True):
        axes.plot(lengths, [peaks[length] for length in lengths], shape, color=MEASURED, markersize=8)
        axes.annotate(name, (lengths[-1], peaks[lengths[-1]]), (10, -4), textcoords="offset points", color=INK)
        for length in lengths:
            place = (length, peaks[length])
            axes.annotate(number(peaks[length]), place, (-6, 9), textcoords="offset points", color=INK, fontsize=9)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set_xlim(lengths[0] / 1.3, 3 * lengths[-1])
    axes.set_ylim(top=2 * max(max(peaks.values()) for peaks in measured.values()))
    grid(axes, "both")
    label(axes, "positions in the sequence", "peak memory, MiB")
    return figure
