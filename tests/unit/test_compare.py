"""`compare` on a simulated clock: rounds, interim checks, drift, instance variance, noise, verdicts, extending."""

import gc
import math
import weakref
from functools import partial

import numpy as np
import pytest
from clocks import Clock, Source, pair

from bigtrain_nb.measure import rounds, source
from bigtrain_nb.measure.rounds import compare
from bigtrain_nb.measure.source import INFINITE


def step_of(clock, seconds):
    """Return a factory of steps that take this many seconds."""

    def factory():
        def step():
            clock.spend(seconds() if callable(seconds) else seconds)
            return 32

        return step

    return factory


def steps(clock, a, b):
    return {"a": step_of(clock, a), "b": step_of(clock, b)}


@pytest.mark.parametrize("kind", [steps, pair])
def test_rounds_are_exact_where_nothing_disturbs(clock, kind):
    both = compare(kind(clock, 0.01, 0.02), seconds=4)
    assert both.names == ("a", "b")
    assert both.results["a"].median == pytest.approx(3200) and both.results["b"].median == pytest.approx(1600)
    assert len(both.results["a"].rounds) == len(both.results["b"].rounds) == len(both.instances) >= 3
    ratio = both.ratio("a", "b")
    assert (ratio.median, ratio.verdict) == (pytest.approx(2.0), "faster")
    assert both.ratio("b", "a").verdict == "slower" and both.notes == () and both.is_clear


def test_the_time_is_used_as_asked_and_more_of_it_only_while_the_answer_is_unclear(clock):
    """Half the time suffices only if the interval is narrow, as it is here after several builds of both."""
    far = compare(steps(clock, 0.01, 0.02), seconds=4)
    assert 4 <= far.seconds < 4.3 and far.error == 0.025 and far.is_clear
    longer = compare(steps(clock, 0.01, 0.02), seconds=24)
    assert 12 <= longer.seconds < 12.3 and longer.error == 0.005 and longer.is_clear and longer.is_tight
    near = compare(steps(clock, 0.01, 0.0102), seconds=4)
    assert near.seconds == pytest.approx(16, abs=0.5), "looked at after 2, 4, 8 and 16 s"
    ratio = near.ratio("a", "b")
    assert ratio.verdict == "unclear" and str(ratio).endswith("): too close to call")


def test_building_and_warming_up_do_not_count(clock):
    def slow_to_build():
        clock.spend(5.0)
        return Source(clock, 0.01, [32] * 200)

    began = clock.now
    found = compare({"a": slow_to_build, "b": slow_to_build}, seconds=4)
    built = 2 * (5 + 2)
    assert found.seconds >= 4 and clock.now - began > found.seconds + built
    assert len(set(found.instances)) == 1
    assert "by one instance of each" in found.ratio("a", "b").details


def test_a_first_pass_is_awaited_for_so_long_and_no_longer(clock):
    began = clock.now
    found = compare({name: partial(Source, clock, 0.01, [32] * 10_000) for name in "ab"}, seconds=1)
    assert clock.now - began < 2 * (4 + 2) + 4 * 1.5
    assert "a: measured before its first pass had ended." in found.details


@pytest.mark.parametrize("true_ratio, verdict", [(1.0, "same"), (1.25, "faster"), (0.8, "slower")])
def test_drift_cancels(clock, true_ratio, verdict):
    """While the machine becomes twice as slow, the rounds still give the true ratio."""

    def costs(base):
        return lambda: base * (1 + 0.1 * clock.now)

    both = compare(steps(clock, costs(0.002), costs(0.002 * true_ratio)), seconds=8)
    rates = both.results["a"].rounds
    assert max(rates) / min(rates) > 1.2, "there was a drift"
    ratio = both.ratio("a", "b")
    assert ratio.median == pytest.approx(true_ratio, rel=0.01) and ratio.verdict == verdict


class Machine:
    """Steps with skewed noise and rare stalls, on a drifting machine; instances vary."""

    def __init__(self, clock, seed):
        self.clock, self.rng = clock, np.random.default_rng(seed)

    def pair(self, a, b):
        return {"a": partial(self.step, a), "b": partial(self.step, b)}

    def step(self, seconds):
        lucky = math.exp(self.rng.normal(0, 0.03))

        def step():
            stall = (self.rng.random() < 0.005) * self.rng.exponential(5)
            wander = 1 + 0.2 * np.sin(self.clock.now / 3)
            self.clock.spend(seconds * lucky * wander * (self.rng.lognormal(0, 0.3) + stall))
            return 32

        return step


def test_two_alike_are_seldom_called_different_and_a_true_difference_is_told(clock):
    wrong, told = 0, 0
    for seed in range(30):
        machine = Machine(clock, seed)
        wrong += compare(machine.pair(0.01, 0.01), seconds=4).ratio("a", "b").verdict in ("faster", "slower")
        told += compare(machine.pair(0.01, 0.0125), seconds=4).ratio("a", "b").verdict == "faster"
    assert wrong <= 2 and told >= 25


def test_going_on_adds_rounds_and_pays_for_the_look(clock):
    both = compare(steps(clock, 0.01, 0.0104), seconds=1)
    ratio = both.ratio("a", "b")
    assert ratio.verdict == "unclear" and ratio.advice
    before = both.seconds
    more = both.extend(12)
    assert more.seconds == pytest.approx(before + 12, abs=0.5)
    assert more.results["a"].rounds[: len(both.results["a"].rounds)] == both.results["a"].rounds
    assert (more.error, more.extend(1).error) == (0.005, 0.0025)
    assert sum(rounds.INTERIM_CHECKS.values()) + rounds.LATER_CHECKS == pytest.approx(0.05)


def test_a_round_that_is_cut_short_leaves_no_trace(clock):
    both = compare(steps(clock, 0.01, 0.02), seconds=2)
    many = len(both.results["a"].rounds)
    until = clock.now + 0.48

    def stop_late(fraction, words):
        if clock.now > until:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        both.extend(10, stop_late)
    result = both.extend(0.01).results["a"]
    assert len(result.rounds) > many
    assert result.examples / result.seconds == pytest.approx(result.median)


def test_what_builds_quickly_is_built_again_and_again(clock):
    made = []

    def build():
        made.append(step_of(clock, 0.01)())
        return made[-1]

    found = compare({"a": build, "b": step_of(clock, 0.01)}, seconds=4)
    assert len(made) == len(set(found.instances)) > 4
    assert found.instances == tuple(sorted(found.instances))


def test_replaced_instances_are_freed_although_they_refer_to_themselves(clock, monkeypatch):
    monkeypatch.setattr(rounds, "gc", gc)  # the real one
    alive, most = weakref.WeakSet(), []

    def build():
        step = step_of(clock, 0.01)()
        step.tracked = step  # as in Keras models
        alive.add(step)
        most.append(len(alive))
        return step

    gc.disable()
    try:
        compare({"a": build, "b": build}, seconds=2)
    finally:
        gc.enable()
    assert len(most) > 6 and max(most) <= 4, "two that run and two that replace them"


def test_what_is_always_the_same_is_one_instance_and_no_longer_time_is_advised(clock):
    one, other = step_of(clock, 0.01)(), step_of(clock, 0.0105)()
    found = compare({"a": lambda: one, "b": lambda: other}, seconds=4)
    assert len(set(found.instances)) == 1
    made_anew = step_of(clock, 0.0105)
    assert len(set(compare({"a": lambda: one, "b": made_anew}, seconds=4).instances)) == 1, "a's luck is that of one"
    ratio = found.ratio("a", "b")
    assert ratio.verdict == "unclear" and "two builds of the same" in ratio.advice


def test_a_step_does_not_pay_for_a_seed_that_is_set_when_another_is_built(clock):
    """`tf.random.set_seed` clears TensorFlow's caches, so the next call of each step is slow."""
    loaded = set()

    def stepper(name, seconds):
        loaded.clear()

        def step():
            clock.spend(seconds if name in loaded else 0.3)
            loaded.add(name)

        return step

    found = compare({"a": partial(stepper, "a", 0.01), "b": partial(stepper, "b", 0.02)}, seconds=4)
    assert found.results["a"].rounds == pytest.approx([100] * len(found.results["a"].rounds))
    assert found.results["b"].first_seconds == pytest.approx(0.3)


def test_time_that_other_programs_took_is_said_except_of_cores_that_a_container_may_not_use(clock, monkeypatch):
    monkeypatch.setattr(rounds, "usable_cores", lambda: range(64))
    monkeypatch.setattr(rounds, "core_limit", lambda: 4.0)
    monkeypatch.setattr(rounds, "seconds_of_others", lambda: 61 * clock.now)
    assert compare(steps(clock, 0.01, 0.02), seconds=2).notes == ()
    monkeypatch.setattr(rounds, "seconds_of_others", lambda: 62 * clock.now)
    found = compare(steps(clock, 0.01, 0.02), seconds=2)
    assert found.notes == ("other programs took 50 % of the cores: close them, or measure again later",)
    assert found.notes[0] in str(found)
    monkeypatch.setattr(rounds, "seconds_of_others", lambda: 63 * clock.now)
    found = found.extend(1)
    assert "75 % of the cores" in found.notes[0]
    monkeypatch.setattr(rounds, "seconds_of_others", lambda: 0.0)
    for _ in range(2):
        found = found.extend(1)
        assert "75 % of the cores" in found.notes[0], "the rounds measured then still count"


def test_many_against_the_first_hold_together(clock):
    rates = {name: partial(Machine(clock, 3).step, 0.01) for name in "abcd"}
    found = compare(rates, seconds=8)
    against_first, another = found.ratio("b", "a"), found.ratio("b", "c")
    assert "interval of 99.8 %" in against_first.details and "interval of 99.9 %" in another.details
    assert found.error in rounds.INTERIM_CHECKS.values()


def test_steps_and_examples_are_not_compared(clock):
    counted = partial(clock.spend, 0.01)
    with pytest.raises(ValueError, match="cannot compare steps/s with examples/s: .* how many examples"):
        compare({"a": lambda: Source(clock, 0.01), "b": lambda: counted}, seconds=1)


class Dataset(Source):
    """Batches with a cache, like a `tf.data.Dataset`: ``repeat`` continues in the same cache, with one iterator."""

    iterators = prefetches = 0

    def __iter__(self):
        Dataset.iterators += 1
        return super().__iter__()

    def cardinality(self):
        return len(self.sizes) if self.sizes else INFINITE

    def repeat(self):
        return Dataset(self.clock, lambda batch: self.cost(self.batches + batch))

    def prefetch(self, size):
        Dataset.prefetches += 1  # TensorFlow's own one would grow
        return self


def test_a_cache_is_full_before_it_counts_and_then_read_on_by_one_iterator(clock, monkeypatch):
    monkeypatch.setattr(Dataset, "iterators", 0)
    monkeypatch.setattr(Dataset, "prefetches", 0)
    built = []

    def cached():
        built.append(Dataset(clock, lambda batch: 0.02 if batch < 50 else 0.002, [32] * 50))
        return built[-1]

    found = compare({"a": cached, "b": cached}, seconds=4)
    for result in found.results.values():
        assert result.rounds == pytest.approx([32 / 0.002] * len(result.rounds)) and result.note == ""
    assert Dataset.iterators == Dataset.prefetches == 2 * len(built)


def test_a_visit_waits_for_gpus_at_both_ends(monkeypatch):
    """Steps only launch their work; a measurement window ends when all of it is done, and includes that time."""
    clock = Clock()
    asked = []

    def wait():
        clock.spend(0.01 * len(asked))
        asked.clear()

    monkeypatch.setattr(source, "now", clock)
    monkeypatch.setattr(source, "wait_for_gpus", wait)

    def launch():
        clock.spend(0.001)
        asked.append(1)
        return 32

    found = compare({"a": lambda: launch, "b": lambda: partial(launch)}, seconds=2)
    assert found.results["a"].median == pytest.approx(32 / 0.011, rel=0.01)
