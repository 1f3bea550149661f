"""Losses and outputs of pairs of examples, losses with their own `__call__`, with state, and of unknown numbers."""

import warnings

import numpy as np
import pytest
from equal_models import distance, on

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

Loss = keras.losses.Loss
DIVIDED = pytest.mark.parametrize("settings", [{"micro_batches": 4}, {}], ids=["micro-batches", "replicas"])
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(24, 6)).astype("float32")
CLASSES = RANDOM.integers(0, 3, 24)


class Contrastive(Loss):
    """As in tutorials on supervised contrastive learning: reduces by itself."""

    def __call__(self, labels, features, sample_weight=None):
        features = tf.math.l2_normalize(features, axis=1)
        others = 1 - tf.eye(tf.shape(labels)[0])
        scores = tf.matmul(features, features, transpose_b=True)
        alike = others * tf.cast(tf.equal(labels[:, None], labels[None]), tf.float32)
        chances = scores - tf.math.log(tf.reduce_sum(others * tf.exp(scores), axis=1, keepdims=True))
        return -tf.reduce_mean(tf.math.divide_no_nan(tf.reduce_sum(alike * chances, 1), tf.reduce_sum(alike, 1)))


class SumByTheGlobalBatch(Loss):
    def __call__(self, y, outputs, sample_weight=None):
        return tf.reduce_sum(outputs**2) / 24


class Several(Loss):
    def __call__(self, y, outputs, sample_weight=None):
        return tf.reduce_sum(outputs**2, 1)


class Differences(Loss):
    def call(self, y, outputs):
        y = tf.reshape(y, [-1, 1])
        return (outputs[:, :1] - tf.transpose(outputs[:, :1]) - y + tf.transpose(y)) ** 2


class RowAgainstColumn(Loss):
    """Targets (N,) against outputs (N, 1)."""

    def call(self, y, outputs):
        return (y - outputs[:, :1]) ** 2


def pairs_above_the_diagonal(y, outputs):
    scores = tf.matmul(outputs, outputs, transpose_b=True)
    return tf.boolean_mask(scores, tf.range(tf.shape(scores)[0])[:, None] < tf.range(tf.shape(scores)[0]))


class MovingMean(Loss):
    def __init__(self):
        super().__init__()
        self.mean = tf.Variable(1.0, trainable=False)

    def call(self, y, outputs):
        self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(outputs))
        return tf.reduce_mean((outputs - self.mean) ** 2, 1)


class CountsExamples(Loss):
    def __init__(self):
        super().__init__()
        self.seen = keras.Variable(0.0, trainable=False)

    def call(self, y, outputs):
        self.seen.assign_add(1.0)
        return tf.reduce_mean(outputs**2, 1)


def compiled(loss, replicas=None, micro_batches=1, make=bt.Model, **how):
    keras.utils.set_random_seed(1)
    replicas = replicas or (2 if micro_batches == 1 and make is not keras.Model else 1)
    with on(replicas):
        inputs = keras.Input((6,))
        settings = {} if make is keras.Model else {"micro_batches": micro_batches}
        model = make(inputs, keras.layers.Dense(4)(inputs), **settings)
        model.compile("sgd", loss() if isinstance(loss, type) else loss, **{"jit_compile": False, **how})
    return model


def fit(model, way="fit", y=CLASSES):
    return getattr(model, way)(X, y, batch_size=24, verbose=0, **({"shuffle": False} if way == "fit" else {}))


REFUSED = {
    SumByTheGlobalBatch: "SumByTheGlobalBatch adds up",
    Several: r"Several overrides __call__ and returns the shape \(.*\), where Keras takes one number",
    Differences: r"Differences returns the shape \(8, 8\) for 8 examples: numbers for pairs of examples",
    RowAgainstColumn: r"RowAgainstColumn returns the shape \(8, 8\).*\(N,\) against \(N, 1\) makes \(N, N\)",
    pairs_above_the_diagonal: r"pairs_above_the_diagonal returns the shape \(28,\) for 8 examples",
    MovingMean: "MovingMean changes variables of its own whenever it is called",
    CountsExamples: "CountsExamples changes variables of its own whenever it is called",
}


@DIVIDED
@pytest.mark.parametrize("loss", REFUSED, ids=lambda loss: loss.__name__)
def test_losses_that_are_no_mean_of_pieces_are_refused_by_name(loss, settings):
    with pytest.raises(ValueError, match=REFUSED[loss]):
        fit(compiled(loss, **settings))


@pytest.mark.parametrize("loss", [SumByTheGlobalBatch, RowAgainstColumn, MovingMean], ids=lambda loss: loss.__name__)
def test_an_eager_step_and_an_evaluation_on_replicas_refuse_them_too(loss):
    with pytest.raises(ValueError, match=REFUSED[loss]):
        fit(compiled(loss, micro_batches=2, run_eagerly=True))
    with pytest.raises(ValueError, match=REFUSED[loss]):
        fit(compiled(loss), "evaluate")


@DIVIDED
def test_a_loss_that_reduces_by_itself_is_looked_at(settings):
    with pytest.warns(UserWarning, match="Contrastive is one number for a batch, not one for each example"):
        fit(compiled(Contrastive, **settings))


@DIVIDED
def test_a_loss_that_calls_its_super_is_right_and_not_warned_of(settings):
    class Doubled(keras.losses.SparseCategoricalCrossentropy):
        def __call__(self, y, outputs, sample_weight=None):
            return 2 * super().__call__(y, outputs, sample_weight)

    loss = Doubled(from_logits=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*(one number|examined|depends)")
        model = compiled(loss, **settings)
        fit(model)
    whole = compiled(loss, make=keras.Model)
    fit(whole)
    assert distance(model, whole) < 1e-5
    assert fit(model, "evaluate") == pytest.approx(fit(whole, "evaluate"), rel=1e-5)


@DIVIDED
def test_a_loss_that_takes_no_drawn_numbers_is_said_to_be_unexamined(settings):
    def ones_only(y, outputs):
        with tf.control_dependencies([tf.debugging.assert_equal(y, tf.fill(tf.shape(y), 7.0))]):
            return tf.reduce_mean(outputs**2, 1)

    def not_finite(y, outputs):
        return tf.reduce_mean(outputs**2, 1) * tf.math.log(y - 6)

    for loss, why in ((ones_only, "did not hold"), (not_finite, "it is not finite")):
        with pytest.warns(UserWarning, match=f"(?s){loss.__name__} could not be examined with drawn numbers .*{why}"):
            fit(compiled(loss, **settings), y=np.full([24, 1], 7.0))


def test_drawn_numbers_leave_the_random_numbers_of_a_loss_alone():
    class Noisy(Loss):
        def __init__(self):
            super().__init__()
            self.seed = keras.random.SeedGenerator(1)

        def call(self, y, outputs):
            return tf.reduce_mean((outputs + keras.random.normal(tf.shape(outputs), seed=self.seed)) ** 2, 1)

    model = compiled(Noisy, micro_batches=2)
    with pytest.warns(UserWarning, match="Noisy could not be examined with drawn numbers .it draws random numbers"):
        fit(model)
    assert model.loss.seed.state.numpy()[1] == 2  # one for each micro-batch


def similarities(replicas, micro_batches, extra=False):
    class Similarities(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense, self.spare = keras.layers.Dense(4), keras.layers.Dense(3)

        def call(self, x):
            features = self.dense(x)
            scores = tf.matmul(features, features, transpose_b=True)
            return {"scores": scores, "class": self.spare(x)} if extra else scores

    keras.utils.set_random_seed(1)
    with on(replicas):
        model = bt.Model.of(Similarities(), micro_batches=micro_batches)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", {"class": loss} if extra else loss, jit_compile=False)
    return model


@pytest.mark.parametrize(("replicas", "micro_batches"), [(1, 4), (2, 1)])
@pytest.mark.parametrize("is_known", [True, False])
def test_outputs_of_pairs_are_refused(replicas, micro_batches, is_known):
    data = tf.data.Dataset.from_tensor_slices((X, np.arange(24) % 4)).batch(24, drop_remainder=is_known)
    said = r"it returns the shape \((\d+), \1\), with a second axis as long as the batch"
    with pytest.raises(ValueError, match=said):
        similarities(replicas, micro_batches).fit(data, verbose=0)
    if replicas > 1:
        for way in ("evaluate", "predict"):
            with pytest.raises(ValueError, match=said):
                getattr(similarities(replicas, micro_batches), way)(data, verbose=0)


@pytest.mark.parametrize(("replicas", "micro_batches"), [(1, 4), (2, 1)])
def test_outputs_of_pairs_without_a_loss_are_let_through(replicas, micro_batches):
    data = tf.data.Dataset.from_tensor_slices((X, {"class": CLASSES})).batch(24)
    models = [similarities(1, 1, True), similarities(replicas, micro_batches, True)]
    for model in models:
        model.fit(data, verbose=0)
    assert distance(*models) < 1e-5


def test_as_many_classes_as_examples_and_sequences_of_any_length_are_let_through():
    inputs = keras.Input((None, 6))
    words = bt.Model(inputs, keras.layers.Dense(12)(inputs), micro_batches=2)
    words.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    words.fit(np.ones([24, 12, 6]), np.ones([24, 12], int), batch_size=24, verbose=0)
