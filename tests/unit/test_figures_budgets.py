"""The pictures of budgets: what they say, and that they bear odd numbers."""

import matplotlib
import pytest

from bigtrain_nb.plan.breakdown import Account, Line
from bigtrain_nb.plan.formulas import step_time
from bigtrain_nb.plots import MEASURED, PREDICTED, figure_png, figure_svg
from bigtrain_nb.plots.budgets import budget_figure, predicted_figure, step_figure

MEMORY = Account("Memory", "bytes", (Line("weights", 2**30), Line("activations", 3 * 2**30), Line("input", 2**20)))
ROWS = [("good", 100e6, 110e6), ("bad one", 1e9, 2e9)]
FIGURES = {
    "memory": lambda: budget_figure({"a": MEMORY}, {"H100": 8e9, "B200": 180e9}),
    "memory alone": lambda: budget_figure({"a": MEMORY, "b": MEMORY}),
    "step": lambda: step_figure(step_time(2.0, 0.5, 1.0)),
    "empty step": lambda: step_figure(step_time(0.0)),
    "predicted": lambda: predicted_figure(ROWS, 0.15, "bytes"),
}


def texts(figure):
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


@pytest.fixture(params=FIGURES)
def figure(request):
    return FIGURES[request.param]()


def test_bars_are_as_long_as_the_parts():
    drawn = budget_figure({"a": MEMORY})
    assert sorted(bar.get_width() for bar in drawn.axes[0].patches) == sorted(line.value for line in MEMORY.lines)
    assert {"weights", "activations", "input", "4.00 GiB"} <= set(texts(drawn))


def test_limits_in_reach_are_drawn_and_others_left_out():
    drawn = " ".join(texts(FIGURES["memory"]()))
    assert "H100" in drawn and "B200" not in drawn


def test_a_step_says_its_parts():
    assert any("2.00 s computing" in text for text in texts(FIGURES["step"]()))
    assert any("3" not in text and "2.50 s a step" in text for text in texts(FIGURES["step"]()))


def test_predictions_outside_the_band_are_named_and_of_another_colour():
    drawn = FIGURES["predicted"]()
    colours = {line.get_color() for line in drawn.axes[0].lines if line.get_marker() == "o"}
    assert colours == {MEASURED, PREDICTED}
    assert "bad one" in texts(drawn) and "good" not in texts(drawn)
    assert any("1 of 2 within it" in text for text in texts(drawn))


def test_nothing_to_draw_is_refused():
    with pytest.raises(ValueError, match="accounts: nothing to draw"):
        budget_figure({})
    with pytest.raises(ValueError, match="rows: nothing to draw"):
        predicted_figure([], 0.1, "s")
    with pytest.raises(ValueError, match="'a' has .* expected numbers above zero"):
        predicted_figure([("a", 0, 1)], 0.1, "s")


def test_figures_are_narrow_and_legible(figure):
    assert figure.get_figwidth() <= 7 and figure_png(figure).startswith(b"\x89PNG")
    assert min(text.get_fontsize() for text in figure.findobj(matplotlib.text.Text) if text.get_text()) >= 9


def test_they_read_on_dark_pages_too(figure):
    drawing = figure_svg(figure, "words")
    assert 'aria-label="words"' in drawing and "currentColor" in drawing
