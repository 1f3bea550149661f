"""Checks for leaks: an output that depends on what it must not. Inputs are changed, and outputs compared.

That works with integers, dictionaries and layers of NumPy too, and sees what goes through an argmax, where gradients
would not.
"""

import numpy as np

from bigtrain_nb.common.keras_gaps import calls_seen, layers_and_operations, layers_within, mask_of
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.preflight.report import NotExamined, look, ok, wrong
from bigtrain_nb.preflight.training import change_of, named_parts

LEAK = 1e-4
LEAK_16_BITS = 2e-2
"""Of the largest output. 44 healthy models gave exactly 0; in 16 bits another order of sums may be seen."""
SAME_TOKENS = 0.95
"""Share of targets that are inputs at another place: by chance a few are."""
OF_TRAINING = (
    keras.layers.Dropout,
    keras.layers.AlphaDropout,
    keras.layers.GaussianDropout,
    keras.layers.GaussianNoise,
)
"""Layers that are to do nothing in evaluation."""
FURTHEST = 4
"""Places by which targets are looked for among the inputs."""
GRADIENT_OF_PADDING = 1e-6
"""Share of the loss's gradient at padded places; healthy models gave exactly 0."""


def across_examples(training):
    """Do outputs of an example depend on other examples of the batch?"""
    if training.has_own_step:
        raise NotExamined("the model has a train_step of its own, which may call its parts in any way")
    examples = training.examples
    if examples < 4:
        raise NotExamined(f"the batch has only {examples} examples")

    def changed(value):
        value = value.numpy()
        other = value.copy()
        other[0], other[-1] = value[examples // 2], value[1]
        if value.dtype.kind in "iubO":  # whole numbers and strings
            return tf.constant(other)
        return tf.constant(other + 0.1 * value.std())

    def only_ends(value, other):
        return tf.concat([other[:1], value[1:-1], other[-1:]], 0)

    x = keras.tree.map_structure(lambda value: only_ends(value, changed(value)), training.x)
    training.refuse_random_outputs()
    before = keras.tree.flatten(training.outputs_again(training.x))
    after = keras.tree.flatten(training.outputs_again(x))
    if any(len(output.shape) == 0 or output.shape[0] != examples for output in before):
        raise NotExamined("the outputs have no row for each example")
    largest = 0.0
    for one, two in zip(before, after, strict=True):
        one, two = one[1:-1], two[1:-1]
        if len(one.shape) == 2 and one.shape[1] == examples:  # each example beside each other: as in contrastive losses
            one, two = one[:, 1:-1], two[:, 1:-1]
        largest = max(largest, change_of(one, two))
    if largest > _threshold(training.model):
        return wrong(
            f"Outputs of examples 1 to {examples - 2} change by {largest:.1%} when examples 0 and {examples - 1} are"
            " replaced, though nothing trains: examples are mixed.",
            "Look for a reshape, a mean or a softmax along axis 0. A reshape must keep it: (-1, ...) in front, and"
            " transpose before you join other axes.",
            "11",
        )
    return ok("Outputs of an example do not change when others are replaced.")


def its_answer(training):
    """Are the targets among the inputs that an output may see?"""
    if training.y is None or keras.tree.is_nested(training.y):
        return None
    y = training.y.numpy()
    if y.ndim < 2 or y.shape[1] < 4:
        return None
    counted = _counted(training, y)
    inputs = keras.tree.flatten(training.x)
    answer = None
    for place, value in enumerate(inputs):
        if value.shape[:2] != training.y.shape[:2] or len(value.shape) != y.ndim or value.dtype == tf.string:
            continue
        for offset in range(FURTHEST + 1):
            share = _share_equal(value.numpy(), y, counted, offset)
            if share >= SAME_TOKENS:
                answer = place, offset, share
                break
    if answer is None:
        return None
    place, offset, share = answer
    name, _ = named_parts(training.x, "inputs")[place]
    seen = _sees_later(training, inputs, place)
    threshold = _threshold(training.model)
    if offset == 1 and seen > threshold:
        return wrong(
            f"Targets at t are the {name} at t+1 ({share:.0%}), and outputs at t change by {seen:.0%} when the {name}"
            " after t change: it sees its answer. The loss will fall, and the model will be useless.",
            "Let nothing see later places: use_causal_mask=True in attention, padding='causal' in Conv1D, no"
            " Bidirectional.",
            "11",
        )
    if offset == 0 and seen <= threshold:
        return wrong(
            f"Targets at t are the {name} at t ({share:.0%}) of a causal model: it learns to copy.",
            "Shift them: inputs are tokens[:, :-1], targets tokens[:, 1:].",
        )
    if offset >= 2 and training.y.dtype.is_floating:
        return look(
            f"Targets at t are the {name} at t+{offset} ({share:.0%}), as in a forecast {offset} steps ahead.",
            "If one step was meant, shift once: in the dataset, or in the model, and not in both.",
            "10",
        )
    if offset >= 2:
        return wrong(
            f"Targets at t are the {name} at t+{offset} ({share:.0%}): they are shifted {offset - 1} too far.",
            "Shift once: in the dataset, or in the model, and not in both.",
            "10",
        )
    if seen <= threshold:
        return ok(f"Targets at t are the {name} at t+{offset}, and outputs at t do not change with what comes after t.")
    return ok(
        f"Targets at t are the {name} at t, and outputs at t change by {seen:.0%} with what comes after t, as in an"
        " autoencoder."
    )


def evaluation(training):
    """Do outputs in evaluation depend on random numbers?"""
    if training.has_own_step:
        raise NotExamined("the model has a train_step of its own, which may call its parts in any way")
    acting = set()

    def note(layer, call, inputs, *args, **kwargs):
        outputs = call(inputs, *args, **kwargs)
        is_same_kind = tf.is_tensor(inputs) and tf.is_tensor(outputs) and inputs.shape == outputs.shape
        if is_same_kind and np.any(np.asarray(inputs) != np.asarray(outputs)):
            acting.add(layer.name)
        return outputs

    with calls_seen([layer for layer in layers_within(training.model) if isinstance(layer, OF_TRAINING)], note):
        before, after = (keras.tree.flatten(training.outputs(training.x)) for _ in range(2))
    change = max(map(change_of, before, after), default=0.0)
    if change <= _threshold(training.model):
        return ok("The same batch gives the same outputs twice in evaluation.")
    named = f" {', '.join(sorted(acting)[:4])} drops or adds noise with training=False too." if acting else ""
    return look(
        f"The same batch in evaluation gives outputs that differ by {change:.0%} from one call to the next.{named}",
        "Hand training on to dropout and noise, and write no training=True in call; tf.nn.dropout does not know when"
        " it is evaluation. If you mean it, as in Monte Carlo dropout or a VAE, leave it.",
    )


def padding(training):
    """Does padding count in the loss?"""
    if training.y is None or keras.tree.is_nested(training.y):
        return None
    name, tokens = _padded_input(training)
    if tokens is None:
        return None
    where = "" if name == "inputs" else f" of {name}"
    padded = _padded(tokens)
    outputs = None
    with tf.GradientTape() as tape:
        outputs = training.outputs(training.x)
        if keras.tree.is_nested(outputs) or tuple(outputs.shape[:2]) != tokens.shape:
            return None
        tape.watch(outputs)
        loss = training.loss(outputs)
    gradient = tape.gradient(loss, outputs)
    if gradient is None:
        raise NotExamined("the loss does not depend on the outputs")
    sizes = tf.reduce_sum(tf.abs(tf.cast(gradient, tf.float32)), range(2, len(gradient.shape))).numpy()
    share = sizes[padded].sum() / max(sizes.sum(), 1e-30)
    if share > GRADIENT_OF_PADDING:
        if (tokens[~padded] == 0).any():
            return look(
                f"{padded.mean():.0%} of the places{where} are 0 at the ends of rows, and give {share:.0%} of the"
                " loss's gradient. 0 stands elsewhere too, so it may be a symbol like others.",
                "If it is padding there, give a sample_weight that is 0 at padding.",
                "11",
            )
        lost = _mask_lost_at(training)
        behind = f" A layer makes a mask, but it is lost behind {lost}." if lost else ""
        return wrong(
            f"{padded.mean():.0%} of the places{where} are padding (0), and give {share:.0%} of the loss's gradient:"
            f" padding is trained.{behind}",
            "Give a sample_weight that is 0 at padding. It is not lost on the way, as masks are at x + layer(x).",
            "11",
        )
    return ok(f"{padded.mean():.0%} of the places{where} are padding, and give nothing to the loss.")


def _threshold(model):
    return (
        LEAK
        if model.compute_dtype == "float32"
        and all(layer.compute_dtype in ("float32", None) for layer in layers_within(model))
        else LEAK_16_BITS
    )


def _counted(training, y):
    counted = np.ones(y.shape[:2], bool)
    weight = training.weight
    if weight is not None and not keras.tree.is_nested(weight) and tuple(weight.shape[:2]) == y.shape[:2]:
        counted = weight.numpy().reshape(y.shape[:2] + (-1,)).any(-1)
    return counted


def _share_equal(x, y, counted, offset):
    """Return the share of counted places t at which y[t] is x[t + offset], of those that are not padding."""
    length = y.shape[1] - offset
    x, y, counted = x[:, offset:], y[:, :length], counted[:, :length]
    if y.dtype.kind == "f" and x.dtype.kind == "f":
        equal = np.isclose(x, y, rtol=1e-4, atol=1e-6)
    else:
        equal = x == y
        if y.ndim == 2:
            counted = counted & (y != 0)
    equal = equal.reshape(*equal.shape[:2], -1).all(-1)
    constant = counted.any() and len(np.unique(y[counted])) < 3  # all places alike are equal at any offset
    return 0.0 if constant or not counted.any() else float(equal[counted].mean())


def _sees_later(training, inputs, place):
    """Return how much outputs before the middle change when the inputs from the middle on change."""
    value = inputs[place].numpy()
    middle = value.shape[1] // 2
    other = value.copy()
    other[:, middle:] = np.roll(value, 1, 0)[:, middle:] if len(value) > 1 else value[:, middle:][:, ::-1]
    if value.dtype.kind == "f":
        other[:, middle:] += value.std()
    else:  # not to 0, which may be padding and make another mask
        highest = max(1, int(value.max()))
        other[:, middle:] = np.where(value[:, middle:] > 0, value[:, middle:] % highest + 1, value[:, middle:])
    changed = list(inputs)
    changed[place] = tf.constant(other, inputs[place].dtype)
    training.refuse_random_outputs()
    before = training.outputs_again(training.x)
    after = training.outputs_again(keras.tree.pack_sequence_as(training.x, changed))
    pairs = zip(keras.tree.flatten(before), keras.tree.flatten(after), strict=True)
    of_steps = [
        change_of(one[:, :middle], two[:, :middle])
        for one, two in pairs
        if len(one.shape) > 1 and one.shape[1] == value.shape[1]
    ]
    if not of_steps:
        raise NotExamined("the outputs have no row for each place of a sequence")
    return max(of_steps)


def _padded_input(training):
    """Return the name and the tokens [examples, length] of the input that is padded; None if there is none."""
    for name, value in named_parts(training.x, "inputs"):
        if value.dtype.is_integer and len(value.shape) == 2 and value.shape[1] > 2:
            tokens = value.numpy()
            of_targets = tuple(training.y.shape[:2]) == tokens.shape
            if of_targets and (_padded(tokens).sum(1) >= 2).sum() >= min(2, len(tokens)) and (tokens != 0).any():
                return name, tokens
    return None, None


def _padded(tokens):
    """Return where zeros stand with nothing but zeros after them, or before them: at the end of a row, or its start."""
    at_end = np.flip(np.cumsum(np.flip(tokens != 0, 1), 1), 1) == 0
    at_start = np.cumsum(tokens != 0, 1) == 0
    return at_end if at_end.sum() >= at_start.sum() else at_start


def _mask_lost_at(training):
    """Return the name of the first operation that gets a mask and hands none on; "" if there is no mask at all.

    Keras drops masks at ``x + layer(x)``, and where a layer without supports_masking stands between.
    """
    calls = []
    around = []

    def note(layer, call, *args, **kwargs):
        given = [each for each in keras.tree.flatten((args, kwargs)) if tf.is_tensor(each)]
        rows = [each for each in given if each.dtype.is_floating and len(each.shape) >= 3]
        if rows and not around:  # what a layer calls inside it, it may give its mask in other ways
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
    "examples apart": across_examples,
    "sees its answer": its_answer,
    "evaluation": evaluation,
    "padding": padding,
}
