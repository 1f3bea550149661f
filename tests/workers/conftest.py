"""What the tests of worker processes share: a watch for what a job leaves behind, and a training to compare with."""

import pytest
from leftovers import Watch


@pytest.fixture
def watch(monkeypatch, tmp_path_factory):
    """Follow every process that the test starts, and end those that are left when it fails."""
    made = Watch(monkeypatch, tmp_path_factory.mktemp("temporary"))
    yield made
    made.end()


@pytest.fixture
def trained_here():
    import slurm_train  # not above: it loads TensorFlow

    return slurm_train.trained_in_one_process()
