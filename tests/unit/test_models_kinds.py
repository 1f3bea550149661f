"""All kinds of models, data and losses train on two replicas in micro-batches as in stock Keras on one device."""

from functools import partial

import numpy as np
import pytest
from equal_models import batches, distance, examples, on, replicas_agree, trained

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

layers = keras.layers
COUNT, BATCH = 28, 14  # 14 examples are 7 per replica, in micro-batches of 3, 3, 1
X, Y = examples(COUNT)
WORDS = np.random.default_rng(3).integers(0, 9, (COUNT, 5))
CLASSES = np.arange(COUNT) % 3
WEIGHTS = np.random.default_rng(4).uniform(0, 2, COUNT).astype("float32")
adam = partial(keras.optimizers.Adam, 0.01, epsilon=1e-4)


def inputs_and_outputs(make, as_dict):
    a, b = keras.Input((6,), name="a"), keras.Input((5,), name="b")
    x = layers.Concatenate()([layers.Dense(4, activation="tanh")(a), layers.Rescaling(0.1)(b)])
    heads = {name: layers.Dense(1, name=name)(x) for name in ("left", "right")}
    if as_dict:
        return make({"a": a, "b": b}, heads)
    return make([a, b], list(heads.values()))


def classifier(make):
    inputs = keras.Input((6,))
    return make(inputs, layers.Dense(3, activation="softmax")(layers.Dense(5, activation="tanh")(inputs)))


class Spare(layers.Layer):
    """Has an unused weight, and adds a loss."""

    def build(self, shape):
        self.used, self.unused = self.add_weight((shape[-1],)), self.add_weight((2,))

    def call(self, x):
        self.add_loss(0.1 * tf.reduce_mean(tf.square(x * self.used)))
        return x * self.used


def spare(make):
    inputs = keras.Input((6,))
    return make(inputs, layers.Dense(1, kernel_regularizer="l2")(Spare()(inputs)))


def own_model(make):
    """Return a subclass with a metric, and a loss and a call without ``training``."""

    class Own(keras.Model if make is keras.Model else bt.Model):
        def __init__(self, **options):
            super().__init__(**options)
            self.dense, self.seen = layers.Dense(1), keras.metrics.Sum("seen")

        def call(self, x):
            return self.dense(x)

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
            return 1 + super().compute_loss(x, y, 2 * y_pred, sample_weight)  # stock would count it for each replica

        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            self.seen.update_state(y_pred)
            return {**super().compute_metrics(x, y, y_pred, sample_weight), "two": tf.constant(2.0)}

    return Own() if make is keras.Model else Own(**make.keywords)


def rmse(y, y_pred):
    return keras.losses.mean_squared_error(y, y_pred) ** 0.5


TWO = {"loss": ["mse", "mae"], "loss_weights": [1.0, 0.5], "metrics": [["mae"], ["mse", "mae"]]}
CASES = {  # name: (model, fit's data, compile's settings)
    "lists, weights for each output": (
        partial(inputs_and_outputs, as_dict=False),
        {"x": [X, WORDS], "y": [Y, -Y], "sample_weight": [WEIGHTS, WEIGHTS[::-1].copy()]},
        TWO,
    ),
    "dicts, an output without loss": (
        partial(inputs_and_outputs, as_dict=True),
        {"x": {"a": X, "b": WORDS}, "y": {"left": Y}},
        {"loss": {"left": "mse", "right": None}},
    ),
    "sample_weight, several steps an execution": (
        classifier,
        {"x": X, "y": CLASSES, "sample_weight": WEIGHTS},
        {"loss": "sparse_categorical_crossentropy", "weighted_metrics": ["accuracy"], "steps_per_execution": 2},
    ),
    "unused weight, add_loss, regulariser": (spare, {"x": X, "y": Y}, {"optimizer": "sgd", "metrics": [rmse]}),
    "own loss and metrics": (own_model, {"x": X, "y": Y}, {"metrics": ["mae"]}),
}


def fit(case, make, replicas):
    build, data, settings = CASES[case]
    keras.utils.set_random_seed(1)
    with on(replicas):
        model = build(make)
        model.compile(**{"optimizer": adam(), "loss": "mse", **settings})
        model.fit(**data, batch_size=BATCH, epochs=2, verbose=0, shuffle=False)
    return model


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("case", CASES)
def test_two_replicas_in_slices_equal_stock_keras_at_once(case):
    whole, model = fit(case, keras.Model, 1), fit(case, partial(bt.Model, micro_batches=3), 2)
    assert distance(model, whole) < 1e-5
    assert model.history.history.keys() == whole.history.history.keys()
    for name, values in whole.history.history.items():
        assert model.history.history[name] == pytest.approx(values, rel=1e-4), name


@pytest.mark.parametrize(("count", "how"), [(5, {}), (7, {"run_eagerly": True})], ids=["graph", "eager"])
def test_what_an_own_compute_metrics_adds_is_a_mean_over_the_examples(count, how):
    class Own(keras.Model):
        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            return {**super().compute_metrics(x, y, y_pred, sample_weight), "target": tf.reduce_mean(y)}

    with on(2):
        inputs = keras.Input((6,))
        model = bt.Model.of(Own(inputs, layers.Dense(1)(inputs)))
        model.compile("sgd", "mse", jit_compile=False, **how)
    y = np.arange(count, dtype="float32")[:, None]  # in the last batch one replica has no example, or one of three
    evaluated = model.evaluate(X[:count], y, batch_size=4, verbose=0, return_dict=True)
    trained = model.fit(X[:count], y, batch_size=4, verbose=0, shuffle=False).history
    assert evaluated["target"] == trained["target"][0] == np.mean(y[4:])


class WithAnUnusedLayer(layers.Layer):
    def __init__(self):
        super().__init__()
        self.unused = layers.BatchNormalization()

    def call(self, x):
        return x


def test_batch_normalisation_ends_alike_on_every_replica_with_the_mean_of_their_statistics():
    def build():
        keras.utils.set_random_seed(1)
        inputs = keras.Input((6,))
        x = WithAnUnusedLayer()(layers.BatchNormalization(name="first")(inputs))
        return bt.Model(inputs, layers.Dense(1)(layers.BatchNormalization(renorm=True)(x)))

    data = batches([4], X[:4] * [[1], [2], [3], [4]], Y[:4])
    alone, both = [trained(build, data, keras.optimizers.SGD, replicas) for replicas in (1, 2)]
    assert replicas_agree(both)
    mean = both.get_layer("first").moving_mean.numpy()
    np.testing.assert_allclose(mean, alone.get_layer("first").moving_mean.numpy(), rtol=1e-5)


def test_synchronised_batch_normalisation_sees_the_global_batch():
    def build():
        keras.utils.set_random_seed(1)
        inputs = keras.Input((6,))
        x = layers.BatchNormalization(synchronized=True)(layers.Dense(4, activation="tanh")(inputs))
        return bt.Model(inputs, layers.Dense(1)(x))

    data = batches([12, 12], X, Y)
    whole, model = [trained(build, data, adam, replicas) for replicas in (1, 2)]
    assert distance(model, whole) < 1e-4 and replicas_agree(model)


REFUSED = {  # words: (layer, optimizer, (replicas, micro-batches))
    "norm: SpectralNormalization changes its weights in each forward pass": (
        lambda: layers.SpectralNormalization(layers.Dense(6), name="norm"),
        keras.optimizers.SGD,
        (1, 2),
    ),
    "synchronized=True on several replicas needs micro_batches=1": (
        lambda: layers.BatchNormalization(synchronized=True),
        keras.optimizers.SGD,
        (2, 2),
    ),
    "ema_overwrite_frequency=2 does not work with several replicas in one process": (
        layers.Flatten,
        partial(keras.optimizers.SGD, use_ema=True, ema_overwrite_frequency=2),
        (2, 1),
    ),
    "leave it out of the optimizer and set micro_batches": (
        layers.Flatten,
        partial(keras.optimizers.SGD, gradient_accumulation_steps=2),
        (1, 2),
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_works_in_one_piece_only_is_refused(words):
    layer, optimizer, (replicas, micro_batches) = REFUSED[words]
    with on(replicas):
        inputs = keras.Input((6,))
        model = bt.Model(inputs, layers.Dense(1)(layer()(inputs)), micro_batches=micro_batches)
        model.compile(optimizer(), "mse")
    with pytest.raises(ValueError, match=words):
        model.fit(X, Y, verbose=0)


def test_float8_is_refused_in_micro_batches():
    inputs = keras.Input((6,))
    model = bt.Model(inputs, layers.Dense(1)(inputs), micro_batches=2)
    model.quantize("float8")
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="float8 works only on one device and without micro_batches"):
        model.fit(X, Y, verbose=0)


class Adds(keras.layers.Layer):
    def call(self, x):
        self.add_loss(tf.reduce_mean(x**2))
        return x


class Named(keras.Model):
    """Its metrics by name, as in Keras' guides; the result of those of `compile` is a dictionary."""

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        super().compute_metrics(x, y, y_pred, sample_weight)
        return {metric.name: metric.result() for metric in self.metrics}


def one_layer(kind=keras.Model, *after, **compiled):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((3,))
    outputs = keras.layers.Dense(1)(inputs)
    for layer in after:
        outputs = layer(outputs)
    model = kind(inputs, outputs)
    model.trainable = "optimizer" not in compiled
    model.compile(**{"optimizer": "sgd", **compiled})
    return model


@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
@pytest.mark.parametrize(
    "make",
    [
        lambda: one_layer(keras.Model, Adds(), loss=lambda y, y_pred: 0.0, jit_compile=False),
        lambda: one_layer(keras.Model, Adds(), loss=lambda y, y_pred: 0.0, jit_compile=True),
        lambda: one_layer(Named, loss="mse", metrics=["mae"]),
        lambda: one_layer(optimizer=None, loss="mse"),
    ],
    ids=["a loss that is a Python number", "the same under XLA", "metrics by name", "no optimizer"],
)
def test_what_stock_keras_trains_has_the_same_history(make):
    x, y = np.linspace(0, 1, 24, dtype="float32").reshape(8, 3), np.ones((8, 1), "float32")
    stock, ours = make(), bt.Model.of(make())
    histories = [model.fit(x, y, validation_data=(x, y), shuffle=False, verbose=0).history for model in (stock, ours)]
    assert histories[0].keys() == histories[1].keys()
    assert all(np.allclose(histories[0][name], histories[1][name], rtol=1e-5) for name in histories[0])


class OfRagged(keras.Model):
    def __init__(self):
        super().__init__()
        self.embed, self.a, self.b = keras.layers.Embedding(9, 4), keras.layers.Dense(1), keras.layers.Dense(1)

    def call(self, tokens):
        x = tf.reduce_mean(self.embed(tokens.to_tensor()), 1)
        return {"a": self.a(x), "b": self.b(x)}


def test_two_targets_of_ragged_inputs_train_as_in_stock():
    y = {name: np.ones((4, 1), "float32") for name in "ab"}
    data = tf.data.Dataset.from_tensors((tf.ragged.constant([[1], [2, 3], [4], [5, 6, 7]]), y))
    found = []
    for convert in (lambda model: model, bt.Model.of):
        keras.utils.set_random_seed(1)
        model = convert(OfRagged())
        model.compile("sgd", {"a": "mse", "b": "mse"}, jit_compile=False)
        found.append(model.fit(data, epochs=2, verbose=0).history["loss"])
    assert np.allclose(*found, rtol=1e-5)
