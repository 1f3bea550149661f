"""Do the targets fit the loss: are they in its range, and do they have the shape of the outputs?

Properties that are unknown, such as the range of a custom loss, are reported as skipped.
"""

import math
import time

import numpy as np

from bigtrain_nb.advanced.preflight.report import Skipped, failure, ok
from bigtrain_nb.advanced.preflight.training import gradient_change
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.words import number

SHARE_FOR_BATCHES = 0.05
"""Share of the remaining time for all batches after the first."""
_OF_PROBABILITIES = ("kldivergence", "binarycrossentropy", "binaryfocalcrossentropy", "categoricalcrossentropy")
_OF_PROBABILITIES += ("categoricalfocalcrossentropy", "dice", "tversky")
RANGES = {
    **dict.fromkeys(("poisson", "meansquaredlogarithmicerror"), (0, math.inf)),
    **dict.fromkeys(("hinge", "squaredhinge", "categoricalhinge"), (-1, 1)),
    **dict.fromkeys(_OF_PROBABILITIES, (0, 1)),
}
"""Range of targets by loss; other Keras losses accept any number."""
ROUNDING = 1e-6
GRADIENT_DIFFERS = 1e-4
"""Relative change of a gradient above which the loss compares an output with other examples' targets."""


def labels(training):
    """Are the targets in the range of the loss, and do they have the shape of the outputs?"""
    if training.y is None:
        return None
    training.refuse_own_step()
    found = _check_broadcast(training)
    if found:
        return {**found, "spoils": ("loss",)}
    pairs = training.pairs()  # raises if there is no loss to examine
    until = time.monotonic() + SHARE_FOR_BATCHES * training.seconds_left
    examined = 0
    for place in range(len(training.batches)):
        if place and time.monotonic() > until:
            break
        try:
            found = wrong_targets(training, place)
        except FailingInputs as error:
            raise Skipped(str(error)) from error
        if found and place == 0:
            return {**found, "spoils": ("loss",)}
        if found:
            return {**found, "message": f"Batch {place} of {len(training.batches)}: {found['message']}"}
        examined += 1
    unknown = [f"{pair.words()}which targets {pair.loss_name} takes is unknown" for pair in pairs if _asks(pair)]
    if len(unknown) == len(pairs):
        raise Skipped("; ".join(unknown))
    known = " and ".join(dict.fromkeys(f"{pair.words()}{_taken_by(pair)}" for pair in pairs if not _asks(pair)))
    not_known = "".join(f" Skipped: {words}." for words in unknown)
    return ok(f"Targets of {examined} of {len(training.batches)} batches: {known}.{not_known}")


class FailingInputs(Exception):
    """Raised if the model fails on the inputs of a batch, so that there are no outputs to compare with its targets."""


def wrong_targets(training, place):
    """Return a failure if the targets of a batch are wrong; None otherwise, and for custom losses."""
    if training.has_own_step or training.y is None or training.model.loss is None:
        return None
    try:
        pairs = training.pairs(training.batches[place])
    except Skipped:
        raise
    except Exception as error:
        raise FailingInputs(f"the model rejects the inputs of batch {place}") from error
    return next(filter(None, map(_wrong_in, pairs)), None)


def _asks(pair):
    """Return whether the range of the loss's targets is unknown."""
    return pair.kind in ("", "circle")


def _taken_by(pair):
    """Describe the targets that were found to be right."""
    if pair.is_sparse:
        return f"labels are classes from 0 to {pair.outputs.shape[-1] - 1}"
    if pair.kind == "ctc":
        most = pair.outputs.shape[-1] - 1
        return f"labels are from 1 to {most}, with zeros at the end only, and no longer than outputs"
    if pair.kind in RANGES:
        return f"of the shape of the outputs, and {_range(*RANGES[pair.kind])}"
    return f"of the shape of the outputs; {pair.loss_name} takes any number"


def _range(least, most):
    return f"{least} or more" if most == math.inf else f"in {least} to {most}"


def _wrong_in(pair):
    if pair.is_sparse:
        return _wrong_labels(pair)
    if pair.kind == "ctc":
        return _wrong_labels_of_ctc(pair)
    if _asks(pair):
        return None
    y, outputs = pair.y.numpy(), pair.outputs
    counted = pair.counted()
    if not _is_aligned(y.shape, outputs.shape):
        return failure(
            f"{pair.words()}Targets {y.shape} and outputs {tuple(outputs.shape)} differ in shape, so that"
            f" {pair.loss_name} compares each target with several outputs.",
            "Give both the same shape; for integer labels use a loss with sparse_ in its name.",
        )
    least, most = RANGES.get(pair.kind, (-math.inf, math.inf))
    bad = counted & ((y < least - ROUNDING) | (y > most + ROUNDING)) if pair.kind in RANGES else np.zeros(1, bool)
    if bad.any():
        takes = "probabilities" if (least, most) == (0, 1) else f"numbers {_range(least, most)}"
        return failure(
            f"{pair.words()}{bad.mean():.0%} of the targets are not {_range(least, most)} ({number(y.min())} to"
            f" {number(y.max())}), but {pair.loss_name} takes {takes}.",
            "Scale the targets, or use a regression loss, such as mse.",
        )
    if pair.is_categorical and y.ndim > 1:
        sums = y.sum(-1)[counted.all(-1)]
        bad = np.abs(sums - 1) > 0.02
        if y.ndim > 2:
            bad &= sums != 0  # a position without a class is ignored
        if bad.any():
            return failure(
                f"{pair.words()}The targets of {bad.mean():.0%} of the examples do not add up to 1, but"
                f" {pair.loss_name} takes one class per example.",
                "For several classes at once use binary_crossentropy; else make the targets one-hot.",
            )
    return None


def _wrong_labels(pair):
    y, classes = pair.y.numpy(), pair.outputs.shape[-1]
    ignored = pair.setting.get("ignore_class")
    looked_up = np.ones(y.shape, bool) if ignored is None else y != ignored
    bad = looked_up & ((y < 0) | (y >= classes) | (y != np.floor(y)))
    if not bad.any():
        return None
    advice = "Give the last layer one unit per class, and number the classes from 0. Where there is no"
    advice += " label, use the label -1, and give the loss ignore_class=-1."
    if not (bad & pair.counted()).any():
        advice = "A sample weight of 0 does not help, because the loss looks up the label first, and raises. Use"
        advice += " a valid class, such as 0, where the weight is 0; or give the loss ignore_class=-1."
    return failure(
        f"{pair.words()}{bad.sum():,} of {looked_up.sum():,} labels are no class of 0 to {classes - 1}: there"
        f" are labels from {y[looked_up].min():g} to {y[looked_up].max():g}.",
        advice,
    )


def _wrong_labels_of_ctc(pair):
    """Return a failure if labels are not classes, include a blank, or need more output steps; otherwise None."""
    y, (_, steps, classes) = pair.y.numpy(), pair.outputs.shape
    bad = (y < 0) | (y >= classes) | (y != np.floor(y))
    if bad.any():
        return failure(
            f"{pair.words()}{bad.sum():,} of {bad.size:,} labels are neither classes from 1 to {classes - 1} nor the"
            f" padding 0: there are labels from {y.min():g} to {y.max():g}. CTC takes them without an error.",
            "Number the classes from 1 to one less than the units of the last layer, and pad with 0, not -1.",
        )
    is_label = y != 0
    behind_a_blank = is_label[:, 1:] & ~is_label[:, :-1]
    if behind_a_blank.any():
        return failure(
            f"{pair.words()}{behind_a_blank.any(-1).sum():,} of {len(y):,} rows have a 0 before a label: CTC uses 0 as"
            " the blank, and reads as many labels from the start as are not 0, so the last are lost.",
            "Number the classes from 1, and pad with 0 at the end only.",
        )
    needed = is_label.sum(-1) + ((y[:, 1:] == y[:, :-1]) & is_label[:, 1:]).sum(-1)  # a blank separates equal labels
    if (needed > steps).any():
        return failure(
            f"{pair.words()}{(needed > steps).sum():,} of {len(y):,} rows have labels that need up to {needed.max()}"
            f" outputs, but there are {steps}: no alignment is possible, and the loss is infinite.",
            "Keep more steps in the model (smaller strides), or remove these examples.",
        )
    return None


def _check_broadcast(training):
    """Return a failure if targets (n,) and outputs (n, 1) are broadcast to (n, n), otherwise None.

    Keras losses align both shapes first; a custom loss may not. The evidence: with targets in the shape of the outputs
    the loss treats examples independently, but not with the original shape.
    """
    outputs = training.outputs(training.x)
    of_outputs, targets = keras.tree.flatten(outputs), keras.tree.flatten(training.y)
    if len(of_outputs) != len(targets) or training.examples < 3:
        return None
    for place, (target, output) in enumerate(zip(targets, of_outputs, strict=True)):
        differ = target.shape != output.shape and _is_aligned(target.shape, output.shape)
        if not differ or target.dtype == tf.string:
            continue
        alike = tf.reshape(target, output.shape)
        if not _sees_others(training, outputs, place, alike) and _sees_others(training, outputs, place, target):
            shape = tuple(target.shape)
            return failure(
                f"Targets {shape} and outputs {tuple(output.shape)} are broadcast: the loss compares each output with"
                f" the targets of all {training.examples} examples. With targets of {tuple(output.shape)} each has its"
                " own.",
                "Give both the same shape: y[:, None] in the dataset, or keras.ops.squeeze(y_pred, -1) in the loss.",
            )
    return None


def _sees_others(training, outputs, place, target):
    """Return whether the gradient at the first example's output depends on the targets of other examples.

    It is tested with the model's outputs, and with random outputs between the least and largest target.
    """
    targets, flat = keras.tree.flatten(training.y), keras.tree.flatten(outputs)
    values = target.numpy()
    least, most = values.min(), values.max()
    drawn = np.random.default_rng(0).uniform(float(least), float(most), flat[place].shape)
    for given in (flat[place], tf.cast(drawn, flat[place].dtype)):
        flat[place] = given
        gradients = []
        for other in (least, most):
            changed = np.concatenate([values[:1], np.full_like(values[1:], other)])
            targets[place] = tf.constant(changed, target.dtype)
            y = keras.tree.pack_sequence_as(training.y, targets)
            at_output = training.gradients_at(keras.tree.pack_sequence_as(outputs, flat), y)[place]
            if at_output is None:
                return False
            gradients.append([at_output])
        if gradient_change(*gradients) > GRADIENT_DIFFERS:
            return True
    return False


def _is_aligned(one, other):
    """Return whether Keras' losses bring both shapes together: they may differ by a last axis of length 1."""
    one, other = tuple(one), tuple(other)
    return one == other or one == (*other, 1) or other == (*one, 1)


CHECKS = {"targets": labels}
