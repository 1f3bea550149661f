"""Interleaved rounds on a clock of their own: pairs, drift, noise, budgets."""

from functools import partial

import numpy as np
import pytest
from clocks import Source, pair

from bigtrain_nb.measure.benchmark import compare


def test_interleaved_rounds_are_paired_and_exact(clock):
    both = compare(pair(clock, 0.01, 0.02), seconds=10)
    assert both.names == ("a", "b")
    assert both.results["a"].median == pytest.approx(3200) and both.results["b"].median == pytest.approx(1600)
    assert len(both.results["a"].rounds) == len(both.results["b"].rounds) >= 6
    ratio = both.ratio("a", "b")
    assert (ratio.median, ratio.verdict) == (pytest.approx(2.0), "faster")
    assert both.ratio("b", "a").verdict == "slower"


@pytest.mark.parametrize("true_ratio, verdict", [(1.0, "same"), (1.1, "faster"), (0.9, "slower")])
def test_drift_cancels(clock, true_ratio, verdict):
    """While the machine becomes twice as slow, rounds side by side tell the true ratio."""

    def costs(base):
        return lambda _: base * (1 + 0.1 * clock.now)

    both = compare(pair(clock, costs(0.002), costs(0.002 * true_ratio)), seconds=10)
    rates = both.results["a"].rounds
    assert max(rates) / min(rates) > 1.3, "there was a drift"
    ratio = both.ratio("a", "b")
    assert ratio.median == pytest.approx(true_ratio, rel=0.01) and ratio.verdict == verdict
    assert ratio.low <= true_ratio * 1.01 and ratio.high >= true_ratio * 0.99


def test_noise_raises_few_alarms_and_hides_no_true_difference(clock):
    rng = np.random.default_rng(0)

    def noisy(base):
        # Skewed noise, rare stalls, and a machine whose speed wanders.
        def cost(_):
            stall = (rng.random() < 0.005) * rng.exponential(5)
            return base * (1 + 0.2 * np.sin(clock.now / 3)) * (rng.lognormal(0, 0.3) + stall)

        return cost

    def verdict(a, b):
        return compare(pair(clock, noisy(a), noisy(b)), seconds=20).ratio("a", "b").verdict

    assert sum(verdict(0.004, 0.004) != "same" for _ in range(25)) <= 3
    assert sum(verdict(0.004, 0.0046) == "faster" for _ in range(12)) >= 10


def test_steps_and_examples_are_not_compared(clock):
    steps = partial(clock.spend, 0.01)
    with pytest.raises(ValueError, match="cannot compare steps/s with examples/s: .* how many examples"):
        compare({"a": lambda: Source(clock, 0.01), "b": lambda: steps}, seconds=1)


def test_a_source_instead_of_its_factory_is_refused_before_anything_is_measured(clock):
    with pytest.raises(TypeError, match="the factory of 'b' must be a function that returns a fresh source, not "):
        compare({"a": lambda: Source(clock, 0.01), "b": [[1, 2]]}, seconds=1)
    with pytest.raises(ValueError, match="expected at least two sources to compare, not 1"):
        compare({"a": list}, seconds=1)
    assert clock.now == 0


@pytest.mark.parametrize("given", [[[1, 2]], list, "ab"])
def test_what_is_no_dictionary_of_factories_is_refused(given):
    with pytest.raises(TypeError, match=r"compare takes a dictionary \{name: function .* bt.throughput\(source\)"):
        compare(given, seconds=1)


class SlowStart(Source):
    """Needs 0.1 s of the clock before its first batch."""

    def __iter__(self):
        self.clock.spend(0.1)
        yield from super().__iter__()


def test_two_are_measured_the_same_way_though_only_one_has_short_passes(clock):
    passes = {"just short enough": [32] * 39, "just too long": [32] * 41}  # with the start 0.49 s and 0.51 s
    found = compare({name: partial(SlowStart, clock, 0.01, sizes) for name, sizes in passes.items()}, seconds=20)
    assert found.ratio(*passes).median == pytest.approx(1, abs=0.01)


def test_a_short_pass_is_measured_whole_beside_a_much_longer_one(clock):
    passes = {"short": [32] * 10, "long": [32] * 100}  # with the start 0.2 s and 1.1 s
    found = compare({name: partial(SlowStart, clock, 0.01, sizes) for name, sizes in passes.items()}, seconds=20)
    assert found.results["short"].median == pytest.approx(10 * 32 / 0.2)


@pytest.mark.parametrize(("seconds", "is_renewed"), [(20.0, True), (2.0, False)])
def test_a_source_that_starts_slowly_is_started_for_each_round_if_there_is_time(clock, seconds, is_renewed):
    class SlowerStart(SlowStart):
        def __iter__(self):
            starts.append(clock.now)
            clock.spend(0.2)
            yield from super().__iter__()

    starts = []
    found = compare({name: lambda: SlowerStart(clock, 0.01) for name in "ab"}, seconds=seconds)
    rounds = sum(len(result.rounds) for result in found.results.values())
    assert (len(starts) > rounds) == is_renewed
