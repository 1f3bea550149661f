"""`bt.preflight` finds the fault of faulty training, reports no error for healthy training, and changes nothing."""

import inspect
import json
import re
import subprocess
import sys
import time
from collections import deque
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
from tiers import in_two_tiers
from trainings import (
    CLASSES,
    EXAMPLE,
    FAULTY,
    HEALTHY,
    NUMBERS,
    PADDED,
    SORTED,
    TOKENS,
    X,
    batched,
    by_feature,
    classifier,
    compiled,
    crossentropy,
    dense,
    images,
    in_policy,
    language_model,
    next_tokens,
    of_classes,
    of_numbers,
    padded_tokens,
    regressor,
    step_by_hand,
    table,
    tokens,
    with_own_step,
)

import bigtrain_nb as bt
from bigtrain_nb.advanced.preflight import checkpointing, growth, memory
from bigtrain_nb.advanced.preflight import loss as of_loss
from bigtrain_nb.advanced.preflight import preflight as room
from bigtrain_nb.advanced.preflight.__main__ import main
from bigtrain_nb.common.quiet import keras, tf

layers = keras.layers
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
HELPERS = {
    "overfit one batch": ["_own_steps"],
    "order of classes": ["_order_of"],
    "label leakage": ["_answer_within"],
    "memory over passes": ["_tracings"],
}  # {check: helpers that report further lines}
QUICK = ["data", "leaks", "weights move", "outputs and loss", "range of outputs", "dead units", "frozen layers"]


@pytest.fixture(autouse=True)
def seeded():
    keras.utils.set_random_seed(1)


def examined(build, checks, **more):
    model, data, *validation = build()
    return bt.preflight(model, data, validation=validation[0] if validation else None, checks=checks, **more)


def only(model, data, check, **more):
    """Return the finding of one check; the group "memory" has another one."""
    (finding,) = [each for each in bt.preflight(model, data, checks=[check], **more).findings if each.check == check]
    return finding


SAID_OF = {  # {faulty training: pattern of its line}
    "labels_minus_one_with_weight_0": "A sample weight of 0 does not help.*ignore_class=-1",
    "validation_within_training": "at random: 0%",
    "mask_lost_at_a_sum": "lost behind.*so that layer_normalization",
}


@pytest.mark.parametrize("name", FAULTY)
def test_the_fault_of_a_faulty_training_is_named_with_a_number_and_what_to_do(name):
    build, cause = FAULTY[name]
    report = examined(build, [cause])
    assert [finding.check for finding in report.of("error")] == [cause], report
    (error,) = report.of("error")
    assert report.failed and error.advice and re.search(r"\d|Nothing|no examples", error.message)
    assert re.search(SAID_OF.get(name, ""), str(error)), report


SIMILAR = ["llama_of_keras_hub", "eagerly", "cached_and_repeated", "sequences_of_any_length"]
FIRST = [name for name in HEALTHY if name not in SIMILAR]


@pytest.mark.parametrize("name", in_two_tiers(HEALTHY, FIRST, pytest.mark.more("similar ones are in the first tier")))
def test_a_healthy_training_gets_no_error(name):
    report = examined(HEALTHY[name], QUICK)
    assert not report.failed, report
    assert not any("It failed" in finding.message for finding in report.findings), report
    assert len(report.of("ok")) >= 3


FOUND = []  # [(check, function that builds a training, pattern of the check's line)]


def found(check, line):
    """Register a training, with the line of a check about it."""

    def enter(build):
        FOUND.append((check, build, line))
        return build

    return enter


OVER_PASSES = "memory over passes"


@keras.saving.register_keras_serializable("unsaved")
class Unsaved(layers.Layer):
    def call(self, x):
        return x

    def get_config(self):
        raise NotImplementedError("this layer has no settings to write")


class UnsavedToo(Unsaved):
    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones")

    def save_own_variables(self, store):
        raise RuntimeError("nor any weights")


class Listing(keras.Model):
    def train_step(self, data):
        logs = super().train_step(data)
        self.losses_of_steps.append(logs["loss"])
        return logs


def listing(losses):
    inputs = keras.Input((8,))
    model = Listing(inputs, layers.Dense(3, "softmax")(inputs))
    object.__setattr__(model, "losses_of_steps", losses)  # Keras would track a list
    model.compile("adam", "sparse_categorical_crossentropy", run_eagerly=True)
    return model, batched(X, CLASSES)


def frozen_base(*more):
    base = keras.Sequential([keras.Input((8, 8, 3)), *more])
    base.trainable = False
    pooled = layers.GlobalAveragePooling2D()
    model = keras.Sequential([keras.Input((8, 8, 3)), base, pooled, layers.Dense(3, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy")
    return model, batched(np.random.default_rng(0).normal(size=(32, 8, 8, 3)).astype("float32"), np.arange(32) % 3)


def convolution():
    return layers.Conv2D(32, 3, use_bias=False)


@found("frozen layers", "ok")
def frozen_convolution_with_biases_of_0_and_trained_statistics():
    model, data = frozen_base(layers.Conv2D(32, 3), layers.BatchNormalization())
    for layer in model.layers[0].layers:
        layer.set_weights([np.random.default_rng(0).laplace(1, 0.1, each.shape) for each in layer.get_weights()])
    model.layers[0].layers[0].bias.assign(np.zeros(32))
    return model, data


@found("frozen layers", "skipped")
def frozen_weights_that_their_initializer_cannot_draw():
    class Scale(layers.Layer):
        def __init__(self):
            super().__init__(trainable=False)
            self.kernel_initializer = keras.initializers.Orthogonal(seed=1)  # only for matrices

        def build(self, shape):
            self.scale = self.add_weight(shape=(8000,), initializer="random_normal")

        def call(self, x):
            return x * self.scale[:8]

    model = keras.Sequential([keras.Input((8,)), Scale(), layers.Dense(3, "softmax")])
    return compiled(model, "sparse_categorical_crossentropy", X, CLASSES)


@found("inputs by name", "warning.*'unused'")
def a_feature_without_an_input():
    inputs = [keras.Input((4,), name=name) for name in ("age", "width")]
    model = keras.Model(inputs, layers.Dense(1)(layers.Concatenate()(inputs)))
    model.compile("adam", "mse")
    return model, by_feature(dict, "age", "width", "unused")[1]


@found("saved and loaded", "warning.*Keras alone cannot load")
def a_class_that_is_not_registered():
    class Doubles(layers.Layer):
        def call(self, x):
            return 2 * x

    return regressor(Doubles()), batched(X, NUMBERS)


@found("saved and loaded", "error.*differ by inf%")
def a_setting_that_is_not_saved():
    @keras.saving.register_keras_serializable("scaled")
    class Scaled(layers.Layer):
        def __init__(self, scale=np.nan, **settings):
            super().__init__(**settings)
            self.scale = scale

        def get_config(self):
            return {"name": self.name}

        def call(self, x):
            return self.scale * x

    return of_numbers(Scaled(2.0))


@found("stopped and resumed", "warning.*from the same start differ")
def state_that_no_checkpoint_holds():
    class Remembers(layers.Layer):
        calls = 0

        def call(self, x):
            self.calls += 1
            return x * (1 + 0.01 * self.calls)

    return regressor(Remembers()), batched(X, NUMBERS)


@found("the model takes the batch", "ok")
def task_with_a_preprocessor():
    class Task(keras.Sequential):
        """Like a KerasHub task, which applies its preprocessor in `fit`."""

        preprocessor = "one"

        def preprocess_samples(self, x, y=None, sample_weight=None):
            return keras.utils.pack_x_y_sample_weight(tf.strings.to_number(x)[:, None], y, sample_weight)

    model = Task([keras.Input((1,)), layers.Dense(1)])
    model.compile("sgd", "mse")
    return model, batched(["1", "2", "3", "4"], [[1.0], [2.0], [3.0], [4.0]], size=2)


@found("the model takes the batch", "ok.*4 batches")
def py_dataset_of_four_batches():
    class Batches(keras.utils.PyDataset):
        num_batches = 4

        def __getitem__(self, number):
            return X[16 * number : 16 * number + 16], NUMBERS[16 * number : 16 * number + 16]

    return regressor(), Batches()


@found("weights move", "ok")
@found("gradients", "ok")
def zero_weights_and_an_optimizer_that_accumulates():
    inputs = keras.Input((8,))
    narrow = layers.Dense(2, use_bias=False)(inputs)
    both = [layers.Dense(1)(inputs), layers.Dense(1, kernel_initializer="zeros")(narrow)]
    model = keras.Model(inputs, layers.Add()(both))
    return compiled(model, "mse", X, NUMBERS, optimizer=keras.optimizers.Adam(0.1, gradient_accumulation_steps=24))


def zeros_at_the_end():
    """Return a training in which 0 is also a token."""
    x = np.random.default_rng(0).integers(0, 9, (64, 17))
    x[:, -3:] = 0
    model = keras.Sequential([keras.Input((16,), dtype="int32"), layers.Embedding(9, 8), layers.Dense(9)])
    model.compile("adam", crossentropy())
    return next_tokens(model, x)


@found("finite values", "warning")
@found("start", "ok")
def values_that_the_model_fills_in():
    inputs = keras.Input((8,))
    return compiled(keras.Model(inputs, layers.Dense(1)(keras.ops.nan_to_num(inputs))), "mse", WITH_NAN, NUMBERS)


@found("gradients", "warning.*no output that the loss's gradient reaches depends on them: later")
def an_output_without_a_loss():
    inputs = keras.Input((8,))
    hidden = layers.Dense(16, "relu")(inputs)
    model = keras.Model(inputs, [layers.Dense(1, name="now")(hidden), layers.Dense(4, name="later")(hidden)])
    return compiled(model, ["mse", None], X, (NUMBERS, X[:, :4]))


@found("start", "ok")
def raw_pixels_before_batch_statistics():
    pixels, y = images()
    model = keras.Sequential([keras.Input((8, 8, 3)), layers.Conv2D(8, 3), layers.BatchNormalization(), layers.ReLU()])
    for layer in (layers.Flatten(), layers.Dense(2)):
        model.add(layer)
    return compiled(model, crossentropy(), pixels.astype("float32"), y)


@found("micro-batches", "ok")
def targets_with_as_many_rows_as_there_are_outputs():
    inputs = keras.Input((8,))
    model = keras.Model(inputs, [layers.Dense(3)(inputs), layers.Dense(2)(inputs)])
    model.compile("sgd", [crossentropy(), None])
    return model, batched(X, CLASSES, size=8)  # which the check splits into 2 and 6


@found("micro-batches", "warning.*SparseCategoricalCrossentropy skips positions")
def one_of_two_losses_ignores_a_class():
    inputs = keras.Input((8,))
    model = keras.Model(inputs, {"kind": layers.Dense(3)(inputs), "size": layers.Dense(1)(inputs)})
    model.compile("sgd", {"kind": crossentropy(ignore_class=0), "size": "mse"})
    return model, batched(X, {"kind": EXAMPLE**2 % 3, "size": NUMBERS})


@found("label leakage", "error.*at t.*inputs 'tokens'")
@found("padding", "error.*inputs 'tokens' are padding")
def tokens_beside_kinds():
    rows = np.random.default_rng(0).integers(1, 20, (32, 9))
    rows[::2, 5:] = 0
    inputs = {name: keras.Input((8,), name=name, dtype="int32") for name in ("tokens", "kinds")}
    seen = [layers.Embedding(20, 8)(each) for each in inputs.values()]
    model = keras.Model(inputs, layers.Dense(20)(layers.Bidirectional(layers.GRU(8, return_sequences=True))(sum(seen))))
    return compiled(model, crossentropy(), {"tokens": rows[:, :-1], "kinds": np.ones((32, 8), int)}, rows[:, 1:])


@found("overfit one batch", "warning.*it has ended, and steps do nothing")
def a_schedule_at_its_end():
    model = regressor(rate=keras.optimizers.schedules.PolynomialDecay(0.01, 5, 0.0))
    model.optimizer.build(model.trainable_variables)
    model.optimizer.iterations.assign(10)
    return model, batched(X, NUMBERS)


@found("start", "ok.*add_loss alone")
def only_a_loss_that_a_layer_adds():
    model = keras.Sequential([keras.Input((8,)), layers.Dense(8, activity_regularizer="l2")])
    return compiled(model, None, X, optimizer="sgd")


@found("dead units", "ok.*Relu layers: 2")
def one_relu_at_two_widths():
    relu = layers.ReLU()
    inputs = keras.Input((8,))
    model = keras.Model(inputs, layers.Dense(1)(relu(layers.Dense(8)(relu(layers.Dense(16)(inputs))))))
    return compiled(model, "mse", X, NUMBERS, optimizer="sgd")


@found("outputs and loss", "skipped.*axis=1")
def classes_along_another_axis():
    inputs = keras.Input((3, 4, 4))
    scores = layers.Permute((3, 1, 2))(layers.Dense(3)(layers.Permute((2, 3, 1))(inputs)))  # on CPUs, NCHW needs oneDNN
    model = keras.Model(inputs, layers.Softmax(axis=1)(scores))
    model.compile("sgd", keras.losses.CategoricalCrossentropy(axis=1))
    y = np.eye(3, dtype="float32")[np.zeros((8, 4, 4), int)].transpose(0, 3, 1, 2)
    return model, batched(np.ones((8, 3, 4, 4), "float32"), y, size=4)


@found("constant data", "warning")
def strings_that_are_all_the_same():
    words = layers.TextVectorization(20, output_sequence_length=2)
    words.adapt(["the"])
    inputs = keras.Input((), dtype="string")
    model = keras.Model(inputs, layers.Dense(1)(layers.Flatten()(layers.Embedding(20, 4)(words(inputs)))))
    return compiled(model, "mse", ["the"] * 32, np.arange(32.0)[:, None])


@found("padding", "error.*% of the loss's gradient")
def padding_behind_a_softmax():
    model = keras.Sequential([keras.Input((12,)), layers.Embedding(20, 8), layers.Dense(20, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy")
    return next_tokens(model, PADDED)


@found("padding", "error")
def padding_in_one_of_several_outputs():
    rows = padded_tokens()
    inputs = keras.Input((12,), dtype="int32")
    hidden = layers.Embedding(20, 8)(inputs)
    whole = layers.Dense(2)(layers.GlobalAveragePooling1D()(hidden))
    model = keras.Model(inputs, {"kind": layers.Dense(3)(hidden), "of_all": whole})
    model.compile("adam", {"kind": crossentropy(), "of_all": crossentropy()})
    return model, batched(rows, {"kind": rows % 3, "of_all": rows[:, 0] % 2})


@found("label leakage", "error.*Targets 'next' at t")
def one_of_two_targets_is_seen():
    inputs = keras.Input((12,), dtype="int32")
    hidden = layers.Bidirectional(layers.GRU(8, return_sequences=True))(layers.Embedding(20, 8)(inputs))
    model = keras.Model(inputs, {"next": layers.Dense(20)(hidden), "size": layers.Dense(1)(hidden[:, 0])})
    model.compile("adam", {"next": crossentropy(), "size": "mse"})
    return model, batched(TOKENS[:, :-1], {"next": TOKENS[:, 1:], "size": TOKENS[:, :1] / 20})


def from_source_to_target(target, weighted=False):
    one, two = (keras.Input((12,), dtype="int32") for _ in range(2))
    seen = layers.Embedding(20, 16)(one)
    x = layers.Embedding(20, 16)(two)
    x = layers.Add()([x, layers.MultiHeadAttention(2, 8)(x, x, use_causal_mask=True)])
    x = layers.Add()([x, layers.MultiHeadAttention(2, 8)(x, seen)])
    model = keras.Model([one, two], layers.Dense(20)(x))
    model.compile("adam", crossentropy())
    weights = [(target[:, 1:] > 0).astype("float32")] if weighted else []
    return model, batched((padded_tokens(), target[:, :-1]), target[:, 1:], *weights)


@found("evaluation", "ok.*rnn_state")
def stateful():
    inputs = keras.Input((5, 3), batch_size=16)
    model = keras.Model(inputs, layers.Dense(1)(layers.LSTM(4, stateful=True)(inputs)))
    model.compile("adam", "mse")
    draw = np.random.default_rng(0)
    return model, batched(draw.normal(size=(64, 5, 3)).astype("float32"), draw.normal(size=(64, 1)).astype("float32"))


def mapped_through(keep):
    """Return a training whose dataset calls a Python function."""

    def mapped(x, y):
        return tf.ensure_shape(tf.numpy_function(keep, [x], tf.float32), x.shape), y

    return classifier(), batched(X, CLASSES).map(mapped)


@found("memory over passes", r"warning.*\(ndarray\)")
def a_function_of_the_dataset_keeps_arrays():
    kept_here = []

    def keep(x):
        kept_here.append(x)
        return x

    return mapped_through(keep)


@found("memory over passes", "warning.*MiB and")
def memory_that_no_list_keeps():
    kept = [None]

    def keep(x):
        kept[0] = (kept[0], np.ones(2**21, "uint8"))
        return x

    return mapped_through(keep)


@found("outputs and loss", "ok")
def weights_of_a_trial_overflow():
    model = keras.Sequential([keras.Input((4, 4, 3))])
    for _ in range(40):
        model.add(layers.Conv2D(16, 3, padding="same", activation="relu", kernel_initializer="he_normal"))
    for layer in (layers.GlobalAveragePooling2D(), layers.Dense(3, "softmax")):
        model.add(layer)
    model.compile("adam", "sparse_categorical_crossentropy")
    return model, batched(np.random.default_rng(0).normal(size=(32, 4, 4, 3)).astype("float32"), np.arange(32) % 3)


def logits_of(outputs, **how):
    return dense(layers.Dense(outputs), loss=crossentropy(), **how)


def by_the_global_batch(y, outputs):
    return tf.reduce_sum((y - outputs) ** 2) / 16


def over_places_above_0(y, outputs):
    counted = tf.cast(y > 0, "float32")
    return tf.reduce_sum(counted * (y - outputs) ** 2) / tf.reduce_sum(counted)


class Squares(keras.losses.Loss):
    """Compares its arguments as they are: Keras aligns shapes only for functions."""

    def call(self, y_true, y_pred):
        return tf.reduce_mean((tf.cast(y_true, y_pred.dtype) - y_pred) ** 2, -1)


class Ranks(keras.losses.Loss):
    """Deliberately compares all pairs of examples, whatever the shape."""

    def call(self, y_true, y_pred):
        y_true, y_pred = (tf.reshape(tf.cast(each, "float32"), [-1]) for each in (y_true, y_pred))
        above = tf.cast(y_true[:, None] > y_true[None], "float32")
        return above * tf.nn.softplus(y_pred[None] - y_pred[:, None])


class Contrasts(keras.losses.Loss):
    def __call__(self, labels, features, sample_weight=None):
        features = tf.math.l2_normalize(features, 1)
        scores = tf.matmul(features, features, transpose_b=True) / 0.1
        same = tf.cast(labels[:, None] == labels[None], "float32")
        return tf.reduce_mean(
            tf.nn.softmax_cross_entropy_with_logits(same / tf.reduce_sum(same, 1, keepdims=True), scores)
        )


def contrasting():
    return dense(layers.Dense(16), loss=Contrasts()), batched(X, CLASSES)


def normalized_behind(rescaling):
    x, y = images()
    model = keras.Sequential([keras.Input((8, 8, 3)), rescaling, layers.Normalization(), layers.Flatten()])
    model.add(layers.Dense(2, "softmax"))
    return compiled(model, "sparse_categorical_crossentropy", x, y)


def logarithms_of_outputs():
    model = dense(layers.Dense(1, "relu"), loss=lambda y, outputs: tf.math.log(1 + outputs))
    return model, batched(X, NUMBERS - 5)  # whose mean has no logarithm


def two_batches():
    return classifier(), batched(*table(32))


def custom_loss_of_the_model(y):
    class Own(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return tf.reduce_mean((tf.cast(y, y_pred.dtype) - y_pred) ** 2)

    model = Own([layers.Dense(1)])
    model.compile("adam")
    return model, batched(X, y)


def speech(labels):
    inputs = keras.Input((12, 4))
    model = keras.Model(inputs, layers.Dense(6)(layers.GRU(8, return_sequences=True)(inputs)))
    model.compile("adam", keras.losses.CTC())
    x = np.random.default_rng(0).normal(size=(8, 12, 4)).astype("float32")
    return model, batched(x, np.array([labels] * 8), size=8)


def of_two_targets(x, y, **others):
    model, _ = HEALTHY["two_outputs"]()
    return model, batched(x, {"kind": y, "size": x[:, :1] + x[:, 1:2], **others}, size=8)


def compared_with(x, y, training=(X, CLASSES)):
    return classifier(), batched(*training), batched(x, y)


def featured(change):
    """Return a training with two features, changed by a function."""
    model, data = by_feature(dict, "age", "width")
    return model, data.map(lambda x, y: (change(x), y))


def large(x):
    return {**x, "width": 1000 * x["width"]}


ROUNDED = np.round(4 * X) / 4
RISING = (np.arange(960)[:, None] / 100 + np.random.default_rng(0).normal(size=(960, 8))).astype("float32")
OF_RISING = np.arange(960, dtype="int32") % 3
ONE_HOT = np.eye(3, dtype="float32")[CLASSES]


def of_many_numbers():
    model = keras.Sequential([keras.Input((2000,)), layers.Dense(1)])
    x = np.random.default_rng(0).normal(size=(128, 2000)).astype("float32")
    return compiled(model, "mse", x, np.random.default_rng(1).normal(size=(128, 1)).astype("float32"))


def walks(columns=1, length=18):
    return np.cumsum(np.random.default_rng(0).normal(size=(64, length, columns)), 1).astype("float32")


def of_sequences(causal, x, y, loss="mse"):
    """Return a model with an input for each array of ``x``, [examples, 16, columns], and its data."""
    inputs = [keras.Input(each.shape[1:]) for each in (x if isinstance(x, tuple) else (x,))]
    hidden = layers.Concatenate()(inputs) if len(inputs) > 1 else inputs[0]
    hidden = layers.Conv1D(8, 3, padding="causal" if causal else "same")(hidden)
    last = layers.Dense(1) if loss == "mse" else layers.Dense(20, "softmax")
    return compiled(keras.Model(inputs, last(hidden)), loss, x, y)


WITH_NAN = np.where((EXAMPLE[:, None] == 3) & (np.arange(8) == 2), np.nan, X).astype("float32")
ONE, THREE = walks(), walks(3)
COPIES = [  # of the answer, one position later
    (ONE[:, :16], 3 * ONE[:, 1:17] - 2),
    (THREE[:, :16], 0.1 * THREE[:, 1:17, 1:2] + 4),
    ((THREE[:, :16, :1], THREE[:, 1:17, 1:2]), THREE[:, 2:18, 1:2]),
]
ROWS = tokens(64, 17)
HOT = np.eye(20, dtype="float32")[ROWS]


def answers():
    """Yield trainings that see the answer among their inputs, and the line of "label leakage"."""
    for x, y in COPIES:
        yield partial(of_sequences, False, x, y), "error"
    yield partial(of_sequences, False, HOT[:, :-1], ROWS[:, 1:], "sparse_categorical_crossentropy"), "error"
    one_hot = keras.losses.CategoricalCrossentropy(from_logits=True)
    yield lambda: (language_model(16, causal=False, loss=one_hot), batched(ROWS[:, :-1], HOT[:, 1:])), "error"


class Unregistered(keras.optimizers.schedules.LearningRateSchedule):
    """Has no config, either."""

    def __call__(self, step):
        return 0.1


def fill_in(model, data):
    return step_by_hand(model, [tf.where(tf.math.is_finite(each), each, 0.0) for each in data])


def of_triples(model, data):
    x, like, unlike = map(model, data)
    return {"loss": tf.reduce_mean(x * unlike - x * like)}


def accumulating():
    rate = keras.optimizers.schedules.ExponentialDecay(0.05, 1000, 0.9)
    return keras.optimizers.Adam(rate, gradient_accumulation_steps=8)


LABELS_OF_CTC = [
    ([1, 2, 6], "error.*labels from 1 to 6"),
    ([1, 0, 2], "error.*rows have a 0 before a label"),
    ([1] * 7, "error.*need up to 13 outputs, but there are 12"),
    ([1, 5, 5, 0], "ok.*labels are from 1 to 5"),
]

BROADCAST = r"error.*Targets \(16,\) and outputs \(16, 1\) are broadcast"
FEW = "skipped.*(32 examples|fewer than 3)"
SPARSE = keras.losses.SparseCategoricalCrossentropy()
GENERALIZED = keras.losses.CategoricalGeneralizedCrossEntropy
TABLE = {  # {check: [(training, line)]}
    "evaluation": [
        (HEALTHY["monte_carlo_dropout"], "warning.*always also drops or adds noise.*training=True"),
    ],
    "target leakage": [
        (lambda: of_two_targets(X, CLASSES), "ok.*targets 'kind'.*targets 'size'"),
        (lambda: of_two_targets(X, CLASSES, size=2 - 3 * X[:, 4:5]), "warning.*Feature 4.*'size', up to a factor"),
        (two_batches, FEW),
        (of_many_numbers, "ok.*None of the first 500 of 2,000 features"),
        (lambda: of_numbers(y=(X[:, 2] > 0.3).astype("int32")), "warning.*Feature 2.*with a threshold"),
        (lambda: of_numbers(y=np.digitize(X[:, 2], [-0.4, 0.4])), "warning.*Feature 2.*with a threshold"),
        (
            lambda: of_classes(y=1 * np.stack([X[:, 2] > 0, X[:, 2] < 9, X[:, 3] > 0], 1), loss="binary_crossentropy"),
            "skipped.*not one number for each example",
        ),
        (
            lambda: (classifier(width=11), batched(np.concatenate([X, ONE_HOT * 5 - 1], 1), CLASSES)),
            "warning.*one-hot copy",
        ),
    ],
    "start": [
        (lambda: featured(large), r"error.*inputs 'width' \(root mean square.*the largest of 2"),
        (logarithms_of_outputs, "skipped.*best constant predictor is not finite"),
    ],
    "targets": [
        (HEALTHY["regression"], "ok.*takes any number"),
        (lambda: of_classes(loss=GENERALIZED(), y=CLASSES + 1), "error.*no class of 0 to 2"),
        (lambda: (dense(layers.Dense(1, "softplus"), loss="poisson"), batched(X, NUMBERS)), "error.*are not 0 or more"),
        (lambda: of_numbers(loss=Squares(), y=NUMBERS[:, 0]), BROADCAST),
        (lambda: custom_loss_of_the_model(NUMBERS[:, 0]), BROADCAST),
        (lambda: of_numbers(loss=Squares()), "skipped"),
        (lambda: custom_loss_of_the_model(NUMBERS), "skipped"),
        (lambda: of_numbers(loss=Ranks(), y=NUMBERS[:, 0]), "skipped.*Which targets Ranks takes"),
        *((partial(speech, labels), line) for labels, line in LABELS_OF_CTC),
    ],
    "micro-batches": [
        (HEALTHY["language_model_with_mask"], r"warning.*a masked loss.*\. A bt\.Model handles this correctly"),
        (
            lambda: of_numbers(loss=by_the_global_batch),
            "warning.*add up to that of the full batch: by_the_global_batch divides by a number",
        ),
        (
            lambda: of_numbers(loss=over_places_above_0),
            "warning.*differs from that of .*%: over_places_above_0 returns one value per batch",
        ),
        (
            lambda: of_numbers(loss=keras.losses.MeanSquaredError("sum")),
            r'warning.*add up .* the reduction of the loss is "sum"\.',
        ),
        (
            lambda: of_numbers(layers.Dense(8, activity_regularizer="l2")),
            "ok.*of 5 and 11 examples equals that of the full batch",
        ),
    ],
    "label leakage": [
        (lambda: next_tokens(language_model(), TOKENS), "ok.*do not change with what comes after t"),
        (lambda: of_sequences(True, ONE[:, :16], 2 * ONE[:, :16] + 1), "warning.*up to a factor and a constant"),
        (
            lambda: of_sequences(False, (THREE[:, :16, :1], THREE[:, :16, 1:2]), THREE[:, :16, 1:2]),
            "warning.*next to other inputs",
        ),
        (lambda: of_sequences(False, ONE[:, :16], ONE[:, :16]), "ok.*autoencoder"),
        (lambda: of_sequences(True, ONE[:, :-2], ONE[:, 2:]), r"warning.*at t\+2"),
        (partial(of_sequences, True, *COPIES[0]), "ok"),
        *answers(),
    ],
    "outputs and loss": [
        (lambda: of_classes(loss=crossentropy()), "warning.*Keras takes the logits"),
        (
            lambda: (dense(layers.Dense(3, "sigmoid"), loss=SPARSE), batched(X, CLASSES)),
            "warning.*Keras takes the logits",
        ),
        (lambda: (dense(layers.Dense(3, "sigmoid"), loss=GENERALIZED()), batched(X, CLASSES)), "error"),
    ],
    "cross-example leakage": [
        (HEALTHY["variational_autoencoder"], "ok"),
        (
            lambda: of_numbers(layers.Lambda(lambda x: x + tf.random.normal(tf.shape(x)))),
            "skipped.*Outputs are random",
        ),
    ],
    "saved and loaded": [
        (HEALTHY["classes"], "ok.*by stock Keras in a process without bigtrain_nb"),
        (HEALTHY["variational_autoencoder"], "skipped"),
        (lambda: of_numbers(Unsaved()), "warning.*no settings to write"),
        (lambda: of_numbers(UnsavedToo()), "error.*no settings to write"),
    ],
    "constant data": [
        (HEALTHY["features_by_name"], "ok"),
        (
            lambda: featured(lambda x: {name: tf.ones_like(value) for name, value in x.items()}),
            "warning.*The inputs 'age' and the inputs 'width' of all",
        ),
    ],
    "finite values": [
        (lambda: featured(lambda x: {**x, "width": x["width"] / 0.0}), "error.*inputs 'width' of batch 0"),
        (lambda: with_own_step(fill_in, WITH_NAN, NUMBERS), "warning"),
    ],
    "sample weights": [(lambda: with_own_step(of_triples, X, X[::-1], -X, units=4), "skipped.*something else")],
    "the model takes the batch": [
        (lambda: featured(lambda x: {**x, "width": x["width"][:, :3]}), r"error.*inputs 'width' \(16, 3\) float32"),
        (lambda: measured_in_python(run_eagerly=False), "error.*'numpy'"),
    ],
    "validation data": [
        (lambda: (*featured(dict), featured(large)[1]), "error.*The inputs 'width' of validation have mean"),
        (
            lambda: (*featured(dict), featured(lambda x: {"age": x["age"], "height": x["width"]})[1]),
            "error.*only these are floating-point: inputs 'height' in validation, inputs 'width' in training",
        ),
        (lambda: compared_with(X[::-1], CLASSES[::-1]), "ok"),
        (lambda: compared_with(RISING[720:] + 20, OF_RISING[720:], (RISING, OF_RISING)), "warning.*keep changing"),
        (
            lambda: compared_with(np.where(EXAMPLE[:, None] == 3, np.nan, X).astype("float32"), CLASSES),
            "error.*non-finite",
        ),
        (lambda: (*next_tokens(language_model(), TOKENS), next_tokens(None, TOKENS)[1]), "skipped.*have no scale"),
    ],
    "overfit one batch": [
        (
            lambda: of_numbers(layers.Lambda(lambda x, training=False: np.nan * x if training else x)),
            r"error.*the loss rises from \? to inf",
        ),
        (contrasting, "ok.*no reference"),
        (
            lambda: (dense(layers.Dense(4), loss=keras.losses.CosineSimilarity()), batched(X, X[:, :4])),
            "skipped.*oss can be negative",
        ),
        (lambda: of_numbers(y=np.ones_like(NUMBERS)), "ok.*All targets of the batch are the same"),
        (lambda: (language_model(), batched(TOKENS[:4, :-1], TOKENS[:4, 1:], size=1)), ".*best constant predictor"),
        (lambda: compiled(regressor(), "mse", X, NUMBERS, optimizer=accumulating()), "ok.*best constant"),
    ],
    "weights move": [(lambda: in_policy("bfloat16", keras.optimizers.SGD(Unregistered())), ".*The first step goes")],
    "order of classes": [
        (
            lambda: (logits_of(2), batched(np.tile(X, (3, 1))[:320], np.arange(320) // 16 % 2, size=32)),
            "ok.*holds 2 classes on average",
        ),
        (
            lambda: (logits_of(40), batched(np.tile(X, (3, 1))[:320], np.arange(320) // 8, size=32)),
            "warning.*Few classes at a time",
        ),
        (lambda: of_two_targets(X[SORTED], CLASSES[SORTED]), "error.*sorted by class of targets 'kind'"),
        (
            lambda: of_two_targets(X, CLASSES, size=np.zeros_like(CLASSES)),
            "ok.*targets 'kind'.*Skipped: targets 'size'",
        ),
        (two_batches, FEW),
    ],
    "normalization": [
        (lambda: normalized_behind(layers.Rescaling(1 / 255)), "ok.*Normalization layers: 1"),
        (lambda: normalized_behind(layers.Rescaling(2)), r"error.*root mean square of \d{3}\..*before it\)"),
    ],
    "repeated batches": [
        (two_batches, FEW),
        (lambda: (classifier(), batched(X, CLASSES, size=128).repeat()), "warning.*Right for full-batch training"),
    ],
    "train/validation overlap": [
        (
            lambda: (
                classifier(),
                batched(ROUNDED, CLASSES),
                batched(ROUNDED.astype("float16"), CLASSES, size=7).unbatch().shuffle(64, seed=1).batch(7),
            ),
            "error",
        ),
        (
            lambda: (regressor(), batched(X, NUMBERS), batched(X, NUMBERS)),
            "error.*100% of 128 examples of validation are among the 128",
        ),
        (lambda: (regressor(), batched(X, NUMBERS).repeat(), batched(X, NUMBERS)), r"skipped.*leave out repeat\(\)"),
    ],
    "padding": [
        (zeros_at_the_end, "warning"),
        (lambda: from_source_to_target(TOKENS), "skipped.*t is unknown whether outputs belong"),
        (lambda: from_source_to_target(PADDED[::-1]), "error.*inputs '1'"),
        (lambda: from_source_to_target(PADDED[::-1], weighted=True), "ok.*inputs '1'"),
    ],
    "memory over passes": [
        (lambda: listing(deque(maxlen=5)), "ok"),
        (lambda: listing([]), r"warning.*'losses_of_steps' grows by 1 elements per step \(EagerTensor\)"),
        (HEALTHY["cached_and_repeated"], "ok"),
        (HEALTHY["sequences_of_any_length"], "ok"),
    ],
    "stopped and resumed": [
        (HEALTHY["dropout"], "ok.*bitwise identical"),
        (lambda: (classifier(), batched(X, CLASSES).shuffle(8)), "warning.*another order, in each pass"),
    ],
    "frozen layers": [
        (lambda: frozen_base(convolution(), layers.BatchNormalization()), "error.*still at their initial values"),
        (lambda: frozen_base(convolution()), "warning.*distributed as initialized"),
        (
            lambda: with_own_step(step_by_hand, X, NUMBERS, hidden=[layers.Dense(8, trainable=False)]),
            "warning.*mean teacher",
        ),
        (lambda: frozen_base(layers.Conv2D(4, 1, use_bias=False)), "skipped.*do not show whether they were ever"),
    ],
}


def shifting_inside():
    inputs = keras.Input((12,), dtype="int32")
    before = keras.ops.pad(inputs[:, :-1], [[0, 0], [1, 0]])
    x = layers.GRU(8, return_sequences=True)(layers.Embedding(20, 8)(before))
    rows = np.random.default_rng(0).integers(1, 20, (64, 12))
    return compiled(keras.Model(inputs, layers.Dense(20)(x)), crossentropy(), rows, rows)


def window_of_one_step():
    windows = np.random.default_rng(0).normal(size=(64, 6, 3)).astype("float32")
    model = keras.Sequential([keras.Input((6, 3)), layers.GRU(4), layers.Dense(1)])
    return compiled(model, "mse", windows, windows[:, -1:, :1])


def just_above_1():
    y = np.float32(1.0000001) * (X[:, :1] > 0)
    return dense(layers.Dense(1, "sigmoid"), loss="binary_crossentropy"), batched(X, y)


def rare_flag():
    def data(flag):
        return batched({"age": X[:, :4], "flag": flag}, NUMBERS)

    inputs = {"age": keras.Input((4,), name="age"), "flag": keras.Input((1,), name="flag")}
    model = keras.Model(inputs, layers.Dense(1)(layers.Concatenate()(list(inputs.values()))))
    model.compile("adam", "mse")
    rare = (np.arange(len(X)) % 50 == 7).astype("float32")[:, None]
    return model, data(rare), data(np.zeros_like(rare))


def two_heads(weights, of_second=None):
    inputs = keras.Input((8,))
    x = layers.Dense(8, "tanh")(inputs)
    model = keras.Model(inputs, {name: layers.Dense(1, name=name)(x) for name in ("one", "two")})
    model.compile("adam", {"one": "mse", "two": "mse"}, loss_weights=weights)
    given = {"one": np.ones(len(X), "float32"), "two": np.ones(len(X), "float32") if of_second is None else of_second}
    return model, batched(X, {"one": NUMBERS, "two": NUMBERS}, given)


def discriminated():
    judge = keras.Sequential([keras.Input((8,)), layers.Dense(16, "relu"), layers.Dense(1, "sigmoid")])
    judge.compile("adam", "binary_crossentropy")
    judge.trainable = False
    inputs = keras.Input((8,))
    return compiled(keras.Model(inputs, judge(layers.Dense(8)(inputs))), "binary_crossentropy", X, np.ones((len(X), 1)))


def gated(units):
    inputs = keras.Input((8,))
    gate = layers.Dense(units, "relu", bias_initializer=keras.initializers.Constant(-100))(inputs)
    return compiled(keras.Model(inputs, layers.Dense(1)(inputs) + layers.Dense(1)(gate)), "mse", X, NUMBERS)


def oversampled():
    one, other = (
        tf.data.Dataset.from_tensor_slices((X[at], CLASSES[at])).repeat() for at in (CLASSES == 0, CLASSES > 0)
    )
    data = tf.data.Dataset.sample_from_datasets([one, other], [0.5, 0.5], seed=1).take(2000).batch(20)
    return classifier(), data, batched(X[:40], CLASSES[:40])


HEALTHY_AS_IT_LOOKS = {
    "label leakage": [(shifting_inside, "ok")],
    "targets": [
        (window_of_one_step, "ok"),
        (just_above_1, "ok"),
        (lambda: of_classes(loss="categorical_hinge", y=2 * np.eye(3, dtype="float32")[CLASSES] - 1), "ok.*in -1 to 1"),
    ],
    "repeated batches": [
        (lambda: (classifier(), batched(X[:4], CLASSES[:4], size=1).repeat(50).shuffle(200, seed=1)), "ok"),
    ],
    "validation data": [(rare_flag, "ok")],
    "gradients": [
        (lambda: two_heads({"one": 1.0, "two": 0.0}), "warning.*loss's gradient reaches depends on them: two"),
        (lambda: two_heads(None, (np.arange(len(X)) > 60).astype("float32")), "ok"),
    ],
    "frozen layers": [(discriminated, "warning.*discriminator")],
    "dead units": [(lambda: gated(2), "warning"), (lambda: gated(8), "error")],
    "train/validation overlap": [(oversampled, "skipped.*oversampling")],
    "constant data": [
        (lambda: of_two_targets(X, CLASSES, size=np.zeros_like(CLASSES)), "warning.*The targets 'size' of all"),
    ],
}
FOUND += [(check, *row) for check, rows in [*TABLE.items(), *HEALTHY_AS_IT_LOOKS.items()] for row in rows]


@pytest.mark.parametrize(("check", "build", "line"), FOUND, ids=[f"{check}: {line}" for check, _, line in FOUND])
def test_the_line_of_a_check(check, build, line, monkeypatch):
    monkeypatch.setattr(of_loss, "STEPS", 60)
    (finding,) = [each for each in examined(build, [check]).findings if each.check == check]
    assert re.match(line, str(finding)), finding


def weights_after(examine, build):
    """Call ``examine``, then `fit`; return weights, optimizer state and history."""
    keras.utils.set_random_seed(3)
    model, data = build()
    examine(model, data)
    history = model.fit(data, epochs=2, verbose=0).history
    return [variable.numpy() for variable in [*model.variables, *model.optimizer.variables]], history


def with_dropout_and_statistics():
    model = classifier(layers.BatchNormalization(), layers.Dropout(0.3))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, tf.data.Dataset.from_tensor_slices((X[:48], CLASSES[:48])).cache().shuffle(48).batch(16)


class Counts(layers.Layer):
    """Has variables that Keras does not track."""

    def build(self, shape):
        self.calls = {"all": tf.Variable(0.0, trainable=False)}

    def call(self, x):
        self.calls["all"].assign_add(1.0)
        return x * (1 + 0.01 * self.calls["all"])


class NoiseOfTensorFlow(layers.Layer):
    def build(self, shape):
        self.generator = tf.random.Generator.from_seed(1)

    def call(self, x, training=False):
        return x + self.generator.normal(tf.shape(x)) if training else x


class CountsUpdates(keras.optimizers.SGD):
    """Has a variable that Keras does not track."""

    def build(self, variables):
        self.updates = tf.Variable(0.0)
        super().build(variables)

    def update_step(self, gradient, variable, learning_rate):
        self.updates.assign_add(1.0)
        super().update_step(gradient, variable, learning_rate / (1 + 0.01 * self.updates))


def with_variables_that_keras_does_not_track():
    model = regressor(Counts(), NoiseOfTensorFlow())
    return compiled(model, "mse", X, NUMBERS, optimizer=CountsUpdates(0.05))


STEPS_SEEN = tf.Variable(0.0)


def by_a_variable_of_the_module():
    def train_step(model, data):
        STEPS_SEEN.assign_add(1.0)
        return step_by_hand(model, data)

    return with_own_step(train_step, X, NUMBERS)


def measured_in_python(run_eagerly):
    def hits(y, outputs):
        return tf.constant(float(np.mean(y.numpy() == outputs.numpy().argmax(-1))))

    model = classifier()
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy", hits], run_eagerly=run_eagerly)
    return model, batched(X, CLASSES)


CALLING = ["the model takes the batch", "cross-example leakage", "evaluation", "weights move"]
UNCHANGED = {  # {training: (checks, minutes)}
    with_dropout_and_statistics: (None, 0.1),
    stateful: (CALLING, 1),
    with_variables_that_keras_does_not_track: ([*CALLING, "overfit one batch"], 1),
    HEALTHY["half_precision"]: (CALLING, 1),
    by_a_variable_of_the_module: ([*CALLING, "stopped and resumed"], 1),
    partial(measured_in_python, run_eagerly=True): (CALLING, 1),
}


@pytest.mark.parametrize("build", UNCHANGED)
def test_fit_afterwards_is_bitwise_identical(build):
    checks, minutes = UNCHANGED[build]

    def examine(model, data):
        before = float(STEPS_SEEN)
        report = bt.preflight(model, data, checks=checks, minutes=minutes)
        assert report.of("ok") and not report.failed, report
        assert float(STEPS_SEEN) == before and "fit" not in vars(model)

    weights, history = weights_after(lambda model, data: None, build)
    others, other_history = weights_after(examine, build)
    assert history == other_history
    for one, other in zip(weights, others, strict=True):
        np.testing.assert_array_equal(one, other)


def test_random_numbers_go_on_where_they_were():
    model, data = HEALTHY["dropout"]()

    def drawn():
        return float(tf.random.uniform([])), float(keras.random.uniform([])), float(np.random.rand())

    keras.utils.set_random_seed(5)
    drawn()
    expected = drawn()
    keras.utils.set_random_seed(5)
    drawn()
    bt.preflight(model, data, checks=["data", "gradients"])
    assert drawn() == expected


def test_variables_that_only_a_call_makes_are_named():
    class Late(layers.Layer):
        def call(self, x):
            if tf.executing_eagerly() and not hasattr(self, "kept"):
                self.kept = [tf.Variable(0.0, name="made_late")]
            return x

    report = bt.preflight(regressor(Late()), batched(X, NUMBERS), checks=["cross-example leakage"])
    (finding,) = report.of("warning")
    assert finding.check == "left as it was" and "made_late" in finding.message, report


def test_a_check_that_raises_is_a_line_and_a_stop_leaves_the_model_as_it_was(monkeypatch):
    def fails(training):
        raise KeyError("no such thing")

    def stopped(training):
        training.model.train_step(training.first)
        raise KeyboardInterrupt

    monkeypatch.setitem(room.GROUPS, "accumulation", {"first": fails, "second": lambda training: None})
    model, data = HEALTHY["regression"]()
    report = bt.preflight(model, data, checks=["accumulation", "finite values"])
    assert [(each.check, each.verdict) for each in report.findings] == [("finite values", "ok"), ("first", "skipped")]
    assert "KeyError: 'no such thing'" in report.findings[1].message and not report.failed
    monkeypatch.setitem(room.GROUPS, "accumulation", {"first": stopped})
    before = model.get_weights()
    with pytest.raises(KeyboardInterrupt):
        bt.preflight(model, data, checks=["accumulation"])
    assert all((one == two).all() for one, two in zip(before, model.get_weights(), strict=True))


# Time


def test_after_the_time_limit_no_check_begins():
    report = examined(HEALTHY["regression"], None, minutes=1e-6)
    assert {finding.verdict for finding in report.findings} == {"skipped"} and report.seconds < 30
    assert ": give more minutes" in report.findings[0].message


def test_a_check_that_has_begun_ends_when_the_time_is_over():
    calls = []

    class Slow(layers.Layer):
        def call(self, x):
            calls.append(time.sleep(0.6))  # eager: at each call
            return x

    report = bt.preflight(regressor(Slow()), batched(X[:32], NUMBERS[:32]), minutes=0.1)
    cut = [finding for finding in report.of("skipped") if ": give more minutes" in finding.message]
    assert report.of("ok") and cut and len(calls) < 30, "of 62 with enough time; 6 s are ten of them"


def test_a_slow_check_takes_no_time_from_other_groups(monkeypatch):
    begun = []

    def slow(training):
        begun.append(time.monotonic())
        while True:
            training.check_deadline()
            time.sleep(0.05)

    def quick(training):
        training.check_deadline()
        return {"verdict": "ok", "message": "Done."}

    monkeypatch.setattr(room, "GROUPS", {"data": {"slow": slow}, "leaks": {"quick": quick}, "loss": {"last": quick}})
    report = examined(HEALTHY["regression"], None, minutes=0.1)
    assert [each.verdict for each in report.findings] == ["skipped", "ok", "ok"], report
    assert "he time ran out (minutes=0.1): give more minutes" in report.findings[0].message, report
    assert len(begun) == 2 and begun[1] - begun[0] < 5 and report.seconds > 5.9, "again, with what others left"


def test_what_takes_a_share_of_the_time_comes_last():
    names = list(room._chosen(None))
    assert set(names[-len(room.LAST) :]) == set(room.LAST) and len(names) > 2 * len(room.LAST)


# The report


def test_a_report_is_shown_in_words_and_a_card():
    report = examined(FAULTY["no_softmax"][0], ["outputs and loss", "finite values"])
    assert "1 error, 1 ok" in report.words() and repr(report).splitlines()[1].startswith("error")
    assert report.findings[0].message.split(":")[0] in report._repr_html_() and "color: inherit" in report._repr_html_()


SCRIPT = """
import keras, tensorflow as tf

def sick():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("adam", "sparse_categorical_crossentropy")
    return model, tf.data.Dataset.from_tensor_slices((tf.random.normal([32, 4]), tf.range(32) % 2)).batch(8)

def healthy():
    model, data = sick()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model, data

def broken():
    import no_such_module_at_all
"""


def test_the_exit_code_of_the_command_tells(tmp_path, capsys):
    script = tmp_path / "train_of_mine.py"
    script.write_text(SCRIPT)
    checks = ["--checks", "outputs and loss"]
    assert main([f"{script}:sick", *checks]) == 1
    assert "from_logits=True" in capsys.readouterr().out
    assert main([f"{script}:healthy", *checks]) == 0
    errors = []
    mistakes = [f"{script}:nothing"], ["no_such.py:build"], ["train.py"], [f"{script}:broken"]
    for words in mistakes:
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2
        errors.append(capsys.readouterr().err)
    assert "No module named 'no_such_module_at_all'" in errors[3]


def test_the_name_is_the_function_whatever_is_imported_first():
    assert callable(bt.preflight) and bt.preflight.__module__ == "bigtrain_nb.advanced.preflight.preflight"


TAUGHT = {  # {(check, notebook that it refers to): words in that notebook}
    ("matmul precision", "07"): "reverse_dtype",
    ("finite values", "11"): "Where does the NaN come from?",
    ("order of classes", "01"): "Step 4: shuffle",
    ("outputs and loss", "04"): "from_logits=True",
    ("start", "11"): "bt.find_overflow",
    ("gradients", "11"): "A loss that stalls",
    ("gradients", "06"): "Fine-tuning",
    ("dead units", "11"): "*dead*",
    ("frozen layers", "06"): "frozen layer",
    ("overfit one batch", "02"): "The learning rate",
    ("overfit one batch", "11"): "bt.find_overflow",
    ("label leakage", "10"): "labels shifted twice",
    ("train/validation overlap", "11"): "held-out examples reveal it",
    ("padding", "11"): "## A lost mask",
    ("cross-example leakage", "11"): "**Cross-example leakage.**",
    ("label leakage", "11"): "**Label leakage.**",
    ("micro-batches", "05"): "## Batch normalization",
    ("weights move", "04"): "bfloat16: range instead of precision",
    ("weights move", "02"): "The learning rate",
    ("memory", "05"): "What it saves",
    ("memory", "07"): "bt.chunk_head(model)",
    ("memory over passes", "11"): "pass numbers as tensors",
    ("saved and loaded", "14"): "neither your code nor Keras",
    ("stopped and resumed", "11"): "How often?",
    ("stopped and resumed", "03"): "Make it survive",
}


def test_the_notebook_that_a_line_names_teaches_it():
    named = set()
    for checks in room.GROUPS.values():
        for name, check in checks.items():
            functions = [check, *[vars(sys.modules[check.__module__])[each] for each in HELPERS.get(name, ())]]
            for function in functions:
                named |= {(name, number) for number in re.findall(r'"([01]\d)"', inspect.getsource(function))}
    assert named == set(TAUGHT)
    for (_, number), words in TAUGHT.items():
        (notebook,) = NOTEBOOKS.glob(f"{number}-*.ipynb")
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        assert words in "\n".join("".join(cell["source"]) for cell in cells), (number, words)


# One cause, one finding

CONSEQUENCES = [  # (faulty training, checks, what the error says)
    ("labels_from_one", ["data", "accumulation", "weights move", "memory"], "no class of 0 to 2"),
    ("wrong_width", ["data", "accumulation", "weights move", "memory"], "expected axis -1|incompatible"),
    ("wrong_width", ["loss"], "expected axis -1|incompatible"),
    ("reshaped_wrongly", ["data", "leaks", "accumulation", "weights move"], "examples are mixed"),
    ("dataset_that_fails_in_batch_3", ["finite values"], "file 57 is damaged"),
    ("update_that_raises", ["data", "loss", "weights move"], "this optimizer cannot update"),
    ("tokens_out_of_range_in_batch_2", ["data", "gradients", "weights move"], "Batch 2 of 4 fails"),
    ("outputs_that_are_nan", ["data", "leaks", "loss", "accumulation"], "the model takes the batch: Outputs of the"),
    ("outputs_that_are_nan", ["leaks", "loss"], "cross-example leakage: Outputs of the"),
]


@pytest.mark.parametrize(("name", "checks", "said"), CONSEQUENCES)
def test_one_cause_gives_one_error_and_lets_no_other_check_fail(name, checks, said, monkeypatch):
    monkeypatch.setattr(growth, "MOST_STEPS", 4)
    report = examined(FAULTY[name][0], checks, minutes=0.5)
    (error,) = report.of("error")
    assert re.search(said, str(error)), report
    assert not any("It failed" in finding.message or "\x1b" in finding.message for finding in report.findings), report
    if name == "outputs_that_are_nan":
        assert not report.of("warning"), report
    if name == "reshaped_wrongly":
        assert "not 5 or 11" in str(report.of("warning")), report


def test_a_step_that_fails_is_said_where_its_targets_cannot_be_examined():
    class Raising(keras.losses.Loss):
        def call(self, y_true, y_pred):
            raise RuntimeError("no such loss")

    inputs = keras.Input((8,))
    model = keras.Model(inputs, {"pair": [layers.Dense(1)(inputs), layers.Dense(1)(inputs)]})
    model.compile("adam", {"pair": [Raising(), Raising()]})
    report = bt.preflight(model, batched(X, {"pair": (X[:, :1], X[:, 1:2])}), checks=["data"])
    (failing,) = report.of("error")
    assert failing.check == "the model takes the batch" and "no such loss" in failing.message


def test_a_weight_of_0_is_no_remedy_as_the_advice_says():
    y, weight = np.where(EXAMPLE[:, None] == 7, np.nan, NUMBERS).astype("float32"), (EXAMPLE != 7).astype("float32")
    model = regressor()
    finding = only(model, batched(X, y, weight), "finite values")
    assert finding.verdict == "error" and "0 times NaN is NaN" in finding.advice
    model.fit(batched(X, y, weight), verbose=0)
    assert np.isnan(model.get_weights()[0]).any()
    model, data = FAULTY["labels_minus_one_with_weight_0"][0]()
    with pytest.raises(tf.errors.InvalidArgumentError):
        model.fit(data, verbose=0)


# Loss


def rows_of_tokens_with_padding():
    x = tokens(length=12)
    x[:, 3:] = 0
    return x


def masked_tokens():
    x = rows_of_tokens_with_padding()
    model = keras.Sequential([keras.Input((12,)), layers.Embedding(20, 8, mask_zero=True), layers.Dense(20)])
    return compiled(model, crossentropy(), x, x, optimizer="sgd")


def entropy(labels):
    shares = np.bincount(np.ravel(labels)) / np.size(labels)
    return -sum(share * np.log(share) for share in shares if share)


RARE = np.where(X[:, 2] > 1.5, CLASSES, 1)
CONSTANTS = {  # {training: the loss of its best constant}
    "classes": (lambda: (logits_of(3), batched(X, CLASSES, size=128)), entropy(CLASSES)),
    "padding": (masked_tokens, entropy(rows_of_tokens_with_padding()[:16, :3])),
    "outputs that start at 0": (
        lambda: (dense(layers.Dense(1, kernel_initializer="zeros"), loss="mse"), batched(X, NUMBERS + 50)),
        np.var(NUMBERS[:16]),
    ),
    "a rare class, with logits that Keras takes from before a softmax": (
        lambda: (classifier(loss=crossentropy()), batched(X, RARE, size=128)),
        entropy(RARE),
    ),
    "a loss that a layer adds, 0 with these weights": (
        lambda: of_numbers(layers.Dense(8, kernel_initializer="zeros", activity_regularizer="l2")),
        np.var(NUMBERS[:16]),
    ),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_the_best_constant_is_that_of_the_formula(name):
    build, expected = CONSTANTS[name]
    (finding,) = examined(build, ["start"]).findings
    said = float(re.search(r"best constant predictor scores ([\d.]+\d)", finding.message)[1])
    assert said == pytest.approx(expected, rel=0.02), finding


@pytest.mark.parametrize(
    ("last", "settings", "verdict"),
    [
        (partial(layers.Activation, tf.nn.softmax), {}, "warning"),
        (partial(layers.Softmax, dtype="float16"), {}, "error"),
        (layers.Softmax, {"ignore_class": -1}, "error"),
    ],
)
def test_a_softmax_before_a_loss_of_logits_is_an_error_where_fit_trains_through_both(last, settings, verdict):
    losses = []
    for more in ([last()], []):
        keras.utils.set_random_seed(1)
        model = dense(layers.Dense(3), *more, loss=crossentropy(**settings))
        finding = only(model, batched(X, CLASSES), "outputs and loss")
        assert finding.verdict == (verdict if more else "ok"), finding
        losses += model.fit(batched(X, CLASSES), verbose=0).history["loss"]
    assert (losses[0] == pytest.approx(losses[1], rel=1e-5)) == (verdict == "warning")


def test_examples_that_validation_shares_with_training_are_counted_beside_chance():
    (finding,) = examined(HEALTHY["few_different_inputs"], ["train/validation overlap"]).findings
    by_chance, share = (float(each) for each in re.findall(r"(\d+)%", finding.message))
    assert finding.verdict == "skipped" and share > 80 and by_chance > 80
    assert examined(HEALTHY["regression"], ["train/validation overlap"]).findings == []


# Memory and files


@pytest.fixture
def without_passes(monkeypatch):
    monkeypatch.setitem(room.GROUPS, "memory", memory.CHECKS)


def test_the_peak_of_steps_is_told_beside_what_the_machine_has(monkeypatch, without_passes):
    model, data = HEALTHY["regression"]()
    finding = only(model, data, "memory")
    assert finding.verdict == "ok" and "while 3 steps ran" in finding.message and model.train_function is None
    monkeypatch.setattr(memory, "reset_peak", lambda: False)
    monkeypatch.setattr(memory, "memory_limit", lambda: 1.1 * psutil.Process().memory_info().rss)
    finding = only(model, data, "memory")
    assert "since this process began" in finding.message, finding
    assert finding.verdict == "warning" and "micro_batches=4" in finding.advice, finding


def with_vocabulary(size):
    return next_tokens(language_model(length=32, vocabulary=size), np.random.default_rng(0).integers(1, size, (16, 33)))


def test_chunk_head_is_suggested_where_logits_are_over_a_quarter_of_the_planned_peak(without_passes):
    model, data = with_vocabulary(1024)
    finding = only(model, data, "memory")
    assert finding.verdict == "ok" and finding.notebook == "07", finding
    part = int(re.search(r"Logits of .* are (\d+)% of the planned peak: use bt.chunk_head", finding.advice)[1])
    assert 25 < part < 100
    assert not only(bt.chunk_head(model, rows=64), data, "memory").advice


def test_chunk_head_is_not_suggested_for_a_small_vocabulary_or_a_classifier(without_passes):
    for model, data in (with_vocabulary(20), (logits_of(4096), batched(X, CLASSES))):
        finding = only(model, data, "memory")
        assert finding.verdict == "ok" and not finding.advice, finding


def test_memory_is_measured_where_the_size_of_logits_is_unknown(without_passes):
    def at_the_end(y, y_pred):
        return keras.losses.sparse_categorical_crossentropy(y, y_pred[:, -1], from_logits=True)

    inputs = keras.Input((8,))
    model = keras.Model(inputs, layers.Dense(3)(layers.Reshape((4, 2))(inputs)))
    model.compile("sgd", at_the_end)
    finding = only(model, batched(X, CLASSES), "memory")
    assert finding.verdict == "ok" and "while 3 steps ran" in finding.message, finding


def test_memory_of_a_task_with_a_preprocessor_is_measured_too(without_passes):
    finding = only(*task_with_a_preprocessor(), "memory")
    assert finding.verdict == "ok" and "at most, of the" in finding.message, finding


def ends_late(training, folder):
    raise subprocess.TimeoutExpired("python", 1)


@pytest.mark.parametrize(("policy", "verdict"), [("float32", "error"), ("mixed_bfloat16", "ok")])
def test_a_loaded_model_may_differ_as_much_as_its_precision_rounds(policy, verdict, monkeypatch):
    load = keras.models.load_model

    def rounded(path):
        model = load(path)
        model.layers[-1].bias.assign([0.01, 0, 0])
        return model

    monkeypatch.setattr(keras.models, "load_model", rounded)
    monkeypatch.setattr(checkpointing, "_outputs_elsewhere", ends_late)  # without a new process
    assert only(*in_policy(policy, "sgd"), "saved and loaded").verdict == verdict


@pytest.mark.more("a second process; a class that is not registered fails in the first tier")
def test_a_class_that_no_new_process_knows_is_a_warning():
    @keras.saving.register_keras_serializable("only_here")
    class OnlyHere(layers.Layer):
        def call(self, x):
            return 2 * x

    finding = only(regressor(OnlyHere()), batched(X, NUMBERS), "saved and loaded")
    assert finding.verdict == "warning" and "OnlyHere" in finding.message, finding
    assert "Keras alone cannot load" in finding.message


def test_a_new_process_that_is_killed_is_not_blamed_on_classes(monkeypatch):
    monkeypatch.setattr(checkpointing, "STRANGER", "import os; os.kill(os.getpid(), 9)")
    (finding,) = examined(HEALTHY["classes"], ["saved and loaded"]).findings
    assert finding.verdict == "warning" and "killed by signal 9, probably because memory ran out" in finding.message
    assert "classes" not in finding.advice


# Which examples there are


def of_rows(call, *batches, loss="mse"):
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden, self.last = layers.Dense(8), layers.Dense(1)

    Model.call = call
    model = Model()
    model.compile("adam", loss)
    return model, list(batches)


DRAWN = np.random.default_rng(0).normal(size=(5, 100, 3)).astype("float32")


def queries():
    def call(self, x):
        return tf.matmul(self.hidden(x["query"]), self.hidden(x["table"]), transpose_b=True)

    labels = np.random.default_rng(0).integers(0, 16, (5, 8))
    batches = [({"query": x[:8], "table": x[8:24]}, y) for x, y in zip(DRAWN, labels, strict=True)]
    return of_rows(call, *batches, loss=crossentropy())


def graphs():
    def call(self, x):
        graph_of_node = tf.repeat(tf.range(tf.shape(x["lengths"])[0]), x["lengths"])
        return self.last(tf.math.segment_mean(self.hidden(x["a_nodes"]), graph_of_node))

    lengths = np.random.default_rng(0).integers(3, 9, (5, 8)).astype("int32")
    drawn = zip(DRAWN, lengths, strict=True)
    return of_rows(call, *[({"a_nodes": x[: n.sum()], "lengths": n}, x[-8:, :1]) for x, n in drawn])


def with_a_scalar():
    def call(self, x):
        return self.last(x["values"]) * x["zoom"]

    return of_rows(call, *[({"zoom": np.float32(0.5), "values": x[:8]}, x[8:16, :1]) for x in DRAWN])


@pytest.mark.parametrize("build", [queries, graphs, with_a_scalar])
def test_tensors_with_other_rows_than_the_examples_are_no_fault(build, monkeypatch):
    monkeypatch.setattr(of_loss, "STEPS", 20)
    model, data = build()
    report = bt.preflight(model, data, checks=["data", "leaks", "loss", "accumulation"], validation=data[:2], minutes=1)
    lines = {each.check: each for each in report.findings}
    assert not any("It failed" in each.message for each in report.findings), report
    wrong = {each.check for each in report.of("error")}
    assert wrong <= {"train/validation overlap"}, report
    assert lines["the model takes the batch"].message.startswith("8 examples a batch"), report
    apart = {queries: "ok", graphs: "skipped", with_a_scalar: "ok"}[build]
    assert lines["cross-example leakage"].verdict == apart, report
    assert lines["micro-batches"].verdict == ("ok" if build is with_a_scalar else "skipped"), report
    if build is queries:
        assert "Not replaced: inputs 'table' (16, 3)" in lines["cross-example leakage"].message, report


class InAFunction(keras.Model):
    @tf.function
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


@pytest.mark.parametrize("scaled", [False, True])
def test_a_step_that_is_a_function_keeps_no_trace_of_the_check(scaled):
    inputs = keras.Input((8,))
    model = InAFunction(inputs, layers.Dense(3)(inputs))
    optimizer = keras.optimizers.SGD(0.1)
    model.compile(keras.optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer, crossentropy())
    assert only(model, batched(X, CLASSES), "weights move").verdict == "ok"
    before = model.get_weights()
    model.train_step((X[:16], CLASSES[:16]))
    assert any(np.any(one != other) for one, other in zip(before, model.get_weights(), strict=True))


def test_a_step_that_only_runs_eagerly_is_found():
    def train_step(self, data):
        return {"loss": float(step_by_hand(self, data)["loss"])}

    (finding, *_) = examined(lambda: with_own_step(train_step, X, NUMBERS), ["data"]).findings
    assert finding.verdict == "error" and "step on the first batch fails" in finding.message
