"""Replicas that say less: gradients in 16 bits on the way, and steps apart with a meeting now and then."""

from functools import partial

import numpy as np
import pytest
from equal_models import batches, distance, examples, net, on, precision, replicas_agree, trained, values_on_replicas
from local_training import by_hand

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

BATCH, STEPS = 8, 5
X, Y = examples(BATCH * STEPS)
DATA = batches([BATCH] * STEPS, X, Y)
MOMENTUM = partial(keras.optimizers.SGD, 0.05, momentum=0.9)
ADAM = partial(keras.optimizers.Adam, 0.02, epsilon=1e-4)
DILOCO = {"rate": 0.7, "momentum": 0.9}


def outer_optimizer(outer):
    """Return the setting for an outer step of `by_hand`."""
    return keras.optimizers.SGD(outer["rate"], outer["momentum"], nesterov=True) if outer else None


def normalized_net(**options):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    x = keras.layers.BatchNormalization()(keras.layers.Dense(8, activation="tanh")(inputs))
    return bt.Model(inputs, keras.layers.Dense(1)(x), **options)


def after_one_step(**options):
    build = partial(normalized_net, micro_batches=3, **options)
    return trained(build, DATA.take(1), partial(keras.optimizers.SGD, 1.0), 2)


@pytest.mark.usefixtures("each_reduction")
def test_only_gradients_are_rounded_to_16_bits_and_only_on_their_way():
    sent = after_one_step(reduce_dtype="bfloat16")
    exact = after_one_step()
    start = normalized_net().get_weights()
    for variable, mine, other, before in zip(sent.weights, sent.get_weights(), exact.get_weights(), start, strict=True):
        largest = 2**-6 * np.abs(other - before).max() if variable.trainable else 0.0
        np.testing.assert_allclose(mine, other, rtol=0, atol=largest + 1e-7)
    assert distance(sent, exact) > 1e-5
    assert sent.history.history == exact.history.history
    assert replicas_agree(sent)


def test_bfloat16_is_asked_for_by_a_ring_for_nccl_does_not_sum_it(monkeypatch):
    asked = set()
    all_reduce = tf.distribute.ReplicaContext.all_reduce

    def note(self, operation, tensors, options=None):
        asked.update((tensor.dtype.name, options and options.implementation.name) for tensor in tensors)
        return all_reduce(self, operation, tensors, options)

    monkeypatch.setattr(tf.distribute.ReplicaContext, "all_reduce", note)
    after_one_step(reduce_dtype="bfloat16")
    assert asked == {("bfloat16", "RING"), ("float32", None)}


class Watch(keras.callbacks.Callback):
    """Notes after which steps all replicas have the same weights, and for each epoch whether they have at its end."""

    def __init__(self):
        super().__init__()
        self.equal = []

    def on_train_batch_end(self, batch, logs=None):
        self.equal.append(self.replicas_are_equal())

    def on_epoch_end(self, epoch, logs=None):
        assert self.replicas_are_equal()
        self.evaluated = logs["val_loss"]

    def replicas_are_equal(self):
        rows = [values_on_replicas(weight) for weight in self.model.weights]
        return all(np.array_equal(row[0], value) for row in rows for value in row[1:])


@pytest.mark.usefixtures("each_reduction")
@pytest.mark.parametrize(
    ("optimizer", "replicas", "micro_batches", "outer"),
    [(MOMENTUM, 2, 3, {}), (MOMENTUM, 2, 3, DILOCO), (ADAM, 1, 1, DILOCO)],
)
def test_local_steps_equal_those_by_hand(optimizer, replicas, micro_batches, outer):
    watch = Watch()
    with on(replicas):
        model = net(micro_batches=micro_batches, sync_every=2, outer_optimizer=outer_optimizer(outer))
        model.compile(optimizer(), "mse")
        history = model.fit(DATA, validation_data=DATA, epochs=2, shuffle=False, verbose=0, callbacks=watch).history
    with on(1):
        alone = [net(keras.Model) for _ in range(replicas)]
        for one in alone:
            one.compile(optimizer(), "mse")
        size = BATCH // replicas
        shares = []
        for first in range(0, BATCH, size):
            shares.append([(X[at : at + size], Y[at : at + size]) for at in range(first, len(X), BATCH)])
        weights, losses = by_hand(alone, shares, 2, epochs=2, **outer)
        assert watch.evaluated == pytest.approx(alone[0].evaluate(X, Y, verbose=0), rel=1e-5)
    for mine, other in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)
    assert history["loss"] == pytest.approx(losses, rel=1e-5)
    if replicas > 1:
        assert watch.equal == [False, True, False, True, False] * 2


@pytest.mark.usefixtures("each_reduction")
def test_meeting_after_every_step_of_plain_sgd_is_ordinary_training():
    sgd = partial(keras.optimizers.SGD, 0.1)
    local = trained(partial(net, sync_every=1), DATA, sgd, 2, epochs=2)
    ordinary = trained(net, DATA, sgd, 2, epochs=2)
    for one, other in zip(local.get_weights(), ordinary.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
    assert local.history.history["loss"] == pytest.approx(ordinary.history.history["loss"], rel=1e-5)
    assert local.outer_optimizer is None and replicas_agree(local)


@pytest.mark.usefixtures("each_reduction")
def test_an_inf_on_one_replica_skips_the_step_on_all_of_the_process():
    x = X.copy()
    x[2 * BATCH + BATCH - 1] = np.inf  # in the third step, on the second replica
    scales = []
    record = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: scales.append(model.loss_scale))
    with precision("mixed_float16"), on(2):
        model = net(sync_every=4, reduce_dtype="bfloat16")
        model.compile(ADAM(), "mse")
        model.fit(batches([BATCH] * STEPS, x, Y), shuffle=False, verbose=0, callbacks=[record])
    assert scales == [2.0**15] * 2 + [2.0**14] * 3
    assert model.optimizer.iterations.numpy() == STEPS - 1
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


def test_a_saved_model_goes_on_with_its_outer_momentum(tmp_path):
    settings = {"sync_every": 2, "outer_optimizer": outer_optimizer(DILOCO)}
    whole = trained(partial(net, **settings), DATA, MOMENTUM, epochs=2)
    trained(partial(net, **settings), DATA, MOMENTUM).save(tmp_path / "model.keras")
    with on(1):
        loaded = bt.load_model(tmp_path / "model.keras", **settings)
        loaded.fit(DATA, shuffle=False, verbose=0)
    assert distance(loaded, whole) < 1e-6
    assert not settings["outer_optimizer"].built  # three models have a copy each


def test_a_model_that_its_first_batch_builds_makes_outer_steps_from_the_first_meeting_on():
    def train(*layers):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([*layers, keras.layers.Dense(1, kernel_initializer="ones")])
        optimizer = keras.optimizers.SGD(0.0)  # so the weights stay where they start
        with on(1):
            model = bt.Model.of(model, sync_every=2, outer_optimizer=optimizer)
            model.compile("sgd", "mse")
            model.fit(DATA, shuffle=False, verbose=0)
        return model.get_weights()

    for weights in (train(), train(keras.Input((6,)))):
        np.testing.assert_array_equal(weights[0], 1.0)


@pytest.mark.parametrize(
    ("name", "value"), [("reduce_dtype", "float16"), ("sync_every", 0), ("outer_optimizer", "sgd")]
)
def test_another_value_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"{name}={value!r} must be"):
        net(**{name: value})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"outer_optimizer": keras.optimizers.SGD(1.0)}, "outer_optimizer=SGD moves .* without sync_every they never"),
        ({"sync_every": 2, "outer_optimizer": keras.optimizers.SGD(use_ema=True)}, "outer_optimizer: use_ema=True has"),
    ],
)
def test_an_outer_optimizer_that_would_do_nothing_or_something_else_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        net(**settings)
    with pytest.raises(ValueError, match=message):
        bt.Model.of(net(keras.Model), **settings)


def test_what_cannot_go_with_local_steps_is_refused(tmp_path):
    with on(1):
        model = net(sync_every=2)
        model.compile(keras.optimizers.SGD(use_ema=True), "mse")
    with pytest.raises(ValueError, match="train_on_batch has no end"):
        model.train_on_batch(X, Y)
    with pytest.raises(ValueError, match="sync_every=2 and use_ema=True do not go together"):
        model.fit(DATA, verbose=0)
    with pytest.raises(ValueError, match="Resume cannot go on exactly with sync_every=2"):
        bt.Resume(tmp_path, model)
