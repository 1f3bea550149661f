"""A pipeline's order on a clock; which device has which part of causal attention."""

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from bigtrain_nb.plots.canvas import GREEN, INK, MEASURED, PREDICTED, PURPLE, canvas, label, name_rows

COLOURS = {"forward": MEASURED, "backward": PREDICTED}
COLOURS_OF_LATER_RUNS = {"forward": "#1c5596", "backward": "#94490a"}
ROOM_FOR_A_NUMBER = 0.025  # of the clock: in half of that, numbers of neighbours run together
OF_DEVICES = (MEASURED, PREDICTED, GREEN, PURPLE)


def order_figure(orders, unit="") -> Figure:
    """One row for each stage of each schedule: its passes as boxes on a clock, wide ones with their micro-batch.

    `orders`: {schedule: [pass, ...]}, of which each has stage, kind, micro_batch, start and end, these in ``unit``.
    """
    names = []
    places = {}
    for schedule, passes in orders.items():
        stages = sorted({each.stage for each in passes})
        for stage in stages:
            places[schedule, stage] = len(names)
            names.append(f"{schedule}, stage {stage}")
    figure, (axes,) = canvas(0.9 + 0.36 * len(names))
    last = max(each.end for passes in orders.values() for each in passes)
    for place, (schedule, passes) in enumerate(orders.items()):
        if place:
            axes.axhline(places[schedule, 0] - 0.5, color=INK, linewidth=0.8)
        for each in passes:
            _draw_pass(axes, each, places[schedule, each.stage], ROOM_FOR_A_NUMBER * last)
    axes.set_xlim(0, last)
    name_rows(axes, names)
    marks = "blue: forward, orange: backward, with the number of the micro-batch"
    if any(each.run for passes in orders.values() for each in passes):
        marks += "\ndarker: runs of layers after the first; narrow boxes have no number"
    label(axes, f"time on the clock{', ' + unit if unit else ''}\n{marks}")
    return figure


def _draw_pass(axes, each, y, room):
    length = each.end - each.start
    box = Rectangle(
        (each.start, y - 0.4),
        length,
        0.8,
        facecolor=(COLOURS_OF_LATER_RUNS if each.run else COLOURS)[each.kind],
        edgecolor="white",
    )
    axes.add_patch(box)
    middle = each.start + length / 2
    if length >= room:
        axes.text(middle, y, str(each.micro_batch), ha="center", va="center", color="white", fontsize=9)


def balance_figure(cuts) -> Figure:
    """Causal attention in squares, one panel for each way to cut the sequence: who computes which.

    `cuts`: {name: [[part, ...] of each device]}, with parts numbered from the beginning of the sequence.
    """
    figure, panels = canvas(3.6, columns=len(cuts))
    for axes, (name, cut) in zip(panels, cuts.items(), strict=True):
        parts = sum(len(own) for own in cut)
        for device, own in enumerate(cut):
            for row in own:
                for column in range(row + 1):
                    box = Rectangle((column, row), 1, 1, facecolor=OF_DEVICES[device], edgecolor="white")
                    axes.add_patch(box)
                    axes.text(column + 0.5, row + 0.5, str(device), ha="center", va="center", color="white", fontsize=9)
        axes.set_xlim(0, parts)
        axes.set_ylim(parts, 0)
        axes.set_aspect("equal")
        middles = [part + 0.5 for part in range(parts)]
        axes.set_xticks(middles, range(parts))
        axes.set_yticks(middles, range(parts))
        axes.tick_params(length=0)
        label(axes, f"part of the keys\n{name}")
    panels[0].set_ylabel("part of the queries", color=INK, fontsize=10)
    return figure
