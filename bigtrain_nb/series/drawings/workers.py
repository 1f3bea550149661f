"""Multiple workers: data sharding, ring all-reduce, message times, and interrupted training."""

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from bigtrain_nb.plots.canvas import INK, MEASURED, PREDICTED, canvas, grid, label, name_rows, side_text
from bigtrain_nb.series.drawings.clocks import clock, draw_box
from bigtrain_nb.series.drawings.dots import dots_and_line

GAP = 0.9  # between the panels of a ring, in squares
STARTS = "#e4e5e7"


def readers_figure(read, lines_of_file) -> Figure:
    """One row per policy and worker, one square per example, filled if the worker reads it; a line between files.

    `read`: {policy: [examples of worker 0, of worker 1, ...]}, examples as integers from 0, `lines_of_file` per file.
    """
    rows = {}
    for policy, shares in read.items():
        for worker, examples in enumerate(shares):
            rows[f"{policy}, worker {worker}"] = set(examples)
    count = 1 + max(example for examples in rows.values() for example in examples)
    figure, (axes,) = canvas(0.9 + 0.32 * len(rows))
    for y, examples in enumerate(rows.values()):
        for x in range(count):
            colour = MEASURED if x in examples else (INK, 0.08)
            axes.add_patch(
                Rectangle(
                    (x - 0.42, y - 0.36),
                    0.84,
                    0.72,
                    linewidth=0,
                    facecolor=colour,
                )
            )
        side_text(axes, y, f"{len(examples)} of {count}")
    for first in range(lines_of_file, count, lines_of_file):
        axes.axvline(first - 0.5, color=INK, linewidth=1, linestyle=":")
    axes.set_xlim(-0.5, count - 0.5)
    name_rows(axes, list(rows))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    label(axes, "example (blue: this worker reads it; dotted: the next file)")
    return figure


def ring_figure(held) -> Figure:
    """Progress of a ring all-reduce: one square per worker and chunk, darker if its sum includes more workers.

    `held`: {title: counts[worker][chunk]}, the number of workers included in each sum.
    """
    workers = len(next(iter(held.values())))
    figure, (axes,) = canvas(0.5 + 1.5 * workers / 4)
    left = 0.0
    for title, counts in held.items():
        _write(axes, left + workers / 2, -0.6, title, INK)
        for worker, chunks in enumerate(counts):
            for chunk, count in enumerate(chunks):
                _draw_chunk(axes, left + chunk, worker, count, workers)
        left += workers + GAP
    axes.set_xlim(0, left - GAP)
    axes.set_ylim(workers, -1.1)
    axes.set_aspect("equal")
    axes.set_xticks([])
    middles = [worker + 0.5 for worker in range(workers)]
    axes.set_yticks(middles, [f"worker {worker}" for worker in range(workers)])
    axes.tick_params(axis="y", length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    return figure


def message_figure(measured, by_formula) -> Figure:
    """Seconds over message size, both logarithmic: measured as dots, by the formula as a dashed line.

    `measured`, `by_formula`: {bytes: seconds}, all above zero.
    """
    figure, (axes,) = canvas(3.4)
    dots_and_line(axes, measured, by_formula, _time, offset=(8, -13))
    sizes = sorted(measured)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [_size(size) for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda seconds, _: _time(seconds))
    axes.margins(x=0.1, y=0.14)
    grid(axes, "y")
    label(axes, "size of the all-reduce\ndot: measured, dashed: the formula with your L and B", "time of an all-reduce")
    return figure


def resumed_figure(whole, before, after) -> Figure:
    """The loss of an uninterrupted run, overlaid with that of a run that was killed and resumed.

    `whole`, `before`, `after`: {step: loss}.
    """
    figure, (axes,) = canvas(3.2)
    axes.plot(
        whole.keys(),
        whole.values(),
        color=INK,
        alpha=0.2,
        linewidth=7,
        solid_capstyle="round",
    )
    axes.plot(before.keys(), before.values(), color=MEASURED, linewidth=2)
    last = max(before)
    axes.plot(
        last,
        before[last],
        "X",
        color=MEASURED,
        markersize=12,
        markeredgecolor="white",
        zorder=4,
    )
    axes.plot(
        after.keys(),
        after.values(),
        color=INK,
        linewidth=1.6,
        linestyle=(0, (3, 1.5)),
    )
    axes.set_ylim(0, 1.05 * max(whole.values()))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    grid(axes, "y")
    label(axes, "step\ngrey: never interrupted, blue: until the kill, dashed: after the restart", "loss of the step")
    return figure


def killed_figure(at) -> Figure:
    """A timeline of two workers: both start and train, worker 1 is killed, worker 0 waits, both restart and train.

    `at`: {"first step", "kill", "error", "first step again", "end": seconds since the start}.
    """
    first, kill, error, again, end = at["first step"], at["kill"], at["error"], at["first step again"], at["end"]
    head = f"worker 0 waits for {error - kill:.1f} s, then both start again: {again - error:.1f} s"
    below = "seconds since the start\ngrey: starting, blue: training, orange: waiting, cross: killed"
    figure, axes, places = clock({head: ["worker 0", "worker 1"]}, end, below)
    for y in places.values():
        draw_box(axes, 0, first, y, STARTS, "starts", INK)
        draw_box(axes, first, kill, y, MEASURED, "trains")
        draw_box(axes, error, again, y, STARTS, "starts again", INK)
        draw_box(axes, again, end, y, MEASURED, "trains")
    draw_box(axes, kill, error, places[head, "worker 0"], PREDICTED, "waits")
    look = {"color": PREDICTED, "markersize": 12, "markeredgecolor": "white", "zorder": 4}
    axes.plot(kill, places[head, "worker 1"], "X", **look)
    return figure


def elastic_figure(whole, stretches) -> Figure:
    """The loss of an undisturbed run, overlaid with the segments of one whose number of workers changed.

    `whole`: {step: loss}. `stretches`: {label, the number of workers: {step: loss}}.
    """
    figure, (axes,) = canvas(3.2)
    axes.plot(whole.keys(), whole.values(), color=INK, alpha=0.2, linewidth=7, solid_capstyle="round")
    highest = 1.05 * max(whole.values())
    for place, (workers, stretch) in enumerate(stretches.items()):
        axes.plot(stretch.keys(), stretch.values(), color=[MEASURED, INK][place % 2], linewidth=2)
        axes.axvspan(min(stretch), max(stretch), color=INK, alpha=0.05 * (place % 2), linewidth=0)
        axes.text((min(stretch) + max(stretch)) / 2, 0.04 * highest, workers, ha="center", color=INK)
    axes.set_ylim(0, highest)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    grid(axes, "y")
    label(axes, "step\nlabels: number of workers; wide grey line: two workers, undisturbed", "loss of the step")
    return figure


def _draw_chunk(axes, x, y, count, workers):
    share = count / workers
    axes.add_patch(
        Rectangle(
            (x + 0.04, y + 0.04),
            0.92,
            0.92,
            color=MEASURED,
            alpha=share**1.5,
            linewidth=0,
        )
    )
    _write(axes, x + 0.5, y + 0.52, f"{count:g}", "white" if share > 0.7 else INK)


def _write(axes, x, y, text, colour):
    axes.text(x, y, text, color=colour, fontsize=10, ha="center", va="center")


def _time(seconds):
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _size(count):
    return f"{count / 2**20:g} MiB" if count >= 2**20 else f"{count / 2**10:g} KiB"
