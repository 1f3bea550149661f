"""A Lab of fast choices, and a source that blocks until it is let go."""

import pytest
from labs import SECONDS, Gate, build

from bigtrain_nb import lab as lab_module
from bigtrain_nb.lab import Lab


@pytest.fixture
def lab():
    made = Lab(build, seconds=SECONDS, batch=[4, 32, 320], prefetch=[0, 2, "AUTOTUNE"], cache=False, workers=(1, 4))
    yield made
    made.close()


@pytest.fixture
def gate():
    made = Gate()
    yield made
    made.opened.set()


@pytest.fixture
def nothing_displayed(monkeypatch):
    monkeypatch.setattr(lab_module, "_displayed", {})
