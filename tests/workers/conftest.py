"""What the tests of worker processes share: a watch for what a job leaves behind, and a training to compare with."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from leftovers import Watch

import bigtrain_nb as bt


@pytest.fixture
def watch(monkeypatch, tmp_path_factory):
    """Follow every process that the test starts, and end those that are left when it fails."""
    made = Watch(monkeypatch, tmp_path_factory.mktemp("temporary"))
    yield made
    made.end()


@pytest.fixture
def trained_here():
    """The weights that two workers on this machine's loopback end with; they train once for all tests."""
    return _trained()


@cache
def _trained():
    import slurm_train  # not above: it loads TensorFlow

    with TemporaryDirectory() as folder:
        job = bt.run_workers(slurm_train.__file__, 2, arguments=[folder], timeout=200)
        assert job.wait(show=False) == [0, 0], job.logs(job.failed or 0)
        return slurm_train.weights_in(Path(folder))
