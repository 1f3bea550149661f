"""What is known of a job: who runs, who ended how, and what they said. Filled by one thread, read by others."""

import signal
import threading
import time
from collections import deque

MOST_LINES = 200_000
TIMED_OUT = 124


class Record:
    """The events of a job's supervisor, put together."""

    def __init__(self, workers, restarts):
        self.restarts, self.restarted, self.failed = restarts, 0, None
        self.pids, self.codes = [], [None] * workers
        self.done = self.timed_out = self.stopped = False
        self._began, self._seconds = time.monotonic(), None
        self._lines = [deque(maxlen=MOST_LINES) for _ in range(workers)]
        self._unshown = []
        self._changed = threading.Condition()

    def note(self, event):
        """Take in an event."""
        with self._changed:
            getattr(self, f"_{event.pop('event')}")(**event)
            self._changed.notify_all()

    def finish(self):
        """Nothing more will come, whether or not the supervisor could say so; return whose end it did not tell."""
        with self._changed:
            left = [pid for pid, code in zip(self.pids, self.codes, strict=False) if code is None]
            self.codes = [-signal.SIGKILL if code is None else code for code in self.codes]
            self._seconds = time.monotonic() - self._began
            self.done = True
            self._changed.notify_all()
            return left

    def _started(self, restart, pids):
        if restart:
            self._unshown.append(f"-- all workers are started again, {restart} of at most {self.restarts} times")
        self.restarted, self.pids, self.failed = restart, pids, None
        self.codes = [None] * len(pids)

    def _line(self, worker, text):
        self._lines[worker].append(text)
        if self.failed in (None, worker):
            self._unshown.append(f"worker {worker} | {text}")

    def _ended(self, worker, code):
        self.codes[worker] = code

    def _failed(self, worker):
        self.failed = worker
        self._unshown.append(f"-- worker {worker} failed: {in_words(self.codes[worker])}; the others are ended")

    def _done(self, timed_out, stopped):
        self.timed_out, self.stopped = timed_out, stopped
        if timed_out:
            self._unshown.append("-- all workers were ended: the job's timeout is over")

    def wait_for(self, condition, seconds):
        """Return once the condition holds, or the seconds are over."""
        with self._changed:
            self._changed.wait_for(condition, seconds)

    def news(self, until):
        """Return the lines not shown yet, and whether all is done; waits for either until a moment, None: for ever."""
        with self._changed:
            seconds = None if until is None else max(0.0, until - time.monotonic())
            self._changed.wait_for(lambda: self._unshown or self.done, seconds)
            lines, self._unshown = self._unshown, []
            return lines, self.done

    def text_of(self, worker):
        with self._changed:
            return "".join(f"{line}\n" for line in self._lines[worker])

    def last_line(self, worker):
        with self._changed:
            return next((line for line in reversed(self._lines[worker]) if line.strip()), "")

    def exit_code(self):
        if not self.done:
            return None
        if self.timed_out:
            return TIMED_OUT
        code = self.codes[self.failed] if self.failed is not None else next(filter(None, self.codes), 0)
        return code if code >= 0 else 128 - code

    def summary(self):
        """A sentence on how the job is or was."""
        again = f", started again {self.restarted} of at most {self.restarts} times" if self.restarted else ""
        if not self.done:
            return f"{self.codes.count(None)} of {len(self.codes)} workers run{again}"
        how = "ended well"
        if self.timed_out:
            how = "were ended by the job's timeout"
        elif self.failed is not None:
            how = f"ended because worker {self.failed} failed"
        elif self.stopped or any(self.codes):
            how = "were stopped"
        return f"{len(self.codes)} workers {how} after {self._seconds:.1f} s{again}"


def in_words(code):
    """An exit code in words."""
    if code is None:
        return "runs"
    if code == 0:
        return "ended well"
    if code > 0:
        return f"exited with {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # most real-time signals have no name
        return f"killed by signal {-code}"
