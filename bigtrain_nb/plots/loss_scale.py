"""The loss scale of a training, step by step."""

import math

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from bigtrain_nb.plots.canvas import MEASURED, PREDICTED, canvas, grid, label


def loss_scale_figure(scale, skipped, what="training step") -> Figure:
    """The loss scale after each training step, on an axis of powers of two; skipped steps have a cross.

    `scale`: numbers; those that a logarithm cannot show (0, infinity) leave a gap. `skipped`: a bool for each.
    `what`: the name of an entry, where it is not one step. Raises ValueError for no entries or unlike lengths.
    """
    scale, skipped = list(map(float, scale)), list(skipped)
    if not scale or len(scale) != len(skipped):
        raise ValueError(f"scale has {len(scale)} entries, skipped has {len(skipped)}; expected as many, at least one")
    figure, axes = canvas(2.9)
    shown = [value if 0 < value < math.inf else math.nan for value in scale]
    axes.stairs(shown, [step + 0.5 for step in range(len(shown) + 1)], baseline=None, color=MEASURED, linewidth=1.8)
    marked = [step for step, was_skipped in enumerate(skipped, 1) if was_skipped]
    axes.plot(marked, [shown[step - 1] for step in marked], "x", color=PREDICTED, markersize=8, markeredgewidth=2)
    axes.set_yscale("log", base=2)
    lowest, highest = min(filter(math.isfinite, shown), default=1), max(filter(math.isfinite, shown), default=1)
    axes.set_ylim(lowest / 2.5, highest * 2.5)
    axes.yaxis.set_major_locator(LogLocator(base=2, numticks=8))
    axes.yaxis.set_major_formatter(lambda value, _: f"$2^{{{round(math.log2(value))}}}$")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True, min_n_ticks=1))
    grid(axes, "y")
    label(axes, f"{what}\n{len(marked)} of {len(scale)} skipped (crosses)", "loss scale")
    return figure
