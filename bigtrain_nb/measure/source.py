"""A source: an iterable of batches or a step function. It is warmed up, then measured.

TensorFlow is not imported here; if it is loaded already, a measurement window synchronizes with its GPUs.
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

STEP_SLICE, SLICE, LONGEST_STEADYING = 0.05, 0.3, 2.0
"""Seconds: a warm-up slice of a step, one of an iterator, and the limit on waiting for two slices to agree."""
LONGEST_REST, RESTS = 1.0, 3
"""Seconds, and windows: the limit on waiting until all sources have filled their buffers. The longer one counts."""
DRAIN_SLICE, LONGEST_DRAIN = 0.05, 1.0
"""Seconds. Buffers are empty once a slice, or a longer batch, is not much faster than the end of the warm-up."""
STILL_BUFFERED = 1.25
"""Multiple of the steady rate above which a slice of a drain consumed buffered batches."""
LONGEST_PASS = 0.3
"""Seconds. Shorter passes are measured to their end."""
PREFETCHED = 8
"""Batches, instead of TensorFlow's prefetch: its buffer doubles whenever it is empty, and takes seconds to fill."""
INFINITE = -1
"""The cardinality of a `tf.data.Dataset` with `.repeat()`."""
KEPT = 16
READABLE_AGAIN = "an iterable that can be read again (a list, a dataset, a class with __iter__)"

now = time.perf_counter


class Source:
    """One instance of a measured source.

    ``unit`` is "examples/s" or "steps/s", known after the first batch; ``first_seconds`` is the time to that batch;
    ``passes`` counts the completed passes, ``pass_batches`` the batches of the first one; ``batch_seconds`` is the time
    per batch after the warm-up.

    After its first pass, a finite `tf.data.Dataset` is read through ``repeat()``: a new iterator for each pass would
    cost up to a second while TensorFlow destroys the old one.
    """

    def __init__(self, made, name, progress):
        if not is_source(made):
            hint = ": a step function takes no arguments, like lambda: train_step(batch)" if callable(made) else ""
            raise TypeError(f"{name} must be an iterable of batches or a step function, not {made!r:.99}{hint}")
        self.given = made
        if callable(getattr(made, "dataset", None)):
            made = made.dataset()
        if any(kind.__name__ == "PyDataset" for kind in type(made).__mro__) and made.workers > 1:
            raise ValueError(f"{name} is a PyDataset, whose workers only Keras' fit starts: measure it with workers=1")
        self.made = made
        self.name = name
        self.progress = progress
        self.is_step = not hasattr(made, "__iter__")
        self.unit = None if self.is_step else "examples/s"
        self.has_end = not self.is_step and has_end(made)
        self.is_dataset = hasattr(made, "repeat") and hasattr(made, "prefetch")
        self.has_buffers = not self.is_step
        """A step may read from a pipeline: then it works in the background before some window."""
        self.iterator = None
        self.ended = deque(maxlen=KEPT)
        """Exhausted iterators, the oldest first. `release` destroys them, so that this does not slow a measurement."""
        self.passes = 0
        self.pass_is_empty = True
        self.pass_batches = 0
        self.first_seconds = None
        self.batch_seconds = math.inf

    @property
    def note(self):
        return "measured before its first pass had ended" if self.has_end and not self.passes else ""

    def pull(self):
        """Take one batch, or step, and return its number of examples; 0 at the end of a pass."""
        count = self._step() if self.is_step else self._batch()
        self.progress.tick()
        return count

    def run(self, seconds, batches=1):
        """Pull for at least so many seconds and batches, from the end of one batch to the end of another.

        Return the examples, the batches and the seconds until all work was completed.
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

    def run_passes(self, seconds, batches=1, before=0):
        """Run, and, if passes are short, continue to the end of one; ``before``: batches taken already.

        The end of a pass has a cost. A window with too many or too few of these ends would be biased.
        """
        examples, count, took = self.run(seconds, batches)
        is_short = self.passes and self.pass_batches * self.batch_seconds < LONGEST_PASS
        lacks = -(before + count) % self.pass_batches if is_short else 0
        if lacks:
            more, others, longer = self.run(0.0, lacks)
            examples, count, took = examples + more, count + others, took + longer
        return examples, count, took

    def warm_up(self, longest):
        """Pull the first batch, then to the end of the first pass, which may fill a cache, then until two slices agree.

        The pass is awaited for at most ``longest`` seconds. A step has no buffers to drain, so a slower second slice is
        noise.
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

    def measure_window(self, seconds, batches):
        """Return examples, seconds and noise of one measurement window; an iterator starts idle, with empty buffers.

        The noise is the standard error of the logarithm of the rate, estimated from the window's two halves.
        """
        self.has_buffers |= wait_until_idle(self.progress.tick, max(LONGEST_REST, RESTS * seconds))
        if self.has_buffers:
            self._drain()
        half = seconds / 2, math.ceil(batches / 2)
        examples, count, took = self.run(*half)
        more, _, longer = self.run_passes(*half, count)
        noise = abs(math.log(examples / took) - math.log(more / longer)) / 2
        return examples + more, took + longer, noise

    def release(self):
        """Release all iterators, in a thread: TensorFlow may block for a second while it destroys one."""
        iterators = [self.iterator, *self.ended]
        self.iterator = None
        self.ended.clear()
        threading.Thread(target=iterators.clear, name="letting go").start()

    def _drain(self):
        """Consume buffered batches until a slice is not much faster than the end of the warm-up.

        A single slow pull is no evidence: the system may have preempted the process. The reference rate comes from the
        warm-up, not from a window: a window with buffered batches would make the next one stop draining too early.
        """
        began = now()
        while now() - began < LONGEST_DRAIN:
            _, batches, took = self.run(DRAIN_SLICE)
            if took / batches > self.batch_seconds / STILL_BUFFERED:
                return

    def _batch(self):
        if self.iterator is None:
            self.pass_is_empty = True
            self.iterator = iter(self.made.prefetch(PREFETCHED) if self.is_dataset else self.made)
        for batch in self.iterator:
            self.pass_is_empty = False
            self.pass_batches += not self.passes
            return examples_in(batch, self.name)
        if self.pass_is_empty:
            again = f" in a second pass: give {READABLE_AGAIN}" if self.passes else ""
            raise ValueError(f"{self.name} yielded no batch{again}")
        self.passes += 1
        self.ended.append(self.iterator)
        self.iterator = None
        if self.is_dataset:
            self.made = self.made.repeat()
        return 0

    def _step(self):
        done = self.made()
        if _is_lazy(done):
            given = READABLE_AGAIN if hasattr(done, "__next__") else "its return value"
            raise TypeError(
                f"{self.name} is a function that returns {done!r:.99}; calling it does no work: pass {given}, or a"
                " function that does a step"
            )
        is_count = isinstance(done, Integral) and not isinstance(done, bool)
        unit = "examples/s" if is_count else "steps/s"
        self.unit = self.unit or unit
        if unit != self.unit or (is_count and done < 1):
            raise ValueError(
                f"{self.name} returned {done!r:.99}: a step function must return how many examples it processed, at"
                " least 1, on every call or on none"
            )
        return int(done) if is_count else 1


def is_source(thing):
    """Return whether this can be measured: batches, a step function, or an object with `.dataset()`."""
    is_model = hasattr(thing, "train_on_batch")  # Keras: its step must be given as a function
    if callable(getattr(thing, "dataset", None)) or (callable(thing) and not is_model and takes(thing)):
        return True
    is_one_thing = isinstance(thing, str | bytes | Mapping) or getattr(thing, "shape", None) == ()
    return hasattr(thing, "__iter__") and not is_one_thing


def has_end(made):
    """Return whether batches are known to be finite: a `tf.data.Dataset` without `repeat()`, or a sized iterable."""
    if callable(getattr(made, "cardinality", None)):
        return int(made.cardinality()) != INFINITE
    try:
        return len(made) >= 0
    except (TypeError, NotImplementedError):
        return False


def examples_in(batch, name="source"):
    """Return the number of examples in a batch, at least 1: the leading dimension of its first component."""
    first, row = batch, int | float | str
    while isinstance(first, tuple | list | Mapping) and first:
        if isinstance(first, list) and isinstance(first[0], row):
            return len(first)
        row = int | float | str | list if isinstance(first, Mapping) else int | float | str
        parts = list(first.values()) if isinstance(first, Mapping) else first
        scalars = [part for part in parts if getattr(part, "shape", None) == ()]  # an example's label
        first = (scalars or parts)[0]
    shape = tuple(getattr(first, "shape", ()))
    if not shape or not shape[0]:
        raise ValueError(
            f"{name} yielded {type(first).__name__} of shape {shape}, with no examples along a leading dimension:"
            " batch it first, as in dataset.batch(32), and leave out scalars; a distributed dataset: give its original"
        )
    return int(shape[0])


def _is_lazy(done):
    """Return whether this is a dataset, a loader or an iterator, rather than losses, logs or arrays."""
    if hasattr(done, "cardinality") or hasattr(done, "__next__") or callable(getattr(done, "dataset", None)):
        return True
    has_batches = hasattr(done, "__iter__") and hasattr(done, "__len__") and not hasattr(done, "shape")
    return has_batches and not isinstance(done, list | tuple | Mapping | str | bytes)


def wait_until_idle(tick, longest):
    """Wait, for at most ``longest`` seconds, until this process and its children are idle; call ``tick()`` meanwhile.

    Return whether they were busy.
    """
    is_busy = False
    until, used = now() + longest, own_cpu_seconds() - time.thread_time()
    while now() < until:
        time.sleep(0.01)
        tick()
        used, before = own_cpu_seconds() - time.thread_time(), used
        if used - before < 0.002:
            break
        is_busy = True
    return is_busy


def wait_for_gpus():
    """Wait until the GPUs of this process have finished; a CPU has finished when TensorFlow's call returns.

    `tf.test.experimental.sync_devices` would include the devices of other workers, and raises in a worker.
    """
    tf = sys.modules.get("tensorflow")
    if not hasattr(tf, "config") or not tf.config.get_visible_devices("GPU"):
        return  # not loaded, still loading, or no GPUs
    for device in tf.config.list_logical_devices("GPU"):  # a GPU may be split into several
        with tf.device(device.name):
            tf.raw_ops.SyncDevice()
