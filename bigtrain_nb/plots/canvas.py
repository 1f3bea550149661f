"""What all figures share: palette, canvas, labels, and how a figure becomes PNG or inline SVG."""

import html
import io
import re
import threading
from textwrap import fill

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.text import Text

INK = "#1d2126"  # figure_svg turns exactly this colour into the page's own text colour
MEASURED = "#2f7fd6"  # contrast of at least 3:1 on white and on near-black, as is PREDICTED
PREDICTED = "#d4690f"
GREEN, PURPLE = "#2e8b57", "#8a5cc2"  # for what is neither
WIDTH = 7.0  # inches
LINE, MARK = 96, 6  # letters of a key that fit side by side, and those that a mark takes
UNWANTED = re.compile(
    r"""
    ^.*?<svg.*?>                # ours is another
    | <metadata>.*?</metadata>
    | <style.*?</style>         # it would apply to the whole page
    | <!--.*?-->
    | (?<=<g)\ id="[^"]*"       # figure_1 and its like are in every picture of a page
    | font-family:[^;"]*;\ ?
    """,
    re.DOTALL | re.VERBOSE,
)

_svg_settings = threading.Lock()  # two threads in rc_context would undo each other's settings


def figure_png(figure):
    """The figure as PNG on a white card, which reads on white and on dark pages alike."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=144, facecolor="white")
    return buffer.getvalue()


def figure_svg(figure, label):
    """The figure as inline SVG in the page's own font and text colour; `label` says its content in words."""
    buffer = io.StringIO()
    with _svg_settings, matplotlib.rc_context({"svg.fonttype": "none"}):  # text stays text
        figure.savefig(buffer, format="svg", transparent=True)
    body = re.sub(UNWANTED, "", buffer.getvalue())
    width, height = figure.get_size_inches()
    opening = (
        f'<svg role="img" aria-label="{html.escape(label)}" xmlns="http://www.w3.org/2000/svg"'
        f' xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 {72 * width:g} {72 * height:g}"'
        f' style="width: {width:g}in; max-width: 100%; height: auto; stroke-linejoin: round">'
    )
    return opening + body.replace(INK, "currentColor")


class Picture:
    """A figure as image/png, with what it says in words for those who cannot see it."""

    def __init__(self, figure, words):
        self.data = figure_png(figure)
        self.width = round(96 * figure.get_figwidth())  # in the browser's pixels, 96 an inch
        self.alt = words

    def __repr__(self):
        return f"[picture: {self.alt}]"

    def _repr_png_(self):
        return self.data, {"width": self.width, "alt": self.alt}


class _Card(Figure):
    """A figure that a notebook shows, which without pyplot a bare one is not."""

    def _repr_png_(self):
        return figure_png(self), {"width": round(96 * self.get_figwidth()), "alt": alternative(self)}


def alternative(figure):
    """All that is written in a figure, as its text alternative: marks, values, axes with their numbers, rows."""
    written = [text.get_text() for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
    return " ".join("; ".join(written).split())


def canvas(height, columns=1, rows=1):
    """Return a figure and its axes: those side by side share their y, those one below the other their x."""
    figure = _Card(figsize=(WIDTH, height), layout="constrained", facecolor="white")
    look = {"facecolor": "none"}
    panels = figure.subplots(rows, columns, sharex="col", sharey="row", squeeze=False, subplot_kw=look).flatten()
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(INK)
        axes.tick_params(colors=INK, labelsize=10)
    return figure, panels


def label(axes, x, y=""):
    axes.set_xlabel(x, color=INK, fontsize=10, labelpad=6)
    axes.set_ylabel(y, color=INK, fontsize=10)


def side_text(axes, y, text):
    """Write ``text`` to the right of row ``y``."""
    axes.text(1.02, y, text, transform=axes.get_yaxis_transform(), color=INK, fontsize=10, va="center")


def name_lines(axes, ends, apart):
    """Write the names of lines to the right of their ends, so far apart that none covers another.

    `ends`: {name: y of its line's end}; ``apart``: a share of the axes' height. The limits of the axes must be set.
    """
    free = 0.0
    for name, y in sorted(ends.items(), key=lambda end: end[1]):
        place = axes.transData.transform((axes.get_xlim()[1], y))
        height = max(free, axes.transAxes.inverted().transform(place)[1])
        free = height + apart
        axes.text(1.02, height, name, transform=axes.transAxes, color=INK, fontsize=10, va="center")


def key(figure, marks):
    """Say below the figure what its marks mean; `marks`: {meaning: a mark of that kind}."""
    ncols = _columns([len(meaning) for meaning in marks])
    words = [fill(meaning, LINE - MARK) for meaning in marks]
    figure.legend(
        marks.values(), words, loc="outside lower center", ncols=ncols, frameon=False, labelcolor=INK, fontsize=9
    )


def _columns(lengths):
    """Return how many columns, four at most, a key with so long words has: they must fit side by side."""
    for columns in (4, 3, 2):
        parts = np.array_split(lengths, columns)  # as Matplotlib does
        if sum(max(part) + MARK for part in parts if len(part)) <= LINE:
            return columns
    return 1


def grid(axes, axis):
    """Draw faint lines across, at the ticks of "x" or "y", behind everything else."""
    axes.grid(axis=axis, color=INK, alpha=0.12, linewidth=0.8)
    axes.set_axisbelow(True)


def name_rows(axes, names):
    """Write the names of rows 0, 1, ..., the first on top, where the axis would be."""
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
