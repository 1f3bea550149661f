"""Counting and timing on a clock that only moves when a batch is taken, and every kind of batch and source."""

import threading
import time
from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pytest

from bigtrain_nb import measure
from bigtrain_nb.measure import compare, count_examples, throughput


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def spend(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(measure, "_now", clock)
    monkeypatch.setattr(measure, "_settle", lambda *_: clock.spend(0.003))
    return clock


class Source:
    """Batches of the given sizes, each of which costs ``cost(number of batches so far)`` seconds of the clock."""

    def __init__(self, clock, cost, sizes=None):
        self.clock, self.sizes, self.batches, self.examples = clock, sizes, 0, 0
        self.cost = cost if callable(cost) else lambda _: cost

    def __iter__(self):
        if self.sizes is None:
            while True:
                yield self.take(32)
        for size in self.sizes:
            yield self.take(size)

    def take(self, size):
        self.clock.spend(self.cost(self.batches))
        self.batches += 1
        self.examples += size
        return np.empty([size, 2])


def test_an_endless_source_is_counted_exactly(clock):
    result = throughput(Source(clock, 0.01), seconds=3, name="endless")
    assert (result.name, result.unit) == ("endless", "examples/s")
    assert result.rounds == pytest.approx([3200] * len(result.rounds))
    assert (result.median, result.low, result.high) == pytest.approx((3200, 3200, 3200))
    assert result.examples % 32 == 0 and result.examples / result.seconds == pytest.approx(3200)
    assert result.first_seconds == pytest.approx(0.01)


def test_a_short_last_batch_counts_for_what_it_holds(clock):
    source = Source(clock, 0.01, [32, 32, 7])
    result = throughput(source, seconds=3)
    assert result.rounds == pytest.approx([71 / 0.03] * len(result.rounds)), "whole passes: the same work in each"
    assert result.examples % 71 == 0 and result.examples <= source.examples
    assert result.examples / result.seconds == pytest.approx(71 / 0.03)


def test_a_pass_longer_than_a_round_is_cut_and_still_counted_exactly(clock):
    sizes = [32] * 99 + [1]
    source = Source(clock, 0.01, sizes)
    result = throughput(source, seconds=1.5)
    assert result.median == pytest.approx(3200) and max(result.rounds) == pytest.approx(3200)
    shorts = round((result.seconds / 0.01 * 32 - result.examples) / 31)
    assert result.examples == round(result.seconds / 0.01) * 32 - 31 * shorts


def test_a_step_function_that_counts(clock):
    def step():
        clock.spend(0.02)
        return np.int64(50)

    result = throughput(step, seconds=2)
    assert result.unit == "examples/s" and result.rounds == pytest.approx([2500] * len(result.rounds))


@pytest.mark.parametrize("done", [None, True, 0.5, "loss", {"loss": 1.0}])
def test_a_step_function_that_returns_anything_else_counts_steps(clock, done):
    def step():
        clock.spend(0.02)
        return done

    result = throughput(step, seconds=2)
    assert result.unit == "steps/s" and result.median == pytest.approx(50)


def test_a_step_waits_for_the_tensor_that_it_returns(clock):
    waited = []
    tensor = SimpleNamespace(numpy=lambda: (clock.spend(0.04), waited.append("tensorflow")))
    assert throughput(lambda: tensor, seconds=2).median == pytest.approx(25)
    on_cpu = SimpleNamespace(cpu=lambda: (clock.spend(0.05), waited.append("pytorch")))

    def refuse():
        raise RuntimeError("Can't call numpy() on Tensor that requires grad")

    tensor = SimpleNamespace(numpy=refuse, detach=lambda: on_cpu)
    assert throughput(lambda: tensor, seconds=2).median == pytest.approx(20)
    assert set(waited) == {"tensorflow", "pytorch"}


@pytest.mark.parametrize("count", [0, -3])
def test_a_step_that_processed_nothing_is_refused(clock, count):
    with pytest.raises(ValueError, match=f"source returned {count}: a step function returns how many examples"):
        throughput(lambda: count, seconds=1)


def test_first_seconds_hold_the_start_and_the_rounds_do_not(clock):
    result = throughput(Source(clock, lambda batch: 2.0 if batch == 0 else 0.01), seconds=10)
    assert result.first_seconds == pytest.approx(2.0)
    assert min(result.rounds) == pytest.approx(3200)


def test_a_slow_start_is_warmed_up_away(clock):
    result = throughput(Source(clock, lambda batch: max(0.01, 0.2 - 0.02 * batch)), seconds=10)
    assert min(result.rounds) == pytest.approx(3200)


def test_the_note_says_where_the_first_pass_ended(clock):
    slow_first_pass = Source(clock, lambda batch: 0.05 if batch < 40 else 0.001, [32] * 40)
    assert "first pass ended while it was measured" in throughput(slow_first_pass, seconds=4).note
    assert "measured within its first pass" in throughput(Source(clock, 0.05, [32] * 400), seconds=4).note
    assert throughput(Source(clock, 0.05, [32] * 10), seconds=4).note == ""
    assert throughput(lambda: clock.spend(0.05), seconds=4).note == ""


@pytest.mark.parametrize("cost, sizes", [(0.001, None), (0.01, None), (0.01, [32] * 5), (0.01, [32] * 150)])
@pytest.mark.parametrize("seconds", [2, 8])
def test_the_budget_is_kept(clock, cost, sizes, seconds):
    result = throughput(Source(clock, cost, sizes), seconds=seconds)
    assert 0.85 * seconds <= clock.now <= 1.15 * seconds
    assert len(result.rounds) >= 6
    began = clock.now
    both = compare({name: lambda: Source(clock, cost, sizes) for name in "ab"}, seconds=seconds)
    shortest = 6 * 2 * (measure.SHORTEST_SLOT * (1 + measure.DRAIN) + 0.05)
    assert clock.now - began <= max(1.25 * seconds, measure.WARM_UP * seconds + shortest)
    assert all(len(r.rounds) >= 6 for r in both.results.values())


def test_a_source_slower_than_the_budget_still_gets_six_rounds_of_one_batch(clock):
    result = throughput(Source(clock, 5.0), seconds=1)
    assert result.rounds == pytest.approx([6.4] * 6)


def test_short_passes_do_not_pile_up_iterators(clock):
    """An iterator of TensorFlow holds threads until it is dropped."""
    alive, most = set(), []

    class Iterator:
        def __init__(self):
            self.given = False
            alive.add(id(self))
            most.append(len(alive))

        def __iter__(self):
            return self

        def __next__(self):
            if self.given:
                raise StopIteration
            self.given = True
            clock.spend(0.001)
            return [1, 2]

        def __del__(self):
            alive.discard(id(self))

    source = type("Short", (), {"__iter__": lambda self: Iterator()})()
    throughput(source, seconds=100)
    assert len(most) > 50_000 and max(most) < 2_000


# Comparing


def pair(clock, a, b):
    return {"a": lambda: Source(clock, a), "b": lambda: Source(clock, b)}


def test_interleaved_rounds_are_paired_and_exact(clock):
    both = compare(pair(clock, 0.01, 0.02), seconds=10)
    assert both.names == ("a", "b")
    assert both.results["a"].median == pytest.approx(3200) and both.results["b"].median == pytest.approx(1600)
    assert len(both.results["a"].rounds) == len(both.results["b"].rounds) >= 6
    ratio = both.ratio("a", "b")
    assert (ratio.median, ratio.verdict) == (pytest.approx(2.0), "faster")
    assert both.ratio("b", "a").verdict == "slower"


@pytest.mark.parametrize("true_ratio, verdict", [(1.0, "same"), (1.1, "faster"), (0.9, "slower")])
@pytest.mark.parametrize("growth", [0.1, -0.05])
def test_drift_cancels(clock, true_ratio, verdict, growth):
    """While the machine becomes twice as slow (or fast), rounds side by side tell the true ratio."""

    def costs(base):
        return lambda _: base * (1 + growth * clock.now)

    both = compare(pair(clock, costs(0.002), costs(0.002 * true_ratio)), seconds=10)
    rates = both.results["a"].rounds
    assert max(rates) / min(rates) > 1.3, "there was a drift"
    ratio = both.ratio("a", "b")
    assert ratio.median == pytest.approx(true_ratio, rel=0.01) and ratio.verdict == verdict
    assert ratio.low <= true_ratio * 1.01 and ratio.high >= true_ratio * 0.99


def test_short_passes_with_a_costly_start_are_measured_whole(clock):
    class Costly(Source):
        def __iter__(self):
            self.clock.spend(0.05)
            yield from super().__iter__()

    both = compare({"a": lambda: Costly(clock, 0.01, [32] * 5), "b": lambda: Source(clock, 0.02, [32] * 5)})
    assert both.ratio("a", "b").median == pytest.approx(1.0) and both.ratio("a", "b").verdict == "same"


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


def test_more_than_two_sources_share_the_budget(clock):
    many = compare({str(i): lambda i=i: Source(clock, 0.001 * (i + 1)) for i in range(5)}, seconds=20)
    assert clock.now <= 24
    assert [round(many.results[str(i)].median) for i in range(5)] == [32000, 16000, 10667, 8000, 6400]


def test_steps_and_examples_are_not_compared(clock):
    def step():
        clock.spend(0.01)

    with pytest.raises(ValueError, match="cannot compare 'a' in examples/s, 'b' in steps/s: .* how many examples"):
        compare({"a": lambda: Source(clock, 0.01), "b": lambda: step}, seconds=1)


@pytest.mark.parametrize("factories", [{}, {"a": list}, [("a", list), ("b", list)], None, list])
def test_fewer_than_two_factories_are_refused(factories):
    with pytest.raises(ValueError, match="compare needs a dictionary of at least two factories"):
        compare(factories, seconds=1)


def test_a_factory_must_be_a_function(clock):
    with pytest.raises(TypeError, match="the factory of 'b' must be a function that returns a fresh source, not "):
        compare({"a": lambda: Source(clock, 0.01), "b": [[1, 2]]}, seconds=1)


def test_an_error_in_a_comparison_names_the_source(clock):
    with pytest.raises(ValueError, match="b yielded no batch"):
        compare({"a": lambda: Source(clock, 0.01), "b": lambda: []}, seconds=1)
    with pytest.raises(TypeError, match="b must be an iterable of batches or a step function, not int"):
        compare({"a": lambda: Source(clock, 0.01), "b": lambda: 5}, seconds=1)


# Progress and interruption


@pytest.mark.parametrize(
    "run",
    [
        lambda clock, progress: throughput(Source(clock, 0.007), seconds=5, progress=progress),
        lambda clock, progress: throughput(Source(clock, 0.007, [32] * 9), seconds=5, progress=progress),
        lambda clock, progress: compare(pair(clock, 0.007, 0.009), seconds=5, progress=progress),
    ],
)
def test_progress_is_told_at_most_ten_times_a_second_and_grows(clock, run):
    told = []
    run(clock, lambda fraction: told.append((clock.now, fraction)))
    moments, fractions = zip(*told, strict=True)
    assert 30 <= len(told) <= 10 * clock.now
    assert min(np.diff(moments)) >= 0.1 - 1e-9
    assert list(fractions) == sorted(fractions) and 0 < fractions[0] < 0.1 and 0.9 < fractions[-1] <= 1


def test_an_exception_in_progress_ends_the_measurement_at_once(clock):
    class Stopped(Exception):
        pass

    def stop(fraction):
        if fraction > 0.5:
            raise Stopped

    for run in (
        lambda: throughput(Source(clock, 0.01), seconds=10, progress=stop),
        lambda: compare(pair(clock, 0.01, 0.02), seconds=10, progress=stop),
    ):
        began = clock.now
        with pytest.raises(Stopped):
            run()
        assert clock.now - began < 5.5


def test_progress_is_told_while_a_comparison_waits_for_rest(monkeypatch):
    """A process that never rests must not make Stop wait."""
    busy = iter(range(10**9))
    monkeypatch.setattr(measure, "_cpu_seconds", lambda: float(next(busy)))
    began, asked = time.perf_counter(), []

    def step():
        time.sleep(0.001)
        return 1

    def stop(fraction):
        if time.perf_counter() - began > 1.0:
            asked.append(time.perf_counter())
            raise InterruptedError

    with pytest.raises(InterruptedError):
        compare({"a": lambda: step, "b": lambda: step}, seconds=1.2, progress=stop)
    assert asked[0] - began < 1.5


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, OSError("disk")])
def test_errors_and_interrupts_of_a_source_propagate(clock, error):
    def batches():
        yield [1, 2]
        yield [3, 4]
        raise error

    with pytest.raises(error if isinstance(error, type) else type(error)):
        throughput(batches(), seconds=1)


def test_no_thread_stays():
    before = set(threading.enumerate())
    throughput([[1, 2, 3]] * 5, seconds=0.1)
    compare({"a": lambda: [[1, 2]], "b": lambda: iter([[1]] * 10**7)}, seconds=0.2)
    until = time.monotonic() + 2
    while set(threading.enumerate()) - before and time.monotonic() < until:
        time.sleep(0.02)
    assert not set(threading.enumerate()) - before


# Sources and batches


def test_a_generator_that_is_long_enough_is_measured(clock):
    assert throughput(iter(Source(clock, 0.01)), seconds=1).median == pytest.approx(3200)


def test_a_generator_that_ends_says_what_to_give_instead(clock):
    with pytest.raises(ValueError, match="source yielded no batch a second time: .*an iterable that starts anew"):
        throughput(iter(Source(clock, 0.01, [32] * 5)), seconds=10)


@pytest.mark.parametrize("source", [[], (), iter([]), {}, np.empty([0, 3])])
def test_an_empty_source_is_refused(source):
    with pytest.raises(ValueError, match="^source yielded no batch$"):
        throughput(source, seconds=1)


@pytest.mark.parametrize("source", [5, None, object()])
def test_what_is_neither_iterable_nor_callable_is_refused(source):
    with pytest.raises(TypeError, match="mine must be an iterable of batches or a step function, not"):
        throughput(source, seconds=1, name="mine")


@pytest.mark.parametrize("seconds", [0, -1, -0.5, float("nan"), float("inf"), "3", None, True, [1]])
def test_nonsensical_seconds_are_refused(seconds):
    for run in (
        lambda: throughput([[1]], seconds=seconds),
        lambda: compare(dict.fromkeys("ab", list), seconds=seconds),
    ):
        with pytest.raises(ValueError, match="seconds=.* must be a positive, finite number of seconds"):
            run()


Pair = namedtuple("Pair", "images labels")


@pytest.mark.parametrize(
    "batch, examples",
    [
        (np.empty([7, 3]), 7),
        (np.empty([7]), 7),
        ((np.empty([7, 3]), np.empty([7])), 7),
        ([np.empty([7, 3]), np.empty([7])], 7),
        (Pair(np.empty([7, 3]), np.empty([7])), 7),
        ({"image": np.empty([7, 3]), "label": np.empty([7])}, 7),
        (({"a": np.empty([7, 3])}, np.empty([7])), 7),
        (((np.empty([7, 1]), np.empty([9])), np.empty([8])), 7),
        ([1, 2, 3], 3),
        (["one", "two"], 2),
        ([b"one", b"two"], 2),
        ([0.5, 1.5, 2.5], 3),
        ((["one", "two"], [0, 1]), 2),
        (SimpleNamespace(shape=(7, 3)), 7),
    ],
)
def test_batches_of_every_kind_are_counted(batch, examples):
    assert count_examples(batch) == examples


def test_tensors_are_counted():
    from bigtrain_nb import tf

    assert count_examples(tf.ones([7, 3])) == 7
    assert count_examples((tf.constant(["a", "b"]), tf.ones([2]))) == 2
    assert count_examples(tf.ragged.constant([[1], [2, 3], []])) == 3
    assert count_examples({"ids": tf.sparse.from_dense([[1, 0], [0, 2], [3, 0]])}) == 3
    dataset = tf.data.Dataset.range(10).batch(4)
    assert [count_examples(batch) for batch in dataset] == [4, 4, 2]
    assert throughput(dataset, seconds=0.05).examples % 10 == 0


@pytest.mark.parametrize("batch", [np.float32(1), 5, 1.5, "text", None, (3, np.empty([7])), [None], object()])
def test_a_batch_without_a_leading_dimension_is_refused(batch):
    with pytest.raises(ValueError, match="source yielded .* without a leading dimension: batch it first"):
        throughput([batch], seconds=0.1)


@pytest.mark.parametrize("batch", [(), {}, [], ([], [])])
def test_a_batch_without_components_is_refused(batch):
    with pytest.raises(ValueError, match="source yielded an empty (tuple|dict|list): there is nothing to count"):
        throughput([batch], seconds=0.1)


def test_a_batch_of_no_examples_is_refused():
    with pytest.raises(ValueError, match="source yielded a batch of 0 examples"):
        throughput([np.empty([0, 3])], seconds=0.1)
