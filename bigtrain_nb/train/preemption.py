"""What replicas and workers must know of each other to stop together: a value from each, and whether SIGTERM came.

TensorFlow's `PreemptionCheckpointHandler` is for this too. It asks Google's metadata server where it runs, by HTTP, and
on Google's CPU machines then hears no SIGTERM; it keeps the signal, and a thread, after the training has ended.
"""

import atexit
import signal
import threading
import time
from contextlib import contextmanager

from bigtrain_nb.common.quiet import tf

PREEMPTED = 75
"""The exit code after SIGTERM: EX_TEMPFAIL of sysexits.h, "try again later"."""

ROUND_SECONDS = 0.5


def from_all(strategy, value):
    """Return a function of tensors that gives what ``value`` of them is on each replica: NumPy, [replicas, ...].

    All workers must call it; it costs an all-reduce.
    """
    replicas = strategy.num_replicas_in_sync

    def share(*tensors):
        own = tf.convert_to_tensor(value(*tensors))[None]
        if replicas == 1:
            return own
        context = tf.distribute.get_replica_context()
        mine = tf.one_hot(context.replica_id_in_sync_group, replicas, dtype=own.dtype)
        table = own * tf.reshape(mine, [replicas] + [1] * (own.shape.rank - 1))
        return context.all_reduce(tf.distribute.ReduceOp.SUM, table)

    on_each = tf.function(lambda *tensors: strategy.run(share, tensors))
    return lambda *tensors: strategy.experimental_local_results(on_each(*tensors))[0].numpy()


def several_workers(strategy):
    """Return whether other processes take part in this strategy."""
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


class Preemption:
    """Notes SIGTERM, on this worker or any other.

    ``ask`` gives a tensor from every worker, as `from_all` does; None on one worker. It is not done after every step,
    but about every `ROUND_SECONDS`; all workers count the steps between in the same way.
    """

    def __init__(self, ask=None):
        self._ask = ask
        self._came = False
        self._every = self._left = 1
        self._moment = time.monotonic()

    @contextmanager
    def listening(self):
        """Note SIGTERM, instead of being ended by it. Python has signals in the main thread only."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGTERM, self._note)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)

    def came(self):
        """Return whether SIGTERM came to any worker. All must call it, and get the same answer."""
        if self._ask is None:
            return self._came
        before, self._moment = self._moment, time.monotonic()
        came, seconds = self._ask(tf.constant([self._came, self._moment - before], tf.float32)).max(axis=0)
        self._every = 2 * self._every if seconds < ROUND_SECONDS / 2 else max(1, self._every // 2)
        self._left = self._every
        return bool(came)

    def came_by_now(self):
        """Return the same after a step; with several workers it may be some steps late."""
        if self._ask is not None:
            self._left -= 1
            if self._left > 0:
                return False
        return self.came()

    def _note(self, *_):
        self._came = True


def leave():
    """End the process with `PREEMPTED`; SIGTERM on the way, from an impatient scheduler, changes that no more."""
    atexit.register(signal.signal, signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(PREEMPTED)
