"""What `fit` offers works with a cut step: callbacks, validation, resuming, compiled and eager steps, histories."""

import numpy as np
import pytest
from equal_models import batches, distance, examples, net, on, traces_of_first_step, trained

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

X, Y = examples(30)
DATA = batches([8, 8, 8, 6], X, Y)
ADAM = keras.optimizers.AdamW


def compiled(replicas=1, micro_batches=3, **settings):
    with on(replicas):
        model = net(micro_batches=micro_batches)
        model.compile(**{"optimizer": ADAM(0.01, epsilon=1e-4), "loss": "mse", **settings})
    return model


@pytest.mark.parametrize("replicas", [1, 2])
def test_callbacks_see_steps_epochs_and_validation(replicas, tmp_path):
    model, seen = compiled(replicas, metrics=["mae"]), []
    callbacks = [
        keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda step, logs: seen.append((step, sorted(logs))),
            on_epoch_end=lambda epoch, logs: seen.append(sorted(logs)),
        ),
        keras.callbacks.EarlyStopping("loss", patience=0, min_delta=100),
        keras.callbacks.ReduceLROnPlateau("loss", patience=1),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.keras", monitor="val_loss", save_best_only=True),
        keras.callbacks.TerminateOnNaN(),
    ]
    model.fit(DATA, epochs=5, verbose=0, shuffle=False, callbacks=callbacks, validation_data=(X[:7], Y[:7]))
    steps = [(step, ["loss", "mae"]) for step in range(4)]
    epoch = ["learning_rate", "loss", "mae", "val_loss", "val_mae"]
    assert seen == [*steps, epoch[1:], *steps, epoch[1:]] or seen == [*steps, epoch, *steps, epoch]
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 3
    best = keras.models.load_model(tmp_path / "1.keras")
    assert best.micro_batches == 3 and best.optimizer.iterations.numpy() == 4


def test_tensorboard_gets_its_scalars(tmp_path):
    pytest.importorskip("tensorboard", reason="keras.callbacks.TensorBoard needs the package tensorboard")
    model = compiled()
    model.fit(DATA, verbose=0, shuffle=False, callbacks=[keras.callbacks.TensorBoard(tmp_path, update_freq="batch")])
    assert list(tmp_path.rglob("events.out*"))


@pytest.mark.parametrize("replicas", [1, 2])
def test_backup_and_restore_goes_on_exactly(replicas, tmp_path):
    class Interrupted(Exception):
        pass

    def interrupt(epoch, logs):
        if epoch == 1:
            raise Interrupted

    whole = compiled(replicas)
    whole.fit(DATA, epochs=4, verbose=0, shuffle=False)
    first = compiled(replicas)
    stop = keras.callbacks.LambdaCallback(on_epoch_begin=interrupt)
    with pytest.raises(Interrupted):
        first.fit(DATA, epochs=4, verbose=0, callbacks=[keras.callbacks.BackupAndRestore(tmp_path), stop])
    second = compiled(replicas)
    second.fit(DATA, epochs=4, verbose=0, shuffle=False, callbacks=[keras.callbacks.BackupAndRestore(tmp_path)])
    assert distance(second, whole) < 1e-7
    assert second.optimizer.iterations.numpy() == 16


def test_a_model_saved_under_a_strategy_goes_on_without_it_and_back(tmp_path):
    model = compiled(2)
    model.fit(DATA, verbose=0, shuffle=False)
    model.save(tmp_path / "model.keras")
    model.fit(DATA, verbose=0, shuffle=False)
    for replicas in (1, 4):
        with on(replicas):
            loaded = keras.models.load_model(tmp_path / "model.keras")
            loaded.fit(DATA, verbose=0, shuffle=False)
        assert distance(loaded, model) < 1e-5


@pytest.mark.parametrize("jit_compile", [True, False])
@pytest.mark.parametrize("micro_batches", [1, 3, 4, 40])
def test_compiled_and_eager_steps_equal_the_whole_batch(jit_compile, micro_batches):
    """Slices of 8 examples: 4 divide them, 3 do not; the last batch has 6."""
    whole = trained(lambda: net(keras.Model), DATA, ADAM, jit_compile=False)
    how = {"jit_compile": jit_compile, "run_eagerly": not jit_compile}
    model = trained(lambda: net(micro_batches=micro_batches), DATA, ADAM, **how)
    assert model.jit_compile is jit_compile
    assert distance(model, whole) < 1e-5


@pytest.mark.parametrize("micro_batches", [1, 3, 4])
def test_xla_takes_batches_of_a_size_known_beforehand(micro_batches):
    data = batches([8, 8], X, Y).unbatch().batch(8, drop_remainder=True)
    whole = trained(lambda: net(keras.Model), data, ADAM, jit_compile=False)
    model = trained(lambda: net(micro_batches=micro_batches), data, ADAM, jit_compile=True)
    assert distance(model, whole) < 1e-5


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_eager_steps_take_numpy_arrays(micro_batches):
    model = net(micro_batches=micro_batches)
    model.compile(ADAM(), "mse", run_eagerly=True)
    assert np.isfinite(model.train_on_batch(X[:8], Y[:8])) and np.isfinite(model.test_on_batch(X[:8], Y[:8]))


def test_eager_steps_on_replicas_of_which_one_has_no_example():
    data = batches([4, 1], X, Y)
    whole = trained(lambda: net(keras.Model), data, ADAM)
    assert distance(trained(lambda: net(micro_batches=2), data, ADAM, 2, run_eagerly=True), whole) < 1e-5


def test_a_strategy_of_one_device():
    with tf.distribute.OneDeviceStrategy("CPU:1").scope():
        model = net(micro_batches=3)
        model.compile(ADAM(), "mse")
    model.fit(DATA, verbose=0, shuffle=False)
    assert distance(model, trained(lambda: net(keras.Model), DATA, ADAM)) < 1e-5


@pytest.mark.parametrize("replicas", [1, 2])
def test_arrays_validation_split_and_steps_per_epoch(replicas):
    model = compiled(replicas, steps_per_execution=2, metrics=["mae"])
    model.fit(X, Y, batch_size=8, validation_split=0.2, epochs=2, verbose=0)
    assert set(model.history.history) == {"loss", "mae", "val_loss", "val_mae"}
    assert model.optimizer.iterations.numpy() == 6
    model.fit(DATA.repeat(), steps_per_epoch=3, validation_data=DATA, validation_steps=2, verbose=0, shuffle=False)
    assert model.optimizer.iterations.numpy() in {9, 10}  # two at a time


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_schedule_and_an_average_of_the_weights(replicas):
    schedule = keras.optimizers.schedules.CosineDecay(0.05, 4)
    make = lambda: keras.optimizers.SGD(schedule, use_ema=True, ema_momentum=0.5)  # noqa: E731
    whole = trained(lambda: net(keras.Model), DATA, make)
    assert distance(trained(lambda: net(micro_batches=3), DATA, make, replicas), whole) < 1e-5


@pytest.mark.parametrize(("replicas", "micro_batches"), [(1, 1), (1, 3), (4, 3)])
@pytest.mark.parametrize(("loss", "weight"), [(["mse", "mae"], 0.5), ("mse", 1.0)])
def test_history_is_exact_with_a_short_last_batch(loss, weight, replicas, micro_batches):
    """Also the losses of single outputs, which stock Keras averages over batches, short ones counted like full ones."""
    with on(replicas):
        keras.utils.set_random_seed(1)
        inputs = keras.Input((6,))
        heads = [keras.layers.Dense(1, name=name)(inputs) for name in ("a", "b")]
        model = bt.Model(inputs, heads, micro_batches=micro_batches)
        model.compile(
            keras.optimizers.SGD(0.0), loss, loss_weights=None if weight == 1 else [1, weight], metrics=["mae", "mse"]
        )
    targets = Y, 3 * Y
    history = model.fit(X, targets, batch_size=8, verbose=0, shuffle=False).history
    a, b = (output - target for output, target in zip(model.predict(X, verbose=0), targets, strict=True))
    exact = {"a_loss": np.mean(a**2), "a_mae": np.mean(abs(a)), "b_mse": np.mean(b**2)}
    exact["b_loss"] = exact["b_mse"] if loss == "mse" else np.mean(abs(b))
    exact["loss"] = exact["a_loss"] + weight * exact["b_loss"]
    assert {name: values[0] for name, values in history.items()} == pytest.approx(exact, rel=1e-5)
    assert model.evaluate(X, targets, batch_size=8, verbose=0, return_dict=True) == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("replicas", [1, 2])
def test_all_layers_frozen_trains_nothing_and_measures(replicas):
    model = compiled(replicas)
    model.trainable = False
    before = model.get_weights()
    with on(replicas):
        model.compile("sgd", "mse")
    model.fit(DATA, verbose=0, shuffle=False)
    for weight, was in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, was)


def test_no_step_warns(recwarn):
    trained(lambda: net(micro_batches=3), tf.data.Dataset.from_tensor_slices((X, Y)).batch(8), ADAM)
    assert not [str(w.message) for w in recwarn if not issubclass(w.category, DeprecationWarning)]


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_step_is_traced_once_for_each_replica(replicas):
    assert traces_of_first_step(bt.Model, DATA, replicas) == replicas
