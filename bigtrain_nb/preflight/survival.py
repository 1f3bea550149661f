"""Does the model survive: is what is saved and loaded the same, and does the policy's precision carry a step?"""

import os
import tempfile
import time

import numpy as np

from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.words import amount
from bigtrain_nb.preflight.report import NotExamined, look, ok, wrong
from bigtrain_nb.watch.overflow import find_overflow

SAVED_DIFFERS = 1e-4
"""Of the largest output: what is loaded computes the same, in the same order."""


def overflow(training):
    """Is a step finite, forward and backward, in the policy of the model?"""
    if training.no_loss is not None:
        raise NotExamined(training.no_loss)
    found = find_overflow(training.model, training.first)
    if found is None:
        return ok(f"Loss and gradients of a step are finite in {training.model.dtype_policy.name}.", "04")
    if found.handled:
        return ok(f"{' '.join(found.words())} Its first steps are skipped, as they are meant to be.", "04")
    return wrong(" ".join(found.words()), "bt.find_overflow(model, data) shows what goes into that layer.", "11")


def saved(training):
    """Does Keras load what the model saves, and does that give the same outputs?"""
    training.refuse_own_step()
    before = keras.tree.flatten(training.outputs(training.x))
    again = keras.tree.flatten(training.outputs(training.x))
    if any(_change(one, two) > SAVED_DIFFERS for one, two in zip(before, again, strict=True)):
        raise NotExamined("outputs are random, so that those of the loaded model cannot be compared")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        start = time.monotonic()
        training.model.save(path)
        seconds = time.monotonic() - start
        size = os.path.getsize(path)
        try:
            loaded = keras.models.load_model(path)
        except Exception as error:
            return look(
                f"Keras cannot load what was saved: {type(error).__name__}: {str(error).strip():.199}",
                "Register classes of your own with keras.saving.register_keras_serializable and give them get_config;"
                " or keep the code, and save weights only.",
                "11",
            )
    after = keras.tree.flatten(loaded(training.x, training=False))
    change = max(_change(one, two) for one, two in zip(before, after, strict=True))
    if change > SAVED_DIFFERS:
        return wrong(
            f"Saved and loaded, the model gives outputs that differ by {change:.1%}.",
            "Look for weights in plain lists or dictionaries of tensors, and values that get_config leaves out.",
            "11",
        )
    return ok(f"Saved in {amount(seconds, 's')}, {amount(size, 'bytes')}, and loaded, it gives the same outputs.", "11")


def _change(one, two):
    one, two = (tf.cast(each, tf.float32).numpy() for each in (one, two))
    return float(np.abs(one - two).max(initial=0) / max(np.abs(one).max(initial=0), 1e-30))


CHECKS = {"a step is finite": overflow, "saved and loaded": saved}
