"""Servers: how staleness limits the learning rate, and which elements arrive."""

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, NullLocator

from bigtrain_nb.plots.canvas import GREEN, INK, MEASURED, PREDICTED, PURPLE, canvas, grid, label, name_rows, side_text

DASHED = (0, (3, 1.5))
OF_STALENESSES = (INK, MEASURED, GREEN, PURPLE)


def staleness_figure(rates, losses, limits, measured) -> Figure:
    """The loss over the learning rate, one line per staleness; dotted lines show the theoretical limit of divergence.

    `losses`: {staleness: one loss per learning rate}. `limits`: {staleness: learning rate}. `measured`: the losses with
    the measured staleness, as a dashed line.
    """
    figure, (axes,) = canvas(3.6)
    start = losses[0][0]
    for colour, (staleness, values) in zip(OF_STALENESSES, losses.items(), strict=True):
        axes.plot(rates, values, color=colour, linewidth=2)
        axes.axvline(limits[staleness], color=colour, linewidth=1.2, linestyle=":")
        axes.annotate(
            f"staleness {staleness} ",
            (limits[staleness], 0.03),
            xycoords=axes.get_xaxis_transform(),
            rotation=90,
            ha="right",
            va="bottom",
            color=colour,
            fontsize=9,
        )
    axes.plot(rates, measured, color=PREDICTED, linewidth=2, linestyle=DASHED)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(min(rates), max(rates))
    axes.set_ylim(0.1 * min(losses[0]), 10 * start)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    grid(axes, "y")
    label(axes, "learning rate\nsolid: this staleness, dashed: the measured one, dotted: theoretical limit", "loss")
    return figure


def arrived_figure(arrived, count) -> Figure:
    """One row per policy, one square per element; darker if it arrived more often.

    `arrived`: {policy: {element: number of arrivals}}; elements are integers below ``count``.
    """
    figure, (axes,) = canvas(0.9 + 0.36 * len(arrived))
    most = max(max(times.values()) for times in arrived.values())
    for y, times in enumerate(arrived.values()):
        for x in range(count):
            often = times.get(x, 0)
            colour = (MEASURED, often / most) if often else (INK, 0.08)
            axes.add_patch(Rectangle((x - 0.42, y - 0.36), 0.84, 0.72, linewidth=0, facecolor=colour))
        side_text(axes, y, f"{sum(times.values())} received")
    axes.set_xlim(-0.5, count - 0.5)
    name_rows(axes, list(arrived))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    label(axes, "element\nlight blue: received once, dark blue: twice")
    return figure
