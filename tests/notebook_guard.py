"""Extend nbval for long notebooks: early detection of a dead kernel, and skipping after a failure.

Kernels measure half as long as a reader's do; the asserted differences are large enough for that.

This relies on two internals of nbval 0.11: a cell's item with `cell_num`, `parent.kernel` and `raise_cell_error`; and
the kernel's `get_message`, which does all the waiting.
"""

import os
import time
from queue import Empty

import pytest
from nbval.plugin import IPyNbCell

from bigtrain_nb.common.time_scale import VARIABLE

SLICE_SECONDS = 0.5
TIME_SCALE = "0.5"
FAILED_CELL = pytest.StashKey[int]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    if not isinstance(item, IPyNbCell):
        return (yield)
    if FAILED_CELL in item.parent.stash:
        pytest.skip(f"Cell {item.parent.stash[FAILED_CELL]} of this notebook failed before")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, os.environ.get(VARIABLE, TIME_SCALE))  # for the kernel, which the first cell starts
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    if not isinstance(item, IPyNbCell):
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(item.parent.kernel, "get_message", watchful(item))
        try:
            return (yield)
        except (Exception, pytest.fail.Exception):  # raised by pytest-timeout
            item.parent.stash[FAILED_CELL] = item.cell_num
            raise


def watchful(item):
    """Wrap the kernel's `get_message`: wait in short intervals, and check between them that the kernel is alive."""
    kernel = item.parent.kernel
    wait = kernel.get_message

    def get_message(stream, timeout=None):
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                return wait(stream, timeout=min(SLICE_SECONDS, left))
            except Empty:
                if not kernel.is_alive():
                    kernel.stop()
                    item.raise_cell_error("The kernel died while it executed this cell")
                if left == 0:
                    raise

    return get_message
