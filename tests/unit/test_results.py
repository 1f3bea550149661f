"""Results: numbers and words, verdicts, JSON, HTML."""

import json
import math
import re

import numpy as np
import pytest

import bigtrain_nb as bt
from bigtrain_nb.measure.race import Race
from bigtrain_nb.measure.results import Comparison, Ratio, Result


def result(name="a", rounds=(90.0, 100.0, 110.0, 95.0, 105.0, 100.0), note=""):
    return Result(name, tuple(rounds), "examples/s", 0.25, 640, 6.5, note)


@pytest.fixture
def comparison():
    rates = [100.0, 101.0, 99.0, 102.0, 98.0, 100.0, 103.0]
    fast = [2 * rate for rate in rates]
    return Comparison({"slow": result("slow", rates), "fast": result("fast", fast)}, looks=2, block_seconds=1.5)


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
    assert ratio.verdict == verdict and str(ratio).endswith(f", {verdict}")


def test_a_ratio_says_its_advice():
    ratio = Ratio("a", "b", 1.1, 0.9, 1.3, "About 9 s more narrow it.", 9)
    assert str(ratio) == "1.10x (0.90x to 1.30x), unclear"
    assert repr(ratio) == "a against b: 1.10x (0.90x to 1.30x), unclear. About 9 s more narrow it."


def test_what_was_loaded_cannot_go_on(tmp_path, comparison):
    comparison.save(tmp_path / "saved.json")
    with pytest.raises(RuntimeError, match="only what bt.compare returned in this process can go on; compare .* again"):
        bt.load(tmp_path / "saved.json").go_on(5)


def test_a_comparison_pairs_the_rounds(comparison):
    assert comparison.names == ("slow", "fast")
    ratio = comparison.ratio("fast", "slow")
    assert (ratio.median, ratio.low, ratio.high) == pytest.approx((2, 2, 2))
    assert ratio.verdict == "faster" and comparison.ratio("slow", "fast").verdict == "slower"


@pytest.mark.parametrize(
    "rates, words, advice, seconds",
    [
        (
            [90.0],
            "0.90x, unclear",
            "One instance of each fits into the time: three need about 4.50 s, five about 7.50 s.",
            6,
        ),
        ([90.0, 115.0], "1.02x, unclear", "Two blocks say nothing yet: about 5.00 s more make five.", 5),
        ([500.0, 520.0], "5.1x (3.1x to 8.4x), faster", "", None),
        (
            [90.0, 115.0, 100.0],
            "1.01x (0.65x to 1.57x), unclear",
            "About 109 min more narrow it to ±1 %, which tells unless the truth is near 2 %;"
            " 10 times as long as so far narrows it to ±13 %.",
            6528,
        ),
    ],
)
def test_few_blocks_that_give_no_verdict_have_no_interval(rates, words, advice, seconds):
    few = {"slow": result("slow", [100.0] * len(rates)), "fast": result("fast", rates)}
    ratio = Comparison(few, block_seconds=1.5).ratio("fast", "slow")
    assert (str(ratio), ratio.advice, ratio.seconds_more) == (words, advice, seconds)
    assert (ratio.low > 0) == (ratio.high < math.inf) == ("to" in words)


def test_where_the_interval_is_very_wide_only_the_time_is_said():
    rates = {"slow": result("slow", [100.0] * 4), "fast": result("fast", [150.0, 600.0, 320.0, 450.0])}
    ratio = Comparison(rates, block_seconds=1.5).ratio("fast", "slow")
    assert ratio.verdict == "unclear" and ratio.seconds_more > 0
    assert ratio.advice.endswith("s more would tell.") and "%" not in ratio.advice


@pytest.mark.parametrize("truth, most", [(1.0, 3_000), (1.05, 2_500), (1.1, 900), (1 / 1.1, 900)])
def test_the_time_that_is_advised_is_enough_in_eight_of_ten_and_not_endless(truth, most):
    rng = np.random.default_rng(0)

    def more_blocks(count):
        return [*rng.lognormal(math.log(truth), 0.1, count)]

    def looked_at(rates, looks):
        results = {"a": result("a", rates), "b": result("b", [1.0] * len(rates))}
        return Comparison(results, looks, block_seconds=1.0).ratio("a", "b")

    times, clear_then = [], 0
    for _ in range(100):
        rates = more_blocks(6)
        first = looked_at(rates, looks=1)
        if first.verdict == "unclear":
            times.append(first.seconds_more)
            rates += more_blocks(first.seconds_more)
            clear_then += looked_at(rates, looks=2).verdict != "unclear"
    assert len(times) > 50 and clear_then >= 0.8 * len(times)
    assert np.median(times) < most, times


def test_near_two_percent_no_time_is_named_where_the_interval_is_narrow_already():
    rates = [102.0, 102.5, 101.5] * 20
    sources = {"slow": result("slow", [100.0] * 60), "fast": result("fast", rates)}
    ratio = Comparison(sources, block_seconds=1.0).ratio("fast", "slow")
    assert ratio.verdict == "unclear" and ratio.seconds_more is None
    assert ratio.advice == "It is so narrow already that the truth must be near 2 %: longer hardly tells."


def test_a_difference_that_is_surely_large_is_named_and_tells_sooner():
    sources = {"slow": result("slow", [100.0] * 4), "fast": result("fast", [108.0, 125.0, 114.0, 129.0])}
    ratio = Comparison(sources, block_seconds=1.0).ratio("fast", "slow")
    assert ratio.verdict == "unclear"
    assert re.fullmatch(
        r"About [\d.]+ s more narrow it to ±[\d.]+ %, which tells if they differ by \d+ % or more.", ratio.advice
    ), ratio


def test_a_result_says_its_median_interval_and_note():
    assert result().median == 100 and (result().low, result().high) == (90, 110)
    assert str(result(note="mind the gap")) == "a: 100 (90.0 to 110) examples/s (mind the gap)"
    assert str(result(rounds=[9.999] * 6)) == "a: 10.0 examples/s"


def test_json_round_trip(tmp_path, comparison):
    for what in (result(note="a note"), comparison):
        path = tmp_path / "saved.json"
        what.save(path)
        assert bt.load(path) == what == bt.load(str(path))
        saved = json.loads(path.read_text())
        machine = saved.get("results", [saved])[0]["machine"]
        assert machine["cores"] >= 1 and {"processor", "memory_gib", "system", "python", "tensorflow"} <= set(machine)


@pytest.fixture
def found():
    """A race of three, whose rounds scatter."""
    rates = {"n=1": [100.0, 140.0, 90.0, 120.0, 80.0, 110.0], "n=2": [105.0, 130.0, 99.0, 119.0, 88.0, 111.0]}
    results = {name: result(name, rounds) for name, rounds in rates.items()}
    results["n=3"] = result("n=3", [50.0, 70.0, 45.0, 60.0, 40.0, 55.0])
    settings = {name: {"n": int(name[-1]), "cache": None} for name in results}
    return Race(results, notes=("noted",), settings=settings, left={"n=3": 6})


def test_a_race_is_loaded_as_a_race_with_its_wide_intervals_and_what_it_found(tmp_path, found):
    found.save(tmp_path / "race.json")
    loaded = bt.load(tmp_path / "race.json")
    assert loaded == found and type(loaded) is Race
    assert loaded.ratio("n=1", "n=2") == found.ratio("n=1", "n=2") != Comparison(found.results).ratio("n=1", "n=2")
    assert (loaded.finalists, loaded.left) == ([{"n": 1, "cache": None}, {"n": 2, "cache": None}], {"n=3": 6})


@pytest.mark.parametrize("value", [min, (1, 2), {1: 2}])
def test_a_race_over_what_a_file_cannot_give_back_is_not_saved(tmp_path, found, value):
    found.settings["n=2"]["cache"] = value
    with pytest.raises(ValueError, match=r"cache=.* cannot be saved, only None, True, .* build look up"):
        found.save(tmp_path / "race.json")
    assert not (tmp_path / "race.json").exists()


@pytest.mark.parametrize("content", [b"PK\x03\x04\xff", b"[1]", b"3", b'{"name": "a"}', b'{"results": [1]}'])
def test_a_file_that_holds_no_measurement_is_refused(tmp_path, content):
    (tmp_path / "model.keras").write_bytes(content)
    with pytest.raises(ValueError, match="model.keras holds no saved measurement: .* loaded by bt.load_model"):
        bt.load(tmp_path / "model.keras")
    with pytest.raises(FileNotFoundError, match="none.json"):
        bt.load(tmp_path / "none.json")


def test_a_name_that_was_not_measured_is_refused_with_those_that_were(comparison, found):
    for a, b, said in (("fats", "slow", "a='fats'"), ("fast", "slwo", "b='slwo'")):
        with pytest.raises(ValueError, match=f"{said} must be one of slow, fast"):
            comparison.ratio(a, b)
    with pytest.raises(ValueError, match="a='n=4' must be one of n=1, n=2, n=3"):
        found.ratio("n=4", "n=1")


def test_a_table_has_the_numbers_and_the_verdict_and_every_result_a_figure(comparison):
    table = comparison._repr_html_()
    assert table.count('scope="row"') == 2
    for cell in ("100", "95 % interval", "0.25", "against slow", "2.00x, faster"):
        assert f">{cell}<" in table
    few = Comparison({name: result(name, [90.0, 100.0, 110.0]) for name in "ab"})
    assert ">lowest to highest<" in few._repr_html_() and "95 % interval" not in str(few)
    for what in (result(), comparison):
        assert what.figure().axes, type(what)
