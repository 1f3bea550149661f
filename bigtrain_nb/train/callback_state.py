"""Keep the state of Keras callbacks over a restart, such as how long `EarlyStopping` has waited."""

import csv
import io

import numpy as np

from bigtrain_nb.common.files import write_text
from bigtrain_nb.common.keras_compat import STATE_OF_CALLBACKS
from bigtrain_nb.common.quiet import keras, tf


def get_states(callbacks):
    """Return the state of Keras callbacks, JSON-serializable: {callback's name: {attribute: value}}."""
    states = {}
    for name, callback, attributes in _named(callbacks):
        states[name] = {attribute: plain(getattr(callback, attribute)) for attribute in attributes}
    return states


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


def continue_csv_logs(callbacks, epoch):
    """Let each `CSVLogger` append to the rows of the epochs before this one."""
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.CSVLogger) and tf.io.gfile.exists(callback.filename):
            callback.append = True
            _leave_out_rows_from(callback.filename, callback.sep, epoch)


def _leave_out_rows_from(path, separator, epoch):
    """Remove rows written after the last checkpoint, whose epochs are repeated."""
    with tf.io.gfile.GFile(path) as file:
        rows = list(csv.reader(io.StringIO(file.read(), newline=""), delimiter=separator))
    kept = [row for row in rows if row and not (row[0].isdecimal() and int(row[0]) >= epoch)]
    if kept != rows:
        text = io.StringIO(newline="")
        csv.writer(text, delimiter=separator).writerows(kept)
        if "://" not in path:
            return write_text(path, text.getvalue())
        with tf.io.gfile.GFile(f"{path}.part", "w") as file:
            file.write(text.getvalue())
        tf.io.gfile.rename(f"{path}.part", path, overwrite=True)


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
