"""The pictures: what they say, that they read on any page, and that they leave matplotlib's settings alone."""

import io
import math
import re
import subprocess
import sys
from types import SimpleNamespace
from xml.etree import ElementTree

import matplotlib
import pytest
from PIL import Image

from bigtrain_nb import plots as figures
from bigtrain_nb.common import words
from bigtrain_nb.measure.results import Comparison, Result


def result(name, *rounds, unit="examples/s"):
    return Result(name, rounds or (98.0, 99.0, 100.0, 101.0, 102.0, 103.0, 97.0), unit, 0.042, 700, 7.0)


def prediction(name="speedup", predicted=1.8, median=3.0, low=2.8, high=3.2):
    return SimpleNamespace(name=name, predicted=predicted, median=median, low=low, high=high, unit="x")


def texts(figure):
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


def everything(figure):
    return " | ".join(texts(figure))


FIGURES = {
    "throughput": lambda: figures.throughput_figure(result("one")),
    "comparison": lambda: figures.comparison_figure([result("a"), result("b")], baseline="a", prediction=120.0),
    "prediction": lambda: figures.prediction_figure([prediction(), prediction("other", 5.0)]),
}


@pytest.fixture(params=FIGURES)
def figure(request):
    return FIGURES[request.param]()


def test_throughput_figure_says_median_interval_unit_and_first_element():
    measured = result("one")
    said = everything(figures.throughput_figure(measured))
    assert f"median {words.number(measured.median)}" in said
    assert f"{words.number(measured.low)} to {words.number(measured.high)}" in said
    assert "examples/s" in said and "the first element took 42 ms" in said


def test_throughput_figure_draws_every_round_and_cuts_none():
    axes = figures.throughput_figure(result("one", 5.0, 6.0, 7.0)).axes[0]
    assert axes.get_ylim()[0] < 5.0 and axes.get_ylim()[1] > 7.05
    drawn = [line.get_ydata() for line in axes.lines if line.get_marker() == "o"]
    assert [list(rates) for rates in drawn] == [[5.0, 6.0, 7.0]]


def test_comparison_figure_has_a_labelled_row_for_each_result():
    drawn = figures.comparison_figure([result("slow", *[10.0] * 6), result("fast", *[20.0] * 6)], baseline="slow")
    assert [tick.get_text() for tick in drawn.axes[0].get_yticklabels()] == ["slow (baseline)", "fast"]
    assert "20.0 (20.0 to 20.0)" in texts(drawn)
    assert drawn.axes[0].get_xlim()[0] == 0


def test_comparison_figure_takes_a_comparison():
    drawn = figures.comparison_figure(Comparison({"a": result("a"), "b": result("b")}))
    assert [tick.get_text() for tick in drawn.axes[0].get_yticklabels()] == ["a", "b"]


def test_comparison_figure_draws_one_prediction_for_all_rows():
    drawn = figures.comparison_figure([result("a")], prediction=500.0)
    assert "your prediction: 500 examples/s" in texts(drawn)
    assert drawn.axes[0].get_xlim()[1] > 500
    assert any(line.get_color() == figures.PREDICTED and line.get_xdata()[0] == 500 for line in drawn.axes[0].lines)


@pytest.mark.parametrize(("high", "said"), [(2.5, "times as fast\n"), (2.0, "times\n")])
def test_a_ratio_without_an_interval_may_be_of_anything(high, said):
    row = SimpleNamespace(name="memory", median=2.0, low=2.0, high=high, unit="x", rounds=())
    assert figures.comparison_figure([row]).axes[0].get_xlabel().startswith(said)


def test_comparison_figure_refuses_what_it_cannot_draw():
    with pytest.raises(ValueError, match="nothing to draw"):
        figures.comparison_figure([])
    with pytest.raises(ValueError, match="nothing to draw"):
        figures.prediction_figure([])


def test_comparison_figure_marks_the_baseline_of_each_row_where_it_is_known():
    drawn = figures.comparison_figure([result("a"), result("b"), result("c")], baseline="a", beside=[None, 90.0, None])
    bars = [line for line in drawn.axes[0].lines if list(line.get_xdata()) == [90.0, 90.0]]
    assert len(bars) == 1 and "baseline beside it" in everything(drawn)


def test_an_interval_without_bounds_is_left_out():
    unsure = SimpleNamespace(name="a", median=5.0, low=-math.inf, high=math.inf, unit="steps/s", rounds=(5.0,))
    drawn = figures.comparison_figure([unsure])
    assert math.isfinite(drawn.axes[0].get_xlim()[1])
    assert figures.figure_png(drawn).startswith(b"\x89PNG")


def test_prediction_figure_shows_the_prediction_as_a_multiple():
    axes = figures.prediction_figure([prediction(predicted=6.0, median=3.0)]).axes[0]
    (diamond,) = [line for line in axes.lines if line.get_marker() == "D"]
    assert list(diamond.get_xdata()) == [2.0]
    low, high = axes.get_xlim()
    assert low < 0.5 and high > 2 and axes.get_xscale() == "log"


@pytest.mark.parametrize("predicted", [0.003, 1.0, 4000.0])
def test_prediction_figure_keeps_far_off_predictions_in_sight(predicted):
    axes = figures.prediction_figure([prediction(predicted=predicted)]).axes[0]
    low, high = axes.get_xlim()
    assert low < predicted / 3.0 < high
    assert len(axes.get_xticks()) < 12


def test_prediction_figure_bears_an_interval_without_bounds():
    drawn = figures.prediction_figure([prediction(low=0.0, high=math.inf)])
    assert math.isfinite(drawn.axes[0].get_xlim()[1])
    assert figures.figure_png(drawn).startswith(b"\x89PNG")


def test_a_notebook_shows_a_figure_though_pyplot_is_not_there(figure):
    data, metadata = figure._repr_png_()
    assert data.startswith(b"\x89PNG") and metadata["width"] == 672


def test_a_figure_has_all_that_is_written_in_it_as_its_alternative_in_words():
    said = FIGURES["comparison"]()._repr_png_()[1]["alt"]
    for text in ("examples/s", "a (baseline), b", "your prediction: 120", "dot: median", "100 (97.0 to 103)"):
        assert text in said


def test_figures_are_narrow_and_legible(figure):
    assert figure.get_figwidth() <= 7
    assert min(text.get_fontsize() for text in figure.findobj(matplotlib.text.Text) if text.get_text()) >= 9


def test_svg_is_an_image_with_words_and_takes_the_colour_of_the_page(figure):
    drawing = figures.figure_svg(figure, 'fast & "good" <b>')
    root = ElementTree.fromstring(drawing)
    assert root.get("role") == "img" and root.get("aria-label") == 'fast & "good" <b>'
    assert "currentColor" in drawing and figures.INK not in drawing
    assert "<style" not in drawing and "<!DOCTYPE" not in drawing and "font-family" not in drawing
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert any("median" in text or "measured" in text for text in texts)


def test_svgs_of_one_page_share_no_ids(figure):
    ids = [re.findall(r'\bid="([^"]+)"', figures.figure_svg(figure, "x")) for _ in range(2)]
    assert not set(ids[0]) & set(ids[1])


def test_svg_refers_only_to_its_own_parts(figure):
    drawing = figures.figure_svg(figure, "x")
    used = set(re.findall(r'(?:href="#|url\(#)([\w-]+)', drawing))
    assert used <= set(re.findall(r'\bid="([^"]+)"', drawing))


def test_png_is_an_opaque_card(figure):
    picture = Image.open(io.BytesIO(figures.figure_png(figure))).convert("RGBA")
    assert picture.getpixel((1, 1)) == (255, 255, 255, 255)
    assert picture.getextrema()[3] == (255, 255)
    assert 900 < picture.width <= 1100


def test_a_readers_style_neither_changes_nor_suffers():
    with matplotlib.rc_context({"text.color": "white", "svg.fonttype": "path"}):
        before = dict(matplotlib.rcParams)
        drawing = figures.figure_svg(figures.comparison_figure([result("a")]), "x")
        assert dict(matplotlib.rcParams) == before
    assert "<text" in drawing and "#ffffff" not in drawing


def test_pyplot_stays_out():
    program = "import sys, bigtrain_nb.plots; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    ("value", "said"),
    [(2349.6, "2,350"), (12.345, "12.3"), (0.04711, "0.0471"), (0.0, "0"), (999.7, "1,000"), (math.nan, "?")],
)
def test_number(value, said):
    assert words.number(value) == said


def test_quantity_and_duration():
    assert [words.quantity(value, "x") for value in (1.8, 3.14, 512.3)] == ["1.80x", "3.1x", "512x"]
    assert words.quantity(2350, "images/s") == "2,350 images/s" and words.quantity(2.5) == "2.50"
    assert [words.duration(t) for t in (0.0004, 0.042, 1.34, 75.2)] == ["0.4 ms", "42 ms", "1.3 s", "75 s"]
