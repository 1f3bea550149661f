"""Exercise of notebook 04, "Half the bits": the layer that produces the first non-finite value."""

import numpy as np

from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.workbook.exercises import Wrong, exercise, expect

START = 2.0**15


def first_overflow(model, x, y, scale):
    layers = model.layers[1:]  # the first is the input
    probe = keras.Model(model.input, [layer.output for layer in layers])
    weights = [layer.trainable_variables for layer in layers]
    with tf.GradientTape() as tape:
        outputs = probe(x)
        scaled_loss = scale * model.compute_loss(x, y, outputs[-1])
    output_gradients, weight_gradients = tape.gradient(scaled_loss, [outputs, weights])

    for layer, output in zip(layers, outputs, strict=True):
        if not np.isfinite(output).all():
            return layer.name, "forward"

    for place in reversed(range(len(layers))):
        made_here = list(weight_gradients[place])
        if place > 0:
            made_here.append(output_gradients[place - 1])
        for gradient in made_here:
            if not np.isfinite(gradient).all():
                return layers[place].name, "backward"
    return None


@exercise(
    first_overflow,
    takes="a compiled mixed_float16 model, one layer after the other; x [8, 16]; y [8]; the scale",
    returns='(name of a layer, "forward" or "backward"), or None',
    minutes=30,
    difficulty=4,
    seconds=120,
)
def _check_first_overflow(answer):
    """A probe as in "Underflow" returns all outputs, and one tape gives the gradients of all outputs and all weights. A
    layer passes back the gradient of the previous layer's output. So a non-finite gradient may belong to the output of
    one layer, but be computed by the next one.
    """
    for seed in (0, 1, 2):
        for kind, place, direction in PLANTINGS:
            model = _planted(kind, place, seed)
            expected = (NAMES[place], direction)
            what = f"the first non-finite value in a model (seed {seed}) {SAID[kind]} of layer {expected[0]!r}"
            got = answer(model, *_examples(seed), START)
            if got is None:
                raise Wrong(f"{what}: expected {expected}, got None (everything finite)")
            expect(got, expected, what)
        got = answer(_planted(None, 0, seed), *_examples(seed), START)
        if got is not None:
            raise Wrong(f"a model in which nothing overflows (seed {seed}): expected None, got {got!r}")


NAMES = ["entry", "hidden_a", "hidden_b", "hidden_c"]
PLANTINGS = (
    ("output", 1, "forward"),
    ("handed back", 3, "backward"),
    ("kernel's gradient", 1, "backward"),
    ("output", 3, "forward"),
    ("handed back", 1, "backward"),
    ("kernel's gradient", 3, "backward"),
)
SAID = {
    "output": "with an overflow in the output",
    "handed back": "with an overflow in the gradient that goes back through the input",
    "kernel's gradient": "with an overflow in the gradient of the kernel",
}


def _planted(kind, place, seed):
    """Return a mixed_float16 model of Dense layers; a tanh hides an infinite output of the layer before it as 1."""
    keras.utils.set_random_seed(seed)
    x = inputs = keras.Input((16,))
    for name in NAMES:
        x = keras.layers.Dense(16, "relu", name=name, dtype="mixed_float16")(x)
    x = keras.layers.Activation("tanh", name="squash", dtype="mixed_float16")(x)
    model = keras.Model(inputs, keras.layers.Dense(4, name="logits", dtype="float32")(x))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    here = model.get_layer(NAMES[place])
    before = model.get_layer(NAMES[place - 1])
    if kind == "output":
        _multiply_kernel(before, 2.0**4)
        _multiply_kernel(here, 2.0**14)
    if kind == "handed back":
        _multiply_kernel(before, 2.0**-10)
        _multiply_kernel(here, 2.0**10)
    if kind == "kernel's gradient":
        _multiply_kernel(before, 2.0**10)
        _multiply_kernel(here, 2.0**-10)
    return model


def _multiply_kernel(layer, factor):
    layer.kernel.assign(layer.kernel * factor)


def _examples(seed):
    random = np.random.default_rng(seed)
    return tf.constant(random.normal(size=(8, 16)), tf.float32), tf.constant(random.integers(0, 4, 8))


def _probed(model, x, y, scale):
    """Return all layers, their outputs, and the outputs' gradients."""
    layers = model.layers[1:]
    probe = keras.Model(model.input, [layer.output for layer in layers])
    with tf.GradientTape() as tape:
        outputs = probe(x)
        scaled_loss = scale * model.compute_loss(x, y, outputs[-1])
    return layers, outputs, tape.gradient(scaled_loss, outputs)


def _first(layers, tensors, direction):
    for layer, tensor in zip(layers, tensors, strict=True):
        if not np.isfinite(tensor).all():
            return layer.name, direction
    return None


@_check_first_overflow.refuses("expected ('hidden_c', 'backward'), got None")
def _forward_only(model, x, y, scale):
    layers, outputs, _ = _probed(model, x, y, scale)
    return _first(layers, outputs, "forward")


@_check_first_overflow.refuses("expected ('hidden_c', 'backward'), got None")
def _forgets_the_scale(model, x, y, scale):
    return first_overflow(model, x, y, 1.0)


@_check_first_overflow.refuses("expected ('hidden_a', 'forward'), got ('logits', 'forward')")
def _names_the_last_one(model, x, y, scale):
    layers, outputs, _ = _probed(model, x, y, scale)
    return _first(layers[::-1], outputs[::-1], "forward")


@_check_first_overflow.refuses("expected ('hidden_c', 'forward'), got None")
def _trusts_a_finite_loss(model, x, y, scale):
    found = first_overflow(model, x, y, scale)
    if found and found[1] == "forward" and np.isfinite(model.compute_loss(x, y, model(x))):
        return None
    return found


@_check_first_overflow.refuses("expected ('hidden_c', 'backward'), got ('entry', 'backward')")
def _goes_backward_from_the_front(model, x, y, scale):
    layers, outputs, gradients = _probed(model, x, y, scale)
    return _first(layers, outputs, "forward") or _first(layers, gradients, "backward")


@_check_first_overflow.refuses("expected ('hidden_c', 'backward'), got ('hidden_b', 'backward')")
def _names_who_receives(model, x, y, scale):
    layers, outputs, gradients = _probed(model, x, y, scale)
    return _first(layers, outputs, "forward") or _first(layers[::-1], gradients[::-1], "backward")


@_check_first_overflow.refuses("in the gradient of the kernel of layer 'hidden_a'")
def _forgets_the_weights(model, x, y, scale):
    layers, outputs, gradients = _probed(model, x, y, scale)
    return _first(layers, outputs, "forward") or _first(layers[:0:-1], gradients[-2::-1], "backward")
