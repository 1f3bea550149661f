"""Pictures of several workers: who reads what, the ring, the cost of messages, and a curve that goes on."""

import matplotlib
import pytest
from matplotlib.patches import Rectangle
from workbook.drawings.workers import message_figure, readers_figure, resumed_figure, ring_figure

from bigtrain_nb.plots import INK, MEASURED, PREDICTED, figure_png

READ = {"FILE": [[0, 1], [2, 3]], "OFF": [[0, 1, 2, 3]] * 2}
HELD = {"start": [[1, 1], [1, 1]], "end": [[2, 2], [2, 2]]}
MESSAGES = {4096: 0.001, 2**20: 0.004}
CURVES = {1: 2.0, 2: 1.5, 3: 1.0}, {1: 2.0, 2: 1.5}, {2: 1.5, 3: 1.0}


def texts(figure):
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


def squares(figure):
    return [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]


def test_squares_are_filled_for_what_a_worker_reads():
    drawn = readers_figure(READ)
    blue = matplotlib.colors.to_rgb(MEASURED)
    found = [square for square in squares(drawn) if square.get_facecolor()[:3] == blue]
    filled = {(round(square.get_x() + 0.42), round(square.get_y() + 0.36)) for square in found}
    assert filled == {(0, 0), (1, 0), (2, 1), (3, 1), *((x, y) for x in range(4) for y in (2, 3))}
    assert len(squares(drawn)) == 16
    assert texts(drawn).count("2 of 4") == 2 and texts(drawn).count("4 of 4") == 2
    assert {"FILE, worker 0", "FILE, worker 1", "OFF, worker 0", "OFF, worker 1"} <= set(texts(drawn))


def test_an_example_read_twice_counts_once():
    assert "1 of 2" in texts(readers_figure({"OFF": [[1, 1]]}))


def test_chunks_are_darker_the_more_workers_are_in_them():
    drawn = ring_figure(HELD)
    begin, end = squares(drawn)[:4], squares(drawn)[4:]
    assert {square.get_alpha() for square in end} == {1.0}
    assert all(square.get_alpha() < 0.6 for square in begin)
    assert {"start", "end", "worker 0", "worker 1"} <= set(texts(drawn))
    assert max(s.get_x() for s in begin) + 1 < min(s.get_x() for s in end)


def test_messages_are_dots_and_what_is_fitted_a_line():
    axes = message_figure(MESSAGES, {4096: 0.0012, 2**20: 0.0035}).axes[0]
    dashed, *dots = axes.lines
    assert dashed.get_color() == PREDICTED and list(dashed.get_ydata()) == [0.0012, 0.0035]
    assert [tuple(*dot.get_xydata()) for dot in dots] == list(MESSAGES.items())
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["4 KiB", "1 MiB"]


def test_the_curve_that_went_on_lies_over_the_whole_one():
    axes = resumed_figure(*CURVES).axes[0]
    whole, before, kill, after = axes.lines
    assert (whole.get_color(), before.get_color(), after.get_color()) == (INK, MEASURED, INK)
    assert list(after.get_xdata()) == [2, 3] and kill.get_marker() == "X"
    assert (list(kill.get_xdata()), list(kill.get_ydata())) == ([2], [1.5])
    assert axes.get_ylim()[0] == 0


@pytest.mark.parametrize(
    "draw",
    [
        lambda: readers_figure({}),
        lambda: readers_figure({"OFF": [[], []]}),
        lambda: ring_figure({}),
        lambda: message_figure({}, MESSAGES),
        lambda: resumed_figure({}, *CURVES[1:]),
        lambda: resumed_figure(*CURVES[:2], {}),
    ],
)
def test_nothing_to_draw_is_refused(draw):
    with pytest.raises(ValueError, match="nothing to draw"):
        draw()


@pytest.mark.parametrize(
    "draw",
    [
        lambda: readers_figure(READ),
        lambda: ring_figure(HELD),
        lambda: message_figure(MESSAGES, MESSAGES),
        lambda: resumed_figure(*CURVES),
    ],
)
def test_figures_are_narrow_and_legible(draw):
    drawn = draw()
    assert drawn.get_figwidth() <= 7
    assert min(text.get_fontsize() for text in drawn.findobj(matplotlib.text.Text) if text.get_text()) >= 9
    assert figure_png(drawn).startswith(b"\x89PNG")
