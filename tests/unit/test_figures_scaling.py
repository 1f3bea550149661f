"""Pictures of scaling: the loss is named, the ideal is drawn, and no label covers another."""

import math

import matplotlib
import pytest
from workbook.drawings.scaling import APART, curves_figure, efficiency, efficiency_figure

from bigtrain_nb.measure.results import Ratio
from bigtrain_nb.plots import INK, MEASURED, PREDICTED, figure_png


def texts(figure):
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


def bars(figure):
    blue = matplotlib.colors.to_rgba(MEASURED)
    return [bar.get_width() for bar in figure.axes[0].patches if bar.get_facecolor() == blue]


def test_efficiency_is_the_speedup_of_each_device():
    found = efficiency(Ratio("two", "one", 1.8, 1.6, 2.0), 2)
    assert (found.median, found.low, found.high) == (0.9, 0.8, 1.0)


def test_each_bar_is_filled_to_its_efficiency_and_names_the_loss():
    drawn = efficiency_figure({"8 GPUs": 1.0, "256 GPUs": 0.39, "lucky": 1.1})
    assert bars(drawn) == [1.0, 0.39, 1.1]
    assert {"0 % lost", "61 % lost", "10 % gained"} <= set(texts(drawn))
    assert [tick.get_text() for tick in drawn.axes[0].get_yticklabels()] == ["8 GPUs", "256 GPUs", "lucky"]


def test_the_ideal_is_a_line_that_is_always_in_sight():
    axes = efficiency_figure({"slow": 0.2}).axes[0]
    assert any(list(line.get_xdata()) == [1, 1] for line in axes.lines)
    assert axes.get_xlim()[0] == 0 and axes.get_xlim()[1] > 1


def test_intervals_and_predictions_are_drawn_and_explained():
    drawn = efficiency_figure({"two": efficiency(Ratio("two", "one", 1.2, 1.0, 1.4), 2)}, predicted={"two": 1.5})
    axes = drawn.axes[0]
    assert any(list(line.get_xdata()) == [0.5, 0.7] for line in axes.lines)
    (diamond,) = [line for line in axes.lines if line.get_marker() == "D"]
    assert list(diamond.get_xdata()) == [1.5] and diamond.get_color() == PREDICTED
    assert axes.get_xlim()[1] > 1.5
    assert "line: interval, diamond: your prediction" in axes.get_xlabel()
    assert "interval" not in efficiency_figure({"two": 0.6}).axes[0].get_xlabel()


def test_an_interval_without_an_end_is_borne():
    drawn = efficiency_figure({"two": Ratio("two", "one", 0.5, 0.0, math.inf)})
    assert math.isfinite(drawn.axes[0].get_xlim()[1])
    assert figure_png(drawn).startswith(b"\x89PNG")


def test_efficiency_figure_refuses_what_it_cannot_draw():
    with pytest.raises(ValueError, match="nothing to draw"):
        efficiency_figure({})
    with pytest.raises(ValueError, match="no row named 'four'; expected one of two"):
        efficiency_figure({"two": 0.5}, predicted={"four": 1.0})


def test_the_first_curve_is_the_one_to_compare_with():
    axes = curves_figure({"one": [2.0, 1.0], "many": [2.0, 1.5]}).axes[0]
    assert [line.get_color() for line in axes.lines] == [INK, MEASURED]
    assert [list(line.get_ydata()) for line in axes.lines] == [[2.0, 1.0], [2.0, 1.5]]
    assert list(axes.lines[0].get_xdata()) == [1, 2] and axes.get_yscale() == "log"


def test_curves_are_named_without_covering_each_other():
    names = ["a", "b", "c", "d"]
    axes = curves_figure({name: [2.0, 1.0 + 0.001 * place] for place, name in enumerate(names)}).axes[0]
    heights = sorted(text.get_position()[1] for text in axes.texts)
    assert sorted(text.get_text() for text in axes.texts) == names
    assert all(upper - lower >= 0.99 * APART for lower, upper in zip(heights, heights[1:], strict=False))


def test_a_curve_that_leaves_the_numbers_ends_where_it_does():
    drawn = curves_figure({"fine": [2.0, 1.0, 0.5], "lost": [2.0, 1e30, math.inf], "void": [math.nan]})
    assert [len(line.get_ydata()) for line in drawn.axes[0].lines] == [3, 2]
    assert "void" not in texts(drawn)
    assert figure_png(drawn).startswith(b"\x89PNG")


def test_curves_figure_refuses_what_it_cannot_draw():
    for curves in ({}, {"lost": [math.nan, math.inf]}):
        with pytest.raises(ValueError, match="nothing to draw"):
            curves_figure(curves)


@pytest.mark.parametrize("draw", [lambda: efficiency_figure({"two": 0.5}), lambda: curves_figure({"one": [2.0, 1.0]})])
def test_figures_are_narrow_and_legible(draw):
    drawn = draw()
    assert drawn.get_figwidth() <= 7
    assert min(text.get_fontsize() for text in drawn.findobj(matplotlib.text.Text) if text.get_text()) >= 9
