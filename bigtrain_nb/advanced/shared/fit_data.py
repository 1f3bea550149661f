"""The batches that `fit` passes to a model, for code that inspects a training, in any number of passes."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bigtrain_nb.common.checks import takes
from bigtrain_nb.common.keras_compat import overriding
from bigtrain_nb.common.passes import read_apart
from bigtrain_nb.common.quiet import keras, tf


def has_batches(source):
    return hasattr(source, "__iter__") or callable(getattr(source, "dataset", None))


def is_dataset(given):
    """Return whether this is a dataset, not one batch; a list is a dataset of tuples, lists or dicts."""
    is_list_of_batches = isinstance(given, list) and all(isinstance(each, tuple | list | dict) for each in given)
    is_array = hasattr(given, "__array__") or tf.is_tensor(given)
    is_batch = is_array or isinstance(given, tuple | list | dict | str | bytes)
    return is_list_of_batches or (has_batches(given) and not is_batch)


def batches_of(source):
    return source.dataset() if callable(getattr(source, "dataset", None)) else source


def preprocess_like_fit(model, data):
    """Return the dataset as a KerasHub task's `fit` passes it to the model: after its preprocessor, if any."""
    source = batches_of(data)
    has_one = getattr(model, "preprocessor", None) is not None and hasattr(model, "preprocess_samples")
    if not has_one or not isinstance(source, tf.data.Dataset):
        return data
    return source.map(lambda *parts: model.preprocess_samples(*parts), num_parallel_calls=tf.data.AUTOTUNE)


def compute_loss_like_fit(model, x, y, outputs, sample_weight, training):
    """Return the result of `compute_loss`, called as in Keras' step: by position, with ``training`` if accepted."""
    if tf.is_tensor(y) and keras.tree.is_nested(outputs) and not overriding(model, "compute_loss"):
        y = [y]  # if it has as many rows as there are outputs, Keras would eagerly take each for the targets of one
    given = x, y, outputs, sample_weight
    if takes(model.compute_loss, *given, training=training):
        return model.compute_loss(*given, training=training)
    return model.compute_loss(*given)


def as_tensor(value):
    """Return a part of a batch as the tensor that `fit` makes from it; None stays None."""
    if value is None:
        return None
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return tf.constant(value, keras.config.floatx())
    return tf.convert_to_tensor(value)


def passes(source: Any) -> Callable[[], Iterator]:
    """Return a function that starts a pass over batches, without advancing their shuffling where possible."""
    source = batches_of(source)
    if isinstance(source, keras.utils.PyDataset):
        count = source.num_batches  # None: infinite
        return lambda: (source[number] for number in (itertools.count() if count is None else range(count)))
    if isinstance(source, tf.data.Dataset):
        try:
            source = read_apart(source)
        except (tf.errors.OpError, ValueError):
            pass  # then its shuffling advances
    return lambda: iter(source)
