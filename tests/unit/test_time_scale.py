"""BIGTRAIN_NB_TIME_SCALE: a factor on measurement times."""

import pytest
from clocks import Source

import bigtrain_nb as bt


@pytest.fixture
def say(monkeypatch):
    return lambda value: monkeypatch.setenv("BIGTRAIN_NB_TIME_SCALE", value)


def seconds_of_each(clock):
    """Return the seconds that each kind of measurement took, with seconds=8."""

    def build(name):
        return Source(clock, 0.01)

    alone = bt.throughput(build(0), seconds=8).seconds
    compared = bt.compare({"a": lambda: build(0), "b": lambda: build(0)}, seconds=8).seconds
    raced = bt.race(build, seconds=8, name=["a", "b"])
    return alone, compared, sum(result.seconds for result in raced.results.values())


def test_all_that_measures_takes_so_many_times_as_long(clock, say):
    once = seconds_of_each(clock)
    for said, times in ((" 3 ", 3), ("0.5", 0.5)):
        say(said)
        assert seconds_of_each(clock) == pytest.approx([times * one for one in once], rel=0.35)


def test_the_lab_and_the_diagnosis_have_it_too(clock, say, monkeypatch):
    say("3")
    told = []
    lab = bt.Lab(lambda batch: Source(clock, 0.01), seconds=2, batch=[1, 2])
    monkeypatch.setattr(lab, "_set_status", lambda job, words: told.append(words))
    lab.run(batch=1)
    assert "about 6 s" in told[0]
    pulled = []
    monkeypatch.setattr(
        "bigtrain_nb.advanced.watch.diagnose._pull", lambda reader, times, seconds: pulled.append(seconds) or 1
    )
    bt.diagnose(bt.tf.data.Dataset.range(100).batch(10), seconds=2)
    assert sum(pulled) == pytest.approx(6)


@pytest.mark.parametrize("said", ["0", "-1", "nan", "inf", "much"])
def test_what_is_no_patience_is_refused_in_words(say, said):
    say(said)
    with pytest.raises(
        ValueError, match=f"BIGTRAIN_NB_TIME_SCALE={said} must be a positive, finite number: with 3, measurements take"
    ):
        bt.throughput([[0] * 8])
