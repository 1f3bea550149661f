"""Trains a pipeline of two stages on the devices of all workers, and goes on for ever if it is told to."""

import json
import sys

import numpy as np

import bigtrain_nb as bt


def trained(devices):
    """Return a model, what it was trained with, and what can be compared."""
    from bigtrain_nb.common.quiet import keras  # after `bt.cluster_devices`

    keras.utils.set_random_seed(1)
    stages = []
    for width in (6, 1):
        inputs = keras.Input((6,))
        x = keras.layers.Dense(12, "tanh", kernel_regularizer="l2")(inputs)
        stages.append(keras.Model(inputs, keras.layers.Dense(width)(x)))
    model = bt.Pipelined(stages, micro_batches=3, devices=devices)
    model.compile(keras.optimizers.Adam(0.01, epsilon=1e-4, global_clipnorm=0.1), "mse", metrics=["mae"])
    x = np.random.default_rng(0).normal(size=(16, 6)).astype("float32")
    y = np.sin(x.sum(-1, keepdims=True))
    history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0, validation_data=(x, y)).history
    sums = [float(np.abs(weight).sum()) for weight in model.get_weights()]
    return model, (x, y), {"weights": sums, "history": history}


def at_rest(model, data):
    """Return the metric of many epochs in which no weight moves."""
    from bigtrain_nb.common.quiet import keras, tf

    model.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mae"])
    batches = tf.data.Dataset.from_tensor_slices(data).batch(8)
    return model.fit(batches, epochs=300, shuffle=False, verbose=0).history["mae"]


if __name__ == "__main__":
    model, data, found = trained(bt.cluster_devices(2))
    if not sys.argv[1:]:
        found["mae at rest"] = at_rest(model, data)
    stands = [stage.weights[0].value.device for stage in model.stages]
    print(json.dumps(found | {"devices": stands}), flush=True)
    if sys.argv[1:] == ["endless"]:
        model.fit(*data, batch_size=8, epochs=10**6, verbose=0)
