"""`fit` with split steps: callbacks, validation, resuming, compiled and eager steps, histories."""

from functools import cache, partial

import numpy as np
import pytest
from equal_models import batches, distance, examples, net, on, traces_of_first_step, trained

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf

X, Y = examples(30)
DATA = batches([8, 8, 8, 6], X, Y)
OF_KNOWN_SIZE = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8, drop_remainder=True)
ADAM = partial(keras.optimizers.AdamW, 0.01, epsilon=1e-4)


def compiled(replicas, **settings):
    with on(replicas):
        model = net(micro_batches=3)
        model.compile(ADAM(), "mse", **settings)
    return model


def test_callbacks_see_steps_epochs_and_validation(tmp_path):
    model = compiled(2, metrics=["mae"])
    steps, epochs = [], []
    callbacks = [
        keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda step, logs: steps.append((step, sorted(logs))),
            on_epoch_end=lambda epoch, logs: epochs.append(set(logs)),
        ),
        keras.callbacks.EarlyStopping("loss", patience=0, min_delta=100),
        keras.callbacks.ReduceLROnPlateau("loss", patience=1),
        keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.keras", monitor="val_loss", save_best_only=True),
    ]
    model.fit(DATA, epochs=5, verbose=0, shuffle=False, callbacks=callbacks, validation_data=(X[:7], Y[:7]))
    assert steps == 2 * [(step, ["loss", "mae"]) for step in range(4)]
    assert len(epochs) == 2
    assert all(names >= {"loss", "mae", "val_loss", "val_mae"} for names in epochs)
    best = bt.load_model(tmp_path / "1.keras", micro_batches=3)
    assert best.micro_batches == 3 and best.optimizer.iterations.numpy() == 4


BY_XLA, EAGERLY = {"jit_compile": True}, {"run_eagerly": True, "jit_compile": False}


@pytest.mark.parametrize(("how", "data", "micro_batches"), [(BY_XLA, DATA, 3), (EAGERLY, OF_KNOWN_SIZE, 4)])
def test_compiled_and_eager_steps_equal_the_whole_batch(how, data, micro_batches):
    """Batches of 8 examples: 4 micro-batches divide them evenly, 3 do not."""
    whole = trained(lambda: net(keras.Model), data, ADAM, jit_compile=False)
    model = trained(lambda: net(micro_batches=micro_batches), data, ADAM, **how)
    assert model.jit_compile == how["jit_compile"] and model.run_eagerly == ("run_eagerly" in how)
    assert distance(model, whole) < 1e-5


class NotesSizes(keras.layers.Layer):
    """Records the number of examples in each call."""

    sizes = []

    def call(self, x):
        tf.py_function(lambda size: self.sizes.append(int(size)), [tf.shape(x)[0]], [])
        return x


@pytest.mark.parametrize("eager", [False, True])
def test_an_eager_step_has_the_micro_batches_of_a_graph(eager):
    inputs = keras.Input((6,))
    model = bt.Model(inputs, keras.layers.Dense(1)(NotesSizes()(inputs)), micro_batches=4)
    model.compile("sgd", "mse", run_eagerly=eager, jit_compile=False)
    NotesSizes.sizes.clear()
    model.fit(X[:10], Y[:10], batch_size=10, verbose=0)
    model.train_on_batch(X[:10], Y[:10])
    assert NotesSizes.sizes == 2 * [3, 3, 3, 1]


class LargestError(keras.metrics.Metric):
    """In plain Python: its ``update_state`` needs values."""

    largest = 0.0

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.largest = max(self.largest, float(np.abs(y_true.numpy() - y_pred.numpy()).max()))

    def result(self):
        return self.largest

    def reset_state(self):
        self.largest = 0.0


def test_an_eager_step_accepts_metrics_in_plain_python():
    model = net(micro_batches=3)
    model.compile(keras.optimizers.SGD(0.0), "mse", metrics=[LargestError()], run_eagerly=True)
    logs = model.fit(X[:8], Y[:8], batch_size=8, verbose=0).history
    largest = np.abs(np.ravel(Y[:8]) - np.ravel(model(X[:8]))).max()
    assert [value for name, (value,) in logs.items() if "largest" in name] == [pytest.approx(largest, rel=1e-5)]


def masked():
    inputs = keras.Input((6,), dtype="int32")
    return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Embedding(5, 4, mask_zero=True)(inputs)))


def two_sums():
    inputs = keras.Input((6,))
    return keras.Model(inputs, {name: keras.layers.Dense(1, name=name)(inputs) for name in "ab"})


random = np.random.default_rng(0)
BY_CLASSES = keras.losses.SparseCategoricalCrossentropy
FIRST_STEPS = {
    "mask": (
        masked,
        lambda: BY_CLASSES(from_logits=True),
        random.integers(0, 5, (8, 6)),
        random.integers(0, 3, (8, 6)),
    ),
    "sums": (
        two_sums,
        lambda: {name: keras.losses.MeanSquaredError(reduction="sum") for name in "ab"},
        random.normal(size=(8, 6)),
        {name: random.normal(size=(8, 1)) for name in "ab"},
    ),
}


@pytest.mark.parametrize("kind", FIRST_STEPS)
def test_the_first_eager_step_in_micro_batches_is_that_of_stock(kind):
    build, loss, x, y = FIRST_STEPS[kind]
    logs = []
    for convert in (lambda model: model, partial(bt.Model.of, micro_batches=2)):
        keras.utils.set_random_seed(0)
        model = convert(build())
        model.compile(keras.optimizers.SGD(1e-3), loss(), run_eagerly=True)
        logs.append(model.fit(x, y, batch_size=8, shuffle=False, verbose=0).history)
    assert logs[0].keys() == logs[1].keys()
    for name, (value,) in logs[0].items():
        assert logs[1][name] == [pytest.approx(value, rel=1e-5)]


def run_all(replicas, **how):
    seen = []

    class Note(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append((batch, float(logs["loss"])))

    with on(replicas):
        model = net(micro_batches=2)
        model.compile(ADAM(), "mse", **how)
    history = model.fit(DATA, verbose=0, shuffle=False, validation_data=DATA, callbacks=[Note()]).history
    return model, history, model.evaluate(DATA, verbose=0), model.predict(DATA, verbose=0), seen


@cache
def by_single_steps():
    return run_all(1)


@pytest.mark.usefixtures("each_reduction")
@pytest.mark.parametrize("how", [{}, {"run_eagerly": True}], ids=["graph", "eager"])
def test_several_steps_an_execution_end_where_single_steps_do(how):
    """The last of the two executions has only one of its three steps."""
    model, history, evaluated, predicted, seen = run_all(2, steps_per_execution=3, **how)
    one_model, one_history, one_evaluated, one_predicted, one_seen = by_single_steps()
    assert distance(model, one_model) < 1e-5
    assert {name: values[0] for name, values in history.items()} == pytest.approx(
        {name: values[0] for name, values in one_history.items()}, rel=1e-5
    )
    assert evaluated == pytest.approx(one_evaluated, rel=1e-5)
    np.testing.assert_allclose(predicted, one_predicted, atol=1e-5)
    assert model.optimizer.iterations.numpy() == 4
    assert [batch for batch, _ in seen] == [2, 5]  # Keras counts executions
    assert seen[0][1] == pytest.approx(one_seen[2][1], rel=1e-4)  # the logs of the last step


@pytest.mark.usefixtures("each_reduction")
def test_a_schedule_and_an_average_of_the_weights():
    schedule = keras.optimizers.schedules.CosineDecay(0.05, 4)
    optimizer = partial(keras.optimizers.SGD, schedule, use_ema=True, ema_momentum=0.5)
    whole = trained(lambda: net(keras.Model), DATA, optimizer)
    assert distance(trained(lambda: net(micro_batches=3), DATA, optimizer, 2), whole) < 1e-5


@pytest.mark.parametrize(("replicas", "micro_batches"), [(1, 1), (4, 3)])
def test_history_is_exact_with_a_short_last_batch(replicas, micro_batches):
    """Including losses of single outputs, which stock Keras averages over batches regardless of their size."""
    with on(replicas):
        inputs = keras.Input((6,))
        heads = [keras.layers.Dense(1, name=name)(inputs) for name in ("a", "b")]
        model = bt.Model(inputs, heads, micro_batches=micro_batches)
        model.compile(keras.optimizers.SGD(0.0), ["mse", "mae"], loss_weights=[1, 0.5], metrics=["mae", "mse"])
    history = model.fit(X, [Y, 3 * Y], batch_size=8, verbose=0, shuffle=False).history
    a, b = model.predict(X, verbose=0)
    a_error, b_error = a - Y, b - 3 * Y
    exact = {
        "a_loss": np.mean(a_error**2),
        "a_mae": np.mean(abs(a_error)),
        "b_loss": np.mean(abs(b_error)),
        "b_mse": np.mean(b_error**2),
    }
    exact["loss"] = exact["a_loss"] + 0.5 * exact["b_loss"]
    assert {name: values[0] for name, values in history.items()} == pytest.approx(exact, rel=1e-5)
    assert model.evaluate(X, [Y, 3 * Y], batch_size=8, verbose=0, return_dict=True) == pytest.approx(exact, rel=1e-5)


def test_no_step_warns(recwarn):
    trained(lambda: net(micro_batches=3), OF_KNOWN_SIZE, ADAM)
    assert not [str(w.message) for w in recwarn if not issubclass(w.category, DeprecationWarning)]


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_step_is_traced_once_for_each_replica(replicas):
    of_two_lengths = 2 if replicas > 1 else 0  # to detect outputs over pairs of examples
    assert traces_of_first_step(bt.Model, DATA, replicas) == replicas + of_two_lengths


@pytest.mark.usefixtures("each_reduction")
def test_a_call_with_one_batch_is_one_step_also_with_several_an_execution():
    with on(2):
        model, stepwise = net(), net()
        model.compile(ADAM(), "mse", steps_per_execution=3)
        stepwise.compile(ADAM(), "mse")
    for part in (slice(0, 8), slice(8, 16)):
        model.train_on_batch(X[part], Y[part])
        stepwise.train_on_batch(X[part], Y[part])
    assert model.optimizer.iterations.numpy() == 2
    assert distance(model, stepwise) < 1e-5


def test_on_a_batch_of_no_examples_a_model_says_what_stock_says():
    said = []
    for replicas, make in ((1, keras.Model), (2, partial(bt.Model, micro_batches=2))):
        with on(replicas):
            inputs = keras.Input((6,))
            model = make(inputs, keras.layers.Dense(1)(inputs))
            model.compile("adam", "mse", metrics=["mae"])
        said.append([getattr(model, name)(X[:0], Y[:0]) for name in ("train_on_batch", "test_on_batch")])
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("replicas", "emptied"),
    [(1, lambda data: data.take(0)), (2, lambda data: data.filter(lambda *_: False))],
    ids=["none", "none, and it does not tell"],
)
def test_without_examples_there_is_no_loss(replicas, emptied, tmp_path):
    x, y = examples(16)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    empty = emptied(data)
    with on(replicas):
        model = net(micro_batches=2)
        model.compile("sgd", "mse", metrics=["mae"])
    with pytest.warns(UserWarning, match="ran out of data"):
        assert model.evaluate(empty, verbose=0, return_dict=True) == {}
    with pytest.warns(UserWarning, match="ran out of data"):
        assert model.fit(empty, shuffle=False, verbose=0).history == {}
    best = keras.callbacks.ModelCheckpoint(str(tmp_path / "best.keras"), "val_loss", save_best_only=True)
    stop = keras.callbacks.EarlyStopping("val_loss", patience=1)
    with pytest.warns(UserWarning, match="val_loss"):
        run = {"validation_data": empty, "epochs": 3, "shuffle": False, "verbose": 0, "callbacks": [best, stop]}
        history = model.fit(data, **run).history
    assert sorted(history) == ["loss", "mae"] and len(history["loss"]) == 3
    assert best.best is None and stop.best is None


def test_a_new_setting_holds_in_evaluations_and_predictions_too():
    with on(2):
        model = bt.Model.of(keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)]))
        model.compile("sgd", "mse")
    model.evaluate(DATA, verbose=0), model.predict(X, verbose=0)
    model.fully_shard = model.layers
    model.fit(DATA, verbose=0, shuffle=False)
    kernel, bias = model.get_weights()
    np.testing.assert_allclose(model.predict(X, verbose=0), X @ kernel + bias, atol=1e-5)
    assert model.evaluate(DATA, verbose=0) == pytest.approx(np.mean((X @ kernel + bias - Y) ** 2), rel=1e-4)


@pytest.mark.parametrize(("replicas", "settings"), [(1, {}), (2, {}), (2, {"shard_optimizer": True})], ids=str)
def test_all_layers_frozen_trains_nothing_and_warns_as_in_stock(replicas, settings):
    with on(replicas):
        model = net(micro_batches=3, **settings)
        model.trainable = False
        model.compile("sgd", "mse")
    before = model.get_weights()
    with pytest.warns(UserWarning, match="The model does not have any trainable weights"):
        model.fit(DATA, verbose=0, shuffle=False)
    for weight, was in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, was)
