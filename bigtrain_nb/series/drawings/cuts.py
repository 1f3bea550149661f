"""Timelines of pipeline schedules; each device's share of causal attention."""

from statistics import median

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from bigtrain_nb.plots.canvas import GREEN, INK, MEASURED, PREDICTED, PURPLE, canvas, label
from bigtrain_nb.series.drawings.clocks import clock, draw_box

COLOURS = {"forward": MEASURED, "backward": PREDICTED}
COLOURS_OF_LATER_RUNS = {"forward": "#1c5596", "backward": "#94490a"}
OF_DEVICES = (MEASURED, PREDICTED, GREEN, PURPLE)


def order_figure(orders, unit="") -> Figure:
    """The passes of each stage and schedule as boxes on a timeline, one row per stage; wide boxes show the micro-batch.

    `orders`: {schedule: [pass, ...]}; a pass has stage, kind, micro_batch, start and end, times in ``unit``. The
    heading of a schedule gives its end, and the median times of its forward and backward passes.
    """
    rows = {}
    for schedule, passes in orders.items():
        stages = sorted({each.stage for each in passes})
        rows[_in_words(schedule, passes, unit)] = [f"stage {stage}" for stage in stages]
    marks = "blue: forward, orange: backward, with the number of the micro-batch"
    if any(each.run for passes in orders.values() for each in passes):
        marks += "\ndarker: virtual stages after the first; narrow boxes have no number"
    last = max(each.end for passes in orders.values() for each in passes)
    figure, axes, places = clock(rows, last, f"time on the clock{', ' + unit if unit else ''}\n{marks}")
    for head, passes in zip(rows, orders.values(), strict=True):
        for each in passes:
            colour = (COLOURS_OF_LATER_RUNS if each.run else COLOURS)[each.kind]
            draw_box(axes, each.start, each.end, places[head, f"stage {each.stage}"], colour, str(each.micro_batch))
    return figure


def _in_words(schedule, passes, unit):
    usual = []
    for kind in COLOURS:
        usual.append(f"{median(each.end - each.start for each in passes if each.kind == kind):.3g} {kind}")
    end = f"{max(each.end for each in passes):.3g} {unit}".rstrip()
    return f"{schedule}: ends at {end}; a pass takes {', '.join(usual)}"


def balance_figure(cuts) -> Figure:
    """The device that computes each block of causal attention, one panel for each way to shard the sequence.

    `cuts`: {name: [[part, ...] of each device]}; parts are numbered from the start of the sequence.
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
