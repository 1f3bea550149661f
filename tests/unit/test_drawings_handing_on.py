"""The drawings of notebook 11's second half: every value stands where it belongs."""

import matplotlib
import numpy as np
import pytest
from legible import check_narrow_and_legible
from workbook.drawings.handing_on import answered_figure, load_figure, pairs_figure, zeros_figure

from bigtrain_nb.plots import MEASURED, PREDICTED

STUDENTS = {"bytes": [1.8, 1.7], "teacher": [1.5, 1.4]}
ANSWERS = [(0.1, "REST 1", 1), (0.4, "gRPC 1", 1), (0.9, "REST 1", 2)]
LOAD = {"apart": {100: [0.002] * 99 + [0.02], 200: [0.1] * 100}, "together": {100: [0.003], 200: [0.005]}}
FIGURES = {
    "pairs": lambda: pairs_figure(STUDENTS, "loss"),
    "zeros": lambda: zeros_figure({0: 1.0, 0.8: 3.0}, {0: 312.0, 0.8: 96.0}),
    "answered": lambda: answered_figure(ANSWERS, published=0.5),
    "load": lambda: load_figure(LOAD),
}


def texts(figure):
    return {text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_narrow_legible_and_take_the_colour_of_the_page(name):
    check_narrow_and_legible(FIGURES[name]())


def test_students_of_one_seed_are_joined_and_means_are_said():
    drawn = FIGURES["pairs"]()
    (axes,) = drawn.axes
    assert [list(line.get_xdata()) for line in axes.lines[:2]] == [[1.8, 1.5], [1.7, 1.4]]
    assert {"mean 1.75", "mean 1.45"} <= texts(drawn)


def test_the_zipped_size_stands_at_each_share_of_zeros():
    drawn = FIGURES["zeros"]()
    assert list(drawn.axes[0].lines[0].get_xdata()) == [0, 80]
    assert {"312 kB", "96 kB"} <= texts(drawn)


def test_each_answer_stands_in_its_clients_row_in_the_colour_of_its_version():
    (axes,) = FIGURES["answered"]().axes
    points = {line.get_color(): sorted(map(tuple, line.get_xydata())) for line in axes.lines[:2]}
    assert points == {MEASURED: [(0.1, 0.0), (0.4, 1.0)], PREDICTED: [(0.9, 0.0)]}


def test_latency_is_drawn_as_median_and_as_what_99_percent_stay_below():
    (axes,) = FIGURES["load"]().axes
    median, tail = axes.lines[:2]
    np.testing.assert_allclose(median.get_xydata(), [[100, 2], [200, 100]])
    assert tail.get_ydata()[0] == pytest.approx(1000 * np.quantile(LOAD["apart"][100], 0.99))
