"""The drawings that one notebook needs: every value is drawn where it belongs and said in words."""

import math

import matplotlib
import numpy as np
import pytest
from legible import check_narrow_and_legible
from ml_dtypes import finfo
from workbook.drawings.accumulation import SMALLEST, distance_figure, memory_figure
from workbook.drawings.precision import FORMATS, bits_figure, powers, range_figure
from workbook.drawings.scaling import APART, curves_figure, efficiency_figure
from workbook.drawings.workers import message_figure, readers_figure, resumed_figure, ring_figure

from bigtrain_nb.plots import INK, MEASURED, PREDICTED, figure_png

WRONG = {"sum for mean": 3.0, "one vote for each slice": 0.043}
RIGHT = {"by hand": 4.2e-7, "exact": 0.0}
READ = {"FILE": [[0, 1], [2, 3]], "OFF": [[0, 1, 2, 3], [0, 1, 2, 3, 3]]}
HELD = {"start": [[1, 1], [1, 1]], "end": [[2, 2], [2, 2]]}
FIGURES = {
    "distance": lambda: distance_figure(WRONG, RIGHT),
    "memory": lambda: memory_figure({1: 500.0, 16: 125.0}, {1: 500.0, 4: 200.0, 16: 125.0}),
    "bits": bits_figure,
    "range": lambda: range_figure([1e-6, -3e-4, 0.02], scale=2.0**15),
    "efficiency": lambda: efficiency_figure({"two": 0.6, "four": 0.5}),
    "curves": lambda: curves_figure({"one": [2.0, 1.0], "many": [2.0, 1.5]}),
    "readers": lambda: readers_figure(READ),
    "ring": lambda: ring_figure(HELD),
    "message": lambda: message_figure({4096: 0.001, 2**20: 0.004}, {4096: 0.0012, 2**20: 0.0035}),
    "resumed": lambda: resumed_figure({1: 2.0, 2: 1.5, 3: 1.0}, {1: 2.0, 2: 1.5}, {2: 1.5, 3: 1.0}),
}


def texts(figure):
    return {text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()}


def points(axes, marker):
    return [line.get_xydata()[0].tolist() for line in axes.lines if line.get_marker() == marker]


def filled(figure, colour):
    wanted = matplotlib.colors.to_rgb(colour)
    return [patch for patch in figure.axes[0].patches if patch.get_facecolor()[:3] == wanted]


def histogram(figure, colour):
    """{power of two: height} of the histogram in that colour."""
    for stairs in filled(figure, colour):
        if isinstance(stairs, matplotlib.patches.StepPatch):
            values, edges, baseline = stairs.get_data()
            heights = zip(edges[:-1], values - baseline, strict=True)
            return {power: height for power, height in heights if height}
    return {}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_narrow_legible_and_take_the_colour_of_the_page(name):
    check_narrow_and_legible(FIGURES[name]())


def test_distances_stand_in_order_with_their_values_and_with_what_training_moved():
    drawn = FIGURES["distance"]()
    (axes,) = drawn.axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == [*WRONG, *RIGHT]
    assert points(axes, "X") == [[3.0, 0], [0.043, 1]]
    assert points(axes, "o") == [[4.2e-7, 2], [SMALLEST, 3]]
    assert {"3.00", "0.0430", "4.2e-07", "0"} <= texts(drawn)
    assert any(list(line.get_xdata()) == [1, 1] for line in axes.lines)


@pytest.mark.parametrize("name", FORMATS)
def test_powers_are_those_of_the_format(name):
    smallest, normal, end = powers(*FORMATS[name])
    known = finfo(name)
    assert [2.0**smallest, 2.0**normal] == [known.smallest_subnormal, known.smallest_normal]
    assert 2.0 ** (end - 1) < float(known.max) < math.ldexp(1, end)


def test_a_range_counts_sizes_by_powers_of_two_whatever_their_sign_and_leaves_out_zero():
    drawn = range_figure([1.5 * 2.0**-9, -1.5 * 2.0**-9, 1.5 * 2.0**-4, 0.0, math.nan], scale=2.0**15)
    counted = histogram(drawn, MEASURED)
    assert set(counted) == {-9, -4} and counted[-9] == pytest.approx(2 * counted[-4])
    assert set(histogram(drawn, PREDICTED)) == {6, 11}
    assert {"gradients", "gradients times 32,768", "fewer digits", " from $2^{-149}$", "to $2^{128}$ "} <= texts(drawn)


def test_an_efficiency_is_a_bar_with_its_loss():
    drawn = FIGURES["efficiency"]()
    assert [bar.get_width() for bar in filled(drawn, MEASURED)] == [0.6, 0.5]
    assert {"40 % lost", "50 % lost"} <= texts(drawn)


def test_the_first_curve_is_the_one_to_compare_with_labels_stand_apart():
    curves = {name: [2.0, 1.0 + 0.001 * place] for place, name in enumerate("abcd")}
    (axes,) = curves_figure(curves).axes
    assert [line.get_color() for line in axes.lines] == [INK, MEASURED, MEASURED, MEASURED]
    assert list(axes.lines[1].get_ydata()) == curves["b"] and axes.get_yscale() == "log"
    heights = [text.get_position()[1] for text in axes.texts]
    assert [text.get_text() for text in axes.texts] == list("abcd")
    assert min(np.diff(heights)) >= 0.99 * APART
    lost = curves_figure({"fine": [2.0, 1.0], "lost": [2.0, math.inf]})
    assert figure_png(lost).startswith(b"\x89PNG")


def test_squares_are_filled_for_what_a_worker_reads():
    drawn = FIGURES["readers"]()
    found = {(round(square.get_x() + 0.42), round(square.get_y() + 0.36)) for square in filled(drawn, MEASURED)}
    everything = {(example, worker) for example in range(4) for worker in (2, 3)}
    assert found == {(0, 0), (1, 0), (2, 1), (3, 1)} | everything
    assert {"FILE, worker 0", "OFF, worker 1", "2 of 4", "4 of 4"} <= texts(drawn)
