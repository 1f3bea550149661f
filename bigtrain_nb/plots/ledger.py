"""What each step of a tuning bought: speed, memory and loss side by side, with what was predicted."""

import math
import textwrap

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bigtrain_nb.common.words import number
from bigtrain_nb.plots.canvas import INK, MEASURED, PREDICTED, canvas, grid, label, name_rows, side_text

LEFT_OUT = 0.35  # how strong the colour of a step is that was measured and not kept
BEFORE = 0.4  # half the height of the mark for the way before, in rows
KEY_WIDTH = 80  # characters of a line of the key
PANELS = {"rate": "examples/s", "memory": "peak memory, MiB", "loss": "loss, nats a byte"}


def ledger_figure(entries) -> Figure:
    """One row for each entry, one panel each for examples/s (with its interval), MiB of memory and nats of loss.

    `entries`: objects with name, rate and before (a `Result` each, of the same rounds), memory, loss, predicted
    ({"rate", "memory" or "loss": value}) and kept, as in a `Ledger`; what is None is left blank. Raises ValueError for
    none.
    """
    entries = list(entries)
    if not entries:
        raise ValueError("entries: nothing to draw; expected at least one entry")
    figure, panels = canvas(1.3 + 0.36 * len(entries), columns=len(PANELS))
    for axes, (quantity, unit) in zip(panels, PANELS.items(), strict=True):
        reach = [value for y, entry in enumerate(entries) for value in _row(axes, y, entry, quantity)]
        _limits(axes, list(filter(math.isfinite, reach)), from_zero=quantity != "loss")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=3))
        axes.xaxis.set_major_formatter("{x:,g}")
        grid(axes, "x")
        axes.spines["left"].set_visible(False)
        label(axes, unit, "")
    name_rows(panels[0], [entry.name for entry in entries])
    for axes in panels[1:]:
        axes.tick_params(axis="y", length=0, labelleft=False)
    figure.suptitle(_key(entries), color=INK, fontsize=10, x=0.01, ha="left")
    return figure


def _row(axes, y, entry, quantity):
    """Draw one entry's quantity; return the values that must be in sight."""
    value, said = getattr(entry, quantity), entry.predicted.get(quantity)
    reach = []
    if value is not None:
        middle = getattr(value, "median", value)
        strength = 1.0 if entry.kept else LEFT_OUT
        if quantity == "loss":
            axes.plot(middle, y, "o", color=MEASURED, alpha=strength, markersize=8)
        else:
            axes.barh(y, middle, height=0.56, color=MEASURED, alpha=strength)
        if hasattr(value, "median"):
            axes.plot([value.low, value.high], [y, y], color=INK, linewidth=2, solid_capstyle="butt")
            reach.append(value.high)
        side_text(axes, y, number(middle))
        reach.append(middle)
    if quantity == "rate" and entry.before is not None:
        axes.plot([entry.before.median] * 2, [y - BEFORE, y + BEFORE], color=INK, linewidth=2, linestyle=(0, (1, 1)))
        reach.append(entry.before.median)
    if said is not None:
        axes.plot(said, y, "D", color=PREDICTED, markeredgecolor="white", markersize=8)
        reach.append(said)
    return reach


def _limits(axes, reach, from_zero):
    low, high = min(reach, default=0.0), max(reach, default=1.0)
    margin = 0.15 * (high - low) or 0.1 * high
    axes.set_xlim((0, 1.05 * high) if from_zero else (max(0, low - margin), high + margin))


def _key(entries):
    key = ["blue: measured"]
    key += ["pale: not kept"] * any(not entry.kept for entry in entries)
    key += ["line: interval"] * any(entry.rate is not None for entry in entries)
    key += ["dots: the way before, in the same rounds"] * any(entry.before is not None for entry in entries)
    key += ["diamond: your prediction"] * any(entry.predicted for entry in entries)
    return textwrap.fill(", ".join(key), KEY_WIDTH)
