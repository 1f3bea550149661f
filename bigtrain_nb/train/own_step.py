"""A model that knows whether it is called in a step of its own `fit` or `evaluate`.

Only its own loss and metrics read the outputs there; elsewhere any code may.
"""

import threading
from contextlib import contextmanager

_thread_state = threading.local()  # replicas of one process are threads


@contextmanager
def in_own_step(model):
    """Make `is_in_own_step` true for this model."""
    before, _thread_state.model = getattr(_thread_state, "model", None), model
    try:
        yield
    finally:
        _thread_state.model = before


@contextmanager
def full_outputs():
    """Make `is_in_own_step` false for all models, for code that inspects their full outputs."""
    before, _thread_state.inspects_outputs = getattr(_thread_state, "inspects_outputs", False), True
    try:
        yield
    finally:
        _thread_state.inspects_outputs = before


def is_in_own_step(model):
    return getattr(_thread_state, "model", None) is model and not getattr(_thread_state, "inspects_outputs", False)
