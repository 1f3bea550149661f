"""What is known of a job: who runs, who ended how, and what they said. Filled by one thread, read by others."""

import signal
import time
from collections import deque

MOST_LINES = 200_000  # of each worker
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
        self.how = "run"
        self.exit_code = None  # until nothing more will come
        self.lines = [deque(maxlen=MOST_LINES) for _ in range(workers)]
        self.unshown = deque()
        self.began = time.monotonic()

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

    def finish(self):
        """Note that nothing more will come."""
        if self.timed_out:
            code, how = TIMED_OUT, "were ended by the job's timeout"
        elif self.failed is not None:
            code, how = self.codes[self.failed], f"ended because worker {self.failed} failed"
        elif any(self.codes):
            code, how = max(self.codes, key=abs), "were stopped"
        else:
            code, how = 0, "ended well"
        self.how = f"{how} after {time.monotonic() - self.began:.1f} s"
        self.exit_code = code if code >= 0 else 128 - code

    def summary(self):
        """Return a sentence on how the job is or was."""
        sentence = f"{len(self.codes)} workers {self.how}"
        if self.restarted:
            sentence += f", {self._again()}"
        return sentence

    def _again(self):
        return f"started again, {self.restarted} of at most {self.restarts} times"


def in_words(code):
    """Return an exit code in words."""
    if code is None:
        return "runs"
    if code == 0:
        return "ended well"
    if code > 0:
        return f"exited with {code}"
    return f"killed by {signal.Signals(-code).name}"
