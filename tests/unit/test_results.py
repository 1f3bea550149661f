"""Results: values and text, verdicts, JSON, HTML."""

import json
import math
from dataclasses import replace

import pytest

import bigtrain_nb as bt
from bigtrain_nb.measure.results import Comparison, Race, Ratio, Result


def result(name="a", rounds=(90.0, 100.0, 110.0, 95.0, 105.0, 100.0), note=""):
    return Result(name, tuple(rounds), "examples/s", 0.25, 640, 6.5, note)


@pytest.fixture
def comparison():
    rates = [100.0, 101.0, 99.0, 102.0, 98.0, 100.0, 103.0]
    fast = [2 * rate for rate in rates]
    instances = (1, 1, 1, 2, 2, 2, 2)
    return Comparison({"slow": result("slow", rates), "fast": result("fast", fast)}, 0.005, instances, 1.5)


@pytest.mark.parametrize(
    "low, high, verdict",
    [
        (1.021, 1.03, "faster"),
        (0.5, 0.979, "slower"),
        (0.985, 1.015, "same"),
        (1.001, 1.019, "same"),
        (1.02, 1.5, "unclear"),
        (0.5, 0.99, "unclear"),
        (0.97, 1.01, "unclear"),
        (0.0, math.inf, "unclear"),
    ],
)
def test_a_verdict_is_that_of_the_whole_interval(low, high, verdict):
    ratio = Ratio("a", "b", 1.0, low, high)
    assert ratio.verdict == verdict
    assert str(ratio).endswith(": too close to call" if verdict == "unclear" else f", {verdict}")
    assert len(str(ratio).split()) <= 10


def test_a_ratio_says_what_to_do_and_keeps_the_rest_for_its_details():
    ratio = Ratio("a", "b", 1.1, 0.9, 1.3, "another 9 s would halve that", "3 rounds")
    assert str(ratio) == "1.10x (0.90x to 1.30x): too close to call"
    assert repr(ratio) == "a against b: 1.10x (0.90x to 1.30x): too close to call; another 9 s would halve that"


@pytest.mark.parametrize(("median", "words"), [(9.3, "noisy"), (1.6, "noisy"), (1.4, "close"), (0.5, "noisy")])
def test_what_is_far_apart_is_not_called_close(median, words):
    assert str(Ratio("a", "b", median, 0.3, 80.0)).endswith(f"): too {words} to call")


def test_a_comparison_pairs_the_rounds(comparison):
    assert comparison.names == ("slow", "fast")
    ratio = comparison.ratio("fast", "slow")
    assert ratio.median == pytest.approx(2) and 1.5 < ratio.low < 2 < ratio.high < 2.7
    assert ratio.verdict == "faster" and comparison.ratio("slow", "fast").verdict == "slower"


def two(rates, instances=(), seconds=1.5):
    results = {"slow": result("slow", [100.0] * len(rates)), "fast": result("fast", rates)}
    return Comparison(results, 0.025, instances, seconds, extend_with=print).ratio("fast", "slow")


def test_quiet_rounds_have_a_narrower_ratio_and_a_file_keeps_that(tmp_path, comparison):
    quiet = replace(comparison, results={name: replace(one, noise=0.01) for name, one in comparison.results.items()})
    ratio, of_quiet = comparison.ratio("fast", "slow"), quiet.ratio("fast", "slow")
    assert ratio.low < of_quiet.low < 2 < of_quiet.high < ratio.high and of_quiet.high < 1.15 * 2
    assert not comparison.is_tight
    quiet.save(tmp_path / "quiet.json")
    assert bt.load(tmp_path / "quiet.json").ratio("fast", "slow") == of_quiet


def test_a_single_round_has_no_interval():
    ratio = two([500.0])
    assert (str(ratio), ratio.low, ratio.high) == ("5.0x: too noisy to call", 0, math.inf)


def test_three_rounds_of_one_instance_of_each_are_evidence():
    assert two([930.0, 910.0, 950.0]).verdict == "faster"
    close = two([90.0, 115.0, 100.0])
    assert close.verdict == "unclear" and close.advice == "another 4.50 s would halve that"
    assert close.details == "3 rounds in 1.50 s, by one instance of each; interval of 97.5 %"


def test_where_luck_has_most_of_the_width_no_more_seconds_are_advised():
    many = [104.0, 105.0, 103.0, 104.5] * 40
    assert "two builds of the same" in two(many).advice
    several = two(many, instances=tuple(number // 8 for number in range(160)))
    assert several.verdict == "faster" and "by 20 instances of each" in several.details


def test_a_result_says_its_median_interval_and_note():
    assert result().median == 100 and (result().low, result().high) == (90, 110)
    assert str(result(note="mind the gap")) == "a: 100 (90.0 to 110) examples/s (mind the gap)"
    assert str(result(rounds=[90, 100, 110])) == "a: 100 (3 rounds: 90.0 to 110) examples/s"
    assert str(result(rounds=[9.999] * 6)) == "a: 10.0 examples/s"


def test_json_round_trip(tmp_path, comparison, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for what in (result(note="a note"), comparison):
        path = tmp_path / "saved.json"
        what.save(path)
        assert bt.load(path) == what == bt.load(str(path)) == bt.load("~/saved.json")
        saved = json.loads(path.read_text())
        machine = saved.get("results", [saved])[0]["machine"]
        assert machine["cores"] >= 1 and {"processor", "memory_gib", "system", "python", "tensorflow"} <= set(machine)


@pytest.fixture
def found():
    """A race of three with noisy rounds."""
    rates = {"n=1": [100.0, 140.0, 90.0, 120.0, 80.0, 110.0], "n=2": [105.0, 130.0, 99.0, 119.0, 88.0, 111.0]}
    results = {name: result(name, rounds) for name, rounds in rates.items()}
    results["n=3"] = result("n=3", [50.0, 70.0, 45.0, 60.0, 40.0, 55.0])
    settings = {name: {"n": int(name[-1]), "cache": None} for name in results}
    return Race(results, notes=("noted",), settings=settings, eliminated={"n=3": 6})


def test_a_race_is_loaded_as_a_race_with_its_wide_intervals_and_what_it_found(tmp_path, found):
    found.save(tmp_path / "race.json")
    loaded = bt.load(tmp_path / "race.json")
    assert loaded == found and type(loaded) is Race
    assert loaded.ratio("n=1", "n=2") == found.ratio("n=1", "n=2") != Comparison(found.results).ratio("n=1", "n=2")
    assert (loaded.finalists, loaded.eliminated) == ([{"n": 1, "cache": None}, {"n": 2, "cache": None}], {"n=3": 6})


@pytest.mark.parametrize("value", [min, (1, 2), {1: 2}])
def test_a_race_over_what_a_file_cannot_give_back_is_not_saved(tmp_path, found, value):
    found.settings["n=2"]["cache"] = value
    with pytest.raises(ValueError, match=r"cache=.* cannot be saved; only None, True, .* look them up in build"):
        found.save(tmp_path / "race.json")
    assert not (tmp_path / "race.json").exists()


@pytest.mark.parametrize("content", [b"PK\x03\x04\xff", b"[1]", b"3", b'{"name": "a"}', b'{"results": [1]}'])
def test_a_file_that_holds_no_measurement_is_refused(tmp_path, content):
    (tmp_path / "model.keras").write_bytes(content)
    with pytest.raises(ValueError, match="model.keras holds no saved measurement: .* load a model with bt.load_model"):
        bt.load(tmp_path / "model.keras")
    with pytest.raises(FileNotFoundError, match="none.json"):
        bt.load(tmp_path / "none.json")


def test_a_table_has_the_numbers_and_the_verdict_and_every_result_a_figure(comparison):
    table = comparison._repr_html_()
    assert table.count('scope="row"') == 2
    for cell in ("100", "low to high", "0.25", "against slow"):
        assert f">{cell}<" in table
    assert "x), faster<" in table
    for what in (result(), comparison):
        assert what.figure().axes, type(what)
