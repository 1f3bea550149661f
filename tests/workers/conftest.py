"""Shared by the tests of worker processes: a watch for leftovers of a job, and a reference training run."""

import pytest
from leftovers import Watch


@pytest.fixture
def watch(monkeypatch, tmp_path_factory):
    """Track every process that the test starts, and end the remaining ones if it fails."""
    made = Watch(monkeypatch, tmp_path_factory.mktemp("temporary"))
    yield made
    made.end()


@pytest.fixture
def trained_here():
    import slurm_train  # not above: it loads TensorFlow

    return slurm_train.trained_in_one_process()
