"""The figures of single notebooks: legible, with measurements at the right place."""

import math
import re
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from ml_dtypes import finfo

from bigtrain_nb import plots
from bigtrain_nb.plots import MEASURED, PREDICTED
from bigtrain_nb.series import drawings
from bigtrain_nb.series.drawings import (
    accumulation,
    cuts,
    handing_on,
    memory,
    precision,
    searching,
    servers,
    sharing,
    workers,
)
from bigtrain_nb.series.gathering import fully_sharded_step
from bigtrain_nb.series.pipelines import passes_of

WRONG = {"sum for mean": 3.0, "one vote for each slice": 0.043}
RIGHT = {"by hand": 4.2e-7, "exact": 0.0}
READ = {"FILE": [[0, 1], [2, 3]], "OFF": [[0, 1, 2, 3], [0, 1, 2, 3, 3]]}
ADAPTED = {way: {0.001: (2.5, 1.5), 0.01: (2.3, 2.0), 0.1: (2.9, 3.0)} for way in ("all", "upper half", "LoRA")}
FIGURES = {
    "distance": lambda: accumulation.distance_figure(WRONG, RIGHT),
    "segments": lambda: memory.segments_figure(
        {"one": ({1: 9.0, 3: 6.0}, {1: 10.0, 3: 6.0}), "four": ({1: 3.0}, {1: 3.0})}
    ),
    "lengths": lambda: memory.lengths_figure(
        {"whole": {8: 9.0, 16: 40.0}, "chunks": {8: 3.0, 16: 6.0}}, {8: 2.0, 16: 8.0}
    ),
    "clock": lambda: sharing.clock_figure({"none ahead": fully_sharded_step(2, 1.0, 2.0, 4.0, 1.0, ahead=0)}),
    "orders": lambda: cuts.order_figure({"gpipe": passes_of("gpipe", 2, 4)}, "ms"),
    "readers": lambda: workers.readers_figure(READ, lines_of_file=4),
    "pairs": lambda: handing_on.pairs_figure({"bytes": [1.8, 1.7], "teacher": [1.5, 1.4]}, "loss"),
    "forgetting": lambda: handing_on.forgetting_figure(ADAPTED),
    "tokens": lambda: handing_on.requests_figure({1: 100.0, 8: 400.0}),
    "reached": lambda: searching.reached_figure({"all": [3, 9, 6], "some": [2, 4, 4]}, "epochs"),
    "seeds": lambda: searching.seeds_figure({"by hand": [3.0, 4.0], "winner": [2.0, 2.5]}),
    "arrived": lambda: servers.arrived_figure({"data": {0: 1, 1: 1}, "off": {0: 2, 1: 2}}, 2),
}
SAID = {
    "distance": {*WRONG, *RIGHT, "3.00", "0.0430", "4.2e-07", "0"},
    "readers": {"FILE, worker 0", "OFF, worker 1", "2 of 4", "4 of 4"},
    "segments": {"one", "four", "9.00", "6.00"},
    "lengths": {"whole", "chunks", "one attention matrix", "40.0"},
    "clock": {"none ahead: the step ends at 17.0 ms, the device waits for 5.0 ms", "gathers weights", "forward"},
    "orders": {"gpipe: ends at 15 ms; a pass takes 1 forward, 2 backward", "stage 1", "3"},
    "forgetting": {"all", "upper half", "LoRA", "0.001"},
    "pairs": {"mean 1.75", "mean 1.45"},
    "arrived": {"2 received", "4 received"},
    "seeds": {"3.500", "2.250"},
}


@pytest.mark.parametrize("name", SAID)
def test_figures_have_their_numbers_in_words(name):
    figure = FIGURES[name]()
    figure.draw_without_rendering()
    assert SAID[name] <= {text.get_text() for text in figure.findobj(matplotlib.text.Text)}


def test_no_text_of_a_drawing_is_smaller_than_nine_points():
    """Each drawing is shown by a notebook; Matplotlib's own sizes are ten points."""
    for folder in (Path(plots.__file__).parent, Path(drawings.__file__).parent):
        for path in folder.glob("*.py"):
            sizes = re.findall(r"(?:font|label)size=([^,)]+)", path.read_text(encoding="utf-8"))
            assert all(float(size) >= 9 for size in sizes), path.name


def filled(figure, colour):
    wanted = matplotlib.colors.to_rgb(colour)
    return [patch for patch in figure.axes[0].patches if patch.get_facecolor()[:3] == wanted]


def histogram(figure, colour):
    """Return {power of two: height} of the histogram with this color."""
    for stairs in filled(figure, colour):
        if isinstance(stairs, matplotlib.patches.StepPatch):
            values, edges, baseline = stairs.get_data()
            heights = zip(edges[:-1], values - baseline, strict=True)
            return {power: height for power, height in heights if height}
    return {}


@pytest.mark.parametrize("name", precision.FORMATS)
def test_powers_are_those_of_the_format(name):
    smallest, normal, end = precision.powers(*precision.FORMATS[name])
    known = finfo(name)
    assert [2.0**smallest, 2.0**normal] == [known.smallest_subnormal, known.smallest_normal]
    assert 2.0 ** (end - 1) < float(known.max) < math.ldexp(1, end)


def test_a_range_counts_sizes_by_powers_of_two_whatever_their_sign_and_leaves_out_zero():
    drawn = precision.range_figure([1.5 * 2.0**-9, -1.5 * 2.0**-9, 1.5 * 2.0**-4, 0.0, math.nan], scale=2.0**15)
    counted = histogram(drawn, MEASURED)
    assert set(counted) == {-9, -4} and counted[-9] == pytest.approx(2 * counted[-4])
    assert set(histogram(drawn, PREDICTED)) == {6, 11}


def test_squares_are_filled_for_what_a_worker_reads():
    drawn = FIGURES["readers"]()
    found = {(round(square.get_x() + 0.42), round(square.get_y() + 0.36)) for square in filled(drawn, MEASURED)}
    everything = {(example, worker) for example in range(4) for worker in (2, 3)}
    assert found == {(0, 0), (1, 0), (2, 1), (3, 1)} | everything


def test_the_rate_that_learned_most_has_a_ring_and_names_of_lines_stand_apart():
    for axes, loss in zip(FIGURES["forgetting"]().axes, (2.3, 2.0), strict=True):
        rings = [line.get_xydata().tolist() for line in axes.lines if line.get_fillstyle() == "none"]
        assert rings == [[[0.01, loss]]] * 3
        heights = sorted(text.get_position()[1] for text in axes.texts)
        assert min(np.diff(heights)) > 0.1, "all lines end at the same loss"


def test_a_device_is_grey_where_it_waits():
    drawn = FIGURES["clock"]()
    waits = [(box.get_x(), box.get_x() + box.get_width()) for box in filled(drawn, sharing.WAITING)]
    assert waits == [(0, 1), (3, 4), (6, 7), (11, 12), (16, 17)]
    names = [text.get_text() for text in drawn.axes[0].texts]
    assert names.count("gathers weights") == names.count("backward") == 1


def test_tokens_are_those_of_all_readers_and_of_each():
    (axes,) = FIGURES["tokens"]().axes
    together, each = (line.get_ydata() for line in axes.lines)
    assert list(together) == [100, 400] and list(each) == [100, 50]


def test_searches_that_are_there_are_counted_in_percent():
    (axes,) = FIGURES["reached"]().axes
    whole, some = (line.get_xydata() for line in axes.lines)
    assert np.allclose(whole, [[3, 100 / 3], [6, 200 / 3], [9, 100]])
    assert np.allclose(some[:, 0], [2, 4, 4])
