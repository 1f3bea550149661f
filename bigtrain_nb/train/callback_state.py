"""Keep the state of Keras callbacks over a restart, such as how long `EarlyStopping` has waited."""

import os

import numpy as np

from bigtrain_nb.common.keras_compat import STATE_OF_CALLBACKS
from bigtrain_nb.common.quiet import keras, tf


def get_states(callbacks):
    """Return the state of Keras callbacks, JSON-serializable: {callback's name: {attribute: value}}."""
    states = {}
    for name, callback, attributes in _named(callbacks):
        states[name] = {attribute: plain(getattr(callback, attribute)) for attribute in attributes}
    return states | {"CSVLogger": {log.filename: tf.io.gfile.stat(log.filename).length for log in _logs_in(callbacks)}}


def restore_states(callbacks, states):
    """Restore the callbacks' state; a new callback starts from the beginning.

    So does an `EarlyStopping` that restores the best weights, because no checkpoint has them: a best value without its
    weights would restore those of another epoch.
    """
    for name, callback, attributes in _named(callbacks):
        for attribute in attributes:
            if attribute in states.get(name, {}) and not _keeps_weights(callback):
                setattr(callback, attribute, states[name][attribute])


def best_weights_are_lost(callbacks, states):
    """Return whether an `EarlyStopping` had a best epoch's weights, which are not in the checkpoint."""
    named = [(name, callback) for name, callback, _ in _named(callbacks)]
    return any(_keeps_weights(one) and states.get(name, {}).get("best") is not None for name, one in named)


def _keeps_weights(callback):
    return isinstance(callback, keras.callbacks.EarlyStopping) and callback.restore_best_weights


def has_stopped(callbacks, states):
    """Return whether an `EarlyStopping` has already ended this run, and its present patience does not allow more."""
    for name, callback, _ in _named(callbacks):
        state = states.get(name, {})
        if isinstance(callback, keras.callbacks.EarlyStopping) and state.get("stopped_epoch"):
            return state["wait"] >= callback.patience
    return False


def continue_csv_logs(callbacks, states):
    """Let each `CSVLogger` append to its file, without the rows after the checkpoint, whose epochs are repeated."""
    for callback in _logs_in(callbacks):
        callback.append = True
        path, size = callback.filename, states.get("CSVLogger", {}).get(callback.filename)
        if size is None or size >= tf.io.gfile.stat(path).length:
            continue
        if "://" not in path:
            os.truncate(path, size)
            continue
        with tf.io.gfile.GFile(path, "rb") as file, tf.io.gfile.GFile(f"{path}.part", "wb") as part:
            part.write(file.read(size))
        tf.io.gfile.rename(f"{path}.part", path, overwrite=True)


def _logs_in(callbacks):
    logs = [one for one in callbacks if isinstance(one, keras.callbacks.CSVLogger)]
    return [log for log in logs if tf.io.gfile.exists(log.filename)]


def _named(callbacks):
    """Return triples: a callback's name, which is the same after a restart, the callback, its state's attributes."""
    found, counts = [], {}
    for callback in callbacks:
        for kind, attributes in STATE_OF_CALLBACKS.items():
            if isinstance(callback, kind):
                name = f"{kind.__name__} {getattr(callback, 'monitor', '')}".strip()
                counts[name] = counts.get(name, 0) + 1
                found.append((f"{name} {counts[name]}", callback, attributes))
    return found


def plain(value):
    """Return numbers, arrays, lists and dictionaries in a JSON-serializable form."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, np.ndarray) and value.ndim:
        return value.tolist()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return np.asarray(value).item()  # a TensorFlow or NumPy scalar
