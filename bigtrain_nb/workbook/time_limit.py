"""A time limit for a call."""

import signal
import sys
import threading
from dis import opmap


class TookTooLong(BaseException):
    """Raised inside code that ran too long. Not an `Exception`, which a loop with `except Exception` would catch."""

    def __del__(self):
        for raise_at_next_line in self.args:  # code of the caller has caught it
            raise_at_next_line(sys._getframe().f_back)


def within(seconds, function, *arguments):
    """Return ``function(*arguments)``; raise `TookTooLong` in it once it has run for ``seconds``.

    It is raised between two Python instructions, so a running call into C++ finishes first; and again at the next line
    after each bare `except` that catches it, and after as many seconds; `finally` and the ends of `with` run. Signals
    reach only the main thread: others have no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        return function(*arguments)
    here, tracing = sys._getframe(), sys.gettrace()

    def end(_, frame):
        raise_at_next_line(frame)
        raise TookTooLong(raise_at_next_line)

    def raise_at_next_line(frame):
        if signal.getsignal(signal.SIGALRM) is not end:  # the call has ended
            return
        sys.settrace(lambda *_: None)  # an exception in a trace function ends tracing
        while frame is not here:
            frame.f_trace = at_line
            frame = frame.f_back

    def at_line(frame, event, _):
        enters_handler = frame.f_code.co_code[frame.f_lasti] == opmap["PUSH_EXC_INFO"]
        if event == "line" and not enters_handler and sys.exc_info()[0] is not TookTooLong:
            raise TookTooLong(raise_at_next_line)

    old_handler = signal.signal(signal.SIGALRM, end)
    old_timer = signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        return function(*arguments)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old_handler)
        signal.setitimer(signal.ITIMER_REAL, *old_timer)
        sys.settrace(tracing)
