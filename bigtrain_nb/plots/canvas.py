"""Shared parts of all figures: palette, canvas, labels, and conversion to PNG or inline SVG."""

import html
import io
import re
import threading
from textwrap import fill

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.text import Text

INK = "#1d2126"  # figure_svg replaces exactly this color with the page's text color
MEASURED = "#2f7fd6"  # contrast of at least 3:1 on white and on near-black; PREDICTED too
PREDICTED = "#d4690f"
GREEN, PURPLE = "#2e8b57", "#8a5cc2"  # for other quantities
WIDTH = 7.0  # inches
LINE, MARK = 96, 6  # characters of a key that fit in a line, and those that a mark takes
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

_svg_settings = threading.Lock()  # rc_context is not thread-safe


def figure_png(figure):
    """The figure as PNG on a white background, legible on light and dark pages."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=144, facecolor="white")
    return buffer.getvalue()


def figure_svg(figure, label):
    """The figure as inline SVG in the page's font and text color; `label` describes its content."""
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
    """A figure as image/png, with alternative text."""

    def __init__(self, figure, words):
        self.data = figure_png(figure)
        self.width = round(96 * figure.get_figwidth())  # in CSS pixels, 96 per inch
        self.alt = words

    def __repr__(self):
        return f"[picture: {self.alt}]"

    def _repr_png_(self):
        return self.data, {"width": self.width, "alt": self.alt}


class _Card(Figure):
    """A figure that a notebook displays without pyplot."""

    def _repr_png_(self):
        return figure_png(self), {"width": round(96 * self.get_figwidth()), "alt": alternative(self)}


def alternative(figure):
    """All text in a figure, as its alternative text: marks, values, axes with their ticks, rows."""
    written = [text.get_text() for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
    return " ".join("; ".join(written).split())


def canvas(height, columns=1, rows=1):
    """Return a figure and its axes; each row shares a y axis, each column an x axis."""
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
    axes.text(
        1.02, y, text, transform=axes.get_yaxis_transform(), color=INK, fontsize=10, va="center", parse_math=False
    )


def key(figure, marks):
    """Add a key below the figure; `marks`: {meaning: a mark of that kind}."""
    ncols = _columns([len(meaning) for meaning in marks])
    words = [fill(meaning, LINE - MARK) for meaning in marks]
    figure.legend(
        marks.values(), words, loc="outside lower center", ncols=ncols, frameon=False, labelcolor=INK, fontsize=9
    )


def _columns(lengths):
    """Return the number of columns, at most four, in which words of these lengths fit side by side."""
    for columns in (4, 3, 2):
        parts = np.array_split(lengths, columns)  # like Matplotlib
        if sum(max(part) + MARK for part in parts if len(part)) <= LINE:
            return columns
    return 1


def grid(axes, axis):
    """Draw faint lines across, at the ticks of "x" or "y", behind everything else."""
    axes.grid(axis=axis, color=INK, alpha=0.12, linewidth=0.8)
    axes.set_axisbelow(True)


def name_rows(axes, names):
    """Write the names of rows 0, 1, ..., the first on top, instead of the y axis."""
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
