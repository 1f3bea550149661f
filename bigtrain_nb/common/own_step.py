"""A model that knows whether it is called in a step of its own `fit` or `evaluate`.

Only its own loss and metrics read the outputs there; elsewhere any code may.
"""

import threading
from contextlib import contextmanager

_here = threading.local()  # replicas of one process are threads


@contextmanager
def in_own_step(model):
    """Make `is_in_own_step` true for this model."""
    before, _here.model = getattr(_here, "model", None), model
    try:
        yield
    finally:
        _here.model = before


@contextmanager
def whole_outputs():
    """Make `is_in_own_step` false for all models, for code that inspects their full outputs."""
    before, _here.looks = getattr(_here, "looks", False), True
    try:
        yield
    finally:
        _here.looks = before


def is_in_own_step(model):
    return getattr(_here, "model", None) is model and not getattr(_here, "looks", False)


class KnowsItsSteps:
    """The class that is added to the model. Custom steps run inside these."""

    stands_for_keras = True  # see `keras_compat.overriding`

    def train_step(self, data):
        with in_own_step(self):
            return super().train_step(data)

    def test_step(self, data):
        with in_own_step(self):
            return super().test_step(data)
