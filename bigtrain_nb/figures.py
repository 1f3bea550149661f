"""Results drawn as matplotlib figures: pure functions, no pyplot, legible on a light and on a dark page."""

import contextlib
import html
import io
import math
import re
import textwrap
import threading

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from bigtrain_nb.words import duration, interval, number, quantity

INK = "#1d2126"  # figure_svg turns exactly this colour into the page's own text colour
MEASURED = "#2f7fd6"  # contrast of at least 3:1 on white and on near-black, as is PREDICTED
PREDICTED = "#d4690f"
WIDTH = 7.0  # inches
NAME_WIDTH = 30  # characters of a row's name in one line

_svg_settings = threading.Lock()


def throughput_figure(result) -> Figure:
    """The rounds of one `Result` in the order they were measured, the median, and its interval as a band."""
    figure, axes = _canvas(2.9)
    rounds = range(1, len(result.rounds) + 1)
    axes.axhspan(result.low, result.high, color=MEASURED, alpha=0.18, linewidth=0)
    axes.axhline(result.median, color=MEASURED, linewidth=1.5)
    axes.plot(rounds, result.rounds, "o", color=INK, markersize=4.5, alpha=0.75)
    everything = _finite([*result.rounds, result.low, result.high])
    axes.set_ylim(min([*everything, 0.9 * result.median]), max([*everything, 1.1 * result.median]))
    axes.margins(x=0.04, y=0.06)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True, min_n_ticks=1))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.8)
    _label(axes, f"round\nthe first element took {duration(result.first_seconds)}", result.unit)
    axes.text(
        1.02,
        result.median,
        f"median {number(result.median)}\n{number(result.low)} to {number(result.high)}",
        transform=axes.get_yaxis_transform(),
        color=INK,
        fontsize=10,
        va="center",
    )
    return figure


def comparison_figure(results, baseline=None, prediction=None, beside=None) -> Figure:
    """One row for each result: dot = median, thick line = interval, faint ticks = rounds.

    `results`: a `Comparison`, or a list of `Result` (anything with name, median, low, high, unit and rounds).
    `baseline`: the name of the row to compare with; its dot is hollow and a thin line carries its median on.
    `prediction`: a rate for all rows, or {name: rate}; drawn dashed.
    `beside`: for each row the baseline's rate as measured together with it, or None; replaces the thin line.
    Raises ValueError for no results and for a prediction of a row that is not there.
    """
    rows = list(getattr(results, "results", {}).values()) or list(results)
    if not rows:
        raise ValueError("results: nothing to draw; expected at least one result")
    figure, axes = _canvas(0.8 + 0.4 * len(rows))
    for y, row in enumerate(rows):
        _row(axes, y, row, hollow=row.name == baseline)
        if beside and beside[y] is not None:
            axes.plot([beside[y]] * 2, [y - 0.36, y + 0.36], color=INK, alpha=0.7, linewidth=1.2)
        if row.name == baseline and not beside:
            axes.axvline(row.median, color=INK, alpha=0.5, linewidth=1)
    predictions = _draw_prediction(axes, rows, prediction)
    reach = [value for row in rows for value in (*row.rounds, row.high, row.median)]
    axes.set_xlim(0, 1.04 * max(_finite([*reach, *predictions, *filter(None, beside or ())]), default=1.0))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    _finish_rows(axes, [row.name + (" (baseline)" if row.name == baseline else "") for row in rows])
    units = " or ".join(dict.fromkeys({"x": "times as fast"}.get(row.unit, row.unit) for row in rows))
    key = "dot: median, line: interval" + (", ticks: rounds" if any(row.rounds for row in rows) else "")
    if beside and any(rate is not None for rate in beside):
        key += ", bar: baseline beside it"
    _label(axes, f"{units}\n{key}", "")
    return figure


def prediction_figure(rows) -> Figure:
    """Each prediction as a multiple of what was measured, on a logarithmic axis, with the measured interval.

    `rows`: objects with name, predicted, median, low, high and unit; all values above zero.
    """
    rows = list(rows)
    if not rows:
        raise ValueError("rows: nothing to draw; expected at least one prediction with its measurement")
    figure, axes = _canvas(1.0 + 0.4 * len(rows))
    axes.axvline(1, color=MEASURED, linewidth=1.2, alpha=0.7)
    for y, row in enumerate(rows):
        ends = [row.low / row.median, row.high / row.median]
        axes.plot(ends, [y, y], color=MEASURED, linewidth=7, alpha=0.45, solid_capstyle="butt")
        axes.plot(row.predicted / row.median, y, "D", color=PREDICTED, markersize=7)
        _side_text(axes, y, f"{quantity(row.predicted, row.unit)}, was {quantity(row.median, row.unit)}")
    reach = [value / row.median for row in rows for value in (row.predicted, row.low, row.high) if value > 0]
    span = 1.25 * max(2.0, *(max(value, 1 / value) for value in _finite(reach)))
    axes.set_xscale("log")
    axes.set_xlim(1 / span, span)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(_fold_ticks(span))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _fold(value)))
    _finish_rows(axes, [row.name for row in rows])
    _label(axes, "prediction / measured\ndiamond: prediction, band: measured interval", "")
    return figure


def figure_png(figure: Figure) -> bytes:
    """The figure as PNG on a white card, which reads on white and on dark pages alike."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=144, facecolor="white")
    return buffer.getvalue()


def figure_svg(figure: Figure, label: str) -> str:
    """The figure as inline SVG in the page's own font and text colour; `label` says its content in words."""
    buffer = io.StringIO()
    with _text_as_text():
        figure.savefig(buffer, format="svg", transparent=True)
    drawing = buffer.getvalue()
    body = drawing[drawing.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<style.*?</style>", "", body, flags=re.DOTALL)  # it would apply to the whole page
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r'<g id="[^"]*"', "<g", body)  # figure_1 and its like are in every picture of a page
    body = re.sub(r"font-family: [^;\"]*; ?", "", body)
    body = body.replace(INK, "currentColor")
    width, height = figure.get_size_inches()
    opening = (
        f'<svg role="img" aria-label="{html.escape(label, quote=True)}" xmlns="http://www.w3.org/2000/svg"'
        f' xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 {72 * width:g} {72 * height:g}"'
        f' style="width: {width:g}in; max-width: 100%; height: auto; stroke-linejoin: round">'
    )
    return re.sub(r"<svg.*?>", lambda _: opening, body, count=1, flags=re.DOTALL)


class _Card(Figure):
    """A figure that a notebook shows, which without pyplot a bare one is not."""

    def _repr_png_(self):
        return figure_png(self), {"width": round(96 * self.get_figwidth())}


def _canvas(height):
    figure = _Card(figsize=(WIDTH, height), layout="constrained", facecolor="white")
    axes = figure.add_subplot(facecolor="none")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(INK)
    axes.tick_params(colors=INK, labelsize=10)
    return figure, axes


def _label(axes, x, y):
    axes.set_xlabel(x, color=INK, fontsize=10, labelpad=6)
    axes.set_ylabel(y, color=INK, fontsize=10)


def _row(axes, y, row, hollow):
    axes.vlines(_finite(row.rounds), y - 0.22, y + 0.22, color=INK, alpha=0.22, linewidth=1)
    if all(map(math.isfinite, (row.low, row.high))):
        axes.plot([row.low, row.high], [y, y], color=MEASURED, linewidth=3.5, solid_capstyle="butt")
    axes.plot(row.median, y, "o", markersize=7, color=MEASURED)
    if hollow:
        axes.plot(row.median, y, "o", markersize=3.5, color="white")
    _side_text(axes, y, interval(row))


def _draw_prediction(axes, rows, prediction):
    if prediction is None:
        return []
    style = {"color": PREDICTED, "linestyle": (0, (4, 2)), "linewidth": 2}
    if isinstance(prediction, dict):
        unknown = set(prediction) - {row.name for row in rows}
        if unknown:
            names = ", ".join(row.name for row in rows)
            raise ValueError(f"prediction: no result named {sorted(unknown)[0]!r}; expected one of {names}")
        for y, row in enumerate(rows):
            if row.name in prediction:
                axes.plot([prediction[row.name]] * 2, [y - 0.4, y + 0.4], **style)
        values = list(prediction.values())
    else:
        axes.axvline(prediction, **style)
        values = [prediction]
    only = quantity(values[0], rows[0].unit) if len(values) == 1 else ""
    text = f"your prediction: {only}" if only else "dashed: your predictions"
    axes.set_title(text, color=PREDICTED, fontsize=10, loc="left", pad=4)
    return values


def _side_text(axes, y, text):
    axes.text(1.02, y, text, transform=axes.get_yaxis_transform(), color=INK, fontsize=10, va="center")


def _finish_rows(axes, names):
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), [textwrap.fill(name, NAME_WIDTH, max_lines=2) for name in names])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", color=INK, alpha=0.12, linewidth=0.8)
    axes.set_axisbelow(True)


def _fold_ticks(span):
    base = 2 if span < 20 else 10
    powers = range(math.floor(math.log(span, base)) + 1)
    return sorted({float(base) ** (sign * power) for power in powers for sign in (-1, 1)})


def _fold(value):
    return f"{value:,.4g}x" if value >= 1 else f"1/{1 / value:,.4g}"


def _finite(values):
    return [value for value in values if math.isfinite(value)]


@contextlib.contextmanager
def _text_as_text():
    """matplotlib has no argument for this; rc_context would also undo what another thread sets meanwhile."""
    with _svg_settings:
        before = matplotlib.rcParams["svg.fonttype"]
        matplotlib.rcParams["svg.fonttype"] = "none"
        try:
            yield
        finally:
            matplotlib.rcParams["svg.fonttype"] = before
