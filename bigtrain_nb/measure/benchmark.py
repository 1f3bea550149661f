"""How fast is it, and is the difference real? Measures anything that yields batches; imports no TensorFlow.

A single timing lies: the first batches pay for start-up, the machine drifts, a neighbour steals a core. So a source is
warmed up, then measured in rounds, and reported as the median round with a 95 % interval (see `intervals`). Sources
that are to be compared run in interleaved rounds, so that a drifting machine hurts all alike, and the verdict
rests on the ratios of rounds that ran side by side.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any

import psutil

from bigtrain_nb.common.checks import function, of_kind, positive, takes
from bigtrain_nb.measure.counting import count_examples
from bigtrain_nb.measure.results import Comparison, Result

LEAST_ROUNDS = 6
WARM_UP = 0.4
ROUNDS = 40
"""Many short rounds see a small difference better than few long ones: noise comes with each new iterator."""
DRAIN = 0.25
SLICES = 20
"""Of the warm-up: the rate is steady once two that follow each other agree within 10 %."""
SHORTEST_SLOT = 0.1
LONGEST_WHOLE = 0.5
"""Seconds. Comparing longer passes whole would leave too few rounds to see a small difference."""
SPENT = 16
"""Exhausted iterators kept until a round is over: when TensorFlow tears one down it may wait, idle, for up to a second
(an old one: half a minute), and makes new ones wait. Those of very short passes go at once."""

_now = time.perf_counter


def throughput(source: Any, *, seconds: float = 3.0, name: str = "source", progress: Callable | None = None) -> Result:
    """Measure how many examples a second ``source`` gives; return a `Result`.

    ``source`` is an iterable of batches (a `tf.data.Dataset`, a list, a PyTorch loader), iterated again and again if
    it is finite, or a step function, called again and again, or an object with `.dataset()`, such as a `Pipeline`.
    Examples are counted by the leading dimension of a batch's first component, so a short last batch counts for what
    it holds; the first component must not be a scalar. A step function that returns an int says how many examples
    it processed, and must do so every time; otherwise each call counts as one step.

    If its first pass has not ended after the warm-up, the result's ``note`` says so: a cache is full only then.

    ``seconds`` is the whole time, warm-up included; a batch is never cut, so a slow source may take longer, up to
    6 rounds of one batch. ``progress(fraction)`` is called between batches, at most ten times a second; an exception
    that it raises ends the measurement.

    Raises ValueError for a source that yields nothing, for batches without examples or a leading dimension, for a step
    function that returns an int only sometimes and for seconds that are not positive and finite; TypeError for a
    source that is neither iterable nor callable.

    Example::

        batches = tf.data.Dataset.range(10_000).batch(100)
        print(bt.throughput(batches, seconds=0.5))
    """
    of_kind("name", name, str, "a text")
    budget = Budget(seconds, progress)
    meter = Meter(source, name, budget)
    meter.warm_up(seconds * WARM_UP)
    slot = max(budget.left() / ROUNDS, SHORTEST_SLOT)
    if meter.pass_seconds <= budget.left() / LEAST_ROUNDS:
        meter.use_whole_passes()
    while len(meter.rounds) < LEAST_ROUNDS or budget.left() > slot / 2:
        meter.measure(slot)
    return meter.result()


def compare(
    factories: Mapping[str, Callable], *, seconds: float = 10.0, progress: Callable | None = None
) -> Comparison:
    """Measure several sources in interleaved rounds; return a `Comparison`.

    ``factories`` is a dictionary from a name to a function without arguments that returns a fresh source (an iterable
    of batches or a step function, as for `throughput`). ``seconds`` is the whole budget for all of them together; which
    differences a budget shows is counted by benchmarks/honesty.py. ``progress`` is as for `throughput`.

    Every pass visits all sources, and every second pass in reverse order, so that drift within a pass cancels.
    No source works behind another's back. Short passes are measured whole, start included; not so where another source
    has passes that are too long for this, but less than 1.5 times as long. Any other gets a new iterator for each
    round, and its first batches do not count. If a first batch takes long (a large shuffle buffer), the iterator stays.
    Measure a dataset with a cache without `repeat()`: only when its first pass has ended is the cache surely full.

    Raises ValueError for fewer than two factories and for sources that are counted in different units, TypeError for
    what is no dictionary and for a factory that is no function, and whatever `throughput` raises, with the source's
    name.

    Example::

        sources = {"short": lambda: [[0] * 8] * 50, "long": lambda: [[0] * 64] * 50}
        both = bt.compare(sources, seconds=0.5)
        print(both.ratio("long", "short"))
    """
    budget = Budget(seconds, progress)
    meters, slot = line_up(factories, budget, ROUNDS)
    order = list(meters)
    while len(meters[0].rounds) < LEAST_ROUNDS or budget.left() > slot * len(meters) / 2:
        take_turns(order, slot)
    return Comparison({meter.name: meter.result() for meter in meters})


def line_up(factories, budget, rounds):
    """Return a warmed-up `Meter` for each factory, and how many seconds a round may take if each has so many."""
    if not isinstance(factories, Mapping):
        raise TypeError(
            "compare takes a dictionary {name: function that returns a fresh source}, with two or more of them, not"
            f" {factories!r:.99}: one source alone is measured by bt.throughput(source)"
        )
    if len(factories) < 2:
        raise ValueError(f"expected at least two sources to compare, not {len(factories)}")
    for name, factory in factories.items():
        if not callable(factory) or not takes(factory):
            raise TypeError(
                f"the factory of {name!r} must be a function that returns a fresh source, not {factory!r:.99}: it is"
                " called without arguments"
            )
    meters = []
    for name, factory in factories.items():
        meter = Meter(factory(), name, budget)
        meter.warm_up(budget.seconds * WARM_UP / len(factories))
        meter.drop()
        meters.append(meter)
    if len({meter.unit for meter in meters}) > 1:
        raise ValueError(
            "cannot compare steps/s with examples/s: let each step function return how many examples it processed"
        )
    slot = max(budget.left() / rounds / len(meters) / (1 + DRAIN), SHORTEST_SLOT)
    # An iterator that stays may take two rounds to fill its buffers, so a new one may too; longer if there is time
    spare = budget.left() / (2 * LEAST_ROUNDS) / len(meters) - (1 + DRAIN) * slot
    longest_pass = max(1.5 * slot, LONGEST_WHOLE)
    for meter in sorted(meters, key=lambda meter: meter.pass_seconds, reverse=True):
        if meter.pass_seconds <= longest_pass:
            meter.use_whole_passes()
        else:  # sources about as long must be measured the same way: only a whole pass counts its start
            longest_pass = min(longest_pass, meter.pass_seconds / 1.5)
        meter.choose_renew(max(2 * slot, spare))
    return meters, slot


def take_turns(meters, slot):
    """Give each meter a round, and turn their order round for the next time."""
    for meter in meters:
        meter.measure_apart(slot)
    meters.reverse()


def is_source(thing):
    """Tell whether `throughput` can measure something: batches, a step function, or what has `.dataset()`."""
    is_model = hasattr(thing, "train_on_batch")  # of Keras: what a step of it is, is for a step function to say
    if callable(getattr(thing, "dataset", None)) or (callable(thing) and not is_model and takes(thing)):
        return True
    is_one_thing = isinstance(thing, str | bytes | Mapping) or getattr(thing, "shape", None) == ()
    return hasattr(thing, "__iter__") and not is_one_thing


class Budget:
    """The time that a measurement may take, and the news of it."""

    def __init__(self, seconds, progress):
        self.seconds = positive("seconds", seconds, "seconds")
        if progress is not None:
            function("progress", progress, "a function of the fraction that is done", arguments=[0.5])
        self.progress = progress
        self.started = self.told = _now()

    def left(self):
        return self.started + self.seconds - _now()

    def tell(self):
        if self.progress and _now() - self.told >= 0.1:
            self.told = _now()
            self.progress(min(1.0, (self.told - self.started) / self.seconds))


class Meter:
    """Pulls one source, again and again where it is finite, and counts what it gives."""

    def __init__(self, source, name, budget):
        if not is_source(source):
            hint = ": a step function takes no arguments, as lambda: train_step(batch)" if callable(source) else ""
            raise TypeError(f"{name} must be an iterable of batches or a step function, not {source!r:.99}{hint}")
        if callable(getattr(source, "dataset", None)):
            source = source.dataset()
        self.is_step = not hasattr(source, "__iter__")
        self.source = source
        self.name = name
        self.budget = budget
        self.unit = None if self.is_step else "examples/s"
        self.rounds = []  # (examples, seconds)
        self.iterator = None
        self.spent = deque(maxlen=SPENT)
        self.passes = 0
        self.pass_seconds = math.inf
        self.whole = self.renew = False
        began = _now()
        self.pull()
        self.first_seconds = _now() - began

    # First, taking batches and counting them.

    def pull(self):
        """Take one batch (or step) and return how many examples it held; 0 where a pass has just ended."""
        count = self._step() if self.is_step else self._batch()
        self.budget.tell()
        return count

    def pull_for(self, seconds, whole=False):
        """Pull for at least ``seconds`` and one batch, then on to the end of a pass if ``whole``.

        Return how many examples came and how long it took.
        """
        began = _now()
        examples, took = 0, 0.0
        while not examples or took < seconds or (whole and self.iterator is not None):
            examples += self.pull()
            took = _now() - began
        return examples, max(took, 1e-9)

    def _batch(self):
        if self.iterator is None:
            self.pass_began = _now()
            self.pass_is_empty = True
            self.iterator = iter(self.source)
        for batch in self.iterator:
            self.pass_is_empty = False
            return count_examples(batch, self.name)
        if self.pass_is_empty:
            again = " a second time: give it as a function or an iterable that starts anew" if self.passes else ""
            raise ValueError(f"{self.name} yielded no batch{again}")
        self.passes += 1
        self.pass_seconds = _now() - self.pass_began
        self.spent.append(self.iterator)
        self.iterator = None
        return 0

    def _step(self):
        done = self.source()
        is_count = isinstance(done, Integral) and not isinstance(done, bool)
        unit = "examples/s" if is_count else "steps/s"
        self.unit = self.unit or unit
        if unit != self.unit or (is_count and done < 1):
            raise ValueError(
                f"{self.name} returned {done!r:.99}: a step function returns how many examples it processed, at least"
                " 1, every time or never"
            )
        if hasattr(done, "numpy"):
            done.numpy()  # waits until a GPU has worked it out
        return int(done) if is_count else 1

    def drop(self):
        """Let the iterator go, and with it what it does in the background."""
        self.iterator = None
        self.spent.clear()

    # Then, in this order: warm up, choose how to measure, measure, and say what was found.

    def warm_up(self, seconds):
        """Pull until the rate is steady and a finite source has been through once, at most ``seconds``."""
        began = _now()
        last = 0.0
        while _now() - began < seconds:
            examples, took = self.pull_for(seconds / SLICES)
            self.spent.clear()
            is_steady = abs(examples / took - last) < 0.1 * last
            if is_steady and (self.is_step or self.passes):
                break
            last = examples / took
        self.passes_before = self.passes

    def use_whole_passes(self):
        """Finish the pass that the warm-up began, and measure only whole ones from now on."""
        self.whole = True
        if self.iterator is not None:
            self.pull_for(0, whole=True)
        self.spent.clear()

    def choose_renew(self, longest):
        """Take a new iterator for each round, unless its first batch takes longer than ``longest``.

        One that stays begins its rounds with full buffers, and intervals get wide.
        """
        if self.whole or self.is_step:
            return
        began = _now()
        self.pull()
        self.renew = _now() - began <= longest
        if self.renew:
            self.drop()

    def measure(self, seconds):
        """Add a round of at least ``seconds``, in whole passes if those are short."""
        self.rounds.append(self.pull_for(seconds, self.whole))
        self.spent.clear()

    def measure_apart(self, seconds):
        """Add a round among those of other sources, once nothing works in the background and buffers are drained."""
        _settle(self.budget, min(1.0, 2 * seconds))
        if not (self.whole or self.is_step):
            self.pull()
            self.pull_for(seconds * DRAIN)
        self.measure(seconds)
        if self.renew:
            self.drop()

    def result(self):
        counts, times = zip(*self.rounds, strict=True)
        rates = tuple(count / took for count, took in self.rounds)
        is_sure = self.is_step or self.passes_before
        note = "" if is_sure else "measured before its first pass had ended"
        return Result(self.name, rates, self.unit, self.first_seconds, sum(counts), sum(times), note)


def _settle(budget, limit):
    """Wait until this process and its children rest (their buffers are full), at most ``limit`` seconds."""
    until, used = _now() + limit, _cpu_seconds()
    while _now() < until:
        time.sleep(0.01)
        budget.tell()
        used, before = _cpu_seconds(), used
        if used - before < 0.002:
            return


def _cpu_seconds():
    """Processor time of this process and its children, without this thread's (it only watches), in seconds."""
    total = time.process_time() - time.thread_time()
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
            total += times.user + times.system
        except psutil.Error:
            continue
    return total
