"""Results: numbers and words, verdicts, JSON, HTML."""

import json
import math

import pytest

import bigtrain_nb as bt
from bigtrain_nb.measure.results import Comparison, Ratio, Result


def result(name="a", rounds=(90.0, 100.0, 110.0, 95.0, 105.0, 100.0), note=""):
    return Result(name, tuple(rounds), "examples/s", 0.25, 640, 6.5, note)


@pytest.fixture
def comparison():
    rates = [100.0, 101.0, 99.0, 102.0, 98.0, 100.0, 103.0]
    fast = [2 * rate for rate in rates]
    return Comparison({"slow": result("slow", rates), "fast": result("fast", fast)})


@pytest.mark.parametrize(
    "low, high, verdict",
    [
        (1.021, 1.03, "faster"),
        (0.5, 0.979, "slower"),
        (1.02, 1.5, "same"),
        (0.5, 0.99, "same"),
        (0.0, math.inf, "same"),
    ],
)
def test_only_what_is_more_than_2_percent_off_is_ranked(low, high, verdict):
    assert Ratio("a", "b", 1.0, low, high).verdict == verdict


def test_a_comparison_pairs_the_rounds(comparison):
    assert comparison.names == ("slow", "fast")
    ratio = comparison.ratio("fast", "slow")
    assert (ratio.median, ratio.low, ratio.high) == pytest.approx((2, 2, 2))
    assert ratio.verdict == "faster" and comparison.ratio("slow", "fast").verdict == "slower"


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


def test_a_table_has_the_numbers_and_the_verdict_and_every_result_a_figure(comparison):
    table = comparison._repr_html_()
    assert table.count('scope="row"') == 2
    for cell in ("100", "95 % interval", "0.25", "against slow", "2.00x"):
        assert f">{cell}<" in table
    for what in (result(), comparison):
        assert what.figure().axes, type(what)
