"""Keras 2 on DTensor, on four virtual CPU devices: does `fit` give the same result as on one device?

It needs Keras 2 (`pip install tf_keras`, in a separate environment): python on_dtensor.py
"""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf
import tf_keras as keras
from tensorflow.experimental import dtensor
from tf_keras import layers
from tf_keras.src.dtensor.layout_map import LayoutMap
from tf_keras.src.optimizers import adam, sgd

WHOLE = dtensor.UNSHARDED
random = np.random.default_rng(0)
X = random.normal(size=(64, 16)).astype("float32")
Y = (5 * np.tanh(X @ random.normal(size=(16, 4)))).astype("float32")
WEIGHTS = [(0.2 * random.normal(size=shape)).astype("float32") for shape in [(16, 64), (64,), (64, 4), (4,)]]
OPTIMIZERS = {"SGD": sgd.SGD, "Adam": adam.Adam}

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
keras.backend.experimental.enable_tf_random_generator()


def two_layers():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([layers.Dense(64, activation="tanh", name="up"), layers.Dense(4, name="down")])
    model.build((None, 16))
    return model


def cut(mesh, optimizer):
    """Return the compiled model, its matrices sharded along the mesh axis "model"."""
    layouts = LayoutMap(mesh)
    layouts["up.*kernel"] = dtensor.Layout([WHOLE, "model"], mesh)
    layouts["up.*bias"] = dtensor.Layout(["model"], mesh)
    layouts["down.*kernel"] = dtensor.Layout(["model", WHOLE], mesh)
    with layouts.scope():
        model = two_layers()
    for variable, value in zip(model.trainable_variables, WEIGHTS, strict=True):
        everywhere = dtensor.copy_to_mesh(tf.constant(value), dtensor.Layout.replicated(mesh, rank=value.ndim))
        variable.assign(dtensor.relayout(everywhere, variable.layout))
    model.compile(OPTIMIZERS[optimizer](0.01, mesh=mesh), "mse")
    return model


def batches(mesh, rows):
    """Return ten epochs of four batches. Each device has all ``rows``, or those of its position in the mesh."""
    layout = dtensor.Layout([rows, WHOLE], mesh)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).repeat(10)
    return dtensor.DTensorDataset(
        data,
        mesh=mesh,
        layouts=(layout, layout),
        global_batch_size=16,
        batch_dim=None if rows == WHOLE else rows,
    )


def moved(model, mesh):
    """Return the largest change of each weight from its initial value."""
    changes = {}
    for variable, start in zip(model.trainable_variables, WEIGHTS, strict=True):
        whole = dtensor.relayout(variable.read_value(), dtensor.Layout.replicated(mesh, rank=start.ndim))
        changes[variable.name] = float(np.abs(dtensor.unpack(whole)[0].numpy() - start).max())
    return changes


names = [f"CPU:{number}" for number in range(4)]
print("tensorflow", tf.__version__, "tf_keras", keras.__version__)
for optimizer in OPTIMIZERS:
    one_device = two_layers()
    one_device.set_weights(WEIGHTS)
    one_device.compile(OPTIMIZERS[optimizer](0.01), "mse")
    history = one_device.fit(X, Y, batch_size=16, epochs=10, shuffle=False, verbose=0)
    print(f"{optimizer}: one device: loss {history.history['loss'][-1]:.4f}")
    for told, axes, rows in [
        ("matrices cut over 4", [("model", 4)], WHOLE),
        ("matrices cut over 2, batch over 2", [("batch", 2), ("model", 2)], "batch"),
    ]:
        mesh = dtensor.create_mesh(axes, devices=names)
        model = cut(mesh, optimizer)
        history = model.fit(batches(mesh, rows), epochs=10, steps_per_epoch=4, verbose=0)
        changes = ", ".join(f"{name} {change:.4f}" for name, change in moved(model, mesh).items())
        print(f"{optimizer}: {told}: loss {history.history['loss'][-1]:.4f}; moved by {changes}")
