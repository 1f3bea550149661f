"""Stacked bars."""

from bigtrain_nb.common.words import amount, fitting_unit
from bigtrain_nb.plots.canvas import (
    GREEN,
    INK,
    MEASURED,
    PREDICTED,
    PURPLE,
    canvas,
    grid,
    key,
    label,
    name_rows,
    side_text,
)

OF_MEMORY = {
    "weights": (MEASURED, 1.0),
    "16-bit copies": (MEASURED, 0.7),
    "gathered": (MEASURED, 0.4),
    "gradients": (GREEN, 0.95),
    "optimizer state": (PURPLE, 0.95),
    "optimizer": (PURPLE, 0.95),
    "activations": (PREDICTED, 0.95),
    "activations: blocks": (PREDICTED, 0.95),
    "activations: current block": (PREDICTED, 0.7),
    "activations: logits": (PREDICTED, 0.45),
    "workspace": (INK, 0.45),
    "fragments": (INK, 0.45),
}
"""Each part of memory has the same color in every figure: blue for weights, orange for activations."""

SHADES = [
    (color, opacity)
    for opacities in ((1.0, 0.95, 0.95, 0.45), (0.55, 0.55, 0.55, 0.2), (0.3, 0.3, 0.3))
    for color, opacity in zip((MEASURED, PREDICTED, GREEN, INK), opacities, strict=False)
]


def stacked_figure(rows, unit, title, limits=None):
    """One horizontal bar of stacked parts for each row; vertical lines at the ``limits``.

    `rows`: {name: {part: value in `unit`}}, "bytes" or "s"; `limits`: {name: value}; those far beyond
    every bar are omitted. A part that is not in `OF_MEMORY` gets an unused color.
    """
    longest = max(sum(parts.values()) for parts in rows.values())
    near = {name: value for name, value in (limits or {}).items() if value <= 2.5 * longest}
    reach = max(longest, *near.values(), 1e-9)
    unit_name, size = fitting_unit(reach, unit)

    figure, (axes,) = canvas(1.5 + 0.5 * len(rows) + 0.2 * len(near))
    name_rows(axes, list(rows))
    shade_of = _shades([part for parts in rows.values() for part in parts])
    bars = {}
    for y, parts in enumerate(rows.values()):
        start = 0.0
        for part, value in parts.items():
            width = value / size
            color = shade_of[part]
            bars[part] = axes.barh(y, width, left=start, height=0.62, color=color, edgecolor="white", linewidth=0.8)
            start += width
        side_text(axes, y, amount(start * size, unit))
    _draw_limits(axes, near, size)

    axes.set_xlim(0, 1.02 * reach / size)
    axes.locator_params(axis="x", nbins=6)
    grid(axes, "x")
    label(axes, f"{title}, {unit_name}")
    key(figure, bars)
    return figure


def _shades(parts):
    """{part: (color, opacity)}."""
    shades = {part: OF_MEMORY[part] for part in parts if part in OF_MEMORY}
    free = [shade for shade in SHADES if shade not in shades.values()]
    others = [part for part in dict.fromkeys(parts) if part not in shades]
    for number, part in enumerate(others):
        shades[part] = free[number % len(free)]
    return shades


def _draw_limits(axes, limits, size):
    """A dashed line for each limit, with its name above the bars, each at its own height."""
    top = -0.55
    for name, value in limits.items():
        x = value / size
        axes.axvline(x, color=INK, linewidth=1.2, linestyle="dashed")
        axes.annotate(name, (x, top), (4, 0), textcoords="offset points", color=INK, fontsize=9)
        top -= 0.28
        axes.set_ylim(top=top)
