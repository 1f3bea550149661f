"""An end for what runs too long."""

import signal
import threading
from contextlib import contextmanager


class TookTooLong(BaseException):
    """Raised inside what ran too long. Not an `Exception`: a loop with an `except Exception` in it would go on."""


@contextmanager
def time_limit(seconds):
    """Raise `TookTooLong` in the block once it has run for so many seconds.

    It is raised between two instructions of Python, so one call into C++ is waited for. Signals come to the main
    thread only; in any other thread the block runs without limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_):
        raise TookTooLong

    old_handler = signal.signal(signal.SIGALRM, end)
    old_timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old_handler)
        signal.setitimer(signal.ITIMER_REAL, *old_timer)
