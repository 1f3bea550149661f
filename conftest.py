"""What all tests share. At the root, so that the guard also stands when only notebooks/ is tested."""
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["longest_first", "notebook_guard", "pytester"]

# A shell's background jobs ignore Ctrl-C, and so does all that they start: tests of interrupts would hang.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def book(tmp_path_factory):
    """The folder of the book, made as `make book` makes it; Sphinx fails if it has to warn of anything."""
    folder = tmp_path_factory.mktemp("book") / "html"
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-c", "tools/book", "notebooks", folder]
    subprocess.run(command, cwd=Path(__file__).parent, check=True, timeout=300)
    return folder
