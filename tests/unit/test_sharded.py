"""`shard_optimizer=True`: same weights, half of the optimizer state on each of two replicas, same files."""

from functools import cache, partial

import numpy as np
import pytest
from equal_models import (
    SIZES,
    batches,
    distance,
    examples,
    net,
    on,
    precision,
    reducing,
    trained,
    values_on_replicas,
)

import bigtrain_nb as bt
from bigtrain_nb.common.keras_compat import innermost
from bigtrain_nb.common.quiet import keras

optimizers = keras.optimizers
X, Y = examples(sum(SIZES))
DATA = batches(SIZES, X, Y)
ADAM = partial(optimizers.Adam, 0.01, epsilon=1e-4)


def recomputed_net(**options):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    x = bt.recompute(keras.layers.Dense(8, activation="tanh"))(inputs)
    return bt.Model(inputs, keras.layers.Dense(1)(x), micro_batches=3, reduce_dtype="bfloat16", **options)


def undecayed_biases():
    settings = {"global_clipnorm": 0.1, "use_ema": True, "ema_momentum": 0.9}
    optimizer = optimizers.AdamW(0.01, weight_decay=0.1, epsilon=1e-4, **settings)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


TOGETHER = {  # with shard_optimizer=True: replicas, optimizer, how to build
    "micro_batches, recompute, reduce_dtype": (2, undecayed_biases, recomputed_net),
    "three replicas, schedule, clipnorm": (  # some replicas without examples
        3,
        partial(optimizers.Nadam, optimizers.schedules.CosineDecay(0.02, 20), clipnorm=0.05, epsilon=1e-4),
        net,
    ),
}


def of_two_types(dtype, last="float32", **options):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    x = keras.layers.Dense(8, activation="tanh", dtype=dtype)(inputs)
    return bt.Model(inputs, keras.layers.Dense(1, dtype=last)(x), **options)


def bytes_on_first_replica(optimizer):
    variables = innermost(optimizer)._variables  # `variables` shows them unsharded
    return sum(values_on_replicas(variable)[0].nbytes for variable in variables)


def state(model):
    return [variable.numpy() for variable in model.optimizer.variables]


def apart(model, other):
    """Return the largest difference of a weight or of the optimizer state."""
    pairs = zip(state(model), state(other), strict=True)
    return max(distance(model, other), max(float(np.abs(a - b).max()) for a, b in pairs))


@cache
def without(build, optimizer, replicas=2):
    """Return a model trained without `shard_optimizer`, reduced on one device; no test changes it."""
    with reducing("on one device"):
        return trained(build, DATA, optimizer, replicas)


@pytest.mark.usefixtures("each_reduction")
@pytest.mark.parametrize("name", TOGETHER)
def test_it_trains_as_without_and_shows_the_same_state(name):
    replicas, optimizer, build = TOGETHER[name]
    sharded = trained(partial(build, shard_optimizer=True), DATA, optimizer, replicas)
    assert apart(sharded, without(build, optimizer, replicas)) < 1e-6
    for weight in sharded.weights:
        assert all(np.array_equal(value, weight.numpy()) for value in values_on_replicas(weight))


@pytest.mark.usefixtures("each_reduction")
def test_weights_of_two_types_are_sharded_each_type_by_itself():
    build = partial(of_two_types, "bfloat16")
    plain, sharded = trained(build, DATA, ADAM, 2), trained(partial(build, shard_optimizer=True), DATA, ADAM, 2)
    assert {weight.dtype for weight in sharded.weights} == {"bfloat16", "float32"}
    for weight, other in zip(sharded.weights, plain.weights, strict=True):
        np.testing.assert_allclose(weight.numpy().astype("float64"), other.numpy().astype("float64"), rtol=0, atol=1e-6)


def test_gradients_of_64_bits_are_summed_in_64():
    build = partial(of_two_types, "float64", last="float64")
    momentum = partial(optimizers.SGD, 0.1, momentum=0.9)
    plain, sharded = (trained(partial(build, **given), DATA, momentum, 2) for given in ({}, {"shard_optimizer": True}))
    for weight, other in zip(sharded.weights, plain.weights, strict=True):
        np.testing.assert_allclose(weight.numpy(), other.numpy(), rtol=0, atol=1e-12)


@pytest.fixture(scope="module")
def scaled():
    """Models trained with loss scaling on two replicas, plain and sharded."""
    with precision("mixed_float16"):
        return [trained(partial(net, shard_optimizer=sharded), DATA, ADAM, 2) for sharded in (False, True)]


def test_a_replica_keeps_half_of_the_slots(scaled):
    plain, sharded = scaled
    assert apart(sharded, plain) < 1e-6 and sharded.loss_scale == plain.loss_scale
    assert bytes_on_first_replica(sharded.optimizer) < 0.55 * bytes_on_first_replica(plain.optimizer)


def test_a_file_is_whole_and_goes_on_with_any_number_of_replicas_sharded_or_not(scaled, tmp_path):
    _, sharded = scaled
    sharded.save(tmp_path / "model.keras")
    further = {}
    for replicas in (1, 4):
        with precision("mixed_float16"), on(replicas):
            loaded = bt.load_model(tmp_path / "model.keras", shard_optimizer=replicas > 1)
        assert apart(loaded, sharded) == 0
        loaded.fit(DATA, verbose=0, shuffle=False)
        further[replicas] = loaded
    assert distance(further[4], further[1]) < 5e-3  # in 16 bits


@pytest.mark.parametrize(("sharded", "reduced"), [(False, "on one device"), (True, "by collectives")])
def test_resume_goes_on_from_a_sharded_state_with_any_number_of_replicas(sharded, reduced, tmp_path):
    def resumed(replicas, shard_optimizer):
        with reducing(reduced), on(replicas):
            model = net(shard_optimizer=shard_optimizer)
            model.compile(ADAM(), "mse")
        return bt.Resume(tmp_path, model)

    first = resumed(2, sharded)
    first.model.fit(first.data(lambda epoch: DATA), epochs=1, verbose=0, shuffle=False, callbacks=[first])
    for replicas, shard_optimizer in [(4, True), (1, False)]:
        again = resumed(replicas, shard_optimizer)
        assert again.restored and again.epoch == 1
        assert apart(again.model, first.model) == 0


def test_layers_are_frozen_and_thawed_with_a_new_compile():
    data = batches([16, 16], X[:32], Y[:32])

    def run(**options):
        with on(2):
            model = net(**options)
            for trainable in (False, True):
                model.layers[1].trainable = trainable
                model.compile(ADAM(), "mse")
                model.fit(data, verbose=0, shuffle=False)
        return model

    sharded = run(shard_optimizer=True)
    assert apart(sharded, run()) < 1e-6
    sharded.layers[1].trainable = False
    with on(2):
        sharded.compile(ADAM(), "mse")
    sharded.fit(data, verbose=0, shuffle=False)
    sharded.layers[1].trainable = True
    sharded.make_train_function(force=True)
    with pytest.raises(ValueError, match="was frozen when this .*: compile the model with a new optimizer"):
        sharded.fit(data, verbose=0, shuffle=False)


@keras.saving.register_keras_serializable("tests")
class MyAdam(optimizers.Adam):
    pass


def test_an_optimizer_of_ones_own_is_refused_by_name_and_what_is_refused_once_is_refused_again():
    with on(2):
        model = bt.Model.of(net(keras.Model), shard_optimizer=True)
        with pytest.raises(ValueError, match="MyAdam is not known to update each element of a weight independently"):
            model.compile(MyAdam(0.01), "mse")
        model.shard_optimizer = False
        model.compile("sgd", "mse")
    model.fully_shard = "no such layer"
    for _ in range(2):
        with pytest.raises(ValueError, match="selects no layer of"):
            model.fit(X, Y, verbose=0)
    model.fully_shard = None
    model.optimizer = keras.optimizers.Lamb()
    model.shard_optimizer = True
    for _ in range(2):
        with pytest.raises(ValueError, match="Lamb is not known to update each element"):
            model.fit(X, Y, verbose=0)


def test_averages_are_not_swapped_in_where_each_replica_has_a_part_of_them():
    with on(2):
        model = net(shard_optimizer=True)
        model.compile(optimizers.SGD(0.1, use_ema=True), "mse")
    with pytest.raises(ValueError, match="SwapEMAWeights swaps weights .* or leave out shard_optimizer"):
        model.fit(X, Y, callbacks=[keras.callbacks.SwapEMAWeights()], verbose=0)
    with pytest.raises(ValueError, match="SwapEMAWeights swaps weights"):
        model.evaluate(X, Y, callbacks=keras.callbacks.SwapEMAWeights(), verbose=0)
    with pytest.raises(ValueError, match="SwapEMAWeights swaps weights"):
        model.evaluate(X, Y, None, 0, None, None, [keras.callbacks.SwapEMAWeights()])
    with pytest.raises(ValueError, match="SwapEMAWeights swaps weights"):
        model.predict(X, None, 0, None, [keras.callbacks.SwapEMAWeights()])
