"""Checks of the data: is what the batches hold what the model and the loss can take, and are they in a good order?"""

import hashlib
import math
import time
from collections import Counter

import numpy as np

from bigtrain_nb.common.passes import batches_of, passes
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.words import number
from bigtrain_nb.preflight.features import named_parts
from bigtrain_nb.preflight.report import NotExamined, TrainingRaises, look, ok, wrong
from bigtrain_nb.preflight.training import NoExamples, read, words_of

ONE_CLASS = 0.5
ONE_CLASS_BY_CHANCE = 0.05
"""Shares of batches that hold one class only: ordered, and not by chance. Of rare classes many batches have none."""
FEW_CLASSES = 0.5
"""As many classes in a batch, of those that a shuffled one has. The order within a batch changes nothing."""
REPEATED = 0.2
"""Share of batches that are equal to the one before."""
AMONG_TRAINING = 0.05
"""Share of validation's examples that may be among those of training, over what comes by chance."""
SHARE_FOR_EXAMPLES = 0.05
"""Of the time that is left, for reading examples of each of both."""
SHARE_FOR_BATCHES = 0.05
"""Of the time that is left, for all batches that were read, after the first."""
SPREAD = 3
SHIFT = 2
"""Validation beside training: how many times the deviation, and how many deviations between the means."""


def runs(training):
    """Does the model take the batches, and a step of it the first one?"""
    outputs = None
    if training.fails_with is None and not training.has_own_step:
        try:
            outputs = training.outputs(training.x)
        except NotExamined:
            if training.no_outputs is not None:
                return training.spoilt_outputs()
            raise
        except Exception as error:
            training.fails_with = words_of(error)
    if training.fails_with is None:
        try:
            training.step(training.first)
            training.state.put_back()
        except TrainingRaises as error:
            if _wrong_targets(training, 0):
                return None  # the cause, which has its own line
            training.fails_with = str(error)
    if training.fails_with is not None:
        given = ", ".join(
            f"{name} {tuple(each.shape)} {each.dtype.name}" for name, each in named_parts(training.x, "inputs")
        )
        return wrong(
            f"A step on the first batch fails, with {given}: {training.fails_with.rstrip('.')}.",
            "Compare the shapes and dtypes of a batch with the model's inputs: next(iter(data)) and model.input_shape."
            " If the forward pass works, look at the loss, the metrics and the optimizer.",
        )
    failing = _failing_batch(training)
    if failing:
        return failing
    if training.unread is not None:
        return wrong(
            f"{len(training.batches)} batches can be read, and the next one fails: {training.unread.rstrip('.')}.",
            "Look at the example that it names, and at the functions that the dataset maps.",
        )
    if training.no_outputs is not None:
        return training.spoilt_outputs()
    if outputs is None:
        return None
    shapes = ", ".join(str(tuple(output.shape)) for output in keras.tree.flatten(outputs))
    return ok(f"{training.examples} examples a batch, outputs {shapes}.")


def _failing_batch(training):
    """Return what is wrong with the first batch that the model does not take, of those for which there is time."""
    until = time.monotonic() + SHARE_FOR_BATCHES * training.seconds_left
    for place, batch in enumerate(training.batches[1:], 1):
        if time.monotonic() > until:
            return None
        try:
            if training.has_own_step:
                training.step(batch)
            else:
                training.loss_of(batch)
        except NotExamined:
            return None
        except Exception as error:
            if _wrong_targets(training, place):
                return None
            words = str(error) if isinstance(error, TrainingRaises) else words_of(error)
            count = len(training.batches)
            del training.batches[place:]  # one cause, one line: other checks go without them
            return wrong(
                f"Batch {place} of {count} fails, and the first does not: {words.rstrip('.')}.",
                "Compare its shapes and values with those of the first.",
            )
    return None


def finite(training):
    """Is a value NaN or infinite?"""
    filled_in = None
    for place, batch in enumerate(training.batches):
        words = _not_finite_in(batch, place)
        if words and _trains_all_the_same(training, batch):
            filled_in = filled_in or look(
                f"{words} The loss of this batch and its gradients are finite all the same.",
                "If the model fills in or masks such values on purpose, all is well.",
                "11",
            )
        elif words:
            if place == 0:
                training.no_loss = "values are not finite, so that the loss is not"
            return wrong(
                f"{words} One such value makes all weights NaN.",
                "Repair or drop these examples in the dataset. (A sample weight of 0 does not help: 0 times NaN"
                " is NaN.)",
                "11",
            )
    return filled_in or ok(f"All values of {len(training.batches)} batches are finite.")


def _not_finite_in(batch, place):
    """Return in words the first part of a batch that has values which are not finite; "" if none has."""
    for kind, part in zip(("inputs", "targets", "sample weights"), _parts(batch), strict=True):
        for name, value in named_parts(part, kind):
            bad = ~np.isfinite(tf.cast(value, tf.float32).numpy()) if value.dtype.is_floating else np.zeros(1, bool)
            if bad.any():
                first = tuple(int(i) for i in np.argwhere(bad)[0])
                return f"{bad.sum():,} of {bad.size:,} {name} of batch {place} are not finite, the first at {first}."
    return ""


def _trains_all_the_same(training, batch):
    """Return whether loss and gradients of a batch are finite."""
    if training.has_own_step:
        return False
    try:
        loss, gradients = training.gradients(batch, training=True)
    except Exception:  # which has a line of its own
        return False
    return math.isfinite(loss) and all(np.isfinite(np.asarray(each)).all() for each in gradients.values())


def labels(training):
    """Are the targets in the range that the loss takes, and of the shape of the outputs?"""
    if training.y is None:
        return None
    training.pairs()  # raises where there is no loss to examine
    until = time.monotonic() + SHARE_FOR_BATCHES * training.seconds_left
    examined = 0
    for place in range(len(training.batches)):
        if place and time.monotonic() > until:
            break
        found = _wrong_targets(training, place)
        if found and place == 0:
            training.no_loss = "the targets are wrong, so that the loss says nothing"
            return found
        if found:
            return {**found, "found": f"Batch {place} of {len(training.batches)}: {found['found']}"}
        examined += 1
    return ok(f"Targets of {examined} batches are in the range and of the shape that the loss takes.")


def _wrong_targets(training, place):
    """Return what is wrong with the targets of a batch, None if nothing is, or they belong to a loss of one's own."""
    if training.has_own_step or training.y is None or training.model.loss is None:
        return None
    try:
        pairs = training.pairs(training.batches[place])
    except NotExamined:
        raise
    except Exception:
        return None  # the model does not take its inputs
    return next(filter(None, map(_labels_of, pairs)), None)


def _labels_of(pair):
    y, outputs = pair.y.numpy(), pair.outputs
    counted = pair.counted()
    classes = outputs.shape[-1]
    if pair.is_sparse:
        ignored = pair.setting.get("ignore_class")
        looked_up = np.ones(y.shape, bool) if ignored is None else y != ignored
        bad = looked_up & ((y < 0) | (y >= classes) | (y != np.floor(y)))
        if bad.any():
            advice = "Let the last layer have a unit for each class, and number the classes from 0. Where there is no"
            advice += " label, give the loss ignore_class=-1 and the label -1."
            if not (bad & counted).any():
                advice = "A sample weight of 0 does not help, for the loss looks the label up first, and raises. Give a"
                advice += " class that there is, as 0, where the weight is 0; or ignore_class=-1 to the loss."
            return wrong(
                f"{pair.words()}{bad.sum():,} of {looked_up.sum():,} labels are no class of 0 to {classes - 1}: there"
                f" are labels from {y[looked_up].min():g} to {y[looked_up].max():g}.",
                advice,
            )
        return None
    if pair.kind in ("", "ctc", "circle"):
        return None  # a loss of one's own may compare what it likes, and so do these two
    shape, outputs_shape = _squeezed(y.shape), _squeezed(outputs.shape)
    if shape != outputs_shape:
        return wrong(
            f"{pair.words()}Targets {y.shape} and outputs {tuple(outputs.shape)} differ in shape, so that {pair.kind}"
            " compares each target with several outputs.",
            "Give both the same shape; for whole numbers as labels take a loss with sparse_ in its name.",
        )
    if pair.is_binary or pair.is_categorical:
        bad = counted & ((y < 0) | (y > 1))
        if bad.any():
            return wrong(
                f"{pair.words()}{bad.mean():.0%} of the targets are outside of 0 to 1 ({number(y.min())} to"
                f" {number(y.max())}), and {pair.kind} takes probabilities.",
                "Scale the targets, or take a loss for numbers, as mse.",
            )
    if pair.is_categorical and y.ndim == 2:
        sums = y.sum(-1)[counted.all(-1)]
        bad = np.abs(sums - 1) > 0.02
        if bad.any():
            return wrong(
                f"{pair.words()}The targets of {bad.mean():.0%} of the examples do not add up to 1, and"
                f" {pair.kind} takes one class of each example.",
                "For several classes at once take binary_crossentropy; else make the targets one-hot.",
            )
    return None


def constant(training):
    """Do all examples have the same targets, or the same inputs?"""
    for name, part in (("targets", 1), ("inputs", 0)):
        values = [_parts(batch)[part] for batch in training.batches]
        if values[0] is None:
            continue
        names = [each for each, _ in named_parts(values[0], name)]
        rows = [[np.asarray(each) for each in keras.tree.flatten(value)] for value in values]
        examples = sum(len(each[0]) for each in rows if each[0].ndim)
        if examples > 1 and all(_is_constant(of_one) for of_one in zip(*rows, strict=True)):
            return look(
                f"The {' and the '.join(names)} of all {examples:,} examples that were read are the same: there is"
                " nothing to learn.",
                "Look at the function that makes them, and at how the dataset is shuffled.",
            )
    return ok("Inputs and targets differ from example to example.")


def _is_constant(batches):
    """Return whether all rows of all batches of one tensor are the same numbers."""
    first = batches[0]
    if not first.ndim or len({each.shape[1:] for each in batches}) > 1 or first.dtype.kind not in "biuf":
        return False
    return all((each == first[:1]).all() for each in batches)


def order(training):
    """Do examples come sorted by their class?"""
    if training.y is None or keras.tree.is_nested(training.y) or len(training.batches) < 3:
        return None
    labels = [_classes(batch) for batch in training.batches]
    if any(each is None for each in labels):
        return None
    shuffled = np.random.default_rng(0).permutation(np.concatenate(labels))
    if len(set(shuffled.tolist())) < 2 or max(map(len, labels)) < 4:
        return None
    one_class = np.mean([len(set(each.tolist())) == 1 for each in labels])
    ends = np.cumsum([len(each) for each in labels])[:-1]
    by_chance = np.mean([len(set(each.tolist())) == 1 for each in np.split(shuffled, ends)])
    kinds = np.mean([len(set(each.tolist())) for each in labels])
    kinds_by_chance = np.mean([len(set(each.tolist())) for each in np.split(shuffled, ends)])
    advice = "Shuffle before you batch, over more examples than a class has: data.shuffle(n), or shuffle the file list."
    if one_class > ONE_CLASS and by_chance < ONE_CLASS_BY_CHANCE:
        return wrong(
            f"Examples come sorted by class: {one_class:.0%} of {len(labels)} batches hold one class only (shuffled:"
            f" {by_chance:.0%}).",
            advice,
            "01",
        )
    classes = f"a batch holds {kinds:.3g} classes on average, a shuffled one {kinds_by_chance:.3g}"
    if kinds < FEW_CLASSES * kinds_by_chance:
        return look(f"Few classes at a time: {classes}.", f"If you did not choose them so: {advice}", "01")
    return ok(f"Classes are mixed: {classes}.")


def repeated(training):
    """Does the same batch come again and again?"""
    if len(training.batches) < 3:
        return None
    prints = [_print(batch) for batch in training.batches]
    again = np.mean([one == before for one, before in zip(prints[1:], prints, strict=False)])
    if len(set(prints)) == 1:
        return wrong(
            f"All {len(prints)} batches that were read are the same one.",
            "Look for a batch that is kept outside of the loop, or repeat() before more than one batch was taken.",
        )
    if again >= REPEATED:
        return wrong(
            f"{again:.0%} of {len(prints)} batches are equal to the one before.",
            "Look at what the dataset does between two batches.",
        )
    return ok(f"{len(set(prints))} of {len(prints)} batches are different.")


def second_pass(training):
    """Does the dataset give batches again in the second epoch?"""
    again = next(iter(passes(training.data)()), None)
    if again is None:
        training.ends_after_a_pass = True
        return wrong(
            f"The dataset gave {len(training.batches)} batches once and is empty when it is read again: from the second"
            " epoch on there is nothing to train on.",
            "Give from_generator a function that starts anew, and no iterator that has been started.",
        )
    return ok("The dataset begins again when it is read again.")


def validation_alike(training):
    """Are validation inputs on the scale of those of training?"""
    if training.validation is None:
        raise NotExamined("give validation= to compare its inputs with those of training")
    try:
        others = read(training.validation, len(training.batches), max(1, 0.1 * training.seconds_left))
    except NoExamples:
        return wrong(
            "Validation gives 0 examples: there is no val_loss, and what waits for it, as EarlyStopping, does nothing.",
            "Look at next(iter(validation)), and at whether all examples went into training.",
        )
    ours = _means_and_deviations([_parts(batch)[0] for batch in training.batches])
    theirs = _means_and_deviations([_parts(batch)[0] for batch in others])
    only_one = [f"{name} in training" for name in ours.keys() - theirs.keys()]
    only_one += [f"{name} in validation" for name in theirs.keys() - ours.keys()]
    if only_one:
        return wrong(
            "Inputs of validation have another structure or dtype than those of training: floating numbers are the"
            f" {', the '.join(sorted(only_one))} only.",
            "Make both datasets by the same function.",
        )
    for name, (mean, deviation) in ours.items():
        mean_of_others, deviation_of_others = theirs[name]
        spread = (deviation_of_others + 1e-9) / (deviation + 1e-9)
        shift = abs(mean_of_others - mean) / (deviation + 1e-9)
        if spread > SPREAD or spread < 1 / SPREAD or shift > SHIFT:
            return wrong(
                f"The {name} of validation have mean {mean_of_others:.3g} and deviation {deviation_of_others:.3g},"
                f" those of training {mean:.3g} and {deviation:.3g}: the model is tried on what it never sees.",
                "Make both datasets by the same function, with the mean and deviation of training.",
            )
    return ok("Inputs of validation have the scale of those of training.")


def _never_ends(data):
    source = batches_of(data)
    return isinstance(source, tf.data.Dataset) and source.cardinality() == tf.data.INFINITE_CARDINALITY


def validation_apart(training):
    """Are examples of validation among those of training?

    Inputs are compared whole, by their bytes. Where few inputs are possible, some come again by chance: as many as in
    training itself, in which those that stand there once only tell how likely a new one is (Good 1953).
    """
    if training.validation is None:
        return None  # the line before says so
    if _never_ends(training.data):
        raise NotExamined("the training repeats its data for ever, and so each of its examples: leave out repeat()")
    seconds = max(1, SHARE_FOR_EXAMPLES * training.seconds_left)
    times = Counter(_inputs_of(passes(training.data)(), seconds))
    of_validation = passes(training.validation)
    next(iter(of_validation()), None)  # behind a shuffle the second pass has other examples than the first
    theirs = list(_inputs_of(of_validation(), seconds))
    if not theirs:
        raise NotExamined("validation has no examples")
    repeats = math.gcd(*times.values())  # of a dataset that repeats itself each example comes as often
    times = Counter({each: count // repeats for each, count in times.items()})
    read = times.total()
    share = float(np.mean([each in times for each in theirs]))
    by_chance = 1 - sum(count == 1 for count in times.values()) / read
    words = f"{share:.0%} of {len(theirs):,} examples of validation are among the {read:,} of training that were read"
    if share > by_chance + AMONG_TRAINING:
        return wrong(
            f"{words} (by chance: {by_chance:.0%}): the loss of validation does not tell what the model does with new"
            " ones.",
            "Divide the examples once, before you shuffle: behind shuffle(), take() and skip() divide them anew in each"
            " epoch, unless it has reshuffle_each_iteration=False.",
            "11",
        )
    return ok(f"{words}{f' (by chance: {by_chance:.0%})' if by_chance >= 0.01 else ''}.")


def _inputs_of(batches, seconds):
    """Yield a print of the inputs of each example, of as many as can be read in time."""
    until = time.monotonic() + seconds
    for count, batch in enumerate(batches):
        inputs = [_bytes_of(value) for value in keras.tree.flatten(_parts(batch)[0])]
        for rows in zip(*inputs, strict=True):
            yield hashlib.blake2b(b"".join(rows), digest_size=16).digest()
        if count and time.monotonic() > until:
            break


def _bytes_of(value):
    """Return the bytes of each example."""
    rows = np.ascontiguousarray(value)
    return [row.tobytes() if rows.dtype != object else "\0".join(map(str, np.ravel(row))).encode() for row in rows]


def _parts(batch):
    return keras.utils.unpack_x_y_sample_weight(batch)


def _has_scale(value):
    return value.dtype.is_floating or value.dtype == tf.uint8


def _means_and_deviations(inputs):
    """Return by their names the floating inputs' mean and standard deviation over all batches."""
    of_parts = {}
    for value in inputs:
        for name, part in named_parts(value, "inputs"):
            if _has_scale(part) and np.size(part):
                numbers = np.asarray(part).astype("float64")
                of_parts.setdefault(name, []).append((numbers.size, numbers.mean(), numbers.var()))
    return {name: _together(*zip(*parts, strict=True)) for name, parts in of_parts.items()}


def _together(sizes, means, variances):
    mean = np.average(means, weights=sizes)
    return mean, np.sqrt(np.average(variances + (np.array(means) - mean) ** 2, weights=sizes))


def _classes(batch):
    """Return the class of each example of a batch; None if its targets are no classes."""
    y = np.asarray(_parts(batch)[1])
    if (
        y.ndim == 2
        and y.shape[1] > 1
        and y.dtype.kind in "iuf"
        and np.allclose(y.sum(1), 1)
        and set(np.unique(y)) <= {0, 1}
    ):
        return y.argmax(1)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    whole = y.ndim == 1 and (y.dtype.kind in "biu" or (y.dtype.kind == "f" and (y == np.floor(y)).all()))
    return y if whole and len(np.unique(y)) <= max(2, len(y) // 2) else None


def _print(batch):
    digest = hashlib.blake2b(digest_size=16)
    for value in keras.tree.flatten(batch):
        if value is not None:
            digest.update(
                np.ascontiguousarray(value.numpy() if value.dtype != tf.string else value.numpy().astype("S"))
            )
    return digest.digest()


def _squeezed(shape):
    shape = tuple(shape)
    return shape[:-1] if len(shape) > 1 and shape[-1] == 1 else shape


CHECKS = {
    "the model takes the batch": runs,
    "finite values": finite,
    "targets": labels,
    "constant data": constant,
    "order of classes": order,
    "repeated batches": repeated,
    "second epoch": second_pass,
    "validation data": validation_alike,
    "validation apart": validation_apart,
}
