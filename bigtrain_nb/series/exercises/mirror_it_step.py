"""Exercise of notebook 02, "Mirror it": one training step of two replicas, with clipping."""

from functools import cache

import numpy as np

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.series.exercises._two_replicas import RATE, losses, vector, weights_of_both
from bigtrain_nb.series.hushed import hushed
from bigtrain_nb.series.in_training import FORGOTTEN, LouderInTraining
from bigtrain_nb.workbook.exercises import Wrong, exercise


def train_step(strategy, model, optimizer, batch, limit):
    @tf.function
    def one_replica(x, y):
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(y, model(x, training=True), from_logits=True)
            loss = tf.reduce_sum(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        examples = tf.cast(tf.shape(x)[0], tf.float32)

        # Reduce first: sum over all replicas, then divide once by the number of all examples
        replica = tf.distribute.get_replica_context()
        gradients, examples = replica.all_reduce(tf.distribute.ReduceOp.SUM, (gradients, examples))
        means = [gradient / examples for gradient in gradients]

        # Then clip
        clipped, _ = tf.clip_by_global_norm(means, limit)

        # apply_gradients sums over the replicas, so each one passes its part of the full gradient
        parts = [gradient / strategy.num_replicas_in_sync for gradient in clipped]
        optimizer.apply_gradients(zip(parts, model.trainable_variables, strict=True))

    strategy.run(one_replica, args=batch)


@exercise(
    train_step,
    takes="a strategy; a model of its scope; its optimizer; a distributed batch (x, y); the largest norm",
    returns="nothing; the model has made one step",
    minutes=20,
    difficulty=4,
)
def _check_train_step(answer):
    """Three questions. Which two sums over all replicas give the mean over 7 examples? What must the gradient be before
    its norm is meaningful? And what does `apply_gradients` do with two equal gradients?"""
    no_limit = 1000.0
    _one_step(answer, no_limit, "one step with 7 examples, without clipping")
    _one_step(answer, 0.05, "one step with 7 examples, with the gradient clipped to 0.05")

    limit = 0.5
    got = _mirrored_training(answer, limit, steps=2)
    alone = _training_alone(limit, steps=2)
    apart = np.abs(got - alone).max()
    if not apart < 1e-5:
        raise Wrong(
            f"after 2 steps with momentum, clipped to {limit}: expected the weights of one device within 1e-5, got a"
            f" difference of {apart:.1g}. Single steps are right, so look at the state kept between steps: is each"
            " update made by `optimizer`?"
        )


def _one_step(answer, limit, what):
    before = vector(_net().trainable_variables)
    moved = before - _mirrored_training(answer, limit, steps=1)
    applied = moved / RATE
    right, faults = _steps_by_name(limit)
    if _close(applied, right):
        return
    expected = f"expected an applied gradient of length {np.linalg.norm(right):.3g}, got {np.linalg.norm(applied):.3g}"
    for words, wrong in faults:
        if _close(applied, wrong):
            raise Wrong(f"{what}: {expected}. {words}")
    raise Wrong(f"{what}: {expected}, in directions {_degrees(applied, right):.0f} degrees apart")


@cache
def _steps_by_name(limit):
    """Return the correct gradient, and those of typical mistakes as pairs (message, gradient)."""
    x, y = _examples(7)
    model = _net()
    first = _gradient(model, x[:4], y[:4])
    second = _gradient(model, x[4:], y[4:])
    first_part = first * 4 / 7
    second_part = second * 3 / 7
    whole = first_part + second_part
    right = _clip(whole, limit)

    twice = "The gradient is divided by the number of replicas twice: a Keras loss is already divided by it once."
    early = (
        "It was clipped before the reduction: each replica clipped its own gradient, and the sum of these is not the"
        " clipped full gradient."
    )
    alike = "Both replicas have equal weight, although one has 4 examples and the other 3."
    again = (
        "Each replica already has the full gradient, and apply_gradients sums over replicas:"
        " the same gradient is applied twice."
    )
    halved = (
        "Each replica divided its gradient by the number of replicas before it clipped: clip the full gradient first."
    )
    nothing_to_clip = np.linalg.norm(whole) <= limit
    faults = [
        ("The weights did not move at all.", 0 * right),
        (again if nothing_to_clip else halved, 2 * right),
        (twice, right / 2),
        (twice, (first + second) / 4),
        (alike, _clip((first + second) / 2, limit)),
        ("Two means were added: their sum is not the mean over 7 examples.", _clip(first + second, limit)),
        ("Gradients were summed over 7 examples and never divided by 7.", 7 * whole),
        ("Nothing was clipped.", whole),
        ("Clipping came before the division by 7, so the result is 7 times too short.", right / 7),
        (early, _clip(first_part, limit) + _clip(second_part, limit)),
        (early, (_clip(first, limit) + _clip(second, limit)) / 2),
        (early, (4 * _clip(first, limit) + 3 * _clip(second, limit)) / 7),
        (early, _clip(first / 2, limit) + _clip(second / 2, limit)),
        (early, _clip(first, limit) + _clip(second, limit)),
        (FORGOTTEN, _clip(_gradient(model, x, y, training=False), limit)),
    ]
    return right, faults


def _net():
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(8, activation="tanh", kernel_initializer=keras.initializers.GlorotUniform(seed=1))
    last = keras.layers.Dense(3, kernel_initializer=keras.initializers.GlorotUniform(seed=2))
    return keras.Model(inputs, last(LouderInTraining()(hidden(inputs))))


def _examples(count):
    random = np.random.default_rng(3)
    points = random.normal(size=(28, 4)).astype("float32")
    labels = random.integers(3, size=28)
    return points[:count], labels[:count]


def _mirrored_training(answer, limit, steps):
    """Return the weights after this many steps of the answer on two replicas, as one long vector."""
    strategy = bt.mirrored(2)
    with strategy.scope():
        model = _net()
        optimizer = keras.optimizers.SGD(RATE, momentum=0.9)
        optimizer.build(model.trainable_variables)
    batches = tf.data.Dataset.from_tensor_slices(_examples(7 * steps)).batch(7)
    for batch in strategy.experimental_distribute_dataset(batches):
        with hushed():  # TensorFlow warns if an answer creates, and so traces, a new tf.function for each step
            answer(strategy, model, optimizer, batch, limit)
    return weights_of_both(strategy, model)


@cache
def _training_alone(limit, steps):
    """Return the weights after this many steps on one device."""
    model = _net()
    optimizer = keras.optimizers.SGD(RATE, momentum=0.9)
    for x, y in tf.data.Dataset.from_tensor_slices(_examples(7 * steps)).batch(7):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(losses(model, x, y))
        gradients = tape.gradient(loss, model.trainable_variables)
        clipped, _ = tf.clip_by_global_norm(gradients, limit)
        optimizer.apply_gradients(zip(clipped, model.trainable_variables, strict=True))
    return vector(model.trainable_variables)


def _gradient(model, x, y, training=True):
    """Return the gradient of the mean loss as one long vector."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(losses(model, x, y, training))
    return vector(tape.gradient(loss, model.trainable_variables))


def _clip(gradient, limit):
    return gradient * min(1.0, limit / np.linalg.norm(gradient))


def _close(one, other):
    return np.allclose(one, other, rtol=1e-3, atol=1e-3 * np.abs(other).max())


def _degrees(one, other):
    cosine = one @ other / (np.linalg.norm(one) * np.linalg.norm(other) + 1e-12)
    return np.degrees(np.arccos(np.clip(cosine, -1, 1)))


def _gradients_of(model, x, y, divide):
    """Return the gradients of the loss, summed over a replica's examples and divided by ``divide``."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(losses(model, x, y)) / divide
    return tape.gradient(loss, model.trainable_variables)


@_check_train_step.refuses("divided by the number of replicas twice")
def _divides_a_keras_loss_again(strategy, model, optimizer, batch, limit):
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def one_replica(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True)) / strategy.num_replicas_in_sync
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    strategy.run(one_replica, args=batch)


@_check_train_step.refuses("clipped before the reduction")
def _clips_before_the_reduction(strategy, model, optimizer, batch, limit):
    @tf.function
    def one_replica(x, y):
        gradients = _gradients_of(model, x, y, divide=7)
        clipped, _ = tf.clip_by_global_norm(gradients, limit)
        optimizer.apply_gradients(zip(clipped, model.trainable_variables, strict=True))

    strategy.run(one_replica, args=batch)


@_check_train_step.refuses("the same gradient is applied twice")
def _lets_the_optimizer_add_again(strategy, model, optimizer, batch, limit):
    @tf.function
    def one_replica(x, y):
        gradients = _gradients_of(model, x, y, divide=7)
        sums = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        clipped, _ = tf.clip_by_global_norm(sums, limit)
        optimizer.apply_gradients(zip(clipped, model.trainable_variables, strict=True))

    strategy.run(one_replica, args=batch)


@_check_train_step.refuses("before it clipped: clip the full gradient first")
def _divides_before_it_clips(strategy, model, optimizer, batch, limit):
    @tf.function
    def one_replica(x, y):
        gradients = _gradients_of(model, x, y, divide=7)
        sums = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        clipped, _ = tf.clip_by_global_norm([gradient / 2 for gradient in sums], limit)
        optimizer.apply_gradients(zip(clipped, model.trainable_variables, strict=True))

    strategy.run(one_replica, args=batch)


@_check_train_step.refuses("Both replicas have equal weight, although one has 4 examples and the other 3")
def _forgets_that_shares_differ(strategy, model, optimizer, batch, limit):
    @tf.function
    def one_replica(x, y):
        gradients = _gradients_of(model, x, y, divide=2 * len(x))
        sums = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        clipped, _ = tf.clip_by_global_norm(sums, limit)
        parts = [gradient / 2 for gradient in clipped]
        optimizer.apply_gradients(zip(parts, model.trainable_variables, strict=True))

    strategy.run(one_replica, args=batch)


@_check_train_step.refuses("Nothing was clipped")
def _clips_nothing(strategy, model, optimizer, batch, limit):
    @tf.function
    def one_replica(x, y):
        gradients = _gradients_of(model, x, y, divide=7)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    strategy.run(one_replica, args=batch)


@_check_train_step.refuses("is each update made by `optimizer`?")
def _updates_by_hand(strategy, model, optimizer, batch, limit):
    @tf.function
    def one_replica(x, y):
        gradients = _gradients_of(model, x, y, divide=7)
        sums = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        clipped, _ = tf.clip_by_global_norm(sums, limit)
        for gradient, variable in zip(clipped, model.trainable_variables, strict=True):
            variable.assign_sub(RATE * gradient)

    strategy.run(one_replica, args=batch)
