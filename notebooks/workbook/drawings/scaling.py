"""What more devices bring and what larger batches cost: efficiencies, and loss curves that part."""

import math
from dataclasses import replace

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from bigtrain_nb.plots.canvas import INK, MEASURED, PREDICTED, canvas, grid, label, name_rows, side_text

STYLES = ("solid", (0, (5, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)))
APART = 0.065  # of the axes' height: labels closer than this would cover each other


def efficiency(speedup, devices):
    """Return the `Ratio` ``speedup`` divided by ``devices``: 1 where n devices do n times the work of one."""
    return replace(
        speedup,
        median=speedup.median / devices,
        low=speedup.low / devices,
        high=speedup.high / devices,
    )


def efficiency_figure(rows, predicted=None) -> Figure:
    """One bar for each row, filled up to its efficiency; what is missing to the ideal is named as loss.

    `rows`: {name: efficiency}, a number of which 1 is ideal, or an object with median, low and high.
    `predicted`: {name: efficiency}, drawn as diamonds.
    """
    predicted = predicted or {}
    figure, (axes,) = canvas(1.0 + 0.4 * len(rows))
    axes.axvline(1, color=INK, linewidth=1.2)
    key = ["blue: used", "grey: lost"]
    reach = [1.0]
    for y, (name, value) in enumerate(rows.items()):
        middle = getattr(value, "median", value)
        reach.append(middle)
        axes.barh(y, 1, height=0.56, color=INK, alpha=0.08)
        axes.barh(y, middle, height=0.56, color=MEASURED)
        if hasattr(value, "median"):
            axes.hlines(
                y,
                value.low,
                value.high,
                color=INK,
                linewidth=2.5,
            )
            reach.append(value.high)
            key.append("line: interval")
        if name in predicted:
            axes.plot(
                predicted[name],
                y,
                "D",
                color=PREDICTED,
                markeredgecolor="white",
                markersize=9,
            )
            reach.append(predicted[name])
            key.append("diamond: your prediction")
        side_text(axes, y, _loss(middle))
    name_rows(axes, list(rows))
    axes.set_xlim(0, 1.04 * max(reach))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    named_once = ", ".join(dict.fromkeys(key))
    label(axes, f"efficiency, in % of the ideal (upright line)\n{named_once}")
    return figure


def curves_figure(curves, x="epoch") -> Figure:
    """Losses on a logarithmic axis, one line for each of ``curves``, named at its end.

    `curves`: {name: [loss, ...]}, all above zero; what is not finite is left out. The first is the one to compare with.
    """
    figure, (axes,) = canvas(3.6)
    axes.set_yscale("log")
    ends = {}
    for place, (name, losses) in enumerate(curves.items()):
        colour, width = (INK, 2.5) if place == 0 else (MEASURED, 1.8)
        shown = [loss if math.isfinite(loss) else math.nan for loss in losses]
        epochs = range(1, len(shown) + 1)
        style = STYLES[place % len(STYLES)]
        axes.plot(
            epochs,
            shown,
            color=colour,
            linewidth=width,
            linestyle=style,
            marker="o",
            markersize=4,
        )
        ends[name] = [loss for loss in shown if not math.isnan(loss)][-1]
    low, high = axes.get_ylim()
    free = 0.0
    for name, loss in sorted(ends.items(), key=lambda end: end[1]):
        height = math.log(loss / low) / math.log(high / low)
        height = max(height, free)
        free = height + APART
        axes.text(
            1.02,
            height,
            name,
            transform=axes.transAxes,
            color=INK,
            fontsize=10,
            va="center",
        )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    grid(axes, "y")
    label(axes, x, "loss")
    return figure


def _loss(efficiency):
    lost = round(100 * (1 - efficiency))
    return f"{-lost} % gained" if lost < 0 else f"{lost} % lost"
