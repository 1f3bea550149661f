"""Checks of the features: matching by name, normalization, sample weights, and target leakage."""

import math
from functools import partial
from itertools import product

import numpy as np

from bigtrain_nb.advanced.preflight.report import Skipped, failure, ok, warning
from bigtrain_nb.advanced.preflight.training import differ, each_target, is_one_hot, named_tensors
from bigtrain_nb.advanced.shared.layers import calls_seen
from bigtrain_nb.common.keras_compat import Functional, layers_within
from bigtrain_nb.common.quiet import keras, tf

LEAST_EXAMPLES = 40
"""With fewer, a threshold may separate the classes at random."""
MOST_FEATURES = 500
BY_THRESHOLD = 0.99
"""Share of examples whose target a threshold in one feature predicts."""
COMMON = 0.9
"""Share of the most frequent class above which a threshold is no evidence."""
CORRELATED = 0.9999
AROUND_1 = 0.1, 2
"""Root mean squares of inputs that need no normalization, such as images divided by 255."""


def by_name(training):
    """Do the features of a dictionary reach the inputs of the same names?"""
    model, x = training.model, training.x
    if not isinstance(x, dict) or not isinstance(model, Functional):
        return None
    expected = list(model.input) if isinstance(model.input, dict) else [each.name for each in model.inputs]
    missing = [name for name in expected if name not in x]
    if missing:
        raise Skipped(f"the batch has no feature named {', '.join(map(repr, missing))}")
    unused = [name for name in x if name not in expected]
    if isinstance(model.input, dict):
        named = {name: x[name] for name in expected}
        if differ(training.reproducible_outputs(), training.outputs_again(named)):
            order = ", ".join(map(repr, x))
            return failure(
                f"The {len(x)} features of the {type(x).__name__} are in the order {order}, and reach the inputs"
                f" {', '.join(map(repr, expected))} by position, not by name: outputs differ from those of a"
                " dictionary in the inputs' order.",
                "Give a plain dictionary: data.map(lambda x, y: (dict(x), y)), or put these names in the order of the"
                " inputs.",
            )
    if unused:
        return warning(
            f"{len(unused)} of {len(x)} features match no input by name, and are not used:"
            f" {', '.join(map(repr, unused[:5]))}. Inputs are {', '.join(map(repr, expected[:8]))}.",
            "Leave them out of the dataset, or give the model an input of that name.",
        )
    return ok(f"All {len(x)} features match an input by name.")


def normalized(training):
    """Was each `Normalization` layer adapted, unless its inputs already have a scale around 1?"""
    found = [layer for layer in layers_within(training.model) if isinstance(layer, keras.layers.Normalization)]
    unadapted = [layer for layer in found if not np.any(getattr(layer, "adapt_mean", 1))]
    unadapted = [layer for layer in unadapted if np.all(layer.adapt_variance.numpy() == 1)]
    sizes = {}

    def note(layer, call, inputs):
        sizes[layer] = float(tf.sqrt(tf.reduce_mean(tf.cast(inputs, tf.float32) ** 2)))
        return call(inputs)

    if unadapted and training.has_own_step:  # which may call it with other inputs
        return warning(
            f"{unadapted[0].name} was never adapted: its mean is still 0 and its variance 1.",
            "Right for inputs of a scale around 1. Otherwise, adapt it to what arrives there, before fit.",
        )
    if unadapted:
        with calls_seen(unadapted, note):
            training.outputs(training.x)
    for layer, size in sizes.items():
        if not AROUND_1[0] < size < AROUND_1[1]:
            return failure(
                f"{layer.name} was never adapted: its mean is still 0 and its variance 1, but its inputs have a root"
                f" mean square of {size:.3g}.",
                f"Before fit, call {layer.name}.adapt with what arrives there (the training inputs, after the layers"
                " before it), or give it mean= and variance=.",
            )
    words = f"Normalization layers: {len(found)}, each adapted, given a mean and a variance, or with inputs of a scale"
    return ok(f"{words} around 1.") if found else None


def weights(training):
    """Are sample weights nonnegative, and not all zero?"""
    if training.weight is None:
        return None
    training.refuse_own_step("which may take the third part of a batch for something else")
    all_zero, negative = [], 0
    for place, batch in enumerate(training.batches):
        values = [np.asarray(each) for (each,) in named_tensors([batch], "sample weights").values()]
        negative += sum(int((each < 0).sum()) for each in values)
        if values and not any(np.any(each) for each in values):
            all_zero.append(place)
    count = len(training.batches)
    spoils = ("loss",) if 0 in all_zero else ()
    if len(all_zero) == count:
        return failure(
            f"All sample weights of {count} batches are 0: no example counts, and nothing can be learned.",
            "Look at the function that makes them; a mask is 1 where a position counts.",
            spoils=spoils,
        )
    if negative:
        return warning(
            f"{negative:,} sample weights are below 0: training makes the loss of these examples larger, not smaller.",
            "Give weights of 0 or more.",
            spoils=spoils,
        )
    if all_zero:
        return warning(
            f"All sample weights are 0 in {len(all_zero)} of {count} batches, first in batch {all_zero[0]}.",
            "Leave out examples that do not count, or shuffle them among the others.",
        )
    return ok(f"In each of {count} batches some sample weights are above 0.")


def answer_in_a_feature(training):
    """Is a target equal to a feature, or to a feature's side of a threshold?"""
    return each_target(training, partial(_answer, training))


def _answer(training, name, batches):
    if len({each.shape[1:] for each in batches}) > 1 or not batches[0].ndim:
        raise Skipped("they are not one number for each example")
    y = np.concatenate(batches)
    y = y.argmax(1) if is_one_hot(y) else y
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.ndim != 1 or y.dtype.kind not in "biuf":
        raise Skipped("they are not one number for each example")
    if len(y) < LEAST_EXAMPLES:
        raise Skipped(f"with only {len(y)} examples a threshold may separate the classes at random")
    if not np.isfinite(y).all():
        raise Skipped("they are not finite")
    classes, shares = np.unique(y, return_counts=True)
    is_class = len(classes) <= max(2, len(y) // 10)
    most = shares.max() / len(y)
    if most > COMMON:
        raise Skipped(f"{most:.0%} of the examples have the same, so a threshold shows little")
    count, one_hot = 0, {}
    for feature, values in _columns(training):
        if len(values) != len(y):
            continue  # no row for each example
        count += 1
        if count > MOST_FEATURES:
            continue
        if is_class and len(classes) > 2:
            one_hot.update(dict.fromkeys(_class_told_by(values, y, classes), feature))
        if not is_class and _correlation(values, y) > CORRELATED:
            words = f"{feature} is the {name}, up to a factor and a constant (correlation over {CORRELATED:.2%})"
            return _is_answer(words)
        if is_class and len(np.unique(values)) > 1:
            share = _share_by_threshold(values, y, classes)
            if share >= BY_THRESHOLD:
                words = f"{feature} alone gives the {name} of {share:.0%} of {len(y):,} examples with a threshold; the"
                return _is_answer(f"{words} most frequent class has {most:.0%}")
    if len(one_hot) >= max(2, len(classes) - 1):
        names = list(dict.fromkeys(one_hot.values()))
        words = (
            f"{len(names)} features, {names[0]} the first, each give one class of the {name}: they are its one-hot copy"
        )
        return _is_answer(words)
    if not count:
        raise Skipped("no input has one value, or one row of values, per example")
    seen = f"the first {MOST_FEATURES} of {count:,}" if count > MOST_FEATURES else count
    return ok(f"None of {seen} features gives the {name} with a threshold or a factor.")


def _is_answer(found):
    return warning(
        f"{found}.",
        "If it is known only afterwards, such as a payment date or the target under another name, leave it out; if"
        " the task is that easy, a threshold is enough.",
    )


def _columns(training):
    """Yield the name and values over all batches of each feature with one number for each example."""
    for name, parts in named_tensors(training.batches, "inputs", "input").items():
        if parts[0].dtype == tf.string or len(parts[0].shape) not in (1, 2):
            continue
        if len({tuple(each.shape[1:]) for each in parts}) > 1:
            continue  # such as sequences padded by batch
        values = np.concatenate(parts).astype("float64")
        columns = values.T if values.ndim == 2 else [values]
        for place, column in enumerate(columns):
            yield f"Feature {place} of the {name}" if len(columns) > 1 else f"The {name}", column


def _share_by_threshold(values, y, classes):
    """Return the largest share of targets that a threshold, or an interval for each of several classes, predicts."""
    order = np.argsort(values, kind="stable")
    values, y = values[order], y[order]
    last_of_its_value = np.append(values[1:] != values[:-1], True)
    if len(classes) == 2:
        above = np.cumsum(y == classes[1])
        below = np.arange(1, len(y) + 1) - above
        right = np.maximum(below + above[-1] - above, above + below[-1] - below)
        return right[last_of_its_value].max() / len(y)
    changes = int(np.sum((y[1:] != y[:-1]) & last_of_its_value[:-1]))
    mixed = np.any((y[1:] != y[:-1]) & ~last_of_its_value[:-1])
    return 1.0 if changes == len(classes) - 1 and not mixed else 0.0


def _class_told_by(values, y, classes):
    """Return a list with the class that a feature of two values indicates; empty without one."""
    least, most = values.min(), values.max()
    if least == most or not ((values == least) | (values == most)).all():
        return []
    pairs = product(classes, (values == least, values == most))
    return [each for each, kind in pairs if np.mean((y == each) == kind) >= 1 - (1 - BY_THRESHOLD) / 2][:1]


def _correlation(one, two):
    if one.std() == 0 or two.std() == 0 or not np.isfinite(one).all():
        return 0.0
    found = abs(float(np.corrcoef(one, two)[0, 1]))
    return found if math.isfinite(found) else 0.0


CHECKS = {
    "inputs by name": by_name,
    "normalization": normalized,
    "sample weights": weights,
    "target leakage": answer_in_a_feature,
}
