"""The pictures of notebook 04: what they say, and that they bear odd numbers."""

import math

import matplotlib
import numpy as np
import pytest
from ml_dtypes import finfo
from workbook.drawings.precision import FORMATS, bits_figure, powers, range_figure

from bigtrain_nb.plots import MEASURED, PREDICTED, figure_png, figure_svg
from bigtrain_nb.plots.loss_scale import loss_scale_figure


def texts(figure):
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


def bars(figure, colour):
    wanted = matplotlib.colors.to_rgb(colour)
    return [bar for bar in figure.axes[0].patches if bar.get_facecolor()[:3] == wanted]


FIGURES = {
    "bits": bits_figure,
    "range": lambda: range_figure([1e-6, -3e-4, 0.02]),
    "scaled range": lambda: range_figure([1e-6, -3e-4, 0.02], scale=2.0**15),
    "loss scale": lambda: loss_scale_figure([4.0, 2.0, 2.0], [False, True, False]),
}


@pytest.fixture(params=FIGURES)
def figure(request):
    return FIGURES[request.param]()


@pytest.mark.parametrize("name", FORMATS)
def test_powers_are_those_of_the_format(name):
    smallest, normal, end = powers(*FORMATS[name])
    known = finfo(name)
    assert [2.0**smallest, 2.0**normal] == [known.smallest_subnormal, known.smallest_normal]
    assert 2.0 ** (end - 1) < float(known.max) < math.ldexp(1, end)


def test_bits_figure_draws_a_box_for_each_bit():
    drawn = bits_figure()
    assert len(drawn.axes[0].patches) == 32 + 16 + 16
    assert len(bars(drawn, PREDICTED)) == 8 + 8 + 5 and len(bars(drawn, MEASURED)) == 23 + 7 + 10
    assert {"1 + 8 + 23", "1 + 8 + 7", "1 + 5 + 10", "sign", "exponent", "mantissa"} <= set(texts(drawn))


def test_range_figure_counts_sizes_by_powers_of_two_whatever_their_sign():
    drawn = range_figure([1.5 * 2.0**-9, -1.5 * 2.0**-9, 1.5 * 2.0**-4])
    heights = {bar.get_x(): bar.get_height() for bar in bars(drawn, MEASURED) if bar.get_height()}
    assert set(heights) == {-9, -4} and heights[-9] == pytest.approx(2 * heights[-4])


def test_range_figure_leaves_out_what_has_no_power_of_two():
    drawn = range_figure([0.0, math.nan, math.inf, 1.5])
    assert [bar.get_x() for bar in bars(drawn, MEASURED) if bar.get_height()] == [0]


@pytest.mark.parametrize("values", [[], [0.0, 0.0], [math.nan]])
def test_range_figure_refuses_nothing(values):
    with pytest.raises(ValueError, match="nothing to draw; expected at least one finite number"):
        range_figure(values)


def test_range_figure_shows_where_a_scale_moves_the_values():
    drawn = range_figure([1.5 * 2.0**-20], scale=2.0**15)
    assert [bar.get_x() for bar in bars(drawn, PREDICTED) if bar.get_height()] == [-5]
    assert "times 32,768" in texts(drawn) and "as they are" in texts(drawn)
    assert not bars(range_figure([1.0]), PREDICTED)


def test_range_figure_says_how_far_ranges_go_that_do_not_fit():
    said = texts(range_figure([1e-6]))
    assert {" from $2^{-149}$", " from $2^{-133}$"} <= set(said) and said.count("to $2^{128}$ ") == 2


@pytest.mark.parametrize("value", [1e-44, 1e-30, 1.0, 3e38])
def test_range_figure_keeps_far_off_values_in_sight(value):
    drawn = range_figure(np.float32([value]))
    low, high = drawn.axes[0].get_xlim()
    assert low < math.log2(value) < high
    assert figure_png(drawn).startswith(b"\x89PNG")


def test_loss_scale_figure_marks_the_skipped_steps():
    drawn = loss_scale_figure([8.0, 4.0, 4.0], [False, True, False])
    (crosses,) = [line for line in drawn.axes[0].lines if line.get_marker() == "x"]
    assert (list(crosses.get_xdata()), list(crosses.get_ydata())) == ([2], [4.0])
    assert "training step\n1 of 3 skipped (crosses)" in texts(drawn)


def test_loss_scale_figure_bears_scales_that_a_logarithm_cannot_show():
    drawn = loss_scale_figure([math.inf, 2.0, 0.0], [False, True, True])
    assert all(map(math.isfinite, drawn.axes[0].get_ylim()))
    assert figure_png(drawn).startswith(b"\x89PNG")


@pytest.mark.parametrize(("scale", "skipped"), [([], []), ([1.0], [])])
def test_loss_scale_figure_refuses_what_it_cannot_draw(scale, skipped):
    with pytest.raises(ValueError, match="expected as many, at least one"):
        loss_scale_figure(scale, skipped)


def test_figures_are_narrow_and_legible(figure):
    assert figure.get_figwidth() <= 7
    assert min(text.get_fontsize() for text in figure.findobj(matplotlib.text.Text) if text.get_text()) >= 9


def test_they_read_on_dark_pages_too(figure):
    drawing = figure_svg(figure, "words")
    assert 'aria-label="words"' in drawing and "currentColor" in drawing
