"""Multiple steps in one XLA program train as single steps do."""

import threading

import numpy as np
import pytest

import bigtrain_nb as bt
from bigtrain_nb.common.quiet import keras, tf
from bigtrain_nb.train import multi_step

layers = keras.layers
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(16 * 10 + 7, 8)).astype("float32")
Y = RANDOM.integers(0, 3, len(X)).astype("int32")


class Seen(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.losses = {}

    def on_train_batch_end(self, batch, logs):
        self.losses[batch] = logs["loss"]


def trained(steps, micro_batches=1, scaled=False):
    keras.utils.set_random_seed(3)
    inputs = keras.Input((8,))
    x = layers.BatchNormalization()(layers.Dense(16, "relu")(inputs))
    outputs = layers.Dense(3)(layers.Dropout(0.3, seed=5)(x))
    model = bt.Model(inputs, outputs, micro_batches=micro_batches)
    optimizer = keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(1e-2, 30))
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2**5, dynamic_growth_steps=4)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=True, steps_per_execution=steps)
    seen = Seen()
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)
    history = model.fit(data, validation_data=data.take(3), epochs=2, verbose=0, callbacks=[seen]).history
    return model, history, seen.losses


@pytest.mark.parametrize("settings", [{"scaled": True}, {"micro_batches": 3}])
def test_four_steps_are_four_single_steps(settings):
    single, history, losses = trained(1, **settings)
    of_four, history_of_four, losses_of_four = trained(4, **settings)
    for a, b in zip(single.get_weights(), of_four.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    for a, b in zip(single.optimizer.variables, of_four.optimizer.variables, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), atol=1e-6)
    assert history.keys() == history_of_four.keys()
    for name, values in history.items():
        np.testing.assert_allclose(values, history_of_four[name], rtol=1e-5)
    assert list(losses_of_four) == [3, 7, 11]  # as stock Keras counts a short last group
    for batch, loss in losses_of_four.items():
        np.testing.assert_allclose(loss, losses[min(batch, 10)], rtol=1e-5)


def test_one_program_has_one_loop_and_serves_evaluation_files_and_single_batches(tmp_path):
    model, _, _ = trained(4)
    functions = [cell.cell_contents for cell in model.train_function.__closure__]
    several = next(one for one in functions if getattr(one, "__name__", "") == "several_steps")
    assert several.experimental_get_tracing_count() == 1
    stacked = tf.constant(X[:64].reshape(4, 16, 8)), tf.constant(Y[:64].reshape(4, 16))
    hlo = several.experimental_get_compiler_ir(stacked, tf.constant(4))(stage="hlo")
    assert hlo.count(" while(") == 1
    assert several.experimental_get_tracing_count() == 1

    stock = keras.Model(model.inputs, model.outputs)
    stock.compile(loss=model.loss, metrics=["accuracy"])
    found, expected = model.evaluate(X, Y, verbose=0), stock.evaluate(X, Y, verbose=0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    model.save(tmp_path / "model.keras")
    again = bt.load_model(tmp_path / "model.keras")
    assert again.optimizer.iterations.numpy() == 22  # steps, not programs
    assert np.isfinite(model.train_on_batch(X[:5], Y[:5])[0])
    assert model.optimizer.iterations.numpy() == 23


def test_batches_of_many_shapes_are_programs_without_a_warning(caplog):
    inputs = keras.Input((None,))
    model = bt.Model(inputs, keras.ops.mean(inputs, axis=1, keepdims=True) * layers.Dense(1)(tf.ones([1, 1])))
    model.compile("sgd", "mse", jit_compile=True)
    for length in range(2, 9):
        model.train_on_batch(np.ones((2, length)), np.ones((2, 1)))
    assert "retracing" not in caplog.text


def test_what_takes_long_is_said(capsys):
    with multi_step.report_if_slow("XLA compiles", seconds=30):
        pass
    assert capsys.readouterr().out == ""
    told = threading.Event()
    with multi_step.report_if_slow("XLA compiles", seconds=0.05):
        told.wait(0.3)
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "XLA compiles: 0 s so far" and last == "XLA compiles: 0 s in all"


def test_what_a_generator_leaves_out_is_nothing():
    model = keras.Sequential([keras.Input((8,)), layers.Dense(1)])
    bt.Model.of(model)
    model.compile("sgd", "mse", jit_compile=True, steps_per_execution=2)
    model.fit(((X[:16], X[:16, :1], None) for _ in range(5)), verbose=0)
    assert model.optimizer.iterations == 5
