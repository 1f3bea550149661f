"""What several workers do: who reads what, how a ring adds up, what a message costs, how a curve survives."""

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from bigtrain_nb.common.words import duration
from bigtrain_nb.plots.canvas import INK, MEASURED, canvas, dots_and_line, grid, label, name_rows, side_text

GAP = 0.9  # between the squares of a ring's pictures, in squares


def readers_figure(read) -> Figure:
    """One row for each policy and worker, one square for each example, filled where the worker reads it.

    `read`: {policy: [examples of worker 0, of worker 1, ...]}, examples as whole numbers from 0. Raises ValueError
    for none.
    """
    rows = {f"{policy}, worker {i}": own for policy, shares in read.items() for i, own in enumerate(shares)}
    examples = {example for own in rows.values() for example in own}
    if not examples:
        raise ValueError("read: nothing to draw; expected at least one {policy: [examples of each worker]}")
    count = max(examples) + 1
    figure, axes = canvas(0.9 + 0.32 * len(rows))
    for y, own in enumerate(rows.values()):
        for x in range(count):
            look = {"color": MEASURED} if x in own else {"color": INK, "alpha": 0.08}
            axes.add_patch(Rectangle((x - 0.42, y - 0.36), 0.84, 0.72, linewidth=0, **look))
        side_text(axes, y, f"{len(set(own))} of {count}")
    axes.set_xlim(-0.5, count - 0.5)
    name_rows(axes, list(rows))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    label(axes, "example\nblue: read by this worker", "")
    return figure


def ring_figure(held) -> Figure:
    """Who holds how much of which sum: a square for each worker and chunk, the darker the more workers are in it.

    `held`: {title: counts[worker][chunk]}, how many workers' numbers each holds there. Raises ValueError for none.
    """
    if not held:
        raise ValueError("held: nothing to draw; expected at least one {title: counts[worker][chunk]}")
    workers = len(next(iter(held.values())))
    figure, axes = canvas(0.5 + 1.5 * workers / 4)
    for place, (title, counts) in enumerate(held.items()):
        left = place * (workers + GAP)
        axes.text(left + workers / 2, -0.35, title, color=INK, fontsize=10, ha="center", va="bottom")
        for worker, chunks in enumerate(counts):
            for chunk, count in enumerate(chunks):
                share = count / workers
                corner = (left + chunk + 0.04, worker + 0.04)
                axes.add_patch(Rectangle(corner, 0.92, 0.92, color=MEASURED, alpha=share**1.5, linewidth=0))
                middle, colour = (left + chunk + 0.5, worker + 0.52), "white" if share > 0.7 else INK
                axes.text(*middle, f"{count:g}", color=colour, fontsize=10, ha="center", va="center")
    axes.set_xlim(0, len(held) * (workers + GAP) - GAP)
    axes.set_ylim(workers, -1.1)
    axes.set_aspect("equal")
    axes.set_yticks([worker + 0.5 for worker in range(workers)], [f"worker {worker}" for worker in range(workers)])
    axes.xaxis.set_major_locator(NullLocator())
    axes.tick_params(axis="y", length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    return figure


def message_figure(measured, fitted) -> Figure:
    """Seconds against the size of a message, both logarithmic: measured as dots, fitted as a dashed line.

    `measured`, `fitted`: {bytes: seconds}, all above zero. Raises ValueError if nothing was measured.
    """
    if not measured:
        raise ValueError("measured: nothing to draw; expected at least one {bytes: seconds}")
    figure, axes = canvas(3.4)
    dots_and_line(axes, measured, fitted, duration, (8, -13))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sorted(measured), [_size(size) for size in sorted(measured)])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda seconds, _: duration(seconds))
    axes.margins(x=0.1, y=0.14)
    grid(axes, "y")
    label(axes, "message\ndot: measured, dashed: latency and bandwidth fitted", "time of an all-reduce")
    return figure


def resumed_figure(whole, before, after) -> Figure:
    """The loss of a run that was never interrupted, and over it that of one that was killed and went on.

    `whole`, `before`, `after`: {step: loss}. Raises ValueError where one of them is empty.
    """
    for name, losses in {"whole": whole, "before": before, "after": after}.items():
        if not losses:
            raise ValueError(f"{name}: nothing to draw; expected {{step: loss}}")
    figure, axes = canvas(3.2)
    axes.plot(*_line(whole), color=INK, alpha=0.2, linewidth=7, solid_capstyle="round")
    axes.plot(*_line(before), color=MEASURED, linewidth=2)
    last = max(before)
    axes.plot(last, before[last], "X", color=MEASURED, markersize=12, markeredgecolor="white", zorder=4)
    axes.plot(*_line(after), color=INK, linewidth=1.6, linestyle=(0, (3, 1.5)))
    axes.set_ylim(0, 1.05 * max([*whole.values(), *before.values(), *after.values()]))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    grid(axes, "y")
    label(axes, "step\ngrey: never interrupted, blue: until the kill, dashed: after the restart", "loss of the step")
    return figure


def _line(losses):
    return zip(*sorted(losses.items()), strict=True)


def _size(count):
    return f"{count / 2**20:g} MiB" if count >= 2**20 else f"{count / 2**10:g} KiB"
