"""Is a batch right in pieces, as micro-batches and replicas compute it? The gradient of slices beside the whole one."""

import numpy as np

from bigtrain_nb.common.batches import examples_of, loss_reduction
from bigtrain_nb.common.keras_gaps import layers_within, mask_of
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.preflight.report import NotExamined, look, ok

TIMES_REORDERED = 10
LEAST = 1e-4
"""A difference counts over 10 times that of the same batch in another order, which only rounds otherwise, and 1e-4.
Healthy models gave 1e-7, and 3e-3 to 7e-3 in bfloat16."""

MOST_BY_ROUNDING = 0.02
"""Of another order of the batch; more is no rounding."""


def gradient(training):
    """Is the gradient of the whole batch the mean of those of its slices, weighed by their examples?"""
    training.refuse_own_step()
    examples = training.examples
    if examples < 4:
        raise NotExamined(f"the batch has only {examples} examples")
    if not training.model.trainable_variables:
        raise NotExamined("nothing trains")
    _, whole = training.gradients(training.first)
    order = np.random.default_rng(0).permutation(examples)
    reordered_batch = keras.tree.map_structure(
        lambda value: value if value is None else tf.gather(value, order), training.first
    )
    _, reordered = training.gradients(reordered_batch)
    size = examples // 3
    _, of_first = training.gradients(examples_of(training.first, 0, size))
    _, of_rest = training.gradients(examples_of(training.first, size, examples - size))
    share = size / examples
    places = whole.keys() | of_first.keys() | of_rest.keys()
    pieces = {place: share * of_first.get(place, 0) + (1 - share) * of_rest.get(place, 0) for place in places}
    rounding = _distance(reordered, whole)
    apart = _distance(pieces, whole)
    if rounding > MOST_BY_ROUNDING:
        raise NotExamined(
            f"the gradient changes by {rounding:.1%} when the batch is put in another order: there are random numbers,"
            " or the loss compares examples by their place"
        )
    statistics = [
        each.name for each in layers_within(training.model) if isinstance(each, keras.layers.BatchNormalization)
    ]
    known = f" {statistics[0]} takes its statistics of each piece, as it is meant." if statistics else ""
    if apart <= max(TIMES_REORDERED * rounding, LEAST):
        return ok(
            f"The gradient of slices of {size} and {examples - size} examples is that of the whole batch, within"
            f" {max(apart, 1e-9):.0e}.{known}",
            "05",
        )
    return look(
        f"The gradient of slices of {size} and {examples - size} examples differs from that of the whole batch by"
        f" {apart:.1%}: {_cause(training)}{known}",
        "With micro-batches or several replicas it is another training: keep the batch whole, or change the loss.",
        "05",
    )


def _cause(training):
    """Return in words why a loss is not the mean over pieces."""
    try:
        reduction = loss_reduction(training.model.loss)
    except ValueError:
        reduction = ""
    if reduction == "sum":
        return 'the reduction of the loss is "sum", which bt.Model counts right.'
    if any(mask_of(each) is not None for each in keras.tree.flatten(training.outputs(training.x))):
        return "a masked loss is a mean over valid places, of which the slices have other numbers."
    if reduction == "mean_with_sample_weight":
        return "the loss divides by the sum of the sample weights, which bt.Model counts right."
    return "the loss is no mean over examples, as those that compare examples are, or examples are mixed in the model."


def _distance(one, two):
    """Return the norm of the difference of two sets of gradients, as a share of the norm of the second."""
    places = one.keys() | two.keys()
    difference = sum(float(tf.reduce_sum(tf.square(_wide(one, at) - _wide(two, at)))) for at in places)
    norm = sum(float(tf.reduce_sum(tf.square(_wide(two, at)))) for at in places)
    return (difference / max(norm, 1e-30)) ** 0.5


def _wide(gradients, place):
    return tf.cast(gradients.get(place, 0.0), tf.float64)


CHECKS = {"right in pieces": gradient}
