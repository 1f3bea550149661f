"""Counting and timing on a simulated clock that advances when a batch is taken; sources, batches and progress."""

import time
from contextlib import suppress
from itertools import chain, repeat
from types import SimpleNamespace

import numpy as np
import pytest
from clocks import Source, pair
from tqdm.auto import tqdm

from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.measure import progress, source
from bigtrain_nb.measure.progress import Progress
from bigtrain_nb.measure.rounds import compare
from bigtrain_nb.measure.source import Source as Measured
from bigtrain_nb.measure.source import examples_in
from bigtrain_nb.measure.throughput import throughput


def test_an_array_of_batches_is_read_again_and_again():
    found = throughput(np.zeros((3, 32, 2)), seconds=0.2)
    assert found.unit == "examples/s" and found.examples > 2 * 96


def test_a_short_last_batch_counts_for_what_it_holds(clock):
    source = Source(clock, 0.01, [32, 32, 7])
    result = throughput(source, seconds=3)
    assert result.examples / result.seconds == pytest.approx(71 / 0.03, rel=0.02)
    assert result.examples <= source.examples


def test_a_pass_longer_than_a_round_is_cut_and_still_counted_exactly(clock):
    result = throughput(Source(clock, 0.01, [32] * 99 + [1]), seconds=1.5)
    assert result.median == pytest.approx(3200) and max(result.rounds) == pytest.approx(3200)
    batches = round(result.seconds / 0.01)
    shorts = round((batches * 32 - result.examples) / 31)
    assert result.examples == batches * 32 - 31 * shorts


@pytest.mark.parametrize(
    ("done", "unit", "rate"),
    [
        (np.int64(50), "examples/s", 2500),
        (None, "steps/s", 50),
        (True, "steps/s", 50),
    ],
)
def test_a_step_function_counts_examples_or_is_counted_in_steps(clock, done, unit, rate):
    def step():
        clock.spend(0.02)
        return done

    result = throughput(step, seconds=2)
    assert result.unit == unit and result.rounds == pytest.approx([rate] * len(result.rounds))


def test_a_step_function_that_counts_only_sometimes_is_refused(clock):
    done = chain([5], repeat(None))

    def step():
        clock.spend(0.02)
        return next(done)

    with pytest.raises(ValueError, match="source returned None: a step function must return .*on every call or on non"):
        throughput(step, seconds=1)


def test_an_endless_source_is_counted_exactly_without_its_start(clock):
    result = throughput(Source(clock, lambda batch: 2.0 if batch == 0 else 0.01), seconds=10, name="endless")
    assert (result.name, result.unit) == ("endless", "examples/s") and result.first_seconds == pytest.approx(2.0)
    assert result.rounds == pytest.approx([3200] * len(result.rounds))
    assert (result.median, result.low, result.high) == pytest.approx((3200, 3200, 3200))
    assert result.examples % 32 == 0 and result.examples / result.seconds == pytest.approx(3200)


def test_the_note_says_that_the_first_pass_had_not_ended(clock):
    slow_first_pass = Source(clock, lambda batch: 0.05 if batch < 40 else 0.001, [32] * 40)
    assert throughput(slow_first_pass, seconds=1).note == "measured before its first pass had ended"
    assert throughput(Source(clock, 0.05, [32] * 10), seconds=4).note == ""
    assert throughput(lambda: clock.spend(0.05), seconds=4).note == ""


@pytest.mark.parametrize(("cost", "sizes", "seconds"), [(0.001, None, 2), (0.01, [32] * 5, 8), (0.01, [32] * 150, 8)])
def test_the_seconds_are_for_measuring(clock, cost, sizes, seconds):
    result = throughput(Source(clock, cost, sizes), seconds=seconds)
    assert result.seconds == pytest.approx(seconds, rel=0.1)
    assert result.seconds < clock.now <= 2 * seconds + 1
    assert len(result.rounds) >= 6


def alone(clock, progress):
    throughput(Source(clock, 0.007, [32] * 9), seconds=5, progress=progress)


def in_turns(clock, progress):
    compare(pair(clock, 0.007, 0.0071), seconds=5, progress=progress)


@pytest.mark.parametrize("run", [alone, in_turns])
def test_progress_is_told_at_most_ten_times_a_second_and_says_what_happens(clock, run):
    moments, fractions, words = [], [], []

    def note(fraction, what):
        moments.append(clock.now)
        fractions.append(fraction)
        words.append(what)

    run(clock, note)
    assert 30 <= len(moments) <= 10 * clock.now + 1
    assert min(np.diff(moments)) >= 0.1 - 1e-9
    assert fractions[0] == 0 and 0.75 < max(fractions) <= 1
    assert any(what.startswith("warming up") for what in words)
    assert words[-1].endswith("examples/s")


def test_a_comparison_says_at_its_start_how_long_it_will_take(clock):
    words = []
    compare(pair(clock, 0.01, 0.02), seconds=8, progress=lambda fraction, what: words.append(what))
    assert next(what for what in words if "round" in what) == "round 1 of about 13, about 4.16 s"
    assert "round 2 of about" in " ".join(words)


@pytest.mark.parametrize("run", [alone, in_turns])
def test_an_exception_in_progress_ends_the_measurement_at_once(clock, run):
    def stop(fraction, words):
        if fraction > 0.5:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run(clock, stop)
    assert clock.now < 6


def test_without_a_function_a_script_that_writes_to_a_file_shows_nothing(clock, capsys):
    compare(pair(clock, 0.01, 0.02), seconds=1)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("fails", [False, True])
def test_a_bar_is_complete_at_the_end(fails, monkeypatch):
    """In a notebook, tqdm hides a bar only if it is complete; a measurement ends a little earlier."""
    closed_at = []

    class Bar(tqdm):
        def close(self):
            closed_at.append(self.n)

    monkeypatch.setattr(progress, "tqdm", Bar)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with suppress(RuntimeError), Progress(None) as reporter:
        reporter.say(0.97, "measuring")
        if fails:
            raise RuntimeError
    assert closed_at[0] == 1


def test_in_a_terminal_a_bar_says_what_happens_and_is_gone_at_the_end(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with Progress(None) as told:
        told.say(0.0, "warming up a")
        time.sleep(1.1)
        told.say(0.5, "round 2 of about 4")
    shown = capsys.readouterr()
    assert " 50 %" in shown.out and "round 2 of about 4" in shown.out and shown.err == ""
    assert shown.out.split("\r")[-2].strip() == shown.out.split("\r")[-1] == ""


def test_data_whose_workers_only_fit_starts_is_refused():
    class Images(keras.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return np.zeros([4, 2]), np.zeros([4, 1])

    with pytest.raises(ValueError, match="PyDataset, whose workers only Keras' fit starts: measure it with wor"):
        throughput(Images(workers=2), seconds=0.05)
    assert throughput(Images(), seconds=0.05).unit == "examples/s"

    class Loader(list):
        workers, max_queue_size = [None], 8

    assert throughput(Loader([np.zeros([4, 2])] * 9), seconds=0.05).unit == "examples/s"


def test_distributed_data_says_what_to_give_instead():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with pytest.raises(ValueError, match="a distributed dataset: give its original"):
        throughput(strategy.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(4)), seconds=0.05)


def test_a_warm_up_ends_when_a_first_pass_is_over_and_the_rate_is_steady(clock):
    def warm(cost, sizes=None, longest=10):
        made = Measured(Source(clock, cost, sizes), "source", Progress(None))
        began = clock.now
        made.warm_up(longest)
        return clock.now - began

    assert warm(0.01) == pytest.approx(0.6, abs=0.1), "an endless source has no pass"
    assert warm(0.01, [32] * 200) == pytest.approx(2 + 0.6, abs=0.1)
    assert warm(0.01, [32] * 20_000) == pytest.approx(10 + 0.6, abs=0.1)


def test_the_noise_of_a_step_lengthens_no_warm_up(clock):
    costs = iter([1.0, 0.3, 0.3, 0.5, 0.5, 0.3, 0.5, 0.3])
    made = Measured(lambda: clock.spend(next(costs)), "step", Progress(None))
    began = clock.now
    made.warm_up(10)
    assert clock.now - began == pytest.approx(1 + 2 * 0.3 + 2 * 0.5)


def test_a_drain_goes_on_while_batches_lie_ready_also_where_one_pull_waits(clock):
    """200 buffered batches cost a tenth; every twentieth waits, as if the system took the core away."""
    costs = chain(repeat(0.01, 200), ([*[0.001] * 19, 0.008] * 10), repeat(0.01))
    made = Measured(Source(clock, lambda _: next(costs)), "source", Progress(None))
    made.warm_up(10)
    while clock.now < 200 * 0.01:
        made.pull()
    examples, seconds, _ = made.measure_window(0.15, 8)
    assert examples / seconds == pytest.approx(3200)


def test_a_step_that_reads_ahead_in_the_background_is_measured_without_its_buffer(clock, monkeypatch):
    """While the process waits to be idle, the step's pipeline fills its buffer of five batches: these cost a tenth."""
    buffered = [0]

    def step():
        clock.spend(0.01 if buffered[0] else 0.1)
        buffered[0] = max(0, buffered[0] - 1)

    busy = iter([True, False])  # the second time, its buffer is full already
    monkeypatch.setattr(source, "wait_until_idle", lambda *_: buffered.__setitem__(0, 5) or next(busy))
    made = Measured(step, "step", Progress(None))
    made.warm_up(10)
    for _ in range(2):
        steps, seconds, _ = made.measure_window(0.2, 2)
        assert steps / seconds == pytest.approx(10)


def test_of_short_passes_whole_ones_are_measured(clock):
    """The first of 20 batches takes as long as all others together."""
    cost = 0.19, *[0.01] * 19
    made = Measured(Source(clock, lambda batch: cost[batch % 20], [32] * 20), "source", Progress(None))
    made.warm_up(10)
    assert made.pass_batches == 20 and made.passes
    made.batch_seconds = 0.01
    for _ in range(5):
        examples, seconds, _ = made.measure_window(0.15, 8)
        assert examples % (20 * 32) == 0 and examples / seconds == pytest.approx(20 * 32 / 0.38)
        made.pull()


def test_the_noise_within_a_window_is_told(clock):
    dice = np.random.default_rng(0)
    noisy = Measured(Source(clock, lambda _: 0.001 * dice.lognormal(0, 0.5)), "source", Progress(None))
    steady = Measured(Source(clock, 0.001), "source", Progress(None))
    for made in (noisy, steady):
        made.warm_up(10)
    noises = [noisy.measure_window(0.15, 8)[2] for _ in range(200)]
    assert np.sqrt(np.mean(np.square(noises))) == pytest.approx(0.5 / np.sqrt(150), rel=0.3)
    assert steady.measure_window(0.15, 8)[2] == pytest.approx(0, abs=1e-6)


IMAGES = np.empty([7, 3])


@pytest.mark.parametrize(
    "batch",
    [
        (IMAGES, np.empty([9])),
        (({"a": IMAGES}, np.empty([7])), np.empty([8])),
        (["one"] * 7, [0] * 7),
        [1, 2, 3, 4, 5, 6, 7],
        {"ids": [[1, 2, 3]] * 7, "label": [0] * 7},
        SimpleNamespace(shape=(7, 3)),
    ],
)
def test_batches_of_every_kind_are_counted_by_their_first_component(batch):
    assert examples_in(batch) == 7


def test_tensors_are_counted():
    from bigtrain_nb import tf

    assert examples_in((tf.constant(["a", "b"]), tf.ones([2]))) == 2
    assert examples_in(tf.ragged.constant([[1], [2, 3], []])) == 3
    assert examples_in({"ids": tf.sparse.from_dense([[1, 0], [0, 2], [3, 0]])}) == 3
    dataset = tf.data.Dataset.range(10).batch(4)
    assert [examples_in(batch) for batch in dataset] == [4, 4, 2]
    for one in tf.data.Dataset.from_tensor_slices((np.empty([2, 28, 28, 1]), [3, 4])):
        with pytest.raises(ValueError, match=r"of shape \(\), with no examples .*: batch it first"):
            examples_in(one)


IMAGE, LABEL = np.empty([28, 28, 1]), np.int64(3)


@pytest.mark.parametrize(
    "batch",
    [
        None,
        (3, IMAGES),
        IMAGES[:0],
        [IMAGE, np.array(3)],
        ({"image": IMAGE, "id": LABEL}, np.empty([10])),
    ],
)
def test_what_is_no_batch_is_refused(batch):
    with pytest.raises(ValueError, match="source yielded .* no examples along a leading dimension: batch it first"):
        examples_in(batch)
