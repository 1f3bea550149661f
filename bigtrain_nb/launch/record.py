"""What is known of a job: who runs, who ended how, and what they said. Filled by one thread, read by others."""

import signal
import threading
import time
from collections import deque

MOST_LINES = 200_000
TIMED_OUT = 124


class Record:
    """What a job's supervisor has told so far."""

    def __init__(self, workers, restarts):
        self.pids = []
        self.codes = [None] * workers
        self.failed = None
        self.restarts = restarts
        self.restarted = 0
        self.timed_out = False
        self.seconds = None
        self.lines = [deque(maxlen=MOST_LINES) for _ in range(workers)]
        self.unshown = []
        self.changed = threading.Condition()
        self.began = time.monotonic()

    @property
    def done(self):
        return self.seconds is not None

    def note(self, event):
        """Take in a worker's line, or new values of the attributes above."""
        with self.changed:
            if "text" in event:
                self._note_line(**event)
            else:
                vars(self).update(event)
            if event.get("restarted"):
                again = f"{self.restarted} of at most {self.restarts} times"
                self.unshown.append(f"-- all workers are started again, {again}")
            elif event.get("failed") is not None:
                how = in_words(self.codes[self.failed])
                self.unshown.append(f"-- worker {self.failed} failed: {how}; the others are ended")
            elif event.get("timed_out"):
                self.unshown.append("-- all workers were ended: the job's timeout is over")
            self.changed.notify_all()

    def _note_line(self, worker, text):
        self.lines[worker].append(text)
        if self.failed in (None, worker):
            self.unshown.append(f"worker {worker} | {text}")

    def finish(self):
        """Note that nothing more will come; return whose end was not told, for the supervisor was killed."""
        with self.changed:
            left = []
            for index, pid in enumerate(self.pids):
                if self.codes[index] is None:
                    self.codes[index] = -signal.SIGKILL
                    left.append(pid)
            self.seconds = time.monotonic() - self.began
            self.changed.notify_all()
            return left

    def wait_for(self, condition, seconds):
        """Return once the condition holds, or the seconds are over."""
        with self.changed:
            self.changed.wait_for(condition, seconds)

    def news(self, seconds):
        """Return the lines not shown yet; wait for some, or for the end, but no longer than the seconds."""
        self.wait_for(lambda: self.unshown or self.done, seconds)
        with self.changed:
            lines, self.unshown = self.unshown, []
            return lines

    def lines_of(self, worker):
        """Return a copy of what a worker has printed."""
        with self.changed:
            return list(self.lines[worker])

    def exit_code(self):
        """Return what a shell would see."""
        if not self.done:
            return None
        if self.timed_out:
            return TIMED_OUT
        if self.failed is not None:
            code = self.codes[self.failed]
        else:
            code = next(filter(None, self.codes), 0)
        return code if code >= 0 else 128 - code

    def summary(self):
        """Return a sentence on how the job is or was."""
        count = len(self.codes)
        again = f", started again {self.restarted} of at most {self.restarts} times" if self.restarted else ""
        if not self.done:
            return f"{self.codes.count(None)} of {count} workers run{again}"
        how = "ended well"
        if self.timed_out:
            how = "were ended by the job's timeout"
        elif self.failed is not None:
            how = f"ended because worker {self.failed} failed"
        elif any(self.codes):
            how = "were stopped"
        return f"{count} workers {how} after {self.seconds:.1f} s{again}"


def in_words(code):
    """Return an exit code in words."""
    if code is None:
        return "runs"
    if code == 0:
        return "ended well"
    if code > 0:
        return f"exited with {code}"
    if -code in set(signal.Signals):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"  # most real-time signals have no name
