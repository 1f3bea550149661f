"""The ledger: what is entered, what it reveals, what it keeps."""

import pytest
from clocks import Clock

from bigtrain_nb.measure import benchmark as measure
from bigtrain_nb.measure.results import Comparison, Result
from bigtrain_nb.workbook import workbook
from bigtrain_nb.workbook.ledger import Ledger


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(workbook, "_predictions", {})


def result(rate, name="one"):
    return Result(name, tuple(rate + noise for noise in (-1.0, 0.0, 1.0, 0.5, -0.5, 0.2, -0.2)), "examples/s", 0, 70, 1)


def comparison(before, after):
    return Comparison({"before": result(before, "before"), "after": result(after, "after")})


@pytest.fixture
def ledger():
    made = Ledger()
    made.enter("naive", result(100), memory=200, loss=2.5)
    return made


def test_the_first_entry_is_where_it_began(ledger):
    (entry,) = ledger.entries
    assert (entry.name, entry.rate.median, entry.gain, entry.memory, entry.loss) == ("naive", 100.0, None, 200, 2.5)
    assert entry.kept and entry.predicted == {}


def test_a_gain_is_of_the_rate_beside_it_and_so_is_its_prediction(ledger):
    workbook.predict("batch", 2.0, "x")
    ledger.enter("batch", comparison(50, 150))
    entry = ledger.entries[1]
    assert entry.gain.median == pytest.approx(3, rel=0.05) and entry.rate.median == 150.0
    assert entry.before.median == 50.0 and entry.predicted == {"rate": 100.0}
    assert workbook._predictions["batch"].median == entry.gain.median


def test_a_rate_measured_elsewhere_is_compared_with_the_last_that_was_kept(ledger):
    ledger.enter("slower", comparison(100, 50))
    ledger.enter("workers", result(180))
    assert ledger.entries[2].gain == pytest.approx(1.8) and ledger.entries[2].before is None


@pytest.mark.parametrize(("after", "kept"), [(150, True), (101, False), (60, False)])
def test_what_is_not_faster_is_not_kept(ledger, after, kept):
    ledger.enter("step", comparison(100, after))
    assert ledger.entries[1].kept is kept
    ledger.enter("step", comparison(100, after), kept=not kept)
    assert ledger.entries[1].kept is not kept


def test_what_has_no_rate_is_kept(ledger):
    workbook.predict("schedule", 2.2, "nats")
    ledger.enter("schedule", loss=2.0)
    entry = ledger.entries[1]
    assert entry.kept and entry.rate is None and entry.predicted == {"loss": 2.2}
    assert workbook._predictions["schedule"].median == 2.0


def test_memory_is_predicted_in_mib(ledger):
    workbook.predict("K = 4", 150, "MiB")
    ledger.enter("K = 4", comparison(100, 90), memory=120)
    assert ledger.entries[1].predicted == {"memory": 150.0}


def test_to_enter_again_replaces_where_it_stands(ledger):
    ledger.enter("batch", comparison(100, 150))
    ledger.enter("workers", result(300))
    ledger.enter("batch", result(200))
    assert [entry.name for entry in ledger.entries] == ["naive", "batch", "workers"]
    assert ledger.entries[1].gain == pytest.approx(2)


@pytest.mark.parametrize("unit", ["x", "MiB", "seconds", ""])
def test_a_prediction_of_what_was_not_measured_is_refused(ledger, unit):
    workbook.predict("schedule", 2.2, unit)
    with pytest.raises(ValueError, match="'schedule' was predicted in .*, and that was not measured"):
        ledger.enter("schedule", loss=2.0)
    assert len(ledger.entries) == 1


def test_a_step_is_compared_with_one(ledger):
    three = Comparison({name: result(100, name) for name in "abc"})
    with pytest.raises(ValueError, match="two names, not a, b, c"):
        ledger.enter("three", three)


def test_a_bare_number_is_no_rate(ledger):
    with pytest.raises(TypeError, match="rate=100 must be a Result or a Comparison"):
        ledger.enter("workers", 100)
    assert len(ledger.entries) == 1 and "naive" in repr(ledger)


def test_it_shows_itself_as_a_table_and_in_words(ledger):
    ledger.enter("batch", comparison(100, 150))
    ledger.enter("half", result(75), kept=False)
    lines = {line.split()[0]: line for line in str(ledger).splitlines()}
    assert "200" in lines["naive"] and "2.50" in lines["naive"] and lines["naive"].endswith("yes")
    assert "1.5" in lines["batch"] and lines["half"].endswith("no") and "0.50x" in lines["half"]
    assert "naive: 100 (" in ledger.words() and "half: " in ledger.words() and "not kept" in ledger.words()
    assert "batch: 150 (149 to 151) examples/s beside 100 before, 1.50x (" in ledger.words()
    assert lines["batch"].split()[1:3] == ["100", "150"] and "<table" in ledger._repr_html_()


def test_a_card_repeats_what_was_entered(ledger):
    assert str(ledger.enter("schedule", loss=2.0)) == "Entered: schedule: 2.00 nats a byte."


@pytest.fixture
def steps(monkeypatch):
    """Make step functions of so many seconds by a clock that only they move."""
    clock = Clock()
    monkeypatch.setattr(measure, "_now", clock)
    monkeypatch.setattr(measure, "_settle", lambda *_: None)
    return lambda seconds: lambda: (clock.spend(seconds), 8)[-1]


def test_each_step_is_measured_beside_the_last_that_was_kept(steps):
    ledger = Ledger()
    ledger.measure("naive", steps(0.008), loss=2.5)
    ledger.measure("twice", steps(0.004))
    ledger.measure("slow", steps(0.016))
    ledger.enter("schedule", loss=2.4)
    assert ledger.last == "twice"
    ledger.measure("again", steps(0.002), memory=90)
    gains = [entry.gain and round(getattr(entry.gain, "median", 0), 2) for entry in ledger.entries]
    assert gains == [None, 2.0, 0.25, None, 2.0]
    assert [entry.kept for entry in ledger.entries] == [True, True, False, True, True]
    assert round(ledger.entries[0].rate.median) == 1000 and ledger.entries[0].rate.name == "naive"
    ledger.overall("all of it", loss=2.4)
    assert ledger.entries[-1].gain.median == pytest.approx(4) and ledger.last == "again"


def test_to_measure_again_compares_with_what_stands_before_it(steps):
    ledger = Ledger()
    ledger.measure("naive", steps(0.008))
    ledger.measure("batch", steps(0.004))
    ledger.measure("batch", steps(0.002))
    assert ledger.entries[1].gain.median == pytest.approx(4)
    ledger.measure("naive", steps(0.01))
    assert ledger.entries[0].gain is None and len(ledger.entries) == 2


def test_where_nothing_was_kept_there_is_no_whole(steps):
    ledger = Ledger()
    assert ledger.last is None
    ledger.measure("naive", steps(0.008))
    ledger.measure("slow", steps(0.009))
    with pytest.raises(ValueError, match="no step was kept"):
        ledger.overall("all of it")


def test_an_entry_in_place_of_a_measured_one_has_no_source_any_more(steps):
    ledger = Ledger()
    for name, seconds in {"naive": 0.008, "half": 0.004, "other": 0.001}.items():
        ledger.measure(name, steps(seconds))
    ledger.enter("other", result(9000))
    ledger.overall("all of it")
    assert ledger.entries[-1].gain.median == pytest.approx(2)
