"""Does a saved model give the same outputs elsewhere, and does a stopped training resume exactly?"""

import os
import pickle
import re
import subprocess
import sys
import tempfile

import numpy as np

from bigtrain_nb.advanced.preflight.leaks import most_by_rounding
from bigtrain_nb.advanced.preflight.report import Skipped, TrainingRaises, failure, needs, ok, warning
from bigtrain_nb.advanced.preflight.training import largest_change
from bigtrain_nb.advanced.shared.fit_data import passes
from bigtrain_nb.advanced.shared.untouched import variables_of
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.words import amount, first_sentence
from bigtrain_nb.train.resume import Resume

ON_ANOTHER_DEVICE = 2e-2
"""Relative to the largest output, if this process has a GPU, whose matmuls round to ten bits: the other has none."""
STOPPED_AFTER, STEPS = 2, 4
STRANGER = """
import pickle
import sys

sys.modules["bigtrain_nb"] = None  # it cannot be imported
import keras
import numpy as np

model = keras.models.load_model(sys.argv[1])
with open(sys.argv[2], "rb") as file:
    inputs = pickle.load(file)
outputs = keras.tree.flatten(model(inputs, training=False))
np.savez(sys.argv[3], *[keras.ops.convert_to_numpy(keras.ops.cast(each, "float32")) for each in outputs])
"""


def saved(training):
    """Does stock Keras, in a process without bigtrain_nb, load the saved model and get the same outputs?"""
    training.refuse_own_step()
    most = most_by_rounding(training.model)
    before, again, _ = training.outputs_of_two_calls()
    training.state.restore_values()
    if largest_change(before, again) > most:
        raise Skipped("outputs are random, so they cannot be compared with those of the loaded model")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        try:
            training.model.save(path)
        except Exception as error:  # a custom get_config may raise anything
            return _not_saved(training.model, folder, error)
        words = f"Saved, {amount(os.path.getsize(path), 'bytes')}, and loaded"
        try:
            loaded = keras.models.load_model(path)
            change = largest_change(before, keras.tree.flatten(loaded(training.x, training=False)))
        except Exception as error:  # custom classes may raise anything
            return _not_loaded(error)
        if change > most:
            return _differs(words, change)
        try:
            after = _outputs_elsewhere(training, folder)
        except subprocess.TimeoutExpired:
            return ok(f"{words}, it gives the same outputs. A new process had too little time.", "14")
        except ChildProcessError as error:
            advice = "What stock Keras computes was not compared: free memory and check again."
            return warning(f"{words}, it gives the same outputs. {error}", advice, "14")
        except RuntimeError as error:
            return _not_loaded(error)
    words += " by stock Keras in a process without bigtrain_nb"
    change = largest_change(before, after)
    if change > (ON_ANOTHER_DEVICE if tf.config.list_logical_devices("GPU") else most):
        return _differs(words, change)
    return ok(f"{words}, it gives the same outputs.", "14")


def _not_saved(model, folder, error):
    """Return a finding on whether the weights of a model that cannot be saved can be."""
    words = f"The model cannot be saved: {first_sentence(error)}"
    advice = "Give custom classes get_config and arguments that Keras can serialize; or"
    try:
        model.save_weights(os.path.join(folder, "model.weights.h5"))
    except Exception as of_weights:  # save_own_variables may, too
        return failure(f"{words} Nor can its weights: {first_sentence(of_weights)}", f"{advice} look at its variables.")
    return warning(
        f"{words} ModelCheckpoint would end fit with this error. Its weights alone can be saved.",
        f"{advice} save weights only: ModelCheckpoint(..., save_weights_only=True), bt.Resume.",
    )


def _not_loaded(error):
    return warning(
        f"Keras alone cannot load the saved model: {first_sentence(error)}",
        "Put custom classes into a module, register them with keras.saving.register_keras_serializable, give them"
        " get_config, and import the module before you load. For users without that module: model.export(folder).",
        "14",
    )


def _differs(words, change):
    return failure(
        f"{words}, the model gives outputs that differ by {change:.1%}.",
        "Look for weights in plain lists or dictionaries of tensors, and values that get_config leaves out.",
    )


def _outputs_elsewhere(training, folder):
    """Return the outputs of the model when stock Keras loads it in another process, on the CPU.

    Raises RuntimeError with the error of that process, ChildProcessError if it was killed, subprocess.TimeoutExpired
    when the time is over.
    """
    inputs, outputs = os.path.join(folder, "inputs"), os.path.join(folder, "outputs.npz")
    with open(inputs, "wb") as file:
        pickle.dump(keras.tree.map_structure(lambda value: value.numpy(), training.x), file)
    paths = os.pathsep.join(filter(None, sys.path))
    no_gpu = {"CUDA_VISIBLE_DEVICES": "-1", "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, os.path.join(folder, "model.keras"), inputs, outputs],
        env={**os.environ, "PYTHONPATH": paths, **no_gpu},
        capture_output=True,
        text=True,
        timeout=max(1.0, training.seconds_left),
    )
    if done.returncode < 0:
        raise ChildProcessError(
            f"A new process, which loaded it by stock Keras, was killed by signal {-done.returncode}, probably because"
            " memory ran out."
        )
    if done.returncode:
        raised = re.findall(r"^[\w.]*(?:Error|Exception): .*", done.stderr, re.MULTILINE)
        raise RuntimeError(raised[0] if raised else f"exit code {done.returncode}")  # the first one is the cause
    with np.load(outputs) as found:
        return list(found.values())


@needs("step", "loss")
def resumed(training):
    """After resuming from a `bt.Resume` checkpoint, are weights, optimizer state and seeds bitwise identical?"""
    batches = (STEPS * training.batches)[:STEPS]
    undisturbed = _trained(training, batches)
    unlike = _unequal(undisturbed, _trained(training, batches))
    if unlike:
        return warning(
            f"Two trainings of {STEPS} steps from the same start differ in {len(unlike)} of {len(undisturbed)}"
            f" variables, {unlike[0]} first: so will a resumed training.",
            "Look for random numbers without a keras.random.SeedGenerator and for state outside of Keras variables."
            " On GPUs call tf.config.experimental.enable_op_determinism().",
            "11",
        )
    with tempfile.TemporaryDirectory() as folder:
        for last in (STOPPED_AFTER, STEPS):
            training.state.restore_values()
            try:
                _go_on(training, Resume(folder, training.model, every=1), batches, last)
            except (Skipped, TrainingRaises):
                raise
            except Exception as error:
                return warning(
                    f"bt.Resume refuses this training: {first_sentence(error)}",
                    "What it names would be lost when the training is stopped and resumed.",
                    "11",
                )
    unequal = _unequal(undisturbed, _values(training.model))
    apart = training.state.in_no_list()
    stopped = f"Stopped after {STOPPED_AFTER} of {STEPS} steps and resumed by bt.Resume,"
    unlike = f"{stopped} {len(unequal)} of {len(undisturbed)} variables differ from those of a training that was not"
    unlike += " stopped"
    if unequal and apart:
        return warning(
            f"{unlike}: {apart[0]} is not tracked by Keras, so it is in no checkpoint.",
            "Create it with add_weight; or stop only where it is reset, as a stateful RNN is by reset_state.",
            "11",
        )
    if unequal:
        return failure(
            f"{unlike}: {unequal[0]}.",
            "Look for state that changes in a step but is no Keras variable: attributes, tf.Variable in plain lists.",
            "11",
        )
    if not _begins_alike(training):
        return warning(
            f"{stopped} all {len(undisturbed)} variables are bitwise identical. But the dataset yields other batches,"
            " or another order, in each pass: the data will not resume where they stopped.",
            "Make a new dataset for each epoch, with shuffle(..., seed=epoch, reshuffle_each_iteration=False).",
            "03",
        )
    return ok(f"{stopped} all {len(undisturbed)} variables are bitwise identical.", "11")


def _trained(training, batches):
    """Return the values of all variables after a step on each batch from the initial state."""
    training.state.restore_values()
    for batch in batches:
        training.step(batch)
    return _values(training.model)


def _go_on(training, resume, batches, last):
    """Train from the position of ``resume`` to the step ``last``."""
    for _ in resume.epochs(1):
        numbers = resume.rest(tf.data.Dataset.range(len(batches)))
        for number in numbers.take(last - resume.step):
            training.step(batches[int(number)])
            resume.step_done()
        return


def _values(model):
    """Return {id: (path, value)} of all variables except those of metrics."""
    of_metrics = {id(each) for each in model.metrics_variables}
    return {
        id(each): (getattr(each, "path", each.name), each.numpy())
        for each in variables_of(model)
        if id(each) not in of_metrics
    }


def _unequal(one, other):
    """Return the paths of variables whose values differ; ``other`` may have additional ones."""
    return [path for key, (path, value) in one.items() if not np.array_equal(value, other[key][1], equal_nan=True)]


def _begins_alike(training):
    """Return whether two passes over the dataset begin with the same batch."""
    start = passes(training.data)
    one, two = (keras.tree.flatten(next(iter(start()), None)) for _ in range(2))
    pairs = zip(one, two, strict=False)
    return all(one is None or np.array_equal(np.asarray(one), np.asarray(two)) for one, two in pairs)


CHECKS = {"saved and loaded": saved, "stopped and resumed": resumed}
