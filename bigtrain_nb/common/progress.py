"""What a measurement is doing, told while it goes on: to a function, or else in a bar that is gone at the end."""

import sys
import threading
import time

from bigtrain_nb.common.checks import function

OFTEN = 0.1
"""Seconds, at least, between two news."""

now = time.perf_counter


class Progress:
    """Tells ``told(fraction, words)`` how far a measurement is and what happens; without such a function, a bar.

    Whatever ``told`` raises ends the measurement. ``with progress:`` stands around it.
    """

    def __init__(self, told):
        if told is not None:
            form = "a function of the fraction that is done and of what happens, in words"
            function("progress", told, form, arguments=[0.5, "warming up"])
        self.told = told
        self._bar = None
        self._news = (0.0, "")
        self._last = -OFTEN

    def __enter__(self):
        if self.told is None:
            self._bar = _bar()
        return self

    def __exit__(self, *error):
        if self._bar:
            self._bar.close()
            self._bar = None

    def say(self, fraction, words):
        """Tell this, at once if there was a pause before."""
        self._news = (min(1.0, fraction), words)
        self.tick()

    def tick(self):
        """Tell the last news again, if there was a pause before: what is told can so stop it between two batches."""
        if self.told and now() - self._last >= OFTEN:
            self._last = now()
            self.told(*self._news)
        elif self._bar and self._bar.shown != self._news and now() - self._last >= OFTEN:
            self._last = now()
            self._bar.show(*self._news)


def _bar():
    """Return what shows progress in this notebook or terminal, or None: a script that writes to a file shows none."""
    if threading.current_thread() is not threading.main_thread():
        return None
    shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
    if shell is not None and hasattr(shell, "kernel"):
        try:
            import ipywidgets
        except ImportError:
            return None
        return _Widget(ipywidgets)
    return _Line() if sys.stderr is not None and sys.stderr.isatty() else None


class _Widget:
    """A bar and a line of words in a notebook."""

    def __init__(self, ipywidgets):
        from IPython.display import display

        self.shown = None
        self.bar = ipywidgets.FloatProgress(max=1.0)
        self.words = ipywidgets.Label()
        self.box = ipywidgets.HBox([self.bar, self.words])
        display(self.box)

    def show(self, fraction, words):
        self.shown = (fraction, words)
        self.bar.value = fraction
        self.words.value = words

    def close(self):
        for part in (self.box, self.bar, self.words):
            part.close()


class _Line:
    """A line in a terminal that is written over."""

    shown = None

    def show(self, fraction, words):
        self.shown = (fraction, words)
        self._write(f"{100 * fraction:3.0f} %  {words}"[:99])

    def close(self):
        self._write("")

    def _write(self, line):
        sys.stderr.write(f"\r{line:99}\r")
        sys.stderr.flush()
