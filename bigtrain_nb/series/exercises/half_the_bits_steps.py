"""Exercise of notebook 04, "Half the bits": a training step with a loss scale."""

import math
from functools import cache

import numpy as np

from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.series.in_training import FORGOTTEN, LouderInTraining
from bigtrain_nb.workbook.exercises import Wrong, exercise, expect

START = 2.0**15
GROWTH = 3
MOVED = 0.01  # tolerance for weights against Keras', as a share of a step's change


def train_step(model, x, y, scale, good, growth_steps):
    weights = model.trainable_variables
    with tf.GradientTape() as tape:
        scaled_loss = scale * model.compute_loss(x, y, model(x, training=True))
    scaled = tape.gradient(scaled_loss, weights)

    for gradient in scaled:
        if not np.isfinite(gradient).all():
            return scale / 2, 0

    gradients = [gradient / scale for gradient in scaled]
    model.optimizer.apply(gradients, weights)
    if good + 1 == growth_steps:
        return 2 * scale, 0
    return scale, good + 1


@exercise(
    train_step,
    takes=("a compiled mixed_float16 model; x [8, 6]; y [8]; the scale; good steps so far; steps until it doubles"),
    returns="a tuple (scale, good steps); the model has made a step, or skipped it",
    minutes=20,
    difficulty=4,
)
def _check_train_step(answer):
    """Scale the loss inside the `tf.GradientTape`, and check the gradients after it. Their shapes differ, so test each
    one separately for non-finite values. Divide by the scale of this loss, not by the next one. The count restarts at 0
    in two cases.
    """
    with tf.device("CPU:0"):  # on an H100, Keras and the solution once overflowed at different steps
        batches = _batches()
        expected = _history_of_keras()
        model = _two_branches()
        model.compile(keras.optimizers.SGD(0.1), _loss())
        scale, good = START, 0
        for step, (x, y) in enumerate(batches):
            keras_scale, keras_good, keras_weights = expected[step]
            skipped = keras_scale < scale
            state = f"scale {scale:.0f}, good {good}, growth after {GROWTH} steps"
            when = f"after step {step + 1} of {len(batches)} ({state})"
            before = _flat(model)
            got = answer(model, x, y, scale, good, GROWTH)
            if not isinstance(got, tuple) or len(got) != 2:
                raise Wrong(f"expected two results, the scale and the number of good steps, got {got!r}")
            _compare_weights(before, _flat(model), keras_weights, skipped, when)
            expect(got[0], keras_scale, f"the scale {when}")
            expect(got[1], keras_good, f"the number of good steps {when}")
            scale, good = got


def _compare_weights(before, after, keras_weights, skipped, when):
    if skipped and not np.array_equal(before, after):
        raise Wrong(f"the weights {when}: a gradient is not finite; expected a skipped step, got weights that changed")
    far = np.linalg.norm(keras_weights - before)
    off = np.linalg.norm(after - keras_weights)
    if off <= MOVED * far + 1e-6:
        return
    times = np.linalg.norm(after - before) / far
    why = f". {FORGOTTEN}"
    if times > 100:
        why = ": are the gradients divided by the scale?"
    if 0.49 < times < 0.51:
        why = ": are the gradients divided by the next scale, twice that of the loss?"
    if times < 0.01:
        why = ": was the loss multiplied by the scale?"
    if times == 0:
        why = ": this step is a good one and must change the weights"
    raise Wrong(f"the weights {when}: expected those of Keras, got weights that moved {times:.3g} times as far{why}")


def _loss():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _two_branches():
    """Return a mixed_float16 model in which a huge last feature makes just one gradient non-finite."""
    keras.utils.set_random_seed(3)
    features = keras.Input((6,))
    left = keras.layers.Dense(5, "relu", dtype="mixed_float16")(features[:, :5])
    left = LouderInTraining(dtype="mixed_float16")(left)
    right = keras.layers.Dense(4, kernel_initializer="zeros", dtype="mixed_float16")(features[:, 5:])
    both = keras.layers.Concatenate(dtype="mixed_float16")([left, right])
    return keras.Model(features, keras.layers.Dense(3, dtype="float32")(both))


def _batches():
    """Return twelve batches of 8; the fourth gives an infinite gradient, the seventh has an infinite feature."""
    random = np.random.default_rng(5)
    batches = []
    for number in range(1, 13):
        x = random.normal(size=(8, 6)).astype("float32")
        if number == 4:
            x[:, 5] = 30_000
        if number == 7:
            x[2, 0] = math.inf
        batches.append((tf.constant(x), tf.constant(random.integers(0, 3, 8))))
    return batches


@cache
def _history_of_keras():
    """Return, after each step: Keras' scale, its count of good steps since the last change, and the weights."""
    model = _two_branches()
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), START, dynamic_growth_steps=GROWTH)
    model.compile(optimizer, _loss(), run_eagerly=True)
    history = []
    for x, y in _batches():
        model.train_on_batch(x, y)
        history.append((float(optimizer.dynamic_scale), int(optimizer.step_counter), _flat(model)))
    return history


def _flat(model):
    return np.concatenate([np.ravel(weight) for weight in model.get_weights()])


def _scaled_gradients(model, x, y, scale):
    with tf.GradientTape() as tape:
        scaled_loss = scale * model.compute_loss(x, y, model(x, training=True))
    return tape.gradient(scaled_loss, model.trainable_variables)


def _update(model, gradients, scale, good, growth_steps):
    model.optimizer.apply(gradients, model.trainable_variables)
    if good + 1 == growth_steps:
        return 2 * scale, 0
    return scale, good + 1


@_check_train_step.refuses("moved 3.28e+04 times as far: are the gradients divided")
def _forgets_to_unscale(model, x, y, scale, good, growth_steps):
    scaled = _scaled_gradients(model, x, y, scale)
    return _update(model, scaled, scale, good, growth_steps)


@_check_train_step.refuses("moved 3.05e-05 times as far: was the loss multiplied")
def _forgets_to_scale(model, x, y, scale, good, growth_steps):
    gradients = [gradient / scale for gradient in _scaled_gradients(model, x, y, 1.0)]
    return _update(model, gradients, scale, good, growth_steps)


@_check_train_step.refuses("moved 0.5 times as far: are the gradients divided by the next scale")
def _divides_by_the_next_scale(model, x, y, scale, good, growth_steps):
    scaled = _scaled_gradients(model, x, y, scale)
    if good + 1 == growth_steps:
        scale, good = 2 * scale, -1
    model.optimizer.apply([gradient / scale for gradient in scaled], model.trainable_variables)
    return scale, good + 1


@_check_train_step.refuses("moved 0 times as far: this step is a good one")
def _updates_nothing(model, x, y, scale, good, growth_steps):
    return scale, good + 1


@_check_train_step.refuses("a gradient is not finite; expected a skipped step")
def _looks_at_the_loss_only(model, x, y, scale, good, growth_steps):
    if not math.isfinite(model.compute_loss(x, y, model(x))):
        return scale / 2, 0
    gradients = [gradient / scale for gradient in _scaled_gradients(model, x, y, scale)]
    return _update(model, gradients, scale, good, growth_steps)


@_check_train_step.refuses("a gradient is not finite; expected a skipped step")
def _looks_at_the_first_gradient_only(model, x, y, scale, good, growth_steps):
    scaled = _scaled_gradients(model, x, y, scale)
    if not np.isfinite(scaled[0]).all():
        return scale / 2, 0
    gradients = [gradient / scale for gradient in scaled]
    return _update(model, gradients, scale, good, growth_steps)


@_check_train_step.refuses("your function raised ValueError")
def _looks_at_all_shapes_at_once(model, x, y, scale, good, growth_steps):
    scaled = _scaled_gradients(model, x, y, scale)
    if not np.isfinite([gradient.numpy() for gradient in scaled]).all():
        return scale / 2, 0
    return _update(model, scaled, scale, good, growth_steps)


@_check_train_step.refuses("the number of good steps after step 7 of 12")
def _goes_on_counting(model, x, y, scale, good, growth_steps):
    new_scale, new_good = train_step(model, x, y, scale, good, growth_steps)
    return (new_scale, good) if new_scale < scale else (new_scale, new_good)


@_check_train_step.refuses("the scale after step 3 of 12")
def _never_doubles(model, x, y, scale, good, growth_steps):
    new_scale, new_good = train_step(model, x, y, scale, good, growth_steps)
    return min(scale, new_scale), new_good
