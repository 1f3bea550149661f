"""Supported batches, weighting and splitting of their losses, and errors for unsupported ones."""

import warnings
from functools import partial

import numpy as np
import pytest
from equal_models import aligned, distance, examples, net, on, strategy, views

import bigtrain_nb as bt
from bigtrain_nb.advanced.watch.gradient_noise import GradientNoise
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.replicas import own_copy

layers = keras.layers
MSE = keras.losses.MeanSquaredError
X, Y = examples(22)
WEIGHTS = np.geomspace(0.01, 10, 22).astype("float32")  # with very different sums in micro-batches and replicas


def plain(make, outputs=1):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    x = layers.Dense(4, activation="tanh")(inputs)
    heads = [layers.Dense(1)(x) for _ in range(outputs)]
    return make(inputs, heads if outputs > 1 else heads[0])


def fitted(model, loss, weights=None):
    model.compile(keras.optimizers.SGD(0.02, momentum=0.9), loss)
    model.fit(X, Y, batch_size=11, sample_weight=weights, verbose=0, shuffle=False, epochs=2)
    return model


def test_a_batch_without_any_weight_changes_nothing():
    with on(2):
        inputs = keras.Input((6,))
        model = bt.Model(inputs, layers.Dense(1)(layers.BatchNormalization()(inputs)), micro_batches=2)
        before = [variable.numpy() for variable in model.trainable_variables]
        fitted(model, MSE("mean_with_sample_weight"), 0 * WEIGHTS)
        assert model.evaluate(X, Y, batch_size=11, sample_weight=0 * WEIGHTS, verbose=0) == 0
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    for variable, value in zip(model.trainable_variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


@pytest.mark.parametrize(
    ("losses", "weights", "said"),
    [
        ([MSE("sum"), MSE()], None, 'cannot be combined .*: give all losses the same reduction, "sum_over_batch_size"'),
        ([MSE("none")] * 2, None, "none cannot be combined over micro-batches"),
        ([MSE("mean_with_sample_weight")] * 2, WEIGHTS, "which Keras makes of an array: give a dataset"),
    ],
)
def test_losses_that_cannot_be_weighed_together_are_refused(losses, weights, said):
    model = plain(partial(bt.Model, micro_batches=2), outputs=2)
    model.compile("sgd", losses)
    with pytest.raises(ValueError, match=said):
        model.fit(X, [Y, Y], sample_weight=weights, verbose=0)


def test_on_one_device_in_one_piece_losses_of_all_reductions_go_together_as_in_keras():
    losses = [MSE("sum"), MSE("mean_with_sample_weight")]
    ends = []
    for make in (keras.Model, bt.Model):
        model = plain(make, outputs=2)
        model.compile(keras.optimizers.SGD(0.01), losses)
        model.fit(X, [Y, Y], batch_size=11, verbose=0, shuffle=False)
        ends.append((model, model.evaluate(X, [Y, Y], verbose=0)))
    assert distance(ends[1][0], ends[0][0]) < 1e-5
    assert ends[1][1] == pytest.approx(ends[0][1], rel=1e-4)


@pytest.mark.parametrize(("replicas", "micro_batches"), [(1, 2), (2, 1)])
def test_a_sum_beside_regularizers_refuses_to_be_cut(replicas, micro_batches):
    """On two replicas a share without examples would leave its part of the regularizers out."""
    refused = pytest.raises(ValueError, match='"sum", regularizers and add_loss would be counted once per micro-batch')
    with on(replicas), refused:
        fitted(net(micro_batches=micro_batches), MSE("sum"))


@pytest.mark.parametrize("eager", [False, True])
def test_a_regularizer_counts_for_a_share_without_examples(eager):
    def trained(make, replicas):
        with on(replicas):
            inputs = keras.Input((3,))
            outputs = keras.layers.Dense(1, kernel_initializer="ones", kernel_regularizer="l2")(inputs)
            model = make(inputs, outputs)
            model.compile("sgd", "mse", run_eagerly=eager, jit_compile=False)
        x, y = np.ones((9, 3), "float32"), np.zeros((9, 1), "float32")
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        return model.get_weights()[0], model.evaluate(x[:1], y[:1], verbose=0)

    (whole, loss), (parts, loss_of_parts) = trained(keras.Model, 1), trained(bt.Model, 2)
    assert np.allclose(whole, parts, atol=1e-6) and loss == pytest.approx(loss_of_parts, 1e-5)


TOKENS = np.random.default_rng(0).integers(1, 9, (12, 5))
for row, length in enumerate([5, 1, 1, 1, 2, 1, 5, 5, 5, 5, 4, 5]):
    TOKENS[row, length:] = 0


def of_rare_tokens(loss, x, y, y_pred, sample_weight):
    return loss(x, y, y_pred, sample_weight=tf.cast(y > 3, "float32"))


def of_next_tokens(loss, x, y, y_pred, sample_weight):
    """A slice has no mask."""
    return loss(x, y[:, 1:], y_pred[:, :-1], sample_weight=sample_weight)


def without_weights(loss, x, y, y_pred, sample_weight):
    return loss(x, y, y_pred)


BY_WEIGHTS = {"reduction": "mean_with_sample_weight"}
CROSSENTROPY = partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)


class OwnLoss(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return self.own(super().compute_loss, x, y, y_pred, sample_weight)


@pytest.mark.parametrize(
    ("own", "options", "replicas", "weights"),
    [
        (of_rare_tokens, BY_WEIGHTS, 2, WEIGHTS[:12]),
        (without_weights, BY_WEIGHTS, 1, WEIGHTS[:12]),
        (of_next_tokens, {}, 2, None),
        (of_next_tokens, {"ignore_class": 0, **BY_WEIGHTS}, 1, np.geomspace(0.1, 9, 48).reshape(12, 4)),
    ],
)
def test_micro_batches_count_by_the_mask_and_weights_that_a_loss_receives(own, options, replicas, weights):
    results = []
    for where, make in ((1, lambda model: model), (replicas, partial(bt.Model.of, micro_batches=3))):
        keras.utils.set_random_seed(1)
        with on(where):
            inputs = keras.Input((5,), dtype="int32")
            model = OwnLoss(inputs, layers.Dense(9)(layers.Embedding(9, 4, mask_zero=True)(inputs)))
            model.own = own
            model = make(model)
            model.compile(keras.optimizers.SGD(0.5), CROSSENTROPY(**options))
        data = {"x": TOKENS, "y": TOKENS, "sample_weight": weights, "batch_size": 12, "verbose": 0}
        losses = model.fit(**data, epochs=2, shuffle=False).history["loss"]
        results.append([*losses, model.evaluate(**data)])
    np.testing.assert_allclose(*results, rtol=1e-5)


def test_different_weights_for_losses_that_divide_by_them_are_warned_of():
    def own(loss, x, y, y_pred, sample_weight):
        return without_weights(loss, x, y, y_pred, None) + of_rare_tokens(loss, x, y, y_pred, None)

    inputs = keras.Input((5,), dtype="int32")
    model = OwnLoss(inputs, layers.Dense(9)(layers.Embedding(9, 4)(inputs)))
    model.own = own
    model = bt.Model.of(model, micro_batches=2)
    model.compile("sgd", CROSSENTROPY(**BY_WEIGHTS))
    with pytest.warns(UserWarning, match="gives different sample weights to losses .* the same sample_weight to all"):
        model.fit(TOKENS, TOKENS, batch_size=12, verbose=0)


def test_the_noise_of_a_masked_loss_is_that_of_the_same_loss_by_sample_weights():
    """Sample weights are counted before a step, a mask within it."""
    scales = []
    for is_masked in (True, False):
        keras.utils.set_random_seed(1)
        inputs = keras.Input((5,), dtype="int32")
        x = layers.Embedding(9, 4, mask_zero=is_masked)(inputs)
        model = bt.Model(inputs, layers.Dense(1)(x), micro_batches=3)
        model.compile(keras.optimizers.SGD(0.5), MSE("mean_with_sample_weight"))
        noise = model.measure_gradients(GradientNoise)
        weights = None if is_masked else (TOKENS != 0).astype("float32")
        model.fit(TOKENS, TOKENS[..., None] / 9, batch_size=12, verbose=0, shuffle=False, sample_weight=weights)
        scales.append(noise.sums())
    np.testing.assert_allclose(*scales, rtol=1e-4)


def test_masks_of_several_outputs_are_warned_of():
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Embedding(9, 4, mask_zero=True)(inputs)
    model = bt.Model(inputs, [layers.Dense(1)(x), layers.Dense(1)(x)], micro_batches=2)
    model.compile("sgd", "mse")
    with pytest.warns(
        UserWarning,
        match='outputs have a mask, and there are several losses or outputs.*"mean_with_sample_weight", and',
    ):
        model.fit(TOKENS, [TOKENS[..., None], TOKENS[..., None]], batch_size=12, verbose=0)


def test_a_new_number_of_micro_batches_holds_from_the_next_fit_on():
    class Longest(layers.Layer):
        def build(self, shape):
            self.longest = self.add_weight(dtype="int32", initializer="zeros", trainable=False)

        def call(self, x, training=False):
            if training:
                self.longest.assign(tf.maximum(self.longest, tf.shape(x)[0]))
            return x

    inputs, spy = keras.Input((6,)), Longest()
    model = bt.Model(inputs, layers.Dense(1)(spy(inputs)))
    model.compile("sgd", "mse")
    for micro_batches, length in [(1, 12), (3, 4)]:
        model.micro_batches = micro_batches
        spy.longest.assign(0)
        model.fit(X[:12], Y[:12], batch_size=12, verbose=0)
        assert spy.longest.numpy() == length
    change = keras.callbacks.LambdaCallback(on_epoch_begin=lambda *_: setattr(model, "micro_batches", 2))
    for run in (model.fit, model.evaluate):
        change.on_test_begin = change.on_epoch_begin
        with pytest.raises(RuntimeError, match="micro_batches cannot change during fit.*call fit twice"):
            run(X[:12], Y[:12], callbacks=[change], verbose=0)
    model.micro_batches = 2


def test_accumulation_by_the_optimizer_works_without_micro_batches_on_one_device():
    def fit(make):
        model = net(make)
        model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), "mse")
        model.fit(X, Y, batch_size=4, verbose=0, shuffle=False)
        return model

    assert distance(fit(bt.Model), fit(keras.Model)) < 1e-5


def test_without_fit_and_without_training_all_is_exact_too():
    models = []
    for where, make in [(2, partial(bt.Model, micro_batches=3)), (1, keras.Model)]:
        with on(where):
            model = net(make)
            model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
        models.append(model)

    def agree(result):
        ours, stock = [result(model) for model in models]
        np.testing.assert_allclose(ours, stock, rtol=1e-5, atol=1e-6)

    agree(lambda model: model.train_on_batch(X[:8], Y[:8]))
    agree(lambda model: model.evaluate(X[:8], Y[:8], batch_size=7, verbose=0))  # the last has one example
    agree(lambda model: model.predict(X[:8], batch_size=7, verbose=0))


def own_mean(y, y_pred):
    return keras.ops.mean(keras.ops.abs(y - y_pred))


def test_an_empty_share_is_evaluated_as_nothing_also_where_means_are_somebodys_own():
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(1, kernel_initializer="ones")

        def call(self, x):
            self.add_loss(0.1 * keras.ops.mean(x**2))
            return self.dense(x)

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return keras.ops.mean((y - y_pred) ** 2) + sum(self.losses)

    shown = []
    for replicas, taken in ((1, lambda model: model), (2, bt.Model.of)):
        with on(replicas):
            model = taken(Own())
            model.compile("sgd", metrics=[own_mean])
            shown.append(model.evaluate(X[:9], Y[:9], batch_size=4, verbose=0, return_dict=True))  # the last has 1
    assert shown[1]["loss"] == pytest.approx(shown[0]["loss"], rel=1e-5)
    assert np.isfinite(shown[1]["own_mean"])  # per batch; here per share


def test_evaluation_counts_shares_by_their_weights_where_the_loss_does():
    """In 64 bits, which the weights of shares do not have."""
    losses = []
    keras.config.set_floatx("float64")
    try:
        for replicas, make in ((1, keras.Model), (2, bt.Model)):
            with on(replicas):
                model = plain(make)
                model.compile("sgd", MSE("mean_with_sample_weight"))
                losses.append(model.evaluate(X, Y, batch_size=8, sample_weight=WEIGHTS, verbose=0))
    finally:
        keras.config.set_floatx("float32")
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_sums_of_whole_batches_are_refused_where_each_replica_gets_them():
    with on(2):
        model = plain(bt.Model)
        model.compile("sgd", MSE("sum"))
    for on_batch in (model.train_on_batch, model.test_on_batch):
        with pytest.raises(ValueError, match="would count each example 2 times"):
            on_batch(X, Y)


class Sum(keras.losses.Loss):
    def __init__(self):
        super().__init__(reduction="sum")

    def call(self, y, y_pred):
        return tf.reduce_mean((y - y_pred) ** 2, -1)


def test_a_sum_given_as_a_class_is_trained_and_evaluated_as_in_one_piece_on_replicas_with_unequal_shares():
    ends = []
    for replicas, make in ((1, keras.Model), (2, partial(bt.Model, micro_batches=3))):
        with on(replicas):
            model = fitted(plain(make), Sum)
        ends.append((model, model.evaluate(X, Y, batch_size=9, sample_weight=WEIGHTS, verbose=0)))
    assert distance(ends[1][0], ends[0][0]) < 1e-5
    assert ends[1][1] == pytest.approx(ends[0][1], rel=1e-5)


VALID = np.random.default_rng(5).random((12, 5)) < np.linspace(0.1, 0.9, 12)[:, None]
CLASSES = np.where(VALID, np.random.default_rng(6).integers(0, 4, (12, 5)), -1)
SEQUENCES = np.random.default_rng(7).normal(size=(12, 5, 3)).astype("float32")


def scored(make=bt.Model, loss=None, **settings):
    keras.utils.set_random_seed(3)
    inputs = keras.Input((5, 3))
    model = make(inputs, layers.Dense(4)(inputs), **settings)
    model.compile(keras.optimizers.SGD(0.5), loss)
    return model


@pytest.mark.parametrize(
    ("settings", "reduction", "shape"),
    [
        ({"micro_batches": 3}, "sum_over_batch_size", None),
        ({}, "mean_with_sample_weight", (12, 5, 1)),
    ],
)
def test_a_loss_that_ignores_a_class_is_the_mean_over_the_valid_places_of_the_batch(settings, reduction, shape):
    weights = None if shape is None else np.random.default_rng(8).random(shape).astype("float32")

    def trained_on(replicas, make, **settings):
        loss = keras.losses.SparseCategoricalCrossentropy(True, ignore_class=-1, reduction=reduction)
        with on(replicas):
            model = scored(make, loss, **settings)
        run = {"batch_size": 8, "shuffle": False, "verbose": 0, "sample_weight": weights}
        shown = model.fit(SEQUENCES, CLASSES, epochs=2, **run).history["loss"]
        evaluated = model.evaluate(SEQUENCES, CLASSES, batch_size=12, verbose=0, sample_weight=weights)
        return np.concatenate([np.ravel(each) for each in (*model.get_weights(), shown, evaluated)])

    expected = trained_on(1, keras.Model)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*(leaves out positions|mask)")
        found = trained_on(1 if settings else 2, bt.Model, **settings)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)


def valid_of(y, outputs):
    return tf.cast(y[..., 0] > 0, outputs.dtype)


def own_masked_mean(y, outputs):
    return tf.reduce_sum(valid_of(y, outputs) * outputs[..., 0]) / tf.reduce_sum(valid_of(y, outputs))


def valid_places_only(y, outputs):
    return tf.boolean_mask((y - outputs) ** 2, y[..., 0] > 0)


def masked_inside(y, outputs):
    return valid_of(y, outputs) * outputs[..., 0] / tf.reduce_sum(valid_of(y, outputs))


def average_loss(y, outputs):
    return tf.nn.compute_average_loss(tf.reduce_mean((y - outputs) ** 2, (1, 2)), global_batch_size=12)


def by_the_number_of_replicas(y, outputs):
    return tf.reduce_mean((y - outputs) ** 2) / tf.distribute.get_strategy().num_replicas_in_sync


PIXELS = np.repeat(VALID[..., None], 4, -1).astype("float32")
ONE_NUMBER, OTHERS = "is one number for a batch, not one for each example", "of an example depends on the others in the"
WARNED = {  # name: (loss, what is said of it)
    "valid_places_only": (valid_places_only, ONE_NUMBER),
    "Tversky": (keras.losses.Tversky(), ONE_NUMBER),
    "masked_inside": (masked_inside, OTHERS),
}


@pytest.mark.parametrize("name", WARNED)
def test_a_loss_that_is_no_mean_over_examples_is_warned_of_by_its_name(name):
    loss, words = WARNED[name]
    with on(2):
        model = scored(loss=loss)
    with pytest.warns(UserWarning, match=f"{name} {words}"):
        model.fit(SEQUENCES, PIXELS, batch_size=12, verbose=0)


def test_circle_takes_other_examples_into_that_of_one():
    inputs = keras.Input((3,))
    model = bt.Model(inputs, layers.Dense(2)(inputs), micro_batches=2)
    model.compile("sgd", keras.losses.Circle())
    with pytest.warns(UserWarning, match=f"Circle {OTHERS}"):
        model.fit(SEQUENCES[:, 0], VALID[:, 0].astype(int), batch_size=12, verbose=0)


def test_of_several_losses_the_one_that_is_no_mean_is_named():
    inputs = keras.Input((5, 3))
    outputs = {name: layers.Dense(4, name=name)(inputs) for name in ("first", "second")}
    model = bt.Model(inputs, outputs, micro_batches=2)
    model.compile("sgd", {"first": "mse", "second": own_masked_mean})
    with pytest.warns(UserWarning, match="own_masked_mean is one number for a batch"):
        model.fit(SEQUENCES, {"first": PIXELS, "second": PIXELS}, batch_size=12, verbose=0)


def test_a_loss_that_adds_up_is_refused_until_it_says_that_it_is_a_sum():
    class SaysSo(keras.losses.Loss):
        def call(self, y, outputs):
            return average_loss(y, outputs)

    def fitted_on(replicas, make, given):
        with on(replicas):
            model = scored(make, given)
        model.fit(SEQUENCES, PIXELS, batch_size=12, verbose=0, shuffle=False)
        return model

    with pytest.raises(
        ValueError, match='average_loss grows with batch size.*a keras.losses.Loss with reduction="sum"'
    ):
        fitted_on(2, bt.Model, average_loss)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*one number for a batch")
        said = fitted_on(2, bt.Model, SaysSo(reduction="sum"))
    assert distance(said, fitted_on(1, keras.Model, average_loss)) < 1e-5


def test_a_loss_that_is_divided_by_the_number_of_replicas_adds_up():
    with on(2):
        model = scored(loss=by_the_number_of_replicas)
    with pytest.raises(ValueError, match="by_the_number_of_replicas grows with batch size"):
        model.fit(SEQUENCES, PIXELS, batch_size=12, verbose=0)


def test_one_number_for_each_example_is_not_warned_of():
    losses = {keras.losses.Dice(axis=(1, 2)): (2, 1), lambda y, outputs: abs(y - outputs): (1, 2)}
    for loss, (replicas, micro_batches) in losses.items():
        with on(replicas):
            model = scored(loss=loss, micro_batches=micro_batches)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", ".*(one number for a batch|depends on the others)")
            model.fit(SEQUENCES, PIXELS, batch_size=12, verbose=0)


def test_a_class_that_a_function_ignores_is_exact_too():
    def ignores(y, outputs):
        return keras.losses.sparse_categorical_crossentropy(y[..., 0], outputs, from_logits=True, ignore_class=-1)

    models = [scored(keras.Model, ignores), scored(loss=ignores, micro_batches=2)]
    for model in models:
        model.fit(SEQUENCES, CLASSES[..., None], batch_size=12, verbose=0, shuffle=False)
    assert distance(*models) < 1e-5


@pytest.mark.parametrize(
    ("regularizer", "reduction"),
    [("l2", "mean_with_sample_weight"), (lambda x: tf.reduce_sum(tf.abs(x)), "sum_over_batch_size")],
    ids=["examples count differently", "custom"],
)
def test_an_activity_regularizer_is_warned_of_by_the_name_of_the_layer(regularizer, reduction):
    inputs = keras.Input((6,))
    layer = layers.Dense(1, activity_regularizer=regularizer, name="it")
    model = bt.Model(inputs, layers.Dense(1, kernel_regularizer="l2")(layer(inputs)), micro_batches=2)
    model.compile("sgd", MSE(reduction))
    with pytest.warns(UserWarning, match="it adds a loss with add_loss or activity_regularizer"):
        model.fit(X, Y, sample_weight=WEIGHTS, batch_size=11, verbose=0)


def test_activity_regularizers_of_keras_are_means_over_examples():
    def fitted_on(replicas, make):
        keras.utils.set_random_seed(1)
        with on(replicas):
            inputs = keras.Input((6,))
            hidden = layers.Dense(3, activity_regularizer=keras.regularizers.L1L2(0.1, 0.1))(inputs)
            model = make(inputs, layers.Dense(1)(hidden))
            model.compile("sgd", "mse")
        model.fit(X, Y, batch_size=11, verbose=0, shuffle=False)
        return model

    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*adds a loss")
        model = fitted_on(2, partial(bt.Model, micro_batches=2))
    assert distance(model, fitted_on(1, keras.Model)) < 1e-5


def test_ragged_inputs_in_micro_batches_are_refused():
    ragged = tf.data.Dataset.from_tensors((tf.ragged.constant([[1.0], [1.0, 2.0]]), tf.ones((2, 1))))
    inputs = keras.Input((None,))
    model = bt.Model(inputs, layers.Lambda(lambda x: tf.reduce_sum(x, 1, keepdims=True))(inputs), micro_batches=2)
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="micro_batches splits dense tensors only"):
        model.fit(ragged, verbose=0)


def test_two_replicas_leave_the_arrays_that_a_generator_yields_as_they_are():
    """Stock Keras overwrites them: see test_upstream.py."""
    wide = np.repeat(Y[:16], 16, axis=1)
    x, y = aligned(wide + 1), aligned(wide)
    with on(2):
        keras.utils.set_random_seed(1)
        inputs = keras.Input((16,))
        model = bt.Model(inputs, layers.Dense(16)(inputs))
        model.compile("sgd", "mse")
    model.fit(views(8, x, y), verbose=0, shuffle=False)
    model.evaluate(views(8, x, y), verbose=0)
    model.predict(views(8, x), verbose=0)
    np.testing.assert_array_equal(y, wide)
    np.testing.assert_array_equal(x, wide + 1)


def test_a_share_is_copied_whatever_it_is_made_of():
    share = {"dense": tf.ones([2, 3]), "ragged": tf.ragged.constant([[1.0], [2.0, 3.0]]), "none": None}

    def copied():
        copy = own_copy(share)
        assert copy["none"] is None
        return copy["dense"], copy["ragged"]

    dense, ragged = [strategy(2).experimental_local_results(each) for each in strategy(2).run(copied)]
    assert [each.numpy().tolist() for each in dense] == [[[1.0] * 3] * 2] * 2
    assert [each.to_list() for each in ragged] == [[[1.0], [2.0, 3.0]]] * 2
