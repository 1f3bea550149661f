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
    show, due = None, time.monotonic() + FIRST_SECONDS
    try:
        for done, item in enumerate(items):
            if time.monotonic() >= due:
                show = show or _line()
                show(f"{label}: {done:,} of {total:,} ({done / total:.0%})")
                due = time.monotonic() + EVERY_SECONDS
            yield item
    finally:
        if show:
            show("")


def _line():
    """Return the function that shows a text in place of the one before."""
    ipython = sys.modules.get("IPython")
    if ipython and hasattr(ipython.get_ipython(), "kernel"):
        from IPython.display import display

        handle = display({"text/plain": ""}, raw=True, display_id=True)
        return lambda text: handle.update({"text/plain": text}, raw=True)
    if sys.stderr and sys.stderr.isatty():
        return lambda text: print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)  # clears the rest of the line
    return lambda text: None
