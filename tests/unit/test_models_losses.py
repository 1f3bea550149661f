"""Losses that a step can weigh together over slices and replicas, and errors for those that it cannot."""

from functools import partial

import numpy as np
import pytest
from equal_models import distance, examples, net, on

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras

layers = keras.layers
MSE = keras.losses.MeanSquaredError
X, Y = examples(22)
WEIGHTS = np.geomspace(0.01, 10, 22).astype("float32")  # of very unlike sums in slices and replicas


def plain(make):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    return make(inputs, layers.Dense(1)(layers.Dense(4, activation="tanh")(inputs)))


def fitted(model, loss, weights=None, **settings):
    model.compile(keras.optimizers.SGD(0.02, momentum=0.9), loss, **settings)
    model.fit(X, Y, batch_size=11, sample_weight=weights, verbose=0, shuffle=False, epochs=2)
    return model


@pytest.mark.parametrize(("replicas", "micro_batches"), [(1, 3), (2, 1), (4, 3)])
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean_with_sample_weight", "sum"])
def test_reductions_are_exact_with_unequal_weights(reduction, replicas, micro_batches):
    with on(1):
        whole = fitted(plain(keras.Model), MSE(reduction), WEIGHTS)
    with on(replicas):
        model = fitted(plain(partial(bt.Model, micro_batches=micro_batches)), MSE(reduction), WEIGHTS)
    assert distance(model, whole) < 1e-5
    assert model.history.history["loss"] == pytest.approx(whole.history.history["loss"], rel=1e-5)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_batch_without_any_weight_changes_nothing(replicas):
    with on(replicas):
        keras.utils.set_random_seed(1)
        inputs = keras.Input((6,))
        model = bt.Model(inputs, layers.Dense(1)(layers.BatchNormalization()(inputs)), micro_batches=2)
        before = model.get_weights()
        fitted(model, MSE("mean_with_sample_weight"), 0 * WEIGHTS)
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert distance_of_trainable(model, before) == 0


def distance_of_trainable(model, before):
    return max(np.abs(a - b).max() for a, b in zip(model.get_weights()[:2], before[:2], strict=True))


@pytest.mark.parametrize("losses", [[MSE("sum"), MSE()], [MSE("mean_with_sample_weight"), "mse"], [MSE("none")] * 2])
def test_losses_that_cannot_be_weighed_together_are_refused(losses):
    inputs = keras.Input((6,))
    model = bt.Model(inputs, [layers.Dense(1)(inputs), layers.Dense(1)(inputs)], micro_batches=2)
    model.compile("sgd", losses)
    with pytest.raises(ValueError, match='cannot be weighed together .*: use one of "sum_over_batch_size"'):
        model.fit(X, [Y, Y], verbose=0)


def test_weights_for_each_output_cannot_be_the_mean_of_one():
    inputs = keras.Input((6,))
    model = bt.Model(inputs, [layers.Dense(1)(inputs), layers.Dense(1)(inputs)], micro_batches=2)
    model.compile("sgd", [MSE("mean_with_sample_weight")] * 2)
    with pytest.raises(ValueError, match="needs one sample_weight for all outputs"):
        model.fit(X, [Y, Y], sample_weight=[WEIGHTS, WEIGHTS], verbose=0)


def test_a_sum_beside_regularisers_refuses_to_be_cut():
    with pytest.raises(ValueError, match='"sum", micro_batches would count regularisers'):
        fitted(net(micro_batches=2), MSE("sum"))
    with on(1):
        whole = fitted(net(keras.Model), MSE("sum"))
    for replicas in (1, 2):
        with on(replicas):
            assert distance(fitted(net(), MSE("sum")), whole) < 1e-5


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_a_mask_given_as_weights_averages_over_the_whole_batch(micro_batches):
    """A mask that layers pass on is averaged over the valid places of each slice, as the docstring says."""
    tokens = np.random.default_rng(0).integers(1, 9, (12, 5))
    for row, length in enumerate([5, 1, 1, 1, 2, 1, 5, 5, 5, 5, 4, 5]):
        tokens[row, length:] = 0

    def build(make, mask_zero):
        keras.utils.set_random_seed(1)
        inputs = keras.Input((5,), dtype="int32")
        x = layers.Embedding(9, 4, mask_zero=mask_zero)(inputs)
        return make(inputs, layers.Dense(1)(x))

    def fit(make, mask_zero, **data):
        model = build(make, mask_zero)
        model.compile(keras.optimizers.SGD(0.5), MSE("mean_with_sample_weight"))
        model.fit(tokens, tokens[..., None] / 9, batch_size=12, verbose=0, shuffle=False, epochs=3, **data)
        return model

    make = partial(bt.Model, micro_batches=micro_batches)
    whole = fit(keras.Model, True)
    valid = (tokens != 0).astype("float32")
    assert distance(fit(make, False, sample_weight=valid), whole) < 1e-5
    assert (distance(fit(make, True), whole) < 1e-5) == (micro_batches == 1)


@pytest.mark.parametrize("make", [bt.Model, partial(bt.Model, micro_batches=2)])
def test_logs_that_are_no_metrics_are_refused(make):
    class Own(bt.Model):
        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            return {**super().compute_metrics(x, y, y_pred, sample_weight), "largest": keras.ops.max(y_pred)}

    inputs = keras.Input((6,))
    model = Own(inputs, layers.Dense(1)(inputs), **getattr(make, "keywords", {}))
    with pytest.raises(ValueError, match="compute_metrics returns largest, .* make each a keras.metrics.Metric"):
        fitted(model, "mse")
