"""Checks of the data: do batches fit the model and the loss, and are they well shuffled?"""

import hashlib
import math
import time
from collections import Counter

import numpy as np

from bigtrain_nb.advanced.preflight import targets
from bigtrain_nb.advanced.preflight.report import Skipped, failure, ok, warning
from bigtrain_nb.advanced.preflight.targets import SHARE_FOR_BATCHES, FailingInputs, wrong_targets
from bigtrain_nb.advanced.preflight.training import (
    KINDS,
    NoExamples,
    count_examples,
    each_read,
    each_target,
    has_scale,
    is_one_hot,
    named_parts,
    named_tensors,
    never_ends,
    words_of,
)
from bigtrain_nb.advanced.shared.fit_data import passes
from bigtrain_nb.common.quiet import keras, tf

ONE_CLASS = 0.5
ONE_CLASS_BY_CHANCE = 0.05
"""Sorted: single-class batches exceed the first share, but not the second when shuffled, as with a rare class."""
FEW_CLASSES = 0.5
"""Least share of the classes of a shuffled batch. The order within a batch does not matter."""
REPEATED = 0.2
"""Share of batches that are equal to the previous one, in excess of chance: few batches may be possible."""
AMONG_TRAINING = 0.05
"""Share of validation examples that may overlap with training, in excess of chance."""
MOSTLY_REPEATED = 0.5
"""Share of training examples that occur again, above which an overlap cannot be told from chance."""
SHARE_FOR_EXAMPLES = 0.05
"""Share of the remaining time for reading the examples of each dataset."""
SPREAD = 3
SHIFT = 2
"""Validation compared with training: the ratio of deviations, and the distance of the means in deviations."""


def fails(training):
    """Return a failure if the model could not be built for the first batch, otherwise None."""
    if training.fails_with is None:
        return None
    given = ", ".join(
        f"{name} {tuple(each.shape)} {each.dtype.name}" for name, each in named_parts(training.x, "inputs")
    )
    return failure(
        f"A step on the first batch fails, with {given}: {training.fails_with}.",
        "Compare the shapes and dtypes of a batch with the model's inputs: next(iter(data)) and model.input_shape."
        " If the forward pass works, look at the loss, the metrics and the optimizer.",
        spoils=("step",),
    )


def unread(training):
    """Return a failure if reading the dataset ended with an error, otherwise None."""
    if training.unread is None:
        return None
    return failure(
        f"{len(training.batches)} batches can be read, and the next one fails: {training.unread}.",
        "Look at the example that it names, and at the functions that the dataset maps.",
    )


def runs(training):
    """Does the model accept the batches, and can it train on the first one?"""
    if training.fails_with is not None:
        return fails(training)
    outputs = None
    try:
        if not training.has_own_step:
            outputs = training.outputs(training.x)
        training.step(training.first)
        if training.has_own_step and not training.model.run_eagerly:  # in a graph, as fit runs it
            tf.function(training.model.train_step, autograph=False).get_concrete_function(training.first)
    except Skipped:
        raise
    except Exception as error:
        if _is_due_to_targets(training, 0):
            raise Skipped('a step fails because the targets are wrong, see "targets"') from error
        training.fails_with = words_of(error)
        return fails(training)
    failing, taken = _failing_batch(training)
    training.state.restore_values()
    if failing or training.unread is not None:
        return failing or unread(training)
    words = f"{training.examples} examples a batch; {taken} of {len(training.batches)} batches tried"
    if training.without_rows:
        words += f"; without a row for each example: {training.without_rows}"
    if outputs is not None:
        words += f"; outputs {', '.join(str(tuple(output.shape)) for output in keras.tree.flatten(outputs))}"
    return ok(f"{words}.")


def _failing_batch(training):
    """Return a failure for the first failing batch, or None, and how many batches passed within the time."""
    until = time.monotonic() + SHARE_FOR_BATCHES * training.seconds_left
    for place, batch in enumerate(training.batches[1:], 1):
        if time.monotonic() > until:
            return None, place
        try:
            if training.has_own_step:
                training.step(batch)
            else:
                training.loss_of(batch, training=True)
        except Skipped:
            return None, place
        except Exception as error:
            if _is_due_to_targets(training, place):
                return None, place
            count = len(training.batches)
            del training.batches[place:]  # one cause, one finding: other checks do without them
            failing = failure(
                f"Batch {place} of {count} fails, and the first does not: {words_of(error)}.",
                "Compare its shapes and values with those of the first.",
            )
            return failing, place
    return None, len(training.batches)


def _is_due_to_targets(training, place):
    """Return whether the targets of a batch are wrong, and a chosen check says so."""
    try:
        return "targets" in training.chosen and bool(wrong_targets(training, place))
    except (FailingInputs, Skipped):
        return False


def finite(training):
    """Is a value NaN or infinite?"""
    filled_in = None
    for place, batch in enumerate(training.batches):
        words = _not_finite_in(batch, place)
        try:
            trains = words and _step_is_finite(training, batch)
        except Exception as error:
            return warning(
                f"{words} Whether the model fills them in was not examined: {words_of(error)}.",
                "If it does not, one such value makes all weights NaN: repair or drop these examples in the dataset.",
                "11",
            )
        if trains:
            filled_in = filled_in or warning(
                f"{words} What is trained stays finite nevertheless.",
                "If the model fills in or masks such values on purpose, this is fine.",
                "11",
            )
        elif words:
            return failure(
                f"{words} One such value makes all weights NaN.",
                "Repair or drop these examples in the dataset. (A sample weight of 0 does not help: 0 times NaN"
                " is NaN.)",
                "11",
                spoils=() if place else ("loss",),
            )
    return filled_in or ok(f"All values of {len(training.batches)} batches are finite.")


def _not_finite_in(batch, place):
    """Describe the first part of a batch that has non-finite values; "" if none has."""
    for kind in KINDS:
        for name, (value,) in named_tensors([batch], kind).items():
            bad = ~np.isfinite(value.numpy()) if value.dtype.is_floating or value.dtype.is_complex else np.zeros(1)
            if bad.any():
                first = tuple(int(i) for i in np.argwhere(bad)[0])
                return f"{bad.sum():,} of {bad.size:,} {name} of batch {place} are not finite, the first at {first}."
    return ""


def _step_is_finite(training, batch):
    """Return whether loss and gradients of a batch are finite, or the weights after a custom step."""
    if training.has_own_step:
        training.step(batch)
        weights = [weight.numpy() for weight in training.model.trainable_variables]
        training.state.restore_values()
        return all(np.isfinite(weight).all() for weight in weights)
    loss, gradients = training.gradients(batch, training=True)
    return math.isfinite(loss) and all(np.isfinite(np.asarray(each)).all() for each in gradients.values())


def constant(training):
    """Do all examples have the same targets, or the same inputs?"""
    examples = sum(count_examples(batch) for batch in training.batches)
    if examples < 2:
        raise Skipped("only one example was read")
    differ = []
    for name in ("targets", "inputs"):
        tensors = named_tensors(training.batches, name)
        of_all = {each: list(map(np.asarray, values)) for each, values in tensors.items() if values[0].shape.rank}
        same = [each for each, values in of_all.items() if _is_constant(values)]
        if same and (name == "targets" or len(same) == len(of_all)):
            return warning(
                f"The {' and the '.join(same)} of all {examples:,} examples that were read are the same: there is"
                " nothing to learn.",
                "Look at the function that makes them, and at how the dataset is shuffled.",
            )
        differ += [name] if of_all else []
    if not differ:
        raise Skipped("the batch has only scalars")
    return ok(f"{' and '.join(differ).capitalize()} differ from example to example.")


def _is_constant(batches):
    """Return whether all rows of all batches of one tensor are equal."""
    first = batches[0]
    if len({each.shape[1:] for each in batches}) > 1:
        return False
    return all((each == first[:1]).all() for each in batches)


def order(training):
    """Are examples sorted by the class of any of the targets?"""
    return each_target(training, _order_of)


def _order_of(name, batches):
    """Return a finding on the order of the classes in the batches; None for targets that are not classes."""
    labels = list(map(_classes, batches))
    where = "" if name == "targets" else f" of {name}"
    if any(each is None for each in labels):
        return None
    if len(labels) < 3:
        raise Skipped("with fewer than 3 batches the order of classes cannot be determined")
    shuffled = np.random.default_rng(0).permutation(np.concatenate(labels))
    if len(set(shuffled.tolist())) < 2:
        raise Skipped("all examples that were read are of one class, so there is no order")
    if max(map(len, labels)) < 4:
        raise Skipped("with fewer than 4 examples per batch the order of classes cannot be determined")
    split = np.split(shuffled, np.cumsum([len(each) for each in labels])[:-1])
    counts, counts_by_chance = (np.array([len(set(each.tolist())) for each in parts]) for parts in (labels, split))
    one_class, by_chance = (counts == 1).mean(), (counts_by_chance == 1).mean()
    kinds, kinds_by_chance = counts.mean(), counts_by_chance.mean()
    advice = "Shuffle before you batch, over more examples than a class has: data.shuffle(n), or shuffle the file list."
    if one_class > ONE_CLASS and by_chance < ONE_CLASS_BY_CHANCE:
        return failure(
            f"Examples are sorted by class{where}: {one_class:.0%} of {len(labels)} batches hold only one class"
            f" (shuffled: {by_chance:.0%}).",
            advice,
            "01",
        )
    classes = f"a batch holds {kinds:.3g} classes on average, a shuffled one {kinds_by_chance:.3g}"
    if kinds < FEW_CLASSES * kinds_by_chance:
        return warning(f"Few classes{where} at a time: {classes}.", f"If this is not intended: {advice}", "01")
    return ok(f"Classes{where} are mixed: {classes}.")


def repeated(training):
    """Are batches repeated?"""
    if len(training.batches) < 3:
        raise Skipped("with fewer than 3 batches repetition cannot be detected")
    batches = ([each for each in keras.tree.flatten(batch) if each is not None] for batch in training.batches)
    prints = [_digest(row for each in batch for row in _bytes_of(each)) for batch in batches]
    again = np.mean([one == before for one, before in zip(prints[1:], prints, strict=False)])
    if len(set(prints)) == 1:
        return warning(
            f"All {len(prints)} batches that were read are identical.",
            "Right for full-batch training. Otherwise look for a batch kept outside of the loop, or repeat() of one.",
        )
    by_chance = sum(count * (count - 1) for count in Counter(prints).values()) / (len(prints) * (len(prints) - 1))
    if again - by_chance >= REPEATED:
        return failure(
            f"{again:.0%} of {len(prints)} batches are equal to the one before.",
            "Look at what the dataset does between two batches.",
        )
    return ok(f"{len(set(prints))} of {len(prints)} batches are different.")


def second_pass(training):
    """Does the dataset yield batches again in the second epoch?"""
    again = next(iter(passes(training.data)()), None)
    if again is None:
        return failure(
            f"The dataset yielded {len(training.batches)} batches, but is empty when it is read again: from the second"
            " epoch on there is nothing to train on.",
            "Give from_generator a function that starts a new pass, not an iterator that was already started.",
        )
    return ok("The dataset begins again when it is read again.")


def validation_alike(training):
    """Do validation inputs have the scale of training inputs?"""
    if training.validation is None:
        raise Skipped("give validation= to compare its inputs with those of training")
    try:
        others = list(each_read(training.validation, len(training.batches), max(1, 0.1 * training.seconds_left)))
    except NoExamples:
        return failure(
            "Validation yields no examples: there is no val_loss, and EarlyStopping, say, does nothing.",
            "Look at next(iter(validation)), and check whether all examples went into training.",
        )
    ours, theirs = _means_and_deviations(training.batches), _means_and_deviations(others)
    only_one = [f"{name} in training" for name in ours.keys() - theirs.keys()]
    only_one += [f"{name} in validation" for name in theirs.keys() - ours.keys()]
    if only_one:
        return failure(
            "Validation inputs have another structure or dtype than training inputs: only these are floating-point:"
            f" {', '.join(sorted(only_one))}.",
            "Build both datasets with the same function.",
        )
    if not ours:
        raise Skipped("no inputs are floating numbers or uint8, so that they have no scale")
    for name, of_training in ours.items():
        if not np.isfinite(theirs[name]).all():
            return failure(
                f"The {name} of validation contain non-finite values: val_loss will be NaN.",
                "Repair or drop these examples in the dataset.",
            )
        if not np.isfinite(of_training).all():
            raise Skipped(f"the {name} of training contain non-finite values")
        if _is_another_scale(of_training, theirs[name]) and not _is_rare(name, training.batches, others):
            words = "The {} of validation have mean {:.3g} and deviation {:.3g}, those of training {:.3g} and {:.3g}"
            words = words.format(name, *theirs[name], *of_training)
            if _drifts(training, name):
                return warning(
                    f"{words}. But those of training keep changing from batch to batch, and only"
                    f" {len(training.batches)} batches were compared.",
                    "Shuffle the training data, and check again.",
                )
            return failure(
                f"{words}: the model is evaluated on data unlike any that it sees.",
                "Build both datasets with the same function, with the mean and deviation of training.",
            )
    scaled = ", ".join(f"the {name}" for name in ours)
    return ok(f"In {len(others)} batches of validation {scaled} have the scale of those of training.")


def _is_another_scale(one, other):
    """Compare two pairs of mean and deviation."""
    deviation = one[1] + 1e-9
    spread = (other[1] + 1e-9) / deviation
    return spread > SPREAD or spread < 1 / SPREAD or abs(other[0] - one[0]) > SHIFT * deviation


def _is_rare(name, *datasets):
    """Return whether an input of one number is constant in one dataset, and the other has that number too: a flag."""
    both = [np.concatenate(list(map(np.ravel, named_tensors(each, "inputs")[name]))) for each in datasets]
    is_number = all(math.prod(each.shape[1:]) == 1 for each in named_tensors(datasets[0], "inputs")[name])
    return is_number and any(len(set(one)) == 1 and one[0] in other for one, other in (both, both[::-1]))


def _drifts(training, name):
    """Return whether an input's scale differs between the first and second half of the training batches."""
    half = len(training.batches) // 2
    one, two = (_means_and_deviations(each) for each in (training.batches[:half], training.batches[half:]))
    return name in one and name in two and _is_another_scale(one[name], two[name])


def validation_apart(training):
    """Are validation examples also in the training data?

    Inputs are compared by all their bytes. If few inputs are possible, some recur by chance: the expected share is
    estimated from the training data, where examples that occur once give the probability of a new one (Good 1953).
    """
    if training.validation is None:
        return None  # the previous finding says so
    if never_ends(training.data):
        raise Skipped("the training dataset repeats all its examples forever: leave out repeat()")
    if training.without_rows:
        raise Skipped(f"it is unknown which rows belong to an example: {training.without_rows}")
    seconds = max(1, SHARE_FOR_EXAMPLES * training.seconds_left)
    times = Counter(_inputs_of(passes(training.data)(), seconds))
    of_validation = passes(training.validation)
    next(iter(of_validation()), None)  # after a shuffle, the second pass has other examples than the first
    theirs = list(_inputs_of(of_validation(), seconds))
    if not theirs:
        raise Skipped("validation has no examples")
    repeats = math.gcd(*times.values())  # in a repeated dataset, examples occur equally often
    times = Counter({each: count // repeats for each, count in times.items()})
    read = times.total()
    share = float(np.mean([each in times for each in theirs]))
    by_chance = 1 - sum(count == 1 for count in times.values()) / read
    words = f"{share:.0%} of {len(theirs):,} examples of validation are among the {read:,} of training that were read"
    if share > by_chance + AMONG_TRAINING:
        return failure(
            f"{words} (at random: {by_chance:.0%}): the validation loss does not show how the model does on new"
            " examples.",
            "Split the examples once, before you shuffle: after shuffle(), take() and skip() split them differently"
            " in each epoch, unless it has reshuffle_each_iteration=False.",
            "11",
        )
    if by_chance > MOSTLY_REPEATED:
        raise Skipped(
            f"{by_chance:.0%} of the {read:,} examples of training occur more than once, so {share:.0%} of validation"
            " may be among them by chance: leave out repeat() and oversampling"
        )
    return ok(f"{words}{f' (at random: {by_chance:.0%})' if by_chance >= 0.01 else ''}.")


def _inputs_of(batches, seconds):
    """Yield a hash of the inputs of each example, until the time is over."""
    until = time.monotonic() + seconds
    for count, batch in enumerate(batches):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
        inputs = [_bytes_of(value) for value in keras.tree.flatten(x) if np.ndim(value)]
        for rows in zip(*inputs, strict=True):
            yield _digest(rows)
        if count and time.monotonic() > until:
            break


def _bytes_of(value):
    """Return the bytes of each example, independent of the dtype for equal values."""
    rows = np.ascontiguousarray(value)
    if rows.dtype.kind == "f" or rows.dtype in ("uint8", tf.bfloat16.as_numpy_dtype):
        rows = rows.astype("float32")
    elif rows.dtype.kind in "biu":
        rows = rows.astype("int64")
    return [row.tobytes() if rows.dtype != object else "\0".join(map(str, np.ravel(row))).encode() for row in rows]


def _means_and_deviations(batches):
    """Return {name: (mean, standard deviation)} of floating-point and uint8 inputs over all batches."""
    found = {}
    for name, parts in named_tensors(batches, "inputs").items():
        numbers = (np.asarray(part).astype("float64") for part in parts if has_scale(part) and np.size(part))
        of_parts = np.array([(each.size, each.mean(), each.var()) for each in numbers])
        if len(of_parts):
            sizes, means, variances = of_parts.T
            mean = np.average(means, weights=sizes)
            found[name] = mean, np.sqrt(np.average(variances + (means - mean) ** 2, weights=sizes))
    return found


def _classes(y):
    """Return the class of each example of a batch; None if its targets are not classes."""
    if is_one_hot(y):
        return y.argmax(1)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    whole = y.ndim == 1 and (y.dtype.kind in "biu" or (y.dtype.kind == "f" and (y == np.floor(y)).all()))
    return y if whole and len(np.unique(y)) <= max(2, len(y) // 2) else None


def _digest(parts):
    return hashlib.blake2b(b"".join(parts), digest_size=16).digest()


CHECKS = {
    "the model takes the batch": runs,
    "finite values": finite,
    **targets.CHECKS,
    "constant data": constant,
    "order of classes": order,
    "repeated batches": repeated,
    "second epoch": second_pass,
    "validation data": validation_alike,
    "train/validation overlap": validation_apart,
}
