"""Shared by all tests. At the root, so that the guard is also active when only notebooks/ is tested."""

import signal

collect_ignore = ["my"]  # the reader's copies
pytest_plugins = ["longest_first", "notebook_guard", "pytester", "tf32_option"]

# A shell's background jobs and their children ignore Ctrl-C: tests of interrupts would hang.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
