"""One line of progress for work that takes longer than a second; it leaves nothing behind."""

import sys
import time

FIRST_SECONDS = 1.0
EVERY_SECONDS = 0.25


def shown(items, label, total=None):
    """Yield from ``items``, and once that has taken over a second show ``label`` and how much is done.

    In a notebook the line is a display of its own, emptied at the end; in a terminal it goes to stderr and is
    wiped; elsewhere (a file, a pipe) nothing is shown. ``total`` is the number of items, by default their length.
    """
    total = total or len(items)
    line, due = None, time.monotonic() + FIRST_SECONDS
    try:
        for done, item in enumerate(items):
            if time.monotonic() >= due:
                line = line or _line()
                line.show(f"{label}: {done:,} of {total:,} ({done / total:.0%})")
                due = time.monotonic() + EVERY_SECONDS
            yield item
    finally:
        if line:
            line.wipe()


def _line():
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive else None
    return _NotebookLine() if hasattr(shell, "kernel") else _TerminalLine()


class _NotebookLine:
    def __init__(self):
        from IPython.display import DisplayHandle

        self.handle = DisplayHandle()
        self.update = self.handle.display

    def show(self, text):
        self.update({"text/plain": text}, raw=True)
        self.update = self.handle.update

    def wipe(self):
        self.show("")


class _TerminalLine:
    def __init__(self):
        self.width, self.out = 0, sys.stderr if sys.stderr and sys.stderr.isatty() else None

    def show(self, text):
        if self.out:
            print("\r" + text.ljust(self.width), end="", file=self.out, flush=True)
            self.width = len(text)

    def wipe(self):
        self.show("")
        self.show("")
