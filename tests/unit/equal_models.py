"""Shared by the tests of `bt.Model`: small models and data, strategies, reproducible training, weight comparison."""

import sys
from contextlib import contextmanager

import numpy as np
from logical_cpus import CPUS, mirrored, mirrored_by_collectives

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

SIZES = [16, 13, 3, 12, 1, 7, 16, 2, 5, 9]  # on four replicas: also unequal shares and replicas without examples
# Tolerance for two trainings that differ only in the order of their sums. That changes the last bit, 2^-24 of a value,
# or 2^-11 where `pytest --tf32` rounds the factors of products.
EQUAL = 2e-3 if "rounded_products" in sys.modules else 1e-5
_STRATEGIES = {"on one device": {1: None}, "by collectives": {1: None}}
_reduction = "on one device"


def strategy(replicas):
    """Return the strategy of this size that all tests share; None for a single replica."""
    made = _STRATEGIES[_reduction]
    if replicas not in made:
        made[replicas] = (mirrored if _reduction == "on one device" else mirrored_by_collectives)(replicas)
    return made[replicas]


@contextmanager
def reducing(how):
    """Set how the strategies of a test reduce."""
    global _reduction
    _reduction, before = how, _reduction
    try:
        yield
    finally:
        _reduction = before


@contextmanager
def on(replicas):
    """Enter the scope of ``replicas`` replicas; for one, use the first CPU without a strategy."""
    chosen = strategy(replicas)
    with tf.device(CPUS[0]) if chosen is None else chosen.scope():
        yield


@contextmanager
def precision(policy):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def examples(count, width=6, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(count, width)).astype("float32")
    return x, np.sin(x.sum(-1, keepdims=True)).astype("float32")


def batches(sizes, *tensors):
    """Return a dataset of consecutive slices of the tensors, with these batch sizes."""
    ends = np.cumsum(sizes)

    def rows():
        for size, end in zip(sizes, ends, strict=True):
            yield tuple(tensor[end - size : end].copy() for tensor in tensors)  # TensorFlow may write into the arrays

    spec = tuple(tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype) for tensor in tensors)
    made = tf.data.Dataset.from_generator(rows, output_signature=spec)
    return made.apply(tf.data.experimental.assert_cardinality(len(sizes)))


def aligned(array):
    """Return a copy aligned to 64 bytes, which TensorFlow uses without copying."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[:] = array
    return copy


def views(size, *tensors):
    """Return a dataset of batches of this size that are views of the tensors."""

    def rows():
        for start in range(0, len(tensors[0]), size):
            yield tuple(tensor[start : start + size] for tensor in tensors)

    spec = tuple(tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype) for tensor in tensors)
    return tf.data.Dataset.from_generator(rows, output_signature=spec)


def net(make=bt.Model, **options):
    """Return a small model with the same initial weights every time."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    x = keras.layers.Dense(8, activation="tanh")(inputs)
    outputs = keras.layers.Dense(1, dtype="float32", kernel_regularizer=keras.regularizers.L2(0.01))(x)
    return make(inputs, outputs, **options)


def trained(build, data, optimizer, replicas=1, epochs=1, **compiled):
    """Build, compile and fit a model on ``replicas`` replicas; return it, with ``model.history``."""
    with on(replicas):
        model = build()
        model.compile(optimizer(), **{"loss": "mse", **compiled})
        model.fit(data, epochs=epochs, verbose=0, shuffle=False)
    return model


def distance(model, other):
    """Return the largest weight difference, relative to the largest weight of the same tensor."""
    pairs = zip(model.get_weights(), other.get_weights(), strict=True)
    return max(float(np.abs(a - b).max() / (np.abs(b).max() + 1e-6)) for a, b in pairs)


def values_on_replicas(variable):
    """Return a Keras variable's value on every replica."""
    return [v.numpy() for v in getattr(variable.value, "values", [variable.value])]


def replicas_agree(model):
    """Return whether all variables of the model and its optimizer are bitwise identical on all replicas."""
    rows = [values_on_replicas(v) for v in [*model.variables, *model.optimizer.variables]]
    return all(np.array_equal(row[0], value) for row in rows for value in row[1:])


class TwoNetworks(keras.Model):
    """Two networks that are never called as one model, each with its own optimizer, as in a GAN."""

    def __init__(self, *networks):
        super().__init__()
        self.networks = list(networks)

    def compile(self):
        super().compile()
        self.of_first, self.of_second = keras.optimizers.SGD(0.1, momentum=0.9), keras.optimizers.Adam(0.1)

    def train_step(self, data):
        x = data[0] if isinstance(data, tuple) else data
        for network, optimizer in zip(self.networks, (self.of_first, self.of_second), strict=True):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(network(x) ** 2)
            weights = network.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


class OptimizersInADictionary(TwoNetworks):
    def compile(self):
        keras.Model.compile(self)
        self.kept = {"first": keras.optimizers.SGD(0.1, momentum=0.9), "second": keras.optimizers.Adam(0.1)}

    of_first = property(lambda self: self.kept["first"])
    of_second = property(lambda self: self.kept["second"])


class OptimizersOfTheNetworks(TwoNetworks):
    def compile(self):
        keras.Model.compile(self)
        for network, optimizer in zip(self.networks, ("sgd", "adam"), strict=True):
            network.compile(optimizer)

    of_first = property(lambda self: self.networks[0].optimizer)
    of_second = property(lambda self: self.networks[1].optimizer)


class OneHot(keras.layers.Embedding):
    """Its gradient is dense: stock Keras squares and clips the gradient of each use of a row separately."""

    def call(self, x):
        return tf.matmul(tf.one_hot(x, self.input_dim, dtype=self.compute_dtype), self.embeddings)


def traces_of_first_step(kind, data, replicas=1):
    """Return how often Python calls the layers of a new model while TensorFlow traces its first step."""
    calls = []

    class Count(keras.layers.Layer):
        def call(self, x):
            calls.append(1)
            return x

    with on(replicas):
        inputs = keras.Input((6,))
        model = kind(inputs, Count()(keras.layers.Dense(1)(inputs)))
        model.compile("adam", "mse")
    model.make_train_function()
    calls.clear()
    model.train_function(iter(model.distribute_strategy.experimental_distribute_dataset(data)))
    assert model.optimizer.iterations.numpy() == 1
    return len(calls)


def apart_of_weights(model, other):
    """Return the largest absolute weight difference."""
    return max(np.abs(a - b).max() for a, b in zip(model.get_weights(), other.get_weights(), strict=True))
