"""The charts: their content, that nothing is cut off, and that they are legible on any page."""

import io
import math
import re
from types import SimpleNamespace
from xml.etree import ElementTree

import matplotlib
import pytest
from PIL import Image

from bigtrain_nb import plots
from bigtrain_nb.advanced.shared.stacked import stacked_figure
from bigtrain_nb.common import words
from bigtrain_nb.measure.results import Result


def result(name, *rounds):
    return Result(name, rounds or (98.0, 99.0, 100.0, 101.0, 102.0, 103.0, 97.0), "examples/s", 0.042, 700, 7.0)


def prediction(predicted):
    return SimpleNamespace(name="speedup", predicted=predicted, median=3.0, low=2.8, high=3.2, unit="x")


def texts(figure):
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


def lines(axes, marker):
    return [line for line in axes.lines if line.get_marker() == marker]


MEMORY = {"a": {"weights": 2**30, "activations": 3 * 2**30}, "b": {"activations": 2**29}}
FIGURES = {
    "throughput": lambda: plots.throughput_figure(result("one")),
    "comparison": lambda: plots.comparison_figure([result("a"), result("b")]),
    "prediction": lambda: plots.prediction_figure([prediction(1.8), prediction(5.0)]),
    "stacked": lambda: stacked_figure(MEMORY, "bytes", "memory", {"T4": 8e9, "B200": 180e9}),
    "stairs": lambda: plots.stairs_figure([8.0, 4.0, 4.0], [False, True, False], "measured step", "loss scale"),
}


@pytest.fixture(params=FIGURES)
def figure(request):
    return FIGURES[request.param]()


def test_throughput_says_median_interval_unit_and_first_batch_and_draws_every_round():
    drawn = plots.throughput_figure(result("one", 5.0, 6.0, 7.0))
    assert {"median 6.00\n5.00 to 7.00", "examples/s"} <= set(texts(drawn))
    assert "the first batch took 42.0 ms" in drawn.axes[0].get_xlabel()
    assert [list(line.get_ydata()) for line in lines(drawn.axes[0], "o")] == [[5.0, 6.0, 7.0]]
    assert [list(line.get_ydata()) for line in lines(drawn.axes[0], "None")] == [[6.0, 6.0]]
    low, high = drawn.axes[0].get_ylim()
    assert low < 5.0 and high > 7.0


def test_a_comparison_has_a_row_from_zero_with_a_tick_for_each_round_and_a_line_for_the_interval():
    drawn = plots.comparison_figure([result("slow", *[10.0] * 6), result("fast", 20.0, 22.0, 24.0)])
    (axes,) = drawn.axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["slow", "fast"]
    assert {"10", "22.0 (3 rounds: 20.0 to 24.0)"} <= set(texts(drawn))
    assert axes.get_xlim()[0] == 0
    slow, fast = (ticks.get_segments() for ticks in axes.collections)
    assert [segment[0][0] for segment in slow] == [10.0] * 6
    assert [segment[0][0] for segment in fast] == [20.0, 22.0, 24.0]
    for y, ticks in enumerate((slow, fast)):
        for (_, one_end), (_, other_end) in ticks:
            assert y - 0.5 < one_end < y < other_end < y + 0.5
    intervals = [line.get_xydata().tolist() for line in axes.lines if len(line.get_xdata()) == 2]
    assert intervals == [[[20.0, 1.0], [24.0, 1.0]]]  # the first has none: all its rounds are the same


def test_bars_are_as_long_as_rates_and_their_names_take_no_width():
    results = [result("run 1: " + "a long setting, " * 12, *[10.0] * 6), result("run 2", 19.0, 20.0, 22.0)]
    drawn = plots.bars_figure(results, "20.0 examples/s", "2.00x, faster", before=results[0].name)
    (axes,) = drawn.axes
    assert [bar.get_width() for bar in axes.patches] == [10, 20]
    assert {"10", "20.0 (3 rounds: 19.0 to 22.0)", "20.0 examples/s", "2.00x, faster"} <= set(texts(drawn))
    plots.figure_png(drawn)  # computes the layout
    assert axes.get_position().width > 0.9


def test_a_notebook_shows_a_figure_with_all_that_is_written_in_it_or_the_given_words_as_its_alternative():
    data, metadata = FIGURES["comparison"]()._repr_png_()
    assert data.startswith(b"\x89PNG") and metadata["width"] == 672
    for text in ("examples/s", "a; b", "100 (97.0 to 103)"):
        assert text in metadata["alt"]
    picture = plots.Picture(FIGURES["comparison"](), "b is faster")
    assert picture._repr_png_() == (picture.data, {"width": 672, "alt": "b is faster"})
    assert picture.data.startswith(b"\x89PNG") and repr(picture) == "[picture: b is faster]"


def test_figures_are_narrow_opaque_cards(figure):
    picture = Image.open(io.BytesIO(plots.figure_png(figure))).convert("RGBA")
    assert picture.width <= 1100
    assert picture.getpixel((1, 1)) == (255, 255, 255, 255) and picture.getextrema()[3] == (255, 255)


def test_svg_is_an_image_with_words_of_its_own_parts_in_the_colour_of_the_page(figure):
    with matplotlib.rc_context({"text.color": "white", "svg.fonttype": "path"}):  # a reader's style
        before = dict(matplotlib.rcParams)
        drawing = plots.figure_svg(figure, 'fast & "good" <b>')
        assert dict(matplotlib.rcParams) == before
    root = ElementTree.fromstring(drawing)
    assert root.get("role") == "img" and root.get("aria-label") == 'fast & "good" <b>'
    assert "currentColor" in drawing and plots.INK not in drawing
    own = re.findall(r'\bid="([^"]+)"', drawing)
    assert set(re.findall(r'(?:href="#|url\(#)([\w-]+)', drawing)) <= set(own)
    again = re.findall(r'\bid="([^"]+)"', plots.figure_svg(figure, "x"))
    assert not set(own) & set(again), "svgs of one page share no ids"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (words.number(2349.6), "2,350"),
        (words.number(math.nan), "?"),
        (words.quantity(2.994, "x"), "2.99x"),
        (words.quantity(3, "x"), "3.0x"),
        (words.quantity(99.94, "x"), "99.9x"),
        (words.quantity(1234.4, "x"), "1,234x"),
        (words.quantity(0.0951, "x"), "0.10x"),
        (words.quantity(0.0949, "x"), "0.0949x"),
        (words.quantity(3, "steps"), "3 steps"),
        (words.amount(math.inf, "s"), "unknown"),
    ],
)
def test_numbers_in_words(said, expected):
    assert said == expected


def test_a_prediction_is_drawn_as_a_multiple_of_what_was_measured():
    (axes,) = FIGURES["prediction"]().axes
    assert [line.get_xydata().tolist() for line in lines(axes, "D")] == [[[1.8 / 3, 0.0]], [[5 / 3, 1.0]]]
    assert [line.get_xydata().tolist() for line in lines(axes, "o")] == [[[1.0, 0.0]], [[1.0, 1.0]]]
    assert [2.8 / 3, 3.2 / 3] in [list(line.get_xdata()) for line in axes.lines]
    assert axes.get_xlim() == pytest.approx((0.8 / 2, 1.25 * 2))  # at least a factor of two each way
    assert {"1.80x, was 3.0x", "5.0x, was 3.0x"} <= set(texts(axes.figure))
    (axes,) = plots.prediction_figure([prediction(60.0)]).axes
    assert axes.get_xlim() == pytest.approx((0.8 / 20, 1.25 * 20))


def test_bars_follow_each_other_and_limits_stand_at_their_values_with_names_apart():
    limits = {"T4": 8e9, "near": 10 * 2**30, "far": 10.1 * 2**30}  # 2.5 times the longest bar, which has 4 GiB
    (axes,) = stacked_figure(MEMORY, "bytes", "memory", limits).axes
    assert sorted((bar.get_x(), bar.get_width()) for bar in axes.patches) == [(0, 0.5), (0, 1), (1, 3)]
    assert {"weights", "activations", "4.00 GiB", "512 MiB", "memory, GiB"} <= set(texts(axes.figure))
    dashed = [line.get_xdata()[0] for line in axes.lines]
    assert dashed == pytest.approx([8e9 / 2**30, 10.0])
    t4, near = [text for text in axes.texts if text.get_text() in limits]
    assert t4.xy[0] == pytest.approx(8e9 / 2**30) and near.xy[1] < t4.xy[1] < -0.31  # above the bars
    assert axes.get_xlim() == pytest.approx((0, 10.2)) and axes.get_ylim()[1] < near.xy[1]


def test_a_part_of_memory_has_one_colour_in_every_picture_and_no_other_part_of_a_picture_has_it():
    (alone,) = stacked_figure({"a": {"workspace": 2, "weights": 1, "activations": 3}}, "bytes", "memory").axes
    (after,) = stacked_figure({"a": {"activations": 2, "gradients": 1}}, "bytes", "memory").axes
    work, weights, activations = [bar.get_facecolor() for bar in alone.patches]
    assert after.patches[0].get_facecolor() == activations
    assert len({work, weights, activations, after.patches[1].get_facecolor()}) == 4


def test_stairs_have_a_cross_at_each_step_that_is_crossed_and_a_gap_where_a_logarithm_has_no_place():
    (axes,) = FIGURES["stairs"]().axes
    assert [line.get_xydata().tolist() for line in lines(axes, "x")] == [[[2.0, 4.0]]]
    (stairs,) = axes.patches
    assert stairs.get_data().edges.tolist() == [0.5, 1.5, 2.5, 3.5] and stairs.get_data().values.tolist() == [8, 4, 4]
    (axes,) = plots.stairs_figure([8.0, 0.0, math.inf, 2.0], [False] * 4, "step", "scale").axes
    assert [math.isnan(value) for value in axes.patches[0].get_data().values] == [False, True, True, False]


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (0.0005, "s", "500 µs"),
        (0.9994, "s", "999 ms"),
        (0.9996, "s", "1.00 s"),
        (119, "s", "119 s"),
        (120, "s", "2.00 min"),
        (2 * 3600, "s", "2.00 hours"),
        (2 * 86400, "s", "2.00 days"),
        (0, "bytes", "0 bytes"),
        (1023, "bytes", "1,020 bytes"),
        (1024, "bytes", "1.00 KiB"),
        (-3 * 2**40, "bytes", "-3.00 TiB"),
        (999.4, "FLOP", "999 FLOP"),
        (999.6, "FLOP", "1.00 kFLOP"),
        (6.58e9, "weights", "6.58 B weights"),
        (1.5e12, "tokens", "1.50 T tokens"),
        (12, "tokens", "12.0 tokens"),
    ],
)
def test_an_amount_has_the_largest_unit_that_fits(value, unit, expected):
    assert words.amount(value, unit) == expected


def test_the_cause_of_an_error_is_told_in_one_line():
    of_a_layer = ValueError(
        "Exception encountered when calling A.call().\n\n\x1b[1mIt has 8,\n not 9. So.\x1b[0m\n\nArguments"
    )
    assert words.cause(of_a_layer) == "It has 8, not 9. So."
    assert words.first_sentence(of_a_layer) == "It has 8, not 9."
    assert words.first_sentence(ValueError("{{function_node x}} A label of 3. More.")) == "A label of 3."
