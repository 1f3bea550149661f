"""The picture of a ledger: three panels with the same rows, predictions drawn in, nothing cut off."""

from types import SimpleNamespace

import matplotlib
import pytest
from matplotlib.colors import to_rgb

from bigtrain_nb.plots import INK, MEASURED, PREDICTED, figure_png, figure_svg
from bigtrain_nb.plots.canvas import canvas
from bigtrain_nb.plots.ledger import LEFT_OUT, ledger_figure


def entry(name, rate=None, memory=None, loss=None, predicted=None, kept=True, before=None):
    rate, before = (one and SimpleNamespace(median=one, low=0.9 * one, high=1.1 * one) for one in (rate, before))
    predicted = predicted or {}
    return SimpleNamespace(
        name=name, rate=rate, before=before, memory=memory, loss=loss, predicted=predicted, kept=kept
    )


ENTRIES = [
    entry("naive", 400.0, 210.0, 2.51),
    entry("batch of 64", 900.0, 290.0, 2.8, {"rate": 1600.0}, before=380.0),
    entry("bfloat16", 700.0, predicted={"rate": 1350.0}, kept=False),
    entry("schedule", loss=2.4, predicted={"loss": 2.6}),
]


@pytest.fixture
def drawn():
    return ledger_figure(ENTRIES)


def texts(figure):
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


def diamonds(axes):
    return [tuple(*line.get_xydata()) for line in axes.lines if line.get_marker() == "D"]


def bars(axes):
    return [(bar.get_width(), round(bar.get_y() + bar.get_height() / 2)) for bar in axes.patches]


def test_every_measured_value_is_a_bar_or_a_dot_in_its_row(drawn):
    rate, memory, loss = drawn.axes
    assert bars(rate) == [(400.0, 0), (900.0, 1), (700.0, 2)] and bars(memory) == [(210.0, 0), (290.0, 1)]
    assert [tuple(*line.get_xydata()) for line in loss.lines if line.get_marker() == "o"] == [
        (2.51, 0),
        (2.8, 1),
        (2.4, 3),
    ]
    assert {"400", "900", "700", "210", "290", "2.51", "2.80", "2.40"} <= set(texts(drawn))


def test_predictions_are_diamonds_of_their_colour(drawn):
    rate, memory, loss = drawn.axes
    assert (diamonds(rate), diamonds(memory), diamonds(loss)) == ([(1600.0, 1), (1350.0, 2)], [], [(2.6, 3)])
    assert all(line.get_color() == PREDICTED for axes in drawn.axes for line in axes.lines if line.get_marker() == "D")


def test_the_way_before_is_a_dotted_mark_in_the_row_it_was_measured_with(drawn):
    (mark,) = [line for axes in drawn.axes for line in axes.lines if line.is_dashed()]
    assert set(mark.get_xdata()) == {380.0} and mark.get_ydata().mean() == 1 and mark in drawn.axes[0].lines
    assert all(len(line) <= 80 for text in texts(drawn) for line in text.splitlines())
    assert "dots: the way before" in " ".join(texts(drawn))


def test_what_was_not_kept_is_pale(drawn):
    naive, batch, half = drawn.axes[0].patches
    assert half.get_alpha() == LEFT_OUT and naive.get_alpha() == batch.get_alpha() == 1
    assert to_rgb(half.get_facecolor()[:3]) == to_rgb(MEASURED)
    assert "pale: not kept" in " ".join(texts(drawn))


def test_rows_have_names_and_panels_units(drawn):
    assert [tick.get_text() for tick in drawn.axes[0].get_yticklabels()] == [one.name for one in ENTRIES]
    assert [axes.get_xlabel() for axes in drawn.axes] == ["examples/s", "peak memory, MiB", "loss, nats a byte"]
    assert drawn.axes[0].get_ylim()[0] > drawn.axes[0].get_ylim()[1]


def test_everything_is_in_sight(drawn):
    for axes, values in zip(drawn.axes, ([400, 990, 1600], [210, 290], [2.4, 2.8]), strict=True):
        low, high = axes.get_xlim()
        assert low <= min(values) and max(values) <= high
    assert drawn.axes[0].get_xlim()[0] == drawn.axes[1].get_xlim()[0] == 0 < drawn.axes[2].get_xlim()[0]


def test_a_ledger_of_one_entry_can_be_drawn():
    for one in (ENTRIES[0], ENTRIES[3], entry("nothing yet")):
        assert figure_png(ledger_figure([one])).startswith(b"\x89PNG")


def test_the_key_names_only_what_is_there():
    assert "diamond" not in " ".join(texts(ledger_figure(ENTRIES[:1])))
    assert "pale" not in " ".join(texts(ledger_figure(ENTRIES[:2])))
    assert "before" not in " ".join(texts(ledger_figure(ENTRIES[2:])))


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="entries: nothing to draw"):
        ledger_figure([])


def test_it_is_narrow_legible_and_takes_the_colour_of_the_page(drawn):
    assert drawn.get_figwidth() <= 7
    assert min(text.get_fontsize() for text in drawn.findobj(matplotlib.text.Text) if text.get_text()) >= 9
    assert INK not in figure_svg(drawn, "words")


def test_a_canvas_of_several_columns_shares_its_rows():
    figure, panels = canvas(2.0, columns=3)
    panels[0].set_ylim(5, 0)
    assert len(panels) == 3 and panels[2].get_ylim() == (5, 0)
    assert not any(axes.spines["top"].get_visible() for axes in panels)
    assert canvas(2.0)[1].figure is not figure
