"""What a measurement is doing, told while it goes on: to a function, or else in a bar that is gone at the end."""

import sys
import threading
import time

from tqdm.auto import tqdm

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
        if self.told is None and threading.current_thread() is threading.main_thread():
            disable = False if "ipykernel" in sys.modules else None  # a script that writes to a file shows none
            form = {"bar_format": "{percentage:3.0f} %{bar} {desc}", "mininterval": 0, "miniters": 0}
            self._bar = tqdm(total=1, delay=1, leave=False, file=sys.stdout, disable=disable, **form)
        return self

    def __exit__(self, *error):
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def say(self, fraction, words):
        """Tell this, at once if there was a pause before."""
        self._news = (min(1.0, fraction), words)
        self.tick()

    def tick(self):
        """Tell the last news again, if there was a pause before: what is told can so stop it between two batches."""
        tell = self.told or (self._show if self._bar is not None else None)
        if tell and now() - self._last >= OFTEN:
            self._last = now()
            tell(*self._news)

    def _show(self, fraction, words):
        self._bar.set_description_str(words, refresh=False)
        self._bar.update(fraction - self._bar.n)
