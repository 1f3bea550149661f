"""Sources take turns on a clock of their own: fresh instances, drift, luck, noise, budgets, verdicts, going on."""

import math
from functools import partial

import numpy as np
import pytest
from clocks import Clock, Source, late_cache, pair

from bigtrain_nb.measure import blocks, instance
from bigtrain_nb.measure.blocks import compare


def test_blocks_are_exact_where_nothing_disturbs(clock):
    both = compare(pair(clock, 0.01, 0.02), seconds=10)
    assert both.names == ("a", "b")
    assert both.results["a"].median == pytest.approx(3200) and both.results["b"].median == pytest.approx(1600)
    assert len(both.results["a"].rounds) == len(both.results["b"].rounds) >= 5
    ratio = both.ratio("a", "b")
    assert (ratio.median, ratio.verdict) == (pytest.approx(2.0), "faster")
    assert both.ratio("b", "a").verdict == "slower" and both.notes == ()


@pytest.mark.parametrize("true_ratio, verdict", [(1.0, "same"), (1.1, "faster"), (0.9, "slower")])
def test_drift_cancels(clock, true_ratio, verdict):
    """While the machine becomes twice as slow, the blocks tell the true ratio."""

    def costs(base):
        return lambda _: base * (1 + 0.1 * clock.now)

    both = compare(pair(clock, costs(0.002), costs(0.002 * true_ratio)), seconds=10)
    rates = both.results["a"].rounds
    assert max(rates) / min(rates) > 1.3, "there was a drift"
    ratio = both.ratio("a", "b")
    assert ratio.median == pytest.approx(true_ratio, rel=0.01) and ratio.verdict == verdict


class Machine:
    """Sources with skewed noise and rare stalls, on a machine whose speed wanders; each instance has its luck."""

    def __init__(self, clock, seed):
        self.clock, self.rng = clock, np.random.default_rng(seed)

    def source(self, seconds):
        lucky = math.exp(self.rng.normal(0, 0.03))

        def cost(_):
            stall = (self.rng.random() < 0.005) * self.rng.exponential(5)
            wander = 1 + 0.2 * np.sin(self.clock.now / 3)
            return seconds * lucky * wander * (self.rng.lognormal(0, 0.3) + stall)

        return Source(self.clock, cost)

    def pair(self, a, b):
        return {"a": partial(self.source, a), "b": partial(self.source, b)}


def test_intervals_hold_the_truth_though_instances_have_luck(clock):
    missed, seen = 0, 0
    for seed in range(40):
        machine = Machine(clock, seed)
        alike = compare(machine.pair(0.004, 0.004), seconds=20).ratio("a", "b")
        missed += not alike.low <= 1 <= alike.high
        seen += compare(machine.pair(0.004, 0.0046), seconds=20).ratio("a", "b").verdict == "faster"
    assert missed <= 4
    assert seen >= 30


def test_what_is_unclear_says_for_how_long_and_going_on_tells(clock):
    rng = np.random.default_rng(0)

    def noisy(base):
        return lambda _: base * rng.lognormal(0, 0.2)

    both = compare(pair(clock, noisy(0.004), noisy(0.00415)), seconds=10)
    ratio = both.ratio("a", "b")
    assert ratio.verdict == "unclear" and " more narrow it to ±" in ratio.advice and ratio.advice in str(both)
    began = clock.now
    more = both.go_on(ratio.seconds_more)
    assert clock.now - began == pytest.approx(ratio.seconds_more, rel=0.1)
    assert more.looks == 2 and more.error == both.error / 2 == pytest.approx(0.0125)
    assert len(more.results["a"].rounds) > len(both.results["a"].rounds)
    assert more.results["a"].rounds[: len(both.results["a"].rounds)] == both.results["a"].rounds
    assert more.ratio("a", "b").verdict == "faster"
    assert both.go_on(1).looks == 3, "also when asked of the first answer again: the blocks have been looked at twice"


def test_a_block_that_is_cut_short_leaves_no_trace(clock):
    def stop_late(_):
        if clock.now > 15:
            raise KeyboardInterrupt

    both = compare(pair(clock, 0.01, 0.02), seconds=10)
    with pytest.raises(KeyboardInterrupt):
        both.go_on(10, stop_late)
    result = both.go_on(1).results["a"]
    assert result.examples / result.seconds == pytest.approx(result.median)
    slot = result.seconds / len(result.rounds)
    assert slot == pytest.approx(both.results["a"].seconds / len(both.results["a"].rounds), rel=0.02)


def test_what_builds_slowly_costs_its_time_in_each_block_though_its_first_pass_was_awaited_in_vain(clock):
    def slow_to_build():
        clock.spend(2.0)
        return Source(clock, 0.01, [32] * 10_000)

    began = clock.now
    found = compare({"a": slow_to_build, "b": slow_to_build}, seconds=30)
    assert clock.now - began < 32
    assert len(found.results["a"].rounds) >= 4


def test_a_step_does_not_pay_for_a_seed_that_is_set_when_another_is_built(clock):
    """`tf.random.set_seed` empties TensorFlow's caches, so the next call of each step is slow."""
    loaded = set()

    def stepper(name, seconds):
        loaded.clear()

        def step():
            clock.spend(seconds if name in loaded else 0.3)
            loaded.add(name)

        return step

    found = compare({"a": partial(stepper, "a", 0.01), "b": partial(stepper, "b", 0.02)}, seconds=10)
    ratio = found.ratio("a", "b")
    assert ratio.low == pytest.approx(2) and ratio.high == pytest.approx(2)


@pytest.mark.parametrize("count, budget", [(1, 6.0), (2, 16.0)])
def test_too_few_blocks_are_no_interval_or_a_note_and_say_what_more_need(clock, count, budget):
    def slow_to_build(seconds):
        clock.spend(2.0)
        return Source(clock, seconds)

    found = compare({"a": partial(slow_to_build, 0.01), "b": partial(slow_to_build, 0.02)}, seconds=budget)
    assert len(found.results["a"].rounds) == count
    ratio = found.ratio("a", "b")
    assert ratio.median == pytest.approx(2)
    if count == 1:
        assert (ratio.low, ratio.high, ratio.verdict) == (0, math.inf, "unclear")
        assert ratio.advice.startswith("One instance of each fits into the time: three need about 1")
        assert str(ratio) == "2.00x, unclear"
    else:
        assert "few instances: 2 of each were built" in found.notes[0]


def test_each_block_builds_new_instances_and_one_that_is_always_the_same_is_named(clock):
    made = []

    def build():
        made.append(Source(clock, 0.01))
        return made[-1]

    again = Source(clock, 0.01)
    found = compare({"new": build, "old": lambda: again}, seconds=5)
    assert len(made) == len(found.results["new"].rounds) > 2
    assert found.notes == (
        "always the same instance of 'old': how lucky it is cannot be seen, let the function build one",
    )


def test_that_a_step_compiles_at_its_first_call_leaves_time_for_later_blocks(clock):
    def step_that_compiles(seconds):
        costs = iter([seconds])

        def step():
            clock.spend(next(costs, 0.01))
            return 8

        return step

    eager, compiled = step_that_compiles(0.01), step_that_compiles(3.0)
    found = compare({"eager": lambda: eager, "compiled": lambda: compiled}, seconds=6)
    assert found.results["compiled"].first_seconds == pytest.approx(3)
    assert len(found.results["compiled"].rounds) >= 3


def test_one_that_still_speeds_up_is_named(clock):
    def cost(batch):
        return 0.01 * (1 + math.exp(-batch / 60))

    found = compare({"warm": lambda: Source(clock, 0.01), "cold": lambda: Source(clock, cost)}, seconds=10)
    assert "faster and faster after the warm-up: 'cold'" in " ".join(found.notes)


def test_stalls_are_named(clock):
    rng = np.random.default_rng(2)

    def cost(_):
        return 0.01 + (rng.random() < 0.004) * 1.0

    found = compare({"calm": lambda: Source(clock, 0.01), "stalls": lambda: Source(clock, cost)}, seconds=30)
    assert "stalls now and then in 'stalls'" in " ".join(found.notes)


def test_blocks_that_resemble_their_neighbours_are_named(clock):
    def cost(_):
        return 0.01 * (1 + 0.2 * np.sin(clock.now / 10))

    found = compare({"calm": lambda: Source(clock, 0.01), "wanders": lambda: Source(clock, cost)}, seconds=60)
    assert "blocks of 'wanders' resemble their neighbours" in " ".join(found.notes)


def test_time_that_others_took_is_said(clock, monkeypatch):
    monkeypatch.setattr(blocks, "lost_seconds", lambda: 0.1 * blocks.core_limit() * clock.now)
    found = compare(pair(clock, 0.01, 0.01), seconds=6)
    assert found.notes == ("10 % of the cores' time went to others or was taken by a limit: wait, or measure longer",)


def test_many_against_the_first_hold_together(clock):
    rates = {name: lambda: Machine(clock, 3).source(0.004) for name in "abcd"}
    found = compare(rates, seconds=20)
    wide, wider = found.ratio("b", "a"), found.ratio("b", "c")
    logs = found.log_ratios("b", "a")
    alone = blocks_interval(logs, found.error)
    assert math.log(wide.high / wide.low) > alone
    assert math.log(wider.high / wider.low) > blocks_interval(found.log_ratios("b", "c"), found.error / 3)
    assert "The intervals against a hold all together in 97.5 % of such comparisons." in str(found)


def blocks_interval(logs, error):
    from bigtrain_nb.measure.intervals import mean_interval

    _, low, high = mean_interval(logs, error)
    return high - low


def test_steps_and_examples_are_not_compared(clock):
    steps = partial(clock.spend, 0.01)
    with pytest.raises(ValueError, match="cannot compare steps/s with examples/s: .* how many examples"):
        compare({"a": lambda: Source(clock, 0.01), "b": lambda: steps}, seconds=1)


def test_a_source_instead_of_its_factory_is_refused_before_anything_is_measured(clock):
    with pytest.raises(TypeError, match="the factory of 'b' must be a function that returns a fresh source, not "):
        compare({"a": lambda: Source(clock, 0.01), "b": [[1, 2]]}, seconds=1)
    with pytest.raises(ValueError, match="expected at least two sources to compare, not 1"):
        compare({"a": list}, seconds=1)
    with pytest.raises(TypeError, match="the name of a source=1 must be a text"):
        compare({1: list, 2: list}, seconds=1)
    assert clock.now == 0


@pytest.mark.parametrize("given", [[[1, 2]], list, "ab"])
def test_what_is_no_dictionary_of_factories_is_refused(given):
    with pytest.raises(TypeError, match=r"compare takes a dictionary \{name: function .* bt.throughput\(source\)"):
        compare(given, seconds=1)


class SlowStart(Source):
    """Needs 0.02 s of the clock before its first batch."""

    def __iter__(self):
        self.clock.spend(0.02)
        yield from super().__iter__()


def test_whole_passes_count_their_start_where_all_are_short(clock):
    passes = {"ten": [32] * 10, "twenty": [32] * 20}  # with the start 0.04 s and 0.06 s
    found = compare({name: partial(SlowStart, clock, 0.002, sizes) for name, sizes in passes.items()}, seconds=20)
    assert found.results["ten"].median == pytest.approx(10 * 32 / 0.04)
    assert found.results["twenty"].median == pytest.approx(20 * 32 / 0.06)


def test_none_counts_its_start_where_one_is_long(clock):
    passes = {"long": [32] * 400, "longer": [32] * 4000}
    found = compare({name: partial(SlowStart, clock, 0.01, sizes) for name, sizes in passes.items()}, seconds=40)
    assert found.ratio("long", "longer").median == pytest.approx(1, abs=0.02)


def test_a_cache_is_full_before_it_counts(clock):
    def cached():
        return Source(clock, lambda batch: 0.02 if batch < 50 else 0.002, [32] * 50)

    found = compare({"a": cached, "b": cached}, seconds=30)
    assert found.results["a"].median == pytest.approx(32 / 0.002)
    assert found.results["a"].note == ""


def test_that_a_cache_is_full_is_seen_though_the_moments_after_the_first_pass_are_slow(clock):
    cached = partial(late_cache, clock)
    found = compare({"a": cached, "b": cached}, seconds=60)
    assert found.results["a"].rounds == pytest.approx([32 / 0.002] * len(found.results["a"].rounds), rel=0.3)


def test_a_first_pass_that_made_nothing_faster_is_waited_for_once(clock):
    uncached = partial(Source, clock, 0.01, [32] * 300)
    found = compare({"a": uncached, "b": uncached}, seconds=60)
    later = found.block_seconds
    assert later < 2 * 1.5, "a pass of each takes 3 s"
    assert len(found.results["a"].rounds) == pytest.approx((60 - 2 * 3) / later, abs=2)


class Dataset(Source):
    """Batches with a cache, as a `tf.data.Dataset`: ``repeat`` reads on in the same cache, with one iterator."""

    iterators = 0

    def __iter__(self):
        Dataset.iterators += 1
        return super().__iter__()

    def cardinality(self):
        return len(self.sizes) if self.sizes else instance.INFINITE

    def repeat(self):
        return Dataset(self.clock, lambda batch: self.cost(self.batches + batch))


def test_later_caches_are_filled_by_the_iterator_that_is_measured(clock, monkeypatch):
    monkeypatch.setattr(Dataset, "iterators", 0)
    built = []

    def cached():
        built.append(Dataset(clock, lambda batch: 0.02 if batch < 50 else 0.002, [32] * 50))
        return built[-1]

    found = compare({"a": cached, "b": cached}, seconds=30)
    assert found.results["a"].median == found.results["b"].median == pytest.approx(32 / 0.002)
    assert Dataset.iterators == len(built) + 2, "but for the two first ones"
    fill, steady, visits = 50 * 0.02, 0.1, 2.25 * 0.5 * math.sqrt(1.1)
    assert found.block_seconds == pytest.approx(2 * (fill + steady + visits), rel=0.1)


def test_a_cache_that_is_full_just_as_the_warm_up_is_cut_off_is_seen(clock):
    class SlowEnd(Source):
        def __iter__(self):
            yield from super().__iter__()
            clock.spend(0.2 if self.batches == 50 else 0.0)

    def cached():
        return SlowEnd(clock, lambda batch: 0.0275 if batch < 50 else 0.002, [32] * 50)

    found = compare(
        {"a": cached, "b": cached}, seconds=10
    )  # the first warm-up may take 1.5 s, the first pass takes 1.575
    assert len(found.results["a"].rounds) >= 2
    assert found.results["a"].rounds == pytest.approx([32 / 0.002] * len(found.results["a"].rounds))


def test_a_first_pass_that_did_not_end_is_said(clock):
    def long():
        return Source(clock, 0.01, [32] * 10_000)

    found = compare({"a": long, "b": long}, seconds=10)
    assert found.results["a"].note == "measured before its first pass had ended"
    assert "a, b: measured before its first pass had ended." in str(found)


def test_a_measurement_waits_for_gpus_at_both_ends_of_a_slot(monkeypatch):
    """Batches that are only asked for: at the end of a slot all are worked out, and the time for that counts."""
    clock = Clock()
    asked = []

    def wait():
        clock.spend(0.01 * len(asked))
        asked.clear()

    monkeypatch.setattr(instance, "now", clock)
    monkeypatch.setattr(instance, "_wait_for_gpus", wait)
    monkeypatch.setattr(blocks, "let_rest", lambda *_: None)

    def launch():
        clock.spend(0.001)
        asked.append(1)
        return 32

    found = compare({"a": lambda: launch, "b": lambda: partial(launch)}, seconds=5)
    assert found.results["a"].median == pytest.approx(32 / 0.011, rel=0.01)
