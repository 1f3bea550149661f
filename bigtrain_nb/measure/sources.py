"""Sources, which are batches or a step: recognizing them and their end, and counting the examples in a batch."""

from collections.abc import Mapping

from bigtrain_nb.common.checks import takes

INFINITE = -1
"""The cardinality of a `tf.data.Dataset` with `.repeat()`."""


def is_source(thing):
    """Return whether this can be measured: batches, a step function, or an object with `.dataset()`."""
    is_model = hasattr(thing, "train_on_batch")  # Keras: its step must be given as a function
    if callable(getattr(thing, "dataset", None)) or (callable(thing) and not is_model and takes(thing)):
        return True
    is_one_thing = isinstance(thing, str | bytes | Mapping) or getattr(thing, "shape", None) == ()
    return hasattr(thing, "__iter__") and not is_one_thing


def has_end(made):
    """Return whether batches are known to be finite: a `tf.data.Dataset` without `repeat()`, or a sized iterable."""
    if hasattr(made, "cardinality"):
        return int(made.cardinality()) != INFINITE
    try:
        return len(made) >= 0
    except (TypeError, NotImplementedError):
        return False


def examples_in(batch, name="source"):
    """Return the number of examples in a batch, at least 1: the leading dimension of its first component."""
    first = batch
    while isinstance(first, tuple | list | Mapping) and first:
        if isinstance(first, list) and isinstance(first[0], int | float | str):
            return len(first)
        parts = list(first.values()) if isinstance(first, Mapping) else first
        scalars = [part for part in parts if getattr(part, "shape", None) == ()]  # an example's label
        first = (scalars or parts)[0]
    shape = tuple(getattr(first, "shape", ()))
    if not shape or not shape[0]:
        raise ValueError(
            f"{name} yielded {type(first).__name__} of shape {shape}, with no examples along a leading dimension:"
            " batch it first, as in dataset.batch(32), and leave out scalars; a distributed dataset: give its original"
        )
    return int(shape[0])
