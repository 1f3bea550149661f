"""Shared by the exercises of notebook 02: compare the final weights of two replicas with those of one device."""

from collections import deque
from functools import cache

import numpy as np

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.series.in_training import FORGOTTEN, LouderInTraining
from bigtrain_nb.workbook.exercises import Wrong

RATE = 0.1

FAULTS = (
    (
        {"batch": 8},
        "These are the weights of steps of 8 examples, 4 for each replica, and of twice as many steps. The batch"
        " size of the dataset is the global batch size.",
    ),
    ({"batch": 32}, "These are the weights of steps of 32 examples, and of half as many steps."),
    (
        {"loss_times": 2},
        "These are the weights of a loss that counts twice. Each replica contributes the gradient of the mean over its"
        " own 8 examples, and apply_gradients adds up.",
    ),
    (
        {"loss_times": 0.5},
        "These are the weights of a loss that counts half: it is divided by the number of replicas once too often.",
    ),
    (
        {"loss_times": 16},
        "These are the weights of a loss that is summed over the 16 examples of a step and never divided by 16.",
    ),
    (
        {"loss_times": 8},
        "These are the weights of a loss that is summed over the 16 examples of a step and divided by 2, not by 16.",
    ),
    (
        {"penalty_times": 2},
        "The penalty counts twice: each replica adds all of it, and apply_gradients sums over replicas.",
    ),
    ({"penalty_times": 0.5}, "The penalty counts half: the replicas' parts must add up to the full penalty."),
    ({"penalty_times": 0}, "The penalty is missing, but it is part of the loss."),
    ({"training": False}, FORGOTTEN),
)


def losses(model, x, y, training=True):
    """Return the loss of each example."""
    return keras.losses.sparse_categorical_crossentropy(y, model(x, training=training), from_logits=True)


def vector(tensors):
    """Return tensors or variables as one long NumPy vector."""
    return np.concatenate([np.ravel(tensor) for tensor in tensors])


def weights_of_both(strategy, model):
    """Return a model's weights as one long vector. Raises Wrong unless they are equal on both replicas."""
    first, second = [], []
    for variable in model.trainable_variables:
        values = strategy.experimental_local_results(variable.value)
        if len(values) != 2:
            raise Wrong(
                f"{variable.path}: expected a copy on each of 2 replicas, got {len(values)}: build it in scope()"
            )
        first.append(values[0])
        second.append(values[1])
    apart = np.abs(vector(first) - vector(second)).max()
    if not apart < 1e-6:
        raise Wrong(
            f"after training: expected equal weights on both replicas, got a difference of {apart:.1g}. Each replica"
            " applied the gradient of its own examples only."
        )
    return vector(first)


class CountExamples(keras.layers.Layer):
    """Records the number of examples in each call, over all replicas."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.counts = deque()  # replicas append concurrently

    def call(self, x):
        tf.py_function(lambda examples: self.counts.append(int(examples)), [tf.shape(x)[0]], [])
        return x


def net():
    start = keras.initializers.GlorotUniform
    penalty = keras.regularizers.L2(0.05)
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(8, "tanh", kernel_initializer=start(seed=1), kernel_regularizer=penalty)
    counted = CountExamples(name="count")(inputs)
    last = keras.layers.Dense(3, kernel_initializer=start(seed=2))
    return keras.Model(inputs, last(LouderInTraining()(hidden(counted))))


def data():
    random = np.random.default_rng(5)
    points = random.normal(size=(64, 4)).astype("float32")
    labels = random.integers(3, size=64)
    return points, labels


def expect_weights_of_one_device(answer, penalty_times=0):
    strategy = bt.mirrored(2)
    with strategy.scope():
        model = net()
        optimizer = keras.optimizers.SGD(RATE)
        optimizer.build(model.trainable_variables)
    answer(strategy, model, optimizer, tf.data.Dataset.from_tensor_slices(data()))

    got = weights_of_both(strategy, model)
    right = _training_alone(penalty_times=penalty_times)
    apart = np.abs(got - right).max()
    if apart < 1e-5:
        expect_each_example_once(model, 64)
        return
    expected = f"expected the weights of one device within 1e-5, got a difference of {apart:.1g}"
    for fault, words in FAULTS:
        settings = {"penalty_times": penalty_times, **fault}
        if np.abs(got - _training_alone(**settings)).max() < 1e-5:
            raise Wrong(f"{expected}. {words}")
    raise Wrong(expected)


def expect_each_example_once(model, examples):
    """Raise Wrong if the replicas of a `net` processed examples more than once: each did all the work."""
    got = sum(model.get_layer("count").counts)
    if got > examples:
        raise Wrong(
            f"examples that go through the model: expected {examples}, shared by the replicas, got {got}. The result is"
            " right, but every replica does all the work. Does the strategy distribute the dataset?"
        )


@cache
def _training_alone(batch=16, loss_times=1, penalty_times=0, training=True):
    """Return the final weights of one device, with or without a fault."""
    model = net()
    optimizer = keras.optimizers.SGD(RATE)
    for x, y in tf.data.Dataset.from_tensor_slices(data()).batch(batch):
        with tf.GradientTape() as tape:
            loss = loss_times * tf.reduce_mean(losses(model, x, y, training)) + penalty_times * sum(model.losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return vector(model.trainable_variables)
