"""Do micro-batches and replicas compute the right gradient?

The gradients of micro-batches are compared with that of the full batch.
"""

import numpy as np

from bigtrain_nb.advanced.preflight.report import Skipped, ok, warning
from bigtrain_nb.common.keras_compat import layers_that_add_losses, layers_within, losses_watched, mask_of
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.words import first_sentence
from bigtrain_nb.train.batches import ignored_class, loss_reduction

TIMES_REORDERED = 10
LEAST = 1e-4
"""A difference counts above 1e-4 and 10 times that of the reordered batch, which differs only by rounding. Healthy
models gave 1e-7, and 3e-3 to 7e-3 in bfloat16."""

COUNTED_RIGHT = "A bt.Model handles this correctly, in micro-batches and on several replicas; Keras' own step may not."

MOST_BY_ROUNDING = 0.02
"""A larger change from reordering the batch is not rounding."""


def gradient(training):
    """Is the gradient of the full batch the mean of those of its micro-batches, weighted by their examples?"""
    training.refuse_own_step()
    examples = training.examples
    if examples < 4:
        raise Skipped(f"the batch has only {examples} examples")
    if not training.model.trainable_variables:
        raise Skipped("the model has no trainable weights")
    if training.without_rows:
        raise Skipped(
            f"the batch cannot be split: it is unknown which rows of {training.without_rows} belong to which of the"
            f" {examples} examples"
        )

    def rows(which):
        return keras.tree.map_structure(
            lambda value: tf.gather(value, which) if training.has_rows(value) else value, training.first
        )

    _, whole = training.gradients(training.first)
    order = np.random.default_rng(0).permutation(examples)
    _, reordered = training.gradients(rows(order))
    size = examples // 3
    try:
        _, of_first = training.gradients(rows(np.arange(size)))
        _, of_rest = training.gradients(rows(np.arange(size, examples)))
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        return warning(
            f"The model takes {examples} examples, but not {size} or {examples - size}: {first_sentence(error)}",
            "Do not fix the batch size in the model, such as in a reshape: micro-batches, replicas and a short last"
            " batch have fewer examples.",
            "05",
        )

    def combined(first, rest):
        places = of_first.keys() | of_rest.keys()
        return {place: first * of_first.get(place, 0) + rest * of_rest.get(place, 0) for place in places}

    share = size / examples
    apart = _distance(combined(share, 1 - share), whole)
    rounding = _distance(reordered, whole)
    most = max(TIMES_REORDERED * rounding, LEAST)
    if rounding > MOST_BY_ROUNDING:
        raise Skipped(
            f"the gradient changes by {rounding:.1%} when the batch is reordered: the step uses random numbers, or the"
            " loss depends on the order of examples"
        )
    statistics = [
        each.name for each in layers_within(training.model) if isinstance(each, keras.layers.BatchNormalization)
    ]
    known = f" {statistics[0]} computes its statistics per micro-batch, as intended." if statistics else ""
    if apart <= most:
        return ok(
            f"The gradient of micro-batches of {size} and {examples - size} examples equals that of the full batch,"
            f" within {max(apart, 1e-9):.0e}.{known}",
            "05",
        )
    if _distance(combined(1, 1), whole) <= most:
        return warning(
            f"The gradients of micro-batches of {size} and {examples - size} examples add up to that of the full"
            f" batch: {_cause_of_sum(training)}{known}",
            COUNTED_RIGHT
            if _reduction(training) == "sum"
            else "Return one value per example from the loss, and leave the mean to Keras.",
            "05",
        )
    cause, is_counted_right = _cause(training)
    split = "Micro-batches or replicas would change the training: do not split the batch, or change the loss."
    return warning(
        f"The gradient of micro-batches of {size} and {examples - size} examples differs from that of the full batch"
        f" by {apart:.1%}: {cause}{known}",
        COUNTED_RIGHT if is_counted_right else split,
        "05",
    )


def _cause_of_sum(training):
    """Return a message on why the gradients of micro-batches add up to the full gradient."""
    if _reduction(training) == "sum":
        return 'the reduction of the loss is "sum".'
    numbers = [loss.name for loss in _watched(training) if loss.is_one_number]
    name = numbers[0] if numbers else "the loss"
    return (
        f"{name} divides by a number that does not depend on the examples, such as the global batch size, or does not"
        " divide. bt.Model takes the mean over micro-batches, so it would use a fraction of the gradient."
    )


def _reduction(training):
    """Return the reduction that all losses share, or ""."""
    try:
        return loss_reduction(training.model.loss)
    except ValueError:
        return ""


def _watched(training):
    """Return a `WatchedLoss` for each loss of `compile`, run on the first batch."""
    with losses_watched(training.model) as watched:
        training.loss_of(training.first)
    return watched


def _cause(training):
    """Return a message on why a loss is not the mean over micro-batches, and whether `bt.Model` handles it."""
    if any(mask_of(each) is not None for each in keras.tree.flatten(training.outputs(training.x))):
        words = "a masked loss is a mean over valid positions, whose number differs between micro-batches."
        return words, len(_watched(training)) == 1
    if ignored_class(training.model.loss) is not None:
        return "the loss ignores a class, and is the mean over the other positions.", True
    if _reduction(training) == "mean_with_sample_weight":
        return "the loss divides by the sum of the sample weights.", True
    for loss in _watched(training):
        if loss.mask is not None:
            words = f"{loss.name} skips positions: it is a mean over a number that differs between micro-batches."
            return words, False
        if loss.is_one_number:
            words = (
                f"{loss.name} returns one value per batch, not one per example, such as a mean over positions whose"
                " number differs between micro-batches, or over all examples at once."
            )
            return words, False
    adding = [layer.name for layer in layers_that_add_losses(training.model)]
    if adding:
        words = f"{adding[0]} adds a loss, by add_loss or a custom regularizer, that is not a mean over examples."
        return words, False
    words = "the loss is not a mean over examples (it may compare them), or the model mixes examples."
    return words, False


def _distance(one, two):
    """Return the norm of the difference of two sets of gradients, relative to the norm of the second."""
    places = one.keys() | two.keys()
    ones, twos = ([tf.cast(each.get(place, 0.0), tf.float64) for place in places] for each in (one, two))
    differences = [a - b for a, b in zip(ones, twos, strict=True)]
    changed, whole = (sum(float(tf.reduce_sum(each**2)) for each in parts) for parts in (differences, twos))
    return (changed / max(whole, 1e-30)) ** 0.5


CHECKS = {"micro-batches": gradient}
