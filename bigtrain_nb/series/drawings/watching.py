"""Timelines of threads or workers, loss spikes, and the cost of checkpoints over their interval."""

from matplotlib.figure import Figure

from bigtrain_nb.plots.canvas import GREEN, INK, MEASURED, PREDICTED, canvas, grid, key, label, name_rows
from bigtrain_nb.series.drawings.dots import dots_and_line

SHADES = ((MEASURED, 1.0), (PREDICTED, 0.9), (INK, 0.45), (MEASURED, 0.4), (PREDICTED, 0.4))


def timeline_figure(rows, unit) -> Figure:
    """A timeline with one row per name.

    `rows`: {name: [(start, end, activity)]}, times in `unit`; None draws no axis.
    """
    figure, (axes,) = canvas(1.2 + 0.42 * len(rows))
    name_rows(axes, list(rows))
    bars = {}
    for y, spans in enumerate(rows.values()):
        for start, end, what in spans:
            if what not in bars:
                shade = SHADES[len(bars) % len(SHADES)]
            else:
                shade = bars[what].patches[0].get_facecolor()
            drawn = axes.barh(y, end - start, left=start, height=0.62, color=shade)
            bars.setdefault(what, drawn)
    if unit is None:
        axes.set_xticks([])
    label(axes, "time" if unit is None else f"time, {unit}")
    key(figure, bars)
    return figure


def interval_figure(measured, predicted, marks) -> Figure:
    """The percentage of time lost, over the checkpoint interval.

    `measured`, `predicted`: {hours between checkpoints: percent}; `marks`: {name: hours}, a vertical line each.
    """
    figure, (axes,) = canvas(3.4)
    dots_and_line(axes, measured, predicted, "{:.0f} %".format, (0, 9))
    axes.set_xscale("log")
    axes.set_ylim(0, 1.3 * max(measured.values()))
    for place, (name, hours) in enumerate(marks.items()):
        axes.axvline(hours, color=INK, alpha=0.5, linewidth=1)
        height = (1.22 - 0.11 * place) * max(measured.values())
        axes.annotate(name, (hours, height), (4, 0), textcoords="offset points", color=INK, fontsize=10)
    grid(axes, "y")
    axes.set_xticks(list(measured), [f"{hours:g}" for hours in measured])
    axes.minorticks_off()
    label(axes, "hours between checkpoints\ndots: simulated failures, dashed: Daly's formula", "time lost, %")
    return figure


def spike_figure(norms, losses, every, bad) -> Figure:
    """The gradient norm and the loss over the steps on logarithmic axes, one line per training run.

    `norms`, `losses`: {run: [value after each epoch]}; `every`: steps per epoch; `bad`: the step with the bad batch, a
    vertical line.
    """
    figure, panels = canvas(3.4, columns=2)
    lines = {}
    for axes, told, what in zip(panels, (norms, losses), ("norm of the gradient", "loss on clean data"), strict=True):
        for (name, values), colour in zip(told.items(), (MEASURED, PREDICTED, GREEN), strict=False):
            steps = [every * (epoch + 1) for epoch in range(len(values))]
            (lines[name],) = axes.plot(steps, values, color=colour, linewidth=1.8)
        axes.axvline(bad, color=INK, alpha=0.45, linewidth=1, linestyle=":")
        axes.set_yscale("log")
        grid(axes, "y")
        axes.set_title(what, color=INK, fontsize=11)
        label(axes, "step")
    key(figure, lines)
    return figure
