"""What the tests of the Lab share: fast things to measure, and ways to wait."""

import threading
import time

SECONDS = 0.05


def build(batch=32, prefetch=0, cache=False, workers=2, mode=None):
    """A step function of about a millisecond a batch."""

    def step():
        time.sleep(0.001)
        return batch

    return step


def shown(lab):
    """Display the Lab as a notebook would, and return its widgets."""
    assert "application/vnd.jupyter.widget-view+json" in lab._repr_mimebundle_()
    return lab._view


def until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.005)


def finish(lab):
    until(lambda: not lab.running)


def background_threads():
    return [thread for thread in threading.enumerate() if thread.name == "lab-run"]


class Gate:
    """A build whose source blocks in its step until the gate opens."""

    def __init__(self):
        self.opened, self.reached, self.calls = threading.Event(), threading.Event(), 0

    def __call__(self):
        self.calls += 1

        def step():
            self.reached.set()
            self.opened.wait(30)
            time.sleep(0.001)
            return 1

        return step
