"""What more devices bring and what larger batches cost: efficiencies, and loss curves that part."""

import math
from dataclasses import replace
from itertools import cycle

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from bigtrain_nb.plots.canvas import INK, MEASURED, PREDICTED, canvas, grid, label, name_rows, side_text

STYLES = ("solid", (0, (5, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5)))
APART = 0.065  # of the axes' height: labels closer than this would cover each other


def efficiency(speedup, devices):
    """Return the `Ratio` ``speedup`` divided by ``devices``: 1 where n devices do n times the work of one."""
    return replace(speedup, **{end: getattr(speedup, end) / devices for end in ("median", "low", "high")})


def efficiency_figure(rows, predicted=None) -> Figure:
    """One bar for each row, filled up to its efficiency; what is missing to the ideal is named as loss.

    `rows`: {name: efficiency}, a number of which 1 is ideal, or an object with median, low and high.
    `predicted`: {name: efficiency}, drawn as diamonds.
    Raises ValueError for no rows and for a prediction of a row that is not there.
    """
    if not rows:
        raise ValueError("rows: nothing to draw; expected at least one {name: efficiency}")
    predicted = predicted or {}
    if unknown := set(predicted) - set(rows):
        raise ValueError(f"predicted: no row named {sorted(unknown)[0]!r}; expected one of {', '.join(rows)}")
    figure, axes = canvas(1.0 + 0.4 * len(rows))
    axes.axvline(1, color=INK, linewidth=1.2)
    reach = [1.0, *predicted.values()]
    for y, (name, value) in enumerate(rows.items()):
        middle = getattr(value, "median", value)
        axes.barh(y, 1, height=0.56, color=INK, alpha=0.08)
        axes.barh(y, middle, height=0.56, color=MEASURED)
        if hasattr(value, "median"):
            axes.plot([value.low, value.high], [y, y], color=INK, linewidth=2.5, solid_capstyle="butt")
            reach.append(value.high)
        if name in predicted:
            axes.plot(predicted[name], y, "D", color=PREDICTED, markeredgecolor="white", markersize=9)
        reach.append(middle)
        side_text(axes, y, _loss(middle))
    axes.set_xlim(0, 1.04 * max(filter(math.isfinite, reach)))
    name_rows(axes, list(rows))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    key = ["blue: used", "grey: lost"]
    key += ["line: interval"] * any(hasattr(value, "median") for value in rows.values())
    key += ["diamond: your prediction"] * bool(predicted)
    label(axes, f"efficiency, in % of the ideal (upright line)\n{', '.join(key)}", "")
    return figure


def curves_figure(curves, x="epoch") -> Figure:
    """Losses on a logarithmic axis, one line for each of ``curves``, named at its end.

    `curves`: {name: [loss, ...]}, all above zero; what is not finite is left out. The first is the one to compare with.
    Raises ValueError if there is nothing to draw.
    """
    drawn = {name: _finite_points(losses) for name, losses in curves.items()}
    drawn = {name: points for name, points in drawn.items() if points}
    if not drawn:
        raise ValueError("curves: nothing to draw; expected at least one {name: [loss, ...]} with a finite loss")
    figure, axes = canvas(3.6)
    axes.set_yscale("log")
    for place, (points, style) in enumerate(zip(drawn.values(), cycle(STYLES))):  # noqa: B905
        color, width = (INK, 2.5) if place == 0 else (MEASURED, 1.8)
        axes.plot(*zip(*points, strict=True), color=color, linewidth=width, linestyle=style, marker="o", markersize=4)
    low, high = axes.get_ylim()
    ends = {name: math.log(points[-1][1] / low) / math.log(high / low) for name, points in drawn.items()}
    for name, height in _spread(ends).items():
        axes.text(1.02, height, name, transform=axes.transAxes, color=INK, fontsize=10, va="center")
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


def _finite_points(losses):
    return [(place, loss) for place, loss in enumerate(losses, start=1) if math.isfinite(loss)]


def _spread(heights):
    """Move heights (of the axes) up as far as needed to stand at least APART from each other."""
    moved, lowest = {}, -math.inf
    for name, height in sorted(heights.items(), key=lambda item: item[1]):
        lowest = moved[name] = max(height, lowest + APART)
    return moved
