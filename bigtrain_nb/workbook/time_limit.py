"""A time limit for a block of code."""

import signal
import threading
from contextlib import contextmanager


class TookTooLong(BaseException):
    """Raised inside code that ran too long. Not an `Exception`, which a loop with `except Exception` would catch."""


@contextmanager
def time_limit(seconds):
    """Raise `TookTooLong` in the block once it has run for ``seconds``.

    It is raised between two Python instructions, so a running call into C++ finishes first. Signals reach only the main
    thread; in any other thread the block runs without a limit.
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
