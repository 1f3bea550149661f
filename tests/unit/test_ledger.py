"""The ledger of notebook 06: its entries, revealed predictions, and kept steps."""

import pytest
from clocks import Clock

from bigtrain_nb.common.words import interval
from bigtrain_nb.measure import source
from bigtrain_nb.measure.results import Comparison, Result
from bigtrain_nb.series.ledger import Ledger
from bigtrain_nb.workbook import workbook

pytestmark = pytest.mark.usefixtures("fresh_notes")


def result(rate, name="one"):
    rounds = [rate + noise for noise in (-1.0, 0.0, 1.0, 0.5, -0.5, 0.2, -0.2)]
    return Result(name, tuple(rounds), "examples/s", 0, 70, 1)


def comparison(before, after):
    return Comparison({"before": result(before, "before"), "after": result(after, "after")})


@pytest.fixture
def ledger():
    made = Ledger()
    made.enter("naive", result(100), loss=2.5)
    return made


@pytest.mark.parametrize(("said", "predicted"), [(2.0, "2.00x"), (..., "")])
def test_a_gain_is_of_the_rate_beside_it_and_so_is_its_prediction(ledger, said, predicted):
    workbook.predict("batch", said, "x")
    ledger.enter("batch", comparison(50, 150))
    entry = ledger.entries[1]
    assert entry.gain.median == pytest.approx(3, rel=0.05)
    assert entry.rate.median == 150 and entry.before.median == 50
    assert entry.predicted == predicted
    assert workbook.predicted("batch").median == entry.gain.median


@pytest.mark.parametrize(("after", "kept"), [(150, True), (101, False), (60, False)])
def test_what_is_not_faster_is_not_kept_unless_it_is_said(ledger, after, kept):
    ledger.enter("step", comparison(100, after))
    assert ledger.entries[1].kept is kept
    ledger.enter("step", comparison(100, after), kept=not kept)
    assert ledger.entries[1].kept is not kept


def test_a_loss_can_be_predicted_and_entered_without_a_rate(ledger):
    workbook.predict("schedule", 2.25, "nats")
    ledger.enter("schedule", loss=2.0)
    schedule = ledger.entries[1]
    assert schedule.kept and schedule.rate is None and schedule.predicted == "2.25 nats"
    assert workbook.predicted("schedule").median == 2.0


def test_what_was_predicted_in_another_unit_is_refused(ledger):
    workbook.predict("K = 4", 150, "MiB")
    with pytest.raises(ValueError, match="'K = 4' was predicted in 'MiB'"):
        ledger.enter("K = 4", loss=2.0)


def test_it_shows_itself_as_a_table_and_each_entry_in_words(ledger):
    workbook.predict("batch", 2.0, "x")
    card = ledger.enter("batch", comparison(100, 150))
    ledger.enter("half", result(75), kept=False)
    lines = {line.split()[0]: line.split()[1:] for line in str(ledger).splitlines()}
    assert lines["naive"] == ["100", "2.50", "yes"]
    assert lines["batch"][-2:] == ["2.00x", "yes"]
    assert lines["half"] == ["75", "0.50x", "no"]
    assert "<table" in ledger._repr_html_()
    gain = interval(ledger.entries[1].gain)
    assert gain.startswith("1.50x (1.")
    assert str(card) == f"Entered: batch: 100 examples/s before, 150 examples/s, {gain} gain, predicted 2.00x."


@pytest.fixture
def steps(monkeypatch):
    """Return a maker of step functions that take this many seconds of a clock that only they advance."""
    clock = Clock()
    monkeypatch.setattr(source, "now", clock)

    def step_of(seconds):
        def step():
            clock.spend(seconds)
            return 8

        return step

    return step_of


def gains(ledger):
    return [entry.gain and pytest.approx(entry.gain.median) for entry in ledger.entries]


def test_each_step_is_measured_beside_the_last_that_was_kept(steps):
    ledger = Ledger()
    assert ledger.last is None
    ledger.measure("naive", steps(0.008), loss=2.5)
    ledger.measure("twice", steps(0.004))
    ledger.measure("slow", steps(0.016))
    ledger.enter("schedule", loss=2.4)
    assert ledger.last == "twice"
    ledger.measure("again", steps(0.002))
    ledger.overall("all of it", loss=2.4)
    assert gains(ledger) == [None, 2, 0.25, None, 2, 4]
    assert [entry.kept for entry in ledger.entries] == [True, True, False, True, True, True]
    assert ledger.entries[0].rate.median == pytest.approx(1000)
    assert ledger.last == "again"


def test_to_measure_or_enter_again_replaces_where_it_stands(steps):
    ledger = Ledger()
    ledger.measure("naive", steps(0.008))
    ledger.measure("batch", steps(0.004))
    ledger.measure("other", steps(0.001))
    ledger.measure("batch", steps(0.002))
    ledger.enter("other", result(9000))
    ledger.measure("naive", steps(0.01))
    ledger.overall("all of it")
    assert [entry.name for entry in ledger.entries] == ["naive", "batch", "other", "all of it"]
    naive, batch, other, whole = ledger.entries
    assert naive.gain is None
    assert batch.gain.median == pytest.approx(4)
    assert other.gain == pytest.approx(9000 / 4000)
    assert whole.gain.median == pytest.approx(5)  # relative to the last measured step, batch
