"""The drawings of searches and of two tasks: every value is drawn where it belongs."""

import numpy as np
import pytest
from legible import check_narrow_and_legible
from matplotlib.text import Text
from workbook.drawings.searching import (
    cosines_figure,
    curse_figure,
    pruned_figure,
    reached_figure,
    seeds_figure,
    trade_figure,
)

from bigtrain_nb.plots import PREDICTED

CURVES = [[3.0, 2.0, 1.0], [4.0, 3.5, 3.0]]
FIGURES = {
    "pruned": lambda: pruned_figure(CURVES, [3, 2]),
    "reached": lambda: reached_figure({"all": [3, 9, 6], "some": [2, 4, 4]}, "epochs"),
    "seeds": lambda: seeds_figure({"by hand": [3.0, 4.0], "winner": [2.0, 2.5]}),
    "curse": lambda: curse_figure([2, 4], [1.0, 2.0], [0.5, 1.0]),
    "cosines": lambda: cosines_figure([0, 1], [-0.5, 0.5], [0.9, 0.8]),
    "trade": lambda: trade_figure({"1": (10.0, 3.6), "learned": (10.5, 3.4)}, ["learned"]),
}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_narrow_and_legible(name):
    check_narrow_and_legible(FIGURES[name]())


def test_a_stopped_trial_ends_in_a_mark_and_one_that_ran_to_its_end_has_none():
    (axes,) = FIGURES["pruned"]().axes
    marks = [line.get_xydata().tolist() for line in axes.lines if line.get_marker() == "X"]
    assert marks == [[[2, 3.5]]]
    assert [
        len(line.get_xdata()) for line in axes.lines if line.get_linewidth() > 1 and line.get_marker() == "None"
    ] == [3, 2]


def test_searches_that_are_there_are_counted_in_percent():
    (axes,) = FIGURES["reached"]().axes
    whole, some = (line.get_xydata() for line in axes.lines)
    assert np.allclose(whole, [[3, 100 / 3], [6, 200 / 3], [9, 100]])
    assert np.allclose(some[:, 0], [2, 4, 4])


def test_each_row_of_seeds_says_its_mean():
    figure = FIGURES["seeds"]()
    assert {"3.500", "2.250"} <= {text.get_text() for text in figure.findobj(Text)}


def test_what_was_learned_has_a_colour_of_its_own():
    (axes,) = FIGURES["trade"]().axes
    assert [line.get_color() == PREDICTED for line in axes.lines] == [False, True]
