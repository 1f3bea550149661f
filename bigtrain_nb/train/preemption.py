"""Handle SIGTERM, which a scheduler sends to a job that must end: any worker notes it, and all act on it.

Ray does not send SIGTERM; it announces in another way that it will take a node from a job.

TensorFlow's `PreemptionCheckpointHandler` has the same purpose. It detects its platform by HTTP from Google's metadata
server, and on Google's CPU machines ignores SIGTERM; it keeps the signal, and a thread, after training has ended.
"""

import atexit
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager

from bigtrain_nb.common.quiet import tf

PREEMPTED = 75
"""The exit code after SIGTERM: EX_TEMPFAIL of sysexits.h, "try again later".

Example::

    job = bt.run_workers("raise SystemExit(75)", workers=1)
    print(job.wait() == [bt.PREEMPTED])
"""

ROUND_SECONDS = 0.5


class Preemption:
    """Notes SIGTERM on this or any other worker and, under Ray Train, Ray's preemption notice.

    ``ask`` returns a tensor from every worker, like `all_gather`; None for one worker. It is called not after every
    step but about every `ROUND_SECONDS`; all workers count the same steps in between. ``noted``: this worker got it.
    """

    def __init__(self, ask=None):
        self._ray = _ray_train()
        self._ask = (lambda own: own.numpy()[None]) if ask is None and self._ray else ask
        self.noted = False
        self._pid = os.getpid()
        self._steps_between = 1
        self._steps_left = 1
        self._last_asked = time.monotonic()

    @contextmanager
    def listening(self):
        """Note SIGTERM instead of terminating. Python handles signals only in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGTERM, self._note)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)

    def was_requested(self):
        """Return whether SIGTERM came to any worker. All must call it, and get the same answer."""
        if self._ray and self._ray.get_preemption_info():  # which all workers must call together too
            self.noted = True
        if self._ask is None:
            return self.noted
        now = time.monotonic()
        answers = self._ask(tf.constant([self.noted, now - self._last_asked], tf.float32))
        was_requested, seconds = answers.max(axis=0)
        if seconds < ROUND_SECONDS / 2:
            self._steps_between *= 2
        else:
            self._steps_between = max(1, self._steps_between // 2)
        self._steps_left = self._steps_between
        self._last_asked = now
        return bool(was_requested)

    def was_requested_by_now(self):
        """Return the same after a step, with several workers possibly some steps late."""
        if self._ask is None:
            return self.noted
        self._steps_left -= 1
        return self._steps_left <= 0 and self.was_requested()

    def _note(self, *_):
        if os.getpid() == self._pid:
            self.noted = True
        else:  # forked, such as a worker of multiprocessing.Pool, which SIGTERM must end
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)


def _ray_train():
    """Return the module `ray.train` in a worker of Ray Train, else None. Ray need not be installed."""
    module = sys.modules.get("ray.train")
    if module is None or not hasattr(module, "get_preemption_info"):
        return None
    try:
        module.get_context()
    except RuntimeError:  # Ray is imported, but did not start this process
        return None
    return module


def exit_preempted():
    """Exit with `PREEMPTED`, ignoring any further SIGTERM from the scheduler during the exit."""
    atexit.register(signal.signal, signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(PREEMPTED)
