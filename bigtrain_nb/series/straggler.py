"""Turn a process into a straggler from outside: the operating system repeatedly stops and continues it."""

import os
import signal
import threading
from contextlib import contextmanager

PERIOD = 0.1  # seconds


@contextmanager
def straggler(pid, share):
    """Stop a process for this share of the time while the block runs, as if others used its core."""
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
