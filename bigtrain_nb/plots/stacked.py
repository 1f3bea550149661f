"""Bars of several parts, one after the other."""

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bigtrain_nb.common.words import amount, fitting_unit
from bigtrain_nb.plots.canvas import INK, MEASURED, PREDICTED, canvas, grid, label, name_rows, side_text

SHADES = (
    (MEASURED, 1.0),
    (MEASURED, 0.8),
    (MEASURED, 0.6),
    (MEASURED, 0.4),
    (PREDICTED, 0.95),
    (PREDICTED, 0.7),
    (PREDICTED, 0.45),
    (INK, 0.45),
    (INK, 0.2),
)


def stacked_figure(rows, unit, title, limits=None, shades=SHADES) -> Figure:
    """One bar for each row, of its parts one after the other; upright lines at the ``limits``.

    `rows`: {name: {part: value in `unit`}}, "bytes" or "s"; `limits`: {name: value}, of which those far beyond
    every bar are left out; `shades`: a colour for each part in turn.
    """
    totals = [sum(parts.values()) for parts in rows.values()]
    limits = {name: value for name, value in (limits or {}).items() if value <= 2.5 * max(totals)}
    reach = max(*totals, *limits.values(), 1e-9)
    unit_name, size = fitting_unit(reach, unit)
    figure, (axes,) = canvas(1.5 + 0.5 * len(rows) + 0.2 * len(limits))
    name_rows(axes, list(rows))

    parts = dict.fromkeys(part for row in rows.values() for part in row)
    ends = [0.0] * len(rows)
    for place, part in enumerate(parts):
        shade = shades[place % len(shades)]
        for y, row in enumerate(rows.values()):
            width = row.get(part, 0.0) / size
            bar = axes.barh(y, width, 0.62, ends[y], color=shade, edgecolor="white", linewidth=0.8)
            ends[y] += width
        bar.set_label(part)
    for y, total in enumerate(totals):
        side_text(axes, y, amount(total, unit))

    for place, (name, value) in enumerate(limits.items()):
        top = -0.55 - 0.28 * place
        axes.axvline(value / size, color=INK, linewidth=1.2, linestyle=(0, (3, 2)))
        axes.annotate(name, (value / size, top), (4, 0), textcoords="offset points", color=INK, fontsize=9)
        axes.set_ylim(top=top - 0.28)

    axes.set_xlim(0, 1.02 * reach / size)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    grid(axes, "x")
    label(axes, f"{title}, {unit_name}")
    figure.legend(loc="outside lower center", ncols=4, frameon=False, labelcolor=INK, fontsize=9)
    return figure
