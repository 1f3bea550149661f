"""A straggler, made from outside: a process that the operating system stops and lets go on, again and again."""

import os
import signal
import threading
from contextlib import contextmanager

PERIOD = 0.1  # seconds


@contextmanager
def straggler(pid, share):
    """While the `with` block runs, let a process stand still for this share of the time, as if others took its core."""
    over = threading.Event()

    def hold_up():
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            over.wait(share * PERIOD)
            os.kill(pid, signal.SIGCONT)
            over.wait((1 - share) * PERIOD)

    thread = threading.Thread(target=hold_up)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
