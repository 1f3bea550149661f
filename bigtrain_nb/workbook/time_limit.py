"""A time limit for a call."""

import signal
import sys
import threading
from dis import opmap


class TookTooLong(BaseException):
    """Raised inside code that ran too long. Not an `Exception`, which a loop with `except Exception` would catch."""


def within(seconds, function, *arguments):
    """Return ``function(*arguments)``; raise `TookTooLong` in it once it has run for ``seconds``.

    It is raised between two Python instructions, so a running call into C++ finishes first; and again at the next line
    after a bare `except` that catches it, and after as many seconds; `finally` and the ends of `with` run. Signals
    reach only the main thread: others have no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        return function(*arguments)
    here, tracing = sys._getframe(), sys.gettrace()

    def end(_, frame):
        sys.settrace(lambda *_: None)
        while frame is not here:
            frame.f_trace = at_next_line
            frame = frame.f_back
        raise TookTooLong

    def at_next_line(frame, event, _):
        enters_handler = frame.f_code.co_code[frame.f_lasti] == opmap["PUSH_EXC_INFO"]
        if event == "line" and not enters_handler and sys.exc_info()[0] is not TookTooLong:
            raise TookTooLong

    old_handler = signal.signal(signal.SIGALRM, end)
    old_timer = signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        return function(*arguments)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old_handler)
        signal.setitimer(signal.ITIMER_REAL, *old_timer)
        sys.settrace(tracing)
