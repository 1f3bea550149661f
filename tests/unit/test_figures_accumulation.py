"""The pictures of notebook 05: every value is drawn where it belongs and said in figures."""

import math

import matplotlib
import pytest
from workbook.drawings.accumulation import SMALLEST, distance_figure, memory_figure

from bigtrain_nb.plots import INK, MEASURED, PREDICTED, figure_png, figure_svg

DISTANCES = {"sum for mean": 3.0, "one vote for each slice": 0.043, "by hand": 4.2e-7, "exact": 0.0}
FIGURES = {
    "distance": lambda: distance_figure(DISTANCES),
    "memory": lambda: memory_figure({1: 500.0, 16: 125.0}, {1: 500.0, 4: 200.0, 16: 125.0}),
}


def texts(figure):
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


def dots(figure):
    return [line.get_xydata()[0].tolist() for line in figure.axes[0].lines if line.get_marker() == "o"]


@pytest.fixture(params=FIGURES)
def figure(request):
    return FIGURES[request.param]()


def test_distances_stand_in_the_given_order_with_their_values():
    drawn = distance_figure(DISTANCES)
    assert [tick.get_text() for tick in drawn.axes[0].get_yticklabels()] == list(DISTANCES)
    assert dots(drawn) == [[3.0, 0], [0.043, 1], [4.2e-7, 2], [SMALLEST, 3]]
    assert {"3.00", "0.0430", "4.2e-07", "0"} <= set(texts(drawn))


def test_the_distance_that_training_moved_is_always_in_sight():
    for distance in (1e-7, 50.0):
        axes = distance_figure({"one": distance}).axes[0]
        low, high = axes.get_xlim()
        assert low < min(1, distance) and max(1, distance) < high
        assert any(line.get_color() == INK and list(line.get_xdata()) == [1, 1] for line in axes.lines)


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_what_is_no_distance_is_refused(value):
    with pytest.raises(ValueError, match="'bad' is .*; expected a finite number from 0 up"):
        distance_figure({"good": 0.1, "bad": value})


def test_nothing_to_draw_is_refused():
    with pytest.raises(ValueError, match="distances: nothing to draw"):
        distance_figure({})
    with pytest.raises(ValueError, match="measured: nothing to draw"):
        memory_figure({}, {1: 500.0})


def test_memory_is_a_dot_with_its_value_and_the_prediction_a_dashed_line():
    drawn = FIGURES["memory"]()
    assert dots(drawn) == [[1, 500.0], [16, 125.0]]
    assert {"500 MiB", "125 MiB"} <= set(texts(drawn))
    (line,) = [line for line in drawn.axes[0].lines if line.get_color() == PREDICTED]
    assert line.get_xydata().tolist() == [[1, 500], [4, 200], [16, 125]] and line.get_linestyle() == "--"


def test_memory_starts_at_zero_and_names_the_slices_that_were_measured():
    axes = FIGURES["memory"]().axes[0]
    assert axes.get_ylim()[0] == 0 and axes.get_ylim()[1] > 500
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "16"]


def test_both_are_narrow_legible_and_take_the_colour_of_the_page(figure):
    assert figure.get_figwidth() <= 7
    assert min(text.get_fontsize() for text in figure.findobj(matplotlib.text.Text) if text.get_text()) >= 9
    assert any(line.get_color() == MEASURED for line in figure.axes[0].lines)
    assert figure_png(figure).startswith(b"\x89PNG")
    assert INK not in figure_svg(figure, "words")
