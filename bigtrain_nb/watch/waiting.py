"""The share of waiting for input inside `fit`: a few executions now and then under TensorFlow's profiler."""

import tempfile
import time
from pathlib import Path

from bigtrain_nb.common.quiet import tf
from bigtrain_nb.common.replicas import wait_for_devices
from bigtrain_nb.watch import trace

FIRST, GROWTH = 16, 16
"""Looked at are executions from the 16th, the 256th, the 4,096th on: so the looks take ever less of a training."""
MOST, LONG = 5, 0.5
"""A look has so many executions, or fewer that take together so many seconds."""


class Waiting:
    """Runs executions, and looks at some of them; ``share`` is that of the last look, None before."""

    def __init__(self):
        self.share = None
        self.why_not = f"none of the first {FIRST} executions is looked at"
        self._executions = 0
        self._next = FIRST
        self._folder = None  # of the look that is going on
        self._to_read = None  # of the one before
        self._marked = 0
        self._count_from = 0.0  # until then buffers are fuller than in a training that nobody looks at

    def counts(self):
        """Return whether the executions now are as if nobody looked."""
        return self._folder is None and self._executions != self._next and time.perf_counter() >= self._count_from

    def run(self, train_function, iterator, strategy):
        """Run one execution."""
        if self._executions == self._next:
            self._next *= GROWTH
            self._start()
        self._executions += 1
        if self._folder is None or time.perf_counter() < self._count_from:
            return train_function(iterator)
        if self._marked == 0:
            wait_for_devices(strategy)
            self._began = time.perf_counter()
        with tf.profiler.experimental.Trace(trace.STEP, step_num=self._marked, _r=1):
            logs = train_function(iterator)
            self._marked += 1
            is_last = self._marked == MOST or time.perf_counter() - self._began > LONG
            if is_last:
                wait_for_devices(strategy)
        if is_last:
            self.stop()
        return logs

    def _start(self):
        began = time.perf_counter()
        folder = tempfile.TemporaryDirectory(prefix="bigtrain-meter-")
        try:
            tf.profiler.experimental.start(folder.name)
        except tf.errors.AlreadyExistsError:
            folder.cleanup()
            self.why_not = "another profiler was at work, as of TensorBoard's callback"
            return
        self._folder = folder
        self._marked = 0
        self._let_drain(began)

    def _let_drain(self, began):
        """Executions do not count for twice as long as the pipeline had time to fill its buffers, at most a second."""
        now = time.perf_counter()
        self._count_from = now + min(2 * (now - began), 1.0)

    def stop(self):
        """End a look if one is going on."""
        if self._folder is None:
            return
        began = time.perf_counter()
        tf.profiler.experimental.stop()
        if self._marked:
            self._to_read = self._folder
        self._folder = None
        self._let_drain(began)

    def read(self):
        """Read what the last look saw, which may take a while: between epochs."""
        self.stop()
        if self._to_read is not None:
            [file] = Path(self._to_read.name).glob("plugins/profile/*/*.xplane.pb")
            parts, _, _ = trace.divide(trace.read(file))
            self.share = parts.get(trace.WAITS, 0.0)
            self._to_read.cleanup()
            self._to_read = None
