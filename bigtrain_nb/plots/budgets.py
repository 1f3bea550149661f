"""Budgets as figures: memory by part, time by part, and what was predicted beside what was measured."""

import math
from textwrap import fill

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from bigtrain_nb.plan.breakdown import amount
from bigtrain_nb.plots.canvas import INK, MEASURED, PREDICTED, canvas, grid, label, name_rows, side_text

SHADES = {
    "weights": (MEASURED, 1.0),
    "16-bit copies": (MEASURED, 0.8),
    "cast copies": (MEASURED, 0.8),
    "gradients": (MEASURED, 0.6),
    "slots": (MEASURED, 0.4),
    "activations": (PREDICTED, 0.95),
    "logits": (PREDICTED, 0.7),
    "work": (PREDICTED, 0.45),
    "input": (INK, 0.65),
    "folded": (INK, 0.45),
    "idle": (INK, 0.2),
}
OTHER = (INK, 0.3)
LEGEND_COLUMNS = 4


def budget_figure(accounts, limits=None) -> Figure:
    """One bar of memory for each account, by part; upright lines where a device's memory ends.

    `accounts`: {name: `Account` of bytes}; `limits`: {name: bytes}, of which those far beyond every bar are left out.
    Raises ValueError for none.
    """
    if not accounts:
        raise ValueError("accounts: nothing to draw; expected at least one {name: account}")
    reach = max(account.total for account in accounts.values())
    limits = {name: size for name, size in (limits or {}).items() if size <= 2.5 * reach}
    figure, axes = canvas(1.5 + 0.5 * len(accounts) + 0.18 * len(limits))
    drawn = {}
    for y, account in enumerate(accounts.values()):
        left = 0.0
        for line in account.lines:
            colour, alpha = _shade(line.name)
            bar = axes.barh(y, line.value, 0.62, left, color=colour, alpha=alpha, edgecolor="white", linewidth=0.8)
            drawn.setdefault(line.name, bar)
            left += line.value
        side_text(axes, y, amount(account.total, "bytes"))
    for place, (name, size) in enumerate(limits.items()):
        axes.axvline(size, color=INK, linewidth=1.2, linestyle=(0, (3, 2)))
        at = size, -0.55 - 0.28 * place
        axes.annotate(name, at, (4, 0), textcoords="offset points", color=INK, fontsize=9, va="bottom")
    axes.set_xlim(0, 1.02 * max(reach, *limits.values()) if limits else 1.02 * reach)
    _byte_axis(axes, axes.get_xlim()[1])
    name_rows(axes, list(accounts))
    if limits:
        axes.set_ylim(len(accounts) - 0.5, -0.5 - 0.28 * (1 + len(limits)))
    axes.legend(
        drawn.values(), drawn, loc="upper center", bbox_to_anchor=(0.5, -0.35 / figure.get_figheight() - 0.14),
        ncols=LEGEND_COLUMNS, frameon=False, labelcolor=INK, fontsize=9, handlelength=1.2, columnspacing=1.2,
    )  # fmt: skip
    label(axes, "memory of a device", "")
    return figure


def step_figure(time) -> Figure:
    """The time of a step: computing and communication one after the other, input beside them. `time`: an `Account`."""
    parts = time.parts
    figure, axes = canvas(1.7)
    busy = parts["computing"], parts["communication"]
    axes.barh(0, busy[0], 0.6, color=MEASURED)
    axes.barh(0, busy[1], 0.6, busy[0], color=PREDICTED)
    axes.barh(1, parts["input"], 0.6, color=INK, alpha=0.5)
    axes.axvline(time.total, color=INK, linewidth=1.2)
    shown = [
        f"{amount(one, 's')} {name}" for name, one in zip(("computing", "communication"), busy, strict=True) if one
    ]
    side_text(axes, 0, "\n".join(shown))
    side_text(axes, 1, f"{amount(parts['input'], 's')} input")
    name_rows(axes, ["step", "beside it"])
    axes.set_xlim(0, 1.04 * max(time.total, 1e-12))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.xaxis.set_major_formatter(lambda value, _: amount(value, "s"))
    label(axes, f"blue: computing, orange: communication; the line: {amount(time.total, 's')} a step", "")
    return figure


def predicted_figure(rows, tolerance, unit) -> Figure:
    """Predicted over measured on logarithmic axes, with the line of equals and a band of ``tolerance`` around it.

    `rows`: (name, measured, predicted); names of rows outside the band are written. `tolerance`: 0.15 for 15 %;
    `unit`: "bytes" or "s". Raises ValueError for no rows and for values that are not above zero.
    """
    rows = list(rows)
    if not rows:
        raise ValueError("rows: nothing to draw; expected at least one (name, measured, predicted)")
    for name, *values in rows:
        if not all(0 < value < math.inf for value in values):
            raise ValueError(f"rows: {name!r} has {values}; expected numbers above zero")
    figure, axes = canvas(4.2)
    values = [value for _, *pair in rows for value in pair]
    ends = [min(values) / 1.4, max(values) * 1.4]
    axes.fill_between(
        ends, [(1 - tolerance) * e for e in ends], [(1 + tolerance) * e for e in ends], color=INK, alpha=0.1
    )
    axes.plot(ends, ends, color=INK, linewidth=1.2)
    for name, measured, predicted in rows:
        inside = abs(predicted / measured - 1) <= tolerance
        axes.plot(measured, predicted, "o", color=MEASURED if inside else PREDICTED, markersize=7, alpha=0.85)
        if not inside:
            away, side = (-9, "top") if predicted < measured else (9, "bottom")  # from the line
            place = {"xytext": (0, away), "textcoords": "offset points", "ha": "center", "va": side}
            axes.annotate(fill(name, 18), (measured, predicted), color=INK, fontsize=9, **place)
    for axis, set_scale in ((axes.xaxis, axes.set_xscale), (axes.yaxis, axes.set_yscale)):
        set_scale("log", base=2 if unit == "bytes" else 10)
        axis.set_major_locator(LogLocator(2, numticks=8) if unit == "bytes" else LogLocator(10, (1, 2, 5), numticks=8))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(lambda value, _: amount(value, unit))
    axes.set_xlim(ends)
    axes.set_ylim(ends)
    within = sum(abs(predicted / measured - 1) <= tolerance for _, measured, predicted in rows)
    label(axes, f"measured\nline: equal, band: {100 * tolerance:.0f} %; {within} of {len(rows)} within it", "predicted")
    return figure


def _shade(name):
    name = "slots" if name.endswith("slots") else name
    name = name.removeprefix("activations: ") if name.endswith("logits") else name.split(":")[0]
    return SHADES.get(name, OTHER)


def _byte_axis(axes, reach):
    unit = 2.0 ** (10 * int(math.log2(max(reach, 1)) // 10))
    step = next(s for s in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if reach / unit / s <= 6)
    axes.set_xticks([place * step * unit for place in range(int(reach / unit / step) + 1)])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / unit:g} {amount(unit, 'bytes').split()[1]}")
    grid(axes, "x")
