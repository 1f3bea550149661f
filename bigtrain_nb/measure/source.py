"""A source: batches that are read on and on, or a step that is called again and again. It is warmed up, then visited.

No TensorFlow is imported here; where somebody else has loaded it, a visit waits for its GPUs.
"""

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from numbers import Integral

from bigtrain_nb.common.checks import takes
from bigtrain_nb.common.hardware import own_cpu_seconds

STEP_SLICE, SLICE = 0.05, 0.3
"""Seconds. A warm-up is seen in slices, of a step and of an iterator: it is over once two agree."""
LONGEST_STEADYING = 2.0
"""Seconds. After a first pass that took all the time of the warm-up, so long may it take until slices agree."""
LONGEST_REST = LONGEST_DRAIN = 1.0
SHORTEST_DRAIN = 0.1
KEPT = 16
INFINITE = -1
"""What a `tf.data.Dataset` with `.repeat()` gives as its cardinality."""

now = time.perf_counter


class Source:
    """One instance of what is measured, and the count of its examples.

    ``unit`` is "examples/s" or "steps/s", known after the first batch; ``first_seconds`` is the time to that batch;
    ``passes`` counts those that have ended; ``batch_seconds`` is the time from batch to batch once it is warm.

    A finite `tf.data.Dataset` is read on by its own ``repeat()`` when its first pass has ended: a new iterator for each
    pass costs up to a second, in which TensorFlow tears the old one down.
    """

    def __init__(self, made, name, progress):
        if not is_source(made):
            hint = ": a step function takes no arguments, as lambda: train_step(batch)" if callable(made) else ""
            raise TypeError(f"{name} must be an iterable of batches or a step function, not {made!r:.99}{hint}")
        self.given = made
        if callable(getattr(made, "dataset", None)):
            made = made.dataset()
        self.made = made
        self.name = name
        self.progress = progress
        self.is_step = not hasattr(made, "__iter__")
        self.unit = None if self.is_step else "examples/s"
        self.has_end = not self.is_step and _has_end(made)
        self.can_repeat = self.has_end and hasattr(made, "repeat")
        self.iterator = None
        self.ended = deque(maxlen=KEPT)
        """Iterators whose passes have ended, the last one last. `let_go` has them torn down, not a measurement."""
        self.passes = 0
        self.pass_is_empty = True
        self.first_seconds = None
        self.batch_seconds = math.inf

    def pull(self):
        """Take one batch, or step, and return how many examples it held; 0 where a pass has just ended."""
        count = self._step() if self.is_step else self._batch()
        self.progress.tick()
        return count

    def run(self, seconds, batches=1):
        """Pull for at least so many seconds and batches, from the end of one batch to the end of another.

        Return how many examples and batches came, and how many seconds that took, until all were worked out.
        """
        wait_for_gpus()
        began = now()
        examples = count = 0
        while count < batches or now() - began < seconds:
            pulled = self.pull()
            examples += pulled
            count += pulled > 0
        wait_for_gpus()
        return examples, count, max(now() - began, 1e-9)

    def warm_up(self, longest):
        """Pull the first batch; to the end of a first pass, as it may fill a cache; then until two slices agree.

        The pass is awaited for ``longest`` seconds at most. A step has no buffers that run empty, so for it the second
        slice may be slower than the first: that is noise.
        """
        began = now()
        while not self.pull():
            pass
        wait_for_gpus()
        self.first_seconds = now() - began
        until = began + longest
        while self.has_end and not self.passes and now() < until:
            self.pull()
        until = max(until, now() + LONGEST_STEADYING)
        before = 0.0
        while True:
            examples, batches, took = self.run(STEP_SLICE if self.is_step else SLICE, batches=2)
            self.batch_seconds = took / batches
            rate = examples / took
            agrees = rate < 1.1 * before and (self.is_step or rate > 0.8 * before)
            if agrees or now() > until:
                return
            before = rate

    def visit(self, seconds, batches):
        """Return examples and seconds of one visit; of an iterator, once it is at rest and its buffers are empty."""
        if not self.is_step:
            let_rest(self.progress)
            self._run_dry()
        examples, _, took = self.run(seconds, batches)
        return examples, took

    def let_go(self):
        """Give up all iterators, in a thread: TensorFlow may be idle for a second when it tears one down."""
        iterators = [self.iterator, *self.ended]
        self.iterator = None
        self.ended.clear()
        threading.Thread(target=iterators.clear, name="letting go").start()

    def _run_dry(self):
        """Take what lies ready: for 0.1 s, and until a pull waited for half as long as a batch takes.

        How long that is, the warm-up has said. A visit must not say it: one that took batches which lay ready would
        make the next one believe that it was dry.
        """
        began = now()
        while True:
            before = now()
            self.pull()
            waited = now() - before > 0.5 * self.batch_seconds and now() - began > SHORTEST_DRAIN
            if waited or now() - began > LONGEST_DRAIN:
                return

    def _batch(self):
        if self.iterator is None:
            self.pass_is_empty = True
            self.iterator = iter(self.made)
        for batch in self.iterator:
            self.pass_is_empty = False
            return count_examples(batch, self.name)
        if self.pass_is_empty:
            again = " a second time: give it as a function or an iterable that starts anew" if self.passes else ""
            raise ValueError(f"{self.name} yielded no batch{again}")
        self.passes += 1
        self.ended.append(self.iterator)
        self.iterator = None
        if self.can_repeat:
            self.made = self.made.repeat()
            self.can_repeat = False
        return 0

    def _step(self):
        done = self.made()
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


def is_source(thing):
    """Tell whether this can be measured: batches, a step function, or what has `.dataset()`."""
    is_model = hasattr(thing, "train_on_batch")  # of Keras: what a step of it is, is for a step function to say
    if callable(getattr(thing, "dataset", None)) or (callable(thing) and not is_model and takes(thing)):
        return True
    is_one_thing = isinstance(thing, str | bytes | Mapping) or getattr(thing, "shape", None) == ()
    return hasattr(thing, "__iter__") and not is_one_thing


def _has_end(made):
    """Tell whether batches are known to end: a `tf.data.Dataset` without `repeat()`, or what has a length."""
    if hasattr(made, "cardinality"):
        return int(made.cardinality()) != INFINITE
    try:
        return len(made) >= 0
    except (TypeError, NotImplementedError):
        return False


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


def let_rest(progress):
    """Wait until this process and its children rest, as their buffers are full; a second at most."""
    until, used = now() + LONGEST_REST, own_cpu_seconds() - time.thread_time()
    while now() < until:
        time.sleep(0.01)
        progress.tick()
        used, before = own_cpu_seconds() - time.thread_time(), used
        if used - before < 0.002:
            return


def wait_for_gpus():
    """Wait until this process' GPUs have done what they were given; a CPU has when TensorFlow's call returns.

    `tf.test.experimental.sync_devices` would ask the devices of other workers too, and raises in a worker.
    """
    tf = sys.modules.get("tensorflow")
    if not hasattr(tf, "config"):
        return  # not loaded, or being loaded
    for number in range(len(tf.config.get_visible_devices("GPU"))):
        with tf.device(f"GPU:{number}"):
            tf.raw_ops.SyncDevice()
