"""What is known of a job: who runs, who ended how, and what they said. Filled by one thread, read by others."""

import signal
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
        self.unshown = deque()
        self.began = time.monotonic()

    @property
    def done(self):
        return self.seconds is not None

    def note(self, event):
        """Take in a worker's line, or new values of the attributes above."""
        if "text" in event:
            worker, text = event["worker"], event["text"]
            self.lines[worker].append(text)
            if self.failed in (None, worker):
                self.unshown.append(f"worker {worker} | {text}")
            return
        vars(self).update(event)
        if event.get("restarted"):
            self.unshown.append(f"-- all workers are {self._again()}")
        elif event.get("failed") is not None:
            how = in_words(self.codes[self.failed])
            self.unshown.append(f"-- worker {self.failed} failed: {how}; the others are ended")
        elif event.get("timed_out"):
            self.unshown.append("-- all workers were ended: the job's timeout is over")

    def _again(self):
        return f"started again, {self.restarted} of at most {self.restarts} times"

    def finish(self):
        """Note that nothing more will come; return whose end was not told, for the supervisor was killed."""
        left = []
        for index, pid in enumerate(self.pids):
            if self.codes[index] is None:
                self.codes[index] = -signal.SIGKILL
                left.append(pid)
        self.seconds = time.monotonic() - self.began
        return left

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
        if not self.done:
            how = f"{self.codes.count(None)} of {count} workers run"
        elif self.timed_out:
            how = f"{count} workers were ended by the job's timeout"
        elif self.failed is not None:
            how = f"{count} workers ended because worker {self.failed} failed"
        elif any(self.codes):
            how = f"{count} workers were stopped"
        else:
            how = f"{count} workers ended well"
        if self.done:
            how += f" after {self.seconds:.1f} s"
        if self.restarted:
            how += f", {self._again()}"
        return how


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
