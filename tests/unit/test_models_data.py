"""What a batch may hold, how its losses are weighed and cut, and the errors where they cannot be."""

import warnings
from functools import partial

import numpy as np
import pytest
from equal_models import aligned, distance, examples, net, on, strategy, views

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.common.replicas import own_copy

layers = keras.layers
MSE = keras.losses.MeanSquaredError
X, Y = examples(22)
WEIGHTS = np.geomspace(0.01, 10, 22).astype("float32")  # of very unlike sums in slices and replicas


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


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean_with_sample_weight", "sum"])
def test_reductions_are_exact_with_unequal_weights(reduction):
    with on(1):
        whole = fitted(plain(keras.Model), MSE(reduction), WEIGHTS)
    with on(4):
        model = fitted(plain(partial(bt.Model, micro_batches=3)), MSE(reduction), WEIGHTS)
    assert distance(model, whole) < 1e-5
    assert model.history.history["loss"] == pytest.approx(whole.history.history["loss"], rel=1e-5)


def test_a_batch_without_any_weight_changes_nothing():
    with on(2):
        inputs = keras.Input((6,))
        model = bt.Model(inputs, layers.Dense(1)(layers.BatchNormalization()(inputs)), micro_batches=2)
        before = [variable.numpy() for variable in model.trainable_variables]
        fitted(model, MSE("mean_with_sample_weight"), 0 * WEIGHTS)
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    for variable, value in zip(model.trainable_variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


@pytest.mark.parametrize(
    ("losses", "weights", "said"),
    [
        ([MSE("sum"), MSE()], None, 'cannot be weighed together .*: use one of "sum_over_batch_size"'),
        ([MSE("none")] * 2, None, "cannot be weighed together"),
        ([MSE("mean_with_sample_weight")] * 2, [WEIGHTS, WEIGHTS], "needs one sample_weight for all outputs"),
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


def test_a_sum_beside_regularisers_refuses_to_be_cut():
    with pytest.raises(ValueError, match='"sum", micro_batches would count regularisers'):
        fitted(net(micro_batches=2), MSE("sum"))
    with on(1):
        whole = fitted(net(keras.Model), MSE("sum"))
    with on(2):
        assert distance(fitted(net(), MSE("sum")), whole) < 1e-5


ONE_REPLICA = pytest.param(1, 3, marks=pytest.mark.more("two replicas in micro-batches need all that one does"))


@pytest.mark.parametrize(("replicas", "micro_batches"), [(1, 1), ONE_REPLICA, (2, 2)])
def test_a_mask_is_exact_as_weights_of_a_mean_with_weights_and_warned_of_without(replicas, micro_batches, recwarn):
    """The cure that the warning names: reduction="mean_with_sample_weight", and the mask as sample_weight."""
    tokens = np.random.default_rng(0).integers(1, 9, (12, 5))
    for row, length in enumerate([5, 1, 1, 1, 2, 1, 5, 5, 5, 5, 4, 5]):
        tokens[row, length:] = 0
    valid = (tokens != 0).astype("float32")

    def fit(make, reduction, count=1, **data):
        keras.utils.set_random_seed(1)
        with on(count):
            inputs = keras.Input((5,), dtype="int32")
            model = make(inputs, layers.Dense(1)(layers.Embedding(9, 4, mask_zero=True)(inputs)))
            model.compile(keras.optimizers.SGD(0.5), MSE(reduction))
            model.fit(tokens, tokens[..., None] / 9, batch_size=12, verbose=0, shuffle=False, epochs=3, **data)
        return model

    make = partial(bt.Model, micro_batches=micro_batches)
    whole = fit(keras.Model, "sum_over_batch_size")
    cured = fit(make, "mean_with_sample_weight", replicas, sample_weight=valid)
    assert distance(cured, whole) < 1e-5
    assert not [one for one in recwarn if "have a mask" in str(one.message)]

    divided = micro_batches > 1
    for reduction in ("sum_over_batch_size", "mean_with_sample_weight"):
        recwarn.clear()
        assert (distance(fit(make, reduction, replicas), whole) > 1e-4) == divided
        assert (
            any('reduction="mean_with_sample_weight", and the mask' in str(one.message) for one in recwarn) == divided
        )


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


def test_accumulation_by_the_optimizer_works_without_micro_batches_on_one_device_only():
    def fit(make, replicas=1, **options):
        with on(replicas):
            model = net(make, **options)
            model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), "mse")
        model.fit(X, Y, batch_size=4, verbose=0, shuffle=False)
        return model

    assert distance(fit(bt.Model), fit(keras.Model)) < 1e-5
    for replicas, micro_batches in [(1, 2), (2, 1)]:
        with pytest.raises(ValueError, match="leave it out of the optimizer and give micro_batches"):
            fit(bt.Model, replicas, micro_batches=micro_batches)


def test_without_fit_and_without_training_all_is_exact_too():
    models = []
    for where, make in [(4, partial(bt.Model, micro_batches=3)), (1, keras.Model)]:
        with on(where):
            model = net(make)
            model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
        models.append(model)

    def agree(result):
        ours, stock = [result(model) for model in models]
        np.testing.assert_allclose(ours, stock, rtol=1e-5, atol=1e-6)

    agree(lambda model: model.train_on_batch(X[:8], Y[:8]))
    agree(lambda model: model.evaluate(X[:11], Y[:11], batch_size=7, verbose=0))
    agree(lambda model: model.predict(X[:11], batch_size=7, verbose=0))


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
            shown.append(model.evaluate(X[:9], Y[:9], batch_size=4, verbose=0, return_dict=True))  # the last has one
    assert shown[1]["loss"] == pytest.approx(shown[0]["loss"], rel=1e-5)
    assert np.isfinite(shown[1]["own_mean"])  # a number of a batch, which is one of a share here


def test_evaluation_counts_shares_by_their_weights_where_the_loss_does():
    losses = []
    for replicas, make in ((1, keras.Model), (2, bt.Model)):
        with on(replicas):
            model = plain(make)
            model.compile("sgd", MSE("mean_with_sample_weight"))
            losses.append(model.evaluate(X, Y, batch_size=8, sample_weight=WEIGHTS, verbose=0))
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_what_is_no_mean_over_examples_is_refused_or_warned_of():
    with on(2):
        model = plain(bt.Model)
        model.compile("sgd", MSE("sum"))
        with pytest.raises(ValueError, match="would count each example 2 times"):
            model.train_on_batch(X, Y)
    model = plain(partial(bt.Model, micro_batches=2))
    model.compile("sgd", keras.losses.Dice())
    with pytest.warns(UserWarning, match="Dice is one number for a batch"):
        model.fit(X, abs(Y), batch_size=11, verbose=0)
    inputs = keras.Input(batch_shape=(4, 3, 2))
    model = bt.Model(inputs, layers.LSTM(1, stateful=True, name="lstm")(inputs), micro_batches=2)
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="lstm: stateful=True carries a state from batch to batch"):
        model.fit(np.ones((4, 3, 2)), np.ones((4, 1)), batch_size=4, verbose=0)


VALID = np.random.default_rng(5).random((12, 5)) < np.linspace(0.1, 0.9, 12)[:, None]
CLASSES = np.where(VALID, np.random.default_rng(6).integers(0, 4, (12, 5)), -1)
SEQUENCES = np.random.default_rng(7).normal(size=(12, 5, 3)).astype("float32")


def scored(make=bt.Model, loss=None, **settings):
    keras.utils.set_random_seed(3)
    inputs = keras.Input((5, 3))
    model = make(inputs, layers.Dense(4)(inputs), **settings)
    model.compile(keras.optimizers.SGD(0.5), loss)
    return model


@pytest.mark.parametrize("weights", [None, np.random.default_rng(8).random((12, 5)).astype("float32")])
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean_with_sample_weight"])
@pytest.mark.parametrize("settings", [{"micro_batches": 3}, {}])
def test_a_loss_that_ignores_a_class_is_the_mean_over_the_valid_places_of_the_batch(settings, reduction, weights):
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
        warnings.filterwarnings("error", ".*(leaves out places|mask)")
        found = trained_on(1 if settings else 2, bt.Model, **settings)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)


def own_masked_mean(y, outputs):
    counted = tf.cast(y[..., 0] > 0, outputs.dtype)
    return tf.reduce_sum(counted * outputs[..., 0]) / tf.reduce_sum(counted)


def by_the_global_batch(y, outputs):
    return tf.reduce_sum((y - outputs) ** 2) / 8


def ignores_in_a_function(y, outputs):
    return keras.losses.sparse_categorical_crossentropy(y[..., 0], outputs, from_logits=True, ignore_class=-1)


ONE_NUMBER = {
    "own_masked_mean": own_masked_mean,
    "by_the_global_batch": by_the_global_batch,
    "dice": "dice",
    "tversky": keras.losses.tversky,
    "<lambda>": lambda y, outputs: tf.reduce_mean(y - outputs),
    "Tversky": keras.losses.Tversky(),
    "Circle": keras.losses.Circle(),
}


@pytest.mark.parametrize("settings", [{"micro_batches": 2}, {}])
@pytest.mark.parametrize("name", ONE_NUMBER)
def test_a_loss_that_is_one_number_for_a_batch_is_warned_of_by_its_name(name, settings):
    with on(1 if settings else 2):
        model = scored(loss=ONE_NUMBER[name], **settings)
    y = VALID[:, 0].astype(int) if name == "Circle" else np.repeat(VALID[..., None], 4, -1).astype("float32")
    if name == "Circle":
        with on(1 if settings else 2):
            inputs = keras.Input((3,))
            model = bt.Model(inputs, layers.Dense(2)(inputs), **settings)
            model.compile("sgd", ONE_NUMBER[name])
    x = SEQUENCES[:, 0] if name == "Circle" else SEQUENCES
    with pytest.warns(UserWarning, match=f"{name} is one number for a batch, not one for each example"):
        model.fit(x, y, batch_size=8, verbose=0)


@pytest.mark.parametrize("settings", [{"micro_batches": 2}, {}])
def test_one_number_for_each_example_is_not_warned_of(settings):
    def own(y, outputs):
        return tf.reduce_mean((y - outputs) ** 2, axis=(1, 2))

    y = np.repeat(VALID[..., None], 4, -1).astype("float32")
    for loss in (own, "mse", keras.losses.Dice(axis=(1, 2)), lambda y, outputs: abs(y - outputs)):
        with on(1 if settings else 2):
            model = scored(loss=loss, **settings)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", ".*one number for a batch")
            model.fit(SEQUENCES, y, batch_size=8, verbose=0)


def test_a_class_that_a_function_ignores_is_warned_of():
    model = scored(loss=ignores_in_a_function, micro_batches=2)
    with pytest.warns(UserWarning, match="ignores_in_a_function leaves out places.*mean_with_sample_weight"):
        model.fit(SEQUENCES, CLASSES[..., None], batch_size=8, verbose=0)


def test_ragged_inputs_in_micro_batches_are_refused():
    ragged = tf.data.Dataset.from_tensors((tf.ragged.constant([[1.0], [1.0, 2.0]]), tf.ones((2, 1))))
    inputs = keras.Input((None,))
    model = bt.Model(inputs, layers.Lambda(lambda x: tf.reduce_sum(x, 1, keepdims=True))(inputs), micro_batches=2)
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="micro_batches divides dense tensors only"):
        model.fit(ragged, verbose=0)


def test_two_replicas_leave_the_arrays_that_a_generator_yields_as_they_are():
    """Stock Keras writes into them: see test_upstream.py."""
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
