"""A source: batches that are read on and on, or a step that is called again and again. It is warmed up, then measured.

No TensorFlow is imported here; where somebody else has loaded it, a measurement window waits for its GPUs.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from numbers import Integral

from bigtrain_nb.common.at_rest import let_rest, wait_for_gpus
from bigtrain_nb.common.sources import examples_in, has_end, is_source

STEP_SLICE, SLICE, LONGEST_STEADYING = 0.05, 0.3, 2.0
"""Seconds. A warm-up is seen in slices, of a step and of an iterator: it is over once two agree, or after so long."""
SHORTEST_DRAIN, LONGEST_DRAIN = 0.1, 1.0
KEPT = 16

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
        self.has_end = not self.is_step and has_end(made)
        self.can_repeat = self.has_end and hasattr(made, "repeat") and hasattr(made, "cardinality")
        self.iterator = None
        self.ended = deque(maxlen=KEPT)
        """Iterators whose passes have ended, the last one last. `let_go` has them torn down, not a measurement."""
        self.passes = 0
        self.pass_is_empty = True
        self.first_seconds = None
        self.batch_seconds = math.inf

    @property
    def note(self):
        return "measured before its first pass had ended" if self.has_end and not self.passes else ""

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

    def measure_window(self, seconds, batches):
        """Return examples and seconds of one measurement window; of an iterator, once it is at rest and its buffers are
        empty."""
        if not self.is_step:
            let_rest(self.progress.tick)
            self._drain()
        examples, _, took = self.run(seconds, batches)
        return examples, took

    def let_go(self):
        """Give up all iterators, in a thread: TensorFlow may be idle for a second when it tears one down."""
        iterators = [self.iterator, *self.ended]
        self.iterator = None
        self.ended.clear()
        threading.Thread(target=iterators.clear, name="letting go").start()

    def _drain(self):
        """Take what lies ready: for 0.1 s, and until a pull waited for half as long as a batch takes.

        How long that is, the warm-up has said. A window must not say it: one that took batches which lay ready would
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
            return examples_in(batch, self.name)
        if self.pass_is_empty:
            again = " a second time: give a function, or an iterable that starts a new pass" if self.passes else ""
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
        if _is_read_later(done):
            raise TypeError(
                f"{self.name} is a function that returns {done!r:.99}; calling it does no work: pass its return"
                " value, or a function that does a step"
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


def _is_read_later(done):
    """Return whether what a function returns is a dataset, a loader or an iterator, and no losses, logs or arrays."""
    if hasattr(done, "cardinality") or hasattr(done, "__next__") or callable(getattr(done, "dataset", None)):
        return True
    has_batches = hasattr(done, "__iter__") and hasattr(done, "__len__") and not hasattr(done, "shape")
    return has_batches and not isinstance(done, list | tuple | Mapping | str | bytes)
