"""Shared by all tests. At the root, so that the guard is also active when only notebooks/ is tested."""

import signal

import pytest

collect_ignore = ["my"]  # the reader's copies
pytest_plugins = ["longest_first", "notebook_guard", "pytester", "tf32_option"]

# A shell's background jobs and their children ignore Ctrl-C: tests of interrupts would hang.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_testnodedown(node, error):
    """End the run when a worker process crashes: with `--dist loadfile` xdist may wait forever for its tests."""
    if error:
        pytest.exit(
            f"{node.gateway.id} crashed ({error}); the traceback above shows in which test. Run the tests again: if it"
            " crashes there again, the test is the cause",
            returncode=3,
        )
