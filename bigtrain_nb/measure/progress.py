"""Progress of a measurement: reported to a function, or in a bar that disappears at the end."""

import sys
import threading
import time

from tqdm.auto import tqdm

from bigtrain_nb.common.checks import function

OFTEN = 0.1
"""Minimum seconds between two reports."""

now = time.perf_counter


class Progress:
    """Reports the progress of a measurement to ``callback(fraction, words)``, or shows a bar if that is None.

    An exception from ``callback`` ends the measurement. Use it as a context manager: ``with progress:``.
    """

    def __init__(self, callback):
        if callback is not None:
            form = "a function of two arguments: the fraction done and a description"
            function("progress", callback, form, arguments=[0.5, "warming up"])
        self.callback = callback
        self._bar = None
        self._news = (0.0, "")
        self._last = -OFTEN

    def __enter__(self):
        if self.callback is None and threading.current_thread() is threading.main_thread():
            disable = False if "ipykernel" in sys.modules else None  # None: no bar in output to a file
            form = {"bar_format": "{percentage:3.0f} %{bar} {desc}", "mininterval": 0, "miniters": 0}
            self._bar = tqdm(total=1, delay=1, leave=False, file=sys.stdout, disable=disable, **form)
        return self

    def __exit__(self, *error):
        if self._bar is not None:
            self._bar.n = self._bar.total  # in notebooks, tqdm would leave an incomplete bar, in red
            self._bar.close()
            self._bar = None

    def say(self, fraction, words):
        """Set the current report, and send it if the last one is old enough."""
        self._news = (min(1.0, fraction), words)
        self.tick()

    def tick(self):
        """Repeat the current report if the last one is old enough, so that ``callback`` can raise between batches."""
        tell = self.callback or (self._show if self._bar is not None else None)
        if tell and now() - self._last >= OFTEN:
            self._last = now()
            tell(*self._news)

    def _show(self, fraction, words):
        self._bar.set_description_str(words, refresh=False)
        self._bar.update(fraction - self._bar.n)
