"""What the tests of worker processes share: a watch for what a job leaves behind."""

import signal

import pytest
from leftovers import Watch

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell's background jobs have it, and all they start
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def watch(monkeypatch, tmp_path_factory):
    """Follow every process that the test starts, and end those that are left when it fails."""
    made = Watch(monkeypatch, tmp_path_factory.mktemp("temporary"))
    yield made
    made.end()
