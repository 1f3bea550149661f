"""What nbval lacks for long notebooks: a limit for each cell, early notice of a dead kernel, skip after a failure.

A cell tagged `timeout=120` may take 120 seconds instead of what --nbval-cell-timeout says. Kernels measure half as long
as a reader's do: what is asserted is so large that it shows then, too.

It leans on three things inside nbval 0.11: a cell's item with `cell`, `cell_num`, `parent.kernel` and
`raise_cell_error`; the option nbval_cell_timeout, read each time a cell runs; and the kernel's `get_message`, through
which all waiting goes.
"""

import os
import time
from queue import Empty

import pytest
from nbval.plugin import IPyNbCell
from notebook_rules import cell_seconds

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
        patch.setenv(VARIABLE, os.environ.get(VARIABLE, TIME_SCALE))  # for the kernel that the first cell starts
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    if not isinstance(item, IPyNbCell):
        return (yield)
    option = item.config.option
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(option, "nbval_cell_timeout", cell_seconds(item.cell, option.nbval_cell_timeout))
        patch.setattr(item.parent.kernel, "get_message", watchful(item))
        try:
            return (yield)
        except (Exception, pytest.fail.Exception):  # which pytest-timeout raises
            item.parent.stash[FAILED_CELL] = item.cell_num
            raise


def watchful(item):
    """The kernel's `get_message`, but waiting in slices, with a look between them whether the kernel still lives."""
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
