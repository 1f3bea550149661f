"""How fast is it? One source, alone: it is built, warmed up, and then timed by the batch.

A single timing lies: the first batches pay for start-up, the machine drifts, a neighbour steals a core. So `throughput`
warms a source up, measures it in rounds, and reports the median round with a 95 % interval (see `intervals`). Sources
that are to be compared take turns instead (see `blocks`).

No TensorFlow is imported here; where somebody else has loaded it, a measurement waits for its GPUs.
"""

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any

import psutil

from bigtrain_nb.common.checks import function, of_kind, positive, takes
from bigtrain_nb.measure.results import LEAST_ROUNDS, PASS_GOES_ON, Result

WARM_UP = 0.4
"""Of the time of `throughput`, at most."""
ROUNDS = 40
"""The time that is left is cut into so many, unless they get shorter than `SHORTEST_SLOT`."""
SHORTEST_SLOT = 0.1
"""Seconds. So long is a source measured each time, at least, and at least one batch."""
SHORTEST_WARM_UP = 0.1
SHORTEST_SLICE = 0.05
"""Seconds. A warm-up is seen in slices: the rate is steady once two that follow each other agree within 10 %."""
KEPT = 16
INFINITE = -1
"""What a `tf.data.Dataset` with `.repeat()` gives as its cardinality."""

now = time.perf_counter


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
    source that is neither iterable nor callable, and for a function that returns a dataset and does no step.

    Example::

        batches = tf.data.Dataset.range(10_000).batch(100)
        print(bt.throughput(batches, seconds=0.5))
    """
    of_kind("name", name, str, "a text")
    budget = Budget(seconds, progress)
    measured = Instance(source, name, budget)
    measured.warm_up(seconds * WARM_UP, is_pass_awaited=True)
    is_sure = measured.is_step or measured.passes > 0
    slot = max(budget.left() / ROUNDS, SHORTEST_SLOT)
    is_whole = measured.pass_seconds <= budget.left() / LEAST_ROUNDS
    if is_whole:
        measured.end_pass()
    rounds = []
    while len(rounds) < LEAST_ROUNDS or budget.left() > slot / 2:
        rounds.append(measured.pull_for(slot, is_whole))
    counts, times = zip(*rounds, strict=True)
    rates = tuple(count / took for count, took in rounds)
    note = "" if is_sure else PASS_GOES_ON
    return Result(name, rates, measured.unit, measured.first_seconds, sum(counts), sum(times), note)


def is_source(thing):
    """Tell whether this can be measured: batches, a step function, or what has `.dataset()`."""
    is_model = hasattr(thing, "train_on_batch")  # of Keras: what a step of it is, is for a step function to say
    if callable(getattr(thing, "dataset", None)) or (callable(thing) and not is_model and takes(thing)):
        return True
    is_one_thing = isinstance(thing, str | bytes | Mapping) or getattr(thing, "shape", None) == ()
    return hasattr(thing, "__iter__") and not is_one_thing


def count_examples(batch, name="source"):
    """Return the number of examples in a batch, at least 1: the leading dimension of its first component."""
    first = batch
    while isinstance(first, tuple | list | Mapping) and first:
        if isinstance(first, list) and isinstance(first[0], int | float | str):
            return len(first)
        parts = list(first.values()) if isinstance(first, Mapping) else first
        first = parts[0]
    shape = tuple(getattr(first, "shape", ()))
    if not shape or not shape[0]:
        raise ValueError(
            f"{name} yielded {type(first).__name__} of shape {shape}, with no examples along a leading dimension:"
            " batch it first, as in dataset.batch(32); instead of a distributed dataset, give what it was made from"
        )
    return int(shape[0])


class Budget:
    """The time that a measurement may take, and the news of it."""

    def __init__(self, seconds, progress):
        self.seconds = positive("seconds", seconds, "seconds")
        if progress is not None:
            function("progress", progress, "a function of the fraction that is done", arguments=[0.5])
        self.progress = progress
        self.started = self.told = now()

    def left(self):
        return self.started + self.seconds - now()

    def tell(self):
        if self.progress and now() - self.told >= 0.1:
            self.told = now()
            self.progress(min(1.0, (self.told - self.started) / self.seconds))


class Instance:
    """A source that is read again and again, or a step that is called again and again, and whose examples are counted.

    ``unit`` is "examples/s" or "steps/s", known after the first batch; ``first_seconds`` is the time to that batch;
    ``examples`` counts all that came; ``passes`` counts those that have ended, of which the first had ``pass_examples``
    and the last took ``pass_seconds`` (infinite before). ``first_pass_rate``: examples/s until a warm-up had seen the
    first pass end, without the first batch, or None.

    A finite `tf.data.Dataset` is read on by its own ``repeat()`` when its first pass has ended, or at once if it
    ``reads_on``: a new iterator for each pass costs up to a second, in which TensorFlow tears the old one down.
    """

    def __init__(self, source, name, budget, reads_on=False):
        if not is_source(source):
            hint = ": a step function takes no arguments, as lambda: train_step(batch)" if callable(source) else ""
            raise TypeError(f"{name} must be an iterable of batches or a step function, not {source!r:.99}{hint}")
        if callable(getattr(source, "dataset", None)):
            source = source.dataset()
        self.source = source
        self.name = name
        self.budget = budget
        self.is_step = not hasattr(source, "__iter__")
        self.unit = None if self.is_step else "examples/s"
        self.iterator = None
        self.ended = deque(maxlen=KEPT)
        """Iterators whose passes have ended, the last one last. `let_go` has them torn down, not a measurement."""
        self.examples = self.passes = 0
        self.pass_examples = self.pass_seconds = math.inf
        self.first_pass_rate = None
        is_dataset = hasattr(source, "cardinality") and hasattr(source, "repeat")
        self.is_endless = is_dataset and int(source.cardinality()) == INFINITE
        self.can_repeat = is_dataset and not self.is_endless
        if reads_on and self.can_repeat:
            self._repeat()
        began = now()
        self.pull()
        _wait_for_gpus()
        self.first_seconds = now() - began

    def pull(self):
        """Take one batch, or step, and return how many examples it held; 0 where a pass has just ended."""
        count = self._step() if self.is_step else self._batch()
        self.examples += count
        self.budget.tell()
        return count

    def pull_for(self, seconds, whole=False):
        """Pull for at least ``seconds`` and one batch, then on to the end of a pass if ``whole``.

        Return how many examples came and how many seconds that took, until all of them were worked out.
        """
        _wait_for_gpus()
        began = now()
        examples, took = 0, 0.0
        while not examples or took < seconds or (whole and self.iterator is not None):
            examples += self.pull()
            took = now() - began
        _wait_for_gpus()
        return examples, max(now() - began, 1e-9)

    def warm_up(self, longest, is_pass_awaited, pass_examples=math.inf):
        """Pull until the rate is steady, at most ``longest`` seconds or until 0.1 s after a first pass.

        First to the end of one pass if ``is_pass_awaited``: a cache is full only then. Where passes are known to have
        ``pass_examples``, it is enough that so many came. Then for at least 0.1 s until two slices agree, and until the
        whole has taken three times as long as that. A step has no buffers that run empty, so for it the second of them
        may be slower: that is noise.
        """
        began, before = now(), self.examples
        until = began + longest
        is_pass_awaited = is_pass_awaited and not self.is_step
        while is_pass_awaited and not self.passes and self.examples < pass_examples and now() < until:
            self.pull()
        first_seconds = now() - began
        if self.passes:
            self.first_pass_rate = (self.examples - before) / max(first_seconds, 1e-9)
            until = max(until, now() + SHORTEST_WARM_UP)
        self._until_steady(until, first_seconds)

    def _until_steady(self, until, seconds_before):
        """Pull until a slice is no faster than the one before (nor slower, but for a step), and twice as long again.

        Of that, the ``seconds_before`` that it has been pulled already count too.
        """
        began = now()
        settled = None
        previous_rate = previous_took = 0.0
        while now() < until:
            elapsed = now() - began
            is_long_enough = elapsed >= SHORTEST_WARM_UP and seconds_before + elapsed >= 3 * (settled or 0)
            if settled is not None and is_long_enough:
                break
            examples, took = self.pull_for(SHORTEST_SLICE)
            rate = examples / took
            is_no_faster = rate < 1.1 * previous_rate
            is_no_slower = self.is_step or rate > 0.9 * previous_rate
            if settled is None and is_no_faster and is_no_slower:
                settled = elapsed - previous_took
            previous_rate, previous_took = rate, took

    def end_pass(self):
        """Finish the pass that is going on."""
        while self.iterator is not None:
            self.pull()

    def let_go(self):
        """Give up all iterators, in a thread: TensorFlow may be idle for a second when it tears one down."""
        iterators = [self.iterator, *self.ended]
        self.iterator = None
        self.ended.clear()
        threading.Thread(target=iterators.clear, name="letting go").start()

    def _batch(self):
        if self.iterator is None:
            self.pass_began = now()
            self.pass_is_empty = True
            self.iterator = iter(self.source)
        for batch in self.iterator:
            self.pass_is_empty = False
            return count_examples(batch, self.name)
        if self.pass_is_empty:
            again = " a second time: give it as a function or an iterable that starts anew" if self.passes else ""
            raise ValueError(f"{self.name} yielded no batch{again}")
        if not self.passes:
            self.pass_examples = self.examples
        self.passes += 1
        self.pass_seconds = now() - self.pass_began
        self.ended.append(self.iterator)
        self.iterator = None
        if self.can_repeat:
            self._repeat()
        return 0

    def _repeat(self):
        self.source = self.source.repeat()
        self.can_repeat = False
        self.pass_seconds = math.inf  # no end of a pass is seen from now on

    def _step(self):
        done = self.source()
        if hasattr(done, "cardinality") or hasattr(done, "__next__") or callable(getattr(done, "dataset", None)):
            raise TypeError(
                f"{self.name} is a function that returns {done!r:.99}, and a call of it reads nothing: give what it"
                " returns, or a function that does a step"
            )
        is_count = isinstance(done, Integral) and not isinstance(done, bool)
        unit = "examples/s" if is_count else "steps/s"
        self.unit = self.unit or unit
        if unit != self.unit or (is_count and done < 1):
            raise ValueError(
                f"{self.name} returned {done!r:.99}: a step function returns how many examples it processed, at least"
                " 1, every time or never"
            )
        return int(done) if is_count else 1


def let_rest(budget, longest):
    """Wait until this process and its children rest, as their buffers are full; at most ``longest`` seconds."""
    until, used = now() + longest, _cpu_seconds()
    while now() < until:
        time.sleep(0.01)
        budget.tell()
        used, before = _cpu_seconds(), used
        if used - before < 0.002:
            return


def _wait_for_gpus():
    """Wait until this process' GPUs have done what they were given; a CPU has when TensorFlow's call returns.

    `tf.test.experimental.sync_devices` would ask the devices of other workers too, and raises in a worker.
    """
    tf = sys.modules.get("tensorflow")
    if not hasattr(tf, "config"):
        return  # not loaded, or being loaded
    for number in range(len(tf.config.get_visible_devices("GPU"))):
        with tf.device(f"GPU:{number}"):
            tf.raw_ops.SyncDevice()


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
