"""Checks for leaks: outputs that depend on inputs that they must not see. Inputs are changed, and outputs compared.

Unlike gradients, this works with integers, dictionaries and NumPy layers, and through an argmax.
"""

from itertools import product

import numpy as np

from bigtrain_nb.advanced.preflight.report import Skipped, failure, ok, warning, worst_of
from bigtrain_nb.advanced.preflight.training import is_one_hot, largest_change, named_parts
from bigtrain_nb.advanced.shared.layers import calls_seen, layers_and_operations
from bigtrain_nb.common.keras_compat import layers_within, mask_of
from bigtrain_nb.common.quiet import keras, tf

CALLED_IN_ANY_WAY = "which may call its parts in any way"
LEAK = 1e-4
LEAK_16_BITS = 2e-2
"""Relative to the largest output. 44 healthy models gave exactly 0; in 16 bits the order of sums may matter."""
SAME_TOKENS = 0.95
"""Share of targets that equal inputs at another position: a few do by chance."""
OF_TRAINING = (
    keras.layers.Dropout,
    keras.layers.AlphaDropout,
    keras.layers.GaussianDropout,
    keras.layers.GaussianNoise,
)
"""Layers that must be inactive in evaluation."""
FURTHEST = 4
"""Largest offset in the search for targets among the inputs."""
FITTED = ", up to a factor and a constant,"
MOST_COLUMNS = 100
"""Columns of an input [examples, length, columns] that are compared with targets."""
GRADIENT_OF_PADDING = 1e-6
"""Share of the loss's gradient at padded positions; healthy models gave exactly 0."""


def across_examples(training):
    """Do an example's outputs depend on other examples of the batch?"""
    training.refuse_own_step(CALLED_IN_ANY_WAY)
    examples = training.examples
    if examples < 4:
        raise Skipped(f"the batch has only {examples} examples")

    # Next to tensors with other rows, integers may assign these rows to examples, such as lengths of graphs
    kept = training.without_rows
    x = keras.tree.map_structure(lambda value: _with_other_ends(training, value, keeps_counts=bool(kept)), training.x)
    if all(one is two for one, two in zip(*map(keras.tree.flatten, (x, training.x)), strict=True)):
        words = f"it is unknown which rows belong to which example: {kept}" if kept else "all examples are the same"
        raise Skipped(words)
    before, after = training.reproducible_outputs(), training.outputs_again(x)
    if not all(map(training.has_rows, before)):
        raise Skipped("the outputs have no row for each example")

    def of_others(output):
        is_of_pairs = len(output.shape) == 2 and output.shape[1] == examples  # as in contrastive losses
        return output[1:-1, 1:-1] if is_of_pairs else output[1:-1]

    largest = largest_change(map(of_others, before), map(of_others, after))
    if largest > most_by_rounding(training.model):
        return failure(
            f"Outputs of examples 1 to {examples - 2} change by {largest:.1%} when examples 0 and {examples - 1} are"
            " replaced, though nothing trains: examples are mixed.",
            "Look for a reshape, a mean or a softmax along axis 0. A reshape must keep it: put -1 first, and"
            " transpose before you merge other axes.",
            "11",
        )
    left_out = f" Not replaced: {kept}." if kept else ""
    return ok(f"Outputs of an example do not change in evaluation when others are replaced.{left_out}")


def _with_other_ends(training, value, keeps_counts):
    """Return an input tensor with its first and last example replaced, or unchanged if they cannot be."""
    if not training.has_rows(value) or (keeps_counts and not value.dtype.is_floating):
        return value
    rows = value.numpy()
    other = rows.copy()
    other[0], other[-1] = rows[len(rows) // 2], rows[1]
    if value.dtype.is_floating:
        other[[0, -1]] += 0.1 * (rows.std() or 1)
    return value if np.array_equal(other, rows) else tf.constant(other, value.dtype)


def its_answer(training):
    """Are the targets among the inputs that an output depends on?"""
    found = [
        _answer_within(training, name, y)
        for name, y in named_parts(training.y, "targets")
        if len(y.shape) >= 2 and y.shape[1] >= 4 and y.dtype != tf.string
    ]
    return worst_of(found)


def _answer_within(training, targets, y):
    """Return a finding if one tensor of targets is among the inputs, otherwise None."""
    inputs = keras.tree.flatten(training.x)
    counted = _counted(training, y.shape)
    answer = _place_of_answer(inputs, y, counted)
    if answer is None:
        return None
    place, copy, offset, share = answer
    value = inputs[place]
    name = next(name for name, each in named_parts(training.x, "inputs") if each is value)
    name = f"{name}{copy}"
    targets = f"T{targets[1:]}"
    seen = _sees_later(training, inputs, place)
    threshold = most_by_rounding(training.model)
    if offset == 1 and seen > threshold:
        return failure(
            f"{targets} at t are the {name} at t+1 ({share:.0%}), and outputs at t change by {seen:.0%} when the {name}"
            " after t change: label leakage. The loss will fall, and the model will be useless.",
            "Hide later positions: use_causal_mask=True in attention, padding='causal' in Conv1D, no Bidirectional.",
            "11",
        )
    if offset == 0 and seen <= threshold and not copy and _sees_itself(training, inputs, place) > threshold:
        return failure(
            f"{targets} at t are the {name} at t ({share:.0%}) of a causal model: it learns to copy.",
            "Shift them: inputs are tokens[:, :-1], targets tokens[:, 1:].",
        )
    if offset >= 2 and y.dtype.is_floating:
        return warning(
            f"{targets} at t are the {name} at t+{offset} ({share:.0%}), as in a forecast {offset} steps ahead.",
            "If one step was meant, shift once: in the dataset or in the model, not in both.",
            "10",
        )
    if offset >= 2:
        return failure(
            f"{targets} at t are the {name} at t+{offset} ({share:.0%}): they are shifted {offset - 1} too far.",
            "Shift once: in the dataset or in the model, not in both.",
            "10",
        )
    if offset == 0 and (len(inputs) > 1 or copy):
        return warning(
            f"{targets} at t are the {name} at t ({share:.0%}), next to other inputs, and outputs at t change by"
            f" {seen:.0%} with what comes after t.",
            "Unless it is an autoencoder, this input is the answer: leave it out.",
            "11",
        )
    if seen <= threshold:
        return ok(
            f"{targets} at t are the {name} at t+{offset}, and outputs at t do not change with what comes after t."
        )
    return ok(
        f"{targets} at t are the {name} at t, and outputs at t change by {seen:.0%} with what comes after t, as in an"
        " autoencoder."
    )


def evaluation(training):
    """Do outputs in evaluation depend on random numbers?"""
    training.refuse_own_step(CALLED_IN_ANY_WAY)
    acting = set()

    def note(layer, call, inputs, *args, **kwargs):
        outputs = call(inputs, *args, **kwargs)
        is_same_kind = tf.is_tensor(inputs) and tf.is_tensor(outputs) and inputs.shape == outputs.shape
        if is_same_kind and np.any(np.asarray(inputs) != np.asarray(outputs)):
            acting.add(layer.name)
        return outputs

    with calls_seen([layer for layer in layers_within(training.model) if isinstance(layer, OF_TRAINING)], note):
        before, after, moved = training.outputs_of_two_calls()
    change = largest_change(before, after)
    if change <= most_by_rounding(training.model):
        state = f", after {', '.join(moved[:4])} are restored, which a call in evaluation changes" if moved else ""
        return ok(f"The same batch gives the same outputs twice in evaluation{state}.")
    named = f" {', '.join(sorted(acting)[:4])} also drops or adds noise with training=False." if acting else ""
    return warning(
        f"The same batch in evaluation gives outputs that differ by {change:.0%} from one call to the next.{named}",
        "Pass training on to dropout and noise, and write no training=True in call; tf.nn.dropout does not know when"
        " it is evaluation. If this is intended, as in Monte Carlo dropout or a VAE, leave it.",
    )


def padding(training):
    """Does padding count in the loss?"""
    name, tokens = _padded_input(training)
    if tokens is None:
        return None
    where = "" if name == "inputs" else f" of {name}"
    padded = _padded(tokens)
    gradients = _at_tokens(training, training.gradients_at(training.outputs(training.x)), tokens)
    if not gradients:
        raise Skipped("no gradient of the loss reaches the outputs: it is computed from something else")
    shares = []
    for gradient in gradients:
        sizes = tf.reduce_sum(tf.abs(tf.cast(gradient, tf.float32)), range(2, len(gradient.shape))).numpy()
        shares.append(sizes[padded].sum() / max(sizes.sum(), 1e-30))
    share = max(shares)
    if share > GRADIENT_OF_PADDING:
        if (tokens[~padded] == 0).any():
            return warning(
                f"{padded.mean():.0%} of the positions{where} are 0 at the ends of rows, and give {share:.0%} of the"
                " loss's gradient. 0 occurs elsewhere too, so it may be an ordinary token.",
                "If it is padding there, give a sample_weight that is 0 at padding.",
                "11",
            )
        lost = _mask_lost_at(training)
        behind = f" A layer makes a mask, but it is lost behind {lost}." if lost else ""
        return failure(
            f"{padded.mean():.0%} of the positions{where} are padding (0), and give {share:.0%} of the loss's gradient:"
            f" padding is trained.{behind}",
            "Give a sample_weight that is 0 at padding. It cannot get lost, as masks do at x + layer(x).",
            "11",
        )
    return ok(f"{padded.mean():.0%} of the positions{where} are padding, and add nothing to the loss.")


def most_by_rounding(model):
    """Return the largest change of outputs that rounding explains, relative to the largest output."""
    in_32_bits = all(layer.compute_dtype in ("float32", None) for layer in layers_within(model))
    return LEAK if in_32_bits and model.compute_dtype == "float32" else LEAK_16_BITS


def _counted(training, shape):
    counted = np.ones(shape[:2], bool)
    weight = training.weight
    if weight is not None and not keras.tree.is_nested(weight) and weight.shape[:2] == shape[:2]:
        counted = weight.numpy().reshape([*shape[:2], -1]).any(-1)
    return counted


def _place_of_answer(inputs, y, counted):
    """Return the index of the input with the targets, a description of the copy, its offset and share of positions.

    None if there is none. Equal values take precedence over those up to a factor and a constant, then small offsets.
    """
    y = _as_classes(y.numpy())
    found = []
    for place, value in enumerate(inputs):
        if value is None or value.dtype == tf.string or value.shape[:2] != y.shape[:2]:
            continue
        x = value.numpy()
        for copy, each in _copies(x, y):
            for fits, offset in product((False, True), range(FURTHEST + 1)):
                share = _share_equal(each, y, counted, offset, fits)
                if share >= SAME_TOKENS:
                    found.append((fits, offset, place, copy + FITTED * fits, share))
                    break
    if not found:
        return None
    _, offset, place, copy, share = min(found, key=lambda each: each[:3])
    return place, copy, offset, share


def _as_classes(values):
    """Return classes [examples, length] for one-hot values [examples, length, classes], otherwise the values."""
    if values.ndim == 3 and values.shape[2] > 2 and set(np.unique(values)) == {0, 1} and (values.sum(-1) == 1).all():
        return values.argmax(-1)
    return values[:, :, 0] if values.ndim == 3 and values.shape[2] == 1 else values


def _copies(x, y):
    """Yield (description, values) of an input and its columns that have the shape of the targets."""
    whole = _as_classes(x)
    if whole.ndim == y.ndim and (y.ndim == 2 or whole.shape == y.shape):
        yield "", whole
    elif y.ndim == 2 and y.dtype.kind == "f" and x.ndim == 3:
        for column in range(min(x.shape[2], MOST_COLUMNS)):
            yield f", column {column},", x[:, :, column]


def _share_equal(x, y, counted, offset, fits):
    """Return the share of counted, unpadded positions t where y[t] equals x[t + offset].

    ``fits``: compare floating-point values up to a factor and a constant.
    """
    length = y.shape[1] - offset
    x, y, counted = x[:, offset:], y[:, :length], counted[:, :length]
    if y.dtype.kind == "f" and x.dtype.kind == "f":
        equal = np.isclose(_fitted(x, y, counted) if fits else x, y, rtol=1e-4, atol=1e-6)
    else:
        equal = x == y
        if y.ndim == 2:
            counted = counted & (y != 0)
    equal = equal.reshape(*equal.shape[:2], -1).all(-1)
    constant = counted.any() and len(np.unique(y[counted])) < 3  # constant values are equal at any offset
    return 0.0 if constant or not counted.any() else float(equal[counted].mean())


def _fitted(x, y, counted):
    """Return the least-squares fit of ``y`` by a factor times ``x`` plus a constant."""
    given, wanted = (each[counted].astype("float64").ravel() for each in (x, y))
    if not np.isfinite(given).all() or not np.isfinite(wanted).all() or given.size < 3 or given.std() == 0:
        return x
    factor = np.mean((given - given.mean()) * (wanted - wanted.mean())) / given.var()
    return factor * (x - given.mean()) + wanted.mean()


def _sees_later(training, inputs, place):
    """Return how much outputs of the first half change when the second half of the inputs changes."""
    middle = inputs[place].shape[1] // 2
    return _change_by(training, inputs, place, [slice(middle, None)], [slice(middle)])


def _sees_itself(training, inputs, place):
    """Return how much the output in the middle changes with the input there: of a sequence a position, or a pixel."""
    shape = inputs[place].shape
    middle = [slice(size // 2, size // 2 + 1) for size in shape[1 : max(2, len(shape) - 1)]]
    return _change_by(training, inputs, place, middle, middle)


def _change_by(training, inputs, place, changing, seen):
    """Return how much outputs at ``seen`` change when an input changes at ``changing``: slices of axis 1 and on."""
    value = inputs[place].numpy()
    changing, seen = (slice(None), *changing), (slice(None), *seen)
    before = value[changing]
    other = value.copy()
    other[changing] = np.roll(before, 1, 0) if len(value) > 1 else before[:, ::-1]
    if value.dtype.kind == "f":
        other[changing] += value.std()
    else:  # not to 0, which may be padding and change the mask
        highest = max(1, int(value.max()))
        other[changing] = np.where(before > 0, before % highest + 1, before)
    changed = list(inputs)
    changed[place] = tf.constant(other, inputs[place].dtype)
    before = training.reproducible_outputs()
    after = training.outputs_again(keras.tree.pack_sequence_as(training.x, changed))
    compared = [
        [each[seen] for each in outputs if each.shape[1 : len(seen)] == value.shape[1 : len(seen)]]
        for outputs in (before, after)
    ]
    if not compared[0]:
        raise Skipped("the outputs have no row for each position of a sequence")
    return largest_change(*compared)


def _padded_input(training):
    """Return name and tokens [examples, length] of the padded input that corresponds to the outputs; None without one.

    Of several sequences, such as source and translation, it is the one padded like the targets or their sample weights.
    Raises Skipped if that is ambiguous.
    """
    sequences = {}
    for name, value in named_parts(training.x, "inputs"):
        if value.dtype.is_integer and len(value.shape) == 2 and value.shape[1] > 2 and training.has_rows(value):
            sequences[name] = value.numpy()
    kinds = {name: tokens for name, tokens in sequences.items() if tokens.max() <= 1}  # such as masks and segment ids
    sequences = {name: tokens for name, tokens in sequences.items() if name not in kinds} or kinds
    padded = {name: tokens for name, tokens in sequences.items() if _has_padding(tokens)}
    if not padded:
        return None, None
    training.refuse_own_step()
    outputs = keras.tree.flatten(training.outputs(training.x))
    padded = {name: tokens for name, tokens in padded.items() if _at_tokens(training, outputs, tokens)}
    if not padded:
        return None, None
    for name, tokens in padded.items():
        if len(sequences) == 1 or any(_is_padded_like(each, tokens) for each in _beside(training) if each.ndim > 1):
            return name, tokens
    raise Skipped(f"it is unknown whether outputs belong to the padded positions of {' or '.join(padded)}")


def _beside(training):
    """Return the targets and sample weights as arrays."""
    return [np.asarray(each) for part in (training.y, training.weight) for _, each in named_parts(part, "")]


def _at_tokens(training, values, tokens):
    """Return those of the outputs, or the gradients at them, with a row for each token."""
    found = [each for each in values if each is not None and tuple(each.shape[:2]) == tokens.shape]
    if any(each.shape[:2] == tokens.shape and not is_one_hot(each) for each in _beside(training)):
        return found
    return [each for each in found if len(each.shape) > 2]  # the second of two axes is classes


def _has_padding(tokens):
    return (_padded(tokens).sum(1) >= 2).sum() >= min(2, len(tokens)) and (tokens != 0).any()


def _is_padded_like(targets, tokens):
    """Return whether the padding of nearly all rows of targets or weights is that of tokens, or one longer."""
    targets = targets.reshape([*targets.shape[:2], -1]).max(-1)
    if targets.shape != tokens.shape:
        return False
    targets = np.where(targets < 0, 0, targets)  # an ignored class, such as -1 or -100
    later = _padded(targets).sum(1) - _padded(tokens).sum(1)
    return ((later == 0) | (later == 1)).mean() >= SAME_TOKENS


def _padded(tokens):
    """Return a mask of the zeros at the end of each row, or of those at the start if these are more."""
    at_end = np.flip(np.cumsum(np.flip(tokens != 0, 1), 1), 1) == 0
    at_start = np.cumsum(tokens != 0, 1) == 0
    return at_end if at_end.sum() >= at_start.sum() else at_start


def _mask_lost_at(training):
    """Return the name of the first operation that gets a mask and does not pass it on; "" without any mask.

    Keras drops masks at ``x + layer(x)``, and at a layer without supports_masking.
    """
    calls = []
    around = []

    def note(layer, call, *args, **kwargs):
        given = [each for each in keras.tree.flatten((args, kwargs)) if tf.is_tensor(each)]
        rows = [each for each in given if each.dtype.is_floating and len(each.shape) >= 3]
        if rows and not around:  # not inner calls, which may get the mask in other ways
            calls.append((layer.name, any(mask_of(each) is not None for each in rows)))
        if not isinstance(layer, keras.Model):
            around.append(layer)
        try:
            return call(*args, **kwargs)
        finally:
            if not isinstance(layer, keras.Model):
                around.pop()

    called = [each for each in layers_and_operations(training.model) if each is not training.model]
    with calls_seen(called, note):
        training.outputs(training.x)
    for (before, has), (name, has_next) in zip(calls, calls[1:], strict=False):
        if has and not has_next:
            return f"{before}, so that {name} gets none"
    makes_one = any(getattr(layer, "mask_zero", False) for layer in layers_within(training.model))
    return calls[0][0] if makes_one and calls and not calls[0][1] else ""


CHECKS = {
    "cross-example leakage": across_examples,
    "label leakage": its_answer,
    "evaluation": evaluation,
    "padding": padding,
}
