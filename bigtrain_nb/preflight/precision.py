"""Does the policy's precision carry a step, and what would bfloat16 change in the loss?"""

import math
import time
from contextlib import contextmanager

import numpy as np

from bigtrain_nb.common.keras_gaps import layers_within
from bigtrain_nb.common.words import first_sentence, number
from bigtrain_nb.measure.intervals import mean_interval
from bigtrain_nb.preflight.report import NotExamined, TrainingRaises, look, ok, wrong
from bigtrain_nb.watch.overflow import find_overflow

STEPS = 10
"""Of a try, from the start on: the weights have moved, and the two trainings have not yet parted for other reasons."""
TRIES = 6
LEAST_TRIES = 3
"""With other batches each; from fewer an interval says nothing."""
SHARE_OF_TIME = 0.15
"""Of the time that is left; then as many tries as were made must do, but the least."""
POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")
"""Of layers that compute with floating numbers, with weights in float32; others keep theirs."""
COSTS = 0.02
"""Of the loss. Eight healthy trainings without dropout had upper ends of at most 0.3 %."""


def overflow(training):
    """Is a step finite, forward and backward, in the policy of the model?"""
    if training.no_loss is not None:
        raise NotExamined(training.no_loss)
    training.refuse_failing()
    found = find_overflow(training.model, training.first)
    if found is None:
        return ok(f"Loss and gradients of a step are finite in {_policies(training.model)}.", "04")
    if found.handled:
        return ok(f"{' '.join(found.words())} Its first steps are skipped, as they are meant to be.", "04")
    return wrong(" ".join(found.words()), "bt.find_overflow(model, data) shows what goes into that layer.", "11")


def _policies(model):
    """Return the policies of the layers that have weights: the model's own may be that of the whole program."""
    names = {layer.dtype_policy.name for layer in layers_within(model)[1:] if layer.weights}
    return " and ".join(sorted(names)) or model.dtype_policy.name


def bfloat16(training):
    """What does bfloat16 change in the loss of some steps from the start, beside float32?"""
    training.refuse_own_step()
    if training.no_loss is not None:
        raise NotExamined(training.no_loss)
    weights = training.model.trainable_variables
    if not weights or any(weight.dtype != "float32" for weight in weights):
        raise NotExamined("no weights train in float32, with which to compare")
    layers = [layer for layer in layers_within(training.model) if layer.dtype_policy.name in POLICIES]
    own = any(layer.dtype_policy.name == "mixed_bfloat16" for layer in layers)  # then as the model has it
    drawn = np.random.default_rng(0)
    until = time.monotonic() + SHARE_OF_TIME * training.seconds_left
    changes = []
    while len(changes) < TRIES and (len(changes) < LEAST_TRIES or time.monotonic() < until):
        batches = [training.batches[place] for place in drawn.integers(len(training.batches), size=STEPS)]
        exact = _mean_loss(training, len(changes), layers, "float32", batches)
        if not math.isfinite(exact):
            raise NotExamined("the loss is not finite in float32")
        try:
            rounded = _mean_loss(training, len(changes), layers, None if own else "mixed_bfloat16", batches)
        except TrainingRaises as error:
            return look(
                f"In mixed_bfloat16 a step fails: {first_sentence(error)}",
                "Before you train in it, let layers of your own make their constants in self.compute_dtype.",
                "04",
            )
        if not math.isfinite(rounded):
            return look(
                f"In mixed_bfloat16 the loss is {rounded} within {STEPS} steps; in float32 it is finite.",
                "Keep the layers that make large or tiny numbers in float32, by dtype='float32'.",
                "04",
            )
        changes.append((rounded - exact) / max(abs(exact), 1e-12))
    change, low, high = mean_interval(changes)
    words = (
        f"In mixed_bfloat16 the mean loss of {STEPS} steps from the start changes by {_percent(change)}"
        f" ({_percent(low)} to {_percent(high)}) beside float32, in {len(changes)} tries with other batches."
    )
    if low > COSTS:
        return look(words, "Keep the last layer in float32, by dtype='float32', before you train in it.", "04")
    if high > COSTS:
        return ok(f"{words} The interval is too wide to tell whether it costs {COSTS:.0%}.", "04")
    return ok(f"{words} So few steps show no harm: where the hardware has it, it is worth a trial.", "04")


def _percent(share):
    return f"{'+' if share >= 0 else ''}{number(100 * share)}%"


def _mean_loss(training, attempt, layers, policy, batches):
    """Return the mean loss of steps on batches from the start, with the layers in a policy; None: in their own.

    Each ``attempt`` has other random numbers: with the same seed a dropout mask is another in 16 bits.
    """
    training.state.put_back()
    weights = {id(weight) for weight in training.model.weights}
    for seed in training.model.variables:
        if id(seed) not in weights:
            seed.assign(seed.numpy() + attempt)
    with _computing_in(policy, layers):
        return float(np.mean([training.loss_of_step(batch) for batch in batches]))


@contextmanager
def _computing_in(policy, layers):
    """Let built layers, whose weights are in float32, compute in another policy."""
    before = [layer.dtype_policy for layer in layers]
    try:
        for layer in layers if policy else ():
            layer.dtype_policy = policy
        yield
    finally:
        for layer, own in zip(layers, before, strict=True):
            layer.dtype_policy = own


CHECKS = {"a step is finite": overflow, "bfloat16": bfloat16}
