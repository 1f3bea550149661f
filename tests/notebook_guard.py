"""What nbval lacks for long notebooks: a limit for each cell, early notice of a dead kernel, skip after a failure.

A cell tagged `timeout=120` may take 120 seconds instead of what --nbval-cell-timeout says.

It leans on three things inside nbval 0.11: a cell's item with `cell`, `cell_num`, `parent.kernel` and
`raise_cell_error`; the option nbval_cell_timeout, read each time a cell runs; and the kernel's `get_message`, through
which all waiting goes.
"""
import time
from contextlib import contextmanager
from queue import Empty

import pytest
from nbval.plugin import IPyNbCell
from notebook_rules import cell_seconds

SLICE_SECONDS = 0.5
FAILED_CELL = pytest.StashKey[int]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if isinstance(item, IPyNbCell) and FAILED_CELL in item.parent.stash:
        pytest.skip(f"Cell {item.parent.stash[FAILED_CELL]} of this notebook failed before")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    if not isinstance(item, IPyNbCell):
        return (yield)
    try:
        with _limited(item), _watched(item):
            return (yield)
    except (Exception, pytest.fail.Exception):  # which pytest-timeout raises
        item.parent.stash[FAILED_CELL] = item.cell_num
        raise


@contextmanager
def _limited(item):
    """The cell's own limit, where nbval looks it up."""
    option = item.config.option
    default = option.nbval_cell_timeout
    option.nbval_cell_timeout = cell_seconds(item.cell, default)
    try:
        yield
    finally:
        option.nbval_cell_timeout = default


@contextmanager
def _watched(item):
    """Wait for the kernel's messages in slices, and look between them whether it still lives."""
    kernel = item.parent.kernel
    wait = kernel.get_message

    def get_message(stream, timeout=None):
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        while True:
            try:
                return wait(stream, timeout=min(SLICE_SECONDS, max(0.0, deadline - time.monotonic())))
            except Empty:
                if not kernel.is_alive():
                    kernel.stop()
                    item.raise_cell_error("The kernel died while it executed this cell")
                if time.monotonic() >= deadline:
                    raise

    kernel.get_message = get_message
    try:
        yield
    finally:
        del kernel.get_message
